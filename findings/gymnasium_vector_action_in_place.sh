#!/usr/bin/env bash
# gymnasium 1.4.0: wrappers.vector.VectorizeTransformAction writes the transformed actions into the caller's array.
#
# Expected: step does not change its argument; the wrapper for a single environment does not either. Where the function
# keeps the action space (a squashing, a dead zone, a smaller gain), the results go into the array that was passed. An
# agent that stores it afterwards stores actions that it never chose: PPO's ratio before the first update is not 1.
#
# Output seen on 2026-11-28 (Pendulum-v1, the function halves the action; the caller's array after step(1.0)):
#     TransformAction, one environment: 1.0
#     VectorizeTransformAction, two environments: 0.5 0.5
#     ratio of PPO for the stored action, normal(1, 0.5): 0.607
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np
from gymnasium.wrappers import TransformAction
from gymnasium.wrappers.vector import VectorizeTransformAction


def half(action):
    return 0.5 * action


env = gymnasium.make("Pendulum-v1")
env = TransformAction(env, half, env.action_space)
env.reset(seed=1)
one = np.ones(1, np.float32)
env.step(one)
print("TransformAction, one environment:", *one)

envs = gymnasium.make_vec("Pendulum-v1", num_envs=2)
envs = VectorizeTransformAction(envs, TransformAction, func=half, action_space=envs.single_action_space)
envs.reset(seed=1)
two = np.ones((2, 1), np.float32)
envs.step(two)
print("VectorizeTransformAction, two environments:", *two[:, 0])


def log_density(action):
    return -0.5 * ((action - 1.0) / 0.5) ** 2


print(f"ratio of PPO for the stored action, normal(1, 0.5): {np.exp(log_density(two[0, 0]) - log_density(1.0)):.3f}")
as_seen = one.tolist() == [1.0] and two.tolist() == [[0.5], [0.5]]
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
