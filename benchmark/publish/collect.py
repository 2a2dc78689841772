"""Collects the results of benchmark runs and makes tables from them.

    python -m benchmark.publish.collect                     runs/benchmark into benchmark/results
    python -m benchmark.publish.collect FOLDER --partial    FOLDER, unfinished runs included
    python -m benchmark.publish.collect --from-results      the tables again, without runs
    python -m benchmark.publish.collect FOLDER --stamp      only write machine.json into the runs
    python -m benchmark.publish.collect --commands          print the commands of all runs

Of each run it keeps all training episodes, in results/episodes/*.csv.gz, and a line in
results/runs.json. A newer run replaces an older one of the same script, environment, experiment and
seed. All runs of an experiment in an environment must have the same number of steps and the same
flags; others are left out. Hardware and versions come from a run's machine.json, or from the
machine that collects: stamp runs first if you collect them on another machine.

A script's table has a row for each experiment in an environment, with its first FIRST seeds.
Unfinished runs and runs that are the start of a longer one are listed in a folded block below it,
as are machines and commits.
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

from benchmark import shared
from benchmark.shared import RESULTS, machine, made_on
from cleanrl_lite.tools.runs import (
    MACHINE_FLAGS,
    changed_flags,
    clock,
    flag,
    format_number,
    read_events,
    read_json,
)

FIRST = 10  # seeds of an experiment that tables and comparisons use, however many there are
COPIES = {"residual_critics": "sac"}  # changed copies in runs/, and the scripts that they are of


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
def stamp(folder):
    """Writes this machine into the run directories below `folder` that have none."""
    for path in Path(folder).rglob("args.json"):
        file = path.with_name("machine.json")
        if not file.exists():
            file.write_text(json.dumps(machine(), indent=2) + "\n")
            print(file)


def best_20(returns):
    """The best mean of 20 episodes in a row; None of a run with fewer."""
    if len(returns) < 20:
        return None
    return np.convolve(returns, np.ones(20) / 20, "valid").max()


def rounded(value):
    """Tables round to one digit: rounded to two before that, -82.2506 would become -82.2."""
    return round(float(value), 6) if isinstance(value, float) else value


def read_run(run_dir):
    """The entry of a run in runs.json and its list of episodes.

    None before its first episode and its first log.
    """
    args = json.loads((run_dir / "args.json").read_text())
    events = shared.events(run_dir)
    tags = set(events.Tags()["scalars"])
    if not {"charts/episodic_return", "charts/SPS"} <= tags:
        return None
    returns = events.Scalars("charts/episodic_return")
    lengths = events.Scalars("charts/episodic_length")
    sps = events.Scalars("charts/SPS")
    evaluations = []
    if "eval/episodic_return" in tags:
        evaluations = events.Scalars("eval/episodic_return")

    evaluation = read_json(run_dir / "eval.json")
    total_timesteps = args["total_timesteps"]
    # The evaluation may be one on the way, or the last one before the run was resumed for longer.
    finished = evaluation.get("global_step", -1) >= total_timesteps
    values = np.array([event.value for event in returns], dtype=float)
    seconds = clock(read_events(run_dir))
    end = max(event.wall_time for event in [sps[-1], *evaluations])
    start = time.gmtime(events.FirstEventTimestamp())
    source = next(run_dir.glob("*.py"))
    made = read_json(run_dir / "machine.json") or machine()
    run = {
        "script": source.stem,
        "env_id": args["env_id"],
        "exp_name": args["exp_name"],
        "seed": args["seed"],
        "total_timesteps": total_timesteps,
        "global_step": sps[-1].step,
        "finished": finished,
        "episodes": len(values),
        "last_100_mean": values[-100:].mean(),
        "best_20_mean": best_20(values),
        "eval_mean": evaluation.get("mean"),
        "eval_std": evaluation.get("std"),
        "eval_episodes": len(evaluation["returns"]) if evaluation else None,
    }
    if len(evaluations) > 1:
        run["best_eval_mean"] = max(event.value for event in evaluations)
    run["wall_seconds"] = seconds(end)
    run["median_sps"] = np.median([event.value for event in sps])
    run["started"] = time.strftime("%FT%TZ", start)
    run["commit"] = evaluation.get("commit") or made.get("commit")
    run["arguments"] = changed_flags(args, source)
    run["hardware"] = made["hardware"]
    run["versions"] = made["versions"]
    run = {name: rounded(value) for name, value in run.items()}

    rows = []
    for episode, length in zip(returns, lengths):  # a killed run may lack its last length
        at = f"{seconds(episode.wall_time):.1f}"
        rows.append((episode.step, f"{episode.value:.7g}", int(length.value), at))
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


def is_start(run, longer):
    """Is this run the beginning of the other one, episode by episode?"""
    total, flags = experiment(run)
    longer_total, longer_flags = experiment(longer)
    if total >= longer_total or flags != longer_flags:
        return False
    short = episodes(run)
    return np.array_equal(short, episodes(longer)[: len(short)])


def starts(runs):
    """{experiment that has a longer run: seeds of `runs` that are the start of it}."""
    found = defaultdict(list)
    others = []
    for group in groups(runs[0]["script"]).values():
        others += [run for run in group if run["finished"]]
    for run in runs:
        for other in others:
            same = (other["env_id"], other["seed"]) == (run["env_id"], run["seed"])
            if same and is_start(run, other):
                found[other["exp_name"]].append(run["seed"])
    return found


def only_starts(runs):
    """Is every one of these runs the start of a longer one?"""
    seeds = set()
    for found in starts(runs).values():
        seeds.update(found)
    return {run["seed"] for run in runs} == seeds


def recompute():
    """Writes the means of training episodes in runs.json again, from the episodes that are kept."""
    runs = recorded()
    for run in runs:
        returns = episodes(run)[:, 1]
        run["last_100_mean"] = rounded(returns[-100:].mean())
        if len(returns) >= 20:
            run["best_20_mean"] = rounded(best_20(returns))
    write(runs)


def write(runs):
    lines = ",\n".join(json.dumps(run) for run in sorted(runs, key=key))
    (RESULTS / "runs.json").write_text(f"[\n{lines}\n]\n")


def published(run):
    """{metric: row of published.csv} to compare a run with.

    With its number of steps where there is one, else the nearest. The metrics: training
    (CleanRL's), evaluation (of another project), best (by anyone, any metric: the highest with as
    many steps or fewer, where there is none the one with the fewest).
    """
    total = run["total_timesteps"]
    with open(RESULTS / "published.csv", newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if (row["script"], row["env_id"]) == key(run)[:2]
        ]
    rows.sort(key=lambda row: abs(int(row["total_timesteps"]) - total), reverse=True)
    found = {row["metric"]: row for row in rows}
    best = [row for row in rows if row["metric"] == "best"]
    within = [row for row in best if int(row["total_timesteps"]) <= total]
    if within:
        found["best"] = max(within, key=lambda row: float(row["mean"]))
    elif best:
        found["best"] = min(best, key=lambda row: int(row["total_timesteps"]))
    return found


# === figures, as tables show them
def spread(values):
    if not values:
        return ""
    return format_number(np.mean(values), np.std(values) if len(values) > 1 else None)


def steps(number):
    return f"{number / 1e6:.3g}M" if number >= 1e6 else f"{number // 1000}k"


def reported(other, total):
    """A published figure as a table shows it: with its number of steps where that is another."""
    at = int(other["total_timesteps"])
    std = float(other["std"]) if other["std"] else None
    text = format_number(float(other["mean"]), std)
    return text if at == total else f"{text} at {steps(at)}"


def version(other):
    """Of a published figure's environment, where it is not ours: ", v3"."""
    found = re.search(r"\(on .*-(v\d+)\)", other["source"])
    return f", {found[1]}" if found else ""


# === tables
HEAD = """\
| environment | steps | seeds | last 100 training episodes | CleanRL | evaluation | minutes a run |
|---|---:|---:|---:|---:|---:|---:|"""


def label(runs):
    """The environment, and the experiment's name where it is not the script's."""
    script, env_id, exp_name, _ = key(runs[0])
    return env_id if exp_name == script else f"{env_id}, `{exp_name}`"


def row(runs):
    """The row of one experiment in one environment, of finished runs."""
    total = runs[0]["total_timesteps"]
    cleanrl = published(runs[0]).get("training")
    minutes = [run["wall_seconds"] / 60 for run in runs if run["wall_seconds"]]
    cells = [
        label(runs),
        steps(total),
        str(len(runs)),
        spread([run["last_100_mean"] for run in runs]),
        reported(cleanrl, total) if cleanrl else "",
        spread([run["eval_mean"] for run in runs]),
        format_number(np.median(minutes)) if minutes else "",
    ]
    return shared.row(cells)


def split(script):
    """A script's experiments: those of the main table, and (experiment, why not) of the others."""
    main = []
    others = []
    for runs in groups(script).values():
        if not runs[0]["finished"]:
            reached = [run["global_step"] for run in runs]
            ends = dict.fromkeys([steps(min(reached)), steps(max(reached))])  # one if equal
            others.append((runs, f"unfinished, at {' to '.join(ends)}"))
            continue
        if only_starts(runs):
            found = starts(runs)
            same = [f"{seeds_of(seeds)} the start of `{name}`'s" for name, seeds in found.items()]
            others.append((runs, "; ".join(same)))
        else:
            main.append(runs)
    return main, others


def seeds_of(seeds):
    if len(seeds) == 1:
        return f"seed {seeds[0]} is"
    return f"seeds {', '.join(map(str, seeds))} are"


def flag_table(script, experiments):
    """Markdown: the flags of all experiments that do not have the defaults."""
    found = defaultdict(dict)  # name, flags -> their environments
    for runs in experiments:
        _, env_id, name, _ = key(runs[0])
        arguments = runs[0]["arguments"].items()
        given = " ".join(flag(*item) for item in arguments if item[0] != "cuda")
        if given or name != script:
            found[name, f"`{given}`" if given else "the defaults"][env_id] = True
    if not found:
        return ""
    lines = ["| experiment | environment | flags |", "|---|---|---|"]
    for (name, given), env_ids in sorted(found.items()):
        lines.append(f"| `{name}` | {', '.join(env_ids)} | {given} |")
    return "\n".join(lines)


def notes(main):
    """What the columns mean."""
    caption = f"Mean ± standard deviation over seeds, of at most {FIRST}. "
    caption += "Evaluation: the greedy policy. "
    caption += "CleanRL's figures and their sources: `benchmark/results/published.csv`."
    few = []
    for runs in main:
        fewest = min(run["episodes"] for run in runs)
        if fewest < 100:
            few.append(f"{label(runs)} ({fewest})")
    if few:
        caption += f" Fewer than 100 training episodes, so the mean of all: {'; '.join(few)}."
    return caption


def provenance(script, runs):
    """Where the runs' commands are, and the machines, versions and commits that made them."""
    yield "Commands of all these runs: `python -m benchmark.publish.collect --commands`. "
    yield f"`benchmark/experiments/{script}.sh` has those of the plan."
    made = defaultdict(lambda: defaultdict(set))  # machine -> experiment -> commits
    for run in runs:
        made[made_on(run)][run["exp_name"]].add(run["commit"] or "not recorded")
    for on, names in sorted(made.items()):
        yield ""
        yield f"{on}:"
        yield ""
        for name, commits in sorted(names.items()):
            yield f"- `{name}`: {', '.join(sorted(commits))}"


def unfinished_rows(others):
    """The rows of unfinished runs, and of runs that are the start of longer ones."""
    head = "| environment | steps | seeds | last 100 training episodes "
    yield f"{head}| evaluation | why not above |"
    yield "|---|---:|---:|---:|---:|---|"
    for runs, why in others:
        cells = [
            label(runs),
            steps(runs[0]["total_timesteps"]),
            str(len(runs)),
            spread([run["last_100_mean"] for run in runs]),
            spread([run["eval_mean"] for run in runs if run["finished"]]),
            why,
        ]
        yield shared.row(cells)


def table(script):
    """Markdown: the main table, what it means, flags, and folded: other runs, machines, commits."""
    main, others = split(script)
    experiments = main + [runs for runs, _ in others]
    if main:
        parts = ["\n".join([HEAD, *map(row, main)]), notes(main)]
    else:
        parts = ["No run is finished yet."]
    flags = flag_table(script, experiments)
    if flags:
        parts.append(flags)
    if others:
        title = "Unfinished runs, and runs that are the start of a longer one"
        parts.append(shared.folded(title, unfinished_rows(others), is_open=not main))
    runs = []
    for group in experiments:
        runs += group
    parts.append(
        shared.folded("Commands, machines, versions and commits", provenance(script, runs))
    )
    return "\n\n".join(parts) + "\n"


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


def parse():
    parser = shared.parser(__doc__)
    add = parser.add_argument
    add("folder", nargs="?", default="runs/benchmark", help="folder with the run directories")
    add("--partial", action="store_true", help="include unfinished runs")
    add("--stamp", action="store_true", help="only write machine.json into the run directories")
    add("--commands", action="store_true", help="only print the commands of all runs")
    add("--from-results", action="store_true", help="make the tables again without runs")
    args = parser.parse_args()
    if not (args.commands or args.from_results or Path(args.folder).is_dir()):
        parser.error(f"there is no folder {args.folder}")
    return args


def main():
    args = parse()
    if args.stamp:
        stamp(args.folder)
        return
    if args.commands:
        print(*commands(), sep="\n")
        return
    RESULTS.mkdir(exist_ok=True)
    if args.from_results:
        recompute()
    else:
        collect(args.folder, args.partial)
    for script in sorted({name[0] for name in groups()}):
        text = table(script)
        (RESULTS / f"{script}.md").write_text(text)
        print(f"{script}\n\n{text}")


if __name__ == "__main__":
    main()
