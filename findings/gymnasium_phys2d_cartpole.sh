#!/usr/bin/env bash
# gymnasium 1.4.0's phys2d/CartPole-v1, the CartPole in JAX, takes the sum of the pole's mass and its half length, 0.6,
# where CartPole-v1 takes their product, 0.05. From the same state the cart then gains more speed: 0.39 instead of 0.20
# after one push at rest. Agents trained in one play another physics in the other.
# Expected: the same step from the same state, up to float32.
# Seen: speed of the cart after a push to the right from rest: CartPole-v1 0.195, phys2d/CartPole-v1 0.39 or more.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnasium==1.4.0" "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.3.5" "flax==0.12.0"
"$folder/venv/bin/python" - <<'PY'
import gymnasium
import jax.numpy as jnp
import numpy as np

speeds = {}
for name, array in (("CartPole-v1", np.array), ("phys2d/CartPole-v1", jnp.array)):
    env = gymnasium.make(name)
    env.reset(seed=0)
    env.unwrapped.state = array([0.0, 0.0, 0.0, 0.0])
    obs, *_ = env.step(1)
    speeds[name] = float(obs[1])
print(speeds)
one, other = speeds.values()
raise SystemExit(0 if abs(one - 0.195) < 0.001 and other > 1.5 * one else "the behaviour has changed")
PY
