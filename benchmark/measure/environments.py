"""Do environments of other packages run? A short run of a script in each of them.

    python -m benchmark.measure.environments                     everything, in a temporary folder
    python -m benchmark.measure.environments --venvs FOLDER --only highway-env minigrid

Every package is installed in a virtual environment of its own, on top of the packages of the
current one, which stays as it is; with --venvs they are kept. Package, command and outcome (or the
error's line) go to benchmark/results/environments.json, and the table to environments.md; rows of
other packages stay.
"""

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

from benchmark import shared
from benchmark.shared import RESULTS, ROOT, commit, hardware, script_defaults

PATH = RESULTS / "environments.json"
SHORT = "--total-timesteps 2048 --eval-episodes 2 --no-compile"
OFF_POLICY = "--learning-starts 1000"  # and this, for scripts with a replay buffer
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
        "dqn --env-id highway_env:highway-fast-v0 "
        """--env-kwargs '{"config": {"vehicles_count": 10}}'""",
    ],
    "minigrid": [
        """ppo --env-id my_envs:MiniGrid-v0 --env-kwargs '{"env_id": "MiniGrid-Empty-5x5-v0"}'""",
        "ppo --env-id my_envs:Only-v0 --env-kwargs "
        """'{"env_id": "minigrid:MiniGrid-Empty-5x5-v0", "keys": ["image", "direction"]}'""",
        "ppo --env-id minigrid:MiniGrid-Empty-5x5-v0",
    ],
    "popgym": ["ppo --env-id popgym:popgym-RepeatPreviousEasy-v0"],
    "panda-gym": ["sac --env-id panda_gym:PandaReach-v3"],
    "pybullet-envs-gymnasium": [
        "ppo_continuous --env-id pybullet_envs_gymnasium:HopperBulletEnv-v0"
    ],
    "mo-gymnasium": ["ppo --env-id mo_gymnasium:deep-sea-treasure-v0"],
}
ROBOTS = {
    "gymnasium-robotics": [
        "sac --env-id gymnasium_robotics:PointMaze_UMaze-v3",
        "sac --env-id gymnasium_robotics:FetchReach-v4",
    ],
    "metaworld": [
        """sac --env-id metaworld:Meta-World/MT1 --env-kwargs '{"env_name": "reach-v3"}'"""
    ],
    "shimmy[dm-control]": ["ppo_continuous --env-id shimmy:dm_control/cheetah-run-v0"],
}
CASES |= ROBOTS | {f"{package} mujoco<4": commands for package, commands in ROBOTS.items()}
CASES["gymnasium-robotics mujoco==3.3.7"] = ROBOTS["gymnasium-robotics"]


def last_line(text):
    """The line that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if re.match(r"(error|ERROR|\w*Error):? ", line):
            return line
    return lines[-1] if lines else ""


def pip_line(packages):
    """-c constraints.txt, unless another mujoco is wanted than it names."""
    names = packages.split()
    other_mujoco = any(name.startswith("mujoco") for name in names[1:])
    constraints = [] if other_mujoco else ["-c", "constraints.txt"]
    return ["pip", "install", *constraints, *names]


def install(packages, folder):
    """The python of a virtual environment with these packages, and pip's error if there was one."""
    place = folder / re.sub(r"\W+", "-", packages)
    python = place / "bin" / "python"
    done = place / "installed"
    if not done.exists():
        venv.create(place, clear=True)
        (site,) = place.glob("lib/python*/site-packages")
        below = [path for path in sys.path if path.endswith("site-packages")]
        # This environment's packages, seen by pip too
        lines = [f"import site; site.addsitedir({path!r})\n" for path in below]
        (site / "below.pth").write_text("".join(lines))
        command = [sys.executable, "-m", "pip", "--python", python, *pip_line(packages)[1:], "-q"]
        pip = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if pip.returncode:
            return None, last_line(pip.stderr)
        done.touch()
    return python, None


def versions(python, packages):
    names = [re.match(r"[\w-]+", package)[0] for package in packages.split()]
    names = ["gymnasium", "mujoco", *names]
    if "shimmy" in packages:
        names.append("dm-control")
    code = "import importlib.metadata as m, json, sys; "
    code += "print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    command = [python, "-c", code, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def attempt(python, line, seconds):
    """{command, steps, mean} of the run, or {command, error, traceback}."""
    script, *words = shlex.split(line)
    words += shlex.split(SHORT)
    if "learning_starts" in script_defaults(script):
        words += shlex.split(OFF_POLICY)
    found = {"command": f"python cleanrl_lite/{script}.py {shlex.join(words)}"}
    with tempfile.TemporaryDirectory() as runs:
        try:
            done = subprocess.run(
                [python, ROOT / f"cleanrl_lite/{script}.py", *words, "--runs-dir", runs],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'docs/guides'}"},
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return {**found, "error": f"not finished after {seconds} s"}
        if done.returncode:
            traceback = "Traceback" in done.stderr
            return {**found, "error": last_line(done.stderr), "traceback": traceback}
        (path,) = Path(runs).glob("*/eval.json")
        record = json.loads(path.read_text())
    return {**found, "steps": record["global_step"], "mean": record["mean"]}


def outcome(row):
    if "error" not in row:
        return f"runs; evaluation {row['mean']:,.1f}"
    noise = r"^error: (--env-id \S+: )?| \(--env-kwargs .*| at 0x\w+"
    text = re.sub(noise, "", row["error"]).replace("|", "\\|")
    return f"**{'traceback' if row.get('traceback') else 'error'}**: `{text.strip(': ')}`"


def table_row(row):
    found = dict(row["versions"])
    found.pop("gymnasium", None)
    mujoco = found.pop("mujoco", None)
    if row["packages"].split(" ")[0] in ROBOTS:
        found["mujoco"] = mujoco
    words = row["pip"].removeprefix("pip install ").removeprefix("-c constraints.txt ")
    command = row["command"].split(" --total-timesteps")[0].removeprefix("python cleanrl_lite/")
    versions = ", ".join(f"{name} {version}" for name, version in found.items())
    cells = [f"`{words}`" if words else "", versions or "gymnasium"]
    return shared.row([*cells, f"`{command}`", outcome(row)])


def table(rows):
    """Markdown."""
    lines = ["| `pip install` | versions | command | outcome |", "|---|---|---|---|"]
    lines += map(table_row, rows)
    note = f"Every command ends with `{SHORT}`, and with `{OFF_POLICY}` where the script has a "
    note += "replay buffer. Such runs show that an environment works, not that an agent learns in "
    note += "it. Packages without a mujoco in the first column were installed with "
    note += "`-c constraints.txt`."
    places = []
    for row in rows:
        gymnasium = row["versions"].get("gymnasium")
        places.append(f"{row['hardware']}, gymnasium {gymnasium}; {row['date']}")
    commits = [row["commit"] for row in rows]
    made = shared.made_by("python -m benchmark.measure.environments", places, commits)
    return "\n".join([*lines, "", note, "", made]) + "\n"


def parse():
    parser = shared.parser(__doc__)
    add = parser.add_argument
    add("--venvs", type=Path, help="folder of the virtual environments (none: a temporary one)")
    add(
        "--only",
        nargs="*",
        default=list(CASES),
        help="packages, as in the table; '': gymnasium's own",
    )
    add("--results", type=Path, default=PATH, help="file of the results")
    add("--seconds", type=int, default=600, help="time limit of a run")
    args = parser.parse_args()
    for packages in args.only:
        if packages not in CASES:
            choices = ", ".join(map(repr, CASES))
            parser.error(f"--only {packages!r}: choose from {choices}")
    return args


def main():
    args = parse()
    rows = json.loads(args.results.read_text()) if args.results.exists() else []
    temporary = tempfile.TemporaryDirectory()
    for packages in args.only:
        python = sys.executable
        error = None
        if packages:
            python, error = install(packages, (args.venvs or Path(temporary.name)).resolve())
        base = {
            "packages": packages,
            "pip": shlex.join(pip_line(packages)) if packages else "",
            "date": time.strftime("%F"),
            "commit": commit(),
            "hardware": hardware(),
            "versions": {} if error else versions(python, packages),
        }
        rows = [row for row in rows if row["packages"] != packages]
        for line in CASES[packages]:
            failed = {"command": line, "error": error}
            found = failed if error else attempt(python, line, args.seconds)
            rows.append({**base, **found})
            print(json.dumps(rows[-1]), flush=True)
        rows.sort(key=lambda row: list(CASES).index(row["packages"]))
        args.results.write_text(json.dumps(rows, indent=1) + "\n")
    args.results.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
