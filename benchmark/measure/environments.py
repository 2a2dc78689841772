"""Do environments of other packages run? A short run of a script in each of them:

    python -m benchmark.measure.environments                                   everything, in a temporary folder
    python -m benchmark.measure.environments --venvs FOLDER --only highway-env minigrid    some packages; FOLDER is kept

Every package is installed in a virtual environment of its own, on top of the packages of the current one, which stays
as it is. Package, command and outcome (or the error's line) go to benchmark/results/environments.json, and the table to
environments.md; rows of other packages stay.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from benchmark.shared import RESULTS, ROOT, commit, default_args, hardware

PATH = RESULTS / "environments.json"
SHORT = "--total-timesteps 2048 --eval-episodes 2 --no-compile"  # and below, for scripts with a replay buffer
OFF_POLICY = "--learning-starts 1000"
# What pip installs, one virtual environment each: the commands to try.
CASES = {
    "": [
        """ppo --env-id FrozenLake-v1 --env-kwargs '{"is_slippery": false}'""",
        "dqn --env-id Taxi-v4",
        "ppo --env-id Blackjack-v1",
        """ppo --env-id CarRacing-v3 --env-kwargs '{"continuous": false}'""",
    ],
    "flappy-bird-gymnasium": [
        """ppo --env-id flappy_bird_gymnasium:FlappyBird-v0 --env-kwargs '{"use_lidar": false}'"""
    ],
    "highway-env": [
        "sac --env-id highway_env:parking-v0",
        """dqn --env-id highway_env:highway-fast-v0 --env-kwargs '{"config": {"vehicles_count": 10}}'""",
    ],
    "minigrid": [
        """ppo --env-id my_envs:MiniGrid-v0 --env-kwargs '{"env_id": "MiniGrid-Empty-5x5-v0"}'""",
        "ppo --env-id my_envs:Only-v0 --env-kwargs "
        """'{"env_id": "minigrid:MiniGrid-Empty-5x5-v0", "keys": ["image", "direction"]}'""",
        "ppo --env-id minigrid:MiniGrid-Empty-5x5-v0",
    ],
    "popgym": ["ppo --env-id popgym:popgym-RepeatPreviousEasy-v0"],
    "panda-gym": ["sac --env-id panda_gym:PandaReach-v3"],
    "pybullet-envs-gymnasium": ["ppo_continuous --env-id pybullet_envs_gymnasium:HopperBulletEnv-v0"],
    "mo-gymnasium": ["ppo --env-id mo_gymnasium:deep-sea-treasure-v0"],
}
ROBOTS = {
    "gymnasium-robotics": [
        "sac --env-id gymnasium_robotics:PointMaze_UMaze-v3",
        "sac --env-id gymnasium_robotics:FetchReach-v4",
    ],
    "metaworld": ["""sac --env-id metaworld:Meta-World/MT1 --env-kwargs '{"env_name": "reach-v3"}'"""],
    "shimmy[dm-control]": ["ppo_continuous --env-id shimmy:dm_control/cheetah-run-v0"],
}
CASES |= ROBOTS | {f"{package} mujoco<4": commands for package, commands in ROBOTS.items()}
CASES["gymnasium-robotics mujoco==3.3.7"] = ROBOTS["gymnasium-robotics"]


def last_line(text):
    """The line that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if re.match(r"(error|ERROR|\w*Error):? ", line)), (lines or [""])[-1])


def pip_line(packages):
    """-c constraints.txt, unless another mujoco is wanted than it names."""
    constraints = [] if "mujoco" in packages.split(" ", 1)[-1] and " " in packages else ["-c", "constraints.txt"]
    return ["pip", "install", *constraints, *packages.split()]


def install(packages, folder):
    """The python of a virtual environment with these packages, and pip's error if there was one."""
    place = folder / re.sub(r"\W+", "-", packages)
    python = place / "bin" / "python"
    if not (place / "installed").exists():
        venv.create(place, clear=True)
        (site,) = place.glob("lib/python*/site-packages")
        below = [path for path in sys.path if path.endswith("site-packages")]  # this environment's, seen by pip too
        (site / "below.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in below))
        command = [sys.executable, "-m", "pip", "--python", python, *pip_line(packages)[1:], "-q"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            return None, last_line(done.stderr)
        (place / "installed").touch()
    return python, None


def versions(python, packages):
    names = ["gymnasium", "mujoco", *(re.match(r"[\w-]+", package)[0] for package in packages.split())]
    if "shimmy" in packages:
        names.append("dm-control")
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def attempt(python, line, seconds):
    """{steps, mean} of the run, or {error, traceback}."""
    script, *words = shlex.split(line)
    words += shlex.split(SHORT)
    if "learning_starts" in default_args((ROOT / f"cleanrl_lite/{script}.py").read_text()):
        words += shlex.split(OFF_POLICY)
    environ = os.environ | dict(PYTHONPATH=f"{ROOT}:{ROOT / 'docs/guides'}")
    command = f"python cleanrl_lite/{script}.py {shlex.join(words)}"
    with tempfile.TemporaryDirectory() as runs:
        try:
            run = [python, ROOT / f"cleanrl_lite/{script}.py", *words, "--runs-dir", runs]
            done = subprocess.run(run, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return dict(command=command, error=f"not finished after {seconds} s")
        if done.returncode:
            return dict(command=command, error=last_line(done.stderr), traceback="Traceback" in done.stderr)
        (path,) = Path(runs).glob("*/eval.json")
        record = json.loads(path.read_text())
    return dict(command=command, steps=record["global_step"], mean=record["mean"])


def outcome(row):
    if "error" not in row:
        return f"runs; evaluation {row['mean']:,.1f}"
    text = re.sub(r"^error: (--env-id \S+: )?| \(--env-kwargs .*| at 0x\w+", "", row["error"]).replace("|", "\\|")
    return f"**{'traceback' if row.get('traceback') else 'error'}**: `{text.strip(': ')}`"


def table(rows):
    """Markdown."""
    lines = ["| `pip install` | versions | command | outcome |", "|---|---|---|---|"]
    for row in rows:
        found = {name: version for name, version in row["versions"].items() if name not in ("gymnasium", "mujoco")}
        if row["packages"].split(" ")[0] in ROBOTS:
            found["mujoco"] = row["versions"].get("mujoco")
        words = row["pip"].removeprefix("pip install ").removeprefix("-c constraints.txt ")
        cells = [f"`{words}`" if words else "", ", ".join(map(" ".join, found.items())) or "gymnasium"]
        short = row["command"].split(" --total-timesteps")[0].removeprefix("python cleanrl_lite/")
        lines.append(f"| {' | '.join([*cells, f'`{short}`', outcome(row)])} |")
    places = sorted({f"{row['hardware']}, gymnasium {row['versions'].get('gymnasium')}" for row in rows})
    dates, commits = ({row[name] for row in rows} for name in ("date", "commit"))
    lines += [
        "",
        f"Every command ends with `{SHORT}`, and with `{OFF_POLICY}` where the script has a replay buffer. Such ",
    ]
    lines[-1] += (
        "runs show that an environment works, not that an agent learns in it. Packages without a mujoco in the "
    )
    lines[-1] += "first column were installed with `-c constraints.txt`."
    lines += ["", "Made by `python -m benchmark.measure.environments` on " + "; ".join(places) + "; "]
    lines[-1] += f"{', '.join(sorted(dates))}; commit {', '.join(sorted(commits))}."
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venvs", type=Path, help="folder of the virtual environments (none: a temporary one)")
    parser.add_argument("--only", nargs="*", default=list(CASES), help="packages, as in the table; '': gymnasium's own")
    parser.add_argument("--results", type=Path, default=PATH, help="file of the results")
    parser.add_argument("--seconds", type=int, default=600, help="time limit of a run")
    args = parser.parse_args()
    rows = json.loads(args.results.read_text()) if args.results.exists() else []
    temporary = tempfile.TemporaryDirectory()
    for packages in args.only:
        if packages not in CASES:
            parser.error(f"--only {packages!r}: choose from {', '.join(map(repr, CASES))}")
        python, error = (sys.executable, None)
        if packages:
            python, error = install(packages, (args.venvs or Path(temporary.name)).resolve())
        base = dict(packages=packages, pip=shlex.join(pip_line(packages)) if packages else "", date=time.strftime("%F"))
        base |= dict(commit=commit(), hardware=hardware(), versions=versions(python, packages) if not error else {})
        rows = [row for row in rows if row["packages"] != packages]
        for line in CASES[packages]:
            found = dict(command=line, error=error) if error else attempt(python, line, args.seconds)
            rows.append(base | found)
            print(json.dumps(rows[-1]), flush=True)
        rows.sort(key=lambda row: list(CASES).index(row["packages"]))
        args.results.write_text(json.dumps(rows, indent=1) + "\n")
    args.results.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
