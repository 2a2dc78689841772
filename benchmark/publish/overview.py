"""The tables of docs/results.md, written to benchmark/results/overview.md.

    python -m benchmark.publish.overview

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

from benchmark import shared
from benchmark.launch.launch import value
from benchmark.publish import collect
from benchmark.publish.collect import (
    format_number,
    groups,
    key,
    published,
    recorded,
    reported,
    spread,
    steps,
)
from benchmark.shared import RESULTS, ROOT, script_defaults
from cleanrl_lite.tools import compare
from cleanrl_lite.tools.compare import ABOVE, CONFIDENCE, SEEDS

SCRIPTS = [
    "vpg",
    "a2c",
    "a2c_continuous",
    "ppo_simple",
    "ppo_simple_continuous",
    "ppo",
    "ppo_continuous",
    "ppo_masked",
    "ppo_microrts",
    "ppo_multiagent",
    "ppo_selfplay",
    "ppo_lstm",
    "ppo_continuous_lstm",
    "ppo_envpool",
    "ppo_continuous_envpool",
    "ppo_continuous_mjx",
    "fast_td3_mjx",
    "ppo_godot",
    "ppo_continuous_adaptive",
    "ppo_continuous_asymmetric",
    "ppo_hybrid",
    "ppo_atari",
    "ppo_atari_multigpu",
    "ppo_atari_lstm",
    "ppo_image",
    "pqn",
    "pqn_atari",
    "dqn",
    "dqn_atari",
    "c51",
    "c51_atari",
    "rainbow",
    "rainbow_atari",
    "ddpg",
    "td3",
    "fast_td3",
    "sac",
    "tqc",
    "crossq",
    "sac_her",
    "sac_discrete",
    "sac_atari",
]
# What a user asks of benchmark/experiments/*.sh
CHOICES = {
    "ACTIONS",
    "ENVS",
    "EXP_NAME",
    "FLAGS",
    "OPPONENTS",
    "PARTS",
    "SEEDS",
    "STEPS",
    "THREADS",
}
RESAMPLES = 5_000
OPEN = f"No verdict: fewer than {SEEDS} seeds on one side so far, or bfloat16"


# === comparisons with CleanRL's figures
def deviation(other):
    """CleanRL's standard deviation over seeds, unbiased: the published one is over n."""
    seeds = int(other["seeds"])
    return float(other["std"]) * np.sqrt(seeds / (seeds - 1))


def chance(ours, other):
    """The p-value of a two-sided Welch's t-test.

    It knows the mean, the deviation and the number of seeds of both sides.
    """
    mine = np.mean(ours), np.std(ours, ddof=1), len(ours)
    theirs = float(other["mean"]), deviation(other), int(other["seeds"])
    if mine[1] == theirs[1] == 0:  # no spread, no t
        return float(mine[0] == theirs[0])
    return stats.ttest_ind_from_stats(*mine, *theirs, equal_var=False).pvalue


def judge(ours, other):
    """Is our mean above a published one, below it, or can the seeds not tell?"""
    return compare.judge(chance(ours, other), np.mean(ours) - float(other["mean"]))


def returns_of(runs):
    return [run["last_100_mean"] for run in runs]


def comparable(runs, given=""):
    """Has CleanRL a figure for what these runs did? Finished, no flags but `given`, as long."""
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
    return judge(returns_of(runs), cleanrl)


def all_cells():
    """All experiments, in the order of the scripts."""
    cells = []
    for script in SCRIPTS:
        cells += [runs for _, runs in sorted(groups(script).items())]
    return cells


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


# === tables
def mark(runs):
    """The verdict, its p-value, and whether anything was learned."""
    ours = returns_of(runs)
    cleanrl = published(runs[0])["training"]
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
    ours = spread(returns_of(runs))
    if verdict(runs) == ABOVE:
        ours = f"**{ours}**"
    theirs = reported(published(runs[0])["training"], total)
    return [script + given, env_id, steps(total), str(len(runs)), ours, theirs]


HEAD = "| script | environment | steps | seeds | last 100 training episodes | CleanRL |"
RULE = "|---|---|---:|---:|---:|---:|"


def main_table():
    """Markdown: a row for each cell with a verdict, and below it those with too few seeds."""
    yield from verdict_table()
    if open_cells():
        yield ""
        yield f"{OPEN}:"
        yield ""
        yield from open_table()


def verdict_table():
    yield f"{HEAD} our mean is |"
    yield f"{RULE}---|"
    for runs in compared():
        yield shared.row([*compared_cells(runs), mark(runs)])
    yield ""
    yield "Mean ± standard deviation over seeds. *Above* and *below*: a two-sided Welch's t-test"
    yield "tells the means apart (p < 0.05), given the mean, the deviation and the number of seeds"
    yield "of both sides; *within noise*: it does not."
    seeds = sorted({int(published(runs[0])["training"]["seeds"]) for runs in compared()})
    number = " or ".join(map(str, seeds))
    yield f"CleanRL's figures have {number} seeds, so only large differences show. The scripts have"
    yield "its hyperparameters, except pqn, whose learning rate and lambda differ."


def open_table():
    yield HEAD
    yield RULE
    for runs in open_cells():
        yield shared.row(compared_cells(runs))


def flags(runs):
    """An experiment's flags that are not the defaults, but those on how it is computed."""
    arguments = sorted(runs[0]["arguments"].items())
    given = [item for item in arguments if item[0] not in collect.MACHINE_FLAGS]
    return " ".join(collect.flag(*item) for item in given)


def tables():
    """Markdown: the main table of each script."""
    parts = []
    for script in SCRIPTS:
        main, _ = collect.split(script)
        if main:
            parts += [f"### {script}.py\n", collect.HEAD, *map(collect.row, main), ""]
    return parts


def best():
    """Markdown: the highest published figures, a row for each script, environment and length."""
    yield "| script | environment | steps | best published | project | measured as |"
    yield "|---|---|---:|---:|---|---|"
    seen = set()
    for script in SCRIPTS:
        for (_, env_id, _, _), runs in sorted(groups(script).items()):
            found = published(runs[0]).get("best")
            if not found or (script, env_id, found["project"], found["mean"]) in seen:
                continue
            seen.add((script, env_id, found["project"], found["mean"]))
            at = int(found["total_timesteps"])
            project = found["project"] + collect.version(found)
            result = [steps(at), reported(found, at), project, found["definition"]]
            yield shared.row([script, env_id, *result])


# === the aggregate
def sample(other):
    """As many values as CleanRL had seeds, for the bootstrap.

    Only their mean and deviation were published. They lie evenly, as far apart as gives their
    resampled mean the error of CleanRL's.
    """
    values = np.linspace(-1.0, 1.0, int(other["seeds"]))
    return float(other["mean"]) + values / values.std() * deviation(other)


def last_100_mean(run):
    return run["last_100_mean"]


def is_unit(cleanrl, zero):
    """Did CleanRL's agent learn enough, for its spread, to be the unit of a normalised score?"""
    return float(cleanrl["mean"]) - zero > 2 * float(cleanrl["std"])


def units(script, measure=last_100_mean):
    """{env_id: (ours, CleanRL's, zero)} of the cells with a verdict where CleanRL's agent learned.

    ours: measure(run), the return or an array of returns, with the seeds on the last axis; as many
    of them for every environment. CleanRL's: sample(). zero: the mean return of random actions.
    """
    zeros = at_random()
    found = {}
    for _, runs in sorted(groups(script).items()):
        if not verdict(runs):
            continue
        env_id = runs[0]["env_id"]
        cleanrl = published(runs[0])["training"]
        if env_id not in zeros:
            command = f"python -m benchmark.measure.random_policy {env_id}"
            raise SystemExit(f"error: no return at random: run {command}")
        if is_unit(cleanrl, zeros[env_id]):
            found[env_id] = runs, sample(cleanrl), zeros[env_id]
    fewest = min((len(runs) for runs, _, _ in found.values()), default=0)
    for env_id, (runs, theirs, zero) in found.items():
        ours = np.stack([measure(run) for run in runs[:fewest]], axis=-1)
        theirs = np.broadcast_to(theirs, (*ours.shape[:-1], len(theirs)))
        found[env_id] = ours, theirs, zero
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
    """measure() of the normalised scores of units(), and its 95 % stratified bootstrap interval.

    Our seeds and CleanRL's are drawn anew, each within its environment.
    """
    ours, theirs, zeros = zip(*cells.values(), strict=True)

    def statistic(*samples, axis=-1):
        sides = zip(samples[: len(ours)], samples[len(ours) :], zeros, strict=True)
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
    yield "| script | environments | seeds each | interquartile mean | mean | median |"
    yield "|---|---|---:|---:|---:|---:|"
    for script in SCRIPTS:
        cells = units(script)
        if len(cells) < 2:
            continue
        figures = []
        for measure in (interquartile_mean, mean, median):
            point, low, high = interval(cells, measure)
            figures.append(f"{point:.2f} [{low:.2f}, {high:.2f}]")
        seeds = min(ours.shape[-1] for ours, _, _ in cells.values())
        yield shared.row([script, ", ".join(cells), str(seeds), *figures])
    yield ""
    for reason, names in not_aggregated().items():
        told = [f"{script} ({', '.join(env_ids)})" for script, env_ids in names.items()]
        yield f"{reason}: {', '.join(told)}."


def not_aggregated():
    """{why: {script: environments}} of the cells that CleanRL has too but that do not count."""
    found = {}
    for script in SCRIPTS:
        cells = units(script)
        for _, runs in sorted(groups(script).items()):
            env_id = runs[0]["env_id"]
            if not comparable(runs) or (len(cells) >= 2 and env_id in cells):
                continue
            if not verdict(runs):
                reason = f"Left out, with fewer than {SEEDS} seeds on one side so far"
            elif env_id not in cells:
                reason = "Left out, because CleanRL's figure is too close to random"
            else:
                reason = "Left out, because no other environment of the script counts"
            found.setdefault(reason, {}).setdefault(script, []).append(env_id)
    return found


# === what is complete
def planned(script):
    """{(env_id, exp_name, steps): seeds} that benchmark/experiments/SCRIPT.sh would run."""
    environ = {name: value for name, value in os.environ.items() if name not in CHOICES}
    command = ["sh", ROOT / f"benchmark/experiments/{script}.sh"]
    environ["RUN"] = "cat"
    shell = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    found = defaultdict(set)
    default = script_defaults(script)["total_timesteps"]
    for line in shell.stdout.splitlines():
        words = shlex.split(line)
        if words[1] != f"cleanrl_lite/{script}.py":  # what it is compared with
            continue
        total = int(value(words, "--total-timesteps", default))
        experiment = value(words, "--env-id", ""), value(words, "--exp-name", script), total
        found[experiment].add(int(value(words, "--seed", 1)))
    return found


def lacking(script):
    """The planned runs that are not finished.

    {(total_timesteps, how many seeds are missing, how many are planned): [experiment]}
    """
    found = defaultdict(list)
    done = {(*key(run), run["total_timesteps"]) for run in recorded() if run["finished"]}
    for (env_id, name, total), seeds in planned(script).items():
        left = {seed for seed in seeds if (script, env_id, name, seed, total) not in done}
        if left:
            label = env_id if name == script else f"{env_id} `{name}`"
            found[total, len(left), len(seeds)].append(label)
    return found


def state():
    """Markdown: which scripts have all of their planned runs, and what the others lack."""
    left = {script: lacking(script) for script in SCRIPTS}
    done = [script for script in SCRIPTS if not left[script]]
    counts = []
    for script in done:
        counts += [len(seeds) for seeds in planned(script).values()]
    head = f"**Complete**, with {min(counts, default=0)} seeds or more in every environment"
    yield f"{head}: {', '.join(done) or 'nothing yet'}."
    if len(done) < len(SCRIPTS):
        yield ""
        yield "**Not complete.** Missing are:"
        yield ""
    for script in SCRIPTS:
        parts = []
        for (total, missing, seeds), names in sorted(left[script].items(), reverse=True):
            counted = f"({missing} of {seeds} seeds)"
            parts.append(f"{', '.join(names)} to {steps(total)} steps {counted}")
        if parts:
            yield f"- {script}: {'; '.join(parts)}"


def effort():
    """Markdown: what all these runs took, on which machines."""
    found = defaultdict(list)
    for run in recorded():
        found[f"{run['hardware']}; torch {run['versions']['torch']}"].append(run)
    yield "| machine | runs | hours, summed over runs | steps |"
    yield "|---|---:|---:|---:|"
    for machine, runs in sorted(found.items()):
        hours = sum(run["wall_seconds"] or 0 for run in runs) / 3600
        total = sum(run["global_step"] for run in runs)
        yield shared.row([machine, str(len(runs)), format_number(hours), f"{total / 1e6:.1f}M"])


PARTS = {  # of the file: heading, and the function that writes it
    "main": ("Beside CleanRL", main_table),
    "aggregate": ("Aggregate", aggregates),
    "experiments": ("Every experiment", tables),
    "best": ("Best published figures", best),
    "state": ("What is complete", state),
    "effort": ("What it took", effort),
}


def page():
    lines = ["# All results", ""]
    lines += [
        "Written by `python -m benchmark.publish.overview`; docs/results.md explains the columns."
    ]
    for name, (heading, write) in PARTS.items():
        lines += ["", f"## {heading}", "", f"<!-- --8<-- [start:{name}] -->", "", *write()]
        lines += ["", f"<!-- --8<-- [end:{name}] -->"]
    text = re.sub(r" +\n", "\n", "\n".join(lines))
    return re.sub(r"\n{3,}", "\n\n", text) + "\n"


if __name__ == "__main__":
    (RESULTS / "overview.md").write_text(page())
    print(page())
