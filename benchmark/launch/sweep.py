"""A search for hyperparameters with Optuna: copy this file, write your own `space`, and run it.

    python -m benchmark.launch.sweep --trials 30                     PPO on CartPole-v1, 50,000 steps, three seeds per trial
    python -m benchmark.launch.sweep --trials 30 --jobs 2            two seeds at a time
    python -m benchmark.launch.sweep --best                          print the best settings so far, as flags

A trial runs one setting of the flags with several seeds; its value is the mean of their final evaluations. After each
seed, a trial below the median of the others at that point is stopped (pruned). Trials are stored in RUNS_DIR/sweep.db:
the same command continues the search, and several terminals or nodes that share the folder can work on it. Report the
winner with seeds that the search did not use.
"""

import argparse
import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmark.shared import ROOT

SCRIPT, ENV_ID, STEPS = "ppo", "CartPole-v1", 50_000


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


def words(flags):
    """The flags as words of a command line."""
    texts = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in flags.items()}
    return [word for item in texts.items() for word in item]


def evaluation(flags, seed, args, name):
    """Runs the script; returns the mean return of its final evaluation. A run that fails makes the trial fail."""
    folder, rollout = Path(args.runs_dir).resolve() / name, flags["--num-envs"] * flags["--num-steps"]
    command = [sys.executable, f"cleanrl_lite/{SCRIPT}.py", "--env-id", ENV_ID, "--seed", seed, "--runs-dir", folder]
    command += ["--total-timesteps", max(args.steps // rollout, 1) * rollout, *words(flags), *args.flags]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    (path,) = folder.glob(f"*__{seed}__*/eval.json")
    return json.loads(path.read_text())["mean"]


def objective(trial, args):
    import optuna

    flags, returns = space(trial), []
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = [pool.submit(evaluation, flags, seed, args, f"trial-{trial.number}") for seed in args.seeds]
        for number, run in enumerate(runs):
            returns.append(run.result())
            trial.report(float(np.mean(returns)), number)
            if trial.should_prune():
                for other in runs:
                    other.cancel()
                raise optuna.TrialPruned()
    return float(np.mean(returns))


def main():
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30, help="number of further trials")
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103], help="seeds of each trial")
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps, rounded down to whole rollouts")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time")
    parser.add_argument("--runs-dir", default="runs/sweep")
    parser.add_argument("--best", action="store_true", help="print the best settings so far")
    args = parser.parse_args(sys.argv[1:split])
    args.flags = sys.argv[split + 1 :]
    try:
        import optuna
    except ImportError:
        raise SystemExit("error: optuna is not installed. Run: pip install -c constraints.txt -e '.[sweep]'") from None
    Path(args.runs_dir).mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name=f"{SCRIPT}-{ENV_ID}",
        storage=f"sqlite:///{args.runs_dir}/sweep.db",
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(n_startup_trials=8),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )
    if not args.best:
        study.optimize(lambda trial: objective(trial, args), n_trials=args.trials, catch=(RuntimeError,))
    if not study.get_trials(states=[optuna.trial.TrialState.COMPLETE]):
        raise SystemExit("error: no trial is complete yet")
    print(f"mean return {study.best_value:.1f} in trial {study.best_trial.number} of {len(study.trials)}:")
    print(shlex.join([f"cleanrl_lite/{SCRIPT}.py", "--env-id", ENV_ID, *words(space(study.best_trial))]))


if __name__ == "__main__":
    main()
