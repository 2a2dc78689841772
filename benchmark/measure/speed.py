"""Speed of the scripts against Stable-Baselines3 on one CPU core.

    python -m benchmark.measure.speed                                             the published figures, about an hour
    python -m benchmark.measure.speed --script dqn,c51 --pairs 3                  some scripts, three pairs of runs
    python -m benchmark.measure.speed --script ppo_continuous --env-id Hopper-v4  another environment, compiled
    python -m benchmark.measure.speed --script ppo_atari --bf16 --pairs 7         the script's environment, --bf16, seven pairs
    python -m benchmark.measure.speed --from-results                              only the table, from the recorded figures

Both sides use the script's hyperparameters, one torch thread and their TensorBoard logging. They
run in turns, each in a fresh process pinned to the same core; each of our modes is compared with
the Stable-Baselines3 run of its round. The speed of a run is the median over the second half of its
iterations, as many on both sides, timed from the end of one update to the end of the next: acting,
learning, logging and printing count, evaluations do not. An iteration of PPO is a rollout and its
update; an iteration of the other scripts is EVERY steps after learning has started. On both sides
learning starts after 1,000 steps, Atari has a small replay buffer, and epsilon falls over the short
run, so that its second half has as few random actions as the end of a long run. speed_sb3.py lists
the remaining differences. Stable-Baselines3 has no C51: c51 is compared with its DQN.

Peak memory is VmHWM of the process itself, without compilers, with a cold or a warm cache, whichever is more. Our
replay buffer takes its memory as it fills, like theirs; a short run fills little of it. The machine should be idle. Raw
figures go to benchmark/results/speed/*.json, and the table of all of them to results/speed.md.
"""

import argparse
import ast
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from statistics import median

from benchmark.shared import RESULTS, ROOT, commit, default_args, hardware, versions

# Iterations of a run, the same on both sides and in all modes: a longer run may be a faster one.
ITERATIONS = {"ppo": 400, "ppo_continuous": 24, "ppo_atari": 6}
ITERATIONS |= {"dqn": 60, "c51": 60, "dqn_atari": 6, "c51_atari": 6}
ITERATIONS |= {"ddpg": 8, "td3": 7, "sac": 6}  # as many steps, so episodes as long
# Steps of an iteration without rollouts, multiples of the 100 steps between two logs. In CartPole there are enough of
# them for every iteration to have its share of ends of episodes and target updates.
EVERY = {"dqn": 1000, "c51": 1000, "ddpg": 100, "td3": 100, "sac": 100, "dqn_atari": 100, "c51_atari": 100}
MODES = {"compiled": [], "eager": ["--no-compile"], "bf16": ["--bf16"], "bf16-eager": ["--bf16", "--no-compile"]}
PUBLISHED = [
    ("ppo", "CartPole-v1", ["compiled", "eager"]),
    ("ppo_continuous", "Hopper-v4", ["compiled", "eager"]),
    ("ppo_atari", "BreakoutNoFrameskip-v4", ["compiled", "bf16", "eager"]),
    ("dqn", "CartPole-v1", ["compiled", "eager"]),
    ("c51", "CartPole-v1", ["compiled", "eager"]),
    ("dqn_atari", "BreakoutNoFrameskip-v4", ["compiled", "bf16"]),
    ("c51_atari", "BreakoutNoFrameskip-v4", ["compiled", "bf16"]),
    ("ddpg", "Hopper-v4", ["compiled", "bf16", "eager"]),
    ("td3", "Hopper-v4", ["compiled", "bf16", "eager"]),
    ("sac", "Hopper-v4", ["compiled", "bf16", "eager"]),
]


def run(command, folder, core, cache, last_words=None):
    """Runs a command pinned to `core`; returns when it began and its peak resident memory in MB.

    After its `last_words` a script has finished training: SIGTERM skips the evaluation, which may be a long game.
    """
    log, peak, stopped = Path(folder, "log.txt"), 0, False
    pin = ["taskset", "--cpu-list", str(core), sys.executable]
    began, env = time.time(), os.environ | dict(TORCHINDUCTOR_CACHE_DIR=cache)
    with open(log, "w") as file:
        process = subprocess.Popen(pin + command, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT)
    while process.poll() is None:
        found = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{process.pid}/status").read_text())
        peak = max(peak, int(found[1]) if found else 0)
        if last_words and not stopped and last_words in log.read_text():
            process.terminate()
            stopped = True
        time.sleep(0.05)
    if process.returncode not in ((0, 143) if stopped else (0,)) or "compilation failed" in log.read_text():
        raise SystemExit(f"error: {' '.join(command)}: exit status {process.returncode}\n{log.read_text()[-2000:]}")
    return began, round(peak * 1024 / 1e6)


def shortened(script):
    """Settings of a short off-policy run that replace the script's defaults, on both sides."""
    changed = dict(learning_starts=1000) if script in EVERY else {}
    return changed | (dict(buffer_size=20_000) if changed and "atari" in script else {})


def measure(side, script, env_id, args, iterations, core, cache):
    """One run of `side` ("sb3" or one of our modes): speed, seconds to the end of the first update, memory."""
    every = EVERY.get(script) or args["num_envs"] * args["num_steps"]
    learning_starts = args.get("learning_starts", 0)
    total, result = learning_starts + iterations * every, {}
    with tempfile.TemporaryDirectory() as folder:
        if side == "sb3":
            log_every = 100 if script in EVERY else every
            command = ["benchmark/measure/speed_sb3.py", script, env_id, json.dumps(args), str(total), str(log_every), folder]
            began, peak = run(command, folder, core, cache)
            times = json.loads(Path(folder, "times.json").read_text())
            marks, result = times["marks"], dict(policy_delay=times["policy_delay"])
        else:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

            flags = f"--env-id {env_id} --total-timesteps {total} --threads 1 --no-cuda --eval-episodes 1".split()
            flags += [f"--{name.replace('_', '-')}={value}" for name, value in shortened(script).items()]
            command = [f"cleanrl_lite/{script}.py", *flags, "--runs-dir", folder, *MODES[side]]
            began, peak = run(command, folder, core, cache, f"step {total:,} of" if "atari" in script else None)
            run_dir = next(Path(folder).glob("*/args.json")).parent
            events = EventAccumulator(str(run_dir), size_guidance=dict(scalars=0)).Reload().Scalars("charts/SPS")
            events = [event for event in events if event.step > learning_starts]
            marks = [(event.step, event.wall_time) for event in events]
            result = dict(charts_sps=round(median(event.value for event in events[len(events) // 2 :]), 1))
    ends = [when for step, when in marks if step % every == 0]
    sps = [round(every / (end - start), 1) for start, end in zip(ends, ends[1:])]
    result |= dict(first_update_s=round(marks[0][1] - began, 2), peak_mb=peak)
    return result | dict(sps=round(median(sps[len(sps) // 2 :]), 1), iteration_sps=sps) if sps else result


def compare(script, env_id, modes, pairs, core, iterations, with_cold=True):
    """Alternates Stable-Baselines3 and all `modes`; writes one JSON file per mode."""
    args, load = default_args((ROOT / f"cleanrl_lite/{script}.py").read_text()), os.getloadavg()[0]
    env_id, args = env_id or args["env_id"], args | shortened(script)
    length = iterations or ITERATIONS[script]
    runs, cold = {side: [] for side in ("sb3", *modes)}, {}
    with tempfile.TemporaryDirectory() as caches:
        for mode in modes:
            if with_cold and "eager" not in mode:  # the first run has an empty cache
                cold[mode] = measure(mode, script, env_id, args, 1, core, f"{caches}/{mode}")
        for pair in range(pairs):
            for side in runs:
                runs[side].append(measure(side, script, env_id, args, length, core, f"{caches}/{side}"))
                sps = runs[side][-1]["sps"]
                print(f"{script} {env_id}, pair {pair + 1} of {pairs}, {side}: {sps:,.0f} steps/s", flush=True)
    keys = ("sps", "first_update_s", "peak_mb")
    middle = {side: {key: median(run[key] for run in runs[side]) for key in keys} for side in runs}
    for mode in modes:
        ratios = [round(a["sps"] / b["sps"], 3) for a, b in zip(runs[mode], runs["sb3"])]
        record = dict(script=script, env_id=env_id, mode=mode, flags=MODES[mode], commit=commit(), versions=versions())
        record |= dict(hardware=hardware(), core=core, load_at_start=load, date=time.strftime("%FT%T%z"))
        record |= dict(command=" ".join(["python -m benchmark.measure.speed", *sys.argv[1:]]), args=args, cold=cold.get(mode))
        record |= dict(ratio=median(ratios), ratios=ratios, ours=middle[mode], sb3=middle["sb3"])
        record |= dict(ours_runs=runs[mode], sb3_runs=runs["sb3"])
        path = RESULTS / "speed" / f"{script}__{env_id.replace('/', '-')}__{mode}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in record.items()]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def unequal(record):
    """What was not the same on both sides of a recorded comparison, in words; "" where all was."""
    lengths = [len(record[side][0]["iteration_sps"]) + 1 for side in ("ours_runs", "sb3_runs")]
    if lengths[0] != lengths[1]:
        return f"ours was timed over {'more' if lengths[0] > lengths[1] else 'fewer'} iterations"
    delay = record["sb3_runs"][0].get("policy_delay") or 1
    if record["script"] == "ddpg" and delay != record["args"]["policy_frequency"]:
        return "Stable-Baselines3 updated the actor at every step, ours at every second"
    return ""


def speed_rows(records):
    yield "| script | environment | mode | steps/s | SB3's | ratio (min to max) |"
    yield "|---|---|---|---:|---:|---:|"
    for r in records:
        ours, sb3, star = r["ours"], r["sb3"], "\\*" if unequal(r) else ""
        ratio = f"**{r['ratio']:.2f}**{star} ({min(r['ratios']):.2f} to {max(r['ratios']):.2f})"
        speeds = [f"{side['sps']:,.0f}" for side in (ours, sb3)]
        yield f"| {' | '.join([r['script'], r['env_id'], r['mode'], *speeds, ratio])} |"


def start_rows(records):
    yield "| script | mode | first update, cold cache | warm | SB3's | peak memory | SB3's |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for r in records:
        ours, sb3, cold = r["ours"], r["sb3"], r["cold"] or dict(first_update_s=None, peak_mb=0)
        seconds = [f"{side['first_update_s']:.1f} s" if side["first_update_s"] else "" for side in (cold, ours, sb3)]
        memory = [f"{peak:.0f} MB" for peak in (max(ours["peak_mb"], cold["peak_mb"]), sb3["peak_mb"])]
        yield f"| {' | '.join([r['script'], r['mode'], *seconds, *memory])} |"


def stars(records):
    """What the stars in the table mean: a sentence for each difference between the sides."""
    rows = {}
    for r in records:
        if unequal(r):
            rows.setdefault(unequal(r), []).append(f"{r['script']} {r['mode']}")
    found = [f"{', '.join(names)}: {why}" for why, names in rows.items()]
    if not found:
        return ""
    return f"\\* Not the same on both sides, to be measured again. {'; '.join(found)}."


def made_on(record):
    return f"{record['hardware']}, {', '.join(map(' '.join, record['versions'].items()))}"


def table(records):
    """Markdown: speed, start and memory, how they were measured; folded: machines and commits."""
    pairs = " or ".join(sorted({str(len(r["ratios"])) for r in records}))
    note = f"One core, one thread, medians of {pairs} pairs. Speed is that of a run's second half."
    if any(r["script"].startswith("c51") for r in records):
        note += " SB3 has no C51: those rows compare with its DQN, which does less."
    start = "The first update's seconds count from the process's start."
    if any(r["script"] in EVERY for r in records):
        start += " Off-policy scripts, both sides: learning starts after 1,000 steps, and its first 100"
        start += " steps count as the first update; Atari has a replay buffer of 20,000; memory is that"
        start += " of a nearly empty replay buffer."
    speed, begin = "\n".join(speed_rows(records)), "\n".join(start_rows(records))
    parts = [speed, note, stars(records), begin, start]
    made = sorted({made_on(record) for record in records})
    commits = ", ".join(sorted({r["commit"] for r in records}))
    lines = ['??? note "Command, machines, versions and commits"', ""]
    lines += [f"    `python -m benchmark.measure.speed`, at commits {commits}, on:", ""]
    lines += [f"    - {on}" for on in made]
    return "\n\n".join(part for part in [*parts, "\n".join(lines)] if part) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    several = dict(type=lambda text: text.split(","), action="extend")
    parser.add_argument("--script", **several, help="one, or several separated by commas (default: all)")
    parser.add_argument(
        "--env-id", help="environment (default: the published one; with --bf16 or --no-compile the script's)"
    )
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs")
    parser.add_argument("--core", type=int, default=0, help="core to pin all runs to")
    parser.add_argument("--bf16", action="store_true", help="run the script with --bf16")
    parser.add_argument("--no-compile", action="store_true", help="run the script with --no-compile")
    parser.add_argument("--iterations", type=int, help="iterations of a run, on both sides")
    parser.add_argument("--from-results", action="store_true", help="only make the table again")
    parser.add_argument("--modes", **several, help="some of the published modes: compiled, eager, bf16 (default: all)")
    parser.add_argument("--no-cold", action="store_true", help="skip the runs with an empty compile cache")
    args = parser.parse_args()
    if args.from_results:
        return write_table()
    scripts = args.script or list(ITERATIONS)
    if not set(scripts) <= set(ITERATIONS):
        parser.error(f"--script takes {', '.join(ITERATIONS)}")
    os.sched_setaffinity(0, (os.sched_getaffinity(0) - {args.core}) or {args.core})  # out of the way
    if os.getloadavg()[0] > 0.5:
        print(f"warning: the machine is not idle (load {os.getloadavg()[0]:.1f})", file=sys.stderr)
    mode = next(m for m, flags in MODES.items() if flags == ["--bf16"] * args.bf16 + ["--no-compile"] * args.no_compile)
    rows = [row for row in PUBLISHED if row[0] in scripts]
    if args.env_id or mode != "compiled":
        rows = [(script, args.env_id, [mode]) for script in scripts]
    for script, env_id, modes in rows:
        modes = [mode for mode in modes if mode in (args.modes or MODES)]
        compare(script, env_id, modes, args.pairs, args.core, args.iterations, not args.no_cold)
    write_table()


def write_table():
    records = [json.loads(path.read_text()) for path in sorted((RESULTS / "speed").glob("*.json"))]
    (RESULTS / "speed.md").write_text(table(records))
    print(table(records))


if __name__ == "__main__":
    main()
