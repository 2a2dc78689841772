"""Writes the tables of the docs from benchmark/results: one of each script, and those of all.

    python -m benchmark.publish.tables

results/SCRIPT.md has a row for each experiment in an environment, with its first FIRST seeds;
unfinished runs and runs that are the start of a longer one stand in a folded block below it, as do
machines and commits. results/main.md compares with CleanRL's figures. A page of the docs shows a
table of results/ between the marks `<!-- table FILE -->` and `<!-- end -->`.
"""

import json
import re
import warnings
from collections import defaultdict

import numpy as np

from benchmark import shared
from benchmark.publish.collect import (
    COPIES,
    FIRST,
    MINATAR,
    groups,
    key,
    published,
)
from benchmark.shared import RESULTS, ROOT, made_on, script_defaults
from cleanrl_lite.tools import compare
from cleanrl_lite.tools.compare import ABOVE, SEEDS
from cleanrl_lite.tools.runs import MACHINE_FLAGS, flag, format_number

FAMILIES = ["vpg", "a2c", "ppo", "pqn", "dqn", "c51", "rainbow", "ddpg", "td3", "sac"]  # in order
UNTRAINED = "not trained to a result yet"


# === figures, as tables show them
def spread(values):
    if not values:
        return ""
    return format_number(np.mean(values), np.std(values) if len(values) > 1 else None)


def steps(number):
    return f"{number / 1e6:.3g}M" if number >= 1e6 else f"{number // 1000}k"


def reported(other, total):
    """A published figure as a table shows it: with its number of steps where that is another."""
    at = int(other["total_timesteps"])
    std = float(other["std"]) if other["std"] else None
    text = format_number(float(other["mean"]), std)
    return text if at == total else f"{text} at {steps(at)}"


def flags(runs):
    """An experiment's flags that are not the defaults, but those on how it is computed."""
    arguments = sorted(runs[0]["arguments"].items())
    return " ".join(flag(*item) for item in arguments if item[0] not in MACHINE_FLAGS)


def label(runs):
    """The environment, and the experiment's name where it is not the script's."""
    script, env_id, exp_name, _ = key(runs[0])
    return env_id if exp_name == script else f"{env_id}, `{exp_name}`"


def returns_of(runs):
    return [run["last_100_mean"] for run in runs]


def at_random():
    """{env_id: mean return of random actions}."""
    return json.loads((RESULTS / "random.json").read_text())


def is_untrained(runs):
    """Is it no result yet: a tenth of the script's default steps or fewer, and no better than
    random actions?
    """
    script, env_id, *_ = key(runs[0])
    default = script_defaults(COPIES.get(script, script))["total_timesteps"]
    is_short = runs[0]["total_timesteps"] <= default / 10
    if not (is_short and runs[0]["finished"] and env_id in at_random()):
        return False
    return np.mean([run["eval_mean"] for run in runs]) <= at_random()[env_id]


# === the table of a script
HEAD = """\
| environment | steps | seeds | last 100 training episodes | CleanRL | evaluation | minutes a run |
|---|---:|---:|---:|---:|---:|---:|"""


def row(runs):
    """The row of one experiment in one environment, of finished runs."""
    total = runs[0]["total_timesteps"]
    cleanrl = published(runs[0])
    minutes = [run["wall_seconds"] / 60 for run in runs if run["wall_seconds"]]
    untrained = is_untrained(runs)
    cells = [
        label(runs),
        steps(total),
        str(len(runs)),
        UNTRAINED if untrained else spread(returns_of(runs)),
        reported(cleanrl, total) if cleanrl else "",
        "" if untrained else spread([run["eval_mean"] for run in runs]),
        format_number(np.median(minutes)) if minutes else "",
    ]
    return shared.row(cells)


def is_main(runs):
    """Is this a row of its own: finished, and not just the start of longer runs?"""
    return runs[0]["finished"] and "start_of" not in runs[0]


def why_not(runs):
    """Why an experiment is not in the main table."""
    if not runs[0]["finished"]:
        reached = [run["global_step"] for run in runs]
        ends = dict.fromkeys([steps(min(reached)), steps(max(reached))])  # one if equal
        return f"unfinished, at {' to '.join(ends)}"
    seeds = ", ".join(str(run["seed"]) for run in runs)
    which = f"seed {seeds} is" if len(runs) == 1 else f"seeds {seeds} are"
    return f"{which} the start of `{runs[0]['start_of']}`'s"


def flag_table(script, experiments):
    """Markdown: the flags of all experiments that do not have the defaults."""
    found = defaultdict(dict)  # name, flags -> their environments
    for runs in experiments:
        _, env_id, name, _ = key(runs[0])
        arguments = runs[0]["arguments"].items()
        given = " ".join(flag(*item) for item in arguments if item[0] != "cuda")
        if given or name != script:
            found[name, f"`{given}`" if given else "the defaults"][env_id] = True
    if not found:
        return ""
    lines = ["| experiment | environment | flags |", "|---|---|---|"]
    for (name, given), env_ids in sorted(found.items()):
        lines.append(f"| `{name}` | {', '.join(env_ids)} | {given} |")
    return "\n".join(lines)


def notes(main):
    """What the columns mean."""
    caption = f"Mean ± standard deviation over seeds, of at most {FIRST}. "
    caption += "Evaluation: the greedy policy. "
    caption += "CleanRL's figures and their sources: `benchmark/results/published.csv`."
    few = []
    for runs in main:
        fewest = min(run["episodes"] for run in runs)
        if fewest < 100 and not is_untrained(runs):
            few.append(f"{label(runs)} ({fewest})")
    if few:
        caption += f" Fewer than 100 training episodes, so the mean of all: {'; '.join(few)}."
    return caption


def provenance(script, experiments):
    """Where the runs' commands are, and the machines, versions and commits that made them."""
    yield "Commands of all these runs: `python -m benchmark.publish.collect --commands`. "
    yield f"`benchmark/experiments/{script}.sh` has those of the plan."
    made = defaultdict(lambda: defaultdict(set))  # machine -> experiment -> commits
    for runs in experiments:
        for run in runs:
            made[made_on(run)][run["exp_name"]].add(run["commit"] or "not recorded")
    for on, names in sorted(made.items()):
        yield from ["", f"{on}:", ""]
        for name, commits in sorted(names.items()):
            yield f"- `{name}`: {', '.join(sorted(commits))}"


def unfinished_rows(others):
    """The rows of unfinished runs, and of runs that are the start of longer ones."""
    head = "| environment | steps | seeds | last 100 training episodes "
    yield f"{head}| evaluation | why not above |"
    yield "|---|---:|---:|---:|---:|---|"
    for runs in others:
        cells = [
            label(runs),
            steps(runs[0]["total_timesteps"]),
            str(len(runs)),
            spread(returns_of(runs)),
            spread([run["eval_mean"] for run in runs if run["finished"]]),
            why_not(runs),
        ]
        yield shared.row(cells)


def of_script(script):
    """Markdown: the main table, what it means, flags, and folded: other runs, machines, commits."""
    found = groups(script).values()
    main = [runs for runs in found if is_main(runs)]
    others = [runs for runs in found if not is_main(runs)]
    if main:
        parts = ["\n".join([HEAD, *map(row, main)]), notes(main)]
    else:
        parts = ["No run is finished yet."]
    given = flag_table(script, main + others)
    if given:
        parts.append(given)
    if others:
        title = "Unfinished runs, and runs that are the start of a longer one"
        parts.append(shared.folded(title, unfinished_rows(others), is_open=not main))
    made = provenance(script, main + others)
    parts.append(shared.folded("Commands, machines, versions and commits", made))
    return "\n\n".join(parts)


# === MinAtar
MINATAR_HEAD = """\
| game | script | last 100 training episodes | minus ppo | evaluation | minutes a run |
|---|---|---:|---:|---:|---:|"""


def of_minatar():
    """Markdown: what copies of scripts learn in each game; those with SEEDS finished runs."""
    found = groups()
    lines, shown, left = [MINATAR_HEAD], [], defaultdict(list)
    for game in "Breakout", "Asterix", "SpaceInvaders":
        env_id = f"benchmark.environments.minatar:MinAtar/{game}-v0"
        cells = {name: found.get((name, env_id, name, True), []) for name in MINATAR}
        base = cells["minatar_ppo"]
        for name, runs in cells.items():
            script = MINATAR[name]
            if len(runs) < SEEDS:
                left[script].append(game)
                continue
            minus = minus_text(runs, base) if runs is not base and len(base) >= SEEDS else ""
            evaluation = spread([run["eval_mean"] for run in runs])
            minutes = format_number(np.median([run["wall_seconds"] / 60 for run in runs]))
            row_cells = [game, script, spread(returns_of(runs)), minus, evaluation, minutes]
            lines.append(shared.row(row_cells))
            shown.append(runs)
    parts = ["\n".join(lines)]
    parts.append(
        f"1M steps, {SEEDS} seeds, sticky actions 0.1. Mean ± standard deviation over seeds; in "
        "*minus ppo*, the 95 % interval of the difference (Welch's t). Training episodes have the "
        "exploration of their script, evaluations are greedy."
    )
    if left:
        names = "; ".join(f"{script} ({', '.join(games)})" for script, games in left.items())
        parts.append(f"Not run, or fewer than {SEEDS} seeds so far: {names}.")
    parts.append(flag_table("minatar", shown))
    made = provenance("minatar", shown)
    parts.append(shared.folded("Commands, machines, versions and commits", made))
    return "\n\n".join(parts)


def minus_text(runs, base):
    ours, theirs = returns_of(runs), returns_of(base)
    change, (low, high), _ = compare.beside(ours, theirs).values()
    return f"{change:+.1f} [{low:+.1f}, {high:+.1f}]"


# === beside CleanRL's figures
def sample(other):
    """As many values as a published figure has seeds, with its mean and its deviation."""
    values = np.linspace(-1.0, 1.0, int(other["seeds"]))
    return float(other["mean"]) + values / values.std() * float(other["std"])


def judge(ours, other):
    """(is our mean above a published one, below it, or can the seeds not tell?, p-value)"""
    change = compare.beside(ours, sample(other))
    return compare.judge(change["p"], change["difference"]), change["p"]


def comparable(runs, given=""):
    """Has CleanRL a figure for what these runs did? Finished, no flags but `given`, as long."""
    script, _, exp_name, _ = key(runs[0])
    cleanrl = published(runs[0])
    if not runs[0]["finished"] or not cleanrl:
        return False
    if exp_name != script + given.replace("--", "_") or flags(runs) != given:
        return False
    return int(cleanrl["total_timesteps"]) == runs[0]["total_timesteps"]


def verdict(runs):
    """judge() of runs that are comparable, with SEEDS seeds or more on both sides, else nothing."""
    cleanrl = published(runs[0])
    if not comparable(runs) or not cleanrl["std"]:
        return "", None
    if min(len(runs), int(cleanrl["seeds"])) < SEEDS:
        return "", None
    return judge(returns_of(runs), cleanrl)


def all_cells():
    """All experiments, by families of scripts."""

    def order(item):
        family = item[0][0].split("_")[0]
        return FAMILIES.index(family) if family in FAMILIES else len(FAMILIES), item[0]

    return [runs for _, runs in sorted(groups().items(), key=order)]


def row_beside(runs):
    """A row of the main table; its last cell, the verdict, only where there is one."""
    script, env_id, *_ = key(runs[0])
    total = runs[0]["total_timesteps"]
    cleanrl = published(runs[0])
    given = f" `{flags(runs)}`" if flags(runs) else ""
    ours = spread(returns_of(runs))
    word, p = verdict(runs)
    cells = [reported(cleanrl, total)]
    if word:
        learned = max(np.mean(returns_of(runs)), float(cleanrl["mean"])) > at_random()[env_id]
        p_text = f" (p {f'= {p:.2f}' if p >= 0.01 else '< 0.01'})"
        cells.append(word + (p_text if learned else ", neither learns"))
    ours = f"**{ours}**" if word == ABOVE else ours
    return shared.row([script + given, env_id, steps(total), str(len(runs)), ours, *cells])


def main_table():
    """Markdown: a row for each cell with a verdict, and below it those with too few seeds."""
    head = "| script | environment | steps | seeds | last 100 training episodes | CleanRL |"
    rule = "|---|---|---:|---:|---:|---:|"
    with_verdict = [runs for runs in all_cells() if verdict(runs)[0]]
    yield f"{head} our mean is |"
    yield f"{rule}---|"
    yield from map(row_beside, with_verdict)
    yield ""
    yield "Mean ± standard deviation over seeds. *Above* and *below*: a two-sided Welch's t-test"
    yield "tells the means apart (p < 0.05), given the mean, the deviation and the number of seeds"
    yield "of both sides; *within noise*: it does not."
    seeds = sorted({published(runs[0])["seeds"] for runs in with_verdict})
    yield f"CleanRL's figures have {' or '.join(seeds)} seeds, so only large differences show."
    yield "Those of MuJoCo were made with version 2.3.3 or older, ours with newer ones. The"
    yield "scripts have its hyperparameters, except pqn, whose learning rate and lambda differ."
    left = [runs for runs in all_cells() if not verdict(runs)[0]]
    left = [runs for runs in left if comparable(runs) or comparable(runs, "--bf16")]
    if left:
        yield f"\nNo verdict: fewer than {SEEDS} seeds on one side so far, or bfloat16:\n"
        yield from [head, rule, *map(row_beside, left)]


def all_tables():
    """{name: Markdown} of benchmark/results/NAME.md"""
    tables = {"main": "\n".join(main_table()), "minatar": of_minatar()}
    for script in sorted({name[0] for name in groups()} - MINATAR.keys()):
        tables[script] = of_script(script)
    return tables


def filled(page):
    """The text of a page with its tables as their files are now."""

    def table(found):
        text = (ROOT / found[1]).read_text().strip("\n")
        return f"<!-- table {found[1]} -->\n\n{text}\n\n<!-- end -->"

    return re.sub(r"^<!-- table (\S+) -->\n.*?^<!-- end -->$", table, page, flags=re.M | re.S)


if __name__ == "__main__":
    # of cells where all of our seeds have the same return
    warnings.filterwarnings("ignore", ".*catastrophic cancellation.*")
    for name, text in all_tables().items():
        (RESULTS / f"{name}.md").write_text(f"{text}\n")
    for path in (ROOT / "docs").rglob("*.md"):
        path.write_text(filled(path.read_text()))
