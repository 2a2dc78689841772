#!/usr/bin/env bash
# gymnax 1.0.1: in MountainCarContinuous-v0, the car keeps its speed when it runs into the left wall.
#
# Expected: the wall stops the car, as in gymnasium's environment of this name, and as in gymnax's own MountainCar-v0.
# The line for it compares with the goal instead of the wall (where a negative velocity is rare). So a car that comes
# in fast stands at the wall for some steps, with a velocity of below 0 in its observations, before it starts again.
# Policies that swing as far back as they can meet it in every episode.
#
# Output seen on 2026-11-28 (position and velocity after each step with full throttle to the right, from -1.15 and -0.06):
#     gymnasium, continuous: -1.2000 0.0000, -1.1963 0.0037, -1.1888 0.0075
#     gymnax, continuous:    -1.2000 -0.0561, -1.2000 -0.0524, -1.2000 -0.0486
#     gymnax, 3 actions:     -1.2000 -0.0000, -1.1968 0.0032, -1.1903 0.0065
#     steps until the car leaves the wall: gymnasium 2, gymnax 17
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnax==1.0.1" "gymnasium==1.3.0" "jax==0.10.2" "numpy==2.3.5" six
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np

START, STEPS = (-1.15, -0.06), 30


def in_gymnasium():
    env = gymnasium.make("MountainCarContinuous-v0").unwrapped
    env.reset()
    env.state = np.array(START)
    return [env.step(np.ones(1, np.float32))[0].tolist() for _ in range(STEPS)]


def in_gymnax(name, action):
    env, params = gymnax.make(name)
    state = env.reset(jax.random.key(0), params)[1]
    state = state.replace(position=jnp.float32(START[0]), velocity=jnp.float32(START[1]))
    step = jax.jit(env.step)
    found = []
    for _ in range(STEPS):
        observation, state, *_ = step(jax.random.key(1), state, action, params)
        found.append(np.asarray(observation).tolist())
    return found


right = in_gymnasium()
continuous = in_gymnax("MountainCarContinuous-v0", jnp.ones(1))
discrete = in_gymnax("MountainCar-v0", 2)
names = "gymnasium, continuous:", "gymnax, continuous:", "gymnax, 3 actions:"
for name, found in zip(names, (right, continuous, discrete)):
    print(f"{name:22}", ", ".join(f"{position:.4f} {velocity:.4f}" for position, velocity in found[:3]))
leaves = [next(i for i, (position, _) in enumerate(found, 1) if position > -1.1999) for found in (right, continuous)]
print(f"steps until the car leaves the wall: gymnasium {leaves[0]}, gymnax {leaves[1]}")
as_seen = right[0][1] == 0 and discrete[0][1] == 0 and continuous[0][1] < -0.05 and leaves[1] > leaves[0] + 10
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
