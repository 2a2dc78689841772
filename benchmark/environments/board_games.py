"""Board games of envpool for ppo_selfplay.py: ConnectFour-v1, TicTacToe-v1, Othello-v1, Hex-v1.

pip install "cleanrl_lite[envpool]"
python cleanrl_lite/ppo_selfplay.py --env-id benchmark.environments.board_games:ConnectFour-v1
"""

import gymnasium as gym
import numpy as np


class BoardGame(gym.Env):
    """The game as the player sees it whose turn it is; a reward is that of the player who moved."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}

    def __init__(self, game, render_mode=None):
        self.game = game
        self.render_mode = render_mode
        self.pool = self.make(seed=0)
        (obs, *_), _ = self.pool.reset()
        self.observation_space = gym.spaces.Box(0.0, 1.0, (obs.size,), np.float32)
        self.action_space = self.pool.action_space

    def make(self, seed):
        try:
            import envpool
        except ImportError:
            advice = "pip install 'cleanrl_lite[envpool]' (Python 3.11 on)"
            raise ImportError(f"envpool is missing: {advice}") from None

        return envpool.make(
            self.game,
            env_type="gymnasium",
            num_envs=1,
            num_threads=1,
            seed=seed,
            render_mode=self.render_mode,
        )

    def view(self, obs, info):
        self.player = int(info["current_player"][0])
        own = obs[self.player].ravel().astype(np.float32)
        return own, {"action_mask": info["legal_action_mask"][0]}

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.pool = self.make(seed)
        return self.view(*self.pool.reset())

    def step(self, action):
        player = self.player
        actions = np.array([action], dtype=np.int32)
        obs, rewards, terminations, truncations, info = self.pool.step(actions)
        obs, info = self.view(obs, info)
        return obs, float(rewards[player]), bool(terminations[0]), bool(truncations[0]), info

    def render(self):
        return self.pool.render()[0]


for name in ("ConnectFour-v1", "TicTacToe-v1", "Othello-v1", "Hex-v1"):
    gym.register(
        name,
        "benchmark.environments.board_games:BoardGame",
        kwargs={"game": name},
    )
