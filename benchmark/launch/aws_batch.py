"""Submits the launcher's jobs as an AWS Batch array job: `python -m benchmark.launch --aws-batch`.

On your machine, this submits the array, asks for its state and fetches its results. In a container
on AWS, this runs one task:

    python -m benchmark.launch.aws_batch s3://BUCKET/PREFIX/NAME/array-X.json

It takes its job from that list, downloads what an earlier attempt left on S3, runs the launcher
with this one job, and copies changed files to S3 every minute and at the end. So a task may end at
any time: when AWS reclaims an instance, the run gets SIGTERM and saves, and Batch starts the task
again on another one, where it resumes from its checkpoint.

Each job has a folder on S3, PREFIX/NAME/JOB/, with the same files as below --runs-dir.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from benchmark.launch import slurm
from benchmark.shared import ROOT

IN_QUEUE = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")
EVERY = 60  # seconds between copies to S3


@cache
def client(service):
    import boto3

    return boto3.client(service)


def aws(service, call, **words):
    """The answer to a call of an AWS service; exits with one line if it fails."""
    try:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        command = 'pip install -c constraints.txt -e ".[aws]"'
        raise SystemExit(f"error: --aws-batch needs boto3: {command}") from None
    try:
        return getattr(client(service), call)(**words)
    except (Boto3Error, BotoCoreError, ClientError) as error:
        raise SystemExit(f"error: AWS {service} {call}: {error}") from None


# === S3
def split(uri):
    """Bucket and key of s3://bucket/key."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise SystemExit(f"error: {uri} is not s3://BUCKET/PREFIX")
    return bucket, key.rstrip("/")


def write(uri, text):
    bucket, key = split(uri)
    aws("s3", "put_object", Bucket=bucket, Key=key, Body=text.encode())


def read(uri):
    bucket, key = split(uri)
    return aws("s3", "get_object", Bucket=bucket, Key=key)["Body"].read().decode()


def listing(uri):
    """What S3 says about each file below `uri`."""
    bucket, prefix = split(uri)
    words = {"Bucket": bucket, "Prefix": f"{prefix}/"}
    while True:
        page = aws("s3", "list_objects_v2", **words)
        yield from page.get("Contents", [])
        if not page["IsTruncated"]:
            return
        words["ContinuationToken"] = page["NextContinuationToken"]


def is_current(path, there):
    """Whether the file here is the one there: of the same size and no older."""
    if not path.is_file():
        return False
    here = path.stat()
    return here.st_size == there["Size"] and here.st_mtime >= there["LastModified"].timestamp()


def download(uri, folder, wanted=lambda name: True):
    """Downloads the files below `uri` into a folder, except those that are current."""
    bucket, prefix = split(uri)
    for there in listing(uri):
        path = Path(folder) / there["Key"].removeprefix(f"{prefix}/")
        if wanted(path.name) and not is_current(path, there):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = f"{path}.tmp"
            aws("s3", "download_file", Bucket=bucket, Key=there["Key"], Filename=temporary)
            os.replace(temporary, path)


def state(path):
    """Size and time of a file; None if it was deleted in the meantime."""
    with suppress(FileNotFoundError):
        return path.stat().st_size, path.stat().st_mtime_ns


def upload(folder, uri, sent):
    """Copies the files of a folder that have changed since they were `sent`, {path: state()}.

    Checkpoints come last, in the version from before the rest was copied: so the event files on S3
    are never behind the checkpoint, and a run that resumes from it leaves no gap in its curves.
    """
    bucket, prefix = split(uri)
    folder = Path(folder)
    # In `folder`, because links do not cross volumes
    with tempfile.TemporaryDirectory(dir=folder, suffix=".tmp") as links:
        checkpoints = {}
        for number, path in enumerate(folder.rglob("checkpoint.pt")):
            checkpoints[path] = Path(links, str(number))
            os.link(path, checkpoints[path])
        others = {}
        for path in sorted(folder.rglob("*")):
            temporary = path.suffix == ".tmp" or Path(links) in path.parents
            is_lock = path.suffix == ".lock" or path.name == "lock"
            if path.is_file() and not temporary and not is_lock and path not in checkpoints:
                others[path] = path
        for path, source in {**others, **checkpoints}.items():
            now = state(source)
            if now and sent.get(path) != now:
                key = f"{prefix}/{path.relative_to(folder)}"
                with suppress(FileNotFoundError):
                    aws("s3", "upload_file", Filename=str(source), Bucket=bucket, Key=key)
                    sent[path] = now


# === on your machine
def mebibytes(size):
    """8192 for "8G" or "8192M"."""
    number = size[:-1]
    unit = size[-1].upper()
    if not number.isdigit() or unit not in ("G", "M"):
        raise SystemExit(f"error: --mem takes a size such as 8G or 500M, got {size}")
    return int(number) * (1024 if unit == "G" else 1)


def seconds(limit):
    """5400 for "1:30:00", "90:00" or "90".

    As for sbatch: hours:minutes:seconds, minutes:seconds or minutes.
    """
    parts = limit.split(":")
    if len(parts) > 3 or not all(part.isdigit() for part in parts):
        message = f"--time takes a limit such as 1:30:00, or minutes, got {limit}"
        raise SystemExit(f"error: {message}")
    numbers = [int(part) for part in parts]
    if len(numbers) == 1:
        return 60 * numbers[0]
    if len(numbers) == 2:
        numbers = [0, *numbers]
    hours, minutes, rest = numbers
    return 3600 * hours + 60 * minutes + rest


def request(args, jobs_file, count):
    """What submit_job is asked for."""
    needs = {
        "VCPU": args.cpus,
        "MEMORY": args.mem and mebibytes(args.mem),
        "GPU": args.gpus,
    }
    resources = [{"type": name, "value": str(need)} for name, need in needs.items() if need]
    words = {
        "jobName": args.name,
        "jobQueue": args.queue,
        "jobDefinition": args.definition,
        "containerOverrides": {
            "command": ["-m", "benchmark.launch.aws_batch", jobs_file],
            "resourceRequirements": resources,
        },
    }
    if args.time:
        words["timeout"] = {"attemptDurationSeconds": seconds(args.time)}
    if count > 1:  # an array has at least two
        words["arrayProperties"] = {"size": count}
    return words


def submit(manifest, waiting, args):
    """Submits the jobs in `waiting` as one array and records their tasks in the manifest."""
    if not waiting:
        print("nothing to submit: all jobs are finished or in the queue")
        return
    if args.max_parallel:
        advice = "On AWS, set MaxvCpus of the compute environment"
        raise SystemExit(f"error: --max-parallel is for Slurm. {advice}")
    folder = f"{args.s3.rstrip('/')}/{args.name}"
    jobs_file = f"{folder}/array-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json"
    commands = {}
    for name in waiting:
        command = manifest.jobs[name]["command"]
        commands[name] = command[: command.index("--runs-dir")]  # tasks have their own
    words = request(args, jobs_file, len(waiting))
    write(jobs_file, json.dumps(commands, indent=1) + "\n")
    job = aws("batch", "submit_job", **words)["jobId"]
    for index, name in enumerate(waiting):
        task = f"{job}:{index}" if len(waiting) > 1 else job
        place = {"task": task, "s3": f"{folder}/{name}"}
        manifest.jobs[name].update(state="submitted", aws=place)
    manifest.save()
    print(f"submitted {len(waiting)} jobs as AWS Batch job {job}, from {jobs_file}")
    print("to see their progress: python -m benchmark.launch --status")


def unfinished(manifest):
    """{name: job} of the submitted jobs that are not known to be finished."""
    jobs = manifest.jobs.items()
    return {name: job for name, job in jobs if "aws" in job and job["state"] != "finished"}


def queue(submitted):
    """{task: its state}, for tasks in the queue."""
    ids = [job["aws"]["task"] for job in submitted.values()]
    found = {}
    for first in range(0, len(ids), 100):  # the limit of one call
        # Tasks are forgotten a day after they end.
        for job in aws("batch", "describe_jobs", jobs=ids[first : first + 100])["jobs"]:
            found[job["jobId"]] = job["status"]
    return {task: status for task, status in found.items() if status in IN_QUEUE}


def refresh(manifest):
    """Updates submitted jobs from the queue and from what their tasks wrote."""
    submitted = unfinished(manifest)
    in_queue = queue(submitted) if submitted else {}
    for name, job in submitted.items():
        files = {f"{name}.json", f"{name}.log"}
        download(job["aws"]["s3"], manifest.path.parent, wanted=files.__contains__)
        slurm.update(job, name, manifest, in_queue.get(job["aws"]["task"]))


def collect(manifest):
    """Downloads run directories, checkpoints included, and logs of all jobs from S3."""
    for job in manifest.jobs.values():
        if "aws" in job:
            download(job["aws"]["s3"], manifest.path.parent)


def cancel(manifest):
    submitted = unfinished(manifest)
    tasks = queue(submitted) if submitted else {}
    for task in tasks:
        aws("batch", "terminate_job", jobId=task, reason="launch --cancel")
    print(f"cancelled {len(tasks)} AWS Batch tasks")


# === on AWS
def run_task(uri, runs_dir):
    """Runs this task's job of the list at `uri`; returns the launcher's exit status."""
    index = int(os.environ.get("AWS_BATCH_JOB_ARRAY_INDEX", 0))
    name, command = list(json.loads(read(uri)).items())[index]
    folder = uri.rpartition("/")[0]
    runs_dir = Path(runs_dir).resolve()
    download(f"{folder}/{name}", runs_dir)
    sent = {path: state(path) for path in runs_dir.rglob("*")}
    words = [sys.executable, "-m", "benchmark.launch", "--jobs", "1"]
    words += ["--name", f"{folder.rpartition('/')[2]}/{name}", "--runs-dir", str(runs_dir)]
    process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, text=True)
    # It lets the run save.
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    process.stdin.write(shlex.join(command) + "\n")
    process.stdin.close()
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(EVERY)
        try:
            upload(runs_dir, f"{folder}/{name}", sent)
        except SystemExit as error:  # the network may be back in a minute
            print(error, flush=True)
    upload(runs_dir, f"{folder}/{name}", sent)
    return process.returncode


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        usage = "python -m benchmark.launch.aws_batch s3://BUCKET/.../array-X.json [RUNS_DIR]"
        raise SystemExit(f"usage: {usage}")
    default = ROOT / "cleanrl_lite" / "runs"
    raise SystemExit(run_task(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else default))
