"""Gives sb3-contrib's test environment for masks an id (pip install --no-deps sb3-contrib)."""

import gymnasium as gym

KWARGS = dict(dims=[10, 10, 10], n_invalid_actions=24)
gym.register("InvalidActions-v0", "sb3_contrib.common.envs:InvalidActionEnvMultiDiscrete", kwargs=KWARGS)
