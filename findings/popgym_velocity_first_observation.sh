#!/usr/bin/env bash
# popgym 1.0.7: in VelocityOnlyCartPole, the first observation of an episode is the position and the angle.
#
# Expected: every observation holds the two velocities. The docstring says that the positions are deleted, so that
# only a policy with a memory solves it. step() does so. But reset() takes the entries of the position-only variant,
# at all three levels: the first observation is the cart's position and the pole's angle. With it, a memory that adds
# up velocities knows where it is, which the task was meant to hide, and the same two inputs mean one thing in the
# first step of each episode and another in all others. To a policy without memory, and to running statistics of the
# observations, the first one looks like a slow cart with a still pole.
#
# Output seen on 2026-11-29 (state: position, velocity, angle, angular velocity):
#     reset()      observation 0.014 -0.046 state 0.014 -0.023 -0.046 -0.048
#     first step() observation -0.217 0.230 state 0.013 -0.217 -0.047 0.230
#     the same in the Medium and Hard variants: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "popgym==1.0.7" "gymnasium==1.4.0" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np
import popgym  # noqa: F401  registers the environments


def show(title, observation, state):
    print(f"{title:12} observation", *(f"{x:.3f}" for x in observation), "state", *(f"{x:.3f}" for x in state))


seen = True
for level in ("Easy", "Medium", "Hard"):
    env = gymnasium.make(f"popgym-VelocityOnlyCartpole{level}-v0")
    first, _ = env.reset(seed=0)
    start = np.array(env.unwrapped.state, np.float32)
    second, *_ = env.step(0)
    after = np.array(env.unwrapped.state, np.float32)
    if level == "Easy":
        show("reset()", first, start)
        show("first step()", second, after)
    seen &= np.allclose(first, start[[0, 2]]) and np.allclose(second, after[[1, 3]])
print("the same in the Medium and Hard variants:", seen)
raise SystemExit(0 if seen else "the behaviour has changed")
PY
