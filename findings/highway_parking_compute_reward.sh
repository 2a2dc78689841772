#!/usr/bin/env bash
# highway-env 1.12.1, gymnasium 1.4.0: parking-v0 does not keep the contract of goal environments: at a crash, the reward
# of the step is 5 below what compute_reward gives for the same goals and info.
#
# Expected: reward == compute_reward(achieved_goal, desired_goal, info) at each step, as hindsight experience replay needs.
# So it is, but for the step that ends an episode by a crash: compute_reward does not know of it, and replay that computes
# rewards anew teaches that a crash costs nothing.
#
# Output seen on 2026-11-27:
#     steps without a crash: 852, largest difference 0
#     crashes: 8, differences -5.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q highway-env==1.12.1 gymnasium==1.4.0 "numpy<2.5"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import gymnasium
import highway_env  # registers parking-v0

env = gymnasium.make("parking-v0")
env.action_space.seed(0)
calm, crashes = [], []
for episode in range(8):
    env.reset(seed=episode)
    over = False
    while not over:
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        again = env.unwrapped.compute_reward(obs["achieved_goal"], obs["desired_goal"], info)
        (crashes if info["crashed"] else calm).append(float(reward) - float(again))
        over = terminated or truncated
largest = max(map(abs, calm))
print(f"steps without a crash: {len(calm)}, largest difference {largest:.3g}")
print(f"crashes: {len(crashes)}, differences", *sorted({round(x, 3) for x in crashes}))
seen = largest < 1e-6 and crashes and all(abs(x + 5) < 1e-6 for x in crashes)
raise SystemExit(0 if seen else "the behaviour has changed")
PYTHON
