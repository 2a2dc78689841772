"""Three agents that cover three landmarks and do not bump into each other, mpe2's simple_spread_v3.

pip install "cleanrl_lite[multiagent]"
python cleanrl_lite/ppo_multiagent.py --env-id benchmark.environments.spread:SimpleSpread-v3
"""

import gymnasium as gym
import numpy as np


class Spread(gym.Env):
    """The adaptor of a PettingZoo parallel environment whose agents all stay to the end; the reward is their mean."""

    metadata = dict(render_modes=["rgb_array"], render_fps=10)

    def __init__(self, render_mode=None, **kwargs):
        from mpe2 import simple_spread_v3

        self.world, self.render_mode = simple_spread_v3.parallel_env(render_mode=render_mode, **kwargs), render_mode
        self.names = self.world.possible_agents
        shape = (len(self.names), *self.world.observation_space(self.names[0]).shape)
        agents, state = (gym.spaces.Box(-np.inf, np.inf, x, np.float32) for x in (shape, self.world.state_space.shape))
        self.observation_space = gym.spaces.Dict(agents=agents, state=state)
        self.action_space = gym.spaces.MultiDiscrete([self.world.action_space(name).n for name in self.names])

    def arrays(self, obs):
        return dict(agents=np.stack([obs[name] for name in self.names]), state=self.world.state())

    def reset(self, seed=None, options=None):
        return self.arrays(self.world.reset(seed=seed)[0]), {}

    def step(self, action):
        obs, rewards, terminations, truncations, _ = self.world.step(dict(zip(self.names, map(int, action))))
        reward = sum(rewards.values()) / len(self.names)
        return self.arrays(obs), reward, all(terminations.values()), all(truncations.values()), {}

    def render(self):
        return self.world.render()

    def close(self):
        self.world.close()


gym.register("SimpleSpread-v3", Spread)
