"""Speed of c51.py against CleanRL's on one CPU core: Stable-Baselines3, which speed.py compares with, has no C51.

CleanRL 1.2.0 needs older packages than ours, so make an environment for it first:

    python -m venv cleanrl && cleanrl/bin/pip install -c constraints.txt torch "numpy<2" "setuptools<81" wheel
    cleanrl/bin/pip install --no-build-isolation gym==0.23.1
    cleanrl/bin/pip install --no-deps stable-baselines3==1.8.0
    cleanrl/bin/pip install gymnasium==0.29.1 tensorboard cloudpickle pandas matplotlib pygame "numpy<2"
    cleanrl/bin/pip install --no-deps --ignore-requires-python --target cleanrl/cleanrl cleanrl==1.2.0
    python -m benchmark.measure.speed_cleanrl cleanrl/bin/python cleanrl/cleanrl/cleanrl/c51.py

Both sides use CleanRL's hyperparameters on CartPole-v1 and one thread, and run in turns, each in a fresh process pinned
to the same core. A run is the default one at two fifths of its length, with epsilon and the steps before learning
scaled accordingly. Its speed is environment steps over processor time, minus those of a run that ends when learning
starts: start-up, compilation, checkpoints and the evaluation do not count. The machine should be idle. All figures go
to results/speed_cleanrl.json.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmark.shared import RESULTS, ROOT, commit, hardware, versions

SHORT, LONG, LEARNING_STARTS = 5_000, 200_000, 4_000


def cpu_seconds(command, core, env):
    """Processor time, user and system, of a command that runs in an empty folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = ["taskset", "--cpu-list", str(core), *command]
        done = subprocess.run(command, cwd=folder, env=os.environ | env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def table(record):
    """The figures as a Markdown table."""
    sps = {side: [pair[side] for pair in record["pairs"]] for side in ("ours", "cleanrl")}
    ratios = [pair["ours"] / pair["cleanrl"] for pair in record["pairs"]]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return "\n".join(
        [
            "| script | environment | steps/s | CleanRL's | ratio (min to max) |",
            "|---|---|---:|---:|---:|",
            f"| c51 | CartPole-v1 | {median(sps['ours']):,.0f} | {median(sps['cleanrl']):,.0f} | "
            f"**{median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f}) |",
            "",
            f"One core, one thread, steps per second of processor time over a whole run, start and evaluation apart; "
            f"medians of {len(ratios)} pairs. `python -m benchmark.measure.speed_cleanrl` on: {record['hardware']}, "
            f"{versions}; CleanRL 1.2.0 with "
            f"the same torch; commit {record['commit']}.",
            "",
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="Python interpreter of CleanRL's environment")
    parser.add_argument("c51", help="CleanRL's c51.py")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)))
    args = parser.parse_args()
    python, theirs = os.path.abspath(args.python), os.path.abspath(args.c51)  # not resolved: a venv's is a link

    def seconds(side, steps, seed):
        flags = f"--total-timesteps {steps} --learning-starts {LEARNING_STARTS} --seed {seed}".split()
        if side == "cleanrl":
            env = dict(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", PYTHONPATH=str(Path(theirs).parents[1]))
            return cpu_seconds([python, theirs, *flags], args.core, env)
        command = [sys.executable, str(ROOT / "cleanrl_lite/c51.py"), *flags, "--no-cuda", "--eval-episodes", "1"]
        return cpu_seconds(command, args.core, dict(PYTHONPATH=str(ROOT)))

    seconds("ours", SHORT, 1)  # fills the cache of compiled kernels
    record = dict(hardware=hardware(), versions=versions(), commit=commit(), pairs=[])
    for seed in range(1, args.pairs + 1):
        pair = dict(seed=seed)
        for side in ("cleanrl", "ours"):
            pair[side] = round((LONG - SHORT) / (seconds(side, LONG, seed) - seconds(side, SHORT, seed)), 1)
        record["pairs"].append(pair)
        print(pair, f"{pair['ours'] / pair['cleanrl']:.2f}", flush=True)
    (RESULTS / "speed_cleanrl.json").write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / "speed_cleanrl.md").write_text(table(record))
    print(table(record))


if __name__ == "__main__":
    main()
