"""The launcher's jobs as an array job of Slurm; `python -m benchmark.launch ... --slurm` uses it.

Each task of the array is a launcher of its own, with one job (benchmark/launch.py, --task): it tries again what
crashes, and writes its own manifest, RUNS_DIR/NAME/JOB.json, since many nodes cannot write into one file. --status
reads them all. Runs go on from their checkpoints, so a task may end at any moment: preempted or requeued, it gets
SIGTERM, saves, and Slurm starts it again; shortly before its time is over Slurm sends SIGUSR1, it saves and asks to be
requeued. Only `scancel` ends it for good.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IN_QUEUE = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "PREEMPTED")


def slurm(*words):
    """The output of one of Slurm's commands; what it says against it ends the program in one line."""
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit(f"error: there is no {words[0]} here: --slurm needs Slurm's commands") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()
        raise SystemExit(f"error: {shlex.join(words)}: {said[-1]}")
    return done.stdout


def batch_script(name, count, jobs_file, args):
    """What sbatch gets: the flags, and a task that becomes the launcher, so that Slurm's signals reach it."""
    options = dict(partition=args.partition, time=args.time, mem=args.mem, gpus=args.gpus)
    options |= {"cpus-per-task": args.cpus, "nodes": 1, "ntasks": 1, "job-name": name, "open-mode": "append"}
    options["array"] = f"0-{count - 1}" + (f"%{args.max_parallel}" if args.max_parallel else "")
    options["signal"] = f"B:USR1@{args.grace}"
    options["output"] = jobs_file.with_name("slurm-%A_%a.out")
    lines = [f"#SBATCH --{flag}={value}" for flag, value in options.items() if value is not None]
    lines += ["#SBATCH --requeue", *(f"#SBATCH {words}" for words in args.sbatch)]
    launcher = [sys.executable, "-m", "benchmark.launch", "--name", args.name, "--runs-dir", args.runs_dir]
    task = shlex.join([*launcher, "--task", str(jobs_file)])
    # Until the launcher can hear it, the signal is lost: otherwise it would kill the task for good, not requeued.
    return "\n".join(["#!/bin/sh", *lines, "trap '' USR1", f"cd {shlex.quote(str(ROOT))} && exec {task}", ""])


def submit(manifest, waiting, args):
    """Submits the jobs in `waiting` as one array and notes their tasks in the manifest."""
    if not waiting:
        return print("nothing to submit: all are finished, or in the queue")
    folder = manifest.path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    jobs_file = folder / f"array-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json"
    jobs_file.write_text(json.dumps(waiting, indent=1) + "\n")
    script = jobs_file.with_suffix(".sbatch")
    script.write_text(batch_script(args.name, len(waiting), jobs_file, args))
    array = slurm("sbatch", "--parsable", str(script)).strip().split(";")[0]
    for index, name in enumerate(waiting):
        manifest.jobs[name] |= dict(state="submitted", slurm=f"{array}_{index}")
    manifest.save()
    print(
        f"{len(waiting)} jobs are array job {array} of Slurm; {script}\npython -m benchmark.launch --status tells more"
    )


def queue():
    """{task of an array: its state} of this user's tasks that Slurm still knows."""
    lines = slurm("squeue", "--me", "--noheader", "--array", "--format=%F_%K %T").splitlines()
    return {task: state for task, state in map(str.split, lines) if state in IN_QUEUE}


def refresh(manifest):
    """Brings the jobs that were submitted up to date: from the queue, else from what their tasks wrote."""
    submitted = {name: job for name, job in manifest.jobs.items() if "slurm" in job and job["state"] != "finished"}
    tasks = queue() if submitted else {}
    for name, job in submitted.items():
        path = manifest.path.with_suffix("") / f"{name}.json"
        wrote = json.loads(path.read_text())["jobs"].get(name, {}) if path.exists() else {}
        job |= {field: wrote[field] for field in wrote if field not in ("command", "state", "pid")}
        state = wrote.get("state") if wrote.get("state") in ("finished", "failed") else "interrupted"
        job["state"] = tasks.get(job["slurm"], state).lower()


def task_id():
    """This process's task as scontrol wants it, or None."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array else None


def cancel(manifest):
    tasks = [job["slurm"] for job in manifest.jobs.values() if "slurm" in job and job["state"] != "finished"]
    tasks = [task for task in tasks if task in queue()]
    if tasks:
        slurm("scancel", *tasks)
    print(f"{len(tasks)} tasks cancelled")
