"""Is B worse than A? Run it before merging a change that may move results.

    python -m benchmark.measure.compare runs/before runs/after         two folders of run directories
    python -m benchmark.measure.compare benchmark/results runs/after   the published results and a folder
    python -m benchmark.measure.compare A B --metric eval --confidence 0.9

It compares runs with the same script, environment, number of steps and flags; the experiment's name
and the machine's flags (--cuda, --compile ...) may differ. Each side has its first ten seeds.
`worse` and `better`: the 95 % interval of the difference of the means lies on one side of zero
(Student's t over pairs if both sides have the same seeds, else Welch's). `equal`: every seed has
the same result to the last digit. `open`: these seeds cannot tell; the interval shows how large a
loss could still be hidden. `too-few`: a side has fewer than three seeds, which say nothing.
Experiments that only B has are listed. Exit status 1 if anything is worse, 2 if nothing could be
compared. With no real change, about 1 in 40 comparisons reads "worse"; the last line says how many
to expect.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import stats

from benchmark.publish.collect import FIRST, experiment, read_run

METRICS = dict(last="last_100_mean", best="best_20_mean", eval="eval_mean")


def runs_in(path):
    """Entries of runs.json, from a folder that has one or from the run directories below it."""
    if (path / "runs.json").is_file():
        return json.loads((path / "runs.json").read_text())
    found = [read_run(file.parent) for file in sorted(path.rglob("args.json"))]
    return [run for run, _ in filter(None, found)]


def groups(runs, metric):
    """Of the runs that have this result, {(script, environment, steps, all steps, flags): {seed:
    result}} of the first seeds, and {the same: name of the experiment, unless the script's}."""
    found, names = defaultdict(dict), {}
    for run in sorted(runs, key=lambda run: run["seed"]):
        if run[metric] is None or (metric == "eval_mean" and not run["finished"]):
            continue
        total, flags = experiment(run)
        key = run["script"], run["env_id"], run["global_step"], total, json.dumps(flags, sort_keys=True)
        if len(found[key]) == FIRST and run["seed"] not in found[key]:
            continue
        found[key][run["seed"]] = run[metric]
        names[key] = f", {run['exp_name']}" if run["exp_name"] != run["script"] else ""
    return found, names


def interval(before, after, paired, confidence):
    """The interval of mean(after) - mean(before). A bootstrap would be far too narrow for three to five seeds."""
    difference = after.mean() - before.mean()
    if (np.ptp(after - before) if paired else np.ptp(before) + np.ptp(after)) == 0:  # no spread, no t
        return difference, difference
    test = stats.ttest_rel(after, before) if paired else stats.ttest_ind(after, before, equal_var=False)
    return test.confidence_interval(confidence)


def verdict(before, after, paired, confidence):
    """(worse | better | equal | open | too-few, difference of the means, its interval)."""
    difference = after.mean() - before.mean()
    if paired and (before == after).all():
        return "equal", 0.0, (0.0, 0.0)
    if min(len(before), len(after)) < 3:
        return "too-few", difference, (-np.inf, np.inf)
    low, high = interval(before, after, paired, confidence)
    return ("worse" if high < 0 else "better" if low > 0 else "open"), difference, (low, high)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument(
        "--metric", choices=METRICS, default="last", help="last 100 training episodes, best 20, evaluation"
    )
    parser.add_argument("--confidence", type=float, default=0.95)
    args = parser.parse_args()
    paths = args.before, args.after
    for path in paths:
        if not path.is_dir():
            parser.error(f"there is no folder {path}")
    (one, names), (other, names_after) = (groups(runs_in(path), METRICS[args.metric]) for path in paths)
    sides = one, other
    verdicts, by_chance = [], 0.0
    for key in sorted(one.keys() & other.keys()):
        seeds = [sorted(side[key]) for side in sides]
        before, after = (np.array([side[key][n] for n in ns], float) for side, ns in zip(sides, seeds))
        word, difference, (low, high) = verdict(before, after, seeds[0] == seeds[1], args.confidence)
        verdicts.append(word)
        by_chance += (1 - args.confidence) / 2 if word != "equal" and np.isfinite(low) else 0
        means = f"{before.mean():10.1f} ({len(before)} seeds) -> {after.mean():10.1f} ({len(after)})"
        label = f"{key[0]:15} {key[1] + names[key]:40} {key[2]:>10,}"
        print(f"{label} {means}  {difference:+9.1f} [{low:+.1f}, {high:+.1f}]  {word}")
    for key in sorted(other.keys() - one.keys()):
        print(f"{key[0]:15} {key[1] + names_after[key]:40} {key[2]:>10,} of {key[3]:,} steps, {key[4]}: only in B")
    few = verdicts.count("too-few")
    counts = f"{len(verdicts) - few} compared, {verdicts.count('worse')} worse"
    counts += f", {few} with too few seeds" if few else ""
    print(f"{counts} ({by_chance:.1f} expected by chance); {len(one.keys() - other.keys())} only in A")
    told = [word for word in verdicts if word != "too-few"]
    raise SystemExit(int("worse" in told) if told else 2)


if __name__ == "__main__":
    main()
