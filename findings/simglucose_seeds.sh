#!/usr/bin/env bash
# simglucose 0.2.11, gymnasium 1.4.0: reset(seed=...) changes nothing. The day is drawn once, when the environment is made.
#
# Expected: reset(seed=1), reset(seed=2) and reset(seed=3) begin three days with other meals, and seed 1 gives the same
# meals in a new instance. So a loop over seeds is a loop over seeds.
# It is the other way round: all episodes of one instance have the same meals, whatever the seed, and a new instance
# with seed 1 has others. An agent is trained on one day for ever, and no run can be repeated.
#
# Output seen on 2026-11-27 (minutes of the meals; the last line is another one each time):
#     one instance, seed 1: 111, 324, 789, 1233, 1341
#     one instance, seed 2: 111, 324, 789, 1233, 1341
#     one instance, seed 3: 111, 324, 789, 1233, 1341
#     new instance, seed 1: 105, 423, 1320, 1416
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip="$folder/venv/bin/pip"
"$pip" install -q simglucose==0.2.11 "setuptools<81" "scipy<1.15" "numpy<2.4"
"$pip" install -q --no-deps gymnasium==1.4.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from simglucose.envs import T1DSimGymnaisumEnv


def make():
    return T1DSimGymnaisumEnv(patient_name="adolescent#002")


def meals(env, seed):
    """The minutes at which the patient eats on the first day: a step takes three minutes."""
    env.reset(seed=seed)
    found = []
    for step in range(480):
        *_, info = env.step(np.full(1, 0.02))
        if info["meal"] > 0:
            found.append(3 * step)
    return found


one = make()
same = [meals(one, seed) for seed in (1, 2, 3)]
others = [meals(make(), 1) for _ in range(3)]  # by chance one may be equal
for seed, found in enumerate(same, 1):
    print(f"one instance, seed {seed}: {', '.join(map(str, found))}")
print(f"new instance, seed 1: {', '.join(map(str, others[0]))}")
seen = same[0] == same[1] == same[2] and any(found != same[0] for found in others)
raise SystemExit(0 if seen else "the behaviour has changed")
PYTHON
