"""Collects the results of benchmark runs; `make results` then writes the tables.

    python -m benchmark.publish.collect                     runs/benchmark into benchmark/results
    python -m benchmark.publish.collect FOLDER --partial    FOLDER, unfinished runs included
    python -m benchmark.publish.collect --commands          print the commands of all runs

Of each run it keeps all training episodes, in results/episodes/*.csv.gz, and a line in
results/runs.json. A newer run replaces an older one of the same script, environment, experiment and
seed. All runs of an experiment in an environment must have the same number of steps and the same
flags; others are left out. Hardware and versions come from a run's machine.json, which the launcher
writes, or from the machine that collects.
"""

import csv
import gzip
import io
import json
import re
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmark.shared import RESULTS, machine
from cleanrl_lite.tools.runs import (
    MACHINE_FLAGS,
    RETURN,
    changed_flags,
    flag,
    parser,
    read_curve,
    read_json,
    source_of,
    started,
)

FIRST = 10  # seeds of an experiment that tables and comparisons use, however many there are
# changed copies in runs/, and the scripts that they are of
MINATAR = "ppo", "dqn", "c51", "rainbow", "pqn", "sac_discrete"
MINATAR = {f"minatar_{script}": script for script in MINATAR}
COPIES = {"residual_critics": "sac", **MINATAR}


def key(run):
    return run["script"], run["env_id"], run["exp_name"], run["seed"]


def experiment(run):
    """What all runs of an experiment have in common: the steps, and the flags but MACHINE_FLAGS."""
    arguments = run["arguments"].items()
    flags = {name: value for name, value in arguments if name not in MACHINE_FLAGS}
    return run["total_timesteps"], flags


def episodes_path(run):
    name = re.sub("[/:]", "-", "__".join(map(str, key(run))))
    return RESULTS / "episodes" / f"{name}.csv.gz"


# === reading runs
def read_run(run_dir):
    """The entry of a run in runs.json and its list of episodes.

    None before its first episode and its first log.
    """
    args = json.loads((run_dir / "args.json").read_text())
    returns = read_curve(run_dir, [RETURN])
    lengths = read_curve(run_dir, ["charts/episodic_length"])
    sps = read_curve(run_dir, ["charts/SPS"])
    if None in (returns, lengths, sps):
        return None
    rows = []
    for step, minutes, value, length in zip(*returns, lengths[2]):  # the last may be missing
        rows.append((int(step), f"{value:.7g}", int(length), f"{60 * minutes:.1f}"))
    evaluations = read_curve(run_dir, ["eval/episodic_return"])
    evaluation = read_json(run_dir / "eval.json")
    source = source_of(run_dir)
    made = read_json(run_dir / "machine.json") or machine()
    ends = [minutes[-1] for _, minutes, _ in filter(None, [sps, evaluations])]
    run = {
        "script": source.stem,
        **{name: args[name] for name in ("env_id", "exp_name", "seed", "total_timesteps")},
        "global_step": int(sps[0][-1]),
        # The evaluation may be one on the way, or the last before the run was resumed for longer.
        "finished": evaluation.get("global_step", -1) >= args["total_timesteps"],
        "episodes": len(returns[2]),
        "last_100_mean": np.mean([float(row[1]) for row in rows[-100:]]),
        "eval_mean": evaluation.get("mean"),
        "eval_std": evaluation.get("std"),
        "eval_episodes": len(evaluation["returns"]) if evaluation else None,
        "wall_seconds": 60 * max(ends),
        "median_sps": np.median(sps[2]),
        "started": time.strftime("%FT%TZ", time.gmtime(started(run_dir))),
        "commit": evaluation.get("commit") or made.get("commit"),
        "arguments": changed_flags(args, source),
        "hardware": made["hardware"],
        "versions": made["versions"],
    }
    # Tables round to one digit: rounded to two before that, -82.2506 would become -82.2.
    for name, value in run.items():
        run[name] = round(float(value), 6) if isinstance(value, float) else value
    return run, rows


def collect(folder, partial):
    """Adds the runs in `folder` to runs.json and episodes/."""
    path = RESULTS / "runs.json"
    known = json.loads(path.read_text()) if path.exists() else []
    runs = {key(run): run for run in known}
    for args_file in sorted(Path(folder).glob("*/args.json")):
        run_dir = args_file.parent
        try:
            found = read_run(run_dir)
        except json.JSONDecodeError as error:  # the run begins just now, or its disk was full
            print(f"left out, a broken file ({error}): {run_dir.name}")
            continue
        if found is None:
            continue
        run, rows = found
        reason = left_out(run, runs, partial)
        if reason:
            print(f"left out, {reason}: {run_dir.name}")
        elif is_newer(run, runs.get(key(run))):
            runs[key(run)] = run
            write_episodes(run, rows)
    write(runs.values())


def left_out(run, runs, partial):
    """Why a run does not join the others, or None."""
    if not run["finished"] and not partial:
        return "unfinished"
    for old in runs.values():
        if key(run)[:3] == key(old)[:3] and experiment(run) != experiment(old):
            return "other steps or flags than its experiment in runs.json (use --exp-name)"
    return None


def is_newer(run, old):
    if not old:
        return True
    return (old["finished"], old["started"]) <= (run["finished"], run["started"])


def write_episodes(run, rows):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("global_step", "return", "length", "wall_time"))
    writer.writerows(rows)
    path = episodes_path(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


# === the results
def recorded():
    """All runs in runs.json."""
    return json.loads((RESULTS / "runs.json").read_text())


def groups(script=None):
    """The runs in runs.json, of one script or all, with the first FIRST seeds of each experiment.

    {(script, env_id, exp_name, finished): one run per seed}
    """
    found = defaultdict(list)
    for run in sorted(recorded(), key=key):
        group = found[(*key(run)[:3], run["finished"])]
        if script in (None, run["script"]) and len(group) < FIRST:
            group.append(run)
    return {name: group for name, group in found.items() if group}


def episodes(run):
    """All training episodes of a run, as an array of (global_step, return, length)."""
    with gzip.open(episodes_path(run), "rt") as file:
        return np.loadtxt(file, delimiter=",", skiprows=1, usecols=(0, 1, 2), ndmin=2)


def write(runs):
    lines = ",\n".join(json.dumps(run) for run in sorted(runs, key=key))
    (RESULTS / "runs.json").write_text(f"[\n{lines}\n]\n")


def published(run):
    """CleanRL's row of published.csv to compare a run with, or None.

    With its number of steps where there is one, else the nearest.
    """
    with open(RESULTS / "published.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "training"]
    rows = [row for row in rows if (row["script"], row["env_id"]) == key(run)[:2]]
    away = {abs(int(row["total_timesteps"]) - run["total_timesteps"]): row for row in rows}
    return away[min(away)] if away else None


# === the command line
def commands():
    """Of every run in runs.json, finished or not.

    On this machine, so without the flags that were for another one.
    """
    for run in recorded():
        total, flags = experiment(run)
        folder = "runs" if run["script"] in COPIES else "cleanrl_lite"
        words = [
            f"python {folder}/{run['script']}.py",
            f"--env-id {run['env_id']}",
            f"--seed {run['seed']}",
            f"--total-timesteps {total}",
            f"--exp-name {run['exp_name']}",
        ]
        words += [flag(name, value) for name, value in flags.items()]
        if run["eval_episodes"] not in (None, 10):
            words.append(f"--eval-episodes {run['eval_episodes']}")
        yield " ".join(words)


def main():
    command = parser(__doc__)
    add = command.add_argument
    add("folder", nargs="?", default="runs/benchmark", help="folder with the run directories")
    add("--partial", action="store_true", help="include unfinished runs")
    add("--commands", action="store_true", help="only print the commands of all runs")
    args = command.parse_args()
    if args.commands:
        print(*commands(), sep="\n")
    elif Path(args.folder).is_dir():
        collect(args.folder, args.partial)
        print("the tables: make results")
    else:
        command.error(f"there is no folder {args.folder}")


if __name__ == "__main__":
    main()
