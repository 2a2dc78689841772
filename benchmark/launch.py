"""Runs scripts x environments x seeds on this machine, some at a time, until all are finished.

    python -m benchmark.launch ppo dqn --env-ids CartPole-v1 Acrobot-v1 --seeds 1-5
    python -m benchmark.launch sac --env-ids Hopper-v4 --seeds 1 2 3 --jobs 4 -- --total-timesteps 300000 --bf16
    python -m benchmark.launch --status            how far it is, from another terminal or a day later
    python -m benchmark.launch --log sac-Hopper-v4-1

Everything after -- goes to the scripts. The same command again skips what is finished, goes on with what was stopped
and tries again what had failed. Each job has one thread and, where there are enough, a core of its own. A job that
crashes is tried a second time; one that is killed from outside goes on. Ctrl-C lets the jobs save, and ends.

The manifest, NAME.json in --runs-dir, has each job's command, attempts, exit status, wall time and run directory, and
the machine, the versions and the commit it ran with. `python -m benchmark.collect RUNS_DIR` makes results of the runs.
"""

import argparse
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmark.collect import machine

ROOT = Path(__file__).resolve().parent.parent
CRASHES, KILLS = 2, 20  # attempts of a job that crashes, and of one that is killed from outside
PROGRESS = re.compile(r"step ([\d,]+) of ([\d,]+)")


def seeds(words):
    """[1, 2, 3, 7] of ["1-3", "7"]."""
    ranges = [[int(number) for number in word.split("-")] for word in words]
    return [seed for ends in ranges for seed in range(ends[0], ends[-1] + 1)]


def jobs(args):
    """{name: command} of every script, environment and seed."""
    commands = {}
    for script, env_id, seed in itertools.product(args.scripts, args.env_ids, seeds(args.seeds)):
        assert (ROOT / "cleanrl_lite" / f"{script}.py").is_file(), f"there is no cleanrl_lite/{script}.py"
        exp_name = args.exp_name or script
        flags = ["--env-id", env_id, "--seed", str(seed), "--exp-name", exp_name, "--runs-dir", args.runs_dir]
        command = [f"cleanrl_lite/{script}.py", *flags, "--resume", "auto", *args.flags]
        commands[f"{exp_name}-{env_id}-{seed}".replace("/", "-").replace(":", "-")] = command
    return commands


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

    def plan(self, commands):
        """Adds the jobs; one whose command has changed, or that failed or was interrupted, is to be run (again)."""
        for name, command in commands.items():
            job = self.jobs.get(name)
            if not job or job["command"] != command:
                job = dict(command=command, seconds=0.0)
            if job.get("state") == "running" and at_work(job["pid"]):
                continue
            if job.get("state") != "finished":
                job |= dict(state="waiting", crashes=0, kills=0)
            self.jobs[name] = job
        return [name for name in commands if self.jobs[name]["state"] == "waiting"]


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


def start(name, command, runs_dir, core):
    path = log_path(runs_dir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    one_thread = dict(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1", PYTHONUNBUFFERED="1")
    with open(path, "a") as log:  # a group of its own: Ctrl-C goes to the launcher, which tells the jobs
        streams = dict(stdout=log, stderr=log, cwd=ROOT, env=os.environ | one_thread, start_new_session=True)
        process = subprocess.Popen([sys.executable, *command], **streams)
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, {core})
    return process


class Adopted:
    """A job that a launcher before this one has started, and that is still at work."""

    def __init__(self, pid):
        self.pid, self.returncode = (
            pid,
            -signal.SIGKILL,
        )  # unknown: it is started again, and says whether it is finished

    def poll(self):
        return None if at_work(self.pid) else self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)


def at_work(pid):
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "--resume" in process.cmdline()
    except psutil.Error:
        return False


def ended(job, status, seconds, log):
    """Notes how an attempt ended, and whether there is to be another one."""
    job["seconds"] = round(job["seconds"] + seconds, 1)
    job["status"] = status
    lines = log.read_text(errors="replace").strip().splitlines()
    job["last_line"] = lines[-1][-300:] if lines else ""
    found = re.findall(r"the run (?:is )?in (.+?)(?: is finished)?$", "\n".join(lines[-5:]), re.M)
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


def status_line(manifest, names, running, runs_dir, began, done_before):
    states = [manifest.jobs[name]["state"] for name in names]
    done = sum(state == "finished" for state in states) + sum(fraction(runs_dir, name) for name in running)
    seconds = left(done - done_before, began, len(names) - done_before)
    parts = [f"{states.count('finished')} of {len(names)} finished", f"{len(running)} running"]
    parts += [f"{states.count('failed')} failed"] if "failed" in states else []
    parts += [f"{seconds / 60:.0f} min left"] if seconds is not None else []
    return ", ".join(parts)


def run(args):
    path = Path(args.runs_dir) / f"{args.name}.json"
    manifest = Manifest(path)
    commands = jobs(args)
    waiting = manifest.plan(commands)
    manifest.save()
    stop, began, shown, here = [], time.time(), "", machine() | dict(commit=commit())
    adopted = [name for name in commands if manifest.jobs[name]["state"] == "running"]
    running = {name: (Adopted(manifest.jobs[name]["pid"]), time.time(), None) for name in adopted}
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stop.append(number))
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    cores = cores if args.jobs <= len(cores) else []
    done_before = len(commands) - len(waiting) + sum(fraction(args.runs_dir, name) for name in waiting)
    print(f"{len(commands)} jobs, {len(waiting)} to run, {args.jobs} at a time; manifest: {path}", flush=True)
    while (waiting or running) and not (stop and not running):
        while waiting and len(running) < args.jobs and not stop:
            name = waiting.pop(0)
            free = [core for core in cores if core not in [other for *_, other in running.values()]]
            core = free[0] if free else None
            process = start(name, commands[name], args.runs_dir, core)
            running[name] = process, time.time(), core
            manifest.jobs[name] |= dict(state="running", pid=process.pid, began=time.strftime("%FT%T%z"), **here)
            manifest.save()
        time.sleep(0.2)
        for name, (process, since, _) in list(running.items()):
            if stop and process.poll() is None and stop[0]:
                process.send_signal(signal.SIGTERM)
            if process.poll() is not None:
                del running[name]
                job = manifest.jobs[name]
                ended(job, process.returncode, time.time() - since, log_path(args.runs_dir, name))
                if job["state"] == "waiting":
                    waiting.append(name)
                if not stop or job["state"] == "finished":
                    print(
                        f"{name}: {job['state']} with status {process.returncode}, {job['seconds']:.0f} s", flush=True
                    )
                manifest.save()
        if stop:
            stop[0] = 0  # the jobs have been told
        elif (line := status_line(manifest, commands, running, args.runs_dir, began, done_before)) != shown:
            if sys.stdout.isatty() or line.split(", ")[:2] != shown.split(", ")[:2]:
                print(
                    f"\r{line}\033[K" if sys.stdout.isatty() else line,
                    end="" if sys.stdout.isatty() else "\n",
                    flush=True,
                )
            shown = line
    print()
    failed = [name for name in commands if manifest.jobs[name]["state"] == "failed"]
    for name in failed:
        print(f"{name}: {manifest.jobs[name]['last_line']}")
    return 130 if stop else int(bool(failed))


def show_status(args):
    """One line for each job; a job whose process is gone without a word was interrupted."""
    for name, job in Manifest(Path(args.runs_dir) / f"{args.name}.json").jobs.items():
        state = job["state"]
        if state == "running" and not at_work(job["pid"]):
            state = "interrupted"
        part = 1.0 if state == "finished" else fraction(args.runs_dir, name)
        told = f"  {job['last_line']}" if state == "failed" else ""
        print(f"{name:60} {state:12} {part:5.0%} {job['seconds']:8.0f} s{told}")


def main():
    words, flags = sys.argv[1:], []
    if "--" in words:
        words, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", help="names of scripts, without .py")
    parser.add_argument("--env-ids", nargs="+", default=[])
    parser.add_argument("--seeds", nargs="+", default=["1-5"], help="numbers and ranges")
    parser.add_argument("--exp-name", default="", help="name of the experiment (default: the script's)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="how many at a time (default: as many as cores)"
    )
    parser.add_argument("--runs-dir", default="runs/benchmark")
    parser.add_argument("--name", default="launch", help="name of the manifest")
    parser.add_argument("--status", action="store_true")
    parser.add_argument("--log", metavar="JOB", help="print a job's output")
    args = parser.parse_args(words)
    args.flags, args.runs_dir = flags, str(Path(args.runs_dir).resolve())
    if args.status:
        return show_status(args)
    if args.log:
        return print(log_path(args.runs_dir, args.log).read_text(), end="")
    if not args.scripts or not args.env_ids:
        parser.error("which scripts, and --env-ids?")
    for script in args.scripts:
        if not (ROOT / "cleanrl_lite" / f"{script}.py").is_file():
            parser.error(f"there is no cleanrl_lite/{script}.py")
    raise SystemExit(run(args))


if __name__ == "__main__":
    main()
