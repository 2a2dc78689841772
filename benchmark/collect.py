"""Collects the results of benchmark runs and makes tables from them.

    python -m benchmark.collect                     collect runs/benchmark into benchmark/results
    python -m benchmark.collect FOLDER --partial    collect FOLDER, unfinished runs included
    python -m benchmark.collect --from-results      make the tables again from benchmark/results/runs.json
    python -m benchmark.collect FOLDER --stamp      only write machine.json into the run directories below FOLDER
    python -m benchmark.collect --commands          print the commands of all runs in runs.json, for benchmark.launch

Of each run it keeps all training episodes, in results/episodes/*.csv.gz, and a line in results/runs.json. A newer run
replaces an older one of the same script, environment, experiment and seed. All runs of an experiment in an environment
must have the same number of steps and the same flags; others are left out. Hardware and versions come from a run's
machine.json, or from the machine that collects: stamp runs first if you collect them on another machine.
"""

import argparse
import csv
import gzip
import io
import itertools
import json
import re
import shlex
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmark.speed import RESULTS, default_args, hardware, versions

RUN_FLAGS = {"seed", "exp_name", "env_id", "total_timesteps", "runs_dir", "save_every", "eval_every", "track", "resume"}
RUN_FLAGS |= {"script"}  # no flag, but in args.json
PAUSE = 120  # seconds without an event; no script is silent for as long
MACHINE_FLAGS = {"cuda", "cuda_graph", "compile", "threads", "async_envs", "eval_episodes", "capture_video", "render"}


def key(run):
    return run["script"], run["env_id"], run["exp_name"], run["seed"]


def experiment(run):
    """What all runs of an experiment have in common; flags for the machine and the evaluation may differ."""
    return run["total_timesteps"], {name: v for name, v in run["arguments"].items() if name not in MACHINE_FLAGS}


def episodes_path(run):
    name = "__".join(map(str, key(run))).replace("/", "-").replace(":", "-")
    return RESULTS / "episodes" / f"{name}.csv.gz"


def machine():
    """This machine's hardware, GPU included, and versions."""
    import torch

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return dict(hardware=hardware() + gpu, versions=versions())


def stamp(folder):
    for path in Path(folder).rglob("args.json"):
        if not (file := path.with_name("machine.json")).exists():
            file.write_text(json.dumps(machine(), indent=2) + "\n")
            print(file)


def clock(run_dir):
    """A function from times to seconds of training. It stands still while the run does.

    Each start of a run writes an event file of its own. Time counts from the first event of a file to its last, except
    for PAUSE and more between two events: then the run was suspended (SIGSTOP). Steps that were lost in a kill do not
    count: a resumed run's file says from which step on it repeats what earlier files hold.
    """
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    repeated, kept = np.inf, []
    for path in sorted(run_dir.glob("events.out.tfevents.*"), reverse=True):
        events = [*EventFileLoader(str(path)).Load()]
        kept.insert(0, np.sort([event.wall_time for event in events if event.step < repeated]))
        repeated = min([repeated, *(event.step for event in events if event.HasField("session_log"))])
    times, seconds = [], [0.0]
    for walls in kept:
        for part in np.split(walls, np.flatnonzero(np.diff(walls) > PAUSE) + 1) if len(walls) else []:
            times += [part[0], part[-1]]
            seconds += [seconds[-1], seconds[-1] + part[-1] - part[0]]
    return lambda time: np.interp(time, times, seconds[1:])


def read_run(run_dir):
    """The entry of a run in runs.json and its list of episodes; None before its first episode and its first log."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    args = json.loads((run_dir / "args.json").read_text())
    events = EventAccumulator(str(run_dir), size_guidance=dict(scalars=0)).Reload()
    tags = set(events.Tags()["scalars"])
    if not {"charts/episodic_return", "charts/SPS"} <= tags:
        return None
    returns, lengths, sps = (events.Scalars(f"charts/{tag}") for tag in ("episodic_return", "episodic_length", "SPS"))
    start, values = events.FirstEventTimestamp(), np.array([event.value for event in returns])
    evaluation = json.loads((run_dir / "eval.json").read_text()) if (run_dir / "eval.json").exists() else {}
    args["total_timesteps"] = evaluation.get("args", args)["total_timesteps"]  # a run may have been resumed for longer
    finished = evaluation.get("global_step", -1) >= args["total_timesteps"]  # the last one, not one on the way
    evaluations = events.Scalars("eval/episodic_return") if "eval/episodic_return" in tags else []
    seconds = clock(run_dir)
    end = max(event.wall_time for event in [sps[-1], *evaluations])
    source = next(run_dir.glob("*.py"))
    defaults = default_args(source.read_text())
    run = dict(script=source.stem, env_id=args["env_id"], exp_name=args["exp_name"], seed=args["seed"])
    run |= dict(total_timesteps=args["total_timesteps"], global_step=sps[-1].step, finished=finished)
    run |= dict(episodes=len(values), last_100_mean=values[-100:].mean())
    run |= dict(best_20_mean=np.convolve(values, np.ones(20) / 20, "valid").max() if len(values) >= 20 else None)
    run |= {f"eval_{name}": evaluation.get(name) for name in ("mean", "std", "episodes")}
    run |= dict(best_eval_mean=max(event.value for event in evaluations)) if len(evaluations) > 1 else {}
    run |= dict(wall_seconds=seconds(end), median_sps=np.median([event.value for event in sps]))
    run = {name: round(float(v), 2) if isinstance(v, float) else v for name, v in run.items()}
    stamped = run_dir / "machine.json"
    made_on = json.loads(stamped.read_text()) if stamped.exists() else machine()
    commit = evaluation.get("commit") or made_on.pop("commit", None)
    run |= dict(started=time.strftime("%FT%TZ", time.gmtime(start)), commit=commit)
    changed = {name: v for name, v in args.items() if name not in RUN_FLAGS and v != defaults.get(name)}
    run |= dict(arguments=changed, hardware=made_on["hardware"], versions=made_on["versions"])
    lengths = [int(event.value) for event in lengths]
    rows = [(e.step, f"{e.value:.7g}", n, f"{seconds(e.wall_time):.1f}") for e, n in zip(returns, lengths)]
    return run, rows


def collect(folder, partial):
    """Adds the runs in `folder` to runs.json and episodes/."""
    path = RESULTS / "runs.json"
    runs = {key(run): run for run in (json.loads(path.read_text()) if path.exists() else [])}
    for run_dir in sorted(path.parent for path in Path(folder).glob("*/args.json")):
        try:
            run, rows = read_run(run_dir) or (None, None)
        except json.JSONDecodeError as error:  # the run begins at this moment, or its disk was full
            print(f"left out, a broken file ({error}): {run_dir.name}")
            continue
        if run and not (run["finished"] or partial):
            print(f"left out, unfinished: {run_dir.name}")
            continue
        if run and any(key(run)[:3] == key(old)[:3] and experiment(run) != experiment(old) for old in runs.values()):
            print(f"left out, other steps or flags than its experiment in runs.json (use --exp-name): {run_dir.name}")
            continue
        old = runs.get(key(run)) if run else None
        if not run or (old and (old["finished"], old["started"]) > (run["finished"], run["started"])):
            continue
        runs[key(run)] = run
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([("global_step", "return", "length", "wall_time"), *rows])
        episodes_path(run).parent.mkdir(parents=True, exist_ok=True)
        episodes_path(run).write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    lines = ",\n".join(json.dumps(runs[name]) for name in sorted(runs))
    path.write_text(f"[\n{lines}\n]\n")


def groups(script=None):
    """The runs in runs.json, of one script or all: (script, env_id, exp_name, finished) -> one run per seed."""
    found = defaultdict(list)
    for run in json.loads((RESULTS / "runs.json").read_text()):
        if script in (None, run["script"]):
            found[(*key(run)[:3], run["finished"])].append(run)
    return found


def published(run):
    """{metric: row of published.csv} to compare a run with: with its number of steps where there is one, else the
    nearest. The metrics: training (CleanRL's), evaluation (of another project), best (by anyone, any metric: the
    highest with as many steps or fewer, where there is none the one with the fewest)."""
    with open(RESULTS.parent / "published.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["script"], row["env_id"]) == key(run)[:2]]
    rows.sort(key=lambda row: abs(int(row["total_timesteps"]) - run["total_timesteps"]), reverse=True)
    found = {row["metric"]: row for row in rows}
    best = [row for row in rows if row["metric"] == "best"]
    if within := [row for row in best if int(row["total_timesteps"]) <= run["total_timesteps"]]:
        found["best"] = max(within, key=lambda row: float(row["mean"]))
    elif best:
        found["best"] = min(best, key=lambda row: int(row["total_timesteps"]))
    return found


def figure(mean, std=None):
    digits = 0 if abs(mean) >= 1000 else 1
    mean = round(float(mean), digits) + 0.0  # no minus before a zero
    return f"{mean:,.{digits}f}" + (f" ± {std:,.{digits}f}" if std is not None else "")


def spread(values):
    return figure(np.mean(values), np.std(values) if len(values) > 1 else None) if values else ""


def steps(number):
    return f"{number / 1e6:.3g}M" if number >= 1e6 else f"{number // 1000}k"


def flag(name, value):
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {shlex.quote(str(value))}"


def reported(other, total):
    """A published figure as a table shows it: with its number of steps where that is another one."""
    at = int(other["total_timesteps"])
    mean, std = float(other["mean"]), float(other["std"]) if other["std"] else None
    return figure(mean, std) + (f" at {steps(at)}" if at != total else "")


def version(other):
    """Of a published figure's environment, where it is not ours: ", v3"."""
    found = re.search(r"\(on .*-(v\d+)\)", other["source"])
    return f", {found[1]}" if found else ""


def row(runs):
    """The cells of one experiment in one environment."""
    script, env_id, exp_name, _ = key(runs[0])
    total, others = runs[0]["total_timesteps"], published(runs[0])
    cleanrl = reported(others["training"], total) if "training" in others else ""
    peer = others.get("evaluation")
    peer = f" ({peer['project']}{version(peer)}: {reported(peer, total)})" if peer else ""
    finished = [run for run in runs if run["finished"]]
    reached = [run["global_step"] for run in runs if not run["finished"]]
    seeds = str(len(runs))
    if reached:
        at = dict.fromkeys([steps(min(reached)), steps(max(reached))])  # one of them where they are the same
        seeds += f" ({len(reached)} unfinished, at {' to '.join(at)} steps)"
    best = [run["best_20_mean"] for run in runs if run["best_20_mean"] is not None]
    minutes = [run["wall_seconds"] / 60 for run in finished if run["wall_seconds"]]
    cells = [env_id + (f", `{exp_name}`" if exp_name != script else ""), steps(total), seeds]
    cells += [f"**{spread([run['last_100_mean'] for run in runs])}**", cleanrl, figure(min(best)) if best else ""]
    evaluated = spread([run["eval_mean"] for run in finished])
    if finished and all("best_eval_mean" in run for run in finished):
        evaluated += f"; best on the way, worst seed: {figure(min(run['best_eval_mean'] for run in finished))}"
    cells += [evaluated + peer, f"{np.mean(minutes):.1f}" if minutes else ""]
    return f"| {' | '.join(cells)} |"


def table(script):
    """Markdown: a row per experiment, and below what the figures are and what they were made with."""
    experiments = groups(script)
    runs = sum(experiments.values(), [])
    lines = [
        "| environment | steps | seeds | last 100 training episodes | CleanRL, same metric | best 20 in a row, "
        "worst seed | evaluation, greedy policy | minutes a run |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *map(row, experiments.values()),
    ]
    meaning = ["Mean ± standard deviation over seeds. CleanRL's figures and their sources: `benchmark/published.csv`."]
    meaning += ["Best 20 in a row: the highest mean of 20 consecutive training episodes of a run."]
    if any("best_eval_mean" in run for run in runs):
        meaning.append("Best on the way: the highest of a run's evaluations.")
    for (_, env_id, name, _), group in experiments.items():
        if (fewest := min(run["episodes"] for run in group)) < 100:
            meaning.append(f"`{name}` in {env_id}: a run with fewer than 100 episodes ({fewest}) has the mean of all.")
    found = defaultdict(dict)  # flags of an experiment -> its environments
    for (_, env_id, name, _), group in experiments.items():
        flags = " ".join(flag(*item) for item in group[0]["arguments"].items() if item[0] != "cuda")
        if flags or name != script:
            found[name, f"`{flags}`" if flags else "the default arguments"][env_id] = True
    given = []
    for (name, flags), env_ids in sorted(found.items()):
        elsewhere = any(other == name and env_id not in env_ids for _, env_id, other, _ in experiments)
        given.append(f"`{name}`{' in ' + ', '.join(env_ids) if elsewhere else ''}: {flags}.")
    origin = ["Commands of all these runs: `python -m benchmark.collect --commands`;"]
    origin += [f"`benchmark/{script}.sh` has those of the plan."]
    made = defaultdict(lambda: defaultdict(set))  # machine -> experiment -> commits
    for run in runs:
        on = f"{run['hardware']}, {', '.join(map(' '.join, run['versions'].items()))}"
        made[on][run["exp_name"]].add(run["commit"] or "not recorded")
    for on, names in sorted(made.items()):
        commits = (f"`{name}` {', '.join(sorted(of_name))}" for name, of_name in sorted(names.items()))
        origin.append(f"Made on {on}; commits: {'; '.join(commits)}.")
    notes = (" ".join(part) for part in (meaning, given, origin) if part)
    return "\n".join(lines) + "\n\n" + "\n\n".join(notes) + "\n"


def commands():
    """Of every run in runs.json, finished or not; on this machine, so without the flags that were for another one."""
    for run in json.loads((RESULTS / "runs.json").read_text()):
        total, flags = experiment(run)
        given = [f"python cleanrl_lite/{run['script']}.py --env-id {run['env_id']} --seed {run['seed']}"]
        given += [f"--total-timesteps {total} --exp-name {run['exp_name']}", *itertools.starmap(flag, flags.items())]
        yield " ".join(given)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="runs/benchmark", help="folder with the run directories")
    parser.add_argument("--partial", action="store_true", help="include unfinished runs")
    parser.add_argument("--stamp", action="store_true", help="only write machine.json into the run directories")
    parser.add_argument("--commands", action="store_true", help="only print the commands of all runs in runs.json")
    parser.add_argument("--from-results", action="store_true", help="make the tables again without run directories")
    args = parser.parse_args()
    if args.stamp:
        return stamp(args.folder)
    if args.commands:
        return print(*commands(), sep="\n")
    RESULTS.mkdir(exist_ok=True)
    if not args.from_results:
        collect(args.folder, args.partial)
    for script in sorted({name[0] for name in groups()}):
        (RESULTS / f"{script}.md").write_text(table(script))
        print(f"{script}\n\n{table(script)}")


if __name__ == "__main__":
    main()
