#!/usr/bin/env bash
# gymnasium 1.4.0: AsyncVectorEnv never passes on Text observations: each of them is "0000..." for ever.
#
# Expected: the observations of SyncVectorEnv. With shared memory, which is on unless it is switched off, AsyncVectorEnv
# reads texts (and OneOf spaces) from it once, before the first reset. Also inside of Dict and Tuple spaces: an agent
# that follows instructions sees the right image with a wrong instruction. Nothing warns, and other spaces are right.
#
# Output seen on 2026-11-28 (two environments, an instruction and a number of steps, after reset and after a step):
#     SyncVectorEnv: go left 0, go right 0; then go left 1, go right 1
#     AsyncVectorEnv: 00000000 0, 00000000 0; then 00000000 1, 00000000 1
#     AsyncVectorEnv, shared_memory=False: go left 0, go right 0; then go left 1, go right 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnasium==1.4.0" "numpy==2.3.5"
cat > "$folder/try.py" <<'PY'
import string
from functools import partial

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv


class Instructed(gymnasium.Env):
    action_space = Discrete(2)

    def __init__(self, instruction):
        self.instruction = instruction
        letters = string.digits + string.ascii_lowercase + " "
        self.observation_space = Dict(instruction=Text(8, charset=letters), steps=Box(0, 100, (), np.int64))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(), {}

    def step(self, action):
        self.steps += 1
        return self.observation(), 0.0, False, False, {}

    def observation(self):
        return {"instruction": self.instruction, "steps": np.array(self.steps)}


def text(obs):
    return ", ".join(f"{instruction} {steps}" for instruction, steps in zip(obs["instruction"], obs["steps"]))


if __name__ == "__main__":
    found = []
    for name, kind in (
        ("SyncVectorEnv", SyncVectorEnv),
        ("AsyncVectorEnv", AsyncVectorEnv),
        ("AsyncVectorEnv, shared_memory=False", partial(AsyncVectorEnv, shared_memory=False)),
    ):
        envs = kind([partial(Instructed, "go left"), partial(Instructed, "go right")])
        first = text(envs.reset(seed=1)[0])
        found.append(f"{first}; then {text(envs.step(np.zeros(2, int))[0])}")
        envs.close()
        print(f"{name}: {found[-1]}")
    right = "go left 0, go right 0; then go left 1, go right 1"
    wrong = "00000000 0, 00000000 0; then 00000000 1, 00000000 1"
    raise SystemExit(0 if found == [right, wrong, right] else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/try.py"
