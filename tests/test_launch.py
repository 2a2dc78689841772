"""benchmark/launch/launch.py: a queue of runs when jobs finish, crash, are killed, or the launcher itself ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmark.launch import launch, slurm
from tests import helpers

SMALL = [
    "--no-compile",
    "--num-envs",
    "4",
    "--num-steps",
    "32",
    "--eval-episodes",
    "1",
    "--save-every",
    "128",
]
JOB = "ppo-CartPole-v1-1"


def command(folder, *words, steps):
    flags = [*SMALL, "--total-timesteps", str(steps)]
    return [
        sys.executable,
        "-m",
        "benchmark.launch",
        *words,
        "--runs-dir",
        str(folder),
        "--",
        *flags,
    ]


def start(folder, *words, steps):
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    environ = helpers.environment(PYTHONWARNINGS="ignore")
    words = words or ("ppo", "--env-ids", "CartPole-v1", "--seeds", "1")
    return subprocess.Popen(
        command(folder, *words, steps=steps), cwd=helpers.ROOT, env=environ, **pipes
    )


def finish(folder, *words, steps, status=0):
    """The same in the foreground, to its end; returns its output."""
    process = start(folder, *words, steps=steps)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == status, output
    return output


def manifest(folder):
    return helpers.read_json(folder / "launch.json")["jobs"]


def checkpoints_in(folder):
    return list(folder.glob("*/checkpoint.pt"))


def steps_in(folder):
    return [helpers.load(path.parent)["global_step"] for path in checkpoints_in(folder)]


def test_seeds():
    assert launch.seeds(["1-3", "7", "9-9"]) == [1, 2, 3, 7, 9]


def test_the_last_flag_counts():
    """As in the scripts: flags behind a published command replace its own."""
    command = ["cleanrl_lite/ppo.py", "--exp-name", "old", "--seed=3", "--exp-name", "mine"]
    assert launch.value(command, "--exp-name", "ppo") == "mine"
    assert launch.value(command, "--seed", "") == "3"
    assert launch.value(command, "--env-id", "CartPole-v1") == "CartPole-v1"
    assert [*launch.jobs([command], "runs")] == ["mine-3"]


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["ppo", "--env-ids", "CartPole-v1", "--seeds", "a-b"],
            "--seeds takes numbers and ranges such as 1-5, got a-b",
        ),
        (["ppo", "--env-ids", "CartPole-v1", "--jobs", "0"], "--jobs must be >= 1, got 0"),
        (["ppo"], "name scripts and --env-ids, or pipe a list"),
        (["pp", "--env-ids", "CartPole-v1"], "there is no cleanrl_lite/pp.py"),
        (
            ["ppo", "--env-ids", "CartPole-v1", "--seeds", "1", "1-2"],
            "two jobs are named ppo-CartPole-v1-1",
        ),
        (["--log", "nobody"], "nobody.log. --status lists the jobs"),
        (["--status"], "error: there are no jobs in "),
        (["--cancel"], "error: there are no jobs in "),
        (["--exp-name", "mine"], "--seeds and --exp-name go with named scripts"),
    ],
)
def test_a_wrong_command(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["launch", *words, "--runs-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        launch.main()
    assert (
        end.value.code not in (0, None) and message in f"{end.value.code} {capsys.readouterr().err}"
    )
    assert not list(tmp_path.iterdir())


def test_progress_and_the_time_left(tmp_path, monkeypatch):
    """Of four jobs one was finished before, one is half done and one failed since: 1.5 of the 3 in 60 s."""
    logs = tmp_path / "logs"
    logs.mkdir()
    found = launch.Manifest(tmp_path / "launch.json")
    found.jobs = {name: dict(state="waiting") for name in "abcd"}
    found.jobs["a"]["state"] = "finished"
    before = launch.progress(found, "abcd", tmp_path)
    assert before == 1
    (logs / "b.log").write_text("step 1,000 of 4,000 | 10 SPS\nstep 2,000 of 4,000 | 10 SPS\n")
    (logs / "d.log").write_text("nothing yet\n")
    found.jobs["b"]["state"], found.jobs["c"]["state"] = "running", "failed"
    assert launch.fraction(tmp_path, "b") == 0.5 and launch.fraction(tmp_path, "d") == 0
    monkeypatch.setattr("time.time", lambda: 1060)
    line = launch.status_line(found, "abcd", ["b"], tmp_path, 1000, before)
    assert line == "1 of 4 finished, 1 running, 1 failed, 1 min left"


def test_what_is_in_the_queue_stays_there(tmp_path, monkeypatch):
    """The same command while Slurm is at work: nothing is submitted twice, run here, or taken for a process here."""
    commands = {name: ["cleanrl_lite/ppo.py", "--seed", name] for name in ("1", "2", "3")}
    found = launch.Manifest(tmp_path / "launch.json")
    assert found.plan(commands) == ["1", "2", "3"]
    for name, job in found.jobs.items():
        job |= dict(state="submitted", slurm=f"7_{name}")
    monkeypatch.setattr(slurm, "queue", lambda: {"7_1": "RUNNING", "7_2": "PENDING"})
    assert found.plan(commands) == ["3"]  # it ended without a result
    assert [job["state"] for job in found.jobs.values()] == ["running", "pending", "waiting"]
    found.jobs["3"]["state"] = "finished"
    found.save()
    args = SimpleNamespace(runs_dir=str(tmp_path), name="launch", jobs=1, task=None)
    monkeypatch.setattr(launch, "machine", dict)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest's handlers stay
    assert launch.run(commands, args) == 0


def test_other_flags_for_a_job_at_work(tmp_path, monkeypatch):
    """After the launcher was killed, or in Slurm's queue: one line, not a second job of the same name beside it."""
    words, other = (
        ["-c", "import time; print(1, flush=True); time.sleep(60)"],
        ["cleanrl_lite/ppo.py"],
    )
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        found = launch.Manifest(tmp_path / "launch.json")
        log = launch.log_path(tmp_path, "job")
        log.parent.mkdir()
        log.touch()
        found.jobs["job"] = dict(command=words, state="running", pid=process.pid, seconds=0.0)
        with pytest.raises(SystemExit, match="error: job is still at work"):
            found.plan({"job": other})
        assert (
            found.plan({"job": words}) == []
            and log.exists()
            and found.jobs["job"]["command"] == words
        )
    finally:
        process.kill()
        process.wait()
    assert found.plan({"job": other}) == ["job"]
    found.jobs["job"] |= dict(state="submitted", slurm="7_0")
    monkeypatch.setattr(slurm, "queue", lambda: {"7_0": "PENDING"})
    with pytest.raises(SystemExit, match="error: job is still at work"):
        found.plan({"job": words})


def test_a_new_command_after_a_finished_one_in_slurm(tmp_path, monkeypatch):
    """Its task left the queue before it began: the result of the old command is not its own."""
    old, new = ["cleanrl_lite/ppo.py"], ["cleanrl_lite/ppo.py", "--gamma", "0.9"]
    monkeypatch.setattr(slurm, "queue", dict)
    found = launch.Manifest(tmp_path / "launch.json")
    found.plan({"job": old})
    found.jobs["job"] |= dict(state="submitted", slurm="7_0")
    (tmp_path / "launch").mkdir()
    written = {"jobs": {"job": dict(command=old, state="finished", seconds=9.0)}}
    (tmp_path / "launch/job.json").write_text(json.dumps(written))
    assert found.plan({"job": old}) == [] and found.jobs["job"]["seconds"] == 9.0
    assert found.plan({"job": new}) == ["job"]
    found.jobs["job"] |= dict(state="submitted", slurm="8_0")
    assert found.plan({"job": new}) == ["job"]
    assert found.jobs["job"]["seconds"] == 0.0


def test_two_launchers_one_after_the_other(tmp_path):
    """The second one sees what the first one wrote before it gave the lock back."""
    first, second = (launch.Manifest(tmp_path / "launch.json") for _ in range(2))
    first.lock()
    first.jobs["job"] = dict(command=["cleanrl_lite/ppo.py"], state="finished")
    first.save()
    first.file_lock.release()
    second.lock()
    assert second.jobs == first.jobs


def test_slurms_queue_is_read_once(monkeypatch, tmp_path):
    """To cancel any number of tasks; squeue is work for the whole cluster."""
    found, asked = launch.Manifest(tmp_path / "launch.json"), []
    found.jobs = {str(n): dict(command=[], state="pending", slurm=f"7_{n}") for n in range(3)}
    answers = dict(squeue="7_0 PENDING\n7_1 RUNNING\n", scancel="")
    monkeypatch.setattr(slurm, "slurm", lambda *words: asked.append(words) or answers[words[0]])
    slurm.cancel(found)
    assert [words[0] for words in asked] == ["squeue", "scancel"] and asked[1][1:] == ("7_0", "7_1")


def test_the_run_directory_is_in_the_log(tmp_path):
    """However much W&B has said after it; and a log of another command is not this job's."""
    found = launch.Manifest(tmp_path / "launch.json")
    found.plan({"job": ["cleanrl_lite/ppo.py"]})
    log = launch.log_path(tmp_path, "job")
    log.parent.mkdir()
    log.write_text(
        "run directory: runs/one (cpu)\n"
        + "wandb: Run history:\n" * 25
        + "wandb: Find logs at: x\n"
    )
    launch.ended(found.jobs["job"], 0, 1.0, log)
    assert (found.jobs["job"]["state"], found.jobs["job"]["run_dir"]) == ("finished", "runs/one")
    assert found.jobs["job"]["last_line"] == "wandb: Find logs at: x"
    assert found.plan({"job": ["cleanrl_lite/ppo.py"]}) == [] and log.exists()
    assert (
        found.plan({"job": ["cleanrl_lite/ppo.py", "--gamma", "0.9"]}) == ["job"]
        and not log.exists()
    )


def test_a_process_that_is_not_the_job():
    """Another one by now, one that has ended, one that nobody waits for: none of them is at work."""
    words = ["-c", "import time; print(1, flush=True); time.sleep(60)"]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        assert launch.at_work(dict(pid=process.pid, command=words))
        assert not launch.at_work(dict(pid=process.pid, command=["cleanrl_lite/ppo.py"]))
        process.kill()
        helpers.wait_for(
            lambda: not launch.at_work(dict(pid=process.pid, command=words)), 10
        )  # a zombie
    finally:
        process.kill()
        process.wait()
    assert not launch.at_work(dict(pid=process.pid, command=words))


@pytest.mark.slow
def test_commands_from_a_pipe(tmp_path):
    """What a benchmark/experiments/*.sh prints; the launcher's own flags come after theirs."""
    lines = "# a job\n\npython3 cleanrl_lite/ppo.py --env-id 'CartPole-v1' --seed 1 --exp-name a --gamma 0.9\n"
    done = helpers.run(command(tmp_path, steps=256), cwd=helpers.ROOT, input=lines)
    assert done.returncode == 0, done.stdout
    ((name, job),) = manifest(tmp_path).items()
    assert name == "a-CartPole-v1-1" and (job["state"], job["status"], job["crashes"]) == (
        "finished",
        0,
        0,
    )
    run_dir = Path(job["run_dir"])
    args = helpers.load(run_dir)["args"]
    assert (args["exp_name"], args["gamma"], args["total_timesteps"], args["seed"]) == (
        "a",
        0.9,
        256,
        1,
    )
    stamped = helpers.read_json(run_dir / "machine.json")
    assert stamped == {field: job[field] for field in ("hardware", "versions", "commit")}
    assert 0 < job["seconds"] and job["hardware"] and job["commit"]


def test_without_slurm(tmp_path):
    """One line, and nothing is marked as submitted."""
    words = ["ppo", "--env-ids", "CartPole-v1", "--slurm", "--runs-dir", tmp_path]
    done = helpers.run(
        [sys.executable, "-m", "benchmark.launch", *words], cwd=helpers.ROOT, PATH="/nowhere"
    )
    assert (
        done.returncode == 1
        and "sbatch not found" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert "submitted" not in json.dumps(launch.Manifest(tmp_path / "launch.json").jobs)


@pytest.mark.slow
def test_jobs_that_fail(tmp_path):
    """One finishes and one cannot: tried twice, its last line told; the same command runs only that one again."""
    words = ["ppo", "--env-ids", "CartPole-v1", "CartPol-v1", "--seeds", "1"]
    for again in (False, True):
        output = finish(tmp_path, *words, steps=512, status=1)
        assert f"2 jobs, {1 if again else 2} to run" in output
        assert "ppo-CartPol-v1-1: error: --env-id CartPol-v1 " in output
        good, bad = manifest(tmp_path).values()
        assert (good["state"], good["status"], bad["state"], bad["status"], bad["crashes"]) == (
            "finished", 0, "failed", 1, 2)  # fmt: skip
    assert steps_in(tmp_path) == [512]


@pytest.mark.slow
def test_a_killed_job_continues(tmp_path):
    process = start(tmp_path, steps=20_480)
    helpers.wait_for(lambda: checkpoints_in(tmp_path))
    os.kill(manifest(tmp_path)[JOB]["pid"], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    (job,) = manifest(tmp_path).values()
    assert (job["state"], job["kills"], job["crashes"]) == ("finished", 1, 0) and steps_in(
        tmp_path
    ) == [20_480]


@pytest.mark.slow
def test_the_launcher_is_stopped(tmp_path):
    """Its jobs save and end, a second launcher is refused before that; the same command continues them."""
    words = ["ppo", "--env-ids", "CartPole-v1", "--seeds", "1-3", "--jobs", "2"]
    process = start(tmp_path, *words, steps=10_000_000)
    helpers.wait_for(lambda: len(checkpoints_in(tmp_path)) == 2)
    assert "is in use by another launcher" in finish(tmp_path, *words, steps=10_000_000, status=1)
    running = [job for job in manifest(tmp_path).values() if job["state"] == "running"]
    assert len(running) == 2 and all(map(launch.at_work, running))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert not any(map(launch.at_work, running))
    assert [job["state"] for job in manifest(tmp_path).values()] == ["waiting"] * 3
    assert len(steps_in(tmp_path)) == 2 and min(steps_in(tmp_path)) > 0


@pytest.mark.slow
def test_the_launcher_is_killed(tmp_path):
    """Its job works on; the next launcher waits for it and does not start it twice."""
    process = start(tmp_path, steps=24_064)
    helpers.wait_for(lambda: checkpoints_in(tmp_path))
    process.kill()
    process.communicate()
    finish(tmp_path, "ppo", "--env-ids", "CartPole-v1", "--seeds", "1", steps=24_064)
    (job,) = manifest(tmp_path).values()
    assert (job["state"], job["crashes"]) == ("finished", 0) and steps_in(tmp_path) == [24_064]
    words = [sys.executable, "-m", "benchmark.launch", "--status", "--runs-dir", tmp_path]
    status = helpers.run(words, cwd=helpers.ROOT).stdout
    assert "finished" in status and "100%" in status


@pytest.mark.slow
def test_a_signal_before_the_task_can_hear_it(tmp_path):
    """Slurm may send a task its time-limit signal while it is being started: it lives on."""
    found = launch.Manifest(tmp_path / "launch.json")
    found.plan(
        {
            "job": [
                "cleanrl_lite/ppo.py",
                "--env-id",
                "CartPole-v1",
                *SMALL,
                "--total-timesteps",
                "256",
            ]
        }
    )
    found.save()
    (tmp_path / "launch").mkdir()
    jobs_file = tmp_path / "launch/array.json"
    jobs_file.write_text(json.dumps(["job"]))
    names = ("partition", "time", "mem", "gpus", "max_parallel")
    args = SimpleNamespace(
        **dict.fromkeys(names), cpus=1, grace=50, sbatch=[], name="launch", runs_dir=str(tmp_path)
    )
    script = slurm.batch_script("launch", 1, jobs_file, args)
    task = subprocess.Popen(["sh", "-c", script], env=os.environ | {"SLURM_ARRAY_TASK_ID": "0"})
    time.sleep(0.2)
    task.send_signal(signal.SIGUSR1)
    assert task.wait(120) == 0
    assert (
        json.loads((tmp_path / "launch/job.json").read_text())["jobs"]["job"]["state"] == "finished"
    )
