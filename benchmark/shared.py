"""What the tools here share: where things are, and on what a figure was made."""

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

from cleanrl_lite.tools.runs import default_args as default_args
from cleanrl_lite.tools.runs import parser as parser
from cleanrl_lite.tools.runs import script_defaults as script_defaults

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmark" / "results"
PACKAGES = (
    "torch numpy gymnasium stable-baselines3 mujoco ale-py envpool panda-gym pybullet gym-microrts "
    "shimmy dm-control minatar"
)


def versions():
    """Of Python, and of the packages that results depend on."""
    installed = {}
    for distribution in metadata.distributions():
        name = distribution.name.lower().replace("_", "-")
        installed.setdefault(name, distribution.version)  # the first on the path is imported
    found = {name: installed[name] for name in PACKAGES.split() if name in installed}
    return {"python": platform.python_version(), **found}


def hardware():
    cpuinfo = Path("/proc/cpuinfo")  # on Linux only
    model = re.search(r"model name\s*: (.*)", cpuinfo.read_text() if cpuinfo.exists() else "")
    name = model[1].strip() if model else platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def machine():
    """This machine's hardware, GPU included, and versions."""
    import torch

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return {"hardware": hardware() + gpu, "versions": versions()}


def git(*words):
    """What git prints; nothing where it is not installed."""
    try:
        process = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return process.stdout.strip()


def commit():
    """Of this checkout, -dirty where files differ from it; None outside of git.

    Not those in results/: measuring commands write them, one after the other.
    """
    found = git("rev-parse", "--short=12", "HEAD")
    if not found:
        return None
    files = ["--", ".", ":!benchmark/results"]
    changed = git("status", "--porcelain", "--untracked-files=no", *files)
    return f"{found}-dirty" if changed else found


def made_on(record):
    """The hardware and the versions of a record, in words."""
    packages = [f"{name} {version}" for name, version in record["versions"].items()]
    return ", ".join([record["hardware"], *packages])


def compiled_after(calls, script):
    """What follows `python` to run a script whose updates are compiled after so many calls.

    By default the first 1,000 are eager: short runs would measure those only.
    """
    code = f"import runpy; from cleanrl_lite import utils; utils.EAGER_CALLS = {calls}; "
    code += f"runpy.run_module('cleanrl_lite.{script}', run_name='__main__', alter_sys=True)"
    return ["-c", code]


def row(cells):
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def folded(title, lines, is_open=False):
    """A Markdown block that opens at a click, on a code host and on the site."""
    state = " open" if is_open else ""
    head = f'<details class="note"{state} markdown="1"><summary>{title}</summary>'
    inside = [line.rstrip() for line in lines]
    return "\n".join([head, "", *inside, "", "</details>"])


def made_by(command, places, commits):
    """The folded block below a table: what made it, at which commits, on which machines."""
    commits = sorted({commit or "not recorded" for commit in commits})
    word = "commits" if len(commits) > 1 else "commit"
    lines = [f"`{command}`, at {word} {', '.join(commits)}, on:", ""]
    lines += [f"- {place}" for place in sorted(set(places))]
    return folded("Command, machines, versions and commits", lines)


def events(run_dir):
    """TensorBoard's reader of a run's event files, with all of their scalars."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
