"""Runs scripts x environments x seeds on this machine, several at a time, until all are finished.

    python -m benchmark.launch ppo dqn --env-ids CartPole-v1 Acrobot-v1 --seeds 1-5
    python -m benchmark.launch sac --env-ids Hopper-v4 --seeds 1 2 --exp-name sac_bf16 --jobs 2 -- --bf16
    RUN=cat benchmark/experiments/ppo.sh | python -m benchmark.launch --jobs 4
    python -m benchmark.launch --status            progress, from another terminal or a day later
    python -m benchmark.launch --log sac-Hopper-v4-1

    python -m benchmark.launch ppo --env-ids CartPole-v1 --slurm --partition cpu --time 1:00:00 --mem 4G
    python -m benchmark.launch ppo --env-ids CartPole-v1 --aws-batch --s3 s3://BUCKET/PREFIX
    python -m benchmark.launch --collect           add the finished runs in --runs-dir to benchmark/results
    python -m benchmark.launch --cancel            cancel unfinished jobs on Slurm or AWS Batch

Everything after -- is passed to the scripts. If no script is named, commands are read from standard input, one per
line: `python cleanrl_lite/ppo.py --env-id CartPole-v1 --seed 1 ...`. The launcher adds --runs-dir and --resume auto.

The same command again skips finished jobs, continues stopped ones and retries failed ones. A job that crashes is tried
twice; a job that is killed from outside continues. Pass --threads 1 to the Atari scripts. Ctrl-C lets the
running jobs save, then exits.

The manifest, NAME.json in --runs-dir, tracks each job: command, attempts, exit status, wall time, run directory,
machine, versions and commit. `python -m benchmark.publish.collect RUNS_DIR` turns the runs into results.
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

from benchmark.launch import aws_batch, slurm
from benchmark.shared import ROOT, commit, machine

CRASHES, KILLS = 2, 20  # how often a job may crash, and how often it may be killed from outside
PROGRESS = re.compile(r"step ([\d,]+) of ([\d,]+)")  # what a script prints every 10 s
RUN_DIR = re.compile(r"^run directory: (.+)$", re.M)  # and once, at its start


def seeds(words):
    """[1, 2, 3, 7] of ["1-3", "7"]."""
    ranges = [[int(number) for number in word.split("-")] for word in words]
    return [seed for ends in ranges for seed in range(ends[0], ends[-1] + 1)]


def listed(args):
    """The commands, without `python`, for every script, environment and seed."""
    for script, env_id, seed in itertools.product(args.scripts, args.env_ids, seeds(args.seeds)):
        exp_name = ["--exp-name", args.exp_name] if args.exp_name else []
        yield [f"cleanrl_lite/{script}.py", "--env-id", env_id, "--seed", str(seed), *exp_name, *args.flags]


def piped(lines, flags):
    """Commands from lines of text, split as a shell would."""
    for words in filter(None, (shlex.split(line, comments=True) for line in lines)):
        yield [*words[bool(re.fullmatch(r"python[\d.]*", words[0])) :], *flags]


def value(command, name, default):
    """The value of a flag given as two words, --name value."""
    return command[command.index(name) + 1] if name in command[:-1] else default


def jobs(commands, runs_dir):
    """{name: command}, with the flags that every job gets; exits with one line if a command cannot be a job."""
    found = {}
    for command in commands:
        script = Path(command[0])
        if script.suffix != ".py" or not (ROOT / script).is_file():
            raise SystemExit(f"error: there is no {script}: {shlex.join(command)}")
        given = (value(command, flag, "") for flag in ("--env-id", "--seed"))
        name = "-".join([value(command, "--exp-name", script.stem), *filter(None, given)])
        name = name.replace("/", "-").replace(":", "-")  # the name of a file
        if name in found:
            raise SystemExit(f"error: two jobs are named {name}. Tell them apart with --exp-name")
        found[name] = [*command, "--runs-dir", runs_dir, "--resume", "auto"]
    return found


class Manifest:
    """The jobs and their states, written to disk at every change."""

    def __init__(self, path):
        self.path = path
        self.jobs = json.loads(path.read_text())["jobs"] if path.exists() else {}

    def save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dict(saved=time.strftime("%FT%T%z"), jobs=self.jobs), indent=1)
        self.path.with_suffix(".tmp").write_text(text + "\n")
        os.replace(self.path.with_suffix(".tmp"), self.path)

    def lock(self):
        """Only one launcher at a time may use it. The lock ends with the process."""
        with suppress(ImportError):  # not on Windows
            import fcntl

            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(self.path.with_suffix(".lock"), "w")
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"{self.path} is in use by another launcher. See --status, or choose another --name"
                raise SystemExit(f"error: {message}") from None
            self.__init__(self.path)  # another launcher may have written it since

    def refresh(self):
        """Updates submitted jobs from Slurm and AWS Batch."""
        slurm.refresh(self)
        aws_batch.refresh(self)

    def plan(self, commands):
        """Adds the jobs; returns those to run: new, changed, interrupted or failed ones."""
        self.refresh()
        for name, command in commands.items():
            job = self.jobs.get(name)
            in_queue = job and submitted(job) and job["state"].upper() in slurm.IN_QUEUE + aws_batch.IN_QUEUE
            if in_queue or (job and job["state"] == "running" and not submitted(job) and at_work(job)):
                if job["command"] != command:
                    reason = "is still at work with other flags. End it first, or choose another --exp-name"
                    raise SystemExit(f"error: {name} {reason}")
                continue
            if not job or job["command"] != command:
                job = dict(command=command, seconds=0.0)
                log_path(self.path.parent, name).unlink(missing_ok=True)  # of the old command
            if job.get("state") != "finished":
                job |= dict(state="waiting", crashes=0, kills=0)
                job.pop("slurm", None)
                job.pop("aws", None)
            self.jobs[name] = job
        return [name for name in commands if self.jobs[name]["state"] == "waiting"]


def submitted(job):
    return "slurm" in job or "aws" in job


def stamp(run_dir, here):
    """Writes machine.json, so that a run collected elsewhere keeps the machine that it ran on."""
    path = Path(run_dir, "machine.json")
    if path.parent.is_dir() and not path.exists():
        path.write_text(json.dumps(here, indent=2) + "\n")


def log_path(runs_dir, name):
    return Path(runs_dir) / "logs" / f"{name}.log"


def fraction(runs_dir, name):
    """The finished part of a job, from the last progress line in its log."""
    try:
        with open(log_path(runs_dir, name), "rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 2000, 0))
            steps = PROGRESS.findall(file.read().decode(errors="replace"))
    except OSError:
        return 0.0
    return int(steps[-1][0].replace(",", "")) / int(steps[-1][1].replace(",", "")) if steps else 0.0


def start(name, command, runs_dir):
    path = log_path(runs_dir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    one_thread = dict(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1", PYTHONUNBUFFERED="1")
    with open(path, "a") as log:  # a group of its own: Ctrl-C reaches the launcher only, which then stops the jobs
        streams = dict(stdout=log, stderr=log, cwd=ROOT, env=os.environ | one_thread, start_new_session=True)
        return subprocess.Popen([sys.executable, *command], **streams)


class Adopted:
    """A job that an earlier launcher started and that is still running. Its exit status cannot be known, so it is
    started once more when it ends: a finished run then says so."""

    def __init__(self, job):
        self.job, self.returncode = job, -signal.SIGKILL

    def poll(self):
        return None if at_work(self.job) else self.returncode

    def send_signal(self, number):
        with suppress(ProcessLookupError):
            os.kill(self.job["pid"], number)


def at_work(job):
    """Whether its process is still running. By now the number may belong to another process, or to another machine."""
    try:
        os.kill(job["pid"], 0)
        if Path("/proc/self").exists():
            words = Path(f"/proc/{job['pid']}/cmdline").read_text().split("\0")  # a zombie has none
            return words[1:-1] == job["command"]
        return True
    except OSError:
        return False


def ended(job, status, seconds, log):
    """Records how an attempt ended, and whether to try again."""
    job["seconds"] = round(job["seconds"] + seconds, 1)
    job["status"] = status
    text = log.read_text(errors="replace").strip()
    job["last_line"] = text.rpartition("\n")[2][-300:]
    job["run_dir"] = (RUN_DIR.findall(text) or [None])[-1]
    killed = status < 0 or status in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    if status == 0:
        job["state"] = "finished"
    elif killed:
        job["kills"] += 1
        job["state"] = "waiting" if job["kills"] < KILLS else "failed"
    else:
        job["crashes"] += 1
        job["state"] = "waiting" if job["crashes"] < CRASHES else "failed"


def left(done, began, total):
    """Seconds left at the speed since `began`."""
    return (time.time() - began) * (total - done) / done if done > 0.001 else None


def progress(manifest, names, runs_dir):
    """How many jobs are done, fractions included; a failed job counts as done."""
    ended = [manifest.jobs[name]["state"] in ("finished", "failed") for name in names]
    return sum(1.0 if end else fraction(runs_dir, name) for end, name in zip(ended, names))


def status_line(manifest, names, running, runs_dir, began, done_before):
    states = [manifest.jobs[name]["state"] for name in names]
    done = progress(manifest, names, runs_dir)
    seconds = left(done - done_before, began, len(names) - done_before)
    parts = [f"{states.count('finished')} of {len(names)} finished", f"{len(running)} running"]
    parts += [f"{states.count('failed')} failed"] if "failed" in states else []
    parts += [f"{seconds / 60:.0f} min left"] if seconds is not None else []
    return ", ".join(parts)


def show(line, shown):
    """Prints the status line: on a terminal in place, elsewhere only when a job has started or ended."""
    if sys.stdout.isatty():
        print(f"\r{line}\033[K", end="", flush=True)
    elif line.split(", ")[:2] != shown.split(", ")[:2]:
        print(line, flush=True)
    return line


def run(commands, args):
    manifest = Manifest(Path(args.runs_dir) / f"{args.name}.json")
    manifest.lock()
    waiting = manifest.plan(commands)
    manifest.save()
    stop, stopping, began, shown, here = [], False, time.time(), "", machine()
    ours = {name: job for name, job in manifest.jobs.items() if name in commands and not submitted(job)}
    adopted = [name for name, job in ours.items() if job["state"] == "running"]
    running = {name: (Adopted(dict(ours[name])), time.time()) for name in adopted}
    for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)):
        signal.signal(number, lambda number, _: stop.append(number))
    done_before = progress(manifest, commands, args.runs_dir)
    print(f"{len(commands)} jobs, {len(waiting)} to run, {args.jobs} at a time; manifest: {manifest.path}", flush=True)
    while running or (waiting and not stop):
        while waiting and len(running) < args.jobs and not stop:
            name = waiting.pop(0)
            process = start(name, commands[name], args.runs_dir)
            running[name] = process, time.time()
            job = dict(state="running", pid=process.pid, began=time.strftime("%FT%T%z"), commit=commit())
            manifest.jobs[name] |= job | here
            manifest.save()
        time.sleep(0.2)
        if stop and not stopping:
            stopping = True
            for process, _ in running.values():
                process.send_signal(signal.SIGTERM)
        for name, (process, since) in list(running.items()):
            if process.poll() is None:
                continue
            del running[name]
            job = manifest.jobs[name]
            ended(job, process.returncode, time.time() - since, log_path(args.runs_dir, name))
            if job["state"] == "waiting":
                waiting.append(name)
            if job["run_dir"]:
                stamp(job["run_dir"], here | dict(commit=job["commit"]))
            manifest.save()
            print(f"{name}: {job['state']}, exit status {process.returncode}, {job['seconds']:.0f} s", flush=True)
        if not stop:
            shown = show(status_line(manifest, commands, running, args.runs_dir, began, done_before), shown)
    failed = [name for name in commands if manifest.jobs[name]["state"] == "failed"]
    for name in failed:
        print(f"{name}: {manifest.jobs[name]['last_line']}")
    if args.task and stop and stop[0] == signal.SIGUSR1 and slurm.task_id():  # the time limit
        slurm.slurm("scontrol", "requeue", slurm.task_id())
    return 130 if stop else int(bool(failed))


def run_task(args):
    """Runs the job of this task of a Slurm array, with a manifest of its own."""
    manifest = Manifest(Path(args.runs_dir) / f"{args.name}.json")
    name = json.loads(Path(args.task).read_text())[int(os.environ["SLURM_ARRAY_TASK_ID"])]
    args.name, args.jobs = f"{args.name}/{name}", 1
    return run({name: manifest.jobs[name]["command"]}, args)


def show_status(args):
    """Prints a line per job. A running job without a process was interrupted."""
    manifest = Manifest(Path(args.runs_dir) / f"{args.name}.json")
    if not manifest.jobs:
        raise SystemExit(f"error: there are no jobs in {manifest.path}. Choose another with --name and --runs-dir")
    manifest.refresh()
    for name, job in manifest.jobs.items():
        state = job["state"]
        if state == "running" and not submitted(job) and not at_work(job):
            state = "interrupted"
        part = 1.0 if state == "finished" else fraction(args.runs_dir, name)
        reason = f"  {job['last_line']}" if state == "failed" else ""
        print(f"{name:60} {state:12} {part:5.0%} {job['seconds']:8.0f} s{reason}")


def main():
    words, flags = sys.argv[1:], []
    if "--" in words:
        words, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", help="names of scripts, without .py (none: commands from standard input)")
    parser.add_argument("--env-ids", nargs="+", default=[])
    parser.add_argument("--seeds", nargs="+", default=["1-5"], help="numbers and ranges (default: 1-5)")
    parser.add_argument("--exp-name", default="", help="the scripts' --exp-name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="jobs at a time (default: one per core)")
    parser.add_argument("--runs-dir", default="runs/benchmark", help="folder for runs, logs and the manifest")
    parser.add_argument("--name", default="launch", help="name of the manifest")
    parser.add_argument("--status", action="store_true", help="show the progress of every job")
    parser.add_argument("--log", metavar="JOB", help="print a job's output")
    parser.add_argument("--collect", action="store_true", help="add finished runs in --runs-dir to benchmark/results")
    parser.add_argument("--cancel", action="store_true", help="cancel the submitted jobs")
    group = parser.add_argument_group("Slurm: submit an array job instead of starting processes")
    group.add_argument("--slurm", action="store_true", help="submit the jobs as tasks of one array")
    group.add_argument("--partition")
    group.add_argument("--time", help="time limit of a task, as for sbatch; a job that needs more is requeued")
    group.add_argument("--mem", help="memory of a task, such as 8G")
    group.add_argument("--gpus", help="GPUs of a task")
    group.add_argument("--cpus", type=int, default=1, help="CPUs of a task (default: 1)")
    group.add_argument("--max-parallel", type=int, help="tasks at a time (default: Slurm's limits)")
    group.add_argument("--grace", type=int, default=120, help="seconds before the limit when a task saves and exits")
    group.add_argument(
        "--sbatch", action="append", default=[], metavar="FLAG", help="any other flag: --sbatch=--account=x"
    )
    group.add_argument("--task", help=argparse.SUPPRESS)  # what a task of the array calls
    group = parser.add_argument_group("AWS Batch: the same; --time, --mem, --gpus and --cpus as above")
    group.add_argument("--aws-batch", action="store_true", help="submit the jobs as tasks of one array")
    group.add_argument("--s3", metavar="s3://BUCKET/PREFIX", help="where the tasks store checkpoints and results")
    group.add_argument("--queue", default="cleanrl-lite", help="job queue")
    group.add_argument("--definition", default="cleanrl-lite", help="job definition")
    args = parser.parse_args(words)
    if args.jobs < 1:
        parser.error(f"--jobs must be >= 1, got {args.jobs}")
    if not all(re.fullmatch(r"\d+(-\d+)?", word) for word in args.seeds):
        parser.error(f"--seeds takes numbers and ranges such as 1-5, got {' '.join(args.seeds)}")
    args.flags, args.runs_dir = flags, str(Path(args.runs_dir).resolve())
    if args.status:
        return show_status(args)
    manifest = Manifest(Path(args.runs_dir) / f"{args.name}.json")
    if args.log:
        if not (path := log_path(args.runs_dir, args.log)).is_file():
            raise SystemExit(f"error: there is no {path}. --status lists the jobs")
        return print(path.read_text(), end="")
    if args.task:
        raise SystemExit(run_task(args))
    if args.collect:
        aws_batch.collect(manifest)
        return subprocess.run([sys.executable, "-m", "benchmark.publish.collect", args.runs_dir], cwd=ROOT, check=True)
    if args.cancel:
        manifest.refresh()
        slurm.cancel(manifest)
        return aws_batch.cancel(manifest)
    if bool(args.scripts) != bool(args.env_ids) or (not args.scripts and sys.stdin.isatty()):
        parser.error("name scripts and --env-ids, or pipe a list of commands")
    commands = jobs(listed(args) if args.scripts else piped(sys.stdin, flags), args.runs_dir)
    if args.aws_batch and not args.s3:
        parser.error("--aws-batch needs --s3 s3://BUCKET/PREFIX")
    if args.slurm or args.aws_batch:
        manifest.lock()
        return (slurm if args.slurm else aws_batch).submit(manifest, manifest.plan(commands), args)
    raise SystemExit(run(commands, args))

