"""The volleyball game of slimevolleygym, by turns for ppo_selfplay.py, and against its own player.

    pip install --no-deps slimevolleygym==0.1.0 gym==0.26.2 gym_notices
    game=benchmark.environments.slimevolley
    python cleanrl_lite/ppo_selfplay.py --env-id $game:SlimeVolley-v0 --opponent builtin
    python cleanrl_lite/ppo_masked.py --env-id $game:SlimeVolleyBuiltin-v0

In a frame the right slime chooses first and the left one, who does not see that choice, second;
then the ball moves. So a frame has two steps. The opponent `builtin` is the package's own, a small
recurrent network.
"""

import gymnasium as gym
import numpy as np

gym.register("SlimeVolley-v0", "benchmark.environments.slimevolley:SlimeVolley")
gym.register("SlimeVolleyBuiltin-v0", "benchmark.environments.slimevolley:Builtin")


class SlimeVolley(gym.Env):
    """Observations of positions and velocities (12,); three buttons.

    A slime has 5 lives, a game at most 3,000 frames.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 100}
    observation_space = gym.spaces.Box(-np.inf, np.inf, (12,), np.float32)
    action_space = gym.spaces.MultiBinary(3)

    def __init__(self, render_mode=None):
        from slimevolleygym import SlimeVolleyEnv

        self.volley = SlimeVolleyEnv()
        self.render_mode = render_mode
        self.volley.policy.reset()

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.volley.seed(seed)
        self.right = self.volley.reset()
        self.chosen = None  # the right slime's action, until the left one has chosen too
        return np.float32(self.right), {}

    def step(self, action):
        if self.chosen is None:
            self.chosen = action
            left = self.volley.game.agent_left.getObservation()
            return np.float32(left), 0.0, False, False, {}
        self.right, reward, done, _ = self.volley.step(self.chosen, action)
        self.chosen = None
        late = self.volley.t >= self.volley.t_limit
        # The left one has chosen last: the reward is its own.
        return np.float32(self.right), -float(reward), done and not late, late, {}

    def builtin_action(self, obs):
        return np.array(self.volley.policy.predict(obs[:12]))

    def render(self):
        return self.volley.render("rgb_array")


class Builtin(SlimeVolley):
    """The right slime against the package's own player: a step is a frame."""

    def step(self, action):
        obs, reward, done, _ = self.volley.step(action)
        late = self.volley.t >= self.volley.t_limit
        return np.float32(obs), float(reward), done and not late, late, {}
