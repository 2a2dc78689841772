#!/usr/bin/env bash
# MuJoCo Playground 0.2.0, brax 0.14.2: with full_reset=True, a time limit is a terminal state for brax's agents.
#
# Expected: full_reset=True gives each episode another start and changes nothing else. The state after a restart
# brings its own info, and so the mark of the time limit, "truncation", is 0 when the agent reads it. PPO then learns
# that the last state of an episode of 1000 steps is worth nothing, and of the same state in mid-episode the right
# value. "episode_done" and the episode's sums are overwritten too: PPO's log of the training's episodes stays empty.
#
# Output seen on 2026-11-28 (CartpoleBalance with episodes of 3 steps; what brax's actor_step gives the agent):
#     full_reset=False: discount 1 1 0, truncation 0 0 1, episode_done 0 0 1, sum_reward 1.00 2.00 3.00
#     full_reset=True: discount 1 1 0, truncation 0 0 0, episode_done 0 0 0, sum_reward 1.00 2.00 0.00
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --no-compile "playground==0.2.0" "brax==0.14.2" "jax==0.10.2" \
    "mujoco==4.0.0" "mujoco-mjx==3.17.0" "warp-lang==1.19.0" "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - 2> "$folder/log" <<'PY' ||
from functools import partial

import jax
import jax.numpy as jnp
from brax.training.acting import actor_step
from mujoco_playground import registry, wrapper

FIELDS = ("truncation", "episode_done", "episode_metrics")

env = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
found = []
for full_reset in (False, True):
    wrapped = wrapper.wrap_for_brax_training(env, episode_length=3, full_reset=full_reset)
    state = jax.jit(wrapped.reset)(jax.random.split(jax.random.PRNGKey(0), 2))
    step = jax.jit(partial(actor_step, wrapped, policy=lambda obs, key: (jnp.zeros((2, 1)), {}), extra_fields=FIELDS))
    rows = []
    for number in range(3):
        state, transition = step(state, key=jax.random.PRNGKey(number))
        extras = transition.extras["state_extras"]
        sum_reward = extras["episode_metrics"]["sum_reward"]
        row = (transition.discount, extras["truncation"], extras["episode_done"], sum_reward)
        rows.append([float(value[0]) for value in row])
    discount, truncation, episode_done, sum_reward = zip(*rows)
    print(f"full_reset={full_reset}: discount", *(f"{value:g}" for value in discount), end=", ")
    print("truncation", *(f"{value:g}" for value in truncation), end=", episode_done ")
    print(*(f"{value:g}" for value in episode_done), end=", sum_reward ")
    print(*(f"{value:.2f}" for value in sum_reward))
    found.append((discount[-1], truncation[-1], episode_done[-1], round(sum_reward[-1], 1)))
raise SystemExit(0 if found == [(0, 1, 1, 3.0), (0, 0, 0, 0.0)] else "the behaviour has changed")
PY
    { cat "$folder/log" >&2; exit 1; }
