#!/usr/bin/env bash
# mujoco-mjx 3.17.0: with the Warp backend, an automatic reset inside of vmap, right with the JAX backend, is an error.
#
# Expected: a step that ends with jax.tree.map(lambda new, old: jnp.where(done, new, old), begun, stepped), as for any
# state of JAX arrays, works under vmap with both backends. With impl="warp", some arrays of mjx.Data (contacts) belong
# to all environments together and have no axis of environments. Stepping alone works under vmap; but a jnp.where on
# these arrays gives them one, and it ends in UnexpectedTracerError, which names neither MJX nor the array. What works:
# vmap the step and the reset each by itself, and afterwards choose between arrays whose first axis is environments.
#
# Output seen on 2026-11-28 (heights of two balls; the first begins anew):
#     jax: step 0.4998 0.3998, step and reset 0.5000 0.3998
#     warp: step 0.4998 0.3998, step and reset UnexpectedTracerError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --no-compile "mujoco==4.0.0" "mujoco-mjx==3.17.0" "warp-lang==1.19.0" "jax==0.10.2" \
    "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - 2> "$folder/log" > "$folder/output" <<'PY' || true
import jax
import jax.numpy as jnp
import mujoco
from mujoco import mjx

model = mujoco.MjModel.from_xml_string("""
<mujoco>
  <option timestep="0.004"/>
  <worldbody>
    <geom type="plane" size="5 5 1"/>
    <body pos="0 0 0.3"><freejoint/><geom size="0.1"/></body>
  </worldbody>
</mujoco>
""")


def heights(impl, with_reset):
    on_device = mjx.put_model(model, impl=impl)
    first = mjx.make_data(model, impl=impl)

    def step(height, done):
        begun = first.replace(qpos=first.qpos.at[2].set(height))
        stepped = mjx.step(on_device, begun)
        if with_reset:
            return jax.tree.map(lambda new, old: jnp.where(done, new, old), begun, stepped)
        return stepped

    try:
        data = jax.jit(jax.vmap(step))(jnp.array([0.5, 0.4]), jnp.array([True, False]))
        return " ".join(f"{height:.4f}" for height in data.qpos[:, 2])
    except jax.errors.JAXTypeError as error:
        return type(error).__name__


for impl in ("jax", "warp"):
    print(f"{impl}: step {heights(impl, False)}, step and reset {heights(impl, True)}", flush=True)
PY
grep -E "^(jax|warp): step" "$folder/output" || true
grep -qx "jax: step 0.4998 0.3998, step and reset 0.5000 0.3998" "$folder/output" &&
    grep -qx "warp: step 0.4998 0.3998, step and reset UnexpectedTracerError" "$folder/output" ||
    { cat "$folder/log" >&2; echo "the behaviour has changed"; exit 1; }
