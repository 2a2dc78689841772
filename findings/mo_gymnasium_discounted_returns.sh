#!/usr/bin/env bash
# mo-gymnasium 1.3.2: the discounted returns of the vector MORecordEpisodeStatistics go on from episode to episode.
#
# Expected: infos["episode"]["dr"] is the discounted return of the episode that has ended, beside "r", its return. "r"
# and "l" begin anew with every episode, "dr" only at reset() of the vector environment, which training calls once. From
# the second episode on it is a sum over all episodes so far. The wrapper for one environment is right.
#
# Output seen on 2026-11-28 (deep-sea-treasure-v0, down in every step: one step, a treasure of 0.7; gamma 0.9):
#     one environment: return 0.7 0.7 0.7 0.7, discounted 0.7 0.7 0.7 0.7
#     vector: return 0.7 0.7 0.7 0.7, discounted 0.7 1.4 2.1 2.8
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "mo-gymnasium==1.3.2" "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import mo_gymnasium
import numpy as np
from mo_gymnasium.wrappers import MORecordEpisodeStatistics
from mo_gymnasium.wrappers.vector import MORecordEpisodeStatistics as VectorStatistics
from mo_gymnasium.wrappers.vector import MOSyncVectorEnv

DOWN, EPISODES = 1, 4


def make():
    return mo_gymnasium.make("deep-sea-treasure-v0")


def one():
    env = MORecordEpisodeStatistics(make(), gamma=0.9)
    for _ in range(EPISODES):
        env.reset()
        yield env.step(DOWN)[4]["episode"]


def vector():
    envs = VectorStatistics(MOSyncVectorEnv([make]), gamma=0.9)
    envs.reset()
    for _ in range(EPISODES):
        episode = envs.step(np.array([DOWN]))[4]["episode"]
        yield {"r": episode["r"][0], "dr": episode["dr"][0]}
        envs.step(np.array([DOWN]))  # begins the next episode


found = {}
for name, episodes in (("one environment", one()), ("vector", vector())):
    found[name] = [[round(float(episode[key][0]), 2) for key in ("r", "dr")] for episode in episodes]
    returns, discounted = zip(*found[name])
    print(f"{name}: return", *returns, end=", discounted ")
    print(*discounted)
as_seen = found["one environment"] == [[0.7, 0.7]] * 4
as_seen = as_seen and found["vector"] == [[0.7, 0.7], [0.7, 1.4], [0.7, 2.1], [0.7, 2.8]]
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
