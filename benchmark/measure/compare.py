"""Is B worse than A? Run it before merging a change that may move results.

    python -m benchmark.measure.compare runs/before runs/after         two folders of runs
    python -m benchmark.measure.compare benchmark/results runs/after   the published results and one
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

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import stats

from benchmark import shared
from benchmark.publish.collect import FIRST, experiment, read_run

METRICS = {"last": "last_100_mean", "best": "best_20_mean", "eval": "eval_mean"}


def runs_in(path):
    """Entries of runs.json, from a folder that has one or from the run directories below it."""
    if (path / "runs.json").is_file():
        return json.loads((path / "runs.json").read_text())
    found = [read_run(file.parent) for file in sorted(path.rglob("args.json"))]
    return [run for run, _ in filter(None, found)]


def groups(runs, metric):
    """The first seeds of each experiment that has this result, and the experiments' names.

    {(script, environment, steps, all steps, flags): {seed: result}} and {the same: name}; the name
    is empty where it is the script's.
    """
    found = defaultdict(dict)
    names = {}
    for run in sorted(runs, key=lambda run: run["seed"]):
        if run[metric] is None or (metric == "eval_mean" and not run["finished"]):
            continue
        total, flags = experiment(run)
        flags = json.dumps(flags, sort_keys=True)
        # Whole rollouts may end beyond the total: a finished run counts as one of that length.
        reached = total if run["finished"] else run["global_step"]
        key = run["script"], run["env_id"], reached, total, flags
        if len(found[key]) == FIRST and run["seed"] not in found[key]:
            continue
        found[key][run["seed"]] = run[metric]
        names[key] = f", {run['exp_name']}" if run["exp_name"] != run["script"] else ""
    return found, names


def interval(before, after, paired, confidence):
    """The interval of mean(after) - mean(before).

    A bootstrap would be far too narrow for three to five seeds.
    """
    difference = after.mean() - before.mean()
    spread = np.ptp(after - before) if paired else np.ptp(before) + np.ptp(after)
    if spread == 0:  # there is no t
        return difference, difference
    if paired:
        test = stats.ttest_rel(after, before)
    else:
        test = stats.ttest_ind(after, before, equal_var=False)
    return test.confidence_interval(confidence)


def verdict(before, after, paired, confidence):
    """(worse | better | equal | open | too-few, difference of the means, its interval)."""
    difference = after.mean() - before.mean()
    if paired and (before == after).all():
        return "equal", 0.0, (0.0, 0.0)
    if min(len(before), len(after)) < 3:
        return "too-few", difference, (-np.inf, np.inf)
    low, high = interval(before, after, paired, confidence)
    word = "worse" if high < 0 else "better" if low > 0 else "open"
    return word, difference, (low, high)


def results(found, key):
    """The seeds of an experiment and their results."""
    seeds = sorted(found[key])
    return seeds, np.array([found[key][seed] for seed in seeds], float)


def compare(one, other, names, confidence):
    """Prints a line for each experiment that both sides have; the words, and "worse" by chance."""
    words = []
    by_chance = 0.0
    for key in sorted(one.keys() & other.keys()):
        seeds, before = results(one, key)
        other_seeds, after = results(other, key)
        paired = seeds == other_seeds
        word, difference, (low, high) = verdict(before, after, paired, confidence)
        words.append(word)
        if word != "equal" and np.isfinite(low):
            by_chance += (1 - confidence) / 2
        label = f"{key[0]:15} {key[1] + names[key]:40} {key[2]:>10,}"
        means = (
            f"{before.mean():10.1f} ({len(before)} seeds) -> {after.mean():10.1f} ({len(after)})"
        )
        print(f"{label} {means}  {difference:+9.1f} [{low:+.1f}, {high:+.1f}]  {word}")
    return words, by_chance


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument(
        "--metric",
        choices=METRICS,
        default="last",
        help="last 100 training episodes, best 20, evaluation",
    )
    parser.add_argument("--confidence", type=float, default=0.95)
    args = parser.parse_args()
    for path in (args.before, args.after):
        if not path.is_dir():
            parser.error(f"there is no folder {path}")
    metric = METRICS[args.metric]
    one, names = groups(runs_in(args.before), metric)
    other, names_after = groups(runs_in(args.after), metric)
    words, by_chance = compare(one, other, names, args.confidence)
    for key in sorted(other.keys() - one.keys()):
        label = f"{key[0]:15} {key[1] + names_after[key]:40} {key[2]:>10,}"
        print(f"{label} of {key[3]:,} steps, {key[4]}: only in B")
    verdicts = [word for word in words if word != "too-few"]
    few = len(words) - len(verdicts)
    counts = f"{len(verdicts)} compared, {verdicts.count('worse')} worse"
    if few:
        counts += f", {few} with too few seeds"
    print(
        f"{counts} ({by_chance:.1f} expected by chance); {len(one.keys() - other.keys())} only in A"
    )
    raise SystemExit(int("worse" in verdicts) if verdicts else 2)


if __name__ == "__main__":
    main()
