#!/usr/bin/env bash
# flashbax 0.1.3: the priority of new items is the largest one so far, cut off to an integer.
#
# Expected: what is new is sampled with the largest priority that was recorded, so that it is seen at least once soon.
# The priorities of new items are made in the type of their indices, an int32: 1.9 becomes 1. With a largest
# priority just below 2 (with an exponent of 0.6: a TD error of 3), new items are sampled half as often as they should be.
#
# Output seen on 2026-11-28 (three items of one priority, then a new one; probabilities of the four):
#     recorded maximum 1.9: 0.284 0.284 0.284 and 0.149 for the new one; right is 0.25
#     recorded maximum 2.5: 0.263 0.263 0.263 and 0.211 for the new one; right is 0.25
#     recorded maximum 3.0: 0.25 0.25 0.25 and 0.25 for the new one; right is 0.25
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "flashbax==0.1.3" "jax==0.10.2" "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
import flashbax
import jax
import jax.numpy as jnp

SIZE = 64


def probabilities(priority):
    buffer = flashbax.make_prioritised_flat_buffer(
        max_length=SIZE, min_length=2, sample_batch_size=SIZE, priority_exponent=1.0
    )
    state = buffer.init({"observation": jnp.zeros(())})
    for step in range(4):  # four steps are three items: an item is a step and the next one
        state = buffer.add(state, {"observation": jnp.float32(step)})
    state = buffer.set_priorities(state, jnp.arange(3), jnp.full(3, priority))
    state = buffer.add(state, {"observation": jnp.float32(4)})
    sample = buffer.sample(state, jax.random.key(1))
    found = dict(zip(sample.indices.tolist(), sample.probabilities.tolist()))
    return float(state.sum_tree_state.max_recorded_priority), [round(found[item], 3) for item in range(4)]


as_seen = True
for priority in (1.9, 2.5, 3.0):
    largest, (*old, new) = probabilities(priority)
    print(f"recorded maximum {largest:.1f}:", *old, f"and {new} for the new one; right is 0.25")
    expected = int(priority) / (3 * priority + int(priority))
    as_seen = as_seen and abs(largest - priority) < 1e-6 and abs(new - expected) < 2e-3
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
