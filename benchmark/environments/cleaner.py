"""Three agents that clean a maze together, envpool's Cleaner-v0, for ppo_multiagent.py.

pip install "cleanrl_lite[multiagent]"
python cleanrl_lite/ppo_multiagent.py --env-id benchmark.environments.cleaner:Cleaner-v0
"""

import gymnasium as gym
import numpy as np

DIRTY, CLEAN, WALL = range(3)
# Of dirty tiles, clean ones, walls and agents
COLOURS = np.array([[170, 120, 70], [255, 255, 255], [0, 0, 0], [40, 90, 220]], dtype=np.uint8)


class Cleaner(gym.Env):
    """A point for every dirty tile that becomes clean, minus 0.5 a step.

    Over when all tiles are clean, or after 100 steps.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, view=3, render_mode=None):
        self.view = view
        self.render_mode = render_mode
        self.pool = self.make(seed=0)
        first = self.split(self.pool.reset()[0])
        num_agents = len(first["action_mask"])
        self.observation_space = gym.spaces.Dict(
            agents=gym.spaces.Box(0.0, 1.0, first["agents"].shape, np.float32),
            state=gym.spaces.Box(0.0, 1.0, first["state"].shape, np.float32),
            action_mask=gym.spaces.MultiBinary(first["action_mask"].shape),
        )
        self.action_space = gym.spaces.MultiDiscrete([4] * num_agents)

    def make(self, seed):
        try:
            import envpool
        except ImportError:
            advice = "pip install 'cleanrl_lite[multiagent]' (Python 3.11 on)"
            raise ImportError(f"envpool is missing: {advice}") from None

        return envpool.make(
            "Cleaner-v0",
            env_type="gymnasium",
            num_envs=1,
            num_threads=1,
            seed=seed,
        )

    def split(self, obs):
        """Each agent sees the tiles up to `view` steps away, the state the maze and the time."""
        self.grid = obs["grid"][0]
        self.places = [tuple(place) for place in obs["agents_locations"][0]]
        tiles = np.zeros((3, *self.grid.shape), dtype=np.float32)  # dirty, wall, agents
        tiles[0] = self.grid == DIRTY
        tiles[1] = self.grid == WALL
        for place in self.places:
            tiles[2][place] += 1 / len(self.places)
        state = np.append(tiles, obs["step_count"] / 100).astype(np.float32)
        return {
            "agents": self.views(tiles),
            "state": state,
            "action_mask": obs["action_mask"][0],
        }

    def views(self, tiles):
        """What each agent sees, one row each; outside of the maze there are walls."""
        margin = self.view
        padded = np.pad(tiles, ((0, 0), (margin, margin), (margin, margin)))
        padded[1] = np.pad(tiles[1], margin, constant_values=1)
        side = 2 * margin + 1
        views = [padded[:, y : y + side, x : x + side].ravel() for y, x in self.places]
        # All begin in the same corner: without their numbers they would see, and greedily do, the
        # same.
        return np.concatenate((views, np.eye(len(views))), axis=1, dtype=np.float32)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.pool = self.make(seed)
        return self.split(self.pool.reset()[0]), {}

    def step(self, action):
        actions = np.array([action], dtype=np.int32)
        obs, rewards, terminations, truncations, _ = self.pool.step(actions)
        over = bool(terminations[0]), bool(truncations[0])
        return self.split(obs), float(rewards[0]), *over, {}

    def render(self):
        tiles = self.grid.copy()
        for place in self.places:
            tiles[place] = 3
        return COLOURS[tiles].repeat(32, axis=0).repeat(32, axis=1)


gym.register("Cleaner-v0", Cleaner)
