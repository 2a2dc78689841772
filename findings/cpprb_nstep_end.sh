#!/usr/bin/env bash
# cpprb 11.0.0: with Nstep, the next observations of an episode's last transitions are arrays of ones.
#
# Expected: where an episode ends before n steps are over, the return is shorter and the next observation is the last
# one. on_episode_end() keeps the shorter returns, but their next observations are ones, an observation that has never
# been. After a terminal state that is hidden by "done"; after a time limit, with done=0 so that the agent goes on with
# a value, it is the value of ones, for n - 1 transitions of every episode. Nothing says by how many steps a return is
# shorter: gamma**n is wrong for it too.
#
# Output seen on 2026-11-28 (two episodes of 5 steps with rewards of 1, cut off by a time limit; gamma 0.9, n = 3):
#     observation 100 101 102 103 104 200 201 202 203 204
#     return 2.71 2.71 2.71 1.90 1.00 2.71 2.71 2.71 1.90 1.00
#     next observation 103 104 105 1 1 203 204 205 1 1
#     right 103 104 105 105 105 203 204 205 205 205
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "cpprb==11.0.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
from cpprb import ReplayBuffer

LENGTH, N = 5, 3

buffer = ReplayBuffer(
    32,
    {"obs": {}, "act": {}, "rew": {}, "next_obs": {}, "done": {}},
    Nstep={"size": N, "gamma": 0.9, "rew": "rew", "next": "next_obs"},
)
right = []
for begin in (100, 200):
    for step in range(begin, begin + LENGTH):
        buffer.add(obs=step, act=0, rew=1, next_obs=step + 1, done=0)
        right.append(min(step + N, begin + LENGTH))
    buffer.on_episode_end()
data = {name: values[:, 0].tolist() for name, values in buffer.get_all_transitions().items()}
print("observation", *map(int, data["obs"]))
print("return", *(f"{value:.2f}" for value in data["rew"]))
print("next observation", *map(int, data["next_obs"]))
print("right", *right)
ends = [place for place in range(2 * LENGTH) if place % LENGTH > LENGTH - N]
expected = [1 if place in ends else value for place, value in enumerate(right)]
raise SystemExit(0 if data["next_obs"] == expected and not any(data["done"]) else "the behaviour has changed")
PY
