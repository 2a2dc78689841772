#!/usr/bin/env bash
# gymnasium 1.4.0: in the vector environments in JAX, all others stand still in the step in which one of them restarts.
#
# Expected: an episode's restart changes nothing for the other environments. FunctionalJaxVectorEnv puts the new
# episode's start into the states of *before* the step, and so throws away the step of all the others: their actions
# have no effect, while their rewards and ends are those of the step that was thrown away. With 64 CartPoles and random
# actions, one restarts in every second step, and an environment does not move in almost half of its steps.
#
# Output seen on 2026-11-28 (phys2d/CartPole-v1, two environments, the first is always pushed to the right):
#     steps in which the first restarted: 3
#     of these, the second stood still in: 3
#     other steps in which the second stood still: 0
#     64 environments, random actions: an environment stood still in 46% of its steps
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnasium==1.4.0" "jax==0.10.2" "flax==0.12.8" "jaxlib==0.10.2" "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np


def play(num_envs, steps, actions):
    """For each step: which environments restarted, and which observations did not change."""
    envs = gymnasium.make_vec("phys2d/CartPole-v1", num_envs=num_envs)
    before = np.asarray(envs.reset(seed=1)[0])
    ended = np.zeros(num_envs, bool)
    restarted, still = [], []
    for t in range(steps):
        obs, _, terminated, truncated, _ = envs.step(actions(t))
        restarted.append(ended)
        still.append((np.asarray(obs) == before).all(1))
        before, ended = np.asarray(obs), np.asarray(terminated) | np.asarray(truncated)
    return np.array(restarted), np.array(still)


restarted, still = play(2, 35, lambda t: np.array([1, t % 2]))
first, second = restarted[:, 0], still[:, 1]
print("steps in which the first restarted:", first.sum())
print("of these, the second stood still in:", second[first].sum())
print("other steps in which the second stood still:", second[~first].sum())
rng = np.random.default_rng(1)
_, many = play(64, 300, lambda t: rng.integers(0, 2, 64))
print(f"64 environments, random actions: an environment stood still in {many[50:].mean():.0%} of its steps")
as_seen = first.sum() > 0 and (second == first).all() and many[50:].mean() > 0.3
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
