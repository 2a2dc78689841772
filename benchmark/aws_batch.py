"""The launcher's jobs as an array job of AWS Batch; `python -m benchmark.launch ... --aws-batch` uses it.

Here: submits the array, asks how it is, brings back what it made. There, in a container of the image: `python -m
benchmark.aws_batch s3://BUCKET/PREFIX/NAME/array-X.json` is one task. It takes its job from that list, gets from S3
what an earlier attempt has left, runs the launcher with this one job, and copies what changes to S3, every minute and
at the end. So a task may end at any moment: an instance that AWS takes back sends SIGTERM, the run saves, and Batch
starts the task again elsewhere, where it goes on from its checkpoint.

On S3 each job has a folder of its own, PREFIX/NAME/JOB/, with the files that Slurm's tasks put below --runs-dir.
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

ROOT = Path(__file__).resolve().parent.parent
IN_QUEUE = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")
EVERY = 60  # seconds between copies to S3


@cache
def client(service):
    import boto3

    return boto3.client(service)


def aws(service, call, **words):
    """The answer to a call of an AWS service; what it says against it ends the program in one line."""
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
    """Brings what is below `uri` into a folder, except for what is there already, of the same size and no older."""
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
    with suppress(FileNotFoundError):  # gone by now
        return path.stat().st_size, path.stat().st_mtime_ns


def upload(folder, uri, sent):
    """Copies to `uri` what has changed below a folder since it was `sent`, {path: its size and time}.

    Checkpoints come last, and as they were before the rest: then the event files on S3 reach at least as far as the
    checkpoint there, and a resumed run, which cuts off what is later than its checkpoint, leaves no gap in them.
    """
    bucket, prefix = split(uri)
    with tempfile.TemporaryDirectory(dir=folder, suffix=".tmp") as links:  # links: a volume is another file system
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


# === here
def mebibytes(size):
    """8192 of "8G" or "8192M"."""
    number, unit = size[:-1], size[-1].upper()
    if not number.isdigit() or unit not in ("G", "M"):
        raise SystemExit(f"error: --mem {size}: such as 8G or 500M")
    return int(number) * (1024 if unit == "G" else 1)


def seconds(limit):
    """5400 of "1:30:00", "90:00" or "90", as sbatch reads them: hours:minutes:seconds, minutes:seconds, minutes."""
    parts = limit.split(":")
    if len(parts) > 3 or not all(part.isdigit() for part in parts):
        raise SystemExit(f"error: --time {limit}: such as 1:30:00, or minutes")
    hours, minutes, rest = [0] * (len(parts) < 3) + [int(part) for part in parts] + [0] * (len(parts) < 2)
    return 3600 * hours + 60 * minutes + rest


def submit(manifest, waiting, args):
    """Submits the jobs in `waiting` as one array and notes their tasks in the manifest."""
    if not waiting:
        return print("nothing to submit: all are finished, or in the queue")
    if args.max_parallel:
        raise SystemExit("error: --max-parallel is Slurm's; here the compute environment's MaxvCpus is the limit")
    folder = f"{args.s3.rstrip('/')}/{args.name}"
    jobs_file = f"{folder}/array-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json"
    commands = {name: manifest.jobs[name]["command"] for name in waiting}
    commands = {name: command[: command.index("--runs-dir")] for name, command in commands.items()}  # there: its own
    needs = dict(VCPU=args.cpus, MEMORY=args.mem and mebibytes(args.mem), GPU=args.gpus)
    needs = [dict(type=name, value=str(value)) for name, value in needs.items() if value]
    words = dict(jobName=args.name, jobQueue=args.queue, jobDefinition=args.definition)
    words |= dict(containerOverrides=dict(command=["-m", "benchmark.aws_batch", jobs_file], resourceRequirements=needs))
    words |= dict(timeout=dict(attemptDurationSeconds=seconds(args.time))) if args.time else {}
    words |= dict(arrayProperties=dict(size=len(waiting))) if len(waiting) > 1 else {}  # an array has at least two
    write(jobs_file, json.dumps(commands, indent=1) + "\n")
    job = aws("batch", "submit_job", **words)["jobId"]
    for index, name in enumerate(waiting):
        task = f"{job}:{index}" if len(waiting) > 1 else job
        manifest.jobs[name] |= dict(state="submitted", aws=dict(task=task, s3=f"{folder}/{name}"))
    manifest.save()
    print(f"{len(waiting)} jobs are job {job} of AWS Batch, from {jobs_file}")
    print("python -m benchmark.launch --status tells more")


def tasks(manifest):
    """{name: job} of those that were submitted and are not known to be finished."""
    return {name: job for name, job in manifest.jobs.items() if "aws" in job and job["state"] != "finished"}


def queue(submitted):
    """{task: its state} of those tasks that Batch has not ended."""
    ids, found = [job["aws"]["task"] for job in submitted.values()], {}
    for first in range(0, len(ids), 100):  # it answers no more at a time, and forgets tasks that ended a day ago
        for job in aws("batch", "describe_jobs", jobs=ids[first : first + 100])["jobs"]:
            found[job["jobId"]] = job["status"]
    return {task: status for task, status in found.items() if status in IN_QUEUE}


def refresh(manifest):
    """Brings the jobs that were submitted up to date: from the queue, and from what their tasks have written."""
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
    """Brings back all that the manifest's jobs have left on S3: run directories with checkpoints, and logs."""
    for job in manifest.jobs.values():
        if "aws" in job:
            download(job["aws"]["s3"], manifest.path.parent)


def cancel(manifest):
    submitted = tasks(manifest)
    ids = queue(submitted) if submitted else {}
    for task in ids:
        aws("batch", "terminate_job", jobId=task, reason="launch --cancel")
    print(f"{len(ids)} tasks of AWS Batch cancelled")


# === there
def run_task(uri, runs_dir):
    """One job of the list at `uri`, that of this task; returns the launcher's exit status."""
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
        raise SystemExit("usage: python -m benchmark.aws_batch s3://BUCKET/.../array-X.json [RUNS_DIR]")
    raise SystemExit(run_task(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ROOT / "cleanrl_lite" / "runs"))
