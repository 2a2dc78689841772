"""Submits the launcher's jobs as a Slurm array job: `python -m benchmark.launch ... --slurm`.

Each task of the array runs a launcher with one job (benchmark/launch/launch.py, --task). It retries
a crash and writes its own manifest, RUNS_DIR/NAME/JOB.json, because many nodes cannot share one
file; --status reads them all. Runs resume from their checkpoints, so a task may end at any time. A
preempted or requeued task gets SIGTERM, saves, and is started again by Slurm. Shortly before its
time limit it gets SIGUSR1, saves and requeues itself. Only `scancel` ends it for good.
"""

import json
import os
import shlex
import subprocess
import sys
import time

from benchmark.shared import ROOT

IN_QUEUE = (
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "PREEMPTED",
)


def slurm(*words):
    """The output of a Slurm command; exits with one line if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        message = f"{words[0]} not found. Run this where Slurm's commands are installed"
        raise SystemExit(f"error: {message}") from None
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or "no reason given"
        raise SystemExit(f"error: {shlex.join(words)}: {said.splitlines()[-1]}")
    return done.stdout


def batch_script(name, count, jobs_file, args):
    """The script for sbatch. Its shell becomes the launcher (exec), which gets Slurm's signals."""
    limit = f"%{args.max_parallel}" if args.max_parallel else ""
    options = {
        "partition": args.partition,
        "time": args.time,
        "mem": args.mem,
        "gpus": args.gpus,
        "cpus-per-task": args.cpus,
        "nodes": 1,
        "ntasks": 1,
        "job-name": name,
        "open-mode": "append",
        "array": f"0-{count - 1}{limit}",
        "signal": f"B:USR1@{args.grace}",
        "output": jobs_file.with_name("slurm-%A_%a.out"),
    }
    launcher = [sys.executable, "-m", "benchmark.launch"]
    launcher += ["--name", args.name, "--runs-dir", args.runs_dir, "--task", str(jobs_file)]
    lines = ["#!/bin/sh"]
    for flag, value in options.items():
        if value is not None:
            lines.append(f"#SBATCH --{flag}={value}")
    lines.append("#SBATCH --requeue")
    lines += [f"#SBATCH {words}" for words in args.sbatch]
    # Ignored until the launcher handles it: it would kill the task for good, without a requeue.
    lines.append("trap '' USR1")
    lines.append(f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(launcher)}")
    return "\n".join(lines) + "\n"


def submit(manifest, waiting, args):
    """Submits the jobs in `waiting` as one array and records their tasks in the manifest."""
    if not waiting:
        print("nothing to submit: all jobs are finished or in the queue")
        return
    folder = manifest.path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    jobs_file = folder / f"array-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json"
    jobs_file.write_text(json.dumps(waiting, indent=1) + "\n")
    script = jobs_file.with_suffix(".sbatch")
    script.write_text(batch_script(args.name, len(waiting), jobs_file, args))
    array = slurm("sbatch", "--parsable", str(script)).strip().split(";")[0]
    for index, name in enumerate(waiting):
        manifest.jobs[name].update(state="submitted", slurm=f"{array}_{index}")
    manifest.save()
    print(f"submitted {len(waiting)} jobs as Slurm array job {array}: {script}")
    print("to see their progress: python -m benchmark.launch --status")


def queue():
    """{task of an array: its state}, for this user's tasks in Slurm's queue."""
    lines = slurm("squeue", "--me", "--noheader", "--array", "--format=%F_%K %T").splitlines()
    states = dict(line.split() for line in lines)
    return {task: state for task, state in states.items() if state in IN_QUEUE}


def unfinished(manifest):
    """{name: job} of the submitted jobs that are not known to be finished."""
    jobs = manifest.jobs.items()
    return {name: job for name, job in jobs if "slurm" in job and job["state"] != "finished"}


def refresh(manifest):
    """Updates submitted jobs from the queue, or from what their tasks wrote."""
    submitted = unfinished(manifest)
    tasks = queue() if submitted else {}
    for name, job in submitted.items():
        update(job, name, manifest, tasks.get(job["slurm"]))


def update(job, name, manifest, state_in_queue):
    """Of a job on a cluster: what its task wrote, and its state; also for aws_batch.py."""
    path = manifest.path.with_suffix("") / f"{name}.json"
    wrote = json.loads(path.read_text())["jobs"].get(name, {}) if path.exists() else {}
    for field, content in wrote.items():
        if field not in ("command", "state", "pid"):
            job[field] = content
    over = wrote.get("state") in ("finished", "failed")
    job["state"] = (state_in_queue or (wrote["state"] if over else "interrupted")).lower()


def task_id():
    """The name of this process's task for scontrol, or None."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    index = os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array else None


def cancel(manifest):
    submitted = unfinished(manifest)
    in_queue = queue() if submitted else {}
    tasks = [job["slurm"] for job in submitted.values() if job["slurm"] in in_queue]
    if tasks:
        slurm("scancel", *tasks)
    print(f"cancelled {len(tasks)} Slurm tasks")
