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
import sys
from contextlib import suppress
from pathlib import Path

from benchmark.shared import commit, machine
from cleanrl_lite.tools import jobs as runner
from cleanrl_lite.tools.jobs import find, seeds

RUN_DIR = re.compile(r"^run directory: (.+) \(\w+(?::\d+)?\)$", re.M)  # in a log, at a run's start


# === commands
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
            Path(value(command, "--runs-dir", "")).name,  # of study --print-jobs
        ]
        name = re.sub("[/:]", "-", "-".join(filter(None, parts)))
        if name in found:
            raise SystemExit(f"error: two jobs are named {name}. Tell them apart with --exp-name")
        found[name] = Job(name, command, Path(runs_dir))
    return found


# === a job
class Job(runner.Job):
    """A command with a name, and its record: how it ended last."""

    def __init__(self, name, command, runs_dir):
        self.name = name
        self.command = command
        self.runs_dir = Path(value(command, "--runs-dir", runs_dir)).resolve()
        words = [find(command[0]), *command[1:]]
        words += ["--runs-dir", self.runs_dir, "--resume", "auto"]
        super().__init__(words, runs_dir.resolve() / "logs" / f"{name}.log")
        self.record = self.log.with_suffix(".json")

    def read(self):
        """The status and the run directory. {} before the command ended."""
        with suppress(OSError):
            record = json.loads(self.record.read_text())
            if record["command"] == self.command:
                return record
        return {}

    def finished(self):
        record = self.read()
        return record.get("status") == 0 and (self.runs_dir / record["run_dir"]).is_dir()

    def start(self):
        self.commit = commit()
        return super().start()

    def end(self, here):
        """Records how the process ended, and on which machine."""
        with open(self.log, errors="replace") as log:
            log.seek(self.size)
            run_dirs = RUN_DIR.findall(log.read())
        run_dir = Path(run_dirs[-1]) if run_dirs else self.log.parent
        stamp = run_dir / "machine.json"
        if run_dirs and not stamp.exists():
            stamp.write_text(json.dumps({**here, "commit": self.commit}, indent=2) + "\n")
        record = {"command": self.command, "status": self.status, "run_dir": run_dir.name}
        self.record.write_text(json.dumps(record, indent=1) + "\n")

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


def run(todo, at_once):
    """Runs the jobs; returns the exit status."""
    here = machine() if todo else {}
    for job, what in runner.run(todo, at_once):
        if job:
            if job.status is not None:
                job.end(here)
            count = sum(job.status == 0 for job in todo)
            print(f"{job.name}: {what} ({count} of {len(todo)} finished)", flush=True)
    unfinished = [job for job in todo if job.status != 0]
    for job in unfinished:
        print(f"not finished: {job.name}: {job.last_line()} (see {job.log})")
    return int(bool(unfinished))


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
    if not args.scripts and (args.seeds or args.exp_name):
        parser.error("--seeds and --exp-name go with named scripts; piped commands have their own")
    args.seeds = args.seeds or ["1-5"]
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
    return run(todo, args.jobs)
