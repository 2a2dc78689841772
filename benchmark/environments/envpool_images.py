"""Images of envpool for ppo_image.py, one environment each, as a gymnasium.Env.

pip install "cleanrl_lite[envpool]"
python cleanrl_lite/ppo_image.py --env-id benchmark.environments.envpool_images:CarRacing-v0

Coinrun-v0: procgen's easy CoinRun; `--env-kwargs '{"num_levels": 200}'` trains on 200 levels only.
It needs the system package libqt5gui5.
CarRacing-v0: CarRacing-v3, nine times as fast as gymnasium's; each action holds for 4 frames.
"""

import gymnasium as gym
import numpy as np


class EnvpoolImages(gym.Env):
    def __init__(self, task, repeat=1, render_mode=None, **settings):
        self.task = task
        self.repeat = repeat
        self.settings = settings
        self.pool = self.make(seed=0)
        self.observation_space = self.pool.single_observation_space
        self.action_space = self.pool.single_action_space

    def make(self, seed):
        import envpool

        return envpool.make(
            self.task,
            "gymnasium",
            num_envs=1,
            num_threads=1,
            seed=seed,
            **self.settings,
        )

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.pool = self.make(int(self.np_random.integers(2**31)))
        obs, _ = self.pool.reset()
        return obs[0], {}

    def step(self, action):
        total = 0.0
        for _ in range(self.repeat):
            obs, reward, terminated, truncated, _ = self.pool.step(np.asarray(action)[None])
            total += float(reward[0])
            if terminated[0] or truncated[0]:
                break
        return obs[0], total, bool(terminated[0]), bool(truncated[0]), {}


gym.register("Coinrun-v0", EnvpoolImages, kwargs={"task": "CoinrunEasy-v0"})
gym.register("CarRacing-v0", EnvpoolImages, kwargs={"task": "CarRacing-v3", "repeat": 4})
