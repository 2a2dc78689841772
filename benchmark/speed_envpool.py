"""Speed of the envpool scripts beside their parents and beside envpool alone, on one CPU core.

    python benchmark/speed_envpool.py                some ten minutes
    python benchmark/speed_envpool.py --pairs 7
    python benchmark/speed_envpool.py --table        make results/speed_envpool.md again

Script, parent and envpool run in turns, each in a fresh process pinned to the same core, with the same flags and one
thread. A script's speed is the median of charts/SPS over the second half of a run: acting, stepping, learning and
logging. Envpool's own is that of as many environments that get random actions, drawn beforehand. A round's ratios are
of that round; the table has medians over the rounds. Figures go to benchmark/results/speed_envpool.json.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from speed import RESULTS, ROOT, commit, hardware, run, versions

CASES = [  # script, parent, environment, number of environments, other flags, steps of a run
    ("ppo_envpool", "ppo", "CartPole-v1", 64, "--num-steps 32 --learning-rate 1e-3", 409_600),
    ("ppo_continuous_envpool", "ppo_continuous", "Hopper-v4", 8, "--num-steps 256", 61_440),
    ("ppo_continuous_envpool", "ppo_continuous", "Hopper-v4", 64, "--num-steps 256", 98_304),
]
ALONE = """
import sys, time
import envpool, numpy as np
env_id, num_envs, seconds = sys.argv[1], int(sys.argv[2]), 4
pool = envpool.make_gymnasium(env_id, num_envs=num_envs, num_threads=1, seed=list(range(num_envs)))
actions = [np.array([pool.action_space.sample() for _ in range(num_envs)]) for _ in range(100)]
pool.reset()
steps, began = 0, time.perf_counter()
while time.perf_counter() - began < seconds:
    for action in actions:
        pool.step(action)
    steps += len(actions) * num_envs
print("alone:", steps / (time.perf_counter() - began))
"""


def alone(env_id, num_envs, core):
    with tempfile.TemporaryDirectory() as folder:
        run(["-W", "ignore", "-c", ALONE, env_id, str(num_envs)], folder, core, folder)
        return float(Path(folder, "log.txt").read_text().split("alone:")[1])


def trained(script, env_id, num_envs, flags, total, core, cache):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tempfile.TemporaryDirectory() as folder:
        words = f"--env-id {env_id} --num-envs {num_envs} {flags} --total-timesteps {total} --no-cuda".split()
        words += f"--eval-episodes 1 --save-every 0 --runs-dir {folder}".split()
        run([f"cleanrl_lite/{script}.py", *words], folder, core, cache)
        run_dir = next(Path(folder).glob("*/args.json")).parent
        points = EventAccumulator(str(run_dir), size_guidance=dict(scalars=0)).Reload().Scalars("charts/SPS")
        return median(point.value for point in points[len(points) // 2 :])


def table(record):
    names = "environment, flags | script | envpool | its parent | ratio (min to max) | envpool alone | part of it"
    rows = [f"| {names} |", "|---|---|---:|---:|---:|---:|---:|"]
    for case in record["cases"]:
        sides = [case[side] for side in ("script_sps", "parent_sps", "alone_sps")]
        ratios, parts = ([a / b for a, b in zip(sides[0], other)] for other in sides[1:])
        ours, parents, bare = (f"{median(side):,.0f}" for side in sides)
        ratio = f"**{median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"
        what = f"{case['env_id']}, `--num-envs {case['num_envs']} {case['flags']}` | {case['script']}"
        rows.append(f"| {what} | {ours} | {parents} | {ratio} | {bare} | {100 * median(parts):.0f} % |")
    rounds = len(record["cases"][0]["script_sps"])
    software = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    loads = [load for case in record["cases"] for load in case["loads"]]
    note = f"Environment steps per second; one core, one thread, medians of {rounds} rounds. {record['hardware']}; "
    note += f"load while it was measured {min(loads):.1f} to {max(loads):.1f}; {software}; commit {record['commit']}."
    return "\n".join(rows) + f"\n\n{note}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="rounds")
    parser.add_argument("--core", type=int, default=0, help="core to pin all runs to")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    path = RESULTS / "speed_envpool.json"
    if not args.table:
        os.chdir(ROOT)
        cases = []
        with tempfile.TemporaryDirectory() as caches:
            for script, parent, env_id, num_envs, flags, total in CASES:
                case = dict(script=script, parent=parent, env_id=env_id, num_envs=num_envs, flags=flags, total=total)
                case |= dict(script_sps=[], parent_sps=[], alone_sps=[], loads=[])
                for _ in range(args.pairs):
                    for side, name in (("script_sps", script), ("parent_sps", parent)):
                        sps = trained(name, env_id, num_envs, flags, total, args.core, f"{caches}/{name}")
                        case[side].append(round(sps))
                    case["alone_sps"].append(round(alone(env_id, num_envs, args.core)))
                    case["loads"].append(os.getloadavg()[0])
                    print(env_id, num_envs, *(f"{case[s][-1]:,}" for s in case if s.endswith("_sps")), flush=True)
                cases.append(case)
        record = dict(commit=commit(), versions=versions(), hardware=hardware(), date=time.strftime("%FT%T%z"))
        record |= dict(command=" ".join(["python", *sys.argv]), cases=cases)
        path.write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / "speed_envpool.md").write_text(table(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
