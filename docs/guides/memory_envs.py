"""Environments that need memory, for ppo_lstm.py. Copy this file to the current directory, then for example:

python cleanrl_lite/ppo_lstm.py --env-id memory_envs:CartPoleHidden-v0
"""

import gymnasium as gym
import numpy as np


# --8<-- [start:hidden]
def hidden(render_mode=None):
    """CartPole-v1 without its two velocities: only several observations together say where it moves."""
    env = gym.make("CartPole-v1", render_mode=render_mode)
    space = gym.spaces.Box(env.observation_space.low[[0, 2]], env.observation_space.high[[0, 2]])
    return gym.wrappers.TransformObservation(env, lambda obs: obs[[0, 2]], space)


gym.register("CartPoleHidden-v0", hidden)


# --8<-- [end:hidden]
# --8<-- [start:popgym]
def popgym(name, **kwargs):
    """A task of popgym (pip install --no-deps popgym): popgym registers its environments when it is imported."""
    import popgym as _

    return gym.make(f"popgym-{name}-v0", **kwargs)


gym.register("PopGym-v0", popgym)


# --8<-- [end:popgym]
# --8<-- [start:minigrid]
def minigrid(name="MiniGrid-MemoryS7-v0", **kwargs):
    """A task of MiniGrid (pip install minigrid), of which only the view is left: 7 x 7 fields, each with three numbers
    that are kinds and no amounts, and so one-hot: 20 numbers."""
    from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

    env = gym.make(f"minigrid:{name}", **kwargs)
    sizes = len(OBJECT_TO_IDX), len(COLOR_TO_IDX), max(STATE_TO_IDX.values()) + 1
    eyes = [np.eye(size, dtype=np.float32) for size in sizes]

    def one_hot(obs):
        return np.concatenate([eye[obs["image"][..., i]] for i, eye in enumerate(eyes)], -1).ravel()

    return gym.wrappers.TransformObservation(env, one_hot, gym.spaces.Box(0, 1, (49 * sum(sizes),)))


gym.register("MiniGrid-v0", minigrid)
# --8<-- [end:minigrid]
