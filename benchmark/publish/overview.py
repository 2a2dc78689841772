"""The tables of docs/results.md, written to benchmark/results/overview.md:  python -m benchmark.publish.overview

The cells that can be compared with CleanRL's figures, in the main table; the aggregate over
environments (interquartile mean of normalised scores, Agarwal et al. 2021, arXiv:2108.13264); every
experiment; the best figures that anyone published; what is complete and what is not; and the
compute used. The page includes the file part by part: each part stands between two comments that
mkdocs' snippets read.
"""

import json
import os
import re
import shlex
import subprocess
from collections import defaultdict

import numpy as np
from scipy import stats

from benchmark.launch.launch import value
from benchmark.publish import collect
from benchmark.publish.collect import (
    figure,
    groups,
    key,
    published,
    recorded,
    reported,
    spread,
    steps,
)
from benchmark.shared import RESULTS, ROOT, default_args

SCRIPTS = "vpg a2c ppo_simple".split()
SCRIPTS += "ppo ppo_continuous ppo_masked ppo_microrts ppo_multiagent ppo_selfplay ppo_lstm ppo_envpool".split()
SCRIPTS += "ppo_continuous_envpool ppo_continuous_mjx ppo_godot".split()
SCRIPTS += "ppo_continuous_adaptive ppo_continuous_asymmetric ppo_hybrid".split()
SCRIPTS += "ppo_atari ppo_atari_multigpu ppo_atari_lstm ppo_image".split()
SCRIPTS += "dqn dqn_atari c51 c51_atari ddpg td3 sac sac_her".split()
CHOICES = {"ENVS", "SEEDS", "STEPS", "EXP_NAME", "FLAGS", "THREADS"}  # what a user asks of benchmark/experiments/*.sh
SEEDS = 3  # a comparison and the aggregate need that many seeds of a cell
CONFIDENCE = 0.95
RESAMPLES = 5_000
ABOVE, SAME, BELOW = "▲ above", "within noise", "▼ below"


def deviation(other):
    """CleanRL's standard deviation over seeds, unbiased: the published one is over n."""
    seeds = int(other["seeds"])
    return float(other["std"]) * np.sqrt(seeds / (seeds - 1))


def chance(ours, other):
    """The p-value of a two-sided Welch's t-test, on the mean, deviation and seeds of both sides."""
    deviations = np.std(ours, ddof=1), deviation(other)
    if max(deviations) == 0:  # no spread, no t
        return float(np.mean(ours) == float(other["mean"]))
    mine = np.mean(ours), deviations[0], len(ours)
    theirs = float(other["mean"]), deviations[1], int(other["seeds"])
    return stats.ttest_ind_from_stats(*mine, *theirs, equal_var=False).pvalue


def judge(ours, other):
    """Is our mean above a published one, below it, or can the seeds not tell?"""
    if chance(ours, other) >= 1 - CONFIDENCE:
        return SAME
    return ABOVE if np.mean(ours) > float(other["mean"]) else BELOW


def comparable(runs, given=""):
    """Has CleanRL a figure for what these runs did? Finished, no flags but `given`, as many steps."""
    script, _, exp_name, _ = key(runs[0])
    cleanrl = published(runs[0]).get("training")
    if not runs[0]["finished"] or not cleanrl:
        return False
    if exp_name != script + given.replace("--", "_") or flags(runs) != given:
        return False
    return int(cleanrl["total_timesteps"]) == runs[0]["total_timesteps"]


def verdict(runs):
    """judge() of runs that are comparable, with SEEDS seeds or more on both sides, else nothing."""
    if not comparable(runs) or len(runs) < SEEDS:
        return ""
    cleanrl = published(runs[0])["training"]
    if not cleanrl["std"] or int(cleanrl["seeds"] or 0) < SEEDS:
        return ""
    return judge([run["last_100_mean"] for run in runs], cleanrl)


def all_cells():
    """All experiments, in the order of the scripts."""
    return [runs for script in SCRIPTS for _, runs in sorted(groups(script).items())]


def compared():
    """The cells with a verdict."""
    return [runs for runs in all_cells() if verdict(runs)]


def open_cells():
    """The cells that have a figure of CleanRL's but no verdict, with --bf16 or without."""
    left = [runs for runs in all_cells() if not verdict(runs)]
    return [runs for runs in left if comparable(runs) or comparable(runs, "--bf16")]


def at_random():
    """{env_id: mean return of random actions}."""
    return json.loads((RESULTS / "random.json").read_text())


def mark(runs):
    """The verdict, its p-value, and whether anything was learned."""
    ours, cleanrl = [run["last_100_mean"] for run in runs], published(runs[0])["training"]
    zero = at_random().get(runs[0]["env_id"], -np.inf)
    if max(np.mean(ours), float(cleanrl["mean"])) <= zero:
        return f"{verdict(runs)}, neither learns"
    p = chance(ours, cleanrl)
    return f"{verdict(runs)} (p {f'= {p:.2f}' if p >= 0.01 else '< 0.01'})"


def compared_cells(runs):
    """The cells of a row of the main table, but for the mark."""
    script, env_id, *_ = key(runs[0])
    total = runs[0]["total_timesteps"]
    given = f" `{flags(runs)}`" if flags(runs) else ""
    ours = f"**{spread([run['last_100_mean'] for run in runs])}**"
    theirs = reported(published(runs[0])["training"], total)
    return [script + given, env_id, steps(total), str(len(runs)), ours, theirs]


def main_table():
    """Markdown: a row for each cell with a verdict, and below it those with too few seeds."""
    head = "| script | environment | steps | seeds | last 100 training episodes | CleanRL |"
    rule = "|---|---|---:|---:|---:|---:|"
    yield f"{head} our mean is |"
    yield f"{rule}---|"
    for runs in compared():
        yield f"| {' | '.join([*compared_cells(runs), mark(runs)])} |"
    yield ""
    yield "Mean ± standard deviation over seeds. *Above* and *below*: a two-sided Welch's t-test tells"
    yield "the means apart (p < 0.05), given the mean, the deviation and the number of seeds of both"
    yield "sides; *within noise*: it does not."
    seeds = sorted({int(published(runs[0])["training"]["seeds"]) for runs in compared()})
    number = " or ".join(map(str, seeds))
    yield f"CleanRL's figures have {number} seeds, so only large differences show."
    if few := open_cells():
        yield ""
        yield f"Fewer than {SEEDS} seeds so far, so no verdict:"
        yield ""
        yield head
        yield rule
        for runs in few:
            yield f"| {' | '.join(compared_cells(runs))} |"


def flags(runs):
    """An experiment's flags where they are not the defaults, without those that only say how it is computed."""
    given = {name: value for name, value in runs[0]["arguments"].items() if name not in collect.MACHINE_FLAGS}
    return " ".join(collect.flag(*item) for item in sorted(given.items()))


def tables():
    """Markdown: the main table of each script."""
    parts = []
    for script in SCRIPTS:
        main, _ = collect.split(script)
        if main:
            parts += [f"### {script}.py\n", collect.HEAD, *map(collect.row, main), ""]
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


def sample(other):
    """As many values as CleanRL had seeds, for the bootstrap: only their mean and deviation were
    published. They lie evenly, as far apart as gives their resampled mean the error of CleanRL's."""
    values = np.linspace(-1.0, 1.0, int(other["seeds"]))
    return float(other["mean"]) + values / values.std() * deviation(other)


def units(script, measure=lambda run: run["last_100_mean"]):
    """{env_id: (ours, CleanRL's, zero)} of the cells with a verdict in which CleanRL's agent learned.

    ours: measure(run), the return or an array of returns, with the seeds on the last axis; as many
    of them for every environment. CleanRL's: sample(). zero: the mean return of random actions."""
    zeros, found = at_random(), {}
    for _, runs in sorted(groups(script).items()):
        if not verdict(runs):
            continue
        env_id, cleanrl = runs[0]["env_id"], published(runs[0])["training"]
        if env_id not in zeros:
            command = f"python -m benchmark.measure.random_policy {env_id}"
            raise SystemExit(f"error: no return at random: run {command}")
        learned = float(cleanrl["mean"]) - zeros[env_id]
        if learned > 2 * float(cleanrl["std"]):  # else it is too little to be a unit
            found[env_id] = runs, sample(cleanrl), zeros[env_id]
    fewest = min((len(runs) for runs, _, _ in found.values()), default=0)
    for env_id, (runs, theirs, zero) in found.items():
        ours = np.stack([measure(run) for run in runs[:fewest]], axis=-1)
        found[env_id] = ours, np.broadcast_to(theirs, (*ours.shape[:-1], len(theirs))), zero
    return found


def normalised(ours, theirs, zero):
    """0 is the return of random actions, 1 the mean of CleanRL's."""
    return (ours - zero) / (theirs.mean(-1, keepdims=True) - zero)


# Of scores with environments and seeds on the last two axes:
def interquartile_mean(scores):
    return stats.trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1)


def mean(scores):
    return scores.mean((-2, -1))


def median(scores):
    return np.median(scores.mean(-1), axis=-1)


def interval(cells, measure, resamples=RESAMPLES):
    """measure() of the normalised scores of units(), and its 95 % stratified bootstrap interval: our
    seeds and CleanRL's are drawn anew, each within its environment."""
    ours, theirs, zeros = zip(*cells.values())

    def statistic(*samples, axis=-1):
        sides = zip(samples[: len(ours)], samples[len(ours) :], zeros)
        return measure(np.stack([normalised(*side) for side in sides], axis=-2))

    found = stats.bootstrap(
        (*ours, *theirs),
        statistic,
        n_resamples=resamples,
        vectorized=True,
        axis=-1,
        method="percentile",
        confidence_level=CONFIDENCE,
        rng=np.random.default_rng(0),
    )
    return statistic(*ours, *theirs), *found.confidence_interval


def aggregates():
    """Markdown: interquartile mean, mean and median of the normalised scores."""
    lines = ["| script | environments | seeds each | interquartile mean | mean | median |"]
    lines += ["|---|---|---:|---:|---:|---:|"]
    for script in SCRIPTS:
        cells = units(script)
        if len(cells) < 2:
            continue
        figures = []
        for measure in (interquartile_mean, mean, median):
            point, low, high = interval(cells, measure)
            figures.append(f"{point:.2f} [{low:.2f}, {high:.2f}]")
        seeds = min(ours.shape[-1] for ours, _, _ in cells.values())
        lines.append(f"| {script} | {', '.join(cells)} | {seeds} | {' | '.join(figures)} |")
    return lines


def planned(script):
    """{(env_id, exp_name, total_timesteps): seeds} that benchmark/experiments/SCRIPT.sh would run."""
    environ = {name: value for name, value in os.environ.items() if name not in CHOICES} | dict(RUN="cat")
    command = ["sh", ROOT / f"benchmark/experiments/{script}.sh"]
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
    done = {(*key(run), run["total_timesteps"]) for run in recorded() if run["finished"]}
    for (env_id, name, total), seeds in planned(script).items():
        left = {seed for seed in seeds if (script, env_id, name, seed, total) not in done}
        if left:
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
    for run in recorded():
        found[f"{run['hardware']}; torch {run['versions']['torch']}"].append(run)
    lines = ["| machine | runs | hours, summed over runs | steps |", "|---|---:|---:|---:|"]
    for machine, runs in sorted(found.items()):
        hours = sum(run["wall_seconds"] or 0 for run in runs) / 3600
        total = sum(run["global_step"] for run in runs)
        lines.append(f"| {machine} | {len(runs)} | {figure(hours)} | {total / 1e6:.1f}M |")
    return lines


PARTS = {  # of the file: heading, and the function that writes it
    "main": ("Beside CleanRL", main_table),
    "aggregate": ("Aggregate", aggregates),
    "experiments": ("Every experiment", tables),
    "best": ("Best published figures", best),
    "state": ("What is complete", state),
    "effort": ("What it took", effort),
}


def page():
    lines = ["# All results", "", "Written by `python -m benchmark.publish.overview`; docs/results.md explains the columns."]
    for name, (heading, write) in PARTS.items():
        lines += ["", f"## {heading}", "", f"<!-- --8<-- [start:{name}] -->", "", *write()]
        lines += ["", f"<!-- --8<-- [end:{name}] -->"]
    text = re.sub(r" +\n", "\n", "\n".join(lines))
    return re.sub(r"\n{3,}", "\n\n", text) + "\n"


if __name__ == "__main__":
    (RESULTS / "overview.md").write_text(page())
    print(page())
