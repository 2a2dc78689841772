"""Where a step of sac.py goes with small networks: microseconds of its parts, on one CPU core.

    python -m benchmark.measure.speed_parts

Trains the copy of sac.py that speed_rltools.py measures, two layers of 64 units and minibatches of
100 on Pendulum-v1, and times its parts. A figure is the 10th percentile of the calls in the second
half of the run: what a call takes when nothing disturbs it. Kernels are the C++ function that
torch's compiler has made of an update, its products of matrices included. The rest of an update's
call is torch's: does the compiled update still fit (guards), and the ways from Python to C++ and
back. The machine should be idle. Figures go to results/speed_parts.json and .md.
"""

import functools
import importlib.util
import itertools
import json
import os
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

HIDDEN = 64
PARTS = {  # name in the table: what is timed, and its kernels
    "update of the critics": ("update_critic", "update_critic kernels"),
    "update of actor and temperature": ("update_actor", "update_actor kernels"),
    "the policy, to act": ("act", None),
    "environment": ("environment", None),
    "a minibatch from the replay buffer": ("sample", None),
}
TIMES = {}  # what is timed: the seconds of each call


def timed(name, function):
    """The function, which also records how long each call takes."""
    seconds = TIMES.setdefault(name, [])

    @functools.wraps(function)
    def call(*args, **kwargs):
        began = time.perf_counter()
        result = function(*args, **kwargs)
        seconds.append(time.perf_counter() - began)
        return result

    return call


def time_updates():
    """Times the updates, and in them the functions that torch loads when it compiles them."""
    compile_update = utils.Run.compile
    load = CppWrapperCodeCache.load_pybinding
    names = []

    def compiled(self, update):
        names.append(update.__name__)
        return timed(update.__name__, compile_update(self, update))

    def loaded(*args, **kwargs):
        # Each update compiles to one function, at its first call, and sac.py calls them in order.
        return timed(f"{names.pop(0)} kernels", load(*args, **kwargs))

    utils.Run.compile = compiled
    CppWrapperCodeCache.load_pybinding = loaded


def time_the_rest(module):
    """Times the other parts, and when each step begins."""
    graph = utils.Run.cuda_graph
    goes_on = utils.Run.goes_on
    TIMES["step"] = []

    def without_graph(self, function):
        takes_observations = function.__code__.co_argcount == 2
        return timed("act", function) if takes_observations else graph(self, function)

    def step_begins(*args, **kwargs):
        TIMES["step"].append(time.perf_counter())
        return goes_on(*args, **kwargs)

    utils.Run.cuda_graph = without_graph
    utils.Run.goes_on = step_begins
    utils.VectorEnv.step = timed("environment", utils.VectorEnv.step)
    module.ReplayBuffer.sample = timed("sample", module.ReplayBuffer.sample)


def train(steps, folder):
    """Runs the copy of sac.py, in this process."""
    path = Path(folder, "sac.py")
    path.write_text(resized((ROOT / "cleanrl_lite/sac.py").read_text(), HIDDEN))
    spec = importlib.util.spec_from_file_location("sac_copy", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["sac_copy"] = module
    spec.loader.exec_module(module)
    time_updates()
    time_the_rest(module)
    args = module.Args(
        env_id="Pendulum-v1",
        batch_size=SIZES[HIDDEN],
        policy_frequency=1,
        learning_starts=LEARNING_STARTS,
        total_timesteps=LEARNING_STARTS + steps,
        cuda=False,
        eval_episodes=1,
        runs_dir=folder,
    )
    module.main(args)


def microseconds():
    """{what is timed: the 10th percentile of the second half of its calls}."""
    starts = TIMES["step"]
    lengths = [end - start for start, end in itertools.pairwise(starts)]
    found = {}
    for name, seconds in {**TIMES, "step": lengths}.items():
        tenth = quantiles(seconds[len(seconds) // 2 :], n=10)[0]
        found[name] = round(1e6 * tenth, 1)
    return found


def table(record):
    """The figures as a Markdown table."""
    figures = record["microseconds"]
    lines = ["| part of a step | µs | of these in kernels |", "|---|---:|---:|"]
    rest = figures["step"]
    for part, (name, kernels) in PARTS.items():
        rest -= figures[name]
        lines.append(
            row([part, f"{figures[name]:.0f}", f"{figures[kernels]:.0f}" if kernels else ""])
        )
    lines.append(row(["the rest", f"{rest:.0f}", ""]))
    inside = sum(figures[kernels] for _, kernels in PARTS.values() if kernels)
    lines.append(row(["**a step**", f"**{figures['step']:.0f}**", f"**{inside:.0f}**"]))
    note = (
        "The 10th percentile of each part's calls and of whole steps; the rest is the difference."
    )
    made = shared.made_by(
        "python -m benchmark.measure.speed_parts", [made_on(record)], [record["commit"]]
    )
    return "\n".join([*lines, "", note, "", made]) + "\n"


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("--steps", type=int, default=8_000, help="steps that learn")
    parser.add_argument("--core", type=int, default=0, help="core to run on")
    args = parser.parse_args()
    prepare(args.core)
    os.sched_setaffinity(0, {args.core})
    record = {
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
        "date": time.strftime("%FT%T%z"),
        "load_at_start": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory() as folder:
        train(args.steps, folder)
    record["microseconds"] = microseconds()
    (RESULTS / "speed_parts.json").write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / "speed_parts.md").write_text(table(record))
    print(table(record))


if __name__ == "__main__":
    main()
