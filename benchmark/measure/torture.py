"""Kills runs at random moments and compares them with an undisturbed run; watches for leaks.

    python -m benchmark.measure.torture              7 SIGKILLs and 3 SIGTERMs for each script
    python -m benchmark.measure.torture --scripts ppo --kills 2 --terms 1 --no-record
    python -m benchmark.measure.torture --leaks      memory and open files of long runs
    python -m benchmark.measure.torture --table      results/torture.md from results/torture.json

After each kill the same command starts again, with --resume auto, as on a cluster. New episodes
begin then, so the numbers are others than those of a whole run. The same must be: the last step;
the number of updates; the steps of each logged scalar, each once; learning rates and epsilon. After
the last kill, a resumed run must have all parts of the checkpoint to the bit, and two resumed runs
of the same checkpoint must be equal to the end. All scripts take about an hour.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch

from benchmark import shared
from benchmark.shared import RESULTS, ROOT, commit, machine, made_on, row

RECORD = RESULTS / "torture.json"
OFF_POLICY = "--learning-starts 1000 --save-every 100 --eval-every 4000"
ATARI = "--env-id PongNoFrameskip-v4 --num-envs 4 --save-every 100 --eval-episodes 1"
FRAMES = f"{ATARI} --total-timesteps 1200 --learning-starts 400 --buffer-size 5000"
PIXELS = f"{ATARI} --total-timesteps 1024 --num-steps 32"
CARTPOLE = "--env-id CartPole-v1 --total-timesteps 120000"
HOPPER = "--env-id Hopper-v4 --total-timesteps 30000 --num-steps 256 --save-every 256"
PENDULUM = f"--env-id Pendulum-v1 --total-timesteps 2500 --num-envs 2 {OFF_POLICY}"
# A few seconds each, with a checkpoint about every 0.1 s
RUNS = {
    **dict.fromkeys(["vpg", "a2c", "ppo_simple"], f"{CARTPOLE} --save-every 512"),
    **dict.fromkeys(["ppo_simple_continuous", "ppo_continuous_adaptive"], HOPPER),
    **dict.fromkeys(["tqc", "crossq"], PENDULUM),
    **dict.fromkeys(["ppo_atari", "ppo_atari_multigpu", "ppo_atari_visual", "pqn_atari"], PIXELS),
    **dict.fromkeys(["dqn_atari", "dqn_atari_visual", "c51_atari", "c51_atari_visual"], FRAMES),
    **dict.fromkeys(["sac_atari", "rainbow_atari"], FRAMES),
    "ppo": f"{CARTPOLE} --save-every 512 --eval-every 40000",
    "ppo_continuous": f"{HOPPER} --eval-every 8000",
    "a2c_continuous": "--env-id Hopper-v4 --total-timesteps 120000 --save-every 512",
    "ppo_hybrid": (
        "--env-id tests.probe_envs:ProbeMixed-v0 --total-timesteps 60000 --save-every 2048"
    ),
    "ppo_continuous_asymmetric": (
        "--env-id tests.probe_envs:ProbePrivileged-v0 --total-timesteps 60000 --save-every 512"
    ),
    "ppo_masked": "--env-id Taxi-v4 --total-timesteps 60000 --save-every 512 --eval-every 40000",
    "ppo_multiagent": (
        "--env-id tests.probe_envs:ProbeAlone-v0 --total-timesteps 60000 --save-every 512 "
        "--eval-every 40000"
    ),
    "ppo_envpool": (
        "--env-id CartPole-v1 --total-timesteps 200000 --save-every 2048 --eval-every 80000"
    ),
    "ppo_continuous_envpool": (
        "--env-id Hopper-v4 --total-timesteps 30000 --num-steps 64 --save-every 512"
    ),
    "ppo_continuous_mjx": (
        "--env-id inverted_pendulum --num-envs 16 --num-steps 64 --total-timesteps 60000 "
        "--save-every 2048"
    ),
    "fast_td3_mjx": (
        "--env-id inverted_pendulum --num-envs 16 --train-frequency 16 --batch-size 64 "
        "--learning-starts 320 --buffer-size 10000 --total-timesteps 30000 --save-every 1024 "
        "--v-min 0 --v-max 100"
    ),
    "ppo_lstm": (
        "--env-id CartPole-v1 --total-timesteps 40000 --save-every 512 --eval-every 15000 "
        "--seq-len 8"
    ),
    "ppo_continuous_lstm": (
        "--env-id Hopper-v4 --total-timesteps 30000 --num-steps 64 --save-every 512 "
        "--eval-every 15000 --seq-len 8 --num-minibatches 4 --update-epochs 2"
    ),
    "pqn": f"{CARTPOLE} --save-every 512 --eval-every 40000",
    "dqn": f"--env-id CartPole-v1 --total-timesteps 16000 {OFF_POLICY}",
    "sac_discrete": f"--env-id CartPole-v1 --total-timesteps 10000 {OFF_POLICY}",
    "c51": f"--env-id Acrobot-v1 --total-timesteps 10000 {OFF_POLICY}",
    "rainbow": f"--env-id Acrobot-v1 --total-timesteps 6000 {OFF_POLICY}",
    "ddpg": f"--env-id Pendulum-v1 --total-timesteps 4000 --num-envs 2 {OFF_POLICY}",
    "td3": f"--env-id Hopper-v4 --total-timesteps 3000 {OFF_POLICY}",
    "fast_td3": f"--env-id Hopper-v4 --total-timesteps 16000 {OFF_POLICY}",
    "sac": f"--env-id HalfCheetah-v4 --total-timesteps 2500 --num-envs 2 {OFF_POLICY}",
    "sac_her": (
        f"--env-id tests.probe_envs:ProbeReach-v0 --total-timesteps 2500 --num-envs 2 {OFF_POLICY}"
    ),
    "ppo_atari_lstm": f"{PIXELS} --seq-len 8",
    "ppo_image": (
        "--env-id tests.probe_envs:ProbeDrawn-v0 --image-size 36 --total-timesteps 6000 "
        "--save-every 1000"
    ),
    "ppo_selfplay": (
        "--env-id tests.probe_envs:ProbeNim-v0 --total-timesteps 60000 --save-every 4096 "
        "--eval-every 40000"
    ),
    "ppo_godot": (
        "--env-path tests/like_godot.x86_64 --total-timesteps 30000 --save-every 2048 "
        "--eval-every 16000"
    ),
    "ppo_microrts": (
        "--opponents passiveAI --max-episode-steps 200 --total-timesteps 2048 "
        "--num-steps 32 --num-envs 2 --save-every 64 --eval-episodes 1"
    ),
}
# What a run that continues has, written at once: its checkpoint again
RESTORE = """
from cleanrl_lite import utils

class Restored(utils.Run):
    def __init__(self, *given, **parts):
        super().__init__(*given, **parts)
        self.save()
        raise SystemExit

utils.Run = Restored
"""
EPISODES = "charts/episodic_", "charts/success_rate"
SCHEDULES = "charts/learning_rate", "charts/epsilon"
LONG = {  # long enough to fill the replay buffer
    "ppo": "--env-id CartPole-v1 --total-timesteps 500000",
    "dqn": "--env-id CartPole-v1 --total-timesteps 500000",
    "c51": "--env-id CartPole-v1 --total-timesteps 500000",
    "ppo_continuous": "--env-id Hopper-v4 --total-timesteps 300000",
    "sac": ("--env-id Hopper-v4 --total-timesteps 20000 --learning-starts 1000 --buffer-size 2000"),
}


# === processes
def log_of(folder):
    return folder.parent / f"{folder.name}.log"


def start(script, flags, folder, before=""):
    """The script in a process of its own, after these lines of Python."""
    option, code = shared.compiled_after(0, script)
    command = [sys.executable, option, before + code, *flags.split()]
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    with open(log_of(folder), "a") as log:
        return subprocess.Popen(
            [*command, "--runs-dir", str(folder)],
            env=environ,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def only_run(folder):
    """The run in the folder.

    One that was killed before its first checkpoint has no results and does not count.
    """
    found = [path.parent for path in folder.glob("*/checkpoint.pt")]
    assert len(found) <= 1, f"{len(found)} runs in {folder}"
    return found[0] if found else None


def has_saved_since(folder, moment):
    run_dir = only_run(folder)
    return run_dir and (run_dir / "checkpoint.pt").stat().st_mtime > moment


def is_saving(folder, since):
    """Is a checkpoint being written? A file from before is what an earlier kill has left."""
    for path in folder.glob("*/checkpoint.tmp"):
        with suppress(FileNotFoundError):
            return path.stat().st_mtime > since
    return False


def alive_in(group, stat):
    """Whether the process of this /proc/PID/stat belongs to the group and is not a zombie."""
    try:
        state, _, its_group, *_ = stat.read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return False
    return int(its_group) == group and state != "Z"


def group_is_gone(group):
    """Whether no process of the group is left after 5 s."""
    for _ in range(100):
        if not any(alive_in(group, stat) for stat in Path("/proc").glob("[0-9]*/stat")):
            return True
        time.sleep(0.05)
    return False


def last_line(folder):
    return log_of(folder).read_text().strip().splitlines()[-1]


def interrupt(script, flags, folder, number, rng, longest):
    """Starts or resumes the run and sends the signal; what came of it, or None if it had finished.

    The signal comes up to `longest` seconds after the first new checkpoint; half of the SIGKILLs
    then wait until the next checkpoint is being written.
    """
    began = time.time()
    process = start(script, flags, folder)
    while process.poll() is None and not has_saved_since(folder, began):
        time.sleep(0.01)
    with suppress(subprocess.TimeoutExpired):
        status = process.wait(rng.uniform(0, longest))
        assert status == 0, log_of(folder).read_text()[-2000:]
        return None
    if number == signal.SIGKILL and rng.random() < 0.5:  # into the next checkpoint
        since = time.time()
        while process.poll() is None and not is_saving(folder, since):
            pass
    sent = time.time()
    process.send_signal(number)
    status = process.wait(60)
    took = time.time() - sent
    run_dir = only_run(folder)
    if status in (0, -number) and last_line(folder).startswith("finished: "):
        return None  # Python no longer handles signals while it exits
    state = torch.load(run_dir / "checkpoint.pt", weights_only=True)  # whole, or this raises
    writing = is_saving(folder, began)
    assert status == (-9 if number == signal.SIGKILL else 128 + number), status
    assert group_is_gone(process.pid), "it left processes behind"
    return {
        "signal": signal.Signals(number).name,
        "step": state["global_step"],
        "seconds": round(took, 2),
        "writing": writing,
    }


# === comparisons
def scalars(run_dir):
    """{tag: [(step, value)]} but for the speed, each point once.

    A finished run that is resumed logs its evaluation again.
    """
    events = shared.events(run_dir)
    found = {}
    for tag in events.Tags()["scalars"]:
        if tag != "charts/SPS":
            points = [(event.step, event.value) for event in events.Scalars(tag)]
            found[tag] = list(dict.fromkeys(points))
    return found


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def same_part(one, other):
    """Is a part as it was saved? A replay of frames leaves out the newest of each environment's
    game, which ends with the process."""
    if not isinstance(one, dict) or "frames" not in one:
        return same(one, other)
    count = len(other["frames"])
    changed = (one["rows"][:count] != other["rows"]).any(-1).sum() + len(one["rows"]) - count
    return changed <= len(one["written"]) and same(one["frames"][:count], other["frames"])


def state_of(run_dir):
    """The checkpoint without what tells runs apart."""
    state = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    return {name: part for name, part in state.items() if name not in ("args", "id")}


def updates(part):
    """How many steps each optimizer has taken, in the order in which they are saved."""
    for name, value in part.items() if isinstance(part, dict) else []:
        if name == "step":
            yield int(value)
        yield from updates(value)


def returns(run_dir):
    return json.loads((run_dir / "eval.json").read_text())["returns"]


def against_whole(script, whole, parts):
    """The names of what is wrong in a run that was interrupted."""
    states = state_of(whole), state_of(parts)
    wrong = [] if states[0]["global_step"] == states[1]["global_step"] else ["global_step"]
    wrong += [] if [*updates(states[0])] == [*updates(states[1])] else ["updates"]
    curves, theirs = scalars(whole), scalars(parts)
    for tag in curves.keys() | theirs.keys():
        steps = [step for step, _ in theirs.get(tag, [])]
        good = steps == sorted(set(steps))  # each once
        if not tag.startswith(EPISODES):
            good = steps == [step for step, _ in curves.get(tag, [])]
        if tag in SCHEDULES and "adaptive" not in script:
            good = theirs.get(tag) == curves.get(tag)
        wrong += [] if good else [tag]
    return sorted(wrong)


def between(one, other):
    """The names of what differs in two runs that continued the same checkpoint."""
    curves, theirs = scalars(one), scalars(other)
    wrong = [tag for tag in curves | theirs if curves.get(tag) != theirs.get(tag)]
    states = state_of(one), state_of(other)
    wrong += [name for name in states[0] if not same(states[0][name], states[1].get(name))]
    wrong += [] if returns(one) == returns(other) else ["eval.json"]
    return [f"{name} of a second resume" for name in sorted(wrong)]


# === what is done
def finish(script, flags, folder, before=""):
    """Runs the script to its end; returns the run directory."""
    assert start(script, flags, folder, before).wait() == 0, log_of(folder).read_text()[-2000:]
    return only_run(folder)


def torture(script, kills, terms, mode, folder, seed):
    """A whole run of the script, an interrupted one, and what is wrong with that."""
    flags = f"{RUNS[script]} --resume auto {mode}"
    rng = random.Random(f"{seed} {script} {mode}")
    whole, parts, again, restored = (folder / name for name in ("whole", "parts", "again", "copy"))
    for path in (whole, parts):
        path.mkdir(parents=True)
    began = time.time()
    finish(script, flags, whole)
    duration = time.time() - began
    order = [signal.SIGKILL] * kills + [signal.SIGTERM] * terms
    rng.shuffle(order)
    longest = max(duration - 3, 1) * 1.5 / len(order)
    events = [interrupt(script, flags, parts, number, rng, longest) for number in order]
    shutil.copytree(parts, again)
    shutil.copytree(parts, restored)
    saved, kept = (state_of(finish(script, flags, restored, RESTORE)), state_of(only_run(parts)))
    wrong = [
        f"{name} after a resume" for name in kept if not same_part(kept[name], saved.get(name))
    ]
    wrong += between(finish(script, flags, parts), finish(script, flags, again))
    wrong += against_whole(script, only_run(whole), only_run(parts))
    return {
        "script": script,
        "flags": flags,
        "events": [event for event in events if event],
        "differs": wrong,
        "right": "steps, counts and parts right",
    }


def leaks(script, folder):
    """Memory (MB) and open files of a long run, every 5 s."""
    folder.mkdir(parents=True)
    began = time.time()
    process = start(script, LONG[script], folder)
    samples = []
    while process.poll() is None:
        time.sleep(5)
        proc = Path(f"/proc/{process.pid}")
        with suppress(OSError, TypeError):  # it has just ended
            kilobytes = int(re.search(r"VmRSS:\s*(\d+)", (proc / "status").read_text())[1])
            files = len(list((proc / "fd").iterdir()))
            megabytes = round(kilobytes * 1024 / 1e6, 1)
            samples.append([round(time.time() - began), megabytes, files])
    assert process.wait() == 0
    samples.pop()  # it may be of its exit
    return {"script": script, "flags": LONG[script], "samples": samples}


# === the table
def kill_rows(runs):
    names = ["script", "SIGKILL", "of these while saving", "SIGTERM"]
    yield row([*names, "slowest exit after SIGTERM", "against a whole run"])
    yield "|---|---|---|---|---|---|"
    totals = [0, 0, 0]
    for name, run in sorted(runs.items()):
        kills = [event for event in run["events"] if event["signal"] == "SIGKILL"]
        terms = [event for event in run["events"] if event["signal"] == "SIGTERM"]
        writing = sum(event["writing"] for event in kills)
        counts = [len(kills), writing, len(terms)]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        slowest = f"{max(event['seconds'] for event in terms):.1f} s" if terms else ""
        yield row([name, *map(str, counts), slowest, ", ".join(run["differs"]) or run["right"]])
    yield f"| all | {totals[0]} | {totals[1]} | {totals[2]} | | |"


def leak_rows(runs):
    names = ["script", "run", "memory after a third", "at the end", "open files", "seconds"]
    yield row(names)
    yield "|---|---|---|---|---|---|"
    for script, run in sorted(runs.items()):
        third = run["samples"][len(run["samples"]) // 3]
        end = run["samples"][-1]
        memory = [f"{third[1]} MB", f"{end[1]} MB"]
        files = f"{third[2]}, {end[2]}"
        yield row([script, f"`{run['flags']}`", *memory, files, str(end[0])])


def table(record):
    """Markdown."""
    lines = [*kill_rows(record["runs"]), ""]
    if record.get("leaks"):
        lines += [*leak_rows(record["leaks"]), ""]
    runs = [*record["runs"].values(), *record.get("leaks", {}).values()]
    commits = [run["commit"] for run in runs]
    command = "python -m benchmark.measure.torture"
    lines.append(shared.made_by(command, map(made_on, runs), commits))
    return "\n".join(lines) + "\n"


def parse():
    parser = shared.parser(__doc__)
    add = parser.add_argument
    add("--scripts", default="", help="separated by commas (default: all)")
    add("--kills", type=int, default=7, help="SIGKILLs per script")
    add("--terms", type=int, default=3, help="SIGTERMs per script")
    add("--seed", type=int, default=1, help="seed of the random moments")
    add("--compile", action="store_true", help="run compiled instead of eager")
    add("--leaks", action="store_true", help="watch long runs instead of killing runs")
    add("--table", action="store_true", help="only make the table again")
    add("--no-record", action="store_true", help="do not write results/torture.*")
    args = parser.parse_args()
    known = list(LONG if args.leaks else RUNS)
    if args.compile:
        known = [script for script in known if is_compiled(script)]
    args.scripts = args.scripts.split(",") if args.scripts else known
    unknown = set(args.scripts) - set(known)
    if unknown:
        parser.error(f"--scripts takes some of {', '.join(known)}, got {', '.join(unknown)}")
    return args


def is_compiled(script):
    """By default; the scripts to learn from never are."""
    return "compile" in shared.script_defaults(script)


def measure(args, script, record, folder):
    """Adds a script's result to the record; returns it. Its runs are in `folder`."""
    if args.leaks:
        result = record["leaks"][script] = leaks(script, folder / "runs")
        third = result["samples"][len(result["samples"]) // 3]
        print(script, *third, *result["samples"][-1], flush=True)
        return result
    mode = "--no-compile" if is_compiled(script) and not args.compile else ""
    result = torture(script, args.kills, args.terms, mode, folder, args.seed)
    name = f"{script}, compiled" if args.compile else script
    record["runs"][name] = result
    found = f"{len(result['events'])} interruptions, differs: {result['differs']}"
    print(script, found, flush=True)
    return result


def main():
    args = parse()
    measured_on = {**machine(), "commit": commit()}  # before it writes here
    record = {"runs": {}, "leaks": {}}
    if RECORD.exists():
        record = json.loads(RECORD.read_text())
    failed = False
    for script in [] if args.table else args.scripts:
        with tempfile.TemporaryDirectory() as folder:
            result = measure(args, script, record, Path(folder))
        result.update(measured_on)
        failed = failed or bool(result.get("differs"))
        if not args.no_record:
            RECORD.write_text(json.dumps(record) + "\n")
    if not args.no_record:
        RECORD.with_suffix(".md").write_text(table(record))
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
