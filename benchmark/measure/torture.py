"""Kills runs at random moments and compares them with an undisturbed run; watches long runs for leaks.

    python -m benchmark.measure.torture                        7 SIGKILLs and 3 SIGTERMs for each script, about 40 minutes
    python -m benchmark.measure.torture --scripts ppo --kills 2 --terms 1 --no-record
    python -m benchmark.measure.torture --leaks                memory and open files of long runs
    python -m benchmark.measure.torture --table                make results/torture.md again from results/torture.json

After each kill the same command starts again, with --resume auto, as on a cluster. Compared are every scalar but the
speed, step by step; networks, optimizers, replay buffer and random generators in the last checkpoint; and the final
evaluation. Only gymnasium's own environments and brax's can be saved: elsewhere (RESTARTED), the logged steps and the
number of updates must be right.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmark.shared import RESULTS, ROOT, commit, machine

OFF_POLICY = "--learning-starts 1000 --save-every 100 --eval-every 4000"
ATARI = "--env-id PongNoFrameskip-v4 --num-envs 4 --save-every 100 --eval-episodes 1"
FRAMES = f"{ATARI} --total-timesteps 1200 --learning-starts 400 --buffer-size 5000"
PIXELS = f"{ATARI} --total-timesteps 1024 --num-steps 32"
RUNS = dict(  # a few seconds each, with a checkpoint about every 0.1 s
    ppo="--env-id CartPole-v1 --total-timesteps 120000 --save-every 512 --eval-every 40000",
    ppo_continuous="--env-id Hopper-v4 --total-timesteps 30000 --num-steps 256 --save-every 256 --eval-every 8000",
    vpg="--env-id CartPole-v1 --total-timesteps 120000 --save-every 512",
    a2c="--env-id CartPole-v1 --total-timesteps 120000 --save-every 512",
    ppo_simple="--env-id CartPole-v1 --total-timesteps 120000 --save-every 512",
    ppo_continuous_adaptive="--env-id Hopper-v4 --total-timesteps 30000 --num-steps 256 --save-every 256",
    ppo_hybrid="--env-id tests.probe_envs:ProbeMixedPendulum-v0 --total-timesteps 60000 --save-every 2048",
    ppo_continuous_asymmetric="--env-id tests.probe_envs:ProbePrivilegedPendulum-v0 --total-timesteps 60000"
    " --save-every 512",
    ppo_masked="--env-id Taxi-v4 --total-timesteps 60000 --save-every 512 --eval-every 40000",
    ppo_multiagent="--env-id tests.probe_envs:ProbeAlone-v0 --total-timesteps 60000 --save-every 512"
    " --eval-every 40000",
    ppo_envpool="--env-id CartPole-v1 --total-timesteps 200000 --save-every 2048 --eval-every 80000",
    ppo_continuous_envpool="--env-id Hopper-v4 --total-timesteps 30000 --num-steps 64 --save-every 512",
    ppo_continuous_mjx="--env-id inverted_pendulum --num-envs 16 --num-steps 64 --total-timesteps 60000"
    " --save-every 2048",
    ppo_lstm="--env-id CartPole-v1 --total-timesteps 40000 --save-every 512 --eval-every 15000 --seq-len 8",
    dqn=f"--env-id CartPole-v1 --total-timesteps 16000 {OFF_POLICY}",
    c51=f"--env-id Acrobot-v1 --total-timesteps 10000 {OFF_POLICY}",
    ddpg=f"--env-id Pendulum-v1 --total-timesteps 4000 --num-envs 2 {OFF_POLICY}",
    td3=f"--env-id Hopper-v4 --total-timesteps 3000 {OFF_POLICY}",
    sac=f"--env-id HalfCheetah-v4 --total-timesteps 2500 --num-envs 2 {OFF_POLICY}",
    sac_her=f"--env-id tests.probe_envs:ProbeReach-v0 --total-timesteps 2500 --num-envs 2 {OFF_POLICY}",
    ppo_atari=PIXELS,
    ppo_atari_multigpu=PIXELS,
    ppo_atari_lstm=f"{PIXELS} --seq-len 8",
    ppo_atari_visual=PIXELS,
    ppo_image="--env-id tests.probe_envs:ProbeDrawn-v0 --image-size 36 --total-timesteps 6000 --save-every 1000",
    ppo_selfplay="--env-id tests.probe_envs:ProbeNim-v0 --total-timesteps 60000 --save-every 4096 --eval-every 40000",
    ppo_godot="--env-path tests/like_godot.x86_64 --total-timesteps 30000 --save-every 2048 --eval-every 16000",
    ppo_microrts="--opponents passiveAI --max-episode-steps 200 --total-timesteps 2048 --num-steps 32 --num-envs 2"
    " --save-every 64 --eval-episodes 1",
    dqn_atari=FRAMES,
    dqn_atari_visual=FRAMES,
    c51_atari=FRAMES,
    c51_atari_visual=FRAMES,
)
# Their environments cannot be saved: episodes start again.
RESTARTED = re.compile("_(atari|envpool|microrts|selfplay|godot|her)")
LONG = dict(  # long enough to fill the replay buffer
    ppo="--env-id CartPole-v1 --total-timesteps 500000",
    dqn="--env-id CartPole-v1 --total-timesteps 500000",
    c51="--env-id CartPole-v1 --total-timesteps 500000",
    ppo_continuous="--env-id Hopper-v4 --total-timesteps 300000",
    sac="--env-id Hopper-v4 --total-timesteps 20000 --learning-starts 1000 --buffer-size 2000",
)


def start(script, flags, folder):
    command = [sys.executable, "-m", f"cleanrl_lite.{script}", *flags.split(), "--runs-dir", str(folder)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    log = open(folder.parent / f"{folder.name}.log", "a")
    return subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)


def only_run(folder):
    """The run in the folder. One that was killed before its first checkpoint has no results and does not count."""
    found = [path.parent for path in folder.glob("*/checkpoint.pt")]
    assert len(found) <= 1, f"{len(found)} runs in {folder}"
    return found[0] if found else None


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
    return (folder.parent / f"{folder.name}.log").read_text().strip().splitlines()[-1]


def interrupt(script, flags, folder, number, rng, longest):
    """Starts or resumes the run and sends the signal up to `longest` seconds after its first new checkpoint; half of
    the SIGKILLs then wait until the next checkpoint is being written."""
    began, process = time.time(), start(script, flags, folder)
    while process.poll() is None and not (
        only_run(folder) and (only_run(folder) / "checkpoint.pt").stat().st_mtime > began
    ):
        time.sleep(0.01)
    try:
        process.wait(rng.uniform(0, longest))
        return None  # it has finished
    except subprocess.TimeoutExpired:
        pass
    if number == signal.SIGKILL and rng.random() < 0.5:  # into the next checkpoint
        while process.poll() is None and not list(folder.glob("*/checkpoint*.tmp")):
            pass
    sent = time.time()
    process.send_signal(number)
    status = process.wait(60)
    took, run_dir = time.time() - sent, only_run(folder)
    if status in (0, -number) and last_line(folder).startswith("finished: "):
        return None  # it had finished; Python no longer handles signals while it exits
    state = torch.load(run_dir / "checkpoint.pt", weights_only=True)  # whole, or this raises
    writing = bool(list(run_dir.glob("checkpoint*.tmp")))
    assert status == (-9 if number == signal.SIGKILL else 128 + number), status
    assert group_is_gone(process.pid), "it left processes behind"
    return dict(signal=signal.Signals(number).name, step=state["global_step"], seconds=round(took, 2), writing=writing)


def scalars(run_dir):
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    events.Reload()
    names = [tag for tag in events.Tags()["scalars"] if tag != "charts/SPS"]
    # Once each: a finished run that is resumed logs its evaluation again.
    return {name: [*dict.fromkeys((event.step, event.value) for event in events.Scalars(name))] for name in names}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def compare(script, whole, parts):
    """The names of what differs between the two runs; of RESTARTED ones only steps and counts are compared."""
    states = [torch.load(run / "checkpoint.pt", weights_only=True) for run in (whole, parts)]
    curves = [scalars(run) for run in (whole, parts)]
    wrong = [] if states[0]["global_step"] == states[1]["global_step"] else ["global_step"]
    if RESTARTED.search(script):
        for tag in curves[0]:
            if not tag.startswith(("charts/episodic", "charts/success_rate")):  # of episodes
                steps = [[step for step, _ in curve.get(tag, [])] for curve in curves]
                wrong += [tag] if steps[0] != steps[1] else []
        adams = [state.get("adams") or dict(all=state["adam"]) for state in states]
        updates = [[adam["step"] for adam in each.values()] for each in adams]
        return wrong + (["updates"] if updates[0] != updates[1] else [])
    wrong += [tag for tag in curves[0] | curves[1] if curves[0].get(tag) != curves[1].get(tag)]
    names = states[0].keys() - {"args", "envs"}  # pickles of equal environments may differ in their bytes
    wrong += sorted(name for name in names if not same(states[0][name], states[1][name]))
    returns = [json.loads((run / "eval.json").read_text())["returns"] for run in (whole, parts)]
    return wrong + (["eval.json"] if returns[0] != returns[1] else [])


def torture(script, kills, terms, mode, folder, seed):
    """A whole run of the script, an interrupted one, and how they differ."""
    flags = f"{RUNS[script]} --resume auto {mode}"
    rng, whole, parts = random.Random(f"{seed} {script} {mode}"), folder / "whole", folder / "parts"
    for path in (whole, parts):
        path.mkdir(parents=True)
    began = time.time()
    assert start(script, flags, whole).wait() == 0, (folder / "whole.log").read_text()[-2000:]
    duration = time.time() - began
    events, order = [], [signal.SIGKILL] * kills + [signal.SIGTERM] * terms
    rng.shuffle(order)
    for number in order:
        events.append(interrupt(script, flags, parts, number, rng, max(duration - 3, 1) * 1.5 / len(order)))
    assert start(script, flags, parts).wait() == 0, (folder / "parts.log").read_text()[-2000:]
    events = [event for event in events if event]
    differs = compare(script, only_run(whole), only_run(parts))
    return dict(script=script, flags=flags, events=events, differs=differs)


def leaks(script, folder):
    """Memory (MB) and open files of a long run, every 5 s."""
    folder.mkdir(parents=True)
    began, process, samples = time.time(), start(script, LONG[script], folder), []
    while process.poll() is None:
        time.sleep(5)
        proc = Path(f"/proc/{process.pid}")
        with suppress(OSError, TypeError):  # it has just ended
            kilobytes = int(re.search(r"VmRSS:\s*(\d+)", (proc / "status").read_text())[1])
            files = len(list((proc / "fd").iterdir()))
            samples.append([round(time.time() - began), round(kilobytes * 1024 / 1e6, 1), files])
    assert process.wait() == 0
    return dict(script=script, flags=LONG[script], samples=samples[:-1])  # the last one may be of its exit


def table(record):
    """Writes results/torture.md."""
    names = "script", "SIGKILL", "of these while saving", "SIGTERM", "slowest exit after SIGTERM", "against a whole run"
    lines = [f"| {' | '.join(names)} |", "|---|---|---|---|---|---|"]
    totals = [0, 0, 0]
    for name, run in sorted(record["runs"].items()):
        kills = [event for event in run["events"] if event["signal"] == "SIGKILL"]
        terms = [event for event in run["events"] if event["signal"] == "SIGTERM"]
        writing = sum(event["writing"] for event in kills)
        totals = [total + more for total, more in zip(totals, (len(kills), writing, len(terms)))]
        good = "steps and counts right" if RESTARTED.search(name) else "identical"
        slowest = f"{max(event['seconds'] for event in terms):.1f} s" if terms else ""
        result = ", ".join(run["differs"]) or good
        lines.append(f"| {name} | {len(kills)} | {writing} | {len(terms)} | {slowest} | {result} |")
    lines += [f"| all | {totals[0]} | {totals[1]} | {totals[2]} | | |", ""]
    if record.get("leaks"):
        lines += [
            "| script | run | memory after a third | at the end | open files | seconds |",
            "|---|---|---|---|---|---|",
        ]
        for script, run in sorted(record["leaks"].items()):
            third, end = run["samples"][len(run["samples"]) // 3], run["samples"][-1]
            files = f"{third[2]}, {end[2]}"
            lines.append(f"| {script} | `{run['flags']}` | {third[1]} MB | {end[1]} MB | {files} | {end[0]} |")
        lines.append("")
    runs = [*record["runs"].values(), *record.get("leaks", {}).values()]
    places = sorted({f"{run['hardware']}, {', '.join(map(' '.join, run['versions'].items()))}" for run in runs})
    commits = ", ".join(sorted({run["commit"] for run in runs}))
    lines += [f"Made by `python -m benchmark.measure.torture` on {'; '.join(places)}; commit {commits}.", ""]
    (RESULTS / "torture.md").write_text("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", default="", help="separated by commas (default: all)")
    parser.add_argument("--kills", type=int, default=7, help="SIGKILLs per script")
    parser.add_argument("--terms", type=int, default=3, help="SIGTERMs per script")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random moments")
    parser.add_argument("--compile", action="store_true", help="run compiled instead of eager")
    parser.add_argument("--leaks", action="store_true", help="watch long runs instead of killing runs")
    parser.add_argument("--table", action="store_true", help="only make the table again")
    parser.add_argument("--no-record", action="store_true", help="do not write results/torture.*")
    args = parser.parse_args()
    path, failed, origin = RESULTS / "torture.json", False, machine() | dict(commit=commit())  # before it writes here
    record = json.loads(path.read_text()) if path.exists() else dict(runs={}, leaks={})
    for script in filter(None, args.scripts.split(",") if args.scripts else (LONG if args.leaks else RUNS)):
        if args.table:
            break
        folder, mode = Path(tempfile.mkdtemp()), "" if args.compile else "--no-compile"
        if args.leaks:
            result = record["leaks"][script] = leaks(script, folder / "runs")
            print(script, *result["samples"][len(result["samples"]) // 3], *result["samples"][-1], flush=True)
        else:
            result = torture(script, args.kills, args.terms, mode, folder, args.seed)
            record["runs"][f"{script}, compiled" if args.compile else script] = result
            print(script, f"{len(result['events'])} interruptions, differs: {result['differs']}", flush=True)
            failed |= bool(result["differs"])
        result |= origin
        if not args.no_record:
            path.write_text(json.dumps(record) + "\n")
    if not args.no_record:
        table(record)
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
