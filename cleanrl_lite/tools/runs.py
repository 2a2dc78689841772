"""What the tools share: finding runs, reading them, and grouping them by what differs."""

import argparse
import ast
import collections
import difflib
import functools
import hashlib
import itertools
import json
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SCRIPTS = Path(__file__).resolve().parents[1]
# In args.json, but no setting of an experiment: they have fields of their own, or say nothing
# about the results.
RUN_FLAGS = {
    *("script", "versions", "seed", "exp_name", "env_id", "total_timesteps", "runs_dir", "track"),
    *("save_every", "eval_every", "wandb_project_name", "wandb_entity", "resume", "evaluate"),
}
# These may differ between the runs of an experiment.
MACHINE_FLAGS = {
    *("cuda", "cuda_graph", "compile", "threads", "async_envs"),
    *("eval_episodes", "capture_video", "render", "torch_deterministic", "folder"),
}
RETURN = "charts/episodic_return"
# What other libraries call our metrics, in their own TensorBoard files
TAGS = {
    RETURN: [RETURN, "rollout/ep_rew_mean", "rewards/step"],  # CleanRL, SB3, rl_games
    "eval/episodic_return": ["eval/episodic_return", "eval/mean_reward"],
}


def parser(doc):
    """A command line whose --help shows a module's docstring as it is."""
    style = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=doc, formatter_class=style)


def say(note):
    print(f"note: {note}", file=sys.stderr)


def refuse(message):
    raise SystemExit(f"error: {message}")


# === scripts
def default_args(source):
    """The defaults of the class Args in a script's source, read without running it."""
    (args,) = [node for node in ast.parse(source).body if getattr(node, "name", "") == "Args"]
    fields = [field for field in args.body if isinstance(field, ast.AnnAssign)]
    defaults = {field.target.id: field.value for field in fields if field.target.id != "exp_name"}
    return {name: ast.literal_eval(value) for name, value in defaults.items()}


def script_defaults(script):
    """default_args() of cleanrl_lite/SCRIPT.py as it is here."""
    return default_args((SCRIPTS / f"{script}.py").read_text())


def changed_flags(args, source):
    """The arguments of a run that are not its script's defaults, but for RUN_FLAGS."""
    defaults = default_args(source.read_text())
    if (SCRIPTS / source.name).exists():
        # Compared with today's script: a default that was another one then is a flag.
        defaults |= script_defaults(source.stem)
    changed = {name: value for name, value in args.items() if value != defaults.get(name)}
    return {name: value for name, value in changed.items() if name not in RUN_FLAGS}


def flag(name, value):
    """An argument as the command line has it."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {shlex.quote(str(value))}"


def format_number(mean, std=None):
    """A return as tables show it."""
    digits = 0 if abs(mean) >= 1000 else 1
    mean = round(float(mean), digits) + 0.0  # no minus before a zero
    text = f"{mean:,.{digits}f}"
    return text if std is None else f"{text} ± {std:,.{digits}f}"


def source_of(run_dir):
    """The script's text in a run directory, which also has that of utils.py; or None."""
    return min({*run_dir.glob("*.py")} - {run_dir / "utils.py"}, default=None)


def code_of(path):
    """A hash of what a script's text says: comments and line breaks do not count."""
    return hashlib.sha256(ast.dump(ast.parse(path.read_text())).encode()).hexdigest()[:6]


def changed_lines(old, new):
    """How many lines a diff of two scripts has in each section."""
    counts, section = collections.Counter(), "imports"
    for line in [*difflib.unified_diff(old.splitlines(), new.splitlines(), n=len(old))][2:]:
        banner = re.match(r".\s*# === (.+)", line)
        section = banner[1] if banner else section
        counts[section] += line[0] in "+-" and bool(line[1:].strip())
    return +counts


def nearest_script(text):
    """The installed script with the fewest lines that differ."""
    paths = {*SCRIPTS.glob("[!_]*.py")} - {SCRIPTS / "utils.py"}
    return min(sorted(paths), key=lambda path: changed_lines(path.read_text(), text).total())


# === event files
def event_files(folder):
    return sorted(folder.glob("events.out.tfevents.*"))


def last_step(path):
    """The step of an event file's last event; -1 if it is cut off."""
    from tensorboard.compat.proto.event_pb2 import Event

    data = path.read_bytes()
    start, end = 0, 0
    while end < len(data):  # 8 bytes length, 4 check, event, 4 check
        start, end = end, end + 16 + int.from_bytes(data[end : end + 8], "little")
    return Event.FromString(data[start + 12 : end - 4]).step if end == len(data) else -1


def read_events(run_dir):
    """The events of each of a run's event files; each start of a run writes one.

    Steps that were lost in a kill do not count: a resumed run's file says from which step on it
    repeats what earlier files hold.
    """
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    repeated = np.inf
    kept = []
    for path in reversed(event_files(run_dir)):
        events = list(LegacyEventFileLoader(str(path)).Load())
        kept.insert(0, [event for event in events if event.step < repeated])
        starts = [event.step for event in events if event.HasField("session_log")]
        repeated = min([repeated, *starts])
    return kept


def read_curve(run_dir, tags):
    """(steps, minutes, values) of the first of these tags that a run has, or None.

    Minutes of training: from the first event of each file to its last.
    """
    points, seconds = {}, 0.0
    for events in filter(None, read_events(run_dir)):
        walls = [event.wall_time for event in events]
        start = min(walls) - seconds
        for event in events:
            for value in event.summary.value:
                if value.tag in tags and value.HasField("simple_value"):
                    point = event.step, (event.wall_time - start) / 60, value.simple_value
                    points.setdefault(value.tag, []).append(point)
        seconds = max(walls) - start
    return next((tuple(np.array(points[tag]).T) for tag in tags if tag in points), None)


def step_means(steps, values, edges):
    """The means of a curve over the steps between edges (the last axis of an array).

    Each step has the value of the point that comes next, as of the episode that it belongs to;
    after the last point its value holds. Points of the same step are averaged.
    """
    ends, which = np.unique(steps, return_inverse=True)
    heights = np.bincount(which, values) / np.bincount(which)
    ends = np.append(ends, max(ends[-1], np.max(edges)) + 1)
    heights = np.append(heights, heights[-1])
    sums = np.cumsum(heights * np.diff(ends, prepend=0))
    sums = np.interp(edges, np.append(0, ends), np.append(0, sums))
    return np.diff(sums) / np.diff(edges)


# === runs
def read_json(path):
    return json.loads(path.read_text()) if path.exists() else {}


@dataclass(eq=False)
class Run:
    """A run directory. `args` are its arguments, and its `folder` and `code`."""

    dir: Path
    args: dict
    started: float = 0.0
    finished: bool = True  # of other libraries' runs, nobody knows
    averages: bool = False  # it logs means of episodes already

    @property
    def env_id(self):
        return self.args["env_id"]

    @functools.cache  # noqa: B019
    def curve(self, metric):
        """(steps, minutes, values) of a metric, or None where the run has not logged it."""
        return read_curve(self.dir, TAGS.get(metric, [metric]))


def started(run_dir):
    """When a run began, of which its event files' names tell: events.out.tfevents.TIME.HOST..."""
    return float(event_files(run_dir)[0].name.split(".")[3])


def folders_below(folder):
    """This folder and all below it, behind links too, each once."""
    known = set()
    for place, names, _ in os.walk(folder, followlinks=True):
        names.sort()
        if os.path.realpath(place) in known:
            names.clear()
        else:
            known.add(os.path.realpath(place))
            yield Path(place)


def find(folders):
    """The runs in and below these folders, the oldest first."""
    found = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            refuse(f"there is no folder {folder}")
        for path in folders_below(folder):
            is_run = (path / "args.json").exists() and event_files(path)
            run = read_run(path, folder) if is_run else None
            if run:
                found.setdefault(path.resolve(), run)
    if not found:
        refuse(f"no run below {' '.join(map(str, folders))}: it has args.json and event files")
    return sorted(found.values(), key=lambda run: run.started)


def read_run(run_dir, folder):
    """A run, or None where its files are broken (it may begin just now) or another project's."""
    try:
        args = read_json(run_dir / "args.json")
        evaluation = read_json(run_dir / "eval.json")
        kinds = {"env_id": str, "exp_name": str, "seed": int, "total_timesteps": int | float}
        wrong = [name for name, kind in kinds.items() if not isinstance(args.get(name), kind)]
        if wrong:
            raise ValueError(f"args.json has no proper {', '.join(wrong)}")
        source = source_of(run_dir)
        args.setdefault("script", source.stem if source else args["exp_name"])
        source = run_dir / f"{args['script']}.py"
        args["code"] = code_of(source) if source.exists() else None
        # The evaluation may be one on the way, or the last before the run was resumed for longer.
        finished = evaluation.get("global_step", -1) >= args["total_timesteps"]
        last = event_files(run_dir)[-1]
        if finished and last_step(last) < evaluation["global_step"]:  # which it logs last
            say(f"{run_dir} counts as unfinished: {last.name} is cut off")
            finished = False
    except Exception as error:
        say(f"left out {run_dir}: {error!r}")
        return None
    args["folder"] = str(folder)
    return Run(run_dir, args, started(run_dir), finished)


# === groups: runs that differ in the seed only
def settings(run):
    """The arguments that tell experiments apart."""
    left_out = (RUN_FLAGS | MACHINE_FLAGS) - {"exp_name", "script", "total_timesteps"}
    return {name: value for name, value in run.args.items() if name not in left_out}


def differing(runs):
    """The names of the settings that are not the same in all of these runs."""
    every = {}
    for run in runs:
        for name, value in settings(run).items():
            every.setdefault(name, []).append(json.dumps(value, sort_keys=True))
    return [name for name, found in every.items() if len({*found}) > 1 or len(found) < len(runs)]


def by_value(runs, *names):
    """{values of these arguments: the runs that have them}"""
    found = {}
    for run in runs:
        found.setdefault(tuple(str(run.args.get(name)) for name in names), []).append(run)
    return found


def group(runs, by=None):
    """{label: runs}, by these arguments, or by all that differs within an environment."""
    for name in by or []:
        if not any(name in run.args for run in runs):
            varying = ", ".join(sorted({*differing(runs), "folder"}))
            refuse(f"no run has an argument {name}. These differ: {varying}")
    families = by_value(runs, "exp_name", "script")
    scripts = [exp_name for exp_name, _ in families]
    found = []
    for (exp_name, _), family in families.items():
        # Runs are compared within their environment: others may need other settings.
        parts = map(differing, by_value(family, "env_id").values())
        names = list(by or dict.fromkeys(itertools.chain(*parts)))
        if not by and scripts.count(exp_name) > 1:
            names.insert(0, "script")
        if not by and (len(families) > 1 or not names):
            names.insert(0, "exp_name")
        found += [(order(run, names), label(run, names), run) for run in family]
    groups = {}
    for _, name, run in sorted(found, key=lambda row: row[0]):
        groups.setdefault(name, []).append(run)
    return {name: newest(name, same) for name, same in groups.items()}


def order(run, names):
    """Numbers by size, and the other values by name."""
    values = [run.args.get(name) for name in names]
    are_numbers = [isinstance(value, int | float) for value in values]
    return [
        (n, not a, v if a else str(v)) for n, a, v in zip(names, are_numbers, values, strict=True)
    ]


def label(run, names):
    bare = {"exp_name": "{}", "folder": "{}", "code": "code {}"}
    return ", ".join(bare.get(n, n + "={}").format(run.args.get(n)) for n in names)


def newest(name, runs):
    """One run for each seed and setting: the newest finished one, else the newest."""
    found = {}
    for run in sorted(runs, key=lambda run: (run.finished, run.started)):
        key = json.dumps([settings(run), run.env_id, run.args["seed"]], sort_keys=True)
        found[key] = run
    if len(found) < len(runs):
        say(f"{name}: {len(runs) - len(found)} seeds ran again, the newest finished run counts")
    return sorted(found.values(), key=lambda run: run.started)


def mixed(groups):
    """Says what else differs in a group."""
    for name, runs in groups.items():
        for same_env in by_value(runs, "env_id").values():
            if differing(same_env):
                say(f"the runs of {name} also differ in {', '.join(differing(same_env))}")


def collect(groups, function, reason):
    """{env_id: {label: {run: function(run)}}}; the runs for which that is None are left out."""
    found, without = {}, []
    for label, runs in groups.items():
        for run in runs:
            value = function(run)
            if value is None:
                without.append(run)
            else:
                found.setdefault(run.env_id, {}).setdefault(label, {})[run] = value
    if without:
        say(f"left out {count(len(without), 'run')} {reason}, such as {without[0].dir}")
    return found


def count(number, word):
    return f"{number} {word}{'s' * (number != 1)}"
