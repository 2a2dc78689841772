"""A search for hyperparameters with Optuna: copy this file, write your own `space`, and run it.

    python -m benchmark.launch.sweep --trials 30             PPO on CartPole-v1, three seeds a trial
    python -m benchmark.launch.sweep --trials 30 --jobs 2    two seeds at a time
    python -m benchmark.launch.sweep --best                  print the best settings, as flags

A trial runs one setting of the flags with several seeds; its value is the mean of their final
evaluations. After each seed, a trial below the median of the others at that point is stopped
(pruned). Trials are stored in RUNS_DIR/sweep.db: the same command continues the search, and several
terminals of one machine can work on it. Report the winner with seeds that the search did not use.
Needs optuna: pip install -c constraints.txt -e ".[sweep]"
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import optuna

from benchmark.launch.launch import find

SCRIPT = "ppo"  # one of ours, or one in the current folder
ENV_ID = "CartPole-v1"
STEPS = 50_000


def space(trial):
    """The flags to try."""
    return {
        "--learning-rate": trial.suggest_float("learning_rate", 1e-4, 3e-3, log=True),
        "--num-envs": trial.suggest_categorical("num_envs", [4, 8, 16]),
        "--num-steps": trial.suggest_categorical("num_steps", [32, 128, 256]),
        "--update-epochs": trial.suggest_int("update_epochs", 2, 20, log=True),
        "--gamma": 1 - trial.suggest_float("one_minus_gamma", 1e-3, 0.1, log=True),
        "--ent-coef": trial.suggest_float("ent_coef", 0.0, 0.02),
    }


def study_name():
    """The name of the search, and of the folder of its runs."""
    return re.sub("[/:]", "-", f"{find(SCRIPT).stem}-{ENV_ID}")


def words(flags):
    """The flags as words of a command line."""
    found = []
    for name, value in flags.items():
        found += [name, f"{value:.4g}" if isinstance(value, float) else str(value)]
    return found


def evaluation(flags, seed, args, name):
    """Runs the script; returns the mean return of its final evaluation."""
    folder = Path(args.runs_dir).resolve() / name
    command = [sys.executable, find(SCRIPT), "--env-id", ENV_ID]
    command += ["--total-timesteps", str(STEPS), "--seed", str(seed), *words(flags), *args.flags]
    command += ["--runs-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    (path,) = folder.glob(f"*__{seed}__*/eval.json")
    return json.loads(path.read_text())["mean"]


def objective(trial, args):
    flags = space(trial)
    returns = []
    with ThreadPoolExecutor(args.jobs) as pool:
        name = f"{study_name()}/trial-{trial.number}"
        runs = [pool.submit(evaluation, flags, seed, args, name) for seed in args.seeds]
        for number, run in enumerate(runs):
            returns.append(run.result())
            trial.report(float(np.mean(returns)), number)
            if trial.should_prune():
                for other in runs:
                    other.cancel()
                raise optuna.TrialPruned()
    return float(np.mean(returns))


def parse(words):
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--trials", type=int, default=30, help="number of further trials")
    add("--seeds", type=int, nargs="+", default=[101, 102, 103], help="seeds of each trial")
    add("--jobs", type=int, default=1, help="seeds at a time")
    add("--runs-dir", default="runs/sweep")
    add("--best", action="store_true", help="print the best settings so far")
    at = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:at])
    args.flags = words[at + 1 :]
    return args


def main():
    args = parse(sys.argv[1:])
    Path(args.runs_dir).mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name=study_name(),
        storage=f"sqlite:///{args.runs_dir}/sweep.db",
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(n_startup_trials=8),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )
    if not args.best:
        study.optimize(lambda trial: objective(trial, args), args.trials, catch=(RuntimeError,))
    if not study.get_trials(states=[optuna.trial.TrialState.COMPLETE]):
        raise SystemExit("error: no trial is complete yet")
    best = f"mean return {study.best_value:.1f} in trial {study.best_trial.number}"
    print(f"{best} of {len(study.trials)}:")
    command = [str(find(SCRIPT)), "--env-id", ENV_ID, *words(space(study.best_trial))]
    print(shlex.join(command))


if __name__ == "__main__":
    main()
