#!/usr/bin/env bash
# Stable-Baselines3 2.9.2: after a resumed run, load_results() mixes the episodes of both parts.
#
# Expected: with `override_existing=False`, Monitor goes on in the file of the first part, and load_results()
# returns the episodes in the order they were played. The times in the file begin at 0 again in the second
# part, and load_results() sorts by them: early and late episodes take turns. plot_results() draws this order,
# so the curve of an agent that got better and was then resumed jumps up and down, and the mean of the last
# 100 episodes counts old ones.
#
# Output seen on 2026-11-28 (two parts of three episodes, of 1, 2, 3 and then 4, 5, 6 steps):
#     in the file: 1 2 3 4 5 6
#     load_results: 4 1 5 2 6 3 (the order varies, both parts are always mixed)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "stable-baselines3==2.9.2" "gymnasium==1.4.0" "torch==2.13.0" \
    "pandas==3.1.1" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - "$folder/log" <<'PY'
import sys
import time

import gymnasium
from stable_baselines3.common.monitor import Monitor, load_results

log = sys.argv[1]
for part in (0, 1):
    env = gymnasium.make("CartPole-v1")
    env = Monitor(env, f"{log}/run", override_existing=part == 0, allow_early_resets=True)
    for episode in (1, 2, 3):
        env.reset(seed=1)
        for step in range(episode + 3 * part - 1):
            env.step(step % 2)
        # The pole falls by the last step of the episode.
        env.unwrapped.state[2] = 1
        time.sleep(1)
        env.step(0)
    env.close()
with open(f"{log}/run.monitor.csv") as file:
    written = [int(line.split(",")[1]) for line in file.readlines()[2:]]
read = load_results(log)["l"].tolist()
print("in the file:", *written)
print("load_results:", *read)
mixed = read != written and sorted(read) == written and set(read[:3]) != {1, 2, 3}
raise SystemExit(0 if written == [1, 2, 3, 4, 5, 6] and mixed else "the behaviour has changed")
PY
