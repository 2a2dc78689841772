"""Environments that need memory, for ppo_lstm.py; from the root of the repository, for example:

python cleanrl_lite/ppo_lstm.py --env-id benchmark.environments.memory:CartPoleHidden-v0
"""

import functools

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
class MemoryS7(gym.Env):
    """envpool's MiniGrid-MemoryS7-v0 (pip install envpool), ten times as fast as minigrid's own: an object lies in the
    room where the agent starts, two at the ends of a corridor; it has to go to the one of the same kind.

    The 7 x 7 fields of the view are an object, a colour and a state each. Their numbers are names: one-hot here.
    """

    SIZES = np.array([11, 6, 3])  # how many objects, colours, states there are
    observation_space = gym.spaces.Box(0, 1, (49 * 20,))
    action_space = gym.spaces.Discrete(7)
    index = 20 * np.arange(49).reshape(7, 7, 1) + np.cumsum(SIZES) - SIZES

    def __init__(self):
        import envpool

        self.make = functools.partial(envpool.make, "MiniGrid-MemoryS7-v0", env_type="gymnasium", num_envs=1)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None or not hasattr(self, "pool"):
            self.pool = self.make(seed=int(self.np_random.integers(2**31)), num_threads=1)
        return self.one_hot(self.pool.reset()[0]), {}

    def one_hot(self, obs):
        vector = np.zeros(self.observation_space.shape, dtype=np.float32)
        vector[self.index + obs["image"][0]] = 1
        return vector

    def step(self, action):
        obs, rewards, terminations, truncations, _ = self.pool.step(np.array([action]))
        return self.one_hot(obs), float(rewards[0]), bool(terminations[0]), bool(truncations[0]), {}


gym.register("MemoryS7-v0", MemoryS7)
# --8<-- [end:minigrid]
