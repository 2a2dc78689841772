"""Where a step of four scripts goes, on one CPU core: microseconds of its parts.

    python -m benchmark.measure.speed_parts
    python -m benchmark.measure.speed_parts --rows dqn          some of them

Each row trains a script in a process of its own and times its parts; sac.py is the copy that
speed_rltools.py measures, at two sizes, on Pendulum-v1. A figure is the 10th percentile of the
calls in the second half of the run (what a call takes when nothing disturbs it) times the calls
per step of an environment. A step is the 10th percentile of the time from one log to the next.
Kernels are the C++ function that torch's compiler has made of an update, its products of matrices
included. The rest of an update's call is torch's: does the compiled update still fit (guards), and
the ways from Python to C++ and back. The machine should be idle. Figures go to
results/speed_parts.json, a row at a time, and their table to speed_parts.md.
"""

import functools
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

from torch._inductor.codecache import CppWrapperCodeCache

from benchmark import shared
from benchmark.measure.speed import prepare
from benchmark.measure.speed_rltools import LEARNING_STARTS, SIZES, resized
from benchmark.shared import RESULTS, ROOT, commit, hardware, made_on, row, versions
from cleanrl_lite import utils

PATH = RESULTS / "speed_parts.json"
ROWS = {  # name: script, hidden units that replace the script's, its arguments
    "sac, 64 x 64": ("sac", 64, {"policy_frequency": 1, "total_timesteps": 9_000}),
    "sac, 256 x 256": ("sac", 256, {"policy_frequency": 1, "total_timesteps": 2_000}),
    "dqn": ("dqn", None, {"env_id": "CartPole-v1", "total_timesteps": 100_000}),
    "ppo_continuous": ("ppo_continuous", None, {"env_id": "Hopper-v4", "total_timesteps": 100_000}),
}
PARTS = {  # name in the table: what is timed
    "updates, inside their kernels": "kernels",
    "updates, the rest of their calls": "update",
    "the policy, to act": "act",
    "environment": "environment",
    "minibatches from the replay buffer": "sample",
}
# Of each function of a part: (begin, seconds) of its calls. Of the logs: (step, time).
TIMES = {"logs": []}


# === one run
def timed(name, function):
    """The function, which also records when each call begins and how long it takes."""
    calls = TIMES.setdefault(name, [])

    @functools.wraps(function)
    def call(*args, **kwargs):
        began = time.perf_counter()
        result = function(*args, **kwargs)
        calls.append((began, time.perf_counter() - began))
        return result

    return call


def time_updates():
    """Times the updates, and in them the functions that torch loads when it compiles them."""
    compile_update = utils.Run.compile
    load = CppWrapperCodeCache.load_pybinding
    names = []

    def compiled(self, update):
        names.append(update.__name__)
        return timed(f"update {update.__name__}", compile_update(self, update))

    def loaded(*args, **kwargs):
        # Each update compiles to one function at its first call, in the order of the scripts.
        return timed(f"kernels {names.pop(0)}", load(*args, **kwargs))

    utils.Run.compile = compiled
    CppWrapperCodeCache.load_pybinding = loaded


def time_acting():
    """Times the network in numpy, or sac's policy, which is a function of two tensors."""
    graph = utils.Run.cuda_graph
    numpy_forward = utils.numpy_forward

    def without_graph(self, function):
        acts = function.__code__.co_argcount == 2
        return timed("act", function) if acts else graph(self, function)

    utils.Run.cuda_graph = without_graph
    utils.numpy_forward = lambda *args, **flags: timed("act", numpy_forward(*args, **flags))


def time_the_rest(module):
    """Times the other parts, and when the script logs. There is no evaluation."""
    log = utils.Run.log

    def logged(self, scalars, global_step):
        TIMES["logs"].append((global_step, time.perf_counter()))
        log(self, scalars, global_step)

    utils.Run.log = logged
    utils.Run.end = lambda self: None
    utils.VectorEnv.step = timed("environment", utils.VectorEnv.step)
    if hasattr(module, "ReplayBuffer"):
        module.ReplayBuffer.sample = timed("sample", module.ReplayBuffer.sample)


def train(name, folder):
    """Runs the script, or a copy of another size, in this process."""
    script, hidden, flags = ROWS[name]
    text = (ROOT / f"cleanrl_lite/{script}.py").read_text()
    if hidden:
        text = resized(text, hidden)
        flags = {
            "env_id": "Pendulum-v1",
            "batch_size": SIZES[hidden],
            "learning_starts": LEARNING_STARTS,
            **flags,
        }
    path = Path(folder, f"{script}.py")
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"{script}_copy", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    time_updates()
    time_acting()
    time_the_rest(module)
    module.main(module.Args(cuda=False, runs_dir=folder, **flags))


def tenth(figures):
    return quantiles(figures, n=10, method="inclusive")[0]


def microseconds(times):
    """{part: microseconds per step of an environment}, of all parts and of the whole step."""
    logs = times["logs"]
    logs = logs[len(logs) // 2 :]
    first_step, start = logs[0]
    last_step, end = logs[-1]
    found = dict.fromkeys(PARTS.values(), 0.0)
    for name, calls in times.items():
        inside = [seconds for began, seconds in calls if start <= began < end]
        if name != "logs" and inside:
            part = name.partition(" ")[0]
            found[part] += tenth(inside) * len(inside) / (last_step - first_step)
    found["update"] -= found["kernels"]
    found["step"] = tenth(
        [
            (after - before) / (end_step - start_step)
            for (start_step, before), (end_step, after) in itertools.pairwise(logs)
        ]
    )
    return {part: round(1e6 * seconds, 1) for part, seconds in found.items()}


# === the table
def table(records):
    """The figures as a Markdown table."""
    columns = {name: records[name]["microseconds"] for name in ROWS if name in records}
    lines = [row(["part of a step", *columns]), "|---|" + "---:|" * len(columns)]
    for part, key in PARTS.items():
        cells = [f"{figures[key]:.1f}" if figures[key] else "" for figures in columns.values()]
        lines.append(row([part, *cells]))
    rests = [2 * figures["step"] - sum(figures.values()) for figures in columns.values()]
    lines.append(row(["the rest", *[f"{rest:.1f}" for rest in rests]]))
    lines.append(row(["**a step**", *[f"**{col['step']:.1f}**" for col in columns.values()]]))
    note = (
        "Microseconds. Parts: the 10th percentile of their calls, times calls per step. A step: "
        "the 10th percentile of the time from log to log. The rest is the difference."
    )
    made = shared.made_by(
        "python -m benchmark.measure.speed_parts",
        sorted({made_on(record) for record in records.values()}),
        sorted({record["commit"] for record in records.values()}),
    )
    return "\n".join([*lines, "", note, "", made]) + "\n"


def measure(name, core):
    """The figures of a row, from a process of its own."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        child = [sys.executable, "-m", "benchmark.measure.speed_parts", "--child", folder]
        pinned = ["taskset", "--cpu-list", str(core), *child, "--rows", name]
        subprocess.run(pinned, cwd=ROOT, check=True)
        figures = json.loads(Path(folder, "microseconds.json").read_text())
    return {
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
        "date": time.strftime("%FT%T%z"),
        "load_at_start": load,
        "microseconds": figures,
    }


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS], help="some of them")
    parser.add_argument("--core", type=int, default=0, help="core to run on")
    parser.add_argument("--child", metavar="FOLDER", help="(started by itself) measure one row")
    args = parser.parse_args()
    if args.child:
        train(*args.rows, args.child)
        Path(args.child, "microseconds.json").write_text(json.dumps(microseconds(TIMES)))
        return
    prepare(args.core)
    records = json.loads(PATH.read_text()) if PATH.exists() else {}
    for name in args.rows:
        records[name] = measure(name, args.core)
        PATH.write_text(json.dumps(records, indent=1) + "\n")
        PATH.with_suffix(".md").write_text(table(records))
    print(table(records))


if __name__ == "__main__":
    main()
