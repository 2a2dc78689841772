"""What several test files share: where the scripts are, running them, and reading back what they wrote."""

import importlib
import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import gymnasium as gym
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "cleanrl_lite"
SCRIPTS = sorted(path.stem for path in SOURCE.glob("*.py") if path.stem not in ("utils", "__init__"))
MLP_SCRIPTS = [name for name in SCRIPTS if not name.endswith("_atari")]

# Small runs: a few rollouts, seconds. A test overrides what it is about.
SMALL = dict(
    ppo=dict(env_id="CartPole-v1", num_envs=4, num_steps=32, total_timesteps=512),
    ppo_continuous=dict(
        env_id="InvertedPendulum-v4", num_envs=2, num_steps=64, total_timesteps=512, num_minibatches=4, update_epochs=2
    ),
    ppo_atari=dict(
        env_id="BreakoutNoFrameskip-v4", num_envs=2, num_steps=8, total_timesteps=64, num_minibatches=2, threads=1
    ),
)


def module(script):
    return importlib.import_module(f"cleanrl_lite.{script}")


def small_args(script, runs_dir, **overrides):
    """Args of a small eager run below runs_dir."""
    quick = dict(compile=False, cuda=False, eval_episodes=1, runs_dir=str(runs_dir))
    return module(script).Args(**{**SMALL[script], **quick, **overrides})


def as_flags(**values):
    """Keyword arguments as words of a command line."""
    words = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words


def small_flags(script, runs_dir, **overrides):
    quick = dict(compile=False, eval_episodes=1, runs_dir=runs_dir)
    return as_flags(**{**SMALL[script], **quick, **overrides})


def main(script, args):
    """main(args) of the script in this process; Atari's evaluations are cut short, they are not what costs here."""
    original = module(script).make_env

    def short_games(args, render_mode=None):
        env = original(args, render_mode).env  # without RecordEpisodeStatistics, which has to see the limit
        return gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(env, 40))

    with mock.patch.object(module(script), "make_env", short_games if script.endswith("_atari") else original):
        return module(script).main(args)


def train(script, runs_dir, **overrides):
    """A small run in this process; returns its directory and the returns of the final evaluation."""
    before = set(Path(runs_dir).glob("*/"))
    returns = main(script, small_args(script, runs_dir, **overrides))
    (run_dir,) = set(Path(runs_dir).glob("*/")) - before
    return run_dir, returns


def command_line(script, words):
    """The script as __main__ with these words, in this process: what the shell does, without the seconds of imports.

    Returns the exit status as the interpreter would give it; prints a SystemExit's message as the interpreter does.
    """
    words = [f"{script}.py", *map(str, words)]
    try:
        with mock.patch.object(sys, "argv", words):
            imported = sys.modules.pop(
                f"cleanrl_lite.{script}", None
            )  # runpy warns of a module that is imported already
            runpy.run_module(f"cleanrl_lite.{script}", run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    finally:
        if imported:  # not the whole of sys.modules: importing ale_py a second time aborts the process
            sys.modules[f"cleanrl_lite.{script}"] = imported
    return 0


def environment(**extra):
    """Environment of a subprocess: tests/ importable (for probe environments), narrow help texts avoided."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "OMP_NUM_THREADS": "1", **extra}


def run(command, cwd, timeout=180, **extra):
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=environment(**extra), capture_output=True, text=True, timeout=timeout)


def next_second():
    """TensorBoard orders a run's event files by the second of their creation: a resumed run has to come in a later one,
    as every real one does (it takes longer to start)."""
    time.sleep(1.1)


def only_run(runs_dir):
    (run_dir,) = [path for path in Path(runs_dir).iterdir() if path.is_dir()]
    return run_dir


def scalars(run_dir):
    """{tag: [(step, value), ...]} of everything that a run logged, in the order of writing."""
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def load(run_dir):
    """The checkpoint of a run, as a plain dict."""
    import torch

    return torch.load(Path(run_dir) / "checkpoint.pt", weights_only=True)


def read_json(path):
    return json.loads(Path(path).read_text())
