"""Runs a list of commands, several at a time: finished jobs are skipped, interrupted ones resumed.

    python -m benchmark.launch ppo my_copy.py --env-ids CartPole-v1 Acrobot-v1 --seeds 1-5 --jobs 4
    python -m benchmark.launch sac --env-ids Hopper-v4 --exp-name sac_bf16 -- --bf16
    RUN=cat benchmark/experiments/ppo.sh | python -m benchmark.launch --jobs 4
    ... --status                   how far each job is, also from another terminal
    ... --list > jobs.txt          do not run: print what is left to do, one command per line
    ... --line 3 < jobs.txt        run the third command only: a task of a cluster's array job

Everything after -- is passed to the scripts. A script is searched for in the current folder, then
among those of this repository. Without scripts, the commands come from standard input, such as
`python cleanrl_lite/ppo.py --env-id CartPole-v1 --seed 1`. The launcher adds --runs-dir and
--resume auto, so the same command again continues what was stopped, killed or failed. Ctrl-C lets
the running jobs save.

RUNS_DIR/logs has each job's output (JOB.log) and how it ended (JOB.json). A run directory gets a
machine.json: hardware, versions and commit, for `python -m benchmark.publish.collect RUNS_DIR`.
"""

import argparse
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from benchmark.shared import ROOT, commit, machine

with suppress(ImportError):  # Windows has no locks that a process inherits
    import fcntl

PROGRESS = re.compile(r"\| (\d+)/(\d+) \[")  # of a script's bar, which a log gets every 10 s
RUN_DIR = re.compile(r"^run directory: (.+) \(\w+(?::\d+)?\)$", re.M)  # and once, at its start
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


# === commands
def find(script):
    """The path of a script, with or without .py: in the current folder, or one of ours."""
    name = f"{script.removesuffix('.py')}.py"
    for folder in (Path(), Path("cleanrl_lite"), ROOT, ROOT / "cleanrl_lite"):
        if (folder / name).is_file():
            return folder / name
    raise SystemExit(f"error: there is no {name}, neither here nor in {ROOT / 'cleanrl_lite'}")


def seeds(words):
    """[1, 2, 3, 7] of ["1-3", "7"]."""
    found = []
    for word in words:
        first, _, last = word.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def named(args, flags):
    """The commands, without `python`, of every script, environment and seed."""
    exp_name = ["--exp-name", args.exp_name] if args.exp_name else []
    for script, env_id, seed in itertools.product(args.scripts, args.env_ids, seeds(args.seeds)):
        yield [str(find(script)), "--env-id", env_id, "--seed", str(seed), *exp_name, *flags]


def piped(lines, flags):
    """The same of lines of text, split as a shell would."""
    for line in lines:
        words = shlex.split(line, comments=True)
        if words and re.fullmatch(r"python[\d.]*", words[0]):
            words = words[1:]
        if words:
            yield [*words, *flags]


def value(command, name, default):
    """The value of a flag, --name value or --name=value; the last one counts, as in the scripts."""
    found = default
    for word, following in zip(command, [*command[1:], default], strict=True):
        if word == name:
            found = following
        elif word.startswith(f"{name}="):
            found = word.removeprefix(f"{name}=")
    return found


def jobs(commands, runs_dir):
    """{name: Job}; exits with one line if a command cannot be a job."""
    found = {}
    for command in commands:
        parts = [
            value(command, "--exp-name", find(command[0]).stem),
            value(command, "--env-id", ""),
            value(command, "--seed", ""),
        ]
        name = re.sub("[/:]", "-", "-".join(filter(None, parts)))
        if name in found:
            raise SystemExit(f"error: two jobs are named {name}. Tell them apart with --exp-name")
        found[name] = Job(name, command, Path(runs_dir))
    return found


# === a job
class Job:
    """A command, its log and its record."""

    def __init__(self, name, command, runs_dir):
        self.name = name
        self.command = command
        self.runs_dir = runs_dir.resolve()
        self.log = self.runs_dir / "logs" / f"{name}.log"
        self.record = self.log.with_suffix(".json")

    def read(self):
        """How the command ended last: its status and run directory. {} before that."""
        with suppress(OSError):
            record = json.loads(self.record.read_text())
            if record["command"] == self.command:
                return record
        return {}

    def finished(self):
        record = self.read()
        return record.get("status") == 0 and (self.runs_dir / record["run_dir"]).is_dir()

    def output(self):
        """The end of the log."""
        return self.log.read_text(errors="replace")[-10_000:] if self.log.exists() else ""

    def last_line(self):
        return self.output().strip().rpartition("\n")[2][-300:]

    def open_log(self):
        """The log, locked, or None while the job is running.

        Its process inherits the lock, and keeps it if the launcher is killed.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        log = open(self.log, "a")  # noqa: SIM115
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return log.close()
        except (NameError, OSError):  # no such locks here: the run directory has one of its own
            pass
        return log

    def start(self):
        """Starts the process; returns False if it is running already."""
        log = self.open_log()
        if not log:
            return False
        with log:
            self.size = self.log.stat().st_size  # of what earlier attempts wrote
            self.commit = commit()
            words = [find(self.command[0]), *self.command[1:]]
            self.process = subprocess.Popen(
                [sys.executable, *words, "--runs-dir", self.runs_dir, "--resume", "auto"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **ONE_THREAD},
                # Ctrl-C reaches the launcher only, which stops the jobs.
                start_new_session=True,
            )
        return True

    def end(self, here):
        """Records how the process ended, and on which machine."""
        with open(self.log, errors="replace") as log:
            log.seek(self.size)
            run_dirs = RUN_DIR.findall(log.read())
        run_dir = Path(run_dirs[-1]) if run_dirs else self.log.parent
        stamp = run_dir / "machine.json"
        if run_dirs and not stamp.exists():
            stamp.write_text(json.dumps({**here, "commit": self.commit}, indent=2) + "\n")
        status = self.process.returncode
        record = {"command": self.command, "status": status, "run_dir": run_dir.name}
        self.record.write_text(json.dumps(record, indent=1) + "\n")
        return status

    def part(self):
        """The finished part, by the last line of progress in the log."""
        found = PROGRESS.findall(self.output())
        step, total = found[-1] if found else (0, 1)
        return int(step) / int(total)

    def state(self):
        """finished, running, failed, stopped, or waiting."""
        if not self.log.exists():
            return "waiting"
        log = self.open_log()
        if not log:
            return "running"
        log.close()
        if self.finished():
            return "finished"
        return "failed" if 0 < self.read().get("status", 0) < 128 else "stopped"


# === the launcher
class Launcher:
    """Starts jobs, a few at a time, until all have ended or a signal comes."""

    def __init__(self, todo, args, finished):
        self.todo = todo
        self.args = args
        self.finished = finished  # how many
        self.running = []
        self.unfinished = []  # jobs that have failed or were stopped
        self.stopped = False

    def stop(self, *_):
        self.stopped = True
        for job in self.running:
            job.process.terminate()  # it saves and ends

    def tell(self, job, what):
        line = f"{self.finished} finished, {len(self.running)} running, {len(self.todo)} to do"
        print(f"{job.name}: {what} ({line})", flush=True)

    def start(self, job):
        if job.start():
            self.running.append(job)
            self.tell(job, "started")
            if self.stopped:  # meanwhile
                job.process.terminate()
        else:
            self.unfinished.append(job)
            self.tell(job, "is running already, left alone")

    def end(self, job, here):
        self.running.remove(job)
        status = job.end(here)
        if status == 0:
            self.finished += 1
            self.tell(job, "finished")
        else:
            self.unfinished.append(job)
            self.tell(job, f"exit status {status}")

    def run(self):
        """The exit status."""
        for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
            if hasattr(signal, name):  # Windows has no SIGUSR1
                signal.signal(getattr(signal, name), self.stop)
        here = machine() if self.todo else {}
        while self.running or (self.todo and not self.stopped):
            while self.todo and len(self.running) < self.args.jobs and not self.stopped:
                self.start(self.todo.pop(0))
            time.sleep(0.2)
            for job in list(self.running):
                if job.process.poll() is not None:
                    self.end(job, here)
        if self.stopped:
            return 130
        for job in self.unfinished:
            print(f"not finished: {job.name}: {job.last_line()} (see {job.log})")
        return int(bool(self.unfinished))


# === the command line
def parse(words):
    """The arguments, the flags for the scripts, and the commands."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("scripts", nargs="*", help="scripts (none: commands from standard input)")
    add("--env-ids", nargs="+", default=[])
    add("--seeds", nargs="+", help="numbers and ranges (default: 1-5)")
    add("--exp-name", default="", help="the scripts' --exp-name")
    add("--jobs", type=int, default=os.cpu_count(), help="jobs at a time (default: the cores)")
    add("--runs-dir", default="runs/benchmark", help="folder for runs and logs")
    add("--status", action="store_true", help="show how far each job is")
    add("--list", action="store_true", help="print the commands that are not finished")
    add("--line", type=int, metavar="N", help="run only the N-th command, counted from 1")
    at = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:at])
    flags = words[at + 1 :]
    if args.jobs < 1:
        parser.error(f"--jobs must be >= 1, got {args.jobs}")
    if not args.scripts and (args.seeds or args.exp_name):
        parser.error("--seeds and --exp-name go with named scripts; piped commands have their own")
    args.seeds = args.seeds or ["1-5"]
    if not all(re.fullmatch(r"\d+(-\d+)?", word) for word in args.seeds):
        parser.error(f"--seeds takes numbers and ranges such as 1-5, got {' '.join(args.seeds)}")
    if bool(args.scripts) != bool(args.env_ids) or (not args.scripts and sys.stdin.isatty()):
        parser.error("name scripts and --env-ids, or pipe a list of commands")
    commands = list(named(args, flags) if args.scripts else piped(sys.stdin, flags))
    if args.line and not 1 <= args.line <= len(commands):
        parser.error(f"--line must be from 1 to {len(commands)}, got {args.line}")
    return args, commands


def main():
    args, commands = parse(sys.argv[1:])
    found = list(jobs(commands, args.runs_dir).values())
    if args.line:
        found = found[args.line - 1 :][:1]
    if args.status:
        for job in found:
            state = job.state()
            reason = job.last_line() if state in ("failed", "stopped") else ""
            print(f"{job.name:60} {state:9} {job.part():5.0%}  {reason}".rstrip())
        return 0
    todo = [job for job in found if not job.finished()]
    if args.list:
        for job in todo:
            print(shlex.join(["python", *job.command]))
        return 0
    print(f"{len(found)} jobs, {len(found) - len(todo)} finished before", flush=True)
    return Launcher(todo, args, len(found) - len(todo)).run()
