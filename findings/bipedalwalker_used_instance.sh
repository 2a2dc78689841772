#!/usr/bin/env bash
# gymnasium 1.4.0, box2d 2.3.10: an episode of BipedalWalker-v3 may depend on the episodes that its instance played before.
#
# Expected: reset(seed=...) begins the same episode in a new and in a used instance, as in LunarLanderContinuous-v3,
# which makes a new Box2D world at every reset. BipedalWalker keeps its world and only replaces the bodies in it.
# Two new instances always agree; a used one differs for a few seeds, from the first step on, and the episode then
# has another length. Code that compares "same seed, same episode" passes or fails by luck.
#
# Output seen on 2026-11-27:
#     LunarLanderContinuous-v3: of 60 seeds, 0 differ in new instances, 0 in a used one
#     BipedalWalker-v3: of 60 seeds, 0 differ in new instances, 3 in a used one
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnasium==1.4.0" "box2d==2.3.10" "numpy==2.3.5" "pygame-ce==2.5.6"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np


def episode(env, seed):
    """The observations of the episode that begins with `seed`, always with the same actions."""
    rows = [env.reset(seed=seed)[0]]
    rng = np.random.default_rng(0)
    over = False
    while not over:
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        obs, _, terminated, truncated, _ = env.step(action)
        rows.append(obs)
        over = terminated or truncated
    return np.array(rows)


differ = {}
for env_id in ("LunarLanderContinuous-v3", "BipedalWalker-v3"):
    used = gymnasium.make(env_id)
    episode(used, 1000)
    new_differs = used_differs = 0
    for seed in range(60):
        one, other = (episode(gymnasium.make(env_id), seed) for _ in range(2))
        new_differs += not np.array_equal(one, other)
        used_differs += not np.array_equal(one, episode(used, seed))
    print(f"{env_id}: of 60 seeds, {new_differs} differ in new instances, {used_differs} in a used one")
    differ[env_id] = new_differs, used_differs
lander, walker = differ.values()
raise SystemExit(0 if lander == (0, 0) and walker[0] == 0 < walker[1] else "the behaviour has changed")
PY
