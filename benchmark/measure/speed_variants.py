"""Speed of the scripts among themselves on one CPU core.

    python -m benchmark.measure.speed_variants                    all rows, three pairs each
    python -m benchmark.measure.speed_variants ppo_masked --pairs 5

Variants beside their parents, and one environment beside many. Both sides of a row run in turns,
each in a fresh process pinned to the same core, as in speed.py. The speed of a run is the mean of
charts/SPS over its second half: acting, learning and logging count, compiling and evaluations do
not. The machine should be idle. Figures go to results/speed_variants.json, a row at a time, and
their table to speed_variants.md. `envpool CartPole-v1 64` are 64 environments of envpool that get
random actions.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from statistics import harmonic_mean, median

from benchmark import shared
from benchmark.measure.speed import prepare, run
from benchmark.shared import RESULTS, commit, hardware, row, versions

PATH = RESULTS / "speed_variants.json"
# Rollouts of 2,048 steps an environment would take minutes.
MANY = "--num-steps 256 --total-timesteps"
ROWS = {  # name: (what is measured, what it is compared with)
    "ppo, 1 environment": (
        "ppo --num-envs 1 --total-timesteps 60000",
        "ppo --num-envs 8 --total-timesteps 150000",
    ),
    "ppo, 64 environments": (
        "ppo --num-envs 64 --total-timesteps 120000",
        "ppo --num-envs 8 --total-timesteps 150000",
    ),
    "ppo, 256 environments": (
        "ppo --num-envs 256 --total-timesteps 400000",
        "ppo --num-envs 8 --total-timesteps 150000",
    ),
    "ppo_continuous, 1 environment": (
        f"ppo_continuous --num-envs 1 {MANY} 20480",
        f"ppo_continuous --num-envs 8 {MANY} 40960",
    ),
    "ppo_continuous, 64 environments": (
        f"ppo_continuous --num-envs 64 {MANY} 98304",
        f"ppo_continuous --num-envs 8 {MANY} 40960",
    ),
    "ppo_continuous, 256 environments": (
        f"ppo_continuous --num-envs 256 {MANY} 393216",
        f"ppo_continuous --num-envs 8 {MANY} 40960",
    ),
    "ppo_envpool, 64 environments": (
        "ppo_envpool --num-envs 64 --num-steps 32 --total-timesteps 409600",
        "ppo --num-envs 64 --num-steps 32 --total-timesteps 204800",
    ),
    "ppo_continuous_envpool, 8 environments": (
        f"ppo_continuous_envpool --num-envs 8 {MANY} 61440",
        f"ppo_continuous --num-envs 8 {MANY} 40960",
    ),
    "ppo_continuous_envpool, 64 environments": (
        f"ppo_continuous_envpool --num-envs 64 {MANY} 131072",
        f"ppo_continuous --num-envs 64 {MANY} 98304",
    ),
    "ppo_envpool beside its environments": (
        "ppo_envpool --num-envs 64 --num-steps 32 --total-timesteps 409600",
        "envpool CartPole-v1 64",
    ),
    "ppo_continuous_envpool beside its environments": (
        f"ppo_continuous_envpool --num-envs 64 {MANY} 131072",
        "envpool Hopper-v4 64",
    ),
    "ppo_continuous_adaptive": (
        "ppo_continuous_adaptive --total-timesteps 20480",
        "ppo_continuous --total-timesteps 20480",
    ),
    "ppo_continuous_asymmetric": (  # the same observations in two parts
        (
            "ppo_continuous_asymmetric --env-id tests.probe_envs:ProbePrivilegedPendulum-v0 "
            "--total-timesteps 40960"
        ),
        f"ppo_continuous --env-id Pendulum-v1 --num-envs 8 {MANY} 40960",
    ),
    "ppo_hybrid": (
        "ppo_hybrid --env-id tests.probe_envs:ProbeMixedPendulum-v0 --total-timesteps 40960",
        f"ppo_continuous --env-id Pendulum-v1 --num-envs 8 {MANY} 40960",
    ),
    "ppo_continuous_mjx, 64 environments": (  # brax's hopper, which is another simulation
        (
            "ppo_continuous_mjx --num-envs 64 --num-steps 64 --num-minibatches 16 "
            "--total-timesteps 131072"
        ),
        f"ppo_continuous --num-envs 64 {MANY} 98304",
    ),
    "ppo_simple": (
        "ppo_simple --num-envs 8 --total-timesteps 60000",
        "ppo --num-envs 8 --total-timesteps 150000",
    ),
    "vpg": (
        "vpg --num-envs 8 --total-timesteps 60000",
        "ppo --num-envs 8 --total-timesteps 150000",
    ),
    "a2c": (
        "a2c --num-envs 8 --total-timesteps 60000",
        "ppo --num-envs 8 --total-timesteps 150000",
    ),
    "a2c_continuous": (
        "a2c_continuous --num-envs 8 --total-timesteps 60000",
        f"ppo_continuous --num-envs 8 {MANY} 40960",
    ),
    "ppo_simple_continuous": (
        f"ppo_simple_continuous --num-envs 8 {MANY} 40960",
        f"ppo_continuous --num-envs 8 {MANY} 40960",
    ),
    "ppo_selfplay": (  # Connect Four of envpool's, and its mask
        "ppo_selfplay --num-envs 32 --total-timesteps 61440",
        "ppo_masked --env-id Taxi-v4 --num-envs 32 --total-timesteps 61440",
    ),
    "ppo_masked": (
        "ppo_masked --env-id CartPole-v1 --total-timesteps 60000",
        "ppo --env-id CartPole-v1 --total-timesteps 100000",
    ),
    "ppo_lstm": (
        "ppo_lstm --total-timesteps 100000",
        "ppo --num-envs 8 --total-timesteps 150000",
    ),
    "pqn": (
        "pqn --num-envs 8 --num-steps 128 --total-timesteps 100000",
        "ppo --num-envs 8 --total-timesteps 150000",
    ),
    "ppo_continuous_lstm": (
        "ppo_continuous_lstm --total-timesteps 81920",
        f"ppo_continuous --num-envs 8 {MANY} 98304",
    ),
    "ppo_atari_multigpu, one process": (
        "ppo_atari_multigpu --env-id PongNoFrameskip-v4 --threads 1 --total-timesteps 16384",
        "ppo_atari --env-id PongNoFrameskip-v4 --threads 1 --total-timesteps 16384",
    ),
    "ppo_atari_lstm": (
        "ppo_atari_lstm --env-id PongNoFrameskip-v4 --threads 1 --total-timesteps 8192",
        "ppo_atari --env-id PongNoFrameskip-v4 --threads 1 --total-timesteps 8192",
    ),
    "ppo_image": (  # both with stacks of 4: gray there, in colour here
        "ppo_image --env-id ale_py:ALE/Pong-v5 --image-size 84 --threads 1 --total-timesteps 8192",
        "ppo_atari --env-id PongNoFrameskip-v4 --threads 1 --total-timesteps 16384",
    ),
    "ppo_multiagent, a team of one": (
        (
            "ppo_multiagent --env-id tests.probe_envs:ProbeAlone-v0 --num-envs 4 "
            "--total-timesteps 60000"
        ),
        "ppo_masked --env-id CartPole-v1 --total-timesteps 60000",
    ),
    "ppo_microrts": (  # no environment in common: the cost of the game and of its network
        "ppo_microrts --opponents passiveAI --total-timesteps 40960",
        "ppo_masked --env-id Taxi-v4 --num-envs 8 --total-timesteps 60000",
    ),
}

# Environments of envpool by themselves: random actions, drawn beforehand, one thread.
ENVPOOL = """
import sys
import time

import envpool
import numpy as np

name, num_envs = sys.argv[1], int(sys.argv[2])
seeds = list(range(num_envs))
pool = envpool.make_gymnasium(name, num_envs=num_envs, num_threads=1, seed=seeds)
space = pool.action_space
actions = [np.array([space.sample() for _ in range(num_envs)]) for _ in range(100)]
pool.reset()
steps = 0
began = time.perf_counter()
while time.perf_counter() - began < 5:
    steps += sum(len(pool.step(action)[1]) for action in actions)
print("steps/s:", steps / (time.perf_counter() - began))
"""


def steps_per_second(command, core, cache):
    script, *flags = command.split()
    with tempfile.TemporaryDirectory() as folder:
        if script == "envpool":
            run(["-c", ENVPOOL, *flags], folder, core, cache)
            return float(Path(folder, "log.txt").read_text().split("steps/s:")[1])
        flags += ["--no-cuda", "--eval-episodes", "1", "--runs-dir", folder]
        run([f"cleanrl_lite/{script}.py", *flags], folder, core, cache)
        (path,) = Path(folder).glob("*/args.json")
        events = shared.events(path.parent).Scalars("charts/SPS")
    return harmonic_mean([event.value for event in events[len(events) // 2 :]])


def table(records):
    """Markdown."""
    lines = ["| | steps/s | compared with | steps/s | ratio (min to max) |"]
    lines.append("|---|---:|---|---:|---:|")
    for name, record in records.items():
        mine = [pair[0] for pair in record["pairs"]]
        others = [pair[1] for pair in record["pairs"]]
        ratios = [one / other for one, other in record["pairs"]]
        cells = [
            name,
            f"{median(mine):,.0f}",
            f"`{record['commands'][1]}`",
            f"{median(others):,.0f}",
            f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        ]
        lines.append(row(cells))
    places = []
    for record in records.values():
        pairs = len(record["pairs"])
        places.append(f"{shared.made_on(record)}; {pairs} pairs")
    commits = [record["commit"] for record in records.values()]
    lines += ["", shared.made_by("python -m benchmark.measure.speed_variants", places, commits)]
    return "\n".join(lines) + "\n"


def measure(name, args, cache):
    """The record of a row."""
    record = {
        "commands": ROWS[name],
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
        "date": time.strftime("%FT%T%z"),
        "load_at_start": os.getloadavg()[0],
        "pairs": [],
    }
    for pair in range(args.pairs):
        sps = [steps_per_second(command, args.core, cache) for command in ROWS[name]]
        record["pairs"].append([round(side, 1) for side in sps])
        found = f"{record['pairs'][-1]} steps/s"
        print(f"{name}, pair {pair + 1} of {args.pairs}: {found}", flush=True)
    return record


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("rows", nargs="*", help="rows that begin with one of these (default: all)")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs")
    parser.add_argument("--core", type=int, default=0, help="core to pin all runs to")
    args = parser.parse_args()
    records = json.loads(PATH.read_text()) if PATH.exists() else {}
    prepare(args.core)
    with tempfile.TemporaryDirectory() as cache:
        for name in ROWS:
            if args.rows and not name.startswith(tuple(args.rows)):
                continue
            records[name] = measure(name, args, cache)
            records = {known: records[known] for known in ROWS if known in records}
            PATH.write_text(json.dumps(records, indent=1) + "\n")
            PATH.with_suffix(".md").write_text(table(records))
    print(table(records))


if __name__ == "__main__":
    main()
