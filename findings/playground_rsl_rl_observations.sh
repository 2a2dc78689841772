#!/usr/bin/env bash
# MuJoCo Playground 0.2.0: asking its RSL-RL wrapper for the observations restarts all environments.
#
# Expected: get_observations() returns the present observations, as RSL-RL's VecEnv says, and changes nothing. In
# RSLRLBraxWrapper it is reset(), which in addition always begins with the same states. RSL-RL asks for observations
# when a runner is made and at each learn(): training in pieces, or a look at the observations in between, cuts off
# all episodes without a mark, and begins with the wrapper's first states again.
#
# Output seen on 2026-11-28 (CartpoleBalance, two environments, the cart's position of the first one):
#     after reset: -0.0054
#     after 20 steps: 0.0957
#     get_observations(): -0.0054, 0 steps into the episode
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --no-compile "playground==0.2.0" "brax==0.14.2" "jax==0.10.2" \
    "mujoco==4.0.0" "mujoco-mjx==3.17.0" "warp-lang==1.19.0" "torch==2.13.0" "tensordict==0.15.3" "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - 2> "$folder/log" <<'PY' ||
import contextlib
import io

import torch
from mujoco_playground import registry, wrapper_torch

env = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
with contextlib.redirect_stdout(io.StringIO()):
    envs = wrapper_torch.RSLRLBraxWrapper(env, num_actors=2, seed=0, episode_length=1000, action_repeat=1)


def first(obs):
    return round(float(obs["state"][0, 0]), 4)


found = [first(envs.reset())]
print("after reset:", found[0])
for _ in range(20):
    obs = envs.step(torch.full((2, 1), 0.5))[0]
found.append(first(obs))
print("after 20 steps:", found[1])
found.append(first(envs.get_observations()))
steps = int(envs.env_state.info["steps"][0])
print(f"get_observations(): {found[2]}, {steps} steps into the episode")
as_seen = found[2] == found[0] != found[1] and steps == 0
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
    { cat "$folder/log" >&2; exit 1; }
