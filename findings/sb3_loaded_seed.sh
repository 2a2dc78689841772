#!/usr/bin/env bash
# Stable-Baselines3 2.9.2: load() of an agent made with a seed sets all seeds anew, and a resumed run meets the same episodes.
#
# Expected: a resumed run goes on with episodes that the agent has not seen. load() sets the seeds of python, numpy,
# torch and the environments as at the beginning: each part of a run that is saved and resumed has the initial
# states and the noise of the first part, and so less data than its number of steps says. Where an agent is only
# evaluated, load() overwrites the seeds that the script has set. load(..., seed=...) helps; the docstring of
# load() says nothing of seeds.
#
# Output seen on 2026-11-28 (PPO with seed=1 in Pendulum; the first cosine of each of three episodes):
#     first part: 0.997 -0.617 0.379
#     resumed: 0.997 -0.617 0.379
#     resumed with load(..., seed=2): 0.073 -0.393 0.809
#     numpy and torch after seed 7 and load(): 0.417 0.302
#     numpy and torch after seed 8 and load(): 0.417 0.302
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "stable-baselines3==2.9.2" "gymnasium==1.4.0" "torch==2.13.0" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - "$folder/agent.zip" <<'PY'
import sys

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO

path = sys.argv[1]


class Starts(gymnasium.Wrapper):
    """Keeps the first cosine of each episode."""

    def __init__(self):
        super().__init__(gymnasium.make("Pendulum-v1"))
        self.cosines = []

    def reset(self, **options):
        obs, info = super().reset(**options)
        self.cosines.append(round(float(obs[0]), 3))
        return obs, info


def part(agent, env):
    agent.learn(600, reset_num_timesteps=False)
    return env.cosines[:3]


env = Starts()
agent = PPO("MlpPolicy", env, n_steps=200, batch_size=200, n_epochs=1, seed=1)
parts = {"first part": part(agent, env)}
agent.save(path)
for name, options in {"resumed": {}, "resumed with load(..., seed=2)": {"seed": 2}}.items():
    env = Starts()
    parts[name] = part(PPO.load(path, env=env, **options), env)
for name, cosines in parts.items():
    print(f"{name}:", *cosines)
numbers = []
for seed in (7, 8):
    np.random.seed(seed)
    torch.manual_seed(seed)
    PPO.load(path)
    numbers.append((round(np.random.rand(), 3), round(torch.rand(1).item(), 3)))
    print(f"numpy and torch after seed {seed} and load():", *numbers[-1])
first, resumed, other = parts.values()
seen = first == resumed != other and numbers[0] == numbers[1]
raise SystemExit(0 if seen else "the behaviour has changed")
PY
