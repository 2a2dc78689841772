#!/usr/bin/env bash
# gym-trading-env 0.3.5: the step that loses everything has the reward 0, and a reward function is not asked.
#
# Expected: each step's reward is that of the reward function, by default the logarithm of the portfolio's growth. At
# a step that leaves the portfolio at 0 or less, the episode terminates, and the reward is 0, whatever the function:
# to lose everything costs nothing, less than any other loss. Where the price falls by 40 %, an agent pays 0.51 without
# leverage, and 0 with a leverage of 3: where losses are likely, it learns to prefer ruin.
#
# Output seen on 2026-11-29 (the price falls from 100 to 60 in a step; the reward by default, and by a function that
# gives the gain in money):
#     position 0: portfolio 1000, terminated False, reward 0.00, money 0
#     position 1: portfolio 600, terminated False, reward -0.51, money -400
#     position 2: portfolio 200, terminated False, reward -1.61, money -800
#     position 3: portfolio -200, terminated True, reward 0.00, money 0
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

POSITIONS = [0, 1, 2, 3]

close = np.array([100.0, 60.0, 60.0])
prices = {"open": close, "high": close, "low": close, "close": close, "volume": 1.0, "feature_none": 0.0}
table = pd.DataFrame(prices, pd.date_range("2020-01-01", periods=3))


def money(history):
    return history["portfolio_valuation", -1] - history["portfolio_valuation", -2]


def fall(position, **kwargs):
    """The step in which the price falls: the portfolio, whether the episode terminates, and the reward."""
    env = gym.make("TradingEnv", df=table, positions=POSITIONS, initial_position=0, verbose=0, **kwargs)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(POSITIONS.index(position))
    return round(float(info["portfolio_valuation"])), terminated, round(float(reward), 2)


found = []
for position in POSITIONS:
    left, terminated, reward = fall(position)
    gain = fall(position, reward_function=money)[2]
    print(f"position {position}: portfolio {left}, terminated {terminated}, reward {reward:.2f}, money {gain:.0f}")
    found.append((left, terminated, reward, gain))
losses = [(1000, False, 0, 0), (600, False, -0.51, -400), (200, False, -1.61, -800)]
seen = found == [*losses, (-200, True, 0, 0)]
raise SystemExit(0 if seen else "the behaviour has changed")
PY
