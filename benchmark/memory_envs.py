"""Environments that need memory, for ppo_lstm.py; from the root of the repository, for example:

python cleanrl_lite/ppo_lstm.py --env-id benchmark.memory_envs:CartPoleHidden-v0
"""

import gymnasium as gym
import numpy as np


# --8<-- [start:hidden]
def hidden(render_mode=None):
    """CartPole-v1 without its two velocities: only several observations together say where it is going."""
    env = gym.make("CartPole-v1", render_mode=render_mode)
    space = gym.spaces.Box(env.observation_space.low[[0, 2]], env.observation_space.high[[0, 2]])
    return gym.wrappers.TransformObservation(env, lambda obs: obs[[0, 2]], space)


gym.register("CartPoleHidden-v0", hidden)


# --8<-- [end:hidden]
# --8<-- [start:minigrid]
def minigrid(name, **kwargs):
    """A task of minigrid, of which the view is left: 7 x 7 fields, each with the numbers of an object, a colour and a
    state. The numbers are names, not amounts, so they are one-hot here."""
    from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

    env = gym.make(f"minigrid:{name}", **kwargs)
    sizes = len(OBJECT_TO_IDX), len(COLOR_TO_IDX), max(STATE_TO_IDX.values()) + 1
    rows = [np.eye(size, dtype=np.float32) for size in sizes]

    def one_hot(obs):
        return np.concatenate([row[obs["image"][..., i]] for i, row in enumerate(rows)], -1).ravel()

    return gym.wrappers.TransformObservation(env, one_hot, gym.spaces.Box(0, 1, (49 * sum(sizes),)))


gym.register("MemoryS7-v0", minigrid, kwargs=dict(name="MiniGrid-MemoryS7-v0"))
# --8<-- [end:minigrid]
