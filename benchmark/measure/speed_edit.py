"""CPU seconds from the start of a script to its first results, after an edit of its update.

    git clone . /tmp/before && git -C /tmp/before checkout 8b4532a
    python -m benchmark.measure.speed_edit /tmp/before

Three ways to start a script take turns, each with a cache of compiled kernels of its own: the
script in the other checkout, the one here, and the one here in the process of
cleanrl_lite.tools.watch. Each round changes a factor of the loss, so that the update compiles anew
(edited), and starts the same file once more (warm). A run is short: it ends soon after its first
update, with an evaluation of one episode. Its seconds are those of the process and its children,
user and system; what watch itself needs once is not counted. All figures go to
results/speed_edit.json.
"""

import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmark import shared
from benchmark.shared import RESULTS, ROOT, commit, hardware, made_on, row, versions
from cleanrl_lite.tools import watch

LOSSES = {  # what an edit changes
    "ppo": "loss = policy_loss -",
    "ppo_continuous": "loss = policy_loss -",
    "dqn": "td_loss = (",
    "sac": "qf_loss = ",
    "td3": "qf_loss = ",
}
SHORT = ["--eval-episodes", "1", "--save-every", "0", "--no-cuda"]
STEPS = {
    "ppo": ["--total-timesteps", "2048"],
    "ppo_continuous": ["--total-timesteps", "4096"],
}
OFF_POLICY = ["--learning-starts", "200", "--total-timesteps", "300"]
WAYS = ("before", "now", "watch")


def cpu_seconds():
    """Processor time of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(way, path, script, other):
    """Runs the file at `path` in one of the ways; returns its CPU seconds."""
    before = cpu_seconds()
    flags = [*SHORT, *STEPS.get(script, OFF_POLICY), "--runs-dir", str(path.parent / "runs")]
    if way == "watch":
        process = multiprocessing.get_context("fork").Process(target=watch.run, args=(path, flags))
        process.start()
        process.join()
        code = process.exitcode
    else:
        source = str(other if way == "before" else ROOT)
        cache = str(path.parent / "cache")
        env = {**os.environ, "PYTHONPATH": source, "TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, str(path), *flags]
        code = subprocess.run(command, env=env, stdout=subprocess.DEVNULL).returncode
    if code:
        raise SystemExit(f"error: {script}, {way}: exit status {code}")
    return round(cpu_seconds() - before, 2)


def rounds(script, count, other, folder):
    """{way: {"edited": seconds, "warm": seconds}} for each round."""
    found = []
    for number in range(count + 1):
        times = {}
        for way in WAYS if number % 2 else WAYS[::-1]:
            source = other if way == "before" else ROOT
            text = (source / "cleanrl_lite" / f"{script}.py").read_text()
            loss = LOSSES[script]
            edited = text.replace(loss, loss.replace("=", f"= 1.{number:02} *"), 1)
            assert edited != text
            path = folder / way / f"{script}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(edited)
            times[way] = {kind: run(way, path, script, other) for kind in ("edited", "warm")}
        if number > 0:  # the first one fills the caches
            found.append(times)
            print(script, times, flush=True)
    return found


def cells(record, kind):
    """Medians of the seconds, and of the ratios to those before."""
    found = []
    for way in WAYS:
        seconds = median(times[way][kind] for times in record)
        ratio = median(times[way][kind] / times["before"][kind] for times in record)
        found.append(f"{seconds:.1f}" if way == "before" else f"{seconds:.1f} ({ratio:.2f})")
    return found


def table(results):
    """The figures as a Markdown table."""
    lines = [
        "| script | edited, before | now | with `watch` | warm, before | now | with `watch` |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for script, record in results["rounds"].items():
        lines.append(row([script, *cells(record, "edited"), *cells(record, "warm")]))
    count = len(next(iter(results["rounds"].values())))
    note = "CPU seconds from the start to the end of a short run, medians of "
    note += f"{count} rounds; in brackets the median of their ratios to before, commit 8b4532a."
    command = "python -m benchmark.measure.speed_edit"
    made = shared.made_by(command, [made_on(results)], [results["commit"]])
    return "\n".join([*lines, "", note, "", made]) + "\n"


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("other", type=Path, help="checkout of 8b4532a")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--script", nargs="*", choices=LOSSES, default=list(LOSSES))
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    results = {"hardware": hardware(), "versions": versions(), "commit": commit(), "rounds": {}}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder, "watch", "cache"))
        watch.import_compiler()
        for script in args.script:
            found = rounds(script, args.rounds, args.other.resolve(), Path(folder))
            results["rounds"][script] = found
    (RESULTS / "speed_edit.json").write_text(json.dumps(results, indent=1) + "\n")
    (RESULTS / "speed_edit.md").write_text(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
