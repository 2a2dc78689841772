#!/usr/bin/env bash
# rlax 0.1.9: signed_parabolic, the inverse of signed_hyperbolic, gives a small positive value back
# as a negative one.
#
# Expected: the pair that R2D2 and MuZero put around their values gives a value back to about six
# digits, in float32. The inverse takes the difference of two numbers near 500 and squares it, so
# its results lie in steps of about 0.0001, however small the value is: 0.001 comes back 2% too
# small, and a thousand values up to 0.001 become ten. Sparse or scaled rewards lose their order
# and, near zero, their sign. In float64 it is right.
#
# Output seen on 2026-11-28 (a value, there and back):
#     1e-05: -6.104e-05
#     0.0001: 6.104e-05
#     0.001: 0.0009768
#     0.01: 0.009974
#     1: 0.9998
#     1000: 1000
#     1000 values up to 0.001: 1000 different ones after signed_hyperbolic, 10 after both
#     float64: right to 8e-09
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "rlax==0.1.9" "jax==0.10.2" "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
import jax
import jax.numpy as jnp
import numpy as np
import rlax

VALUES = (0.00001, 0.0001, 0.001, 0.01, 1.0, 1000.0)


def there_and_back(values):
    return rlax.signed_parabolic(rlax.signed_hyperbolic(values))


back = there_and_back(jnp.array(VALUES, jnp.float32))
for value, result in zip(VALUES, back):
    print(f"{value:g}: {float(result):.4g}")
small = jnp.linspace(0.0, 0.001, 1001, dtype=jnp.float32)[1:]
there = len(np.unique(rlax.signed_hyperbolic(small)))
again = len(np.unique(there_and_back(small)))
text = f"{there} different ones after signed_hyperbolic, {again} after both"
print(f"1000 values up to 0.001: {text}")
jax.config.update("jax_enable_x64", True)
double = there_and_back(jnp.array(VALUES, jnp.float64))
error = float(np.max(np.abs(double / np.array(VALUES) - 1)))
print(f"float64: right to {error:.0e}")
as_seen = back[0] < 0 and abs(back[2] - 0.001) > 1e-5
as_seen = as_seen and there > 900 and again < 20 and error < 1e-6
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
