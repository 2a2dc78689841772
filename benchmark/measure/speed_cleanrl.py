"""Speed of c51.py against CleanRL's on one CPU core; Stable-Baselines3 (speed.py) has no C51.

CleanRL 1.2.0 needs older packages than ours, so make an environment for it first:

    python -m venv cleanrl
    cleanrl/bin/pip install -c constraints.txt torch "numpy<2" "setuptools<81" wheel
    cleanrl/bin/pip install --no-build-isolation gym==0.23.1
    cleanrl/bin/pip install --no-deps stable-baselines3==1.8.0
    cleanrl/bin/pip install gymnasium==0.29.1 tensorboard cloudpickle pandas matplotlib pygame
    cleanrl/bin/pip install --no-deps --ignore-requires-python --target cleanrl/cleanrl \\
        cleanrl==1.2.0
    python -m benchmark.measure.speed_cleanrl cleanrl/bin/python cleanrl/cleanrl/cleanrl/c51.py

Both sides use CleanRL's hyperparameters on CartPole-v1 and one thread, and run in turns, each in a
fresh process pinned to the same core. A run is the default one at two fifths of its length, with
epsilon and the steps before learning scaled accordingly. Its speed is environment steps over
processor time, minus those of a run that ends 1,000 steps after learning has started: start-up,
compilation, checkpoints and the evaluation do not count. The machine should be idle. All figures go
to results/speed_cleanrl.json.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmark import shared
from benchmark.shared import RESULTS, ROOT, commit, hardware, made_on, row, versions

SHORT = 5_000
LONG = 200_000
LEARNING_STARTS = 4_000


def cpu_seconds(command, core, env):
    """Processor time, user and system, of a command that runs in an empty folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["taskset", "--cpu-list", str(core), *command],
            cwd=folder,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        status = f"exit status {done.returncode}\n{done.stderr[-2000:]}"
        raise SystemExit(f"error: {' '.join(command)}: {status}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def table(record):
    """The figures as a Markdown table."""
    ours = [pair["ours"] for pair in record["pairs"]]
    theirs = [pair["cleanrl"] for pair in record["pairs"]]
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    cells = ["c51", "CartPole-v1", f"{median(ours):,.0f}", f"{median(theirs):,.0f}", ratio]
    note = "One core, one thread, steps per second of processor time over a whole run, start and "
    note += f"evaluation apart; medians of {len(ratios)} pairs. "
    note += "CleanRL 1.2.0, with the same torch."
    command = "python -m benchmark.measure.speed_cleanrl"
    made = shared.made_by(command, [made_on(record)], [record["commit"]])
    lines = [
        "| script | environment | steps/s | CleanRL's | ratio (min to max) |",
        "|---|---|---:|---:|---:|",
        row(cells),
        "",
        note,
        "",
        made,
    ]
    return "\n".join(lines) + "\n"


def seconds(side, steps, seed, args):
    """Processor time of a run of CleanRL's c51.py, or of ours."""
    flags = ["--total-timesteps", str(steps), "--learning-starts", str(LEARNING_STARTS)]
    flags += ["--seed", str(seed)]
    if side == "ours":
        command = [sys.executable, str(ROOT / "cleanrl_lite/c51.py"), *flags]
        command += ["--no-cuda", "--eval-episodes", "1"]
        return cpu_seconds(command, args.core, {"PYTHONPATH": str(ROOT)})
    env = {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(Path(args.c51).parents[1]),
    }
    return cpu_seconds([args.python, args.c51, *flags], args.core, env)


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("python", help="Python interpreter of CleanRL's environment")
    parser.add_argument("c51", help="CleanRL's c51.py")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)))
    args = parser.parse_args()
    args.python = os.path.abspath(args.python)  # not resolved: a venv's is a link
    args.c51 = os.path.abspath(args.c51)
    seconds("ours", SHORT, 1, args)  # fills the cache of compiled kernels
    record = {"hardware": hardware(), "versions": versions(), "commit": commit(), "pairs": []}
    for seed in range(1, args.pairs + 1):
        pair = {"seed": seed}
        for side in ("cleanrl", "ours"):
            learning = seconds(side, LONG, seed, args) - seconds(side, SHORT, seed, args)
            pair[side] = round((LONG - SHORT) / learning, 1)
        record["pairs"].append(pair)
        print(pair, f"{pair['ours'] / pair['cleanrl']:.2f}", flush=True)
    (RESULTS / "speed_cleanrl.json").write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / "speed_cleanrl.md").write_text(table(record))
    print(table(record))


if __name__ == "__main__":
    main()
