"""Runs scripts x environments x seeds on this machine, several at a time, until all are finished.

    python -m benchmark.launch ppo dqn --env-ids CartPole-v1 Acrobot-v1 --seeds 1-5
    python -m benchmark.launch sac --env-ids Hopper-v4 --seeds 1 2 --exp-name sac_bf16 -- --bf16
    RUN=cat benchmark/experiments/ppo.sh | python -m benchmark.launch --jobs 4
    python -m benchmark.launch --status            progress, from another terminal or a day later
    python -m benchmark.launch --log sac-Hopper-v4-1

    python -m benchmark.launch ppo --env-ids CartPole-v1 --slurm --partition cpu --time 1:00:00
    python -m benchmark.launch ppo --env-ids CartPole-v1 --aws-batch --s3 s3://BUCKET/PREFIX
    python -m benchmark.launch --collect           add finished runs to benchmark/results
    python -m benchmark.launch --cancel            cancel unfinished jobs on Slurm or AWS Batch

Everything after -- is passed to the scripts. If no script is named, commands are read from standard
input, one per line: `python cleanrl_lite/ppo.py --env-id CartPole-v1 --seed 1 ...`. The launcher
adds --runs-dir and --resume auto.

The same command again skips finished jobs, continues stopped ones and retries failed ones. A job
that crashes is tried twice; a job that is killed from outside continues. Pass --threads 1 to the
Atari scripts. Ctrl-C lets the running jobs save, then exits.

The manifest, NAME.json in --runs-dir, tracks each job: command, attempts, exit status, wall time,
run directory, machine, versions and commit. `python -m benchmark.publish.collect RUNS_DIR` turns
the runs into results.
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

from filelock import FileLock, Timeout

from benchmark.launch import aws_batch, slurm
from benchmark.shared import ROOT, commit, machine

CRASHES = 2  # how often a job may crash
KILLS = 20  # how often it may be killed from outside
PROGRESS = re.compile(r"step ([\d,]+) of ([\d,]+)")  # what a script prints every 10 s
RUN_DIR = re.compile(r"^run directory: (.+) \(\w+\)$", re.M)  # and once, at its start
IN_QUEUE = {*slurm.IN_QUEUE, *aws_batch.IN_QUEUE}
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


# === commands
def seeds(words):
    """[1, 2, 3, 7] of ["1-3", "7"]."""
    found = []
    for word in words:
        first, _, last = word.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def listed(args):
    """The commands, without `python`, for every script, environment and seed."""
    exp_name = ["--exp-name", args.exp_name] if args.exp_name else []
    for script, env_id, seed in itertools.product(args.scripts, args.env_ids, seeds(args.seeds)):
        which = ["--env-id", env_id, "--seed", str(seed)]
        yield [f"cleanrl_lite/{script}.py", *which, *exp_name, *args.flags]


def piped(lines, flags):
    """Commands from lines of text, split as a shell would."""
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
    """{name: command}, with the flags that every job gets.

    Exits with one line if a command cannot be a job.
    """
    found = {}
    for command in commands:
        script = Path(command[0])
        if script.suffix != ".py" or not (ROOT / script).is_file():
            raise SystemExit(f"error: there is no {script}: {shlex.join(command)}")
        parts = [
            value(command, "--exp-name", script.stem),
            value(command, "--env-id", ""),
            value(command, "--seed", ""),
        ]
        name = "-".join(filter(None, parts))
        name = re.sub("[/:]", "-", name)  # the name of a file
        if name in found:
            raise SystemExit(f"error: two jobs are named {name}. Tell them apart with --exp-name")
        found[name] = [*command, "--runs-dir", runs_dir, "--resume", "auto"]
    return found


# === jobs
class Manifest:
    """The jobs and their states, written to disk at every change."""

    def __init__(self, path):
        self.path = path
        self.file_lock = FileLock(path.with_suffix(".lock"), timeout=0)
        self.read()

    def read(self):
        self.jobs = json.loads(self.path.read_text())["jobs"] if self.path.exists() else {}

    def save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"saved": time.strftime("%FT%T%z"), "jobs": self.jobs}
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(self.path)

    def lock(self):
        """Only one launcher at a time may use it. The lock ends with the process."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.file_lock.acquire()
        except Timeout:
            advice = "See --status, or choose another --name"
            message = f"{self.path} is in use by another launcher. {advice}"
            raise SystemExit(f"error: {message}") from None
        self.read()  # another launcher may have written it since

    def refresh(self):
        """Updates submitted jobs from Slurm and AWS Batch."""
        slurm.refresh(self)
        aws_batch.refresh(self)

    def plan(self, commands):
        """Adds the jobs; returns those to run: new, changed, interrupted or failed ones."""
        self.refresh()
        for name, command in commands.items():
            job = self.jobs.get(name)
            if job and (in_queue(job) or runs_here(job)):
                if job["command"] != command:
                    advice = "End it first, or choose another --exp-name"
                    raise SystemExit(f"error: {name} is still at work with other flags. {advice}")
                continue
            if not job or job["command"] != command:
                job = {"command": command, "seconds": 0.0}
                # What is left of the old command: its log, and what its Slurm task wrote.
                log_path(self.path.parent, name).unlink(missing_ok=True)
                (self.path.with_suffix("") / f"{name}.json").unlink(missing_ok=True)
            if job.get("state") != "finished":
                job.update(state="waiting", crashes=0, kills=0)
                job.pop("slurm", None)
                job.pop("aws", None)
            self.jobs[name] = job
        return [name for name in commands if self.jobs[name]["state"] == "waiting"]


def submitted(job):
    return "slurm" in job or "aws" in job


def in_queue(job):
    return submitted(job) and job["state"].upper() in IN_QUEUE


def runs_here(job):
    return job["state"] == "running" and not submitted(job) and at_work(job)


def stamp(run_dir, here):
    """Writes machine.json, so that a run collected elsewhere keeps the machine it ran on."""
    path = Path(run_dir, "machine.json")
    if path.parent.is_dir() and not path.exists():
        path.write_text(json.dumps(here, indent=2) + "\n")


def log_path(runs_dir, name):
    return Path(runs_dir) / "logs" / f"{name}.log"


def fraction(runs_dir, name):
    """The finished part of a job, from the last progress line in its log."""
    try:
        with open(log_path(runs_dir, name), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 2000, 0))
            found = PROGRESS.findall(file.read().decode(errors="replace"))
    except OSError:
        return 0.0
    if not found:
        return 0.0
    step, total = (int(number.replace(",", "")) for number in found[-1])
    return step / total


def start(name, command, runs_dir):
    path = log_path(runs_dir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as log:
        return subprocess.Popen(
            [sys.executable, *command],
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, **ONE_THREAD},
            # A group of its own: Ctrl-C reaches the launcher only, which then stops the jobs.
            start_new_session=True,
        )


class StartedBefore:
    """A job that an earlier launcher started and that is still running.

    Its exit status cannot be known, so it is started once more when it ends: a finished run then
    says so.
    """

    def __init__(self, job):
        self.job = job
        self.returncode = -signal.SIGKILL

    def poll(self):
        return None if at_work(self.job) else self.returncode

    def send_signal(self, number):
        with suppress(ProcessLookupError):
            os.kill(self.job["pid"], number)


def at_work(job):
    """Whether its process is still running.

    By now the number may belong to another process, or to another machine.
    """
    try:
        os.kill(job["pid"], 0)
        if Path("/proc/self").exists():
            text = Path(f"/proc/{job['pid']}/cmdline").read_text()  # a zombie has none
            return text.split("\0")[1:-1] == job["command"]
        return True
    except OSError:
        return False


def ended(job, status, seconds, log):
    """Records how an attempt ended, and whether to try again."""
    text = log.read_text(errors="replace").strip()
    run_dirs = RUN_DIR.findall(text)
    job["seconds"] = round(job["seconds"] + seconds, 1)
    job["status"] = status
    job["last_line"] = text.rpartition("\n")[2][-300:]
    job["run_dir"] = run_dirs[-1] if run_dirs else None
    killed = status < 0 or status in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    if status == 0:
        job["state"] = "finished"
    elif killed:
        job["kills"] += 1
        job["state"] = "waiting" if job["kills"] < KILLS else "failed"
    else:
        job["crashes"] += 1
        job["state"] = "waiting" if job["crashes"] < CRASHES else "failed"


# === progress
def seconds_left(done, began, total):
    """Seconds left at the speed since `began`."""
    return (time.time() - began) * (total - done) / done if done > 0.001 else None


def progress(manifest, names, runs_dir):
    """How many jobs are done, fractions included; a failed job counts as done."""
    done = 0.0
    for name in names:
        over = manifest.jobs[name]["state"] in ("finished", "failed")
        done += 1.0 if over else fraction(runs_dir, name)
    return done


def status_line(manifest, names, running, runs_dir, began, done_before):
    states = [manifest.jobs[name]["state"] for name in names]
    done = progress(manifest, names, runs_dir)
    seconds = seconds_left(done - done_before, began, len(names) - done_before)
    parts = [f"{states.count('finished')} of {len(names)} finished", f"{len(running)} running"]
    if "failed" in states:
        parts.append(f"{states.count('failed')} failed")
    if seconds is not None:
        parts.append(f"{seconds / 60:.0f} min left")
    return ", ".join(parts)


def show(line, shown):
    """Prints the status line: on a terminal in place, elsewhere when a job has started or ended."""
    if sys.stdout.isatty():
        print(f"\r{line}\033[K", end="", flush=True)
    elif line.split(", ")[:2] != shown.split(", ")[:2]:
        print(line, flush=True)
    return line


# === the launcher
class Launcher:
    """Runs the jobs of a manifest, a few at a time."""

    def __init__(self, manifest, commands, args):
        self.manifest = manifest
        self.commands = commands
        self.args = args
        self.here = machine()
        self.signals = []
        self.running = {}  # name: (process, when it was started)

    def adopt(self):
        """Takes over the jobs that an earlier launcher left at work."""
        for name in self.commands:
            job = self.manifest.jobs[name]
            if job["state"] == "running" and not submitted(job):
                self.running[name] = StartedBefore(dict(job)), time.time()

    def start(self, name):
        process = start(name, self.commands[name], self.args.runs_dir)
        self.running[name] = process, time.time()
        self.manifest.jobs[name].update(
            state="running",
            pid=process.pid,
            began=time.strftime("%FT%T%z"),
            commit=commit(),
            **self.here,
        )
        self.manifest.save()

    def finish(self, name):
        """Records a job that has ended; returns whether to try it again."""
        process, since = self.running.pop(name)
        job = self.manifest.jobs[name]
        log = log_path(self.args.runs_dir, name)
        ended(job, process.returncode, time.time() - since, log)
        if job["run_dir"]:
            stamp(job["run_dir"], {**self.here, "commit": job["commit"]})
        self.manifest.save()
        status = f"exit status {process.returncode}, {job['seconds']:.0f} s"
        print(f"{name}: {job['state']}, {status}", flush=True)
        return job["state"] == "waiting"

    def handle_signals(self):
        for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
            if hasattr(signal, name):  # Windows has no SIGUSR1
                number = getattr(signal, name)
                signal.signal(number, lambda number, _: self.signals.append(number))

    def run(self, waiting):
        """Until all jobs have ended, or, after a signal, those that are running."""
        began = time.time()
        names = self.commands
        runs_dir = self.args.runs_dir
        done_before = progress(self.manifest, names, runs_dir)
        shown = ""
        stopping = False
        while self.running or (waiting and not self.signals):
            while waiting and len(self.running) < self.args.jobs and not self.signals:
                self.start(waiting.pop(0))
            time.sleep(0.2)
            if self.signals and not stopping:
                stopping = True
                for process, _ in self.running.values():
                    process.send_signal(signal.SIGTERM)  # they save and end
            for name, (process, _) in list(self.running.items()):
                if process.poll() is not None and self.finish(name):
                    waiting.append(name)
            if not self.signals:
                running = self.running
                line = status_line(self.manifest, names, running, runs_dir, began, done_before)
                shown = show(line, shown)


def run(commands, args):
    """Runs the commands' jobs; returns the exit status."""
    manifest = Manifest(Path(args.runs_dir) / f"{args.name}.json")
    manifest.lock()
    waiting = manifest.plan(commands)
    manifest.save()
    launcher = Launcher(manifest, commands, args)
    launcher.adopt()
    launcher.handle_signals()
    what = f"{len(commands)} jobs, {len(waiting)} to run, {args.jobs} at a time"
    print(f"{what}; manifest: {manifest.path}", flush=True)
    launcher.run(waiting)
    failed = [name for name in commands if manifest.jobs[name]["state"] == "failed"]
    for name in failed:
        print(f"{name}: {manifest.jobs[name]['last_line']}")
    stopped = launcher.signals
    if args.task and stopped and stopped[0] == signal.SIGUSR1 and slurm.task_id():
        slurm.slurm("scontrol", "requeue", slurm.task_id())  # it was the time limit
    return 130 if stopped else int(bool(failed))


def run_task(args):
    """Runs the job of this task of a Slurm array, with a manifest of its own."""
    manifest = Manifest(Path(args.runs_dir) / f"{args.name}.json")
    names = json.loads(Path(args.task).read_text())
    name = names[int(os.environ["SLURM_ARRAY_TASK_ID"])]
    args.name = f"{args.name}/{name}"
    args.jobs = 1
    return run({name: manifest.jobs[name]["command"]}, args)


def known(args):
    """The manifest of --name, which must have jobs."""
    manifest = Manifest(Path(args.runs_dir) / f"{args.name}.json")
    if not manifest.jobs:
        advice = "Choose another with --name and --runs-dir"
        raise SystemExit(f"error: there are no jobs in {manifest.path}. {advice}")
    return manifest


def show_status(args):
    """Prints a line per job. A running job without a process was interrupted."""
    manifest = known(args)
    manifest.refresh()
    for name, job in manifest.jobs.items():
        state = job["state"]
        if state == "running" and not submitted(job) and not at_work(job):
            state = "interrupted"
        part = 1.0 if state == "finished" else fraction(args.runs_dir, name)
        reason = f"  {job['last_line']}" if state == "failed" else ""
        print(f"{name:60} {state:12} {part:5.0%} {job['seconds']:8.0f} s{reason}")


# === the command line
def parser():
    made = argparse.ArgumentParser(
        prog="python -m benchmark.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "scripts",
        nargs="*",
        help="names of scripts, without .py (none: commands from standard input)",
    )
    add("--env-ids", nargs="+", default=[])
    add("--seeds", nargs="+", help="numbers and ranges (default: 1-5)")
    add("--exp-name", default="", help="the scripts' --exp-name")
    add(
        "--jobs",
        type=int,
        default=os.cpu_count(),
        help="jobs at a time (default: one per core)",
    )
    add("--runs-dir", default="runs/benchmark", help="folder for runs, logs and the manifest")
    add("--name", default="launch", help="name of the manifest")
    add("--status", action="store_true", help="show the progress of every job")
    add("--log", metavar="JOB", help="print a job's output")
    add("--collect", action="store_true", help="add finished runs in --runs-dir to the results")
    add("--cancel", action="store_true", help="cancel the submitted jobs")

    title = "Slurm: submit an array job instead of starting processes"
    add = made.add_argument_group(title).add_argument
    add("--slurm", action="store_true", help="submit the jobs as tasks of one array")
    add("--partition")
    add("--time", help="time limit of a task, as for sbatch; a job that needs more is requeued")
    add("--mem", help="memory of a task, such as 8G")
    add("--gpus", help="GPUs of a task")
    add("--cpus", type=int, default=1, help="CPUs of a task (default: 1)")
    add("--max-parallel", type=int, help="tasks at a time (default: Slurm's limits)")
    add(
        "--grace",
        type=int,
        default=120,
        help="seconds before the limit when a task saves and exits",
    )
    add(
        "--sbatch",
        action="append",
        default=[],
        metavar="FLAG",
        help="any other flag: --sbatch=--account=x",
    )
    add("--task", help=argparse.SUPPRESS)  # what a task of the array calls

    title = "AWS Batch: the same; --time, --mem, --gpus and --cpus as above"
    add = made.add_argument_group(title).add_argument
    add("--aws-batch", action="store_true", help="submit the jobs as tasks of one array")
    add(
        "--s3",
        metavar="s3://BUCKET/PREFIX",
        help="where the tasks store checkpoints and results",
    )
    add("--queue", default="cleanrl-lite", help="job queue")
    add("--definition", default="cleanrl-lite", help="job definition")
    return made


def parse(words):
    """The arguments, and the error of the parser for what comes later."""
    flags = []
    if "--" in words:
        at = words.index("--")
        words, flags = words[:at], words[at + 1 :]
    made = parser()
    args = made.parse_args(words)
    if args.jobs < 1:
        made.error(f"--jobs must be >= 1, got {args.jobs}")
    if not args.scripts and (args.seeds or args.exp_name):
        made.error("--seeds and --exp-name go with named scripts; piped commands have their own")
    args.seeds = args.seeds or ["1-5"]
    if not all(re.fullmatch(r"\d+(-\d+)?", word) for word in args.seeds):
        given = " ".join(args.seeds)
        made.error(f"--seeds takes numbers and ranges such as 1-5, got {given}")
    args.flags = flags
    args.runs_dir = str(Path(args.runs_dir).resolve())
    return args, made.error


def show_log(args):
    path = log_path(args.runs_dir, args.log)
    if not path.is_file():
        raise SystemExit(f"error: there is no {path}. --status lists the jobs")
    print(path.read_text(), end="")


def collect(args, manifest):
    aws_batch.collect(manifest)
    command = [sys.executable, "-m", "benchmark.publish.collect", args.runs_dir]
    subprocess.run(command, cwd=ROOT, check=True)


def cancel(manifest):
    manifest.refresh()
    slurm.cancel(manifest)
    aws_batch.cancel(manifest)


def launch(args, error, manifest):
    """Runs or submits the jobs that are named or piped."""
    nothing = not args.scripts and sys.stdin.isatty()
    if bool(args.scripts) != bool(args.env_ids) or nothing:
        error("name scripts and --env-ids, or pipe a list of commands")
    commands = listed(args) if args.scripts else piped(sys.stdin, args.flags)
    commands = jobs(commands, args.runs_dir)
    if args.aws_batch and not args.s3:
        error("--aws-batch needs --s3 s3://BUCKET/PREFIX")
    if args.slurm or args.aws_batch:
        manifest.lock()
        cluster = slurm if args.slurm else aws_batch
        cluster.submit(manifest, manifest.plan(commands), args)
        return 0
    return run(commands, args)


def main():
    args, error = parse(sys.argv[1:])
    manifest = Manifest(Path(args.runs_dir) / f"{args.name}.json")
    if args.status:
        show_status(args)
    elif args.log:
        show_log(args)
    elif args.task:
        raise SystemExit(run_task(args))
    elif args.collect:
        collect(args, manifest)
    elif args.cancel:
        cancel(known(args))
    else:
        raise SystemExit(launch(args, error, manifest))
