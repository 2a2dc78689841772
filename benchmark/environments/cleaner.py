"""Three agents that clean a maze together, envpool's Cleaner-v0, for ppo_multiagent.py.

pip install "cleanrl_lite[multiagent]"
python cleanrl_lite/ppo_multiagent.py --env-id benchmark.environments.cleaner:Cleaner-v0
"""

import gymnasium as gym
import numpy as np

DIRTY, CLEAN, WALL = range(3)


class Cleaner(gym.Env):
    """A point for every dirty tile that becomes clean, minus 0.5 a step; over when all are clean or after 100 steps."""

    metadata = dict(render_modes=["rgb_array"], render_fps=10)

    def __init__(self, view=3, render_mode=None):
        import envpool

        self.make = lambda seed: envpool.make("Cleaner-v0", env_type="gymnasium", num_envs=1, num_threads=1, seed=seed)
        self.pool, self.view, self.render_mode = self.make(0), view, render_mode
        agents, state, mask = self.split(self.pool.reset()[0]).values()
        agents, state = (gym.spaces.Box(0.0, 1.0, x.shape, np.float32) for x in (agents, state))
        self.observation_space = gym.spaces.Dict(
            agents=agents, state=state, action_mask=gym.spaces.MultiBinary(mask.shape)
        )
        self.action_space = gym.spaces.MultiDiscrete([4] * len(mask))

    def split(self, obs):
        """Each agent sees the tiles up to `view` steps away; the state has the whole maze and the time."""
        self.grid, self.places = obs["grid"][0], [tuple(place) for place in obs["agents_locations"][0]]
        tiles = np.zeros((3, *self.grid.shape), dtype=np.float32)  # dirty, wall, agents
        tiles[0], tiles[1] = self.grid == DIRTY, self.grid == WALL
        for place in self.places:
            tiles[2][place] += 1 / len(self.places)
        state = np.append(tiles, obs["step_count"] / 100).astype(np.float32)
        margins = np.pad(tiles, ((0, 0), (self.view, self.view), (self.view, self.view)))
        margins[1] = np.pad(tiles[1], self.view, constant_values=1)
        side = 2 * self.view + 1
        views = [margins[:, y : y + side, x : x + side].ravel() for y, x in self.places]
        # All begin in the same corner: without their numbers they would see, and greedily do, the same.
        agents = np.concatenate((views, np.eye(len(views))), axis=1, dtype=np.float32)
        return dict(agents=agents, state=state, action_mask=obs["action_mask"][0])

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.pool = self.make(seed)
        return self.split(self.pool.reset()[0]), {}

    def step(self, action):
        obs, rewards, terminations, truncations, _ = self.pool.step(np.array([action], dtype=np.int32))
        return self.split(obs), float(rewards[0]), bool(terminations[0]), bool(truncations[0]), {}

    def render(self):
        """Dirty tiles are brown, clean ones white, walls black, agents blue."""
        colours = np.array([[170, 120, 70], [255, 255, 255], [0, 0, 0], [40, 90, 220]], dtype=np.uint8)
        tiles = self.grid.copy()
        tiles[tuple(zip(*self.places))] = 3
        return colours[tiles].repeat(32, axis=0).repeat(32, axis=1)


gym.register("Cleaner-v0", Cleaner)
