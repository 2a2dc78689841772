#!/usr/bin/env bash
# gym-anytrading 2.0.0: reset() seeds the action space, without a seed always with 0: all random episodes are the same.
#
# Expected: action_space.sample() goes on from episode to episode, so that a random agent's episodes differ, and an
# agent's random exploration too. But each reset() seeds the action space anew, with a random number between 0 and the
# seed, or between 0 and 1 without one, cut off to an integer: 0. So all episodes have the same random actions, the
# mean of a hundred random episodes is that of one, and small seeds are alike too. single_action_space of gymnasium's
# SyncVectorEnv is the first environment's own space, and is set back in the same way.
#
# Output seen on 2026-11-29 (the profits of ten random episodes; the first random actions after reset with a seed):
#     profits in stocks-v0: 0.4999 0.4999 0.4999 0.4999 0.4999 0.4999 0.4999 0.4999 0.4999 0.4999
#     profits with an action space of our own: 0.4999 0.5024 0.4336 0.4777 0.4491 0.4589 0.4496 0.485 0.4397 0.4713
#     0: 1110000001, 1: 1110000001, 2: 1110000001, 3: 1110000001
#     of four episodes in a vector environment: 1110000001 1110000001 1110000001 1110000001
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gym-anytrading==2.0.0" "gymnasium==1.4.0" "pandas==3.1.1" "numpy==2.3.5"
MPLCONFIGDIR=$folder OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium as gym
import gym_anytrading  # noqa: F401
import numpy as np
import pandas as pd
from gymnasium.vector import AutoresetMode, SyncVectorEnv

PRICES = 100 * np.exp(np.cumsum(np.random.default_rng(0).normal(0, 0.01, 211)))


def make():
    return gym.make("stocks-v0", df=pd.DataFrame({"Close": PRICES}), window_size=10, frame_bound=(10, 211))


def profit(env, space):
    """The total profit of an episode of random actions."""
    env.reset()
    over = False
    while not over:
        _, _, terminated, truncated, info = env.step(space.sample())
        over = terminated or truncated
    return round(float(info["total_profit"]), 4)


env, own = make(), gym.spaces.Discrete(2, seed=0)
theirs, ours = ([profit(env, space) for _ in range(10)] for space in (env.action_space, own))
print("profits in stocks-v0:", *theirs)
print("profits with an action space of our own:", *ours)


def first_actions(env, space, **kwargs):
    env.reset(**kwargs)
    return "".join(str(space.sample()) for _ in range(10))


seeds = [first_actions(env, env.action_space, seed=seed) for seed in range(4)]
print(", ".join(f"{seed}: {actions}" for seed, actions in enumerate(seeds)))
envs = SyncVectorEnv([make, make], autoreset_mode=AutoresetMode.DISABLED)
vector = [first_actions(envs, envs.single_action_space) for _ in range(4)]
print("of four episodes in a vector environment:", *vector)
seen = len(set(theirs)) == 1 and len(set(ours)) > 5 and len(set(seeds)) == 1 and len(set(vector)) == 1
raise SystemExit(0 if seen else "the behaviour has changed")
PY
