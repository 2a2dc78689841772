#!/usr/bin/env bash
# gym-electric-motor 3.0.3, gymnasium 1.4.0: reset() without a seed seeds anew.
#
# gymnasium's reset() without a seed goes on with the random numbers of the last seed. Here it draws
# new ones from the operating system (core.py: reset calls _seed(None)), although the package's own
# RandomComponent derives every episode from the first seed. So reset(seed=5) makes one episode
# repeatable, and none of the following, as in any loop that seeds once.
#
# Output seen on 2026-11-27:
#     after reset(seed=5): True; after the following reset(): False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q gym-electric-motor==3.0.3 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import gym_electric_motor
import gymnasium as gym
import numpy as np


def references(seed=None):
    """What both environments want in the first ten steps of an episode: equal?"""
    for env in envs:
        env.reset(seed=seed)
    wanted = [[env.step(np.zeros(3))[0][1] for _ in range(10)] for env in envs]
    return np.array_equal(*wanted)


envs = [gym.make("Cont-CC-PMSM-v0", disable_env_checker=True) for _ in range(2)]
seeded = references(seed=5)
following = references()
print(f"after reset(seed=5): {seeded}; after the following reset(): {following}")
raise SystemExit(not seeded or following)
PYTHON
