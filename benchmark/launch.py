"""Runs scripts x environments x seeds on this machine, some at a time, until all are finished.

    python -m benchmark.launch ppo dqn --env-ids CartPole-v1 Acrobot-v1 --seeds 1-5
    python -m benchmark.launch sac --env-ids Hopper-v4 --seeds 1 2 --exp-name sac_bf16 --jobs 2 -- --bf16
    RUN=cat benchmark/ppo.sh | python -m benchmark.launch --jobs 4
    python -m benchmark.launch --status            how far it is, from another terminal or a day later
    python -m benchmark.launch --log sac-Hopper-v4-1

    python -m benchmark.launch ppo --env-ids CartPole-v1 --slurm --partition cpu --time 1:00:00 --mem 4G
    python -m benchmark.launch ppo --env-ids CartPole-v1 --aws-batch --s3 s3://BUCKET/PREFIX
    python -m benchmark.launch --collect           what is finished in --runs-dir -> benchmark/results
    python -m benchmark.launch --cancel            what Slurm or AWS Batch has not finished yet

Everything after -- goes to the scripts. Where no script is named, the commands come from standard input, one per line:
`python cleanrl_lite/ppo.py --env-id CartPole-v1 --seed 1 ...`. --runs-dir and --resume auto are added to all of them.

The same command again skips what is finished, goes on with what was stopped and tries again what had failed. Each job
has one thread, unless --threads says more. A job that crashes is tried a second time; one that is killed from outside
goes on. Ctrl-C lets the jobs save, and ends.

The manifest, NAME.json in --runs-dir, has each job's command, attempts, exit status, wall time and run directory, and
the machine, the versions and the commit it ran with. `python -m benchmark.collect RUNS_DIR` makes results of the runs.
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

import psutil

from benchmark import aws_batch, slurm
from benchmark.collect import machine

ROOT = Path(__file__).resolve().parent.parent
CRASHES, KILLS = 2, 20  # attempts of a job that crashes, and of one that is killed from outside
PROGRESS = re.compile(r"step ([\d,]+) of ([\d,]+)")


def seeds(words):
    """[1, 2, 3, 7] of ["1-3", "7"]."""
    ranges = [[int(number) for number in word.split("-")] for word in words]
    return [seed for ends in ranges for seed in range(ends[0], ends[-1] + 1)]


def listed(args):
    """Commands, without python in front, of every script, environment and seed."""
    for script, env_id, seed in itertools.product(args.scripts, args.env_ids, seeds(args.seeds)):
        exp_name = ["--exp-name", args.exp_name] if args.exp_name else []
        yield [f"cleanrl_lite/{script}.py", "--env-id", env_id, "--seed", str(seed), *exp_name, *args.flags]


def piped(lines, flags):
    """Commands from a list of commands, as a shell would read them."""
    for words in filter(None, (shlex.split(line, comments=True) for line in lines)):
        yield [*words[bool(re.fullmatch(r"python[\d.]*", words[0])) :], *flags]


def value(command, name, default):
    """Of a flag that is given as two words."""
    return command[command.index(name) + 1] if name in command[:-1] else default


def jobs(commands, runs_dir):
    """{name: command} with the flags that every job gets; one line, and the end, for what cannot be a job."""
    found = {}
    for command in commands:
        script = Path(command[0])
        if script.suffix != ".py" or not (ROOT / script).is_file():
            raise SystemExit(f"error: there is no {script}: {shlex.join(command)}")
        given = (value(command, flag, "") for flag in ("--env-id", "--seed"))
        name = "-".join([value(command, "--exp-name", script.stem), *filter(None, given)])
        name = name.replace("/", "-").replace(":", "-")  # it names a file
        if name in found:
            raise SystemExit(f"error: two jobs are called {name}; --exp-name tells them apart")
        found[name] = [*command, "--runs-dir", runs_dir, "--resume", "auto"]
    return found


class Manifest:
    """The jobs and what became of them, on disk at every change."""

    def __init__(self, path):
        self.path = path
        self.jobs = json.loads(path.read_text())["jobs"] if path.exists() else {}

    def save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dict(saved=time.strftime("%FT%T%z"), jobs=self.jobs), indent=1)
        self.path.with_suffix(".tmp").write_text(text + "\n")
        os.replace(self.path.with_suffix(".tmp"), self.path)

    def lock(self):
        """For one launcher at a time; the lock goes with the process."""
        with suppress(ImportError):  # not on Windows
            import fcntl

            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(self.path.with_suffix(".lock"), "w")
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = "another launcher is at work with it; --name names another manifest, --status shows this one"
                raise SystemExit(f"error: {self.path}: {message}") from None

    def refresh(self):
        """Asks the engines that jobs were submitted to."""
        slurm.refresh(self)
        aws_batch.refresh(self)

    def plan(self, commands):
        """Adds the jobs; one whose command has changed, or that failed or was interrupted, is to be run (again)."""
        self.refresh()
        for name, command in commands.items():
            job = self.jobs.get(name)
            if not job or job["command"] != command:
                job = dict(command=command, seconds=0.0)
                log_path(self.path.parent, name).unlink(missing_ok=True)  # of another run
            if submitted(job) and job["state"].upper() in slurm.IN_QUEUE + aws_batch.IN_QUEUE:
                continue
            if job.get("state") == "running" and not submitted(job) and at_work(job):
                continue
            if job.get("state") != "finished":
                job |= dict(state="waiting", crashes=0, kills=0)
                job.pop("slurm", None)
                job.pop("aws", None)
            self.jobs[name] = job
        return [name for name in commands if self.jobs[name]["state"] == "waiting"]


def submitted(job):
    return "slurm" in job or "aws" in job


def stamp(run_dir, here):
    """Tells the collector on which machine a run was made, be it collected on another one."""
    path = Path(run_dir, "machine.json")
    if path.parent.is_dir() and not path.exists():
        path.write_text(json.dumps(here, indent=2) + "\n")


def commit():
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or None


def log_path(runs_dir, name):
    return Path(runs_dir) / "logs" / f"{name}.log"


def fraction(runs_dir, name):
    """How much of the job is done, from the last progress line of its log."""
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
    with open(path, "a") as log:  # a group of its own: Ctrl-C goes to the launcher, which tells the jobs
        streams = dict(stdout=log, stderr=log, cwd=ROOT, env=os.environ | one_thread, start_new_session=True)
        return subprocess.Popen([sys.executable, *command], **streams)


class Adopted:
    """A job that a launcher before this one has started, and that is still at work. How it ends cannot be known: it is
    started again then, and says whether it is finished."""

    def __init__(self, job):
        self.job, self.returncode = job, -signal.SIGKILL

    def poll(self):
        return None if at_work(self.job) else self.returncode

    def send_signal(self, number):
        with suppress(ProcessLookupError):
            os.kill(self.job["pid"], number)


def at_work(job):
    """Is its process still there? A number can be another process's by now, or one of another machine."""
    try:
        process = psutil.Process(job["pid"])
        return process.status() != psutil.STATUS_ZOMBIE and process.cmdline()[1:] == job["command"]
    except psutil.Error:
        return False


def ended(job, status, seconds, log):
    """Notes how an attempt ended, and whether there is to be another one."""
    job["seconds"] = round(job["seconds"] + seconds, 1)
    job["status"] = status
    text = log.read_text(errors="replace").strip()
    job["last_line"] = text.rpartition("\n")[2][-300:]
    found = re.findall(r"the run (?:is )?in (.+?)(?: is finished)?$", text, re.M)
    job["run_dir"] = found[-1] if found else None
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
    """Seconds, if the rest takes as long for each part as what is done since `began` took."""
    return (time.time() - began) * (total - done) / done if done > 0.001 else None


def progress(manifest, names, runs_dir):
    """How many jobs are done, in parts of a job; nothing is left to do of one that has failed."""
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
    """The status line: on a terminal always in the same place, elsewhere only when a job has started or ended."""
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
    stop, told, began, shown, here = [], False, time.time(), "", machine()
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
        if stop and not told:
            told = True
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
            print(f"{name}: {job['state']} with status {process.returncode}, {job['seconds']:.0f} s", flush=True)
        if not stop:
            shown = show(status_line(manifest, commands, running, args.runs_dir, began, done_before), shown)
    failed = [name for name in commands if manifest.jobs[name]["state"] == "failed"]
    for name in failed:
        print(f"{name}: {manifest.jobs[name]['last_line']}")
    if args.task and stop and stop[0] == signal.SIGUSR1 and slurm.task_id():  # its time is over, the job is not
        slurm.slurm("scontrol", "requeue", slurm.task_id())
    return 130 if stop else int(bool(failed))


def run_task(args):
    """One job of a list, that of this task of Slurm's array, with a manifest of its own."""
    manifest = Manifest(Path(args.runs_dir) / f"{args.name}.json")
    name = json.loads(Path(args.task).read_text())[int(os.environ["SLURM_ARRAY_TASK_ID"])]
    args.name, args.jobs = f"{args.name}/{name}", 1
    return run({name: manifest.jobs[name]["command"]}, args)


def show_status(args):
    """One line for each job; a job whose process is gone without a word was interrupted."""
    manifest = Manifest(Path(args.runs_dir) / f"{args.name}.json")
    if not manifest.jobs:
        raise SystemExit(f"error: there are no jobs in {manifest.path}; --name and --runs-dir name another manifest")
    manifest.refresh()
    for name, job in manifest.jobs.items():
        state = job["state"]
        if state == "running" and not submitted(job) and not at_work(job):
            state = "interrupted"
        part = 1.0 if state == "finished" else fraction(args.runs_dir, name)
        told = f"  {job['last_line']}" if state == "failed" else ""
        print(f"{name:60} {state:12} {part:5.0%} {job['seconds']:8.0f} s{told}")


def main():
    words, flags = sys.argv[1:], []
    if "--" in words:
        words, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", help="names of scripts, without .py; none: commands are read from a pipe")
    parser.add_argument("--env-ids", nargs="+", default=[])
    parser.add_argument("--seeds", nargs="+", default=["1-5"], help="numbers and ranges")
    parser.add_argument("--exp-name", default="", help="name of the experiment (default: the script's)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at a time (default: one a core)")
    parser.add_argument("--runs-dir", default="runs/benchmark")
    parser.add_argument("--name", default="launch", help="name of the manifest")
    parser.add_argument("--status", action="store_true", help="how far the jobs of the manifest are")
    parser.add_argument("--log", metavar="JOB", help="print a job's output")
    parser.add_argument("--collect", action="store_true", help="make results of what is finished in --runs-dir")
    parser.add_argument("--cancel", action="store_true", help="cancel the manifest's submitted jobs")
    group = parser.add_argument_group("Slurm: an array job instead of processes here")
    group.add_argument("--slurm", action="store_true", help="submit the jobs, one task of an array each")
    group.add_argument("--partition")
    group.add_argument("--time", help="limit of one task, as sbatch takes it; a job that needs longer is requeued")
    group.add_argument("--mem", help="memory of a task, such as 8G")
    group.add_argument("--gpus", help="GPUs of a task")
    group.add_argument("--cpus", type=int, default=1, help="CPUs of a task (default: 1)")
    group.add_argument("--max-parallel", type=int, help="how many tasks at a time (default: Slurm's limits)")
    group.add_argument("--grace", type=int, default=120, help="seconds before the limit at which a task saves and ends")
    group.add_argument(
        "--sbatch", action="append", default=[], metavar="FLAG", help="another flag: --sbatch=--account=x"
    )
    group.add_argument("--task", help=argparse.SUPPRESS)  # what a task of the array calls
    group = parser.add_argument_group("AWS Batch: the same, with --time, --mem, --gpus and --cpus as above")
    group.add_argument("--aws-batch", action="store_true", help="submit the jobs, one task of an array each")
    group.add_argument("--s3", metavar="s3://BUCKET/PREFIX", help="where the tasks put checkpoints and results")
    group.add_argument("--queue", default="cleanrl-lite", help="name of the job queue")
    group.add_argument("--definition", default="cleanrl-lite", help="name of the job definition")
    args = parser.parse_args(words)
    if args.jobs < 1:
        parser.error("--jobs must be at least 1")
    if not all(re.fullmatch(r"\d+(-\d+)?", word) for word in args.seeds):
        parser.error(f"--seeds takes numbers and ranges such as 1-5, not {' '.join(args.seeds)}")
    args.flags, args.runs_dir = flags, str(Path(args.runs_dir).resolve())
    if args.status:
        return show_status(args)
    manifest = Manifest(Path(args.runs_dir) / f"{args.name}.json")
    if args.log:
        if not (path := log_path(args.runs_dir, args.log)).is_file():
            raise SystemExit(f"error: there is no {path}; --status names the jobs")
        return print(path.read_text(), end="")
    if args.task:
        raise SystemExit(run_task(args))
    if args.collect:
        aws_batch.collect(manifest)
        return subprocess.run([sys.executable, "-m", "benchmark.collect", args.runs_dir], cwd=ROOT, check=True)
    if args.cancel:
        manifest.refresh()
        slurm.cancel(manifest)
        return aws_batch.cancel(manifest)
    if bool(args.scripts) != bool(args.env_ids) or (not args.scripts and sys.stdin.isatty()):
        parser.error("which scripts, and --env-ids? Or a list of commands through a pipe")
    commands = jobs(listed(args) if args.scripts else piped(sys.stdin, flags), args.runs_dir)
    if args.aws_batch and not args.s3:
        parser.error("--aws-batch needs --s3 s3://BUCKET/PREFIX")
    if args.slurm or args.aws_batch:
        manifest.lock()
        return (slurm if args.slurm else aws_batch).submit(manifest, manifest.plan(commands), args)
    raise SystemExit(run(commands, args))


if __name__ == "__main__":
    main()
