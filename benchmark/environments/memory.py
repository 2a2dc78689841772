"""Environments that need memory, for ppo_lstm.py and ppo_continuous_lstm.py.

From the root of the repository, for example:

python cleanrl_lite/ppo_lstm.py --env-id benchmark.environments.memory:CartPoleHidden-v0
"""

import gymnasium as gym
import numpy as np


# --8<-- [start:hidden]
def hidden(env_id, seen, render_mode=None):
    """An environment of which the agent sees some numbers only, here not the velocities.

    Only several observations say where it is going.
    """
    env = gym.make(env_id, render_mode=render_mode)
    space = gym.spaces.Box(env.observation_space.low[seen], env.observation_space.high[seen])
    return gym.wrappers.TransformObservation(env, lambda obs: obs[seen], space)


POSITION_AND_ANGLE = {"env_id": "CartPole-v1", "seen": [0, 2]}
COSINE_AND_SINE = {"env_id": "Pendulum-v1", "seen": [0, 1]}
POSITION = {"env_id": "MountainCarContinuous-v0", "seen": [0]}
gym.register("CartPoleHidden-v0", hidden, kwargs=POSITION_AND_ANGLE)
gym.register("PendulumHidden-v0", hidden, kwargs=COSINE_AND_SINE)
gym.register("MountainCarContinuousHidden-v0", hidden, kwargs=POSITION)


# --8<-- [end:hidden]
# --8<-- [start:minigrid]
class MemoryS7(gym.Env):
    """envpool's MiniGrid-MemoryS7-v0 (pip install envpool), ten times as fast as minigrid's own.

    An object lies in the room where the agent starts, two at the ends of a corridor; it has to go
    to the one of the same kind. The 7 x 7 fields of the view are an object, a colour and a state
    each. Their numbers are names: one-hot here.
    """

    observation_space = gym.spaces.Box(0, 1, (49 * 20,))
    action_space = gym.spaces.Discrete(7)
    sizes = np.array([11, 6, 3])  # how many objects, colours, states there are
    index = 20 * np.arange(49).reshape(7, 7, 1) + np.cumsum(sizes) - sizes

    def __init__(self):
        import envpool  # here, so that utils.make says in one line that it is missing

        self.envpool = envpool

    def make(self, seed):
        return self.envpool.make(
            "MiniGrid-MemoryS7-v0",
            env_type="gymnasium",
            num_envs=1,
            num_threads=1,
            seed=seed,
        )

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None or not hasattr(self, "pool"):
            self.pool = self.make(int(self.np_random.integers(2**31)))
        return self.one_hot(self.pool.reset()[0]), {}

    def one_hot(self, obs):
        vector = np.zeros(self.observation_space.shape, dtype=np.float32)
        vector[self.index + obs["image"][0]] = 1
        return vector

    def step(self, action):
        obs, rewards, terminations, truncations, _ = self.pool.step(np.array([action]))
        over = bool(terminations[0]), bool(truncations[0])
        return self.one_hot(obs), float(rewards[0]), *over, {}


gym.register("MemoryS7-v0", MemoryS7)
# --8<-- [end:minigrid]
