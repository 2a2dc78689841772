"""Time to a return: what people wait for, ours beside Stable-Baselines3's.

    python -m benchmark.measure.time_to_return                        all rows, some hours
    python -m benchmark.measure.time_to_return --rows ppo dqn         some of them
    python -m benchmark.measure.time_to_return --rows ppo --target 100 --out /tmp/try.json
    python -m benchmark.measure.time_to_return --from-results         only the table, from the file

Seconds of wall clock from the start of the process, imports and compilation included, until the
mean return of the last 100 training episodes first reaches a target. Both sides use the script's
hyperparameters, its number of steps, one thread and their TensorBoard logging; speed.py lists the
remaining differences. Stable-Baselines3 has neither C51 nor FastTD3. The sides take turns, a run
for each seed, each in a fresh process pinned to the same core and with an empty compile cache, as
at the very first run. A run is stopped when it has reached the target. One that never does is not
left out: it counts as slower than all others. Our clock is the event file's: the time at which the
script logged an episode. That of Stable-Baselines3 is a callback's.

Why 100 episodes: gym defines CartPole-v1 as solved by a mean of 475 over 100 of them, and it is
the mean that Stable-Baselines3 prints and that our tables compare. Fewer would react faster, but
also to a lucky streak: seed 4 of ppo_continuous on Hopper-v4 once had a mean of 2,035 over 20
episodes, and never more than 1,796 over 100. The delay is part of the seconds on both sides.

The machine should be idle. Each run is a line of results/time_to_return.json as soon as it ends;
the same command goes on where it was stopped, and skips what the file has at this commit.
"""

import json
import math
import os
import shlex
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from statistics import median

from benchmark import shared
from benchmark.measure.speed import make_model, prepare, run
from benchmark.shared import RESULTS, commit, hardware, made_on, row, script_defaults, versions

FILE = RESULTS / "time_to_return.json"
HALFCHEETAH = "--bf16 --v-min -500 --v-max 1000 --num-envs 8 --train-frequency 8 "
HALFCHEETAH += "--gradient-steps 2 --learning-rate 1e-3 --batch-size 256 --tau 0.02 "
HALFCHEETAH += "--learning-starts 5000"
ROWS = {  # script, environment, return, flags of our side
    "ppo": ("ppo", "CartPole-v1", 475, ""),
    "dqn": ("dqn", "CartPole-v1", 475, ""),
    "c51": ("c51", "CartPole-v1", 475, ""),
    "ppo_continuous": ("ppo_continuous", "Hopper-v4", 2000, ""),
    "ddpg": ("ddpg", "Pendulum-v1", -200, ""),
    "td3": ("td3", "Pendulum-v1", -200, ""),
    "sac": ("sac", "Pendulum-v1", -200, ""),
    "fast_td3": ("fast_td3", "Pendulum-v1", -200, "--v-min -1500 --v-max 0"),
    "sac_halfcheetah": ("sac", "HalfCheetah-v4", 5000, ""),
    "fast_td3_halfcheetah": ("fast_td3", "HalfCheetah-v4", 5000, HALFCHEETAH),
}
ALONE = "c51", "fast_td3"  # Stable-Baselines3 has no such algorithm
SEEDS = [1, 2, 3]
WINDOW = 100  # training episodes
# Why Stable-Baselines3 never gets there, where it does not
REASONS = {
    "dqn": "Stable-Baselines3's DQN, which has a Huber loss and clips gradients, does not learn "
    "with these hyperparameters, so that row does not compare speed."
}
SIDES = {"sb3": "Stable-Baselines3", "ours": "cleanrl_lite"}
NAMES = "script", "env_id", "side", "seed"


# === runs
def reached(episodes, target):
    """(step, time) at which the mean of the last WINDOW episodes first reached the target.

    None if it never did. Episodes are (step, time, return).
    """
    latest = deque(maxlen=WINDOW)
    for step, when, episodic_return in episodes:
        latest.append(episodic_return)
        if len(latest) == WINDOW and sum(latest) / WINDOW >= target:
            return step, when
    return None


class OurEpisodes:
    """Reads the training episodes of a run of ours from its event file, which may grow."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.events = None

    def __call__(self):
        if self.events:
            self.events.Reload()  # what is new
        else:
            for path in self.folder.glob("*/events.out.tfevents.*"):
                self.events = shared.events(path.parent)
        tag = "charts/episodic_return"
        if not self.events or tag not in self.events.Tags()["scalars"]:
            return []
        scalars = self.events.Scalars(tag)
        return [(event.step, event.wall_time, event.value) for event in scalars]


class TheirEpisodes:
    """Reads the training episodes of a run of Stable-Baselines3 that train_sb3 writes."""

    def __init__(self, folder):
        self.path = Path(folder, "episodes.csv")

    def __call__(self):
        if not self.path.exists():
            return []
        lines = self.path.read_text().split("\n")[:-1]  # whole ones
        rows = [line.split(",") for line in lines]
        return [(int(step), float(when), float(value)) for step, when, value in rows]


def train_sb3(script, env_id, args, steps, seed, folder):
    """Writes step, time, return of each training episode to FOLDER/episodes.csv when it ends.

    A process of its own runs it. The returns are those of its Monitor.
    """
    model = make_model(script, env_id, json.loads(args), folder, int(seed))
    with open(Path(folder, "episodes.csv"), "w") as file:

        def write_ends(local_names, _):
            for info in local_names["infos"]:
                if "episode" in info:
                    line = f"{model.num_timesteps},{time.time()},{info['episode']['r']}"
                    print(line, file=file, flush=True)
            return True

        model.learn(int(steps), callback=write_ends)


def measure(side, script, env_id, target, flags, total, seed, core):
    """One run: was the target reached, after how many steps and seconds?"""
    with tempfile.TemporaryDirectory() as folder:
        if side == "sb3":
            args = json.dumps(script_defaults(script))
            command = ["-m", "benchmark.measure.time_to_return", "sb3", script, env_id, args]
            command += [str(total), str(seed), folder]
            episodes = TheirEpisodes(folder)
        else:
            command = [f"cleanrl_lite/{script}.py", "--env-id", env_id, "--seed", str(seed)]
            command += ["--total-timesteps", str(total), "--threads", "1", "--no-cuda"]
            command += ["--eval-episodes", "1", "--runs-dir", folder, *flags.split()]
            episodes = OurEpisodes(folder)

        def enough():
            time.sleep(1)  # one look a second will do
            return reached(episodes(), target)

        began, peak = run(command, folder, core, f"{folder}/cache", enough)
        at = reached(episodes(), target)
        # Of a run that never reaches the target, how far it came
        step, when, _ = episodes()[-1]
    if at:
        step, when = at
    return {
        "reached": bool(at),
        "steps": step,
        "seconds": round(when - began, 2),
        "peak_mb": peak,
    }


# === the file
def read(path):
    return json.loads(path.read_text()) if path.exists() else []


def name(line):
    return tuple(line[field] for field in NAMES)


def write(entries, path):
    """A line for each run; the newest of each name."""
    entries = {name(line): line for line in entries}
    lines = ",\n".join(json.dumps(entries[key]) for key in sorted(entries))
    path.write_text(f"[\n{lines}\n]\n")
    write_table(path)


def write_table(path):
    path.with_suffix(".md").write_text(table(read(path)))


def sides_of(script):
    return ["ours"] if script in ALONE else list(SIDES)


def todo(rows, seeds, known, here, goals):
    """(row, seed, side) of the runs that the file has not at this commit, in turns.

    `goals` are {row: (target, total_timesteps)}: a run with others does not count.
    """
    done = set()
    for line in known:
        if line["commit"] == here:
            done.add((*name(line), line["target"], line["total_timesteps"]))
    for chosen in rows:
        script, env_id, *_ = ROWS[chosen]
        for seed in seeds:
            for side in sides_of(script):
                if (script, env_id, side, seed, *goals[chosen]) not in done:
                    yield chosen, seed, side


# === the table
def complete(entries):
    """{row: {side: runs}} with all SEEDS on its sides."""
    found = {}
    for chosen, (script, env_id, *_) in ROWS.items():
        sides = {}
        for side in sides_of(script):
            runs = [line for line in entries if name(line)[:3] == (script, env_id, side)]
            runs = [line for line in runs if line["seed"] in SEEDS]
            if len(runs) == len(SEEDS):
                sides[side] = runs
        if len(sides) == len(sides_of(script)):
            found[chosen] = sides
    return found


def middle(runs):
    """The median of the seconds; infinite where half of the runs or more never got there."""
    return median(line["seconds"] if line["reached"] else math.inf for line in runs)


def seconds(runs):
    """Median and range of the seconds, and how many runs never reached the target."""
    there = [line["seconds"] for line in runs if line["reached"]]
    never = f"not reached within {runs[0]['total_timesteps']:,} steps"
    if not there:
        return never
    half = middle(runs)
    found = "" if half == math.inf else f"{half:,.0f} "
    found += f"({min(there):,.0f} to {max(there):,.0f})"
    if len(there) < len(runs):
        found += f", {len(runs) - len(there)} of {len(runs)} {never}"
    return found


def steps(runs):
    there = [line["steps"] for line in runs if line["reached"]]
    return f"{median(there):,.0f}" if there else ""


def ratio(sides):
    """How many times as long Stable-Baselines3 took; nothing if a side has no median."""
    if "sb3" not in sides:
        return ""
    halves = middle(sides["sb3"]), middle(sides["ours"])
    return "" if math.inf in halves else f"{halves[0] / halves[1]:.2f}"


HEAD = """\
| return | script | cleanrl_lite, seconds | steps | Stable-Baselines3, seconds | steps | ratio |
|---|---|---:|---:|---:|---:|---:|"""


def table(entries):
    """Markdown: a row for each script, and folded: machines and commits."""
    found = complete(entries)
    command = "python -m benchmark.measure.time_to_return"
    if not found:
        return f"Not measured yet: `{command}`.\n"
    lines = [HEAD]
    for sides in found.values():
        ours = sides["ours"]
        goal = f"{ours[0]['target']:,} in {ours[0]['env_id']}"
        cells = [goal, ours[0]["script"], seconds(ours), steps(ours)]
        theirs = sides.get("sb3")
        cells += [seconds(theirs), steps(theirs)] if theirs else ["", ""]
        lines.append(row([*cells, ratio(sides)]))
    lines += ["", note(found)]
    used = []
    for sides in found.values():
        for runs in sides.values():
            used += runs
    commits = [str(line["commit"]) for line in used]
    lines += ["", shared.made_by(command, map(made_on, used), commits)]
    return "\n".join(lines) + "\n"


def note(found):
    """What the columns are, and what is missing."""
    caption = (
        f"Until the mean of the last {WINDOW} training episodes first reaches the return: median"
    )
    caption += (
        f" (range) of {len(SEEDS)} seeds a side, one core, one thread, imports and compilation"
    )
    caption += " included. Steps: the median of the runs that reached it. Ratio: median seconds of"
    caption += " Stable-Baselines3 to ours."
    caption += " It has neither C51 nor FastTD3."
    for chosen, sides in found.items():
        script, env_id, _, flags = ROWS[chosen]
        if flags:
            caption += f" {script} in {env_id} has `{flags}`."
        if chosen in REASONS and middle(sides["sb3"]) == math.inf:
            caption += f" {REASONS[chosen]}"
    missing = [chosen for chosen in ROWS if chosen not in found]
    if missing:
        caption += f" Not measured yet: {', '.join(missing)}."
    return caption


# === the command line
def parse():
    parser = shared.parser(__doc__)
    add = parser.add_argument
    add("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="default: all")
    add("--seeds", nargs="+", type=int, default=SEEDS, help="seeds (default: 1 2 3)")
    add("--core", type=int, default=0, help="core to pin all runs to")
    add("--target", type=float, help="another return, for a trial")
    add("--steps", type=int, help="another number of steps, for a trial")
    add("--out", type=Path, default=FILE, help="another file, for a trial")
    add("--from-results", action="store_true", help="only make the table again")
    args = parser.parse_args()
    if (args.target or args.steps) and args.out == FILE:
        parser.error("--target and --steps are for trials, which need another file: --out")
    return args


def main():
    if sys.argv[1:2] == ["sb3"]:  # the other side's process
        train_sb3(*sys.argv[2:])
        return
    args = parse()
    if args.from_results:
        write_table(args.out)
        print(table(read(args.out)))
        return
    here = commit()
    if here and here.endswith("-dirty"):
        raise SystemExit("error: files differ from their commit, which every run records. Commit")
    prepare(args.core)
    goals = {}
    for chosen in args.rows:
        script, _, target, _ = ROWS[chosen]
        total = args.steps or script_defaults(script)["total_timesteps"]
        goals[chosen] = args.target or target, total
    for chosen, seed, side in todo(args.rows, args.seeds, read(args.out), here, goals):
        if commit() != here:
            raise SystemExit("error: the checkout has changed since the start. Start again")
        script, env_id, _, flags = ROWS[chosen]
        target, total = goals[chosen]
        load = os.getloadavg()[0]
        found = measure(side, script, env_id, target, flags, total, seed, args.core)
        words = ["python", "-m", "benchmark.measure.time_to_return", *sys.argv[1:]]
        line = {
            "script": script,
            "side": side,
            "seed": seed,
            "env_id": env_id,
            "target": target,
            "window": WINDOW,
            "total_timesteps": total,
            **found,
            "commit": here,
            "versions": versions(),
            "hardware": hardware(),
            "core": args.core,
            "load_at_start": load,
            "date": time.strftime("%FT%T%z"),
            "command": shlex.join(words),
        }
        write([*read(args.out), line], args.out)
        print(f"{script} seed {seed}, {SIDES[side]}: {found}", flush=True)
    print(table(read(args.out)))


if __name__ == "__main__":
    main()
