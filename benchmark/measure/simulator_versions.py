"""Does another version of mujoco train other results? Finished runs with it beside the published.

    pip install --target /tmp/mujoco340 --no-deps mujoco==3.4.0
    export PYTHONPATH=/tmp/mujoco340:$PWD
    python cleanrl_lite/ppo_continuous.py --env-id Hopper-v4 --seed 1 --runs-dir runs/mujoco340
    python -m benchmark.measure.simulator_versions runs/mujoco340 --mujoco 3.4.0
    python -m benchmark.measure.simulator_versions --from-results    # the table only

Both sides have the same script, flags and seeds. A row needs at least three seeds. The p-value is
Welch's.
"""

import json
from pathlib import Path

import numpy as np
from scipy import stats

from benchmark import shared
from benchmark.publish.collect import FIRST, format_number, read_run
from benchmark.shared import RESULTS

RECORD = RESULTS / "simulator_versions.json"
KEPT = (
    "script",
    "env_id",
    "exp_name",
    "seed",
    "total_timesteps",
    "last_100_mean",
    "eval_mean",
    "commit",
    "hardware",
)


def collect(folder, mujoco):
    """The finished runs below folder, each with its version of mujoco."""
    entries = []
    for path in sorted(Path(folder).rglob("eval.json")):
        run, *_ = read_run(path.parent)
        if run["finished"]:
            entry = {name: run[name] for name in KEPT}
            entries.append({**entry, "mujoco": mujoco})
    return entries


def published(run):
    """The entry in runs.json of the same experiment and seed."""
    for other in json.loads((RESULTS / "runs.json").read_text()):
        same = all(other[name] == run[name] for name in KEPT[:5])
        if same and other["finished"] and "mujoco" in other["versions"]:
            return other
    raise SystemExit(f"error: no published run like {run['script']} {run['env_id']} {run['seed']}")


def table(runs):
    """The rows of the Markdown table: one for each script, environment and version."""
    groups = {}
    for run in runs:
        key = run["script"], run["env_id"], run["mujoco"]
        groups.setdefault(key, []).append(run)
    yield "| script, environment | mujoco | seeds | last 100 training episodes | evaluation | p |"
    yield "|---|---|---:|---:|---:|---:|"
    for (script, env_id, mujoco), mine in sorted(groups.items()):
        mine = sorted(mine, key=lambda run: run["seed"])[:FIRST]
        if len(mine) < 3:
            continue
        theirs = [published(run) for run in mine]
        sides = (mujoco, mine), (theirs[0]["versions"]["mujoco"], theirs)
        returns = [[run["last_100_mean"] for run in side] for _, side in sides]
        p = stats.ttest_ind(*returns, equal_var=False).pvalue
        for number, (version, side) in enumerate(sides):
            evaluations = [run["eval_mean"] for run in side]
            yield shared.row(
                [
                    f"{script}, {env_id}" if number == 0 else "",
                    version,
                    str(len(side)),
                    format_number(np.mean(returns[number]), np.std(returns[number])),
                    format_number(np.mean(evaluations), np.std(evaluations)),
                    f"{p:.2f}" if number == 0 else "",
                ]
            )


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("folder", nargs="?", help="run directories")
    parser.add_argument("--mujoco", help="the version that these runs had")
    parser.add_argument("--from-results", action="store_true", help="only the table")
    args = parser.parse_args()
    runs = json.loads(RECORD.read_text()) if RECORD.exists() else []
    if not args.from_results:
        if not (args.folder and args.mujoco):
            parser.error("name a folder and --mujoco")
        known = {(run["script"], run["env_id"], run["seed"], run["mujoco"]): run for run in runs}
        for run in collect(args.folder, args.mujoco):
            known[run["script"], run["env_id"], run["seed"], run["mujoco"]] = run
        runs = [known[key] for key in sorted(known)]
        RECORD.write_text(json.dumps(runs, indent=1) + "\n")
    lines = list(table(runs))
    commits = {run["commit"] for run in runs}
    places = {run["hardware"] for run in runs}
    lines += ["", shared.made_by("python -m benchmark.measure.simulator_versions", places, commits)]
    RECORD.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
