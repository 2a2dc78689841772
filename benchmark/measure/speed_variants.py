"""Speed of the scripts among themselves on one CPU core: variants beside their parents, one environment beside many.

    python -m benchmark.measure.speed_variants                    all rows, three pairs each
    python -m benchmark.measure.speed_variants ppo_masked --pairs 5

Both sides of a row run in turns, each in a fresh process pinned to the same core, as in speed.py. The speed of a run is
the mean of charts/SPS over its second half: acting, learning and logging count, compiling and evaluations do not. The
machine should be idle. Figures go to results/speed_variants.json, a row at a time, and their table to
speed_variants.md. `envpool CartPole-v1 64` are 64 environments of envpool that get random actions.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import harmonic_mean, median

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmark.measure.speed import run
from benchmark.shared import RESULTS, commit, hardware, versions

MANY = "--num-steps 256 --total-timesteps"  # rollouts of 2,048 steps an environment would take minutes
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
        "ppo_continuous_asymmetric --env-id tests.probe_envs:ProbePrivilegedPendulum-v0 --total-timesteps 40960",
        f"ppo_continuous --env-id Pendulum-v1 --num-envs 8 {MANY} 40960",
    ),
    "ppo_hybrid": (
        "ppo_hybrid --env-id tests.probe_envs:ProbeMixedPendulum-v0 --total-timesteps 40960",
        f"ppo_continuous --env-id Pendulum-v1 --num-envs 8 {MANY} 40960",
    ),
    "ppo_continuous_mjx, 64 environments": (  # brax's hopper, which is another simulation
        "ppo_continuous_mjx --num-envs 64 --num-steps 64 --num-minibatches 16 --total-timesteps 131072",
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
        "ppo_multiagent --env-id tests.probe_envs:ProbeAlone-v0 --num-envs 4 --total-timesteps 60000",
        "ppo_masked --env-id CartPole-v1 --total-timesteps 60000",
    ),
    "ppo_microrts": (  # no environment in common: the cost of the game and of its network
        "ppo_microrts --opponents passiveAI --total-timesteps 40960",
        "ppo_masked --env-id Taxi-v4 --num-envs 8 --total-timesteps 60000",
    ),
}


# Environments of envpool by themselves: random actions, drawn beforehand, one thread.
ENVPOOL = """
import sys, time, envpool, numpy as np
num_envs, steps = int(sys.argv[2]), 0
pool = envpool.make_gymnasium(sys.argv[1], num_envs=num_envs, num_threads=1, seed=[*range(num_envs)])
actions = [np.array([pool.action_space.sample() for _ in range(num_envs)]) for _ in range(100)]
pool.reset()
began = time.perf_counter()
while time.perf_counter() - began < 5:
    steps += sum(len(pool.step(action)[1]) for action in actions)
print("steps/s:", steps / (time.perf_counter() - began))
"""


def steps_per_second(flags, core, cache):
    script, *flags = flags.split()
    with tempfile.TemporaryDirectory() as folder:
        if script == "envpool":
            run(["-c", ENVPOOL, *flags], folder, core, cache)
            return float(Path(folder, "log.txt").read_text().split("steps/s:")[1])
        command = [f"cleanrl_lite/{script}.py", *flags, "--no-cuda", "--eval-episodes", "1", "--runs-dir", folder]
        run(command, folder, core, cache)
        (path,) = Path(folder).glob("*/args.json")
        events = EventAccumulator(str(path.parent), size_guidance=dict(scalars=0)).Reload().Scalars("charts/SPS")
    return harmonic_mean([event.value for event in events[len(events) // 2 :]])


def table(records):
    lines = ["| | steps/s | compared with | steps/s | ratio (min to max) |", "|---|---:|---|---:|---:|"]
    for name, r in records.items():
        ratios = [mine / other for mine, other in r["pairs"]]
        mine, other = (median(pair[side] for pair in r["pairs"]) for side in (0, 1))
        ratio = f"**{median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(f"| {name} | {mine:,.0f} | `{r['commands'][1]}` | {other:,.0f} | {ratio} |")
    made = sorted({f"{r['hardware']}, commit {r['commit']}, {len(r['pairs'])} pairs" for r in records.values()})
    return "\n".join(lines) + f"\n\n`python -m benchmark.measure.speed_variants` on: {'; '.join(made)}.\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="rows whose name begins with one of these (default: all)")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs")
    parser.add_argument("--core", type=int, default=0, help="core to pin all runs to")
    args = parser.parse_args()
    path = RESULTS / "speed_variants.json"
    records = json.loads(path.read_text()) if path.exists() else {}
    os.sched_setaffinity(0, (os.sched_getaffinity(0) - {args.core}) or {args.core})  # out of the way
    with tempfile.TemporaryDirectory() as cache:
        for name, commands in ROWS.items():
            if args.rows and not name.startswith(tuple(args.rows)):
                continue
            record = dict(commands=commands, commit=commit(), hardware=hardware(), versions=versions())
            record |= dict(date=time.strftime("%FT%T%z"), load_at_start=os.getloadavg()[0], pairs=[])
            for pair in range(args.pairs):
                record["pairs"].append([round(steps_per_second(flags, args.core, cache), 1) for flags in commands])
                print(f"{name}, pair {pair + 1} of {args.pairs}: {record['pairs'][-1]} steps/s", flush=True)
            records = {known: record if known == name else records.get(known) for known in ROWS}
            records = {known: found for known, found in records.items() if found}
            path.write_text(json.dumps(records, indent=1) + "\n")
            path.with_suffix(".md").write_text(table(records))
    print(table(records))


if __name__ == "__main__":
    main()
