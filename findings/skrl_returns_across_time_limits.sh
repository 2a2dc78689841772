#!/usr/bin/env bash
# skrl 2.1.1: where a time limit ends an episode, PPO's returns go on into the next episode.
#
# Expected: time_limit_bootstrap says whether the value of the state after a time limit is added; either way the return
# of an episode ends with it. With False, which is the setting of PPO, A2C, RPO and TRPO unless it is changed, a
# time limit is no end at all for their compute_gae: the first steps of the next episode count for the last steps of
# this one. In Pendulum, or wherever only the limit ends episodes, all episodes are one. With True they are apart.
#
# Output seen on 2026-11-28 (returns of an episode of 3 steps with rewards 0, and of the next one with rewards 0 100 0):
#     time_limit_bootstrap in PPO_CFG(): False
#     the first one ends in a terminal state, False: 0 0 0, then 94.05 100 0
#     the first one ends by a time limit, False: 78.24 83.19 88.45, then 94.05 100 0
#     the first one ends by a time limit, True: 0 0 0, then 94.05 100 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "skrl==2.1.1" "torch==2.13.0" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import torch
from skrl.agents.torch.ppo import PPO_CFG
from skrl.agents.torch.ppo.ppo import compute_gae

rewards = torch.tensor([0.0, 0.0, 0.0, 0.0, 100.0, 0.0])[:, None]
never = torch.zeros(6, 1, dtype=torch.bool)
third = torch.arange(6)[:, None] == 2

print("time_limit_bootstrap in PPO_CFG():", PPO_CFG().time_limit_bootstrap)
found = []
for name, terminated, truncated, bootstrap in (
    ("in a terminal state", third, never, False),
    ("by a time limit", never, third, False),
    ("by a time limit", never, third, True),
):
    returns, _ = compute_gae(
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        values=torch.zeros(6, 1),
        last_values=torch.zeros(1),
        discount_factor=0.99,
        lambda_coefficient=0.95,
        time_limit_bootstrap=bootstrap,
    )
    returns = [round(float(value), 2) for value in returns[:, 0]]
    print(f"the first one ends {name}, {bootstrap}:", *(f"{value:g}" for value in returns[:3]), end=", then ")
    print(*(f"{value:g}" for value in returns[3:]))
    found.append(returns[:3])
as_seen = found[0] == found[2] == [0, 0, 0] and min(found[1]) > 78 and not PPO_CFG().time_limit_bootstrap
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
