#!/usr/bin/env bash
# sb3-contrib 2.9.2: TimeFeatureWrapper's test_mode shows the agent a 1, not the 0 of its documentation.
#
# Expected: in test_mode the feature is 0, as the documentation says. It is the share of time that is left: 0 would be
# the end, and 1 is the first step, again and again. A test of whether the agent relies on the clock tests the other
# extreme. The wrapper also changes the space of the environment that it is given, whose observations stay as they were.
#
# Output seen on 2026-11-28 (Pendulum-v1 with a limit of 4 steps; the feature after reset and after each step):
#     test_mode=False: 1.0 0.75 0.5 0.25 0.0
#     test_mode=True: 1.0 1.0 1.0 1.0 1.0
#     the wrapped environment: a space of 3 numbers before, 4 after; observations of 3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "sb3-contrib==2.9.2" "stable-baselines3==2.9.2" "gymnasium==1.4.0" "torch==2.13.0" \
    "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
from sb3_contrib.common.wrappers import TimeFeatureWrapper

found = []
for test_mode in (False, True):
    inner = gymnasium.make("Pendulum-v1", max_episode_steps=4)
    before = inner.observation_space.shape[0]
    env = TimeFeatureWrapper(inner, test_mode=test_mode)
    features = [env.reset(seed=1)[0][-1]]
    while len(features) < 5:
        features.append(env.step(env.action_space.sample())[0][-1])
    found.append([float(value) for value in features])
    print(f"test_mode={test_mode}:", *found[-1])
sizes = [before, inner.observation_space.shape[0], len(inner.reset(seed=1)[0])]
print(f"the wrapped environment: a space of {sizes[0]} numbers before, {sizes[1]} after; observations of {sizes[2]}")
as_seen = found == [[1, 0.75, 0.5, 0.25, 0], [1] * 5] and sizes == [3, 4, 3]
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
