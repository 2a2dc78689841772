#!/usr/bin/env bash
# robosuite 1.5.2: GymWrapper's reset(seed=...) does not seed the environment, and its time limit is a terminal state.
#
# Expected: reset(seed=5) begins the same episode each time, and the end at the horizon is a truncation. The wrapper
# seeds numpy's global generator, but the environments draw from one of their own, made from the seed of make():
# an evaluation with fixed seeds places the cube elsewhere each time. And the `done` that robosuite sets at the
# horizon is passed on as `terminated`, of which the docstring says "terminal state": an agent learns that the
# last state of every episode is worth nothing. `truncated` is always False.
#
# Output seen on 2026-11-28 (Lift with a horizon of 3; the cube's place in millimetres, the first line varies):
#     reset(seed=5) three times: [-17, -27] [19, -1] [-5, 12]
#     after 3 steps: terminated True, truncated False
#     first reset() of two environments made with seed=5: [18, -11] [18, -11]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# h5py is needed and robosuite does not ask for it; what it asks for keyboards, tests and one controller is not.
"$folder/venv/bin/pip" install -q "mujoco==3.3.0" "gymnasium==1.4.0" "numpy==2.3.5" "scipy==1.17.1" "numba==0.68.1" \
    "h5py==3.16.0" "opencv-python-headless==4.14.0.94" "pillow==13.0.0" "termcolor==3.3.0" "tqdm==4.70.1"
"$folder/venv/bin/pip" install -q --no-deps "robosuite==1.5.2"
MUJOCO_GL=disabled OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - 2>"$folder/log" <<'PY'
import numpy as np
import robosuite
from robosuite.wrappers import GymWrapper


def make(seed):
    env = robosuite.make(
        "Lift",
        robots="Panda",
        has_renderer=False,
        has_offscreen_renderer=False,
        use_camera_obs=False,
        horizon=3,
        seed=seed,
    )
    return GymWrapper(env)


def place(obs):
    """Where the cube lies on the table, in millimetres."""
    return [round(1000 * float(x)) for x in obs[:2]]


env = make(None)
repeated = [place(env.reset(seed=5)[0]) for _ in range(3)]
print("reset(seed=5) three times:", *repeated)
flags = []
while not any(flags[-1:]) and len(flags) < 10:
    _, _, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape))
    flags.append(terminated or truncated)
print(f"after {len(flags)} steps: terminated {terminated}, truncated {truncated}")
made = [place(make(5).reset()[0]) for _ in range(2)]
print("first reset() of two environments made with seed=5:", *made)
seen = repeated[0] != repeated[1] and terminated and not truncated and made[0] == made[1]
raise SystemExit(0 if seen else "the behaviour has changed")
PY
