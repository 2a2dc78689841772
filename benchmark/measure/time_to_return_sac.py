"""Time to a return: fast_td3.py beside sac.py, one core each.

    python -m benchmark.measure.time_to_return_sac                          all rows, hours
    python -m benchmark.measure.time_to_return_sac --rows Hopper-v4 --seeds 1 2 --core 1
    python -m benchmark.measure.time_to_return_sac --from-results           only the table

benchmark.measure.time_to_return says what is measured and how; here, both sides are ours. sac.py
has its defaults. FLAGS are fast_td3.py's, chosen on seeds 11 to 13; docs/fast_td3.md lists what was
tried. Each run is a line of results/time_to_return_sac.json as soon as it ends; the same command
goes on where it was stopped.
"""

import json
import math
import shlex
import sys
import time
from statistics import median

from benchmark import shared
from benchmark.measure import time_to_return
from benchmark.measure.speed import prepare
from benchmark.measure.time_to_return import SEEDS, middle, seconds, steps
from benchmark.shared import RESULTS, commit, hardware, made_on, row, versions

FILE = RESULTS / "time_to_return_sac.json"
TARGETS = {"HalfCheetah-v4": 5000, "Hopper-v4": 2000, "Walker2d-v4": 3000}
# At most, for either side; about as many minutes
STEPS = {"sac": 300_000, "fast_td3": 800_000}
FLAGS = {
    "sac": "",
    "fast_td3": (
        "--bf16 --v-min -500 --v-max 1000 --num-envs 8 --train-frequency 8 --gradient-steps 2 "
        "--learning-rate 1e-3 --batch-size 256 --tau 0.02 --learning-starts 5000"
    ),
}


def read():
    return json.loads(FILE.read_text()) if FILE.exists() else []


def name(line):
    return line["env_id"], line["script"], line["seed"]


def write(entries):
    """A line for each run; the newest of each name."""
    entries = {name(line): line for line in entries}
    lines = ",\n".join(json.dumps(entries[key]) for key in sorted(entries))
    FILE.write_text(f"[\n{lines}\n]\n")
    write_table()


def write_table():
    FILE.with_suffix(".md").write_text(table(read()))


def todo(rows, seeds, here, known):
    """(env_id, seed, script) of the runs that the file has not at this commit, in turns."""
    done = {name(line) for line in known if line["commit"] == here}
    for env_id in rows:
        for seed in seeds:
            for script in FLAGS:
                if (env_id, script, seed) not in done:
                    yield env_id, seed, script


# === the table
HEAD = """\
| environment, return | fast_td3, seconds | steps | sac, seconds | steps | ratio | peak MB |
|---|---:|---:|---:|---:|---:|---:|"""


def complete(entries):
    """{env_id: {script: runs}} with all SEEDS on both sides."""
    found = {}
    for env_id in TARGETS:
        sides = {}
        for script in FLAGS:
            runs = [line for line in entries if name(line)[:2] == (env_id, script)]
            sides[script] = [line for line in runs if line["flags"] == FLAGS[script]]
        if all(len(runs) == len(SEEDS) for runs in sides.values()):
            found[env_id] = sides
    return found


def ratio(sides):
    """fast_td3's median time as a part of sac's; nothing if a side has none."""
    halves = middle(sides["fast_td3"]), middle(sides["sac"])
    return "" if math.inf in halves else f"{halves[0] / halves[1]:.2f}"


def table(entries):
    """Markdown: a row for each environment, and folded: machines and commits."""
    command = "python -m benchmark.measure.time_to_return_sac"
    found = complete(entries)
    if not found:
        return f"Not measured yet: `{command}`.\n"
    lines = [HEAD]
    for env_id, sides in found.items():
        cells = [f"{env_id}, {TARGETS[env_id]:,}"]
        for script in ("fast_td3", "sac"):
            cells += [seconds(sides[script]), steps(sides[script])]
        peaks = [median(line["peak_mb"] for line in sides[s]) for s in ("fast_td3", "sac")]
        lines.append(row([*cells, ratio(sides), f"{peaks[0]:.0f}, {peaks[1]:.0f}"]))
    used = []
    for sides in found.values():
        used += sides["fast_td3"] + sides["sac"]
    lines += ["", note(found)]
    commits = [str(line["commit"]) for line in used]
    lines += ["", shared.made_by(command, map(made_on, used), commits)]
    return "\n".join(lines) + "\n"


def note(found):
    caption = (
        f"Until the mean of the last {time_to_return.WINDOW} training episodes first reaches the "
        f"return: median (range) of seeds {', '.join(map(str, SEEDS))}, one core, one thread, "
        "imports and compilation included. Ratio: fast_td3's median seconds to sac's. Peak memory: "
        "medians, fast_td3's first."
    )
    missing = [env_id for env_id in TARGETS if env_id not in found]
    if missing:
        caption += f" Not measured yet: {', '.join(missing)}."
    return caption


# === the command line
def main():
    parser = shared.parser(__doc__)
    add = parser.add_argument
    add("--rows", nargs="+", choices=TARGETS, default=list(TARGETS), help="environments")
    add("--seeds", nargs="+", type=int, choices=SEEDS, default=SEEDS, help="seeds")
    add("--core", type=int, default=0, help="core to pin all runs to")
    add("--from-results", action="store_true", help="only make the table again")
    args = parser.parse_args()
    if args.from_results:
        write_table()
        return
    here = commit()
    if here and here.endswith("-dirty"):
        raise SystemExit("error: files differ from their commit, which every run records. Commit")
    prepare(args.core)
    for env_id, seed, script in todo(args.rows, args.seeds, here, read()):
        found = time_to_return.measure(
            "ours",
            script,
            env_id,
            TARGETS[env_id],
            STEPS[script],
            seed,
            args.core,
            FLAGS[script].split(),
        )
        words = ["python", "-m", "benchmark.measure.time_to_return_sac", *sys.argv[1:]]
        line = {
            "script": script,
            "env_id": env_id,
            "seed": seed,
            "target": TARGETS[env_id],
            "window": time_to_return.WINDOW,
            "total_timesteps": STEPS[script],
            "flags": FLAGS[script],
            **found,
            "commit": here,
            "versions": versions(),
            "hardware": hardware(),
            "core": args.core,
            "date": time.strftime("%FT%T%z"),
            "command": shlex.join(words),
        }
        write([*read(), line])
        print(f"{env_id} seed {seed}, {script}: {found}", flush=True)
    print(table(read()))


if __name__ == "__main__":
    main()
