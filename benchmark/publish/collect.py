"""Collects the results of benchmark runs and makes tables from them.

    python -m benchmark.publish.collect                     collect runs/benchmark into benchmark/results
    python -m benchmark.publish.collect FOLDER --partial    collect FOLDER, unfinished runs included
    python -m benchmark.publish.collect --from-results      make the tables again from benchmark/results/runs.json
    python -m benchmark.publish.collect FOLDER --stamp      only write machine.json into the run directories below FOLDER
    python -m benchmark.publish.collect --commands          print the commands of all runs in runs.json, for benchmark.launch

Of each run it keeps all training episodes, in results/episodes/*.csv.gz, and a line in results/runs.json. A newer run
replaces an older one of the same script, environment, experiment and seed. All runs of an experiment in an environment
must have the same number of steps and the same flags; others are left out. Hardware and versions come from a run's
machine.json, or from the machine that collects: stamp runs first if you collect them on another machine.

A script's table has a row for each experiment in an environment, with its first FIRST seeds.
Unfinished runs and runs that are the start of a longer one are listed in a folded block below it,
as are machines and commits.
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

from benchmark.shared import RESULTS, default_args, machine

RUN_FLAGS = {"seed", "exp_name", "env_id", "total_timesteps", "runs_dir", "save_every", "eval_every", "track", "resume"}
RUN_FLAGS |= {"script"}  # no flag, but in args.json
FIRST = 10  # seeds of an experiment that tables and comparisons use, however many there are
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
    # Tables round to one digit: rounded to two before that, -82.2506 would become -82.2.
    run = {name: round(float(v), 6) if isinstance(v, float) else v for name, v in run.items()}
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
    write(runs.values())


def recorded():
    """All runs in runs.json."""
    return json.loads((RESULTS / "runs.json").read_text())


def groups(script=None):
    """The runs in runs.json, of one script or all, with the first FIRST seeds of each experiment:
    (script, env_id, exp_name, finished) -> one run per seed."""
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


def is_start(run, longer):
    """Is this run the beginning of the other one, episode by episode?"""
    (total, flags), (longer_total, longer_flags) = experiment(run), experiment(longer)
    if total >= longer_total or flags != longer_flags:
        return False
    short = episodes(run)
    return np.array_equal(short, episodes(longer)[: len(short)])


def starts(runs):
    """{experiment that has a longer run: seeds of `runs` that are the start of it}."""
    found = defaultdict(list)
    others = [other for group in groups(runs[0]["script"]).values() for other in group]
    for run in runs:
        for other in others:
            same = (other["env_id"], other["seed"]) == (run["env_id"], run["seed"])
            if same and other["finished"] and is_start(run, other):
                found[other["exp_name"]].append(run["seed"])
    return found


def measured_again():
    """Writes the means of training episodes in runs.json again, from the episodes that are kept."""
    runs = recorded()
    for run in runs:
        returns = episodes(run)[:, 1]
        run["last_100_mean"] = round(float(returns[-100:].mean()), 6)
        if len(returns) >= 20:
            means = np.convolve(returns, np.ones(20) / 20, "valid")
            run["best_20_mean"] = round(float(means.max()), 6)
    write(runs)


def write(runs):
    lines = ",\n".join(json.dumps(run) for run in sorted(runs, key=key))
    (RESULTS / "runs.json").write_text(f"[\n{lines}\n]\n")


def published(run):
    """{metric: row of published.csv} to compare a run with: with its number of steps where there is one, else the
    nearest. The metrics: training (CleanRL's), evaluation (of another project), best (by anyone, any metric: the
    highest with as many steps or fewer, where there is none the one with the fewest)."""
    with open(RESULTS / "published.csv", newline="") as file:
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


HEAD = "| environment | steps | seeds | last 100 training episodes | CleanRL | evaluation "
HEAD += "| minutes a run |"
HEAD += "\n|---|---:|---:|---:|---:|---:|---:|"


def label(runs):
    """The environment, and the experiment's name where it is not the script's."""
    script, env_id, exp_name, _ = key(runs[0])
    return env_id + (f", `{exp_name}`" if exp_name != script else "")


def row(runs):
    """The row of one experiment in one environment, of finished runs."""
    total, cleanrl = runs[0]["total_timesteps"], published(runs[0]).get("training")
    minutes = [run["wall_seconds"] / 60 for run in runs if run["wall_seconds"]]
    cells = [
        label(runs),
        steps(total),
        str(len(runs)),
        f"**{spread([run['last_100_mean'] for run in runs])}**",
        reported(cleanrl, total) if cleanrl else "",
        spread([run["eval_mean"] for run in runs]),
        figure(np.mean(minutes)) if minutes else "",
    ]
    return f"| {' | '.join(cells)} |"


def split(script):
    """A script's experiments: those of the main table, and (experiment, why not) of the others."""
    main, others = [], []
    for runs in groups(script).values():
        if not runs[0]["finished"]:
            reached = [run["global_step"] for run in runs]
            ends = dict.fromkeys([steps(min(reached)), steps(max(reached))])  # one if they are equal
            others.append((runs, f"unfinished, at {' to '.join(ends)}"))
        elif found := starts(runs):
            same = (f"{seeds_of(seeds)} the start of `{name}`'s" for name, seeds in found.items())
            others.append((runs, "; ".join(same)))
        else:
            main.append(runs)
    return main, others


def seeds_of(seeds):
    return f"seed {seeds[0]} is" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))} are"


def folded(title, lines, is_open=False):
    """A block that opens at a click; mkdocs-material reads it."""
    mark = "???+" if is_open else "???"
    inside = [f"    {line}".rstrip() for line in lines]
    return "\n".join([f'{mark} note "{title}"', "", *inside])


def flag_table(script, experiments):
    """Markdown: the flags of all experiments that do not have the defaults."""
    found = defaultdict(dict)  # name, flags -> their environments
    for runs in experiments:
        _, env_id, name, _ = key(runs[0])
        given = " ".join(flag(*item) for item in runs[0]["arguments"].items() if item[0] != "cuda")
        if given or name != script:
            found[name, f"`{given}`" if given else "the defaults"][env_id] = True
    lines = ["| experiment | environment | flags |", "|---|---|---|"]
    for (name, given), env_ids in sorted(found.items()):
        lines.append(f"| `{name}` | {', '.join(env_ids)} | {given} |")
    return "\n".join(lines) if found else ""


def notes(main):
    """What the columns mean."""
    told = f"Mean ± standard deviation over seeds, of at most {FIRST}. "
    told += "Evaluation: the greedy policy. "
    told += "CleanRL's figures and their sources: `benchmark/results/published.csv`."
    few = []
    for runs in main:
        fewest = min(run["episodes"] for run in runs)
        if fewest < 100:
            few.append(f"{label(runs)} ({fewest})")
    if few:
        told += f" Fewer than 100 training episodes, so the mean of all: {'; '.join(few)}."
    return told


def origin(script, runs):
    """Where the runs' commands are, and the machines, versions and commits that made them."""
    yield "Commands of all these runs: `python -m benchmark.publish.collect --commands`. "
    yield f"`benchmark/experiments/{script}.sh` has those of the plan."
    made = defaultdict(lambda: defaultdict(set))  # machine -> experiment -> commits
    for run in runs:
        on = f"{run['hardware']}, {', '.join(map(' '.join, run['versions'].items()))}"
        made[on][run["exp_name"]].add(run["commit"] or "not recorded")
    for on, names in sorted(made.items()):
        yield ""
        yield f"{on}:"
        yield ""
        for name, commits in sorted(names.items()):
            yield f"- `{name}`: {', '.join(sorted(commits))}"


def leftovers(others):
    """The rows of unfinished runs, and of runs that are the start of longer ones."""
    yield "| environment | steps | seeds | last 100 training episodes | evaluation | why not above |"
    yield "|---|---:|---:|---:|---:|---|"
    for runs, why in others:
        finished = [run["eval_mean"] for run in runs if run["finished"]]
        cells = [label(runs), steps(runs[0]["total_timesteps"]), str(len(runs))]
        cells += [spread([run["last_100_mean"] for run in runs]), spread(finished), why]
        yield f"| {' | '.join(cells)} |"


def table(script):
    """Markdown: the main table, what it means, flags, and folded: other runs, machines, commits."""
    main, others = split(script)
    experiments = main + [runs for runs, _ in others]
    if main:
        parts = ["\n".join([HEAD, *map(row, main)]), notes(main)]
    else:
        parts = ["No run is finished yet."]
    if flags := flag_table(script, experiments):
        parts.append(flags)
    if others:
        title = "Unfinished runs, and runs that are the start of a longer one"
        parts.append(folded(title, leftovers(others), is_open=not main))
    runs = [run for runs in experiments for run in runs]
    parts.append(folded("Commands, machines, versions and commits", origin(script, runs)))
    return "\n\n".join(parts) + "\n"


def commands():
    """Of every run in runs.json, finished or not; on this machine, so without the flags that were for another one."""
    for run in recorded():
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
    if args.from_results:
        measured_again()
    else:
        collect(args.folder, args.partial)
    for script in sorted({name[0] for name in groups()}):
        text = table(script)
        (RESULTS / f"{script}.md").write_text(text)
        print(f"{script}\n\n{text}")


if __name__ == "__main__":
    main()
