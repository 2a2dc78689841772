#!/usr/bin/env bash
# bluesky-gym 0.2.0: two instances in one process fly the same simulator.
#
# Expected: instances of an environment are independent of each other, as a vector environment in one process
# (gymnasium's SyncVectorEnv, the default of gymnasium.make_vec) needs them to be.
# But making and stepping a second DescentEnv moves the first one's aircraft, without an error: the altitudes of the
# first instance are others as soon as there is a second one, although its seed and its actions are the same.
#
# Output seen on 2026-11-27 (normalised altitude after each of five steps):
#     alone: 0.466, 0.542, 0.618, 0.694, 0.771
#     beside a second instance: 1.228, 1.429, 1.630, 1.831, 2.033
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q bluesky-gym==0.2.0 gymnasium==1.4.0 "numpy<2.4"
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>/dev/null <<'PYTHON'
import bluesky_gym
import gymnasium as gym
import numpy as np

bluesky_gym.register_envs()


def altitudes(second):
    """Of an instance with seed 1 that always takes the action 0."""
    env = gym.make("DescentEnv-v0")
    np.random.seed(0)  # the package draws from it, not from the seeded generator
    env.reset(seed=1)
    if second:
        other = gym.make("DescentEnv-v0")
        other.reset(seed=2)
    found = []
    for _ in range(5):
        obs, *_ = env.step(np.zeros(1, np.float32))
        found.append(float(obs["altitude"][0]))
        if second:
            other.step(np.ones(1, np.float32))
    return found


alone = altitudes(False)
again = altitudes(False)
beside = altitudes(True)
print("alone:", ", ".join(f"{altitude:.3f}" for altitude in alone))
print("beside a second instance:", ", ".join(f"{altitude:.3f}" for altitude in beside))
same = np.allclose(alone, again)
raise SystemExit(0 if same and not np.allclose(alone, beside) else "the behaviour has changed")
PYTHON
