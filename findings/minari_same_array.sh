#!/usr/bin/env bash
# Minari 0.5.4: DataCollector keeps the arrays it is given: filling one of them again changes the recorded steps.
#
# Expected: what was recorded in a step stays as it was; gymnasium's own vector environments copy for that reason. An
# agent that fills one action array in every step, or an environment that fills one observation array, gets an episode
# of which every step is the last one. Rewards, flags and lengths are right, and nothing warns.
#
# Output seen on 2026-11-28 (Pendulum-v1, the actions 0, 0.1, 0.2, 0.3, 0.4 in float32, as read from the dataset):
#     a new array in every step: 0.0 0.1 0.2 0.3 0.4
#     the same array: 0.4 0.4 0.4 0.4 0.4
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "minari[create,hdf5]==0.5.4" "gymnasium==1.4.0" "jax==0.10.2" "numpy==2.3.5" pillow
MINARI_DATASETS_PATH="$folder/datasets" JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np
from minari import DataCollector


def recorded(name, reuse):
    env = DataCollector(gymnasium.make("Pendulum-v1", max_episode_steps=5))
    env.reset(seed=1)
    action = np.zeros(1, np.float32)
    for step in range(5):
        if not reuse:
            action = np.zeros(1, np.float32)
        action[0] = 0.1 * step
        env.step(action)
    dataset = env.create_dataset(f"{name}-v0")
    return [round(float(value), 4) for value in dataset[0].actions[:, 0]]


new, same = recorded("new", False), recorded("same", True)
print("a new array in every step:", *new)
print("the same array:", *same)
raise SystemExit(0 if new == [0.0, 0.1, 0.2, 0.3, 0.4] and same == [0.4] * 5 else "the behaviour has changed")
PY
