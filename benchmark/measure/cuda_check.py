"""Runs every script on a GPU in every mode: does it work, does a CUDA graph compute the same?

    python -m benchmark.measure.cuda_check check --jobs 12     all scripts x modes, many at a time
    python -m benchmark.measure.cuda_check check --scripts dqn sac --modes eager compiled-graph
    python -m benchmark.measure.cuda_check speed               one at a time; steps per second
    python -m benchmark.measure.cuda_check table               the speeds into results/cuda.*

`check` also compares the weights of CUDA graph and eager mode after a short run with the same seed,
and fills the compile caches. Its runs share the machine, so its timings mean nothing. Logs and
figures go to --out (default runs/cuda); the same command again skips what succeeded at this commit.
Without a new speed.json in --out, `table` only makes results/cuda.md again.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmark import shared
from benchmark.shared import RESULTS, ROOT, commit, machine, row

PUBLISHED = RESULTS / "cuda.json"
MODES = {
    "eager": ["--no-compile"],
    "graph": ["--no-compile", "--cuda-graph"],
    "compiled-graph": ["--compile", "--cuda-graph"],
}
NOT_COMPILED = {"eager": []}  # the modes of the scripts to learn from
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
SPEED = [  # script, mode, flags
    ("sac", "compiled-graph", f"{OFF_POLICY} --total-timesteps 8000"),
    ("sac", "eager", f"{OFF_POLICY} --total-timesteps 2000"),
    ("td3", "compiled-graph", f"{OFF_POLICY} --total-timesteps 9000"),
    (
        "dqn_atari",
        "compiled-graph",
        f"{ATARI} {OFF_POLICY} --total-timesteps 32000 --num-envs 8 --threads 8",
    ),
    ("dqn_atari", "compiled-graph", f"{ATARI} {OFF_POLICY} --total-timesteps 7000"),
    ("ppo_atari", "compiled-graph", f"{ATARI} --total-timesteps 40960 --threads 8"),
    ("ddpg", "compiled-graph", f"{OFF_POLICY} --total-timesteps 11000"),
    ("sac", "graph", f"{OFF_POLICY} --total-timesteps 5000"),
    ("dqn", "compiled-graph", f"{OFF_POLICY} --total-timesteps 30000"),
    ("ppo_continuous", "compiled-graph", "--total-timesteps 40960"),
    (
        "c51_atari",
        "compiled-graph",
        f"{ATARI} {OFF_POLICY} --total-timesteps 32000 --num-envs 8 --threads 8",
    ),
    ("ppo_atari", "compiled-graph", f"{ATARI} --total-timesteps 40960 --threads 8 --bf16"),
]

# LeanRL's README: compiled, with CUDA graphs, on an H100 (one environment, CleanRL's
# hyperparameters).
LEANRL = {"sac": 725, "td3": 936, "ppo_continuous": 1774}


def modes_of(script):
    """{mode: flags} of a script."""
    return MODES if "compile" in shared.script_defaults(script) else NOT_COMPILED


def run(script, mode, flags, out):
    """One run and its outcome."""
    name = f"{script}-{mode}-{zlib.crc32(flags.encode())}"
    runs = out / name
    log = out / f"{name}.log"
    record = out / f"{name}.json"
    if record.exists():
        known = json.loads(record.read_text())
        if known.get("commit") == commit():
            return known
    shutil.rmtree(runs, ignore_errors=True)  # of an interrupted or failed run
    command = [f"cleanrl_lite/{script}.py", *flags.split()]
    command += [*modes_of(script)[mode], "--runs-dir", str(runs)]
    if script.endswith("_multigpu"):  # a process for each GPU
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=gpu"]
        command = [*torchrun, *command]
    began = time.time()
    status = logged([sys.executable, *command], log)
    result = {
        "script": script,
        "mode": mode,
        "flags": flags,
        "commit": commit(),
        "status": status,
        "seconds": round(time.time() - began, 1),
        "fallback": "continuing in eager mode" in log.read_text(),
    }
    if status:
        result["log"] = log.read_text()[-1500:]
        return result
    (run_dir,) = runs.iterdir()
    events = shared.events(run_dir).Scalars("charts/SPS")
    sps = [event.value for event in events][len(events) // 2 :]
    result["sps"] = round(statistics.median(sps), 1)
    result["run_dir"] = str(run_dir)
    record.write_text(json.dumps(result))
    return result


def logged(command, log):
    """The exit status of a command whose output goes to a file."""
    with open(log, "w") as file:
        try:
            return subprocess.run(
                command,
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=400,
            ).returncode
        except subprocess.TimeoutExpired:
            return 124


def difference(one, other):
    """The largest difference of two weights, relative to the largest weight of their tensor."""
    weights = [agent(result["run_dir"]).values() for result in (one, other)]
    found = []
    for a, b in zip(*weights, strict=True):
        scale = a.double().abs().max().clamp(min=1e-2)
        found.append(((a.double() - b.double()).abs().max() / scale).item())
    return max(found)


def agent(run_dir):
    path = f"{run_dir}/checkpoint.pt"
    return torch.load(path, weights_only=True, map_location="cpu")["agent"]


def table(record):
    """The speeds as a Markdown table."""
    lines = ["| script | mode | flags | steps/s | LeanRL, H100 |", "|---|---|---|---:|---:|"]
    for r in record["rows"]:
        known = r["script"] in LEANRL and r["mode"] == "compiled-graph"
        other = f"{LEANRL[r['script']]:,}" if known else ""
        flags = r["flags"].replace(ATARI, ATARI.split(" --threads")[0])
        flags = flags.replace(f"{OFF_POLICY} ", "")
        lines.append(row([r["script"], r["mode"], f"`{flags}`", f"{r['sps']:,.0f}", other]))
    made = shared.made_by(record["command"], [shared.made_on(record)], [record["commit"]])
    note = "Median over the second half of one run each, learning included"
    remark = f"; {record['note']}" if "note" in record else ""
    return "\n".join(lines) + f"\n\n{note}{remark}.\n\n{made}\n"


def check(args):
    """The scripts in all modes; prints a line for each script."""
    jobs = []
    for script in args.scripts:
        modes = [mode for mode in modes_of(script) if mode in args.modes]
        jobs += [(script, mode, CHECK[script]) for mode in modes]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda job: run(*job, args.out), jobs))
    found = {(result["script"], result["mode"]): result for result in results}
    for script in args.scripts:
        cells = []
        for mode in modes_of(script):
            if (script, mode) not in found:
                continue
            result = found[script, mode]
            outcome = "FAILED" if result["status"] else "ok"
            cells.append(f"{mode} {outcome}{' (eager)' * result['fallback']}")
        eager = found.get((script, "eager"), {"status": "not run"})
        graph = found.get((script, "graph"), {"status": "not run"})
        if not eager["status"] and not graph["status"]:
            cells.append(f"graph - eager: {difference(eager, graph):.1e}")
        print(f"{script:15s} {', '.join(cells)}", flush=True)
    for result in results:
        if result["status"]:
            print(f"--- {result['script']} {result['mode']}\n{result['log']}", flush=True)
    return results


def speed(args):
    """The rows of SPEED; speed.json has those that ran, and on what."""
    results = []
    made = {"command": "python -m benchmark.measure.cuda_check speed", "commit": commit()}
    made.update(machine(), date=time.strftime("%F"))
    for job in SPEED:
        result = run(*job, args.out)
        results.append(result)
        sps = result.get("sps", result.get("log", ""))
        print(
            f"{result['script']:15s} {result['mode']:15s} {sps} SPS {result['flags']}", flush=True
        )
        done = {**made, "rows": [result for result in results if not result["status"]]}
        (args.out / "speed.json").write_text(json.dumps(done, indent=1))  # the next may crash
    return results


def publish(new):
    """The table, with the speeds of the file `new` if there is one."""
    record = json.loads(PUBLISHED.read_text())
    if new.exists():
        kept = {name: record[name] for name in record.keys() - {"note", "rows"}}
        record = {**kept, **json.loads(new.read_text())}
        PUBLISHED.write_text(json.dumps(record, indent=1) + "\n")
    PUBLISHED.with_suffix(".md").write_text(table(record))


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("what", choices=("check", "speed", "table"))
    parser.add_argument("--scripts", nargs="+", default=list(CHECK), choices=CHECK, metavar="NAME")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES, metavar="NAME")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=ROOT / "runs/cuda")
    args = parser.parse_args()
    if args.what == "table":
        publish(args.out / "speed.json")
        return None
    args.out.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    results = check(args) if args.what == "check" else speed(args)
    failed = sum(result["status"] != 0 for result in results)
    return f"{failed} of {len(results)} runs failed" if failed else None


if __name__ == "__main__":
    sys.exit(main())
