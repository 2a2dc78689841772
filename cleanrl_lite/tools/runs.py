"""What the tools share: finding runs, reading them, and grouping them by what differs."""

import argparse
import ast
import hashlib
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SCRIPTS = Path(__file__).resolve().parents[1]
# In args.json, but no setting of an experiment: they have fields of their own, or say nothing
# about the results.
RUN_FLAGS = {
    "script",
    "versions",
    "seed",
    "exp_name",
    "env_id",
    "total_timesteps",
    "runs_dir",
    "save_every",
    "eval_every",
    "track",
    "wandb_project_name",
    "wandb_entity",
    "resume",
    "evaluate",
}
# These may differ between the runs of an experiment.
MACHINE_FLAGS = {
    "cuda",
    "cuda_graph",
    "compile",
    "threads",
    "async_envs",
    "eval_episodes",
    "capture_video",
    "render",
}
NEEDED = {"env_id", "exp_name", "seed", "total_timesteps"}  # in args.json
PAUSE = 120  # seconds without an event; no script is silent for as long
RETURN = "charts/episodic_return"
# What other libraries call our metrics, in their own TensorBoard files
TAGS = {
    RETURN: [RETURN, "rollout/ep_rew_mean", "rewards/step"],  # CleanRL, SB3, rl_games
    "eval/episodic_return": ["eval/episodic_return", "eval/mean_reward"],
}


def parser(doc):
    """A command line whose --help shows a module's docstring as it is."""
    return argparse.ArgumentParser(
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def say(note):
    print(f"note: {note}", file=sys.stderr)


def refuse(message):
    raise SystemExit(f"error: {message}")


# === scripts
def default_args(source):
    """The defaults of the class Args in a script's source, read without running it."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    (args,) = [node for node in classes if node.name == "Args"]
    defaults = {}
    for field in args.body:
        if isinstance(field, ast.AnnAssign) and field.target.id != "exp_name":
            defaults[field.target.id] = ast.literal_eval(field.value)
    return defaults


def script_defaults(script):
    """default_args() of cleanrl_lite/SCRIPT.py as it is here."""
    return default_args((SCRIPTS / f"{script}.py").read_text())


def changed_flags(args, source):
    """The arguments of a run that are not its script's defaults, but for RUN_FLAGS."""
    defaults = default_args(source.read_text())
    if (SCRIPTS / source.name).exists():
        # Compared with today's script: a default that was another one then is a flag.
        defaults |= script_defaults(source.stem)
    changed = {}
    for name, value in args.items():
        if name not in RUN_FLAGS and value != defaults.get(name):
            changed[name] = value
    return changed


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


def code_of(path):
    """A hash of what a script's text says: comments and line breaks do not count."""
    tree = ast.dump(ast.parse(path.read_text()))
    return hashlib.sha256(tree.encode()).hexdigest()


# === event files
def event_files(folder):
    return sorted(folder.glob("events.out.tfevents.*"))


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


def clock(files):
    """A function from times to seconds of training. It stands still while the run does.

    Time counts from the first event of a file to its last, except for PAUSE and more between two
    events: then the run was suspended (SIGSTOP). `files` is what read_events gives.
    """
    times = []
    seconds = []
    total = 0.0
    for events in filter(None, files):
        walls = np.sort([event.wall_time for event in events])
        pauses = np.flatnonzero(np.diff(walls) > PAUSE) + 1
        for part in np.split(walls, pauses):
            times += [part[0], part[-1]]
            seconds += [total, total + part[-1] - part[0]]
            total = seconds[-1]
    return lambda time: np.interp(time, times, seconds)


def number(value):
    """Of an event, as torch or as TensorFlow writes it."""
    if value.HasField("simple_value"):
        return value.simple_value
    from tensorboard.util.tensor_util import make_ndarray

    return float(make_ndarray(value.tensor))


def read_curve(run_dir, tags):
    """(steps, minutes, values) of the first of these tags that a run has, or None."""
    files = read_events(run_dir)
    points = {}
    for events in files:
        for event in events:
            for value in event.summary.value:
                if value.tag in tags:
                    point = event.step, event.wall_time, number(value)
                    points.setdefault(value.tag, []).append(point)
    found = [tag for tag in tags if tag in points]
    if not found:
        return None
    steps, walls, values = np.array(points[found[0]]).T
    return steps, clock(files)(walls) / 60, values


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

    @property
    def env_id(self):
        return self.args["env_id"]

    def curve(self, metric):
        """(steps, minutes, values) of a metric, or None where the run has not logged it."""
        return read_curve(self.dir, TAGS.get(metric, [metric]))


def started(run_dir):
    """When a run began, of which its event files' names tell: events.out.tfevents.TIME.HOST..."""
    return float(event_files(run_dir)[0].name.split(".")[3])


def find(folders):
    """The runs in and below these folders, the oldest first."""
    found = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            refuse(f"there is no folder {folder}")
        for path in sorted(folder.rglob("args.json")):
            run = read_run(path.parent, folder) if event_files(path.parent) else None
            if run:
                found.setdefault(path.resolve(), run)
    if not found:
        names = " ".join(map(str, folders))
        refuse(f"no run below {names}: a run's directory has args.json and TensorBoard's events")
    return sorted(found.values(), key=lambda run: run.started)


def read_run(run_dir, folder):
    """A run, or None where its files are broken (it may begin just now) or another project's."""
    try:
        args = read_json(run_dir / "args.json")
        evaluation = read_json(run_dir / "eval.json")
        missing = NEEDED - set(args)
        if missing:
            say(f"left out {run_dir}: its args.json has no {', '.join(sorted(missing))}")
            return None
        sources = sorted(run_dir.glob("*.py"))
        args.setdefault("script", sources[0].stem if sources else args["exp_name"])
        source = run_dir / f"{args['script']}.py"
        args["code"] = code_of(source) if source.exists() else None
    except (ValueError, SyntaxError) as error:
        say(f"left out {run_dir}: {error!r}")
        return None
    args["folder"] = str(folder)
    # The evaluation may be one on the way, or the last before the run was resumed for longer.
    finished = evaluation.get("global_step", -1) >= args["total_timesteps"]
    return Run(run_dir, args, started(run_dir), finished)


# === groups: runs that differ in the seed only
def settings(run):
    """The arguments that tell experiments apart."""
    left_out = RUN_FLAGS - {"exp_name", "script", "total_timesteps"} | MACHINE_FLAGS
    left_out |= {"folder", "torch_deterministic"}
    return {name: value for name, value in run.args.items() if name not in left_out}


def differing(runs):
    """The names of the settings that are not the same in all of these runs."""
    every = {}
    for run in runs:
        for name, value in settings(run).items():
            every.setdefault(name, []).append(json.dumps(value, sort_keys=True))
    return [
        name for name, values in every.items() if len(set(values)) > 1 or len(values) < len(runs)
    ]


def by_value(runs, *names):
    """{values of these arguments: the runs that have them}"""
    found = {}
    for run in runs:
        values = tuple(str(run.args.get(name)) for name in names)
        found.setdefault(values, []).append(run)
    return found


def number_codes(runs):
    """Replaces hashes of scripts by 1, 2, 3 for the first, second, third text of that name."""
    for namesakes in by_value(runs, "exp_name", "script").values():
        codes = list(dict.fromkeys(run.args["code"] for run in namesakes))
        for run in namesakes:
            run.args["code"] = codes.index(run.args["code"]) + 1


def what_differs(runs):
    """{exp_name and script: the names of the settings by which to tell its runs apart}

    Runs are compared within their environment: other environments may need other settings.
    """
    names = {}
    for key, family in by_value(runs, "exp_name", "script").items():
        found = names.setdefault(key, [])
        for same_env in by_value(family, "env_id").values():
            found += [name for name in differing(same_env) if name not in found]
    return names


def group(runs, by=None):
    """{label: runs}, by these arguments, or by all that differs within an environment."""
    number_codes(runs)
    names = what_differs(runs)
    scripts = {}
    for exp_name, script in names:
        scripts.setdefault(exp_name, []).append(script)
    labels = {}
    for run in runs:
        exp_name = str(run.args["exp_name"])
        chosen = list(by or names[exp_name, str(run.args["script"])])
        if not by and len(scripts[exp_name]) > 1:
            chosen.insert(0, "script")
        if not by and (len(names) > 1 or not chosen):
            chosen.insert(0, "exp_name")
        labels[run] = chosen
    check_names(by or [], runs)
    found = {}
    for run in sorted(runs, key=lambda run: order(run, labels[run])):
        found.setdefault(label(run, labels[run]), []).append(run)
    return {name: newest(name, same) for name, same in found.items()}


def check_names(names, runs):
    known = set()
    for run in runs:
        known |= run.args.keys()
    for name in names:
        if name not in known:
            varying = sorted({*differing(runs), "folder"})
            refuse(f"no run has an argument {name}. These differ: {', '.join(varying)}")


def order(run, names):
    """Numbers by size, and the other values by name."""
    key = []
    for name in names:
        value = run.args.get(name)
        is_number = isinstance(value, int | float)
        key.append((name, not is_number, value if is_number else str(value)))
    return key


def label(run, names):
    parts = []
    for name in names:
        value = run.args.get(name)
        if name in ("exp_name", "folder"):
            parts.append(str(value))
        elif name == "code":
            parts.append(f"code {value}")
        else:
            parts.append(f"{name}={value}")
    return ", ".join(parts)


def newest(name, runs):
    """One run for each seed and setting: the newest finished one, else the newest."""
    found = {}
    for run in sorted(runs, key=lambda run: (run.finished, run.started)):
        key = json.dumps([settings(run), run.env_id, run.args["seed"]], sort_keys=True)
        found[key] = run
    if len(found) < len(runs):
        again = len(runs) - len(found)
        say(f"{name}: of {again} seeds that ran again, the newest finished run counts")
    return sorted(found.values(), key=lambda run: run.started)


def mixed(groups):
    """Says what else differs in a group, and which packages' versions differ between runs."""
    everyone = []
    for name, runs in groups.items():
        everyone += runs
        for same_env in by_value(runs, "env_id").values():
            names = differing(same_env)
            if names:
                say(f"the runs of {name} also differ in {some(names)}")
    versions = {}
    for run in everyone:
        for package, version in run.args.get("versions", {}).items():
            versions.setdefault(package, set()).add(version)
    for package, found in versions.items():
        if len(found) > 1:
            say(f"these runs used several versions of {package}: {', '.join(sorted(found))}")


def some(names):
    """The first of a long list."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def say_left_out(runs, reason):
    if runs:
        say(f"left out {count(len(runs), 'run')} {reason}, such as {runs[0].dir}")


def count(number, word):
    return f"{number} {word}{'s' * (number != 1)}"
