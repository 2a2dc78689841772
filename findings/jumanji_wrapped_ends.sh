#!/usr/bin/env bash
# jumanji 1.1.2: its wrappers for dm_env and gymnasium do not end episodes as these do.
#
# Expected: the step after a LAST one begins a new episode, as in dm_env and by the docstring of
# JumanjiToDMEnvWrapper.step. It goes on in the finished one, and returns LAST for ever: a loop
# that relies on dm_env learns from steps of length-one episodes without reward. JumanjiToGymWrapper sets truncated at
# every end: a death is both, and an agent that adds a value where an episode was truncated adds one to every death.
#
# Output seen on 2026-11-28 (Snake, 4 x 4, up in every step until it has run into the wall):
#     dm_env: the step types after the death 2 2 2 2, rewards 0 0 0 0, discounts 0 0 0 0
#     gymnasium: terminated True, truncated True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "jumanji==1.1.2" "jax==0.10.2" "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
from jumanji.environments import Snake
from jumanji.wrappers import JumanjiToDMEnvWrapper, JumanjiToGymWrapper

UP = 0

env = JumanjiToDMEnvWrapper(Snake(num_rows=4, num_cols=4))
timestep = env.reset()
while timestep.step_type != 2:
    timestep = env.step(UP)
after = [env.step(UP) for _ in range(4)]
types = [int(timestep.step_type) for timestep in after]
print("dm_env: the step types after the death", *types, end=", rewards ")
print(*(f"{float(timestep.reward):.0f}" for timestep in after), end=", discounts ")
print(*(f"{float(timestep.discount):.0f}" for timestep in after))

env = JumanjiToGymWrapper(Snake(num_rows=4, num_cols=4))
env.reset(seed=0)
terminated = truncated = False
while not (terminated or truncated):
    _, _, terminated, truncated, _ = env.step(UP)
print(f"gymnasium: terminated {terminated}, truncated {truncated}")
raise SystemExit(0 if types == [2] * 4 and terminated and truncated else "the behaviour has changed")
PY
