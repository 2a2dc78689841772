"""What the same flag means in other libraries: measured on pinned versions, not remembered.

    python -m benchmark.measure.peers                            all libraries
    python -m benchmark.measure.peers --library sb3 skrl         some of them
    python -m benchmark.measure.peers --venvs FOLDER             keep the virtual environments
    python -m benchmark.measure.peers --library                  the tables only, from the file
    python -m benchmark.measure.peers --library --cleanrl ~/cleanrl/cleanrl
                                         the scripts of a checkout, beside the package's
    python -m benchmark.measure.peers --library --leanrl ~/leanrl/leanrl

Each library has a program in measure/probes/, which runs in a virtual environment of its own: it
plays environments with known answers (probes/scripted.py), compares the gradient of an update with
formulas, and reads defaults from the library's own objects. Nothing that it prints is typed in.
Cells, versions, commit and hardware go to results/peers.json, the tables to results/peers.md;
libraries that are not run keep theirs. A cell that differs from the file is printed as changed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmark import shared
from benchmark.measure.environments import install
from benchmark.shared import RESULTS, ROOT, commit, hardware

FILE = RESULTS / "peers.json"
# What pip installs on top of this environment, one virtual environment each. --no-deps where a
# library asks for older packages than it needs.
TIANSHOU = "--no-deps tianshou==2.0.1 cachebox==6.2.10 deepdiff==7.0.1 frozendict==2.5.1 "
TIANSHOU += "h5py==3.16.0 llvmlite==0.50.0 numba==0.68.1 ordered-set==4.1.0 orderly-set==5.5.0 "
TIANSHOU += "overrides==7.7.0 pandas==3.1.1 pettingzoo==1.27.0 sensai-utils==1.6.0 tzdata==2026.6"
RL_GAMES = "--no-deps rl-games==1.6.5 gym==0.26.2 gym-notices==0.1.0 tensorboardX==2.6.5"
# CleanRL 1.2.0 is between gym and gymnasium: each of its scripts needs one of them.
CLEANRL = "--no-deps --ignore-requires-python cleanrl==1.2.0 pandas==3.1.1 "
GYM = "gym==0.23.1 gym-notices==0.1.0 stable-baselines3==1.2.0"
GYMNASIUM = "gymnasium==0.29.1 Farama-Notifications==0.0.4 stable-baselines3==2.0.0"
PACKAGES = {
    "ours": "",
    "cleanrl": CLEANRL + GYM,
    "cleanrl_checkout": CLEANRL + GYM,
    "leanrl": CLEANRL + GYM,
    "sb3": "",
    "sbx": "sbx-rl==0.28.0",
    "skrl": "skrl==2.1.1",
    "tianshou": TIANSHOU,
    "torchrl": "torchrl==0.14.1",
    "rl_games": RL_GAMES,
    "rsl_rl": "rsl-rl-lib==5.5.1",
    "rllib": "ray[rllib]==2.60.0",
    "sb3_contrib": "--no-deps sb3-contrib==2.9.2",
}
# For what the first environment cannot run
SECOND_PACKAGES = dict.fromkeys(["cleanrl", "cleanrl_checkout", "leanrl"], CLEANRL + GYMNASIUM)
# Measured where a folder is given, by the program of "cleanrl"
FOLDERS = {"cleanrl_checkout": "cleanrl", "leanrl": "cleanrl"}
NAMES = {"ours": "here", "sb3": "SB3", "cleanrl": "CleanRL"}
NAMES.update(cleanrl_checkout="CleanRL", leanrl="LeanRL", rllib="RLlib")
NAMES["sb3_contrib"] = "TQC of sb3-contrib"
NOT_MEASURED = [
    "not measured: pufferlib 3.0.0, which is published as source alone; building it fetches raylib "
    "from GitHub, which could not be reached",
    "not measured: LeanRL and newer files of CleanRL, which are not on PyPI",
]
COLUMNS = 7  # libraries in a table; the others come into a second one, beside ours
SECONDS = 600  # for pip

# The rows of each table: a cell, and what it is called there.
ROWS = {
    "PPO": {
        "truncated_bootstrap": "a time limit ends an episode: its last step bootstraps from",
        "truncated_advantage": "that step's advantage (0.6 is right)",
        "truncated_advantage_flag": "the same with `time_limit_bootstrap`",
        "truncated_advantage_same_step": "... and an environment that resets in the same step",
        "truncated_advantage_silent": "the same without `time_outs` in `infos`",
        "value_gradient": "d loss / d V per unit of error, at the defaults",
        "vf_coef_effect": "critics trained with `vf_coef` 0.5 and 50 differ by",
        "value_clipping": "value clipping, default",
        "value_clipping_given": "value clipping, where it is asked for",
        "advantages_over": "advantages normalised over",
        "advantages_over_given": "... where it is asked for",
        "advantages_std": "their standard deviation",
        "advantages_mean": "the mean of all normalised advantages (0 is right)",
        "kl_updates": "updates of 20 with a tiny limit on the KL divergence",
        "later_epochs": "minibatches of the later epochs",
        "uneven_minibatches": "8 samples in minibatches of 3, or in 3 minibatches",
        "box_action": "bounds [-2, 6]: what the environment gets for a sample a",
        "log_std": "limits of the Gaussian's log-std",
        "ent_coef": "entropy coefficient, default",
        "ent_coef_box": "... with Box actions",
        "max_grad_norm": "`max_grad_norm`, default",
        "adam_eps": "Adam's epsilon",
        "last_learning_rate": "learning rate of the last of 5 rollouts, of the first's",
        "return_scale": "the return that scales rewards, at a time limit",
    },
    "SAC": {
        "critic_gradient": "d loss / d Q per unit of error",
        "critic_grad_norm": "limit on the norm of the critics' gradient",
        "alpha_gradient": "gradient of log alpha, per unit of entropy - target",
        "initial_alpha": "alpha at the start",
        "tanh_slope": "-log(1 - tanh² u) at u = 10 (18.61 is right)",
        "log_prob_scale": "log-probabilities include the scale of the bounds",
        "log_std": "log-std",
        "order": "four updates: C critics, A actor, T targets",
        "target_moves_of_40": "`target_update_interval=1000`: steps of 40 that move the target",
        "truncated_transition": "a transition that a time limit ends",
        "truncated_transition_same_step": "... and an environment that resets in the same step",
        "truncated_transition_silent": "... without `time_outs` in `infos`",
        "random_steps": "random steps at the start",
    },
    "TD3": {
        "target_noise": "target noise 0.2, in actions, at bounds [-2, 6]",
        "target_noise_given": "... where it is asked for",
        "target_action_clipped": "smoothed target actions stay in the bounds",
        "exploration_noise": "exploration noise, default",
        "order": "eight steps: C critics, A actor, T targets",
        "critic_gradient": "d loss / d Q per unit of error",
        "truncated_transition": "a transition that a time limit ends",
    },
    "DQN": {
        "gradient": "d loss / d Q at an error of -4.5",
        "max_grad_norm": "`max_grad_norm`, default",
        "target": "the target network moves, default",
        "target_step": "... by",
        "double": "double Q-learning, default",
        "epsilon": "epsilon, default",
        "truncated_transition": "a transition that a time limit ends",
    },
}


# === measuring
def probe(library, folder, files=None):
    """What the library's program prints: {versions, cells}."""
    found = run_probe(library, PACKAGES[library], folder, files)
    if library in SECOND_PACKAGES:
        second = run_probe(library, SECOND_PACKAGES[library], folder, files)
        found["cells"].update(second["cells"])
        for name, version in second["versions"].items():
            known = found["versions"].get(name, version)
            both = version if known == version else f"{known} and {version}"
            found["versions"][name] = both
    if files:
        found["versions"] = {library: version_of(files), **found["versions"]}
    return found


def run_probe(library, packages, folder, files):
    python = sys.executable
    if packages:
        python, error = install(packages, folder, SECONDS)
        if error:
            raise SystemExit(f"error: {library}: {error}")
    program = FOLDERS.get(library, library)
    command = [python, "-W", "ignore", "-m", f"benchmark.measure.probes.{program}"]
    if files:
        command.append(files)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.update(CUDA_VISIBLE_DEVICES="", WANDB_MODE="disabled", RAY_AUTH_MODE="disabled")
    with tempfile.TemporaryFile("w+") as errors:
        streams = {"stdout": subprocess.PIPE, "stderr": errors}
        done = subprocess.run(command, cwd=ROOT, env=environment, text=True, **streams)
        errors.seek(0)
        said = errors.read()
        if done.returncode:
            raise SystemExit(f"{said}error: {library}: its probe failed")
    if files:
        print(said, file=sys.stderr, end="")
    return json.loads(done.stdout.splitlines()[-1])


def version_of(files):
    """The commit of a checkout, or that the folder is none."""
    git = ["git", "-C", files, "rev-parse", "--short=7", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "of a folder without commit"


def read():
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def say_changes(library, before, after):
    """A line for each cell that differs from the file."""
    for name in sorted(before.keys() | after.keys()):
        old = before.get(name, "not measured")
        new = after.get(name, "not measured")
        if before and old != new:
            print(f"changed: {library}, {name}: {old} -> {new}")


# === tables
def shown(cell):
    """A cell of a table."""
    if isinstance(cell, float):
        return f"{cell:.4g}".replace("e-0", "e-")
    return str(cell)


def heading(library, record):
    """The library and its version."""
    name = NAMES.get(library, library)
    version = next(iter(record["versions"].values()))
    return name if library == "ours" else f"{name} {version}"


def table(algorithm, found):
    """Markdown: a row for each cell that some library has; a cell not measured is empty."""
    others = [name for name in PACKAGES if name != "ours" and has(found.get(name), algorithm)]
    lines = columns(algorithm, found, others[: COLUMNS - 1])
    if others[COLUMNS - 1 :]:
        lines += ["", *columns(algorithm, found, others[COLUMNS - 1 :])]
    return lines


def columns(algorithm, found, others):
    """A table of these libraries beside ours."""
    libraries = ["ours", *others]
    head = [algorithm, *(heading(name, found[name]) for name in libraries)]
    lines = [shared.row(head), "|---" * len(head) + "|"]
    for name, title in ROWS[algorithm].items():
        cells = [found[library]["cells"].get(f"{algorithm} {name}", "") for library in libraries]
        if any(cell != "" for cell in cells[1:]):
            lines.append(shared.row([title, *map(shown, cells)]))
    recipes = [FOLDERS.get(name, name) for name in others]
    links = [f"[how](#{algorithm.lower()}-like-{name})" for name in recipes]
    lines.append(shared.row(["to get the same here", "", *links]))
    return lines


def has(record, algorithm):
    cells = record["cells"] if record else {}
    return any(name.startswith(f"{algorithm} ") for name in cells)


def tables(found):
    """The file that the page includes: a part for each algorithm, and one for what made it."""
    lines = []
    for algorithm in ROWS:
        lines += part(algorithm, table(algorithm, found))
    places = list(NOT_MEASURED)
    for library, record in found.items():
        versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
        count = len(record["cells"])
        name = NAMES.get(library, library)
        places.append(f"{name}: {count} cells; {versions}; {record['hardware']}; {record['date']}")
    commits = [record["commit"] for record in found.values()]
    made = shared.made_by("python -m benchmark.measure.peers", places, commits)
    lines += part("made", made.splitlines())
    return "\n".join(lines) + "\n"


def part(name, lines):
    """Between the marks with which a page includes it."""
    start = f"<!-- --8<-- [start:{name}] -->"
    end = f"<!-- --8<-- [end:{name}] -->"
    return [start, *lines, end, ""]


def main():
    parser = shared.parser(__doc__)
    add = parser.add_argument
    libraries = [name for name in PACKAGES if name not in FOLDERS]
    add("--library", nargs="*", choices=libraries, default=libraries, help="default: all")
    add("--venvs", type=Path, help="folder of the virtual environments (none: a temporary one)")
    add("--cleanrl", metavar="FOLDER", help="the scripts of a checkout, beside the package's")
    add("--leanrl", metavar="FOLDER", help="LeanRL's scripts; those without torch.compile")
    args = parser.parse_args()
    folders = {"cleanrl_checkout": args.cleanrl, "leanrl": args.leanrl}
    folders = {name: str(Path(files).resolve()) for name, files in folders.items() if files}
    found = read()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.venvs or Path(temporary)).resolve()
        for library in [*args.library, *folders]:
            result = probe(library, folder, folders.get(library))
            before = found.get(library, {"cells": {}})["cells"]
            say_changes(library, before, result["cells"])
            print(f"{library}: {len(result['cells'])} cells, {result['versions']}", flush=True)
            place = {"date": time.strftime("%F"), "commit": commit(), "hardware": hardware()}
            found[library] = {**result, **place}
            found = {name: found[name] for name in PACKAGES if name in found}
            FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    FILE.with_suffix(".md").write_text(tables(found))


if __name__ == "__main__":
    main()
