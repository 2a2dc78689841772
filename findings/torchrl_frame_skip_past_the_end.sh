#!/usr/bin/env bash
# torchrl 0.14.1: FrameSkipTransform goes on past the end of an episode, and adds the rewards of those steps.
#
# Expected: the repeats stop where the episode ends, as in gymnasium's RepeatAction. All of them are made: the goal of
# MountainCarContinuous is worth up to four times 100, a crash in LunarLander up to four times -100, and the last
# observation is one of after the end. Returns with and without the transform cannot be compared.
#
# Output seen on 2026-11-28 (MountainCarContinuous-v0 from -0.5, full power in the direction of the speed):
#     gymnasium's RepeatAction, 4: the last step's reward is 99.8
#     torchrl's FrameSkipTransform, 1: the last step's reward is 99.9
#     torchrl's FrameSkipTransform, 4: the last step's reward is 299.6
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torchrl==0.14.1" "torch==2.13.0" "gymnasium==1.4.0" "numpy==2.3.5"
OMP_NUM_THREADS=1 RL_LOGGING_LEVEL=WARNING "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np
import torch
from torchrl.envs import FrameSkipTransform, GymWrapper, TransformedEnv


class SameStart(gymnasium.Wrapper):
    def reset(self, *, seed=None, options=None):
        return self.env.reset(seed=seed, options={"low": -0.5, "high": -0.5})


def make():
    return SameStart(gymnasium.make("MountainCarContinuous-v0"))


def full_power(speed):
    return 1.0 if speed >= 0 else -1.0


env = gymnasium.wrappers.RepeatAction(make(), 4)
obs, _ = env.reset()
terminated = False
while not terminated:
    obs, reward, terminated, _, _ = env.step(np.array([full_power(obs[1])], np.float32))
found = [round(reward, 1)]
print("gymnasium's RepeatAction, 4: the last step's reward is", found[-1])

for skip in (1, 4):
    env = TransformedEnv(GymWrapper(make()), FrameSkipTransform(skip))
    step = env.reset()
    while not step["terminated"]:
        step["action"] = torch.tensor([full_power(step["observation"][1])])
        step = env.step(step)["next"]
    found.append(round(float(step["reward"]), 1))
    print(f"torchrl's FrameSkipTransform, {skip}: the last step's reward is", found[-1])
raise SystemExit(0 if found == [99.8, 99.9, 299.6] else "the behaviour has changed")
PY
