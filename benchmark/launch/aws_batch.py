"""Submits the launcher's jobs as an AWS Batch array job; used by `python -m benchmark.launch ... --aws-batch`.

On your machine, this submits the array, asks for its state and fetches its results. In a container on AWS, `python -m
benchmark.launch.aws_batch s3://BUCKET/PREFIX/NAME/array-X.json` runs one task: it takes its job from that list, downloads what
an earlier attempt left on S3, runs the launcher with this one job, and copies changed files to S3 every minute and at
the end. So a task may end at any time: when AWS reclaims an instance, the run gets SIGTERM and saves, and Batch starts
the task again on another one, where it resumes from its checkpoint.

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
        raise SystemExit('error: --aws-batch needs boto3: pip install -c constraints.txt -e ".[aws]"') from None
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


def download(uri, folder, wanted=lambda name: True):
    """Downloads the files below `uri` into a folder, except those already there with the same size and no older."""
    bucket, prefix = split(uri)
    page = {}
    while page == {} or page["IsTruncated"]:
        more = dict(ContinuationToken=page["NextContinuationToken"]) if page else {}
        page = aws("s3", "list_objects_v2", Bucket=bucket, Prefix=f"{prefix}/", **more)
        for there in page.get("Contents", []):
            path = Path(folder) / there["Key"].removeprefix(f"{prefix}/")
            if not wanted(path.name):
                continue
            here = path.stat() if path.is_file() else None
            if here and here.st_size == there["Size"] and here.st_mtime >= there["LastModified"].timestamp():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            aws("s3", "download_file", Bucket=bucket, Key=there["Key"], Filename=f"{path}.tmp")
            os.replace(f"{path}.tmp", path)


def state(path):
    with suppress(FileNotFoundError):  # deleted in the meantime
        return path.stat().st_size, path.stat().st_mtime_ns


def upload(folder, uri, sent):
    """Copies to `uri` the files below a folder that have changed since they were `sent`, {path: size and time}.

    Checkpoints come last, in the version from before the rest was copied: so the event files on S3 are never behind the
    checkpoint, and a run that resumes from it leaves no gap in its curves.
    """
    bucket, prefix = split(uri)
    with tempfile.TemporaryDirectory(dir=folder, suffix=".tmp") as links:  # in `folder`: links do not cross volumes
        sources = {}
        for number, path in enumerate(Path(folder).rglob("checkpoint.pt")):
            sources[path] = Path(links, str(number))
            os.link(path, sources[path])
        for path in sorted(Path(folder).rglob("*")):
            ours = path.suffix in (".tmp", ".lock") or path.name == "lock" or Path(links) in path.parents
            if path.is_file() and not ours:
                sources.setdefault(path, path)
        for path in sorted(sources, key=lambda path: path.name == "checkpoint.pt"):
            now = state(sources[path])
            if now and sent.get(path) != now:
                with suppress(FileNotFoundError):
                    key = f"{prefix}/{path.relative_to(folder)}"
                    aws("s3", "upload_file", Filename=str(sources[path]), Bucket=bucket, Key=key)
                    sent[path] = now


# === on your machine
def mebibytes(size):
    """8192 for "8G" or "8192M"."""
    number, unit = size[:-1], size[-1].upper()
    if not number.isdigit() or unit not in ("G", "M"):
        raise SystemExit(f"error: --mem takes a size such as 8G or 500M, got {size}")
    return int(number) * (1024 if unit == "G" else 1)


def seconds(limit):
    """5400 for "1:30:00", "90:00" or "90" (hours:minutes:seconds, minutes:seconds or minutes, as for sbatch)."""
    parts = limit.split(":")
    if len(parts) > 3 or not all(part.isdigit() for part in parts):
        raise SystemExit(f"error: --time takes a limit such as 1:30:00, or minutes, got {limit}")
    hours, minutes, rest = [0] * (len(parts) < 3) + [int(part) for part in parts] + [0] * (len(parts) < 2)
    return 3600 * hours + 60 * minutes + rest


def submit(manifest, waiting, args):
    """Submits the jobs in `waiting` as one array and records their tasks in the manifest."""
    if not waiting:
        return print("nothing to submit: all jobs are finished or in the queue")
    if args.max_parallel:
        raise SystemExit("error: --max-parallel is for Slurm. On AWS, set MaxvCpus of the compute environment")
    folder = f"{args.s3.rstrip('/')}/{args.name}"
    jobs_file = f"{folder}/array-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json"
    commands = {name: manifest.jobs[name]["command"] for name in waiting}
    commands = {
        name: command[: command.index("--runs-dir")] for name, command in commands.items()
    }  # tasks have their own
    needs = dict(VCPU=args.cpus, MEMORY=args.mem and mebibytes(args.mem), GPU=args.gpus)
    needs = [dict(type=name, value=str(value)) for name, value in needs.items() if value]
    words = dict(jobName=args.name, jobQueue=args.queue, jobDefinition=args.definition)
    words |= dict(containerOverrides=dict(command=["-m", "benchmark.launch.aws_batch", jobs_file], resourceRequirements=needs))
    words |= dict(timeout=dict(attemptDurationSeconds=seconds(args.time))) if args.time else {}
    words |= dict(arrayProperties=dict(size=len(waiting))) if len(waiting) > 1 else {}  # an array has at least two
    write(jobs_file, json.dumps(commands, indent=1) + "\n")
    job = aws("batch", "submit_job", **words)["jobId"]
    for index, name in enumerate(waiting):
        task = f"{job}:{index}" if len(waiting) > 1 else job
        manifest.jobs[name] |= dict(state="submitted", aws=dict(task=task, s3=f"{folder}/{name}"))
    manifest.save()
    print(f"submitted {len(waiting)} jobs as AWS Batch job {job}, from {jobs_file}")
    print("to see their progress: python -m benchmark.launch --status")


def tasks(manifest):
    """{name: job}, for submitted jobs that are not known to be finished."""
    return {name: job for name, job in manifest.jobs.items() if "aws" in job and job["state"] != "finished"}


def queue(submitted):
    """{task: its state}, for tasks in the queue."""
    ids, found = [job["aws"]["task"] for job in submitted.values()], {}
    for first in range(0, len(ids), 100):  # the limit of one call; tasks are forgotten a day after they end
        for job in aws("batch", "describe_jobs", jobs=ids[first : first + 100])["jobs"]:
            found[job["jobId"]] = job["status"]
    return {task: status for task, status in found.items() if status in IN_QUEUE}


def refresh(manifest):
    """Updates submitted jobs from the queue and from what their tasks wrote."""
    submitted = tasks(manifest)
    in_queue = queue(submitted) if submitted else {}
    for name, job in submitted.items():
        download(job["aws"]["s3"], manifest.path.parent, wanted=lambda file: file in (f"{name}.json", f"{name}.log"))
        path = manifest.path.with_suffix("") / f"{name}.json"
        wrote = json.loads(path.read_text())["jobs"].get(name, {}) if path.exists() else {}
        job |= {field: wrote[field] for field in wrote if field not in ("command", "state", "pid")}
        ended = wrote.get("state") if wrote.get("state") in ("finished", "failed") else "interrupted"
        job["state"] = in_queue.get(job["aws"]["task"], ended).lower()


def collect(manifest):
    """Downloads run directories, checkpoints included, and logs of all jobs from S3."""
    for job in manifest.jobs.values():
        if "aws" in job:
            download(job["aws"]["s3"], manifest.path.parent)


def cancel(manifest):
    submitted = tasks(manifest)
    ids = queue(submitted) if submitted else {}
    for task in ids:
        aws("batch", "terminate_job", jobId=task, reason="launch --cancel")
    print(f"cancelled {len(ids)} AWS Batch tasks")


# === on AWS
def run_task(uri, runs_dir):
    """Runs this task's job of the list at `uri`; returns the launcher's exit status."""
    name, command = list(json.loads(read(uri)).items())[int(os.environ.get("AWS_BATCH_JOB_ARRAY_INDEX", 0))]
    folder, runs_dir = uri.rpartition("/")[0], Path(runs_dir).resolve()
    download(f"{folder}/{name}", runs_dir)
    sent = {path: state(path) for path in runs_dir.rglob("*")}
    words = ["--jobs", "1", "--name", f"{folder.rpartition('/')[2]}/{name}", "--runs-dir", str(runs_dir)]
    words = [sys.executable, "-m", "benchmark.launch", *words]
    process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, text=True)
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))  # it lets the run save
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
        raise SystemExit("usage: python -m benchmark.launch.aws_batch s3://BUCKET/.../array-X.json [RUNS_DIR]")
    raise SystemExit(run_task(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ROOT / "cleanrl_lite" / "runs"))
