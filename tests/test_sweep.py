"""benchmark/launch/sweep.py: a search that continues, and a trial whose runs fail."""

import sys

import pytest

from benchmark.launch import sweep as module
from tests import helpers

pytest.importorskip("optuna")
pytestmark = pytest.mark.slow
SWEEP = [
    sys.executable,
    "-m",
    "benchmark.launch.sweep",
    "--seeds",
    "1",
    "2",
    "--steps",
    "1024",
    "--jobs",
    "2",
]
SMALL = ["--no-compile", "--eval-episodes", "1"]


def test_a_search(tmp_path):
    """A trial, then another one of the same search; the best one as a command; runs that fail fail their trial only."""
    sweep = [*SWEEP, "--runs-dir", tmp_path]
    assert helpers.run([*sweep, "--trials", "1", "--", *SMALL], helpers.ROOT).returncode == 0
    done = helpers.run([*sweep, "--trials", "1", "--", *SMALL], helpers.ROOT)
    assert (
        " of 2:" in done.stdout
        and "cleanrl_lite/ppo.py --env-id CartPole-v1 --learning-rate " in done.stdout
    )
    values = []
    for folder in tmp_path.glob("ppo-CartPole-v1/trial-*"):
        means = [helpers.read_json(path)["mean"] for path in folder.glob("*/eval.json")]
        assert len(means) == 2 and len(list(folder.glob("*__1__*"))) == 1
        values.append(sum(means) / 2)
    assert len(values) == 2 and f"mean return {max(values):.1f} in trial" in done.stdout
    done = helpers.run([*sweep, "--trials", "1", "--", "--gamma", "-1"], helpers.ROOT)
    assert done.returncode == 0 and "failed" in done.stderr and " of 3:" in done.stdout
    assert helpers.run([*sweep, "--best"], helpers.ROOT).stdout == done.stdout


def test_a_script_without_rollouts(monkeypatch, tmp_path):
    """A copy with another SCRIPT and another `space`."""
    monkeypatch.setattr(module, "SCRIPT", "dqn")
    flags = ["--learning-starts", "32", *SMALL]
    args = module.parse(["--steps", "64", "--runs-dir", str(tmp_path), "--", *flags])
    mean = module.evaluation({"--learning-rate": 1e-3}, 1, args, "trial-0")
    (run_dir,) = tmp_path.glob("trial-0/*__dqn__1__*")
    assert mean == helpers.read_json(run_dir / "eval.json")["mean"] > 0
    assert helpers.read_json(run_dir / "args.json")["total_timesteps"] == 64
