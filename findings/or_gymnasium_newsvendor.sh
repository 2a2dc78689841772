#!/usr/bin/env bash
# or-gymnasium 0.1.0: in Newsvendor-v0, an order costs nothing if all of it is sold, and else far too much.
#
# Expected: the reward is sales minus the price of what was ordered, minus costs for stock left or customers lost, as
# its documentation says. But the price of an order is multiplied by the stock that is left: it is 0 where nothing is
# left, and otherwise as many times too high. Where 158 are asked for, an order of 100 earns 1.4 times what it should,
# one of 200 loses 134,293 instead of earning 6,619, and five episodes of random orders end at -22 to -685 million.
# So any stock left is ruinous, and what is sold out was free.
#
# Output seen on 2026-11-29 (a step in which an order of each size is sold):
#     price 63.70, cost 17.18, demand 158
#     order 50: 0 left, reward 3,167, documented 2,308, the order is paid 0.00 times
#     order 100: 0 left, reward 6,360, documented 4,642, the order is paid 0.00 times
#     order 200: 42 left, reward -134,293, documented 6,619, the order is paid 42.00 times
#     order 500: 342 left, reward -2,928,535, documented 1,402, the order is paid 342.00 times
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "or-gymnasium==0.1.0" "gymnasium==1.4.0" "numpy==2.3.5"
MPLCONFIGDIR=$folder OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium as gym
import numpy as np
import or_gymnasium  # noqa: F401

STEPS = 10  # an order arrives after five

env = gym.make("Newsvendor-v0")


def last_step(order):
    """The parameters, the stock before the last step, and its reward, if each step orders so much."""
    observation, _ = env.reset(seed=0)
    for _ in range(STEPS):
        parameters, stock = observation[:5].astype(float), float(observation[5])
        observation, reward, *_ = env.step(np.array([order], np.float32))
    return parameters, stock, reward


(price, cost, holding, penalty, _), _, reward = last_step(0)
demand = round(-reward / penalty)  # without stock, a step costs the penalty for each customer
print(f"price {price:.2f}, cost {cost:.2f}, demand {demand}")
seen = True
for order in (50, 100, 200, 500):
    _, stock, reward = last_step(order)
    left, lost = max(0, stock - demand), max(0, demand - stock)
    others = price * min(stock, demand) - holding * left - penalty * lost
    paid = (others - reward) / (cost * order)
    print(f"order {order}: {left:.0f} left, reward {reward:,.0f}, documented {others - cost * order:,.0f},", end=" ")
    print(f"the order is paid {abs(paid):.2f} times")
    seen &= stock == order and abs(paid - left) < 1e-2
raise SystemExit(0 if seen else "the behaviour has changed")
PY
