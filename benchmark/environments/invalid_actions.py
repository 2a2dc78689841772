"""sb3-contrib's test environment for masks (pip install --no-deps sb3-contrib): ppo_masked.py."""

import gymnasium as gym

gym.register(
    "InvalidActions-v0",
    "sb3_contrib.common.envs:InvalidActionEnvMultiDiscrete",
    kwargs={"dims": [10, 10, 10], "n_invalid_actions": 24},
)
