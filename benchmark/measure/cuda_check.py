"""Does every script work on a GPU, and how fast?

    python -m benchmark.measure.cuda_check check    losses beside the CPU's, a resumed run, torchrun
    python -m benchmark.measure.cuda_check speed    one run at a time; steps per second
    python -m benchmark.measure.cuda_check all --limit 500 --old DIR
                                          both in 500 seconds, beside the older scripts in DIR
    python -m benchmark.measure.cuda_check table    the files in --out into results/cuda.*

`check` compares the metrics of 20 updates, compiled, with and without a CUDA graph, with those of
eager mode on the CPU, which draws all random numbers. Its runs share the machine, and fill the
compile caches for `speed`. Where --out has no check.json and speed.json, `table` only makes
results/cuda.md again.
"""

import argparse
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock

import torch
import tyro
from torch.utils._pytree import keystr, tree_flatten_with_path

from benchmark import shared
from benchmark.shared import RESULTS, ROOT, commit, machine, row
from cleanrl_lite import utils

PUBLISHED = RESULTS / "cuda.json"
UPDATES = 20  # whose metrics are compared
GRAPH = ["--cuda-graph"] if torch.cuda.is_available() else []
ACTING = "compiled-graph, eager acting"
MODES = {
    "eager": ["--no-compile"],
    "graph": ["--no-compile", *GRAPH],
    "compiled": ["--compile"],
    "compiled-graph": ["--compile", *GRAPH],
    ACTING: ["--compile", *GRAPH],
}
OFF_POLICY = "--learning-starts 1000"
ATARI = "--env-id PongNoFrameskip-v4 --threads 1 --eval-episodes 1"
VECTORS = "ppo ppo_continuous vpg a2c ppo_simple a2c_continuous ppo_simple_continuous "
VECTORS += "ppo_continuous_adaptive ppo_masked ppo_envpool ppo_continuous_envpool ppo_lstm "
VECTORS += "ppo_continuous_lstm pqn"
REPLAYS = "dqn sac_discrete c51 rainbow ddpg td3 sac tqc crossq"
GAMES = "ppo_atari ppo_atari_multigpu ppo_atari_lstm pqn_atari"
GAME_REPLAYS = "dqn_atari sac_atari c51_atari rainbow_atari"
FRAMES = f"{ATARI} {OFF_POLICY} --total-timesteps 2000 --num-envs 2"
PROBE = "--env-id tests.probe_envs:Probe"
CHECK = {  # a few seconds of each
    **dict.fromkeys(VECTORS.split(), "--total-timesteps 8192"),
    **dict.fromkeys(REPLAYS.split(), f"{OFF_POLICY} --total-timesteps 3000"),
    **dict.fromkeys(GAMES.split(), f"{ATARI} --total-timesteps 4096"),
    **dict.fromkeys(GAME_REPLAYS.split(), FRAMES),
    "ppo_atari_visual": f"{ATARI} --total-timesteps 4096 --capture-video",
    "dqn_atari_visual": f"{FRAMES} --capture-video",
    "c51_atari_visual": f"{FRAMES} --capture-video",
    "ppo_hybrid": f"{PROBE}Mixed-v0 --total-timesteps 8192",
    "ppo_continuous_asymmetric": f"{PROBE}Privileged-v0 --total-timesteps 8192",
    "ppo_multiagent": f"{PROBE}Team-v0 --total-timesteps 8192",
    "ppo_selfplay": f"{PROBE}Nim-v0 --total-timesteps 8192",
    "ppo_image": f"{PROBE}Drawn-v0 --image-size 36 --threads 1 --total-timesteps 4096",
    "sac_her": f"{PROBE}Reach-v0 {OFF_POLICY} --total-timesteps 2000",
    "fast_td3": f"{OFF_POLICY} --total-timesteps 8000",
    "ppo_microrts": "--total-timesteps 4096 --eval-episodes 1",
    "ppo_godot": "--env-path tests/like_godot.x86_64 --total-timesteps 8192",
    "ppo_continuous_mjx": "--env-id inverted_pendulum --total-timesteps 262144",
    "fast_td3_mjx": (
        "--env-id inverted_pendulum --num-envs 64 --train-frequency 64 --batch-size 512 "
        "--learning-starts 1280 --total-timesteps 20000 --v-min 0 --v-max 100"
    ),
}
RESUMED = "sac", "ppo_continuous", "dqn", "ppo_atari"
PONG = f"{ATARI} --total-timesteps 40960 --threads 8"
POOL = "--total-timesteps 400000 --save-every 0"
SPEED = [  # script, mode, flags, beside the older script?
    ("sac", "compiled-graph", f"{OFF_POLICY} --total-timesteps 8000", True),
    ("dqn", "compiled-graph", f"{OFF_POLICY} --total-timesteps 30000", True),
    ("ppo_continuous", "compiled-graph", "--total-timesteps 40960", True),
    ("ppo_atari", "compiled-graph", PONG, True),
    ("ppo_envpool", "compiled-graph", POOL, False),
    ("ppo_envpool", "compiled-graph", f"{POOL} --num-envs 256", False),
    ("ppo_atari", "compiled-graph", f"{PONG} --bf16", False),
    ("td3", "compiled-graph", f"{OFF_POLICY} --total-timesteps 9000", True),
    ("ddpg", "compiled-graph", f"{OFF_POLICY} --total-timesteps 11000", True),
    ("sac", ACTING, f"{OFF_POLICY} --total-timesteps 8000", False),
    ("ppo", "compiled-graph", f"{POOL} --num-envs 64 --num-steps 32", False),
    ("sac", "graph", f"{OFF_POLICY} --total-timesteps 5000", False),
    ("sac", "eager", f"{OFF_POLICY} --total-timesteps 2000", False),
]
# LeanRL's README: compiled, with CUDA graphs, on an H100 (one environment, CleanRL's
# hyperparameters).
LEANRL = {"sac": 725, "td3": 936, "ppo_continuous": 1774}


# === losses
class Enough(Exception):
    pass


def from_cpu(draw):
    """torch.rand and the like, with the same numbers on every device."""

    def drawn(*args, device=None, **kwargs):
        tensors = [x for x in args if torch.is_tensor(x)]
        device = device or (tensors[0].device if tensors else "cpu")
        return draw(*[x.cpu() if torch.is_tensor(x) else x for x in args], **kwargs).to(device)

    return drawn


def first_metrics(script, flags, out):
    """{name: [tensor]}: what compiled functions return in the first updates, or what is logged."""
    args = tyro.cli(importlib.import_module(f"cleanrl_lite.{script}").Args, args=flags)
    args.runs_dir = out
    compiled, log = utils.compiled, utils.Run.log
    found, functions = {}, []

    def keep(function, results):
        for path, x in tree_flatten_with_path(results)[0]:
            kept = found.setdefault(f"{function}{keystr(path)}", [])
            kept.append(torch.as_tensor(x))  # not read yet: that would wait for the GPU
        if (function == functions[0]) and len(kept) == UPDATES:
            raise Enough

    def watch(args, function):
        call = compiled(args, function)
        functions.append(function.__name__)

        def watched(*tensors):
            results = call(*tensors)
            keep(function.__name__, results)
            return results

        return watched

    def watch_log(run, writer, scalars):
        log(run, writer, scalars)
        if functions in ([], ["log"]):  # a script that does not compile
            functions[:] = ["log"]
            keep("log", scalars)

    utils.compiled, utils.Run.log = watch, watch_log
    try:
        with suppress(Enough):
            importlib.import_module(f"cleanrl_lite.{script}").main(args)
    finally:
        utils.compiled, utils.Run.log = compiled, log
    return {name: [x.double().cpu() for x in series] for name, series in found.items()}


def differences(ours, cpu):
    """Of the first update, and of all: the largest difference, relative to a metric's largest."""
    first, worst = 0.0, (0.0, "")
    for name, series in cpu.items():
        theirs, mine = torch.stack(series), torch.stack(ours[name][: len(series)])
        scale = theirs.abs().max().clamp(min=1e-6)
        error = ((mine - theirs).abs() / scale).nan_to_num(torch.inf)
        error = error.reshape(len(series), -1).amax(1)
        first = max(first, error[0].item())
        worst = max(worst, (error.max().item(), name))
    updates = max(map(len, cpu.values()))
    return {"first": first, "all": worst[0], "largest": worst[1], "updates": updates}


def check_one(script, flags, out):
    """The losses of a script; a process of its own, whose last line is the outcome."""
    with suppress(ImportError):
        import envpool  # noqa: F401  it draws from numpy's generator, the first time
    for name in ["rand", "randn", "randperm", "multinomial", "normal"]:
        setattr(torch, name, from_cpu(getattr(torch, name)))
    tuned = "compile" in shared.script_defaults(script)  # the scripts to learn from do not
    flags = [*flags, "--threads", "1"]
    eager = MODES["eager"] if tuned else []
    cpu = first_metrics(script, [*flags, *eager, "--no-cuda"], out)
    modes = ["compiled", "compiled-graph"] if tuned else ["eager"]
    found = {}
    for mode in modes:
        ours = first_metrics(script, [*flags, *(MODES[mode] if tuned else [])], out)
        found[mode] = differences(ours, cpu)
    print(json.dumps(found))


# === runs
def start(job, out, old=None):
    """A process that has imported everything, and begins to train at a line of input."""
    script, mode, flags, _ = job
    number = len([*out.glob("*.log")])
    name = f"{number:03d}-{script}-{mode.replace(', ', '-').replace(' ', '-')}" + "-old" * bool(old)
    flags = [*flags.split(), *MODES[mode], "--eval-episodes", "1", "--runs-dir", f"{out}/{name}"]
    acting = "keep = utils.recorded; utils.recorded = "
    acting += "lambda args, f: keep(args, f) if f.__name__ == 'call' else f"
    code = [
        "import sys, torch, tyro",
        f"from cleanrl_lite import {script} as script, utils",
        acting if mode == ACTING else "",
        "torch.zeros(1, device='cuda' if torch.cuda.is_available() else 'cpu')",
        "print('ready', flush=True)",
        "sys.stdin.readline() or sys.exit()",
        f"script.main(tyro.cli(script.Args, args={flags}))",
    ]
    root = Path(old or ROOT).resolve()
    env = {**os.environ, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"}
    with open(out / f"{name}.log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", "\n".join(code)],
            cwd=root,
            env=env,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return process, out / name


def finish(process, runs, limit):
    """Lets it train, and returns its outcome."""
    began = time.time()
    result = {}
    try:
        process.communicate(b"\n", timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        result["cut off"] = True
    log = runs.with_suffix(".log").read_text()
    result["seconds"] = round(time.time() - began, 1)
    if "continuing in eager mode" in log:
        result["fallback"] = True
    try:
        (path,) = runs.glob("*/args.json")
        events = shared.events(path.parent).Scalars("charts/SPS")
        later = events[len(events) // 2 :]
        result["sps"] = round(statistics.median(event.value for event in later), 1)
        steps, seconds = later[-1].step - later[0].step, later[-1].wall_time - later[0].wall_time
        result["mean_sps"] = round(steps / seconds, 1)
    except Exception as error:  # a figure of another run must not be lost
        result["error"] = f"{error!r}: {log[-1500:]}"
    return result


def failure(words, log, until):
    """What is wrong with a command, whose output goes to a file; None if nothing is."""
    with open(log, "w") as file:
        try:
            status = subprocess.run(
                [sys.executable, *words],
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=max(1, until - time.time()),
            ).returncode
        except subprocess.TimeoutExpired:
            status = 124
    text = log.read_text()
    if status or "continuing in eager mode" in text:
        return {"error": f"exit status {status}: {text[-1500:]}"}


# === parts
def losses(args, until, script, *more):
    log = args.logs / f"losses-{script}{''.join(more)}.log"
    flags = f"{CHECK[script]} {' '.join(more)}"
    words = ["-m", "benchmark.measure.cuda_check", "one", "--scripts", script, f"--flags={flags}"]
    wrong = failure([*words, "--out", str(args.logs / "losses")], log, until)
    return wrong or json.loads([x for x in log.read_text().splitlines() if x[:1] == "{"][-1])


def resumed(args, until, script):
    """Is a run trained on to twice its steps?"""
    log, runs = args.logs / f"resumed-{script}.log", args.logs / f"resumed-{script}"
    flags = [*CHECK[script].split(), *MODES["compiled-graph"], "--eval-episodes", "1"]
    path = f"cleanrl_lite/{script}.py"
    wrong = failure([path, *flags, "--runs-dir", str(runs)], log, until)
    if wrong:
        return wrong
    (saved,) = runs.glob("*/checkpoint.pt")
    half = torch.load(saved, "cpu", weights_only=True)["global_step"]
    wrong = failure(
        [path, "--resume", str(saved.parent), "--total-timesteps", str(2 * half)], log, until
    )
    end = torch.load(saved, "cpu", weights_only=True)["global_step"]
    steps = [event.step for event in shared.events(saved.parent).Scalars("charts/SPS")]
    return wrong or {"ok": end >= 2 * half and steps == sorted(set(steps)), "steps": [half, end]}


def torchrun(args, until):
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1"]
    words += ["cleanrl_lite/ppo_atari_multigpu.py", *CHECK["ppo_atari_multigpu"].split()]
    words += ["--total-timesteps", str(UPDATES * 1024), *MODES["compiled-graph"]]
    words += ["--runs-dir", str(args.logs / "torchrun")]
    return failure(words, args.logs / "torchrun.log", until) or {"ok": True}


def warm(args, until, script, flags):
    """Compiles an older script, for `speed`."""
    flags += " --total-timesteps " + ("4096" if script.startswith("ppo") else "1200")
    job = script, "compiled-graph", flags, True
    return finish(*start(job, args.logs, args.old), until - time.time())


def check(args, until):
    """{job: outcome}; the file is written again after each."""
    made, found, lock = about(args, "check"), {}, Lock()

    def do(job):
        part, *words = job
        outcome = {"error": "no time was left"}
        if time.time() < until - 10:
            try:
                outcome = part(args, until, *words)
            except Exception as error:
                outcome = {"error": repr(error)}
        name = " ".join([part.__name__, *words])
        print(f"{name}: {outcome.get('error', json.dumps(outcome))[-300:]}", flush=True)
        with lock:
            found[name] = outcome
            (args.out / "check.json").write_text(json.dumps({**made, "check": found}, indent=1))

    known = dict.fromkeys(job[0] for job in SPEED)  # first: their compiled code is used again
    jobs = [(losses, script) for script in known if script in args.scripts]
    if len(args.scripts) == len(CHECK):
        jobs += [(losses, "ppo_atari", "--bf16"), (losses, "ppo_envpool", "--num-envs 256")]
        jobs += [(losses, "ppo", "--num-envs 64 --num-steps 32"), (torchrun,)]
    jobs += [(warm, *job[::2]) for job in SPEED if job[3] and args.old and job[0] in args.scripts]
    jobs += [(resumed, script) for script in RESUMED if script in args.scripts]
    others = {*args.scripts} - {*known, "ppo_atari_multigpu"}
    late = sorted(others, key=lambda script: (script.endswith("_visual"), "atari" not in script))
    jobs += [(losses, script) for script in late]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(do, jobs))


def speed(args, until):
    """One run at a time: new, old; then all again, while there is time."""
    made = {**about(args, "speed"), "old": args.old_commit}
    jobs = [job for job in SPEED if job[0] in args.scripts]
    sides = [
        (job, old) for job in jobs for old in [None, args.old][: 1 + bool(job[3] and args.old)]
    ]
    ready = [(*side, start(side[0], args.logs, side[1])) for side in sides * args.repeat]
    logs = [runs.with_suffix(".log") for *_, (_, runs) in ready]
    patience = time.time() + 60
    while time.time() < patience and not all("ready" in log.read_text() for log in logs):
        time.sleep(0.5)
    rows = {}
    for job, old, (process, runs) in ready:
        if time.time() > until - 15:
            process.kill()
            continue
        result = finish(process, runs, min(60, until - time.time()))
        script, mode, flags, _ = job
        found = rows.setdefault(job, {"script": script, "mode": mode, "flags": flags})
        found.setdefault("old_runs" if old else "runs", []).append(result)
        print(script, mode, flags, "old" * bool(old), json.dumps(result)[-300:], flush=True)
        for name, side in ("sps", "runs"), ("old_sps", "old_runs"):
            known = [run["sps"] for run in found.get(side, []) if "sps" in run]
            if known:
                found[name] = round(statistics.median(known), 1)
        (args.out / "speed.json").write_text(
            json.dumps({**made, "rows": [*rows.values()]}, indent=1)
        )


def about(args, part):
    """What made a file, when and on what."""
    found = {"command": f"python -m benchmark.measure.cuda_check {part}", "commit": args.commit}
    found.update(machine(), date=time.strftime("%F"))
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    if GRAPH:
        driver = subprocess.run(query, capture_output=True, text=True).stdout.strip()
        found["hardware"] += f", driver {driver}"
    return found


# === the command line
def table(record):
    """The speeds as a Markdown table."""
    old = record.get("old")
    head = ["script", "mode", "flags", "steps/s", *([f"at {old}"] if old else []), "LeanRL, H100"]
    lines = [row(head), f"|---|---|---|{'---:|' * (len(head) - 3)}"]
    for r in record["rows"]:
        known = r["script"] in LEANRL and r["mode"] == "compiled-graph"
        other = f"{LEANRL[r['script']]:,}" if known else ""
        flags = r["flags"].replace(ATARI, ATARI.split(" --threads")[0])
        flags = flags.replace(f"{OFF_POLICY} ", "")
        before = [f"{r['old_sps']:,.0f}" if "old_sps" in r else ""] if old else []
        lines.append(
            row([r["script"], r["mode"], f"`{flags}`", f"{r['sps']:,.0f}", *before, other])
        )
    made = shared.made_by(record["command"], [shared.made_on(record)], [record["commit"]])
    runs = {len(r.get("runs", [1])) for r in record["rows"]}
    runs = "one run each" if runs == {1} else f"{min(runs)} to {max(runs)} runs each"
    note = f"Median over the second half of {runs}, learning included"
    remark = f"; {record['note']}" if "note" in record else ""
    return "\n".join(lines) + f"\n\n{note}{remark}.\n\n{made}\n"


def publish(out):
    """The table, with what is in `out` if there is something."""
    record = json.loads(PUBLISHED.read_text())
    new, checked = out / "speed.json", out / "check.json"
    if new.exists():
        kept = {name: record[name] for name in record.keys() - {"note", "rows", "old"}}
        record = {**kept, **json.loads(new.read_text())}
        record["rows"] = [r for r in record["rows"] if "sps" in r]
    if checked.exists():
        record["check"] = json.loads(checked.read_text())
    PUBLISHED.write_text(json.dumps(record, indent=1) + "\n")
    PUBLISHED.with_suffix(".md").write_text(table(record))


def main():
    parser = shared.parser(__doc__)
    add = parser.add_argument
    add("what", choices=("check", "speed", "all", "table", "one"))
    add("--scripts", nargs="+", default=list(CHECK), choices=CHECK, metavar="NAME")
    add("--jobs", type=int, default=16, help="scripts that are checked at the same time")
    add("--out", type=Path, default=ROOT / "runs/cuda", help="folder of check.json and speed.json")
    add("--logs", type=Path, default=ROOT / "runs/cuda/logs", help="folder of the runs and logs")
    add("--old", help="folder with the cleanrl_lite/ of another commit, to measure beside this one")
    add("--old-commit", help="the commit it is of")
    add("--commit", default=commit(), help="where there is no git: this commit")
    add("--repeat", type=int, default=2, help="measure each row so often")
    add("--limit", type=int, default=3600, help="seconds that all parts may take")
    add("--check-limit", type=int, default=220, help="seconds that `check` may take of them")
    add("--flags", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.what == "one":
        check_one(args.scripts[0], args.flags.split(), str(args.out))
        return
    if args.what == "table":
        publish(args.out)
        return
    args.logs = args.logs.resolve()
    shutil.rmtree(args.logs, ignore_errors=True)
    args.logs.mkdir(parents=True)
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # many processes compile
    end = time.time() + args.limit
    if args.what != "speed":
        check(args, min(end, time.time() + args.check_limit))
    if args.what != "check":
        speed(args, end)


if __name__ == "__main__":
    main()
