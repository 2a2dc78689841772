#!/usr/bin/env bash
# Optuna 5.0.0: a study that goes on, with a sampler made anew with the same seed, tries its first settings again.
#
# Expected: a script that is started again after an interruption tries new settings. The sampler's random numbers are not
# in the storage, so a seeded sampler begins with the same draws. benchmark/launch/sweep.py gives its sampler no seed.
#
# Output seen on 2026-11-27:
#     seed 1: 0.417 0.7203 0.0001 0.417 0.7203 0.0001
#     no seed: six different ones
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "optuna==5.0.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import tempfile

import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)


def objective(trial):
    return trial.suggest_float("x", 0, 1)


def tried(seed, storage):
    """The settings of a study of three trials that then goes on for three more."""
    for _ in range(2):
        study = optuna.create_study(
            study_name=str(seed),
            storage=storage,
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(seed=seed),
        )
        study.optimize(objective, n_trials=3)
    return [round(trial.params["x"], 4) for trial in study.trials]


with tempfile.TemporaryDirectory() as folder:
    seeded = tried(1, f"sqlite:///{folder}/study.db")
    unseeded = tried(None, f"sqlite:///{folder}/study.db")
print("seed 1:", *seeded)
print("no seed:", "six different ones" if len(set(unseeded)) == 6 else unseeded)
raise SystemExit(0 if seeded[:3] == seeded[3:] else "the behaviour has changed")
PY
