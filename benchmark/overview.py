"""All results on one page, benchmark/results/overview.md:  python -m benchmark.overview

Every experiment beside CleanRL's figure of the same script, environment and steps and the best that anyone published;
the aggregate over environments (interquartile mean of normalised scores, rliable; Agarwal et al. 2021,
arXiv:2108.13264); what it took; and what benchmark/*.sh would run that was not run yet.
"""

import json
import os
import re
import shlex
import subprocess
from collections import defaultdict

import numpy as np

from benchmark.collect import RESULTS, figure, groups, key, published, reported, spread, steps, version
from benchmark.launch import value
from benchmark.readme import SCRIPTS
from benchmark.speed import ROOT, default_args

CHOICES = {"ENVS", "SEEDS", "STEPS", "EXP_NAME", "FLAGS", "THREADS"}  # what a user asks of benchmark/*.sh
SEEDS, REPS = 3, 5_000  # an aggregate needs that many seeds in each environment; bootstrap samples


def judge(ours, other):
    """Are our returns at or above a published mean? `open` where they are below it by less than two standard errors of
    the difference; one run alone has no error, so a gap is a gap."""
    gap = np.mean(ours) - float(other["mean"])
    theirs = float(other["std"] or 0) ** 2 / max(int(other["seeds"] or 1) - 1, 1)  # published over n, so unbiased here
    error = np.sqrt(np.var(ours) / max(len(ours) - 1, 1) + theirs)
    return "yes" if gap >= 0 else "open" if len(ours) > 1 and -gap < 2 * error else "no"


def cells(runs):
    """A row of the big table."""
    script, env_id, exp_name, _ = key(runs[0])
    total, others = runs[0]["total_timesteps"], published(runs[0])
    ours, at = [run["last_100_mean"] for run in runs], max(run["global_step"] for run in runs)
    reached = steps(total) + ("" if runs[0]["finished"] else f", {steps(at)} so far")
    cleanrl, verdict = others.get("training"), ""
    if cleanrl and int(cleanrl["total_timesteps"]) == total and runs[0]["finished"]:
        verdict = judge(ours, cleanrl)
    best = others.get("best")
    best = f"{reported(best, total)} ({best['project']}{version(best)}, {best['definition']})" if best else ""
    name = f", `{exp_name}`" if exp_name != script else ""
    evaluated = spread([run["eval_mean"] for run in runs]) if runs[0]["finished"] else ""
    cleanrl = reported(cleanrl, total) if cleanrl else ""
    minutes = figure(np.mean([run["wall_seconds"] / 60 for run in runs])) if runs[0]["finished"] else ""
    return [env_id + name, reached, str(len(runs)), f"**{spread(ours)}**", cleanrl, verdict, evaluated, minutes, best]


def tables():
    """Markdown: a table for each script."""
    head = (
        "| environment | steps | seeds | last 100 training episodes | CleanRL, same metric | at or above | evaluation "
    )
    head += "| minutes a run | best published, any metric |\n|---|---:|---:|---:|---:|:---:|---:|---:|---|"
    parts = []
    for script in SCRIPTS:
        rows = [f"| {' | '.join(cells(runs))} |" for names, runs in sorted(groups(script).items())]
        parts += [f"### {script}.py\n", head, *rows, ""]
    return parts


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
                raise SystemExit(f"error: nobody knows what chance gets: python -m benchmark.random_policy {env_id}")
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
        default = default_args((ROOT / words[1]).read_text())["total_timesteps"]
        total = int(value(words, "--total-timesteps", default))
        experiment = value(words, "--env-id", ""), value(words, "--exp-name", script), total
        found[experiment].add(int(value(words, "--seed", 1)))
    return found


def missing():
    """Markdown: the planned runs that are not finished."""
    lines = []
    for script in SCRIPTS:
        parts = []
        for (env_id, name, total), seeds in planned(script).items():
            runs = groups(script).get((script, env_id, name, True), [])
            if lacking := seeds - {run["seed"] for run in runs if run["total_timesteps"] == total}:
                label = env_id + (f", `{name}`" if name != script else "")
                parts.append(f"{label} to {steps(total)} ({len(lacking)} of {len(seeds)} seeds)")
        if parts:
            lines.append(f"- **{script}.py**: {'; '.join(parts)}")
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


def page():
    parts = ["## Aggregate\n", *aggregates(), "\n## Every experiment\n", *tables()]
    parts += ["## What it took\n", *effort(), "\n## Not run yet\n", *missing()]
    return re.sub(r" +\n", "\n", "\n".join(parts)) + "\n"


if __name__ == "__main__":
    (RESULTS / "overview.md").write_text(page())
    print(page())
