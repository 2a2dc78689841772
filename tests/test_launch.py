"""benchmark/launch: lists of commands on this machine, on Slurm, AWS Batch and SkyPilot; sweeps."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.launch import launch
from cleanrl_lite.tools import jobs
from tests import helpers

FOLDER = helpers.ROOT / "benchmark" / "launch"
# Stands in for a script: it resumes, saves at a signal, and has 20 steps, the last one quick unless
# its --env-id is "slow".
FAKE = """
import argparse, json, signal, sys, time
from pathlib import Path

parser = argparse.ArgumentParser()
for flag in ("env-id", "seed", "runs-dir", "resume", "exp-name", "total-timesteps", "rate"):
    parser.add_argument(f"--{flag}")
args = parser.parse_args()
if args.env_id == "wrong":
    sys.exit("error: no such environment")
run_dir = Path(args.runs_dir, f"{args.env_id}__fake__{args.seed}__1")
run_dir.mkdir(parents=True, exist_ok=True)
checkpoint = run_dir / "checkpoint.pt"
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
with open(run_dir / "starts", "a") as starts:
    starts.write(f"{step}\\n")

def save(*_):
    checkpoint.with_suffix(".tmp").write_text(str(step))
    checkpoint.with_suffix(".tmp").replace(checkpoint)

signal.signal(signal.SIGTERM, lambda *_: (save(), sys.exit(143)))
print(f"run directory: {run_dir} (cpu)")
while step < 20:
    step += 1
    print(f"{5 * step:3}%|###  | {step}/20 [00:00<00:01, 10.00it/s, return 1.0]", end="\\r")
    save()
    time.sleep(0.3 if args.env_id == "slow" else 0)
(run_dir / "eval.json").write_text(json.dumps({"mean": float(args.rate or 0)}))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The user stands in a folder with a script. machine() asks torch for a GPU: seconds less."""
    (tmp_path / "fake.py").write_text(FAKE)
    (tmp_path / "torch.py").write_text("class cuda: is_available = bool")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "machine", lambda: {"hardware": "a PC"})
    return tmp_path


def run(monkeypatch, *words):
    """The launcher in this process; returns its exit status."""
    monkeypatch.setattr(sys, "argv", ["launch", *words])
    return launch.main()


def start(*words):
    """The launcher in a process of its own."""
    command = [sys.executable, "-m", "benchmark.launch", *words]
    return subprocess.Popen(command, env=helpers.environment())


def starts(runs_dir, env_id="slow", seed=1):
    """The step at which each attempt began."""
    path = Path(runs_dir, f"{env_id}__fake__{seed}__1", "starts")
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def saved(runs_dir, env_id="slow", seed=1):
    path = Path(runs_dir, f"{env_id}__fake__{seed}__1", "checkpoint.pt")
    return int(path.read_text()) if path.exists() else 0


RUNS = "runs/benchmark"
SLOW = ("fake", "--env-ids", "slow", "--seeds")


# --- commands
def test_the_last_flag_counts():
    """As in the scripts: flags behind a published command replace its own."""
    command = ["cleanrl_lite/ppo.py", "--exp-name", "old", "--seed=3", "--exp-name", "mine"]
    assert launch.value(command, "--exp-name", "ppo") == "mine"
    assert launch.value(command, "--seed", "") == "3"
    assert launch.value(command, "--env-id", "CartPole-v1") == "CartPole-v1"
    assert [*launch.jobs([command], "runs")] == ["mine-3"]
    assert launch.seeds(["1-3", "7", "9-9"]) == [1, 2, 3, 7, 9]


def test_what_a_job_says(tmp_path):
    """Of a wrong flag, what is wrong and not tyro's frame; no jobs at once would never end."""
    job = jobs.Job([], tmp_path / "log.txt")
    frame = "╭─ Value error ──╮\n│ Error parsing  │\n│ For full help  │\n╰────────────────╯\n"
    job.log.write_text(f"{frame}\n an earlier attempt\n{frame.replace('parsing', '--gamma')}")
    assert job.last_line() == "Error --gamma"
    with pytest.raises(SystemExit, match="--jobs must be at least 1, got 0"):
        next(jobs.run([job], 0))


# --- on this machine
def test_failed_jobs_are_named_and_only_they_run_again(monkeypatch, capsys):
    words = ["fake", "--env-ids", "quick", "wrong", "--seeds", "1"]
    assert run(monkeypatch, *words) == 1
    assert "not finished: fake-wrong-1: error: no such environment" in capsys.readouterr().out
    machine = helpers.read_json(f"{RUNS}/quick__fake__1__1/machine.json")
    assert machine["hardware"] == "a PC"
    assert "commit" in machine
    Path("fake.py").write_text(FAKE.replace('"wrong"', '""'))
    assert run(monkeypatch, *words, "--list") == 0
    assert capsys.readouterr().out == "python fake.py --env-id wrong --seed 1\n"
    assert run(monkeypatch, *words) == 0
    assert starts(RUNS, "quick") == [0]
    assert starts(RUNS, "wrong") == [0]
    assert run(monkeypatch, *words, "--", "--rate", "1") == 0  # another command: both once more
    assert starts(RUNS, "quick") == [0, 20]


@pytest.mark.slow
def test_a_killed_launcher(monkeypatch, capsys):
    """Its job works on, and is not started a second time."""
    process = start(*SLOW, "1")
    helpers.wait_for(lambda: saved(RUNS))
    process.kill()
    process.wait()
    assert run(monkeypatch, *SLOW, "1") == 1
    assert "is running already" in capsys.readouterr().out
    helpers.wait_for(lambda: saved(RUNS) == 20)
    assert starts(RUNS) == [0]


# --- on clusters
JOBS = "python fake.py --env-id quick --seed 1\npython fake.py --env-id slow --seed 1\n"


def program(name, text):
    """A program that stands in for another one."""
    path = Path("bin", name).resolve()
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.slow
def test_a_task_of_slurm(here):
    """The second command alone; at the time limit it saves and is requeued, and then continues."""
    variables = program("scontrol", 'echo "$@" > requeued')
    variables |= {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    Path("jobs.txt").write_text(JOBS)
    command = ["sh", FOLDER / "slurm.sh", "jobs.txt", "--runs-dir", "shared"]
    environ = helpers.environment(**variables)
    task = subprocess.Popen(command, env=environ)
    helpers.wait_for(lambda: saved("shared"))
    task.send_signal(signal.SIGUSR1)
    assert task.wait(60) == 130
    assert Path("requeued").read_text() == "requeue 7_2\n"
    Path("requeued").unlink()
    steps = saved("shared")
    assert 0 < steps < 20
    task = subprocess.Popen(command, env=environ)
    assert task.wait(60) == 0
    assert starts("shared") == [0, steps]
    assert starts("shared", "quick") == []
    assert not Path("requeued").exists()


# --- sweeps
@pytest.mark.slow
def test_a_search(monkeypatch, capsys):
    """A trial, another one of the same search, the best as a command; runs that fail fail theirs."""
    pytest.importorskip("optuna")
    from benchmark.launch import sweep

    def search(*words):
        monkeypatch.setattr(sys, "argv", ["sweep", "--seeds", "1", "2", "--jobs", "2", *words])
        sweep.main()
        return capsys.readouterr().out

    monkeypatch.setattr(sweep, "SCRIPT", "fake")
    monkeypatch.setattr(sweep, "ENV_ID", "quick")
    monkeypatch.setattr(
        sweep, "space", lambda trial: {"--rate": trial.suggest_float("rate", 1, 100)}
    )
    search("--trials", "1")
    found = search("--trials", "1")
    assert " of 2:\nfake.py --env-id quick --rate " in found
    means = [helpers.read_json(path)["mean"] for path in Path().glob("runs/**/trial-*/*/eval.json")]
    assert len(means) == 4
    assert f"mean return {max(means):.1f} in trial" in found
    assert " of 3:" in search("--trials", "1", "--", "--rate", "none")
    assert search("--best") == found.replace(" of 2:", " of 3:")
