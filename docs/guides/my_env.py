"""An environment of one's own: walk along a line from the left half to 1."""

import gymnasium as gym
import numpy as np


class Line(gym.Env):
    def __init__(self, stride=0.1):
        self.stride = stride  # change it with --env-kwargs '{"stride": 0.05}'
        self.observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)  # left, right

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 0)
        return self.observation(), {}

    def step(self, action):
        self.place += self.stride if action == 1 else -self.stride
        self.place = float(np.clip(self.place, -1, 1))
        arrived = self.place == 1
        reward = 1.0 if arrived else -0.01
        return self.observation(), reward, arrived, False, {}

    def observation(self):
        return np.array([self.place], np.float32)


gym.register("Line-v0", Line, max_episode_steps=200)
