"""Environments that do what real packages were seen to do: --env-id tests.odd_envs:Odd-v0
--env-kwargs '{"kind": "ragged_infos"}'.

A game has ten steps; an action that is the observation's sign is rewarded with 1.
"""

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete


class Odd(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = Box(-1, 1, (1,))
    action_space = Discrete(2)
    alive = 0  # instances in this process

    def __init__(self, render_mode=None, kind="", reward=1.0):
        self.render_mode = render_mode
        self.kind = kind
        self.reward = reward
        if kind == "single":
            if Odd.alive:
                raise RuntimeError("the robot is in use")
            Odd.alive += 1
        if kind == "bug":
            self.speed = self.velocity
        if kind == "key":
            self.observation_space = Dict({"v(t)": Box(-1, 1, (1,))})

    def observe(self):
        self.sign = self.np_random.choice([-1.0, 1.0])
        obs = np.float32([self.sign])
        return {"v(t)": obs} if self.kind == "key" else obs

    def info(self):
        if self.kind == "ragged_infos":
            return {"moves": np.arange(self.np_random.integers(1, 9)), "final_info": 3}
        if self.kind == "our_infos":
            return {"statistics": "mine", "episode": "mine", "_final_info": "mine"}
        if self.kind == "won_only" and self.np_random.random() < 0.5:
            return {}
        won = self.steps % 4 > 0
        return {"is_success": str(won) if self.kind == "words" else won, "distance": 0.5}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), self.info()

    def step(self, action):
        reward = self.reward * float(action == (self.sign > 0))
        self.steps += 1
        obs = self.observe()
        over = self.steps == 10
        if self.kind == "arrays":
            return obs, np.array([reward]), np.array([over]), np.array([False]), self.info()
        if self.kind == "tensors":
            return obs, torch.tensor([reward]), torch.tensor(over), False, self.info()
        if self.kind == "objectives":
            return obs, [reward, 0.0], over, False, self.info()
        return obs, reward, over, False, self.info()

    def render(self):
        size = 16 + 2 * self.steps if self.kind == "growing_frames" else 16
        if self.kind == "no_frames" and self.steps == 5:
            raise RuntimeError("the window is gone")
        return np.zeros((size, size, 3), np.uint8)

    def close(self):
        Odd.alive = 0


class Clock(Odd):
    """The sign beside a large constant, as in seconds since 1970; a Box action is rewarded."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float64)
    action_space = Box(-1, 1, (1,))

    def observe(self):
        return 1.7e9 + 10.0 * super().observe().astype(np.float64)

    def step(self, action):
        return super().step(bool(action[0] > 0))


gym.register("Odd-v0", Odd, disable_env_checker=True)
gym.register("Seconds-v0", Clock, disable_env_checker=True)
