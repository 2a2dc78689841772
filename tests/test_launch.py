"""benchmark/launch.py: what a queue of runs does when jobs finish, crash, are killed, or the launcher itself ends."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchmark import launch, slurm
from tests import helpers

SMALL = ["--no-compile", "--num-envs", "4", "--num-steps", "32", "--eval-episodes", "1", "--save-every", "128"]


def command(folder, *words, flags=()):
    return [sys.executable, "-m", "benchmark.launch", *words, "--runs-dir", folder, "--", *SMALL, *flags]


def manifest(folder):
    return helpers.read_json(folder / "launch.json")["jobs"]


def start(folder, *words, flags=()):
    environ = helpers.environment() | dict(PYTHONWARNINGS="ignore")
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return subprocess.Popen(
        list(map(str, command(folder, *words, flags=flags))), cwd=helpers.ROOT, env=environ, **pipes
    )


def checkpoints_in(folder):
    return list(folder.glob("*/checkpoint.pt"))


def test_seeds():
    assert launch.seeds(["1-3", "7", "9-9"]) == [1, 2, 3, 7, 9]


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["ppo", "--env-ids", "CartPole-v1", "--seeds", "a-b"],
            "--seeds takes numbers and ranges such as 1-5, not a-b",
        ),
        (["ppo", "--env-ids", "CartPole-v1", "--jobs", "0"], "--jobs must be at least 1"),
        (["--log", "nobody"], "nobody.log; --status names the jobs"),
        (["--status"], "error: there are no jobs in "),
    ],
)
def test_a_command_that_is_wrong(words, message, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["launch", *words, "--runs-dir", str(tmp_path)])
    stderr = io.StringIO()
    with pytest.raises(SystemExit) as end, contextlib.redirect_stderr(stderr):
        launch.main()
    assert end.value.code not in (0, None) and message in f"{end.value.code} {stderr.getvalue()}"
    assert not list(tmp_path.iterdir())


def test_progress_and_the_time_left(tmp_path, monkeypatch):
    """Of four jobs one was finished before, one is half done and one failed since: 1.5 of the 3 in 60 s."""
    (logs := tmp_path / "logs").mkdir()
    (logs / "b.log").write_text("step 1,000 of 4,000 | 10 SPS\nstep 2,000 of 4,000 | 10 SPS\n")
    (logs / "d.log").write_text("nothing yet\n")
    manifest = launch.Manifest(tmp_path / "launch.json")
    manifest.jobs = {name: dict(state="waiting") for name in "abcd"}
    manifest.jobs["a"]["state"] = "finished"
    (logs / "b.log").rename(logs / "later")
    assert (before := launch.progress(manifest, "abcd", tmp_path)) == 1
    (logs / "later").rename(logs / "b.log")
    manifest.jobs["b"]["state"], manifest.jobs["c"]["state"] = "running", "failed"
    assert launch.fraction(tmp_path, "b") == 0.5 and launch.fraction(tmp_path, "d") == 0
    monkeypatch.setattr("time.time", lambda: 1060)
    line = launch.status_line(manifest, "abcd", ["b"], tmp_path, 1000, before)
    assert line == "1 of 4 finished, 1 running, 1 failed, 1 min left"


def test_jobs_and_what_had_failed(tmp_path):
    """Two that finish and two that cannot: tried twice, the last line told; the same command runs only those again."""
    words, flags = ["ppo", "--env-ids", "CartPole-v1", "CartPol-v1", "--seeds", "1-2"], ["--total-timesteps", "512"]
    for again in (False, True):
        began = time.time()
        process = start(tmp_path, *words, flags=flags)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 1, output
        assert f"4 jobs, {2 if again else 4} to run" in output
        found = manifest(tmp_path)
        assert [job["state"] for job in found.values()] == ["finished"] * 2 + ["failed"] * 2
        assert "ppo-CartPol-v1-2: error: --env-id CartPol-v1: " in output
        for name, job in found.items():
            own = ["--env-id", name.split("-", 1)[1][:-2], "--seed", name[-1]]
            assert job["command"][:5] == ["cleanrl_lite/ppo.py", *own]
            assert job["status"] == (job["state"] == "failed") and job["crashes"] == 2 * (job["state"] == "failed")
            assert 0 < job["seconds"] < time.time() and job["hardware"] and job["versions"] and job["commit"]
        for name in ("ppo-CartPole-v1-1", "ppo-CartPole-v1-2"):
            assert helpers.load(found[name]["run_dir"])["global_step"] == 512
    assert len(checkpoints_in(tmp_path)) == 2 and time.time() > began


def test_a_killed_job_goes_on(tmp_path):
    process = start(tmp_path, "ppo", "--env-ids", "CartPole-v1", "--seeds", "1", flags=["--total-timesteps", "20000"])
    helpers.wait_for(lambda: checkpoints_in(tmp_path))
    os.kill(manifest(tmp_path)["ppo-CartPole-v1-1"]["pid"], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    (job,) = manifest(tmp_path).values()
    assert (job["state"], job["kills"], job["crashes"]) == ("finished", 1, 0)
    (run_dir,) = [path.parent for path in checkpoints_in(tmp_path)]
    assert helpers.load(run_dir)["global_step"] == 20000


def test_the_launcher_is_stopped(tmp_path):
    """Its jobs save and end; the same command goes on with them."""
    words, flags = ["ppo", "--env-ids", "CartPole-v1", "--seeds", "1-3", "--jobs", "2"], ["--total-timesteps", "10000"]
    process = start(tmp_path, *words, flags=flags)
    helpers.wait_for(lambda: len(checkpoints_in(tmp_path)) == 2)
    children = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert len(children) == 2 and not any(child.is_running() for child in children)
    assert [job["state"] for job in manifest(tmp_path).values()] == ["waiting"] * 3
    done = helpers.run(command(tmp_path, *words, flags=flags), cwd=helpers.ROOT)
    assert done.returncode == 0, done.stdout
    assert [helpers.load(path.parent)["global_step"] for path in checkpoints_in(tmp_path)] == [10000] * 3


def test_the_launcher_is_killed(tmp_path):
    """Its jobs work on; the next launcher waits for them and does not start them twice."""
    words, flags = ["ppo", "--env-ids", "CartPole-v1", "--seeds", "1"], ["--total-timesteps", "24000"]
    process = start(tmp_path, *words, flags=flags)
    helpers.wait_for(lambda: checkpoints_in(tmp_path))
    process.kill()
    process.communicate()
    done = helpers.run(command(tmp_path, *words, flags=flags), cwd=helpers.ROOT)
    assert done.returncode == 0, done.stdout
    (job,) = manifest(tmp_path).values()
    assert (job["state"], job["crashes"]) == ("finished", 0)
    (path,) = checkpoints_in(tmp_path)
    assert helpers.load(path.parent)["global_step"] == 24000
    status = helpers.run(
        [sys.executable, "-m", "benchmark.launch", "--status", "--runs-dir", tmp_path], cwd=helpers.ROOT
    ).stdout
    assert "finished" in status and "100%" in status


def test_commands_from_a_pipe(tmp_path):
    """What a benchmark/*.sh prints; the launcher's own flags come after theirs."""
    lines = "# two jobs\npython cleanrl_lite/ppo.py --env-id CartPole-v1 --seed 1 --exp-name a --gamma 0.9\n\n"
    lines += "python3 cleanrl_lite/ppo.py --env-id 'CartPole-v1' --seed 2\n"
    done = helpers.run(command(tmp_path, flags=["--total-timesteps", "256"]), cwd=helpers.ROOT, input=lines)
    assert done.returncode == 0, done.stdout
    found = manifest(tmp_path)
    assert sorted(found) == ["a-CartPole-v1-1", "ppo-CartPole-v1-2"]
    args = helpers.read_json(Path(found["a-CartPole-v1-1"]["run_dir"]) / "args.json")
    assert (args["exp_name"], args["gamma"], args["total_timesteps"], args["seed"]) == ("a", 0.9, 256, 1)
    stamped = helpers.read_json(Path(found["a-CartPole-v1-1"]["run_dir"]) / "machine.json")
    assert stamped == {name: found["a-CartPole-v1-1"][name] for name in ("hardware", "versions", "commit")}


@pytest.mark.parametrize(
    "lines, message",
    [
        ("python cleanrl_lite/pp.py --seed 1", "there is no cleanrl_lite/pp.py"),
        ("python cleanrl_lite/ppo.py --seed 1\npython cleanrl_lite/ppo.py --seed 1 --gamma 0.9", "are called ppo-1"),
    ],
)
def test_a_list_that_is_wrong(tmp_path, lines, message):
    done = helpers.run(command(tmp_path), cwd=helpers.ROOT, input=lines)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_second_launcher(tmp_path):
    """The manifest belongs to one launcher at a time."""
    words, flags = ["ppo", "--env-ids", "CartPole-v1", "--seeds", "1"], ["--total-timesteps", "2000000"]
    process = start(tmp_path, *words, flags=flags)
    helpers.wait_for(lambda: checkpoints_in(tmp_path))
    done = helpers.run(command(tmp_path, *words, flags=flags), cwd=helpers.ROOT)
    assert done.returncode == 1 and "another launcher is at work" in done.stderr
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert [job["state"] for job in manifest(tmp_path).values()] == ["waiting"]


def test_what_is_in_the_queue_stays_there(tmp_path, monkeypatch):
    """The same command while Slurm is at work: nothing is submitted twice, run here, or taken for a process here."""
    commands = {name: ["cleanrl_lite/ppo.py", "--seed", name] for name in ("1", "2", "3")}
    found = launch.Manifest(tmp_path / "launch.json")
    assert found.plan(commands) == ["1", "2", "3"]
    for name, job in found.jobs.items():
        job |= dict(state="submitted", slurm=f"7_{name}")
    monkeypatch.setattr(slurm, "queue", lambda: {"7_1": "RUNNING", "7_2": "PENDING"})
    assert found.plan(commands) == ["3"]  # ended without a word
    assert [job["state"] for job in found.jobs.values()] == ["running", "pending", "waiting"]
    found.jobs["3"]["state"] = "finished"
    found.save()
    args = SimpleNamespace(runs_dir=str(tmp_path), name="launch", jobs=1, task=None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest's own stay
    monkeypatch.setattr(launch, "machine", dict)
    assert launch.run(commands, args) == 0


def test_the_run_directory_is_in_the_log(tmp_path):
    """W&B has the last word, some 25 lines long; and a log of another command is not this job's."""
    found = launch.Manifest(tmp_path / "launch.json")
    found.plan({"job": ["cleanrl_lite/ppo.py"]})
    log = launch.log_path(tmp_path, "job")
    log.parent.mkdir()
    log.write_text("the run is in runs/one\n" + "wandb: Run history:\n" * 25 + "wandb: Find logs at: wandb/one\n")
    launch.ended(found.jobs["job"], 0, 1.0, log)
    assert (found.jobs["job"]["state"], found.jobs["job"]["run_dir"]) == ("finished", "runs/one")
    assert found.jobs["job"]["last_line"] == "wandb: Find logs at: wandb/one"
    assert found.plan({"job": ["cleanrl_lite/ppo.py"]}) == [] and log.exists()
    assert found.plan({"job": ["cleanrl_lite/ppo.py", "--gamma", "0.9"]}) == ["job"] and not log.exists()


def test_a_signal_before_the_task_can_hear_it(tmp_path):
    """Slurm tells a task early that its time is over, and may do so while it is being started: it lives on."""
    manifest = launch.Manifest(tmp_path / "launch.json")
    flags = ["--total-timesteps", "256", "--num-envs", "2", "--num-steps", "64", "--no-compile", "--eval-episodes", "1"]
    manifest.plan({"job": ["cleanrl_lite/ppo.py", "--env-id", "CartPole-v1", *flags]})
    manifest.save()
    (tmp_path / "launch").mkdir()
    jobs_file = tmp_path / "launch/array.json"
    jobs_file.write_text(json.dumps(["job"]))
    names = ("partition", "time", "mem", "gpus", "max_parallel")
    args = SimpleNamespace(**dict.fromkeys(names), cpus=1, grace=50, sbatch=[], name="launch", runs_dir=str(tmp_path))
    script = slurm.batch_script("launch", 1, jobs_file, args)
    task = subprocess.Popen(["sh", "-c", script], env=os.environ | {"SLURM_ARRAY_TASK_ID": "0"})
    time.sleep(0.2)
    task.send_signal(signal.SIGUSR1)
    assert task.wait(120) == 0
    assert json.loads((tmp_path / "launch/job.json").read_text())["jobs"]["job"]["state"] == "finished"


def test_without_slurm(tmp_path):
    """One line where there is no Slurm, and nothing is marked as submitted."""
    command = [sys.executable, "-m", "benchmark.launch", "ppo", "--env-ids", "CartPole-v1", "--slurm"]
    done = helpers.run([*command, "--runs-dir", tmp_path], cwd=helpers.ROOT, PATH="/nowhere")
    assert done.returncode == 1 and "there is no sbatch here" in done.stderr and "Traceback" not in done.stderr
    assert "submitted" not in json.dumps(launch.Manifest(tmp_path / "launch.json").jobs)
