"""The tables of docs/results.md, written to benchmark/results/overview.md:  python -m benchmark.overview

What is complete and what is not; every experiment beside CleanRL's figure for the same script, environment and number
of steps; the aggregate over environments (interquartile mean of normalised scores, computed by rliable; Agarwal et al.
2021, arXiv:2108.13264); the best figures that anyone published; and the compute used. The page includes the file part
by part: each part stands between two comments that mkdocs' snippets read.
"""

import json
import os
import re
import shlex
import subprocess
from collections import defaultdict

import numpy as np

from benchmark import collect
from benchmark.collect import RESULTS, figure, groups, key, published, reported, spread, steps
from benchmark.launch import value
from benchmark.speed import ROOT, default_args

SCRIPTS = "vpg a2c ppo_simple".split()
SCRIPTS += "ppo ppo_continuous ppo_masked ppo_microrts ppo_multiagent ppo_selfplay ppo_lstm ppo_envpool".split()
SCRIPTS += "ppo_continuous_envpool ppo_continuous_mjx ppo_godot".split()
SCRIPTS += "ppo_continuous_adaptive ppo_continuous_asymmetric ppo_hybrid".split()
SCRIPTS += "ppo_atari ppo_atari_multigpu ppo_atari_lstm ppo_image".split()
SCRIPTS += "dqn dqn_atari c51 c51_atari ddpg td3 sac sac_her".split()
CHOICES = {"ENVS", "SEEDS", "STEPS", "EXP_NAME", "FLAGS", "THREADS"}  # what a user asks of benchmark/*.sh
SEEDS, REPS = 3, 5_000  # an aggregate needs that many seeds in each environment; bootstrap samples


def judge(ours, other):
    """Are our returns at or above a published mean? `open`: below by less than two standard errors of the difference.
    A single run has no standard error, so there any gap is a `no`."""
    gap = np.mean(ours) - float(other["mean"])
    theirs = float(other["std"] or 0) ** 2 / max(int(other["seeds"] or 1) - 1, 1)  # published over n, so unbiased here
    error = np.sqrt(np.var(ours) / max(len(ours) - 1, 1) + theirs)
    return "yes" if gap >= 0 else "open" if len(ours) > 1 and -gap < 2 * error else "no"


def verdict(runs):
    """judge() where CleanRL published a figure for as many steps and our runs are finished, else nothing."""
    cleanrl = published(runs[0]).get("training")
    same = cleanrl and int(cleanrl["total_timesteps"]) == runs[0]["total_timesteps"] and runs[0]["finished"]
    return judge([run["last_100_mean"] for run in runs], cleanrl) if same else ""


def flags(runs):
    """An experiment's flags where they are not the defaults, without those that only say how it is computed."""
    given = {name: value for name, value in runs[0]["arguments"].items() if name not in collect.MACHINE_FLAGS}
    return " ".join(collect.flag(*item) for item in sorted(given.items()))


def cells(runs):
    """A row of a script's table."""
    script, env_id, exp_name, finished = key(runs[0])[:3] + (runs[0]["finished"],)
    total, cleanrl = runs[0]["total_timesteps"], published(runs[0]).get("training")
    at = max(run["global_step"] for run in runs)
    name = f"<br>`{exp_name}`" if exp_name != script else ""
    evaluated = spread([run["eval_mean"] for run in runs]) if finished else ""
    minutes = figure(np.mean([run["wall_seconds"] / 60 for run in runs])) if finished else ""
    reached = steps(total) if finished else f"{steps(at)} of {steps(total)}"
    ours = f"**{spread([run['last_100_mean'] for run in runs])}**"
    cleanrl = reported(cleanrl, total) if cleanrl else ""
    return [env_id + name, reached, str(len(runs)), ours, cleanrl, verdict(runs), evaluated, minutes]


def tables():
    """Markdown: a table for each script, and the flags that a row's name does not tell."""
    head = "| environment | steps | seeds | last 100 training episodes | CleanRL, same metric | at or above "
    head += "| evaluation | minutes a run |\n|---|---:|---:|---:|---:|:---:|---:|---:|"
    parts = []
    for script in SCRIPTS:
        found = sorted(groups(script).items())
        rows = [f"| {' | '.join(cells(runs))} |" for _, runs in found]
        parts += [f"### {script}.py\n", head, *rows, ""]
        unnamed = defaultdict(list)
        for (_, env_id, exp_name, _), runs in found:
            if exp_name == script and flags(runs):
                unnamed[flags(runs)].append(env_id)
        if unnamed:
            told = (f"{' and '.join(env_ids)} with `{given}`" for given, env_ids in sorted(unnamed.items()))
            parts += [f"Rows without a name have the default flags, except {'; '.join(told)}.\n"]
    return parts


def best():
    """Markdown: the highest published figures, one row for each script, environment and number of steps."""
    lines = ["| script | environment | steps | best published | project | measured as |", "|---|---|---:|---:|---|---|"]
    seen = set()
    for script in SCRIPTS:
        for (_, env_id, _, _), runs in sorted(groups(script).items()):
            row = published(runs[0]).get("best")
            if row and (name := (script, env_id, row["project"], row["mean"])) not in seen:
                seen.add(name)
                at, project = int(row["total_timesteps"]), row["project"] + collect.version(row)
                result = [steps(at), reported(row, at), project, row["definition"]]
                lines.append(f"| {' | '.join([script, env_id, *result])} |")
    return lines


def normalised(script, measure=lambda run: run["last_100_mean"]):
    """(environments, scores): a row per seed, a column per environment in which CleanRL published a figure of as many
    steps and SEEDS or more of ours are finished; 0 is the random policy's return, 1 CleanRL's. `measure(run)` is the
    return, or an array of returns, each normalised: then scores has one axis more."""
    zero, found = json.loads((RESULTS / "random.json").read_text()), {}
    for (_, env_id, name, finished), runs in sorted(groups(script).items()):
        cleanrl = published(runs[0]).get("training")
        same = cleanrl and int(cleanrl["total_timesteps"]) == runs[0]["total_timesteps"]
        if finished and name == script and same and len(runs) >= SEEDS:
            if env_id not in zero:
                raise SystemExit(f"error: no return at random: run python -m benchmark.random_policy {env_id}")
            scale = float(cleanrl["mean"]) - zero[env_id]
            if scale > 2 * float(cleanrl["std"]):  # else CleanRL has learned too little to be a unit
                runs = sorted(runs, key=lambda run: run["seed"])
                found[env_id] = [(measure(run) - zero[env_id]) / scale for run in runs]
    fewest = min(map(len, found.values()), default=0)
    scores = [scores[:fewest] for scores in found.values()]  # an environment with more seeds has no more weight
    return list(found), np.array(scores).swapaxes(0, 1) if found else None


def intervals(scores, measure, reps):
    """measure(scores) and its 95 % stratified bootstrap interval (seeds are drawn anew within each environment)."""
    from rliable import library  # here, for the rest works without it

    np.random.seed(0)  # its own random_state does nothing in 1.2.0
    found = library.get_interval_estimates({"": scores}, measure, reps=reps)
    return found[0][""], *found[1][""]


def aggregates():
    """Markdown: interquartile mean, mean and median of the normalised scores."""
    from rliable import metrics

    lines = ["| script | environments | seeds each | interquartile mean | mean | median |"]
    lines += ["|---|---|---:|---:|---:|---:|"]
    measures = metrics.aggregate_iqm, metrics.aggregate_mean, metrics.aggregate_median
    for script in SCRIPTS:
        env_ids, scores = normalised(script)
        if len(env_ids) >= 2:
            found = zip(*intervals(scores, lambda x: np.array([measure(x) for measure in measures]), REPS))
            figures = (f"{point:.2f} [{low:.2f}, {high:.2f}]" for point, low, high in found)
            lines.append(f"| {script} | {', '.join(env_ids)} | {len(scores)} | {' | '.join(figures)} |")
    return lines


def planned(script):
    """{(env_id, exp_name, total_timesteps): seeds} that benchmark/SCRIPT.sh would run."""
    environ = {name: value for name, value in os.environ.items() if name not in CHOICES} | dict(RUN="cat")
    command = ["sh", ROOT / f"benchmark/{script}.sh"]
    shell = subprocess.run(command, env=environ, capture_output=True, text=True)
    found = defaultdict(set)
    for words in map(shlex.split, shell.stdout.splitlines()):
        if words[1] != f"cleanrl_lite/{script}.py":  # what it is compared with
            continue
        default = default_args((ROOT / words[1]).read_text())["total_timesteps"]
        total = int(value(words, "--total-timesteps", default))
        experiment = value(words, "--env-id", ""), value(words, "--exp-name", script), total
        found[experiment].add(int(value(words, "--seed", 1)))
    return found


def lacking(script):
    """The planned runs that are not finished: {(total_timesteps, seeds that lack, seeds planned): [experiment]}."""
    found = defaultdict(list)
    for (env_id, name, total), seeds in planned(script).items():
        runs = groups(script).get((script, env_id, name, True), [])
        if left := seeds - {run["seed"] for run in runs if run["total_timesteps"] == total}:
            found[total, len(left), len(seeds)].append(env_id + (f" `{name}`" if name != script else ""))
    return found


def state():
    """Markdown: which scripts have all of their planned runs, and what the others lack."""
    left = {script: lacking(script) for script in SCRIPTS}
    done = [script for script in SCRIPTS if not left[script]]
    fewest = min((len(seeds) for script in done for seeds in planned(script).values()), default=0)
    lines = [f"**Complete**, with {fewest} seeds or more in every environment: {', '.join(done) or 'nothing yet'}."]
    if len(done) < len(SCRIPTS):
        lines += ["", "**Not complete.** Missing are:", ""]
    for script in SCRIPTS:
        parts = []
        for (total, few, planned_), names in sorted(left[script].items(), reverse=True):
            parts.append(f"{', '.join(names)} to {steps(total)} steps ({few} of {planned_} seeds)")
        lines += [f"- {script}: {'; '.join(parts)}"] if parts else []
    return lines


def effort():
    """Markdown: what all these runs took, on which machines."""
    found = defaultdict(list)
    for runs in groups().values():
        for run in runs:
            found[f"{run['hardware']}; torch {run['versions']['torch']}"].append(run)
    lines = ["| machine | runs | hours, summed over runs | steps |", "|---|---:|---:|---:|"]
    for machine, runs in sorted(found.items()):
        hours = sum(run["wall_seconds"] or 0 for run in runs) / 3600
        total = sum(run["global_step"] for run in runs)
        lines.append(f"| {machine} | {len(runs)} | {figure(hours)} | {total / 1e6:.1f}M |")
    return lines


PARTS = {  # of the file: heading, and the function that writes it
    "state": ("What is complete", state),
    "aggregate": ("Aggregate", aggregates),
    "experiments": ("Every experiment", tables),
    "best": ("Best published figures", best),
    "effort": ("What it took", effort),
}


def page():
    lines = ["# All results", "", "Written by `python -m benchmark.overview`; docs/results.md explains the columns."]
    for name, (heading, write) in PARTS.items():
        lines += ["", f"## {heading}", "", f"<!-- --8<-- [start:{name}] -->", "", *write()]
        lines += ["", f"<!-- --8<-- [end:{name}] -->"]
    text = re.sub(r" +\n", "\n", "\n".join(lines))
    return re.sub(r"\n{3,}", "\n\n", text) + "\n"


if __name__ == "__main__":
    (RESULTS / "overview.md").write_text(page())
    print(page())
