#!/usr/bin/env bash
# sbx 0.28.0: TD3's target networks move at every step of the critics, not at each second one.
#
# Expected: with policy_delay=2, its default, actor and targets move together, as in TD3's paper (algorithm 1) and in
# Stable-Baselines3, whose defaults sbx has. With the same tau, sbx's targets follow twice as fast.
#
# Output seen on 2026-11-28:
#     stable_baselines3: the actor moved in 20 of 40 updates, its target in 20
#     sbx: the actor moved in 20 of 40 updates, its target in 40
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q sbx-rl==0.28.0 stable-baselines3==2.9.2 gymnasium==1.4.0 jax==0.10.2 torch==2.13.0 \
    "numpy<2.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium as gym
import jax
import numpy as np
import sbx
import stable_baselines3


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree_util.tree_leaves(params)])


def of_sbx(model):
    state = model.policy.actor_state
    return flat(state.params), flat(state.target_params)


def of_sb3(model):
    networks = (model.actor, model.actor_target)
    return tuple(flat([p.detach().numpy() for p in network.parameters()]) for network in networks)


found = {}
for package, weights in ((stable_baselines3, of_sb3), (sbx, of_sbx)):
    model = package.TD3("MlpPolicy", gym.make("Pendulum-v1"), learning_starts=100, seed=1)
    model.learn(100)
    moved = np.zeros(2, int)
    before = [part.copy() for part in weights(model)]
    for _ in range(40):
        model.train(gradient_steps=1, batch_size=64)
        after = [part.copy() for part in weights(model)]
        moved += [not np.array_equal(old, new) for old, new in zip(before, after)]
        before = after
    found[package.__name__] = moved.tolist()
    print(f"{package.__name__}: the actor moved in {moved[0]} of 40 updates, its target in {moved[1]}")
as_seen = found == {"stable_baselines3": [20, 20], "sbx": [20, 40]}
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
