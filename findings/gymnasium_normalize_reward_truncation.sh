#!/usr/bin/env bash
# gymnasium 1.4.0: wrappers.NormalizeReward does not restart its discounted return where a time limit ends an episode.
#
# Expected: the return that scales rewards begins again with each episode, as it does after a termination. It is
# multiplied by (1 - terminated) only, so with truncations it goes on over episodes, and the scale is another.
#
# Output seen on 2026-11-27 (reward 1, discount 0.9, episodes of four steps):
#     terminated: 1.0 1.9 2.71 1.0 1.9 2.71
#     truncated: 1.0 1.9 2.71 3.44 4.1 4.69
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import NormalizeReward


class FourSteps(gymnasium.Env):
    observation_space = Box(-1, 1, (1,))
    action_space = Discrete(2)

    def __init__(self, terminates):
        self.terminates = terminates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == 4
        obs = np.zeros(1, np.float32)
        return obs, 1.0, over and self.terminates, over and not self.terminates, {}


def returns(terminates):
    env = NormalizeReward(FourSteps(terminates), gamma=0.9)
    env.reset()
    found = []
    for _ in range(6):
        _, _, terminated, truncated, _ = env.step(0)
        found.append(round(float(np.ravel(env.discounted_reward)[0]), 2))
        if terminated or truncated:
            env.reset()
    return found


print("terminated:", *returns(True))
print("truncated:", *returns(False))
raise SystemExit(0 if max(returns(False)) > 4 else "the behaviour has changed")
PY
