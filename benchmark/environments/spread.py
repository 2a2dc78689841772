"""Three agents that cover three landmarks and do not bump into each other, mpe2's simple_spread_v3.

pip install "cleanrl_lite[multiagent]"
python cleanrl_lite/ppo_multiagent.py --env-id benchmark.environments.spread:SimpleSpread-v3
"""

import gymnasium as gym
import numpy as np


class Spread(gym.Env):
    """The adaptor of a PettingZoo parallel environment whose agents all stay to the end.

    The reward is the mean of theirs.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None, **kwargs):
        from mpe2 import simple_spread_v3

        self.world = simple_spread_v3.parallel_env(render_mode=render_mode, **kwargs)
        self.render_mode = render_mode
        self.names = self.world.possible_agents
        own = self.world.observation_space(self.names[0]).shape
        state = self.world.state_space.shape
        self.observation_space = gym.spaces.Dict(
            agents=gym.spaces.Box(-np.inf, np.inf, (len(self.names), *own), np.float32),
            state=gym.spaces.Box(-np.inf, np.inf, state, np.float32),
        )
        choices = [self.world.action_space(name).n for name in self.names]
        self.action_space = gym.spaces.MultiDiscrete(choices)

    def arrays(self, obs):
        agents = np.stack([obs[name] for name in self.names])
        return {"agents": agents, "state": self.world.state()}

    def reset(self, seed=None, options=None):
        obs, _ = self.world.reset(seed=seed)
        return self.arrays(obs), {}

    def step(self, action):
        actions = dict(zip(self.names, map(int, action), strict=True))
        obs, rewards, terminations, truncations, _ = self.world.step(actions)
        reward = sum(rewards.values()) / len(self.names)
        over = all(terminations.values()), all(truncations.values())
        return self.arrays(obs), reward, *over, {}

    def render(self):
        return self.world.render()

    def close(self):
        self.world.close()


gym.register("SimpleSpread-v3", Spread)
