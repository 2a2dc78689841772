#!/usr/bin/env bash
# tianshou 2.0.1: in the first steps of an episode, ReplayBuffer(stack_num=4) gives one state two different stacks.
#
# Expected: the next observation of step t is the observation of step t + 1. At the start of an episode the missing
# frames are filled up with the first one; for the stack of next observations, that is the first *next* observation. So
# targets are computed for stacks that the agent never sees: after one step, 1 1 1 1 instead of 0 0 0 1. With
# ignore_obs_next=True (tianshou's Atari examples) they agree.
#
# Output seen on 2026-11-28 (observations 0, 1, 2, ...; stack_num 4):
#     step 0: next 1 1 1 1, observation of step 1: 0 0 0 1
#     step 1: next 1 1 1 2, observation of step 2: 0 0 1 2
#     step 2: next 1 1 2 3, observation of step 3: 0 1 2 3
#     step 3: next 1 2 3 4, observation of step 4: 1 2 3 4
#     ignore_obs_next=True: all agree
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "tianshou==2.0.1" "torch==2.13.0" "numpy<2.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import numpy as np
from tianshou.data import Batch, ReplayBuffer

STEPS = 6


def stacks(**kwargs):
    """For each step but the last: the stack of next observations, and the observations' stack one step later."""
    buffer = ReplayBuffer(10, stack_num=4, **kwargs)
    for t in range(STEPS):
        transition = {"obs": np.array([t]), "act": 0, "rew": 1.0, "terminated": t == STEPS - 1, "truncated": False}
        buffer.add(Batch(**transition, obs_next=np.array([t + 1]), info={}))
    return [(buffer[t].obs_next.ravel().tolist(), buffer[t + 1].obs.ravel().tolist()) for t in range(STEPS - 1)]


found = stacks()
for t, (following, later) in enumerate(found[:4]):
    print(f"step {t}: next", *following, end=f", observation of step {t + 1}: ")
    print(*later)
without = all(following == later for following, later in stacks(ignore_obs_next=True))
print("ignore_obs_next=True:", "all agree" if without else "they differ")
as_seen = [following == later for following, later in found] == [False, False, False, True, True] and without
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
