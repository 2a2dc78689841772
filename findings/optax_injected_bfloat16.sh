#!/usr/bin/env bash
# optax 0.2.8: with bfloat16 parameters, adam in inject_hyperparams gives NaN from the first update on.
#
# Expected: inject_hyperparams, which is there to log or to change the learning rate of a running training, gives
# the updates of the bare optimizer. But it casts all hyperparameters to the type of the parameters: in bfloat16,
# b2=0.999 is 1, so the second moment stays 0 and its correction divides 0 by 0. No message says so. An agent that
# trains well in bfloat16 breaks by the wrapper that logs its learning rate. `hyperparam_dtype=jnp.float32` helps;
# the docstring has this argument, and does not say what happens without it.
#
# Output seen on 2026-11-28 (first update with the gradients 1 and -2, learning rate 0.01; bare -> injected):
#     adam, float32: [-0.01, 0.01] -> [-0.01, 0.01], b2 is 0.999
#     adam, bfloat16: [-0.01, 0.01] -> [nan, nan], b2 is 1.0
#     adamw, bfloat16: [-0.01, 0.01] -> [nan, nan], b2 is 1.0
#     adam, bfloat16, hyperparam_dtype float32: [-0.01, 0.01] -> [-0.01, 0.01], b2 is 0.999
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "optax==0.2.8" "jax==0.10.2" "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
import jax.numpy as jnp
import optax


def update(optimizer, dtype):
    """The first update of two parameters, and the optimizer's state."""
    params = jnp.asarray([1.0, 1.0], dtype)
    grads = jnp.asarray([1.0, -2.0], dtype)
    updates, state = optimizer.update(grads, optimizer.init(params), params)
    return [round(float(number), 3) for number in updates], state


cases = {
    "adam, float32": (optax.adam, jnp.float32, None),
    "adam, bfloat16": (optax.adam, jnp.bfloat16, None),
    "adamw, bfloat16": (optax.adamw, jnp.bfloat16, None),
    "adam, bfloat16, hyperparam_dtype float32": (optax.adam, jnp.bfloat16, jnp.float32),
}
equal = []
for name, (optimizer, dtype, hyper) in cases.items():
    bare, _ = update(optimizer(learning_rate=0.01), dtype)
    wrapped = optax.inject_hyperparams(optimizer, hyperparam_dtype=hyper)(learning_rate=0.01)
    injected, state = update(wrapped, dtype)
    b2 = round(float(state.hyperparams["b2"]), 4)
    equal.append(bare == injected)
    print(f"{name}: {bare} -> {injected}, b2 is {b2}")
raise SystemExit(0 if equal == [True, False, False, True] else "the behaviour has changed")
PY
