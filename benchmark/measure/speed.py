"""Speed of the scripts against Stable-Baselines3 on one CPU core.

    python -m benchmark.measure.speed                           the published figures, about an hour
    python -m benchmark.measure.speed --script dqn,c51 --pairs 3                   some of them
    python -m benchmark.measure.speed --script ppo_continuous --env-id Hopper-v4   compiled only
    python -m benchmark.measure.speed --script ppo_atari --bf16 --pairs 7          with --bf16
    python -m benchmark.measure.speed --from-results            only the table, from the figures

Both sides use the script's hyperparameters, one torch thread and their TensorBoard logging. They
run in turns, each in a fresh process pinned to the same core; each of our modes is compared with
the Stable-Baselines3 run of its round. The speed of a run is the median over the second half of its
iterations, as many on both sides, timed from the end of one update to the end of the next: acting,
learning, logging and printing count, evaluations do not. An iteration of PPO is a rollout and its
update; an iteration of the other scripts is EVERY steps after learning has started. On both sides
learning starts after 1,000 steps, Atari has a small replay buffer, and epsilon falls over the short
run, so that its second half has as few random actions as the end of a long run. speed_sb3.py lists
the remaining differences. Stable-Baselines3 has no C51: c51 is compared with its DQN.

Peak memory is VmHWM of the process itself, without compilers, with a cold or a warm cache,
whichever is more. Our replay buffer takes its memory as it fills, like theirs; a short run fills
little of it. The machine should be idle. Raw figures go to benchmark/results/speed/*.json, and the
table of all of them to results/speed.md.
"""

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmark import shared
from benchmark.shared import (
    RESULTS,
    ROOT,
    commit,
    hardware,
    made_on,
    row,
    script_defaults,
    versions,
)

# Iterations of a run, the same on both sides and in all modes: a longer run may be a faster one.
ITERATIONS = {
    "ppo": 400,
    "ppo_continuous": 24,
    "ppo_atari": 6,
    "dqn": 60,
    "c51": 60,
    "dqn_atari": 6,
    "c51_atari": 6,
    "ddpg": 8,  # of ddpg, td3 and sac as many steps, so that their episodes are as long
    "td3": 7,
    "sac": 6,
}
# Steps of an iteration without rollouts, multiples of the 100 steps between two logs. In CartPole
# there are enough of them for every iteration to have its share of ends of episodes and target
# updates.
EVERY = {
    "dqn": 1000,
    "c51": 1000,
    "ddpg": 100,
    "td3": 100,
    "sac": 100,
    "dqn_atari": 100,
    "c51_atari": 100,
}
MODES = {
    "compiled": [],
    "eager": ["--no-compile"],
    "bf16": ["--bf16"],
    "bf16-eager": ["--bf16", "--no-compile"],
}
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


# === runs
def run(command, folder, core, cache, enough=None, python=sys.executable, variables=None):
    """Runs a command pinned to `core`; returns when it began and its peak resident memory in MB.

    `cache` is its folder of temporary files, where torch and RLtools keep what they have compiled.
    SIGTERM ends it as soon as enough() is true. `variables` are added to its environment.
    """
    log = Path(folder, "log.txt")
    pin = ["taskset", "--cpu-list", str(core), str(python)]
    Path(cache).mkdir(parents=True, exist_ok=True)
    # The trap: torch has its precompiled headers there even if TORCHINDUCTOR_CACHE_DIR is set.
    env = {**os.environ, "TMPDIR": str(cache), **(variables or {})}
    env.pop("TORCHINDUCTOR_CACHE_DIR", None)
    began = time.time()
    with open(log, "w") as file:
        process = subprocess.Popen(
            [*pin, *command],
            cwd=ROOT,
            env=env,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    peak = 0
    stopped = False
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s*(\d+)", status)
        peak = max(peak, int(found[1]) if found else 0)
        if enough and not stopped and enough():
            process.terminate()
            stopped = True
        time.sleep(0.05)
    # Our scripts exit with 143 after SIGTERM; others are killed by it.
    good = process.returncode == 0 or (stopped and process.returncode in (143, -signal.SIGTERM))
    if not good or "continuing in eager mode" in log.read_text():
        status = f"exit status {process.returncode}\n{log.read_text()[-2000:]}"
        raise SystemExit(f"error: {' '.join(command)}: {status}")
    return began, round(peak * 1024 / 1e6)


def shortened(script):
    """Settings of a short off-policy run that replace the script's defaults, on both sides."""
    if script not in EVERY:
        return {}
    changed = {"learning_starts": 1000}
    if "atari" in script:
        changed["buffer_size"] = 20_000
    return changed


def run_sb3(script, env_id, args, total, every, folder, core, cache):
    """When it began, its peak memory, [(step, time)] and its policy_delay."""
    command = ["benchmark/measure/speed_sb3.py", script, env_id, json.dumps(args)]
    began, peak = run([*command, str(total), str(every), folder], folder, core, cache)
    times = json.loads(Path(folder, "times.json").read_text())
    return began, peak, times["marks"], {"policy_delay": times["policy_delay"]}


def run_ours(script, env_id, mode, total, learning_starts, folder, core, cache):
    """When it began, its peak memory, [(step, time)] and the median of charts/SPS."""
    command = [f"cleanrl_lite/{script}.py", "--env-id", env_id, "--total-timesteps", str(total)]
    command += ["--threads", "1", "--no-cuda", "--eval-episodes", "1", "--runs-dir", folder]
    for name, value in shortened(script).items():
        command.append(f"--{name.replace('_', '-')}={value}")

    def trained():
        """Has training ended? Then SIGTERM skips the evaluation, which may be a long game."""
        return "atari" in script and f"step {total:,} of" in Path(folder, "log.txt").read_text()

    began, peak = run([*command, *MODES[mode]], folder, core, cache, trained)
    (path,) = Path(folder).glob("*/args.json")
    events = shared.events(path.parent).Scalars("charts/SPS")
    events = [event for event in events if event.step > learning_starts]
    marks = [(event.step, event.wall_time) for event in events]
    charts_sps = median(event.value for event in events[len(events) // 2 :])
    return began, peak, marks, {"charts_sps": round(charts_sps, 1)}


def measure(side, script, env_id, args, iterations, core, cache):
    """One run of "sb3" or of one of our modes: speed, seconds to the first update, memory."""
    every = EVERY.get(script) or args["num_envs"] * args["num_steps"]
    learning_starts = args.get("learning_starts", 0)
    total = learning_starts + iterations * every
    with tempfile.TemporaryDirectory() as folder:
        if side == "sb3":
            log_every = 100 if script in EVERY else every
            found = run_sb3(script, env_id, args, total, log_every, folder, core, cache)
        else:
            found = run_ours(script, env_id, side, total, learning_starts, folder, core, cache)
    began, peak, marks, result = found
    ends = [when for step, when in marks if step % every == 0]
    sps = [round(every / (end - start), 1) for start, end in itertools.pairwise(ends)]
    result["first_update_s"] = round(marks[0][1] - began, 2)
    result["peak_mb"] = peak
    if sps:
        result["sps"] = round(median(sps[len(sps) // 2 :]), 1)
        result["iteration_sps"] = sps
    return result


def prepare(core):
    """Leaves the core to the runs, and warns if something else is running."""
    others = os.sched_getaffinity(0) - {core}
    os.sched_setaffinity(0, others or {core})
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: the machine is not idle (load {load:.1f})", file=sys.stderr)


# === comparisons
def compare(script, env_id, modes, pairs, core, iterations, with_cold=True):
    """Alternates Stable-Baselines3 and all `modes`; writes one JSON file per mode."""
    load = os.getloadavg()[0]
    args = {**script_defaults(script), **shortened(script)}
    env_id = env_id or args["env_id"]
    length = iterations or ITERATIONS[script]
    runs = {side: [] for side in ("sb3", *modes)}
    cold = {}
    with tempfile.TemporaryDirectory() as caches:
        for mode in modes:
            if with_cold and "eager" not in mode:  # the first run has an empty cache
                cold[mode] = measure(mode, script, env_id, args, 1, core, f"{caches}/{mode}")
        for pair in range(pairs):
            for side in runs:
                cache = f"{caches}/{side}"
                result = measure(side, script, env_id, args, length, core, cache)
                runs[side].append(result)
                which = f"{script} {env_id}, pair {pair + 1} of {pairs}, {side}"
                print(f"{which}: {result['sps']:,.0f} steps/s", flush=True)
    for mode in modes:
        pairs_of_sps = zip(runs[mode], runs["sb3"], strict=True)
        ratios = [round(ours["sps"] / sb3["sps"], 3) for ours, sb3 in pairs_of_sps]
        record = {
            "script": script,
            "env_id": env_id,
            "mode": mode,
            "flags": MODES[mode],
            "commit": commit(),
            "versions": versions(),
            "hardware": hardware(),
            "core": core,
            "load_at_start": load,
            "date": time.strftime("%FT%T%z"),
            "command": shlex.join(["python", "-m", "benchmark.measure.speed", *sys.argv[1:]]),
            "args": args,
            "cold": cold.get(mode),
            "ratio": median(ratios),
            "ratios": ratios,
            "ours": medians(runs[mode]),
            "sb3": medians(runs["sb3"]),
            "ours_runs": runs[mode],
            "sb3_runs": runs["sb3"],
        }
        write(record)


def medians(results):
    names = ("sps", "first_update_s", "peak_mb")
    return {name: median(result[name] for result in results) for name in names}


def write(record):
    """To a file of its own, with a line for each field."""
    env_id = record["env_id"].replace("/", "-")
    path = RESULTS / "speed" / f"{record['script']}__{env_id}__{record['mode']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in record.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


# === the table
def unequal(record):
    """What was not the same on both sides of a comparison, in words; "" where all was."""
    ours, theirs = (len(record[side][0]["iteration_sps"]) for side in ("ours_runs", "sb3_runs"))
    if ours != theirs:
        return f"ours was timed over {'more' if ours > theirs else 'fewer'} iterations"
    delay = record["sb3_runs"][0].get("policy_delay") or 1
    if record["script"] == "ddpg" and delay != record["args"]["policy_frequency"]:
        return "Stable-Baselines3 updated the actor at every step, ours at every second"
    return ""


def speed_rows(records):
    yield "| script | environment | mode | steps/s | SB3's | ratio (min to max) |"
    yield "|---|---|---|---:|---:|---:|"
    for record in records:
        star = "\\*" if unequal(record) else ""
        extent = f"{min(record['ratios']):.2f} to {max(record['ratios']):.2f}"
        cells = [
            record["script"],
            record["env_id"],
            record["mode"],
            f"{record['ours']['sps']:,.0f}",
            f"{record['sb3']['sps']:,.0f}",
            f"{record['ratio']:.2f}{star} ({extent})",
        ]
        yield row(cells)


def start_rows(records):
    yield "| script | mode | first update, cold cache | warm | SB3's | peak memory | SB3's |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for record in records:
        ours = record["ours"]
        sb3 = record["sb3"]
        cold = record["cold"] or {"first_update_s": None, "peak_mb": 0}
        seconds = [side["first_update_s"] for side in (cold, ours, sb3)]
        memory = [max(ours["peak_mb"], cold["peak_mb"]), sb3["peak_mb"]]
        cells = [record["script"], record["mode"]]
        cells += [f"{second:.1f} s" if second else "" for second in seconds]
        cells += [f"{peak:.0f} MB" for peak in memory]
        yield row(cells)


def stars(records):
    """What the stars in the table mean: a sentence for each difference between the sides."""
    rows = {}
    for record in records:
        if why := unequal(record):
            rows.setdefault(why, []).append(f"{record['script']} {record['mode']}")
    found = [f"{', '.join(names)}: {why}" for why, names in rows.items()]
    if not found:
        return ""
    return f"\\* Not the same on both sides, to be measured again. {'; '.join(found)}."


def table(records):
    """Markdown: speed, start and memory, how they were measured; folded: machines and commits."""
    pairs = " or ".join(sorted({str(len(record["ratios"])) for record in records}))
    note = f"One core, one thread, medians of {pairs} pairs. Speed is that of a run's second half."
    if any(record["script"].startswith("c51") for record in records):
        note += " SB3 has no C51: those rows compare with its DQN, which does less."
    start = "The first update's seconds count from the process's start."
    if any(record["script"] in EVERY for record in records):
        start += " Off-policy scripts, both sides: learning starts after 1,000 steps, and its first"
        start += " 100 steps count as the first update; Atari has a replay buffer of 20,000; memory"
        start += " is that of a nearly empty replay buffer."
    measured_on = shared.made_by(
        "python -m benchmark.measure.speed",
        places=map(made_on, records),
        commits=[record["commit"] for record in records],
    )
    parts = [
        "\n".join(speed_rows(records)),
        note,
        stars(records),
        "\n".join(start_rows(records)),
        start,
        measured_on,
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def write_table():
    paths = sorted((RESULTS / "speed").glob("*.json"))
    records = [json.loads(path.read_text()) for path in paths]
    (RESULTS / "speed.md").write_text(table(records))
    print(table(records))


# === the command line
def words(text):
    return text.split(",")


def parse():
    parser = shared.parser(__doc__)
    add = parser.add_argument
    several = {"type": words, "action": "extend"}
    add("--script", **several, help="one, or several separated by commas (default: all)")
    add(
        "--env-id",
        help="environment (default: the published one; with --bf16 or --no-compile the script's)",
    )
    add("--pairs", type=int, default=5, help="pairs of runs")
    add("--core", type=int, default=0, help="core to pin all runs to")
    add("--bf16", action="store_true", help="run the script with --bf16")
    add("--no-compile", action="store_true", help="run the script with --no-compile")
    add("--iterations", type=int, help="iterations of a run, on both sides")
    add("--from-results", action="store_true", help="only make the table again")
    add(
        "--modes",
        **several,
        help="some of the published modes: compiled, eager, bf16 (default: all)",
    )
    add("--no-cold", action="store_true", help="skip the runs with an empty compile cache")
    args = parser.parse_args()
    if not set(args.script or []) <= set(ITERATIONS):
        given = ",".join(args.script)
        parser.error(f"--script takes some of {', '.join(ITERATIONS)}, got {given}")
    if not set(args.modes or []) <= set(MODES):
        parser.error(f"--modes takes some of {', '.join(MODES)}, got {','.join(args.modes)}")
    return args


def main():
    args = parse()
    if args.from_results:
        write_table()
        return
    scripts = args.script or list(ITERATIONS)
    prepare(args.core)
    flags = ["--bf16"] * args.bf16 + ["--no-compile"] * args.no_compile
    (mode,) = [name for name, its_flags in MODES.items() if its_flags == flags]
    rows = [published for published in PUBLISHED if published[0] in scripts]
    if args.env_id or mode != "compiled":
        rows = [(script, args.env_id, [mode]) for script in scripts]
    for script, env_id, modes in rows:
        modes = [mode for mode in modes if mode in (args.modes or MODES)]
        if not modes:
            print(f"{script}: not published in these modes")
            continue
        compare(script, env_id, modes, args.pairs, args.core, args.iterations, not args.no_cold)
    write_table()


if __name__ == "__main__":
    main()
