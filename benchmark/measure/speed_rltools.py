"""Speed of ddpg, td3 and sac beside RLtools (C++) and beside an older checkout, on one CPU core.

    python -m venv /tmp/rlv
    /tmp/rlv/bin/pip install rltools==2.2.1 gymnasium==1.4.0 mkl mkl-include
    git clone . /tmp/before && git -C /tmp/before checkout 8b4532a
    python -m benchmark.measure.speed_rltools /tmp/rlv/bin/python --before /tmp/before

All sides train on gymnasium's Pendulum-v1 with networks of the same size, as many updates a step
and one thread, and take turns, each in a fresh process pinned to the same core. Our side is a copy
of the script, with another number of hidden units where the row has one. sac runs with
--policy-frequency 1, since RLtools updates critics, actor and temperature at every step; the
actor of ddpg and td3 learns at every second one, on all sides. RLtools has no DDPG.

The speed of a run is that of its second half, in steps per second of processor time from log to
log: acting, learning, the environment and our TensorBoard logging count, compiling and evaluations
do not. On an idle core that is the time on the clock. The first round begins with empty caches:
how many more seconds of processor time its runs need is what compiling takes, once. The machine
should be idle. Figures go to results/speed_rltools.json, a row at a time, and their table to
speed_rltools.md.
"""

import json
import os
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmark import shared
from benchmark.measure.speed import prepare, run
from benchmark.shared import RESULTS, ROOT, commit, hardware, made_on, row, versions

PATH = RESULTS / "speed_rltools.json"
OURS = ROOT / "benchmark/measure/speed_rltools_ours.py"
THEIRS = ROOT / "benchmark/measure/speed_rltools_theirs.py"
LEARNING_STARTS = 1000
SIZES = {64: 100, 256: 256}  # hidden units: transitions in a minibatch
TRAINED = {64: 8_000, 256: 800}  # steps after learning has started
ROWS = {}  # name: (script, hidden units)
for hidden, batch in SIZES.items():
    for script in ("sac", "td3", "ddpg"):
        ROWS[f"{script}, {hidden} x {hidden}, batch {batch}"] = script, hidden
FLAGS = {"sac": ["--policy-frequency", "1"]}


# === one run
def rltools_settings(hidden, total):
    """RLtools' names for the size of the networks and the length of the run."""
    return {
        "ACTOR_HIDDEN_DIM": hidden,
        "CRITIC_HIDDEN_DIM": hidden,
        "ACTOR_BATCH_SIZE": SIZES[hidden],
        "CRITIC_BATCH_SIZE": SIZES[hidden],
        "N_WARMUP_STEPS": LEARNING_STARTS,
        "STEP_LIMIT": total,
    }


def run_rltools(script, hidden, total, args, folder, cache):
    """Runs RLtools, which leaves times.json in the folder."""
    settings = json.dumps(rltools_settings(hidden, total))
    command = [str(THEIRS), script.upper(), settings, str(total), folder]
    run(command, folder, args.core, cache, python=args.python)


def resized(text, hidden):
    """The script with this many hidden units, as a person would change it."""
    lines = text.splitlines(keepends=True)
    layers = [n for n, line in enumerate(lines) if "nn.Linear(" in line and "256" in line]
    assert len(layers) == 3, "the script's layers have changed"
    for n in layers:
        lines[n] = lines[n].replace("256", str(hidden))
    return "".join(lines)


def run_ours(script, hidden, total, source, args, folder, cache):
    """Runs a copy of the script in `source`, which leaves the same."""
    text = (source / f"cleanrl_lite/{script}.py").read_text()
    path = Path(folder, f"{script}.py")
    path.write_text(resized(text, hidden))
    command = [str(OURS), folder, str(path), "--env-id", "Pendulum-v1"]
    command += ["--batch-size", str(SIZES[hidden]), "--learning-starts", str(LEARNING_STARTS)]
    command += ["--total-timesteps", str(total), *FLAGS.get(script, [])]
    command += ["--no-cuda", "--eval-episodes", "1", "--runs-dir", folder]
    variables = {"PYTHONPATH": str(source)}
    run(command, folder, args.core, cache, variables=variables)


def used():
    """Processor time of all processes that have ended, and of those that they waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(side, script, hidden, args, cache):
    """Speeds by processor time and by the clock, and the processor time of the whole run."""
    before = used()
    total = LEARNING_STARTS + TRAINED[hidden]
    with tempfile.TemporaryDirectory() as folder:
        if side == "rltools":
            run_rltools(script, hidden, total, args, folder, cache)
        else:
            source = args.before if side == "before" else ROOT
            run_ours(script, hidden, total, source, args, folder, cache)
        found = json.loads(Path(folder, "times.json").read_text())
    marks = [mark for mark in found.pop("marks") if mark[0] > LEARNING_STARTS]
    middle, end = marks[len(marks) // 2], marks[-1]
    steps, clock, processor = (last - first for first, last in zip(middle, end))
    found["sps"] = round(steps / processor, 1)
    found["clock_sps"] = round(steps / clock, 1)
    found["cpu_s"] = round(used() - before, 1)
    return found


# === a row
def sides_of(script, before):
    sides = ["rltools", "before", "now"]
    if script == "ddpg":
        sides.remove("rltools")
    if not before:
        sides.remove("before")
    return sides


def compare(name, args):
    """The record of a row: all sides in turns, the other way round in every second round."""
    script, hidden = ROWS[name]
    sides = sides_of(script, args.before)
    record = {
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
        "date": time.strftime("%FT%T%z"),
        "load_at_start": os.getloadavg()[0],
        "core": args.core,
        "rounds": [],
    }
    with tempfile.TemporaryDirectory() as caches:
        for side in sides:
            Path(caches, side).mkdir()
        for number in range(args.rounds):
            found = {}
            for side in sides if number % 2 == 0 else sides[::-1]:
                found[side] = measure(side, script, hidden, args, f"{caches}/{side}")
                which = f"{name}, round {number + 1} of {args.rounds}, {side}"
                print(f"{which}: {found[side]['sps']:,.0f} steps/s", flush=True)
            record["rounds"].append(found)
    return record


# === the table
def speed(record, side):
    """The median of the rounds; nothing where this side was not measured."""
    rounds = record["rounds"]
    if side not in rounds[0]:
        return ""
    return f"{median(found[side]['sps'] for found in rounds):,.0f}"


def ratio(record, side):
    """Ours now over this side, round by round: the median and the range."""
    rounds = record["rounds"]
    if side not in rounds[0]:
        return ""
    ratios = [found["now"]["sps"] / found[side]["sps"] for found in rounds]
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def compiling(records, side):
    """The range of a first round's processor time beyond that of the others."""
    seconds = []
    for record in records.values():
        spent = [found[side]["cpu_s"] for found in record["rounds"] if side in found]
        if len(spent) > 1:
            seconds.append(spent[0] - median(spent[1:]))
    return f"{min(seconds):.0f} to {max(seconds):.0f} s" if seconds else "unknown seconds"


def table(records):
    """The figures as a Markdown table."""
    lines = [
        "| script, networks | RLtools | 8b4532a | now | now / RLtools | now / 8b4532a |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    places = []
    for name, record in records.items():
        speeds = [speed(record, side) for side in ("rltools", "before", "now")]
        ratios = [ratio(record, side) for side in ("rltools", "before")]
        lines.append(row([name, *speeds, *ratios]))
        places.append(f"{made_on(record)}; {len(record['rounds'])} rounds")
        if "rltools" in record["rounds"][0]:
            theirs = record["rounds"][0]["rltools"]["versions"]
            packages = [f"{package} {version}" for package, version in theirs.items()]
            places.append(f"RLtools' side: {', '.join(packages)}")
    note = "Steps per second of processor time, one core, one thread, medians of the rounds; "
    note += "ratios: the median of the rounds' own, and their range. Compiling takes "
    note += (
        f"{compiling(records, 'rltools')} of processor time in RLtools, for each of these sizes, "
    )
    note += f"and {compiling(records, 'now')} in our scripts."
    command = "python -m benchmark.measure.speed_rltools"
    made = shared.made_by(command, places, [record["commit"] for record in records.values()])
    return "\n".join([*lines, "", note, "", made]) + "\n"


def parse():
    parser = shared.parser(__doc__)
    parser.add_argument("python", type=Path, help="Python interpreter of RLtools' environment")
    parser.add_argument("--before", type=Path, help="checkout of 8b4532a")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=ROWS, help="some rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", type=int, default=0, help="core to pin all runs to")
    args = parser.parse_args()
    args.python = args.python.absolute()  # not resolved: a venv's is a link
    args.before = args.before and args.before.resolve()
    return args


def main():
    args = parse()
    os.environ["OMP_NUM_THREADS"] = "1"
    records = json.loads(PATH.read_text()) if PATH.exists() else {}
    prepare(args.core)
    for name in args.rows:
        records[name] = compare(name, args)
        records = {known: records[known] for known in ROWS if known in records}
        PATH.write_text(json.dumps(records, indent=1) + "\n")
        PATH.with_suffix(".md").write_text(table(records))
    print(table(records))


if __name__ == "__main__":
    main()
