#!/usr/bin/env bash
# optuna 5.0.0: create_study(load_if_exists=True) ignores the `direction`.
#
# Expected: an error or a warning where the study of this name was made with another direction. Who begins without
# one (minimize), sees the worst trial called the best, writes direction="maximize" and runs on, gets the old study
# as it was: the sampler goes on looking for the worst return, the pruner ends the best trials, and best_params
# are those of the worst one. The only word of it is an info line, "Using an existing study". The docstring says
# that "the existing one is returned", and nothing about the direction.
#
# Output seen on 2026-11-28 (10 trials without a direction and 30 with "maximize"; the return is x, from 0 to 10):
#     warnings: 0
#     direction of the second part: MINIMIZE
#     best value: 0.02
#     mean x of the last 20 trials: 1.26
#     the same with a new name: MAXIMIZE, 10.00, 8.24
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "optuna==5.0.0" "numpy==2.3.5"
"$folder/venv/bin/python" - "sqlite:///$folder/studies.db" 2>/dev/null <<'PY'
import statistics
import sys
import warnings

import optuna

storage = sys.argv[1]


def search(name, trials, **options):
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        sampler=optuna.samplers.TPESampler(seed=trials),
        load_if_exists=True,
        **options,
    )
    study.optimize(lambda trial: trial.suggest_float("x", 0, 10), n_trials=trials)
    last = statistics.mean(trial.value for trial in study.trials[-20:])
    return study.direction.name, study.best_value, last


search("old", 10)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    direction, best, last = search("old", 30, direction="maximize")
print(f"warnings: {len(caught)}")
print(f"direction of the second part: {direction}")
print(f"best value: {best:.2f}")
print(f"mean x of the last 20 trials: {last:.2f}")
other = search("new", 30, direction="maximize")
print(f"the same with a new name: {other[0]}, {other[1]:.2f}, {other[2]:.2f}")
seen = not caught and direction == "MINIMIZE" and other[0] == "MAXIMIZE" and last < other[2]
raise SystemExit(0 if seen else "the behaviour has changed")
PY
