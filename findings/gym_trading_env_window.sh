#!/usr/bin/env bash
# gym-trading-env 0.3.5: with windows, an episode's first observations show the positions of earlier episodes.
#
# Expected: with windows=5, an observation is the last five steps: features of the market, and the position that the
# agent held. What it held before an episode began is nothing, or always the same. But the positions are written into
# one table of all days, which no reset() clears: with max_episode_duration, where episodes begin on a random day, the
# window shows what an earlier episode did on the days before, or zeros where none has been. So the first windows
# depend on the instance's history, and an evaluation in a fresh instance begins with others than the training.
#
# Output seen on 2026-11-29 (the positions in the first window of an episode that begins with 0 on day 12):
#     fresh instance: 0 0 0 0 0
#     after 40 episodes that hold 1: 1 1 1 1 0
#     after 40 episodes that hold -1: -1 -1 -1 -1 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gym-trading-env==0.3.5" "gymnasium==1.4.0" "pandas==3.1.1" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PY'
import gymnasium as gym
import gym_trading_env  # noqa: F401
import numpy as np
import pandas as pd

POSITIONS = [-1, 0, 1]

close = 100 * np.exp(np.cumsum(np.random.default_rng(0).normal(0, 0.01, 60)))
prices = {"open": close, "high": close, "low": close, "close": close, "volume": 1.0, "feature_day": np.arange(60)}
table = pd.DataFrame(prices, pd.date_range("2020-01-01", periods=60))
settings = {"df": table, "windows": 5, "positions": POSITIONS, "max_episode_duration": 20, "verbose": 0}


def reset(env, seed):
    np.random.seed(seed)  # the first day comes from numpy's global generator
    return env.reset(seed=seed)[0]


def first_window(episodes, position):
    """The days and positions in the first window after so many episodes that hold a position."""
    env = gym.make("TradingEnv", initial_position=0, **settings)
    for seed in range(episodes):
        reset(env, seed)
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(POSITIONS.index(position))
            over = terminated or truncated
    return reset(env, 100).astype(int).T[:2].tolist()


(days, fresh), (_, long), (_, short) = first_window(0, 0), first_window(40, 1), first_window(40, -1)
print("fresh instance:", *fresh)
print("after 40 episodes that hold 1:", *long)
print("after 40 episodes that hold -1:", *short)
seen = days == list(range(8, 13)) and fresh == [0] * 5 and long == [1] * 4 + [0] and short == [-1] * 4 + [0]
raise SystemExit(0 if seen else "the behaviour has changed")
PY
