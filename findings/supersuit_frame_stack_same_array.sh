#!/usr/bin/env bash
# SuperSuit 3.11.0: frame_stack_v1 and v2 return the same array in every step, and write the next frames into it.
#
# Expected: step returns a new observation. Here the observation of before is the same object, so when a transition
# (obs, action, reward, next_obs) goes into a replay buffer, obs is already next_obs. Value learning then sees states
# that lead to themselves. It holds in PettingZoo's environments too. SuperSuit's vector environments copy, and are not
# affected.
#
# Output seen on 2026-11-28 (100 steps of CartPole-v1, each transition copied into a list after step, as a buffer does):
#     plain: 100 of 100 transitions have obs != next_obs
#     frame_stack_v1: 0 of 100 transitions have obs != next_obs
#     frame_stack_v2: 0 of 100 transitions have obs != next_obs
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "supersuit==3.11.0" "pettingzoo==1.27.0" "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np
import supersuit


def changing(env):
    """Of 100 transitions, how many have two different observations."""
    env.action_space.seed(1)
    obs, _ = env.reset(seed=1)
    buffer = []
    while len(buffer) < 100:
        next_obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        buffer.append((np.array(obs), np.array(next_obs)))
        obs = env.reset()[0] if terminated or truncated else next_obs
    return sum(not np.array_equal(*pair) for pair in buffer)


found = []
for name, wrap in (
    ("plain", lambda env: env),
    ("frame_stack_v1", lambda env: supersuit.frame_stack_v1(env, 4)),
    ("frame_stack_v2", lambda env: supersuit.frame_stack_v2(env, 4)),
):
    found.append(changing(wrap(gymnasium.make("CartPole-v1"))))
    print(f"{name}: {found[-1]} of 100 transitions have obs != next_obs")
raise SystemExit(0 if found == [100, 0, 0] else "the behaviour has changed")
PY
