"""Is B worse than A? For use before a change is merged that may move results.

    python -m benchmark.compare runs/before runs/after         two folders of run directories
    python -m benchmark.compare benchmark/results runs/after   the published results and a folder
    python -m benchmark.compare A B --metric eval --confidence 0.9

Runs with the same script, environment, number of steps and flags (seeds aside) are compared, seed for seed where both
sides have the same ones. `worse` and `better` mean that the interval of the difference of the means (bootstrap over
seeds, 95 %) lies on one side of zero; `equal` that every seed has the same result to the last digit; `open` that the
seeds cannot tell: the interval says how large a loss could still be hidden. Exit status 1 if anything is worse.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmark.collect import read_run

METRICS = dict(last="last_100_mean", best="best_20_mean", eval="eval_mean")


def runs_in(path):
    """Entries of runs.json: of a folder that has one, or of the run directories below."""
    if (path / "runs.json").is_file():
        return json.loads((path / "runs.json").read_text())
    found = [read_run(file.parent) for file in sorted(path.rglob("args.json"))]
    return [run for run, _ in filter(None, found)]


def groups(runs):
    """{(script, environment, steps, flags): {seed: run}}"""
    found = defaultdict(dict)
    for run in runs:
        key = run["script"], run["env_id"], run["global_step"], json.dumps(run["arguments"], sort_keys=True)
        found[key][run["seed"]] = run
    return found


def interval(before, after, paired, confidence, rng, draws=20_000):
    """Of mean(after) - mean(before), by bootstrap over the seeds (percentiles; pairs of seeds are drawn together)."""
    if paired:
        return np.quantile(
            rng.choice(after - before, (draws, len(after))).mean(1), [(1 - confidence) / 2, (1 + confidence) / 2]
        )
    means = [rng.choice(values, (draws, len(values))).mean(1) for values in (before, after)]
    return np.quantile(means[1] - means[0], [(1 - confidence) / 2, (1 + confidence) / 2])


def verdict(before, after, paired, confidence, rng):
    """(worse | better | equal | open, difference of the means, its interval)."""
    difference = after.mean() - before.mean()
    if paired and (before == after).all():
        return "equal", 0.0, (0.0, 0.0)
    if min(len(before), len(after)) < 3:
        return "open", difference, (-np.inf, np.inf)
    low, high = interval(before, after, paired, confidence, rng)
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
    sides, rng, worse = [groups(runs_in(path)) for path in (args.before, args.after)], np.random.default_rng(0), False
    for key in sorted(sides[0].keys() & sides[1].keys()):
        seeds = [sorted(side[key]) for side in sides]
        before, after = (np.array([side[key][n][METRICS[args.metric]] for n in ns]) for side, ns in zip(sides, seeds))
        told, difference, (low, high) = verdict(before, after, seeds[0] == seeds[1], args.confidence, rng)
        worse |= told == "worse"
        means = f"{before.mean():10.1f} ({len(before)} seeds) -> {after.mean():10.1f} ({len(after)})"
        print(f"{key[0]:15} {key[1]:26} {key[2]:>10,} {means}  {difference:+9.1f} [{low:+.1f}, {high:+.1f}]  {told}")
    alone = [key for key in sides[0].keys() ^ sides[1].keys()]
    print(f"{len(sides[0].keys() & sides[1].keys())} compared; {len(alone)} with other flags or on one side only")
    raise SystemExit(int(worse))


if __name__ == "__main__":
    main()
