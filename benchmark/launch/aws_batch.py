"""A task of an AWS Batch array job: one command of the list s3://BUCKET/PREFIX/jobs.txt.

    python -m benchmark.launch.aws_batch s3://BUCKET/PREFIX

This runs in the container (docs/guides/cluster.md says how to submit it). It fetches what an
earlier attempt left in PREFIX/N/, runs the launcher with command N, and copies new files back
every minute and at the end. So AWS may take the instance at any time: the next attempt resumes
the run. It needs the AWS command line, which is in the image.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress

from benchmark.shared import ROOT

RUNS = ROOT / "cleanrl_lite" / "runs"
EVERY = 60  # seconds between copies to S3
OMIT = ["--exclude", ".checkpoints/*", "--exclude", "*.tmp", "--exclude", "*lock"]


def aws(*words, **options):
    """Runs `aws s3`; an error ends the task, and the next attempt begins with what is on S3."""
    command = ["aws", "s3", *words, "--only-show-errors"]
    return subprocess.run(command, check=True, text=True, **options)


def upload(folder, place):
    """Copies new files; checkpoints last, in their version from before the others were copied.

    So the event files on S3 are never behind the checkpoint, and a resumed run leaves no gap.
    """
    links = folder / ".checkpoints"
    for path in folder.glob("*/checkpoint.pt"):
        link = links / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        os.link(path, link)
    aws("sync", folder, place, *OMIT, "--exclude", "*checkpoint.pt")
    if links.exists():
        aws("sync", links, place)


def main(place, folder=RUNS):
    """Runs the task in `folder`; returns the launcher's exit status."""
    number = int(os.environ.get("AWS_BATCH_JOB_ARRAY_INDEX", 0)) + 1
    jobs = aws("cp", f"{place}/jobs.txt", "-", stdout=subprocess.PIPE).stdout
    place = f"{place}/{number}"
    aws("sync", place, folder)
    words = [sys.executable, "-m", "benchmark.launch", "--jobs", "1", "--line", str(number)]
    words += ["--runs-dir", folder]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, text=True)
    # AWS is about to take the instance: the run saves.
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    process.stdin.write(jobs)
    process.stdin.close()
    while process.poll() is None:
        try:
            process.wait(EVERY)
        except subprocess.TimeoutExpired:
            with suppress(subprocess.CalledProcessError):  # S3 may be back in a minute
                upload(folder, place)
    aws("cp", "--recursive", folder, place, *OMIT)  # all of it: sync compares sizes and seconds
    return process.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1].rstrip("/")))
