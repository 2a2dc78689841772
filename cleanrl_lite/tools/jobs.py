"""Runs commands of scripts, a few at a time; benchmark.launch and study are made of it."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from cleanrl_lite.tools.runs import SCRIPTS, refuse

PROGRESS = re.compile(r"\| (\d+)/(\d+) \[")  # of a script's bar, which a log gets every 10 s
OVER = "its time is over\n"  # the last line of a job's log, where it was
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


def find(script):
    """The path of a script, with or without .py: in the current folder, or one of ours."""
    name = f"{script.removesuffix('.py')}.py"
    for folder in (Path(), Path("cleanrl_lite"), SCRIPTS.parent, SCRIPTS):
        if (folder / name).is_file():
            return folder / name
    refuse(f"there is no {name}, neither here nor in {SCRIPTS}")


def seeds(words):
    """[1, 2, 3, 7] of ["1-3", "7"]."""
    found = set()
    for word in words:
        first, _, last = word.partition("-")
        if not re.fullmatch(r"\d+(-\d+)?", word) or int(last or first) < int(first):
            refuse(f"seeds are numbers and ranges such as 1-5, not {word}")
        found.update(range(int(first), int(last or first) + 1))
    return sorted(found)


class Job:
    """A command, and the log of what it prints; `status` is None until it has ended.

    After so many `seconds` it gets SIGTERM, also where this process has ended.
    """

    def __init__(self, words, log, seconds=None):
        self.limit = ["timeout", "--foreground", str(seconds)] if seconds else []
        self.words = [str(word) for word in words]  # those behind `python`
        self.log = log
        self.status = None

    def start(self):
        """Starts the process; returns False if it is running already."""
        log = self.open_log()
        if not log:
            return False
        with log:
            self.size = self.log.stat().st_size  # of what earlier attempts wrote
            self.process = subprocess.Popen(
                [*self.limit, sys.executable, *self.words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **ONE_THREAD},
                # Ctrl-C reaches this process only, which stops the jobs.
                start_new_session=True,
            )
        return True

    def open_log(self):
        """The log, locked, or None while the job is running.

        Its process inherits the lock, and keeps it if this one is killed.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        log = open(self.log, "a")  # noqa: SIM115
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return log.close()
        except OSError:  # no such locks here: the run directory has one of its own
            pass
        return log

    def output(self):
        """The end of the log."""
        return self.log.read_text(errors="replace")[-10_000:] if self.log.exists() else ""

    def last_line(self):
        text = self.output().strip()
        if text.endswith("╯"):  # tyro's frame, whose first line says what is wrong
            text = text.rpartition("╮\n")[2].partition("\n")[0].strip("│ ")
        return text.rpartition("\n")[2][-300:]

    def part(self):
        """The finished part, by the last line of progress in the log."""
        step, total = [("0", "1"), *PROGRESS.findall(self.output())][-1]
        return int(step) / int(total)


def run(jobs, at_once):
    """Runs all; yields (job, what happened), and (None, "") five times a second.

    After a signal, the running ones save and end; then the program ends with exit status 130.
    """
    if at_once < 1:
        refuse(f"--jobs must be at least 1, got {at_once}")
    todo, running, received = list(jobs), [], []

    def stop(number, _):
        received.append(number)
        for job in running:
            job.process.terminate()  # it saves and ends

    names = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1
    before = {name: signal.signal(name, stop) for name in names}
    while running or (todo and not received):
        while todo and len(running) < at_once and not received:
            job = todo.pop(0)
            if job.start():
                running.append(job)
                yield job, "started"
                if received:  # meanwhile
                    job.process.terminate()
            else:
                yield job, "is running already, left alone"
        time.sleep(0.2)
        yield None, ""
        for job in [job for job in running if job.process.poll() is not None]:
            running.remove(job)
            job.status = job.process.returncode
            if job.limit and job.status == 124:
                with open(job.log, "a") as log:
                    log.write(OVER)
            yield job, f"exit status {job.status}" if job.status else "finished"
    for name, handler in before.items():
        signal.signal(name, handler)
    if received:
        raise SystemExit(130)
