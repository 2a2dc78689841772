#!/usr/bin/env bash
# bluesky-gym 0.2.0: two instances in one process fly the same simulator.
#
# Expected: instances of an environment are independent of each other, as a vector environment in one process
# (gymnasium's SyncVectorEnv, the default of gymnasium.make_vec) needs them to be.
# But making and stepping a second DescentEnv moves the first one's aircraft, without an error: the altitudes of the
# first instance are others as soon as there is a second one, although its seed and its actions are the same.
#
# Output seen on 2026-11-27 (normalised altitude after each of five steps, in processes of their own):
#     alone, altitudes: 0.466, 0.542, 0.618, 0.694, 0.771
#     beside a second instance, altitudes: 0.466, 0.667, 0.868, 1.069, 1.271
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q bluesky-gym==0.2.0 bluesky-simulator==1.1.1 gymnasium==1.4.0 "numpy<2.4" torch==2.13.0
cat > "$folder/program.py" <<'PYTHON'
import sys

import bluesky_gym
import gymnasium as gym
import numpy as np

bluesky_gym.register_envs()
second = sys.argv[1] == "beside"
env = gym.make("DescentEnv-v0")
np.random.seed(0)  # the package draws from it, not from the seeded generator
env.reset(seed=1)
if second:
    other = gym.make("DescentEnv-v0")
    other.reset(seed=2)
altitudes = []
for _ in range(5):
    obs, *_ = env.step(np.zeros(1, np.float32))
    altitudes.append(float(obs["altitude"][0]))
    if second:
        other.step(np.ones(1, np.float32))
print("altitudes:", ", ".join(f"{altitude:.3f}" for altitude in altitudes))
PYTHON
cd "$folder"
fly() { "$folder/venv/bin/python" -W ignore program.py "$1" 2>/dev/null | grep '^altitudes: '; }
alone=$(fly alone)
again=$(fly alone)
beside=$(fly beside)
echo "alone, $alone"
echo "beside a second instance, $beside"
[[ "$alone" == "$again" && "$alone" != "$beside" ]]
