"""A four-legged robot that gets up, envpool's Go1Getup-v1, for ppo_continuous_asymmetric.py.

pip install "cleanrl_lite[envpool]"
python cleanrl_lite/ppo_continuous_asymmetric.py --env-id benchmark.environments.go1:Go1Getup-v1
"""

import gymnasium as gym


class Go1(gym.Env):
    """The robot. `state` (42,) is what its noisy sensors tell.

    `privileged_state` (91,) has that too, and what only a simulator knows.
    """

    def __init__(self, task, render_mode=None, **settings):
        self.task = task
        self.settings = settings
        self.pool = self.make(seed=0)
        self.observation_space = self.pool.single_observation_space
        self.action_space = self.pool.single_action_space

    def make(self, seed):
        try:
            import envpool
        except ImportError:
            advice = "pip install 'cleanrl_lite[envpool]' (Python 3.11 on)"
            raise ImportError(f"envpool is missing: {advice}") from None

        return envpool.make_gymnasium(
            self.task,
            num_envs=1,
            num_threads=1,
            seed=seed,
            **self.settings,
        )

    def first(self, obs):
        return {name: part[0] for name, part in obs.items()}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.pool = self.make(int(self.np_random.integers(2**31)))
        return self.first(self.pool.reset()[0]), {}

    def step(self, action):
        obs, rewards, terminations, truncations, _ = self.pool.step(action[None])
        over = bool(terminations[0]), bool(truncations[0])
        return self.first(obs), float(rewards[0]), *over, {}


for task in ("Go1Getup-v1", "Go1Handstand-v1"):
    gym.register(task, Go1, kwargs={"task": task})
