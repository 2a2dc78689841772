"""Compares the settings of your runs: what is better, and can the seeds tell?

    python -m cleanrl_lite.tools.compare runs/                       by all that differs
    python -m cleanrl_lite.tools.compare runs/ --by learning_rate --size 50
    python -m cleanrl_lite.tools.compare runs/ --baseline ppo        a copy and its origin
    python -m cleanrl_lite.tools.compare runs/ --until 50000         unfinished runs too

For each environment: final (mean over the last tenth of the steps) and area (mean over all steps),
where each step has the return of its episode; the mean over seeds with its 95 % interval; and the
difference from the baseline: `above` or `below` if Welch's t-test tells the means apart (p < 0.05).
The last column: how many seeds on each side it would take to see a difference of --size (else of
10 % of the baseline) in 4 of 5 experiments. Guide: docs/guides/plot_compare.md.
"""

import warnings

import numpy as np
from scipy import stats

from cleanrl_lite.tools import runs as tools
from cleanrl_lite.tools.runs import format_number

warnings.filterwarnings("ignore", ".*catastrophic cancellation.*")  # where seeds are alike
CONFIDENCE = 0.95
POWER = 0.8
SEEDS = 3  # on each side, for a verdict
MOST = 1000  # seeds, beyond which the answer is: more
ABOVE = "▲ above"
SAME = "within noise"
BELOW = "▼ below"
MEASURES = "final", "area"
LAST = 0.9  # final is the mean of the steps after this share of them


# === a run
def measures(run, metric=tools.RETURN, until=None, minutes=None):
    """{measure: a run's value}; None without a point or, of an unfinished run, before `until`.

    With `minutes`, which are the budget then, area is the mean over time.
    """
    curve = run.curve(metric)
    total = run.args["total_timesteps"]
    if not curve or (until or 0) > total or curve[0][0] > (until or total):
        return None
    steps, times, values = curve
    end = until or total
    if not run.finished and (until is None or steps[-1] < until):
        return None
    (last,) = tools.step_means(steps, values, np.array([LAST * end, end]))
    (area,) = tools.step_means(times if minutes else steps, values, np.array([0, minutes or end]))
    return {"final": last, "area": area, "steps": end, "budget": minutes or end}


def ceiling(runs):
    """The highest return, if all runs reach it and end within 1 % of it; or None."""
    returns = [run.curve(tools.RETURN)[2] for run in runs]
    every = np.concatenate(returns)
    lowest = min(measures(run)["final"] for run in runs)
    reached = all(values.max() == every.max() for values in returns)
    return every.max() if reached and every.max() - lowest <= 0.01 * np.ptp(every) else None


def learned(found):
    """The mean final of {run: measures}, and what it has above their first five episodes."""
    final = column(found, "final").mean() if found else np.nan
    first = [run.curve(tools.RETURN)[2][:5].mean() for run in found] or [np.nan]
    return final, abs(final - np.mean(first))


# === the rule
def judge(p, difference):
    """What a p-value and a difference of means say."""
    if p >= 1 - CONFIDENCE:
        return SAME
    return ABOVE if difference > 0 else BELOW


def interval(values):
    """The interval of the mean over seeds. A bootstrap is far too narrow for three of them."""
    half = stats.sem(values) * stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return np.mean(values) - half, np.mean(values) + half


def beside(values, others):
    """Their difference, its interval, and the p-value of a two-sided Welch's t-test."""
    change = np.mean(values) - np.mean(others)
    if np.ptp(values) == np.ptp(others) == 0:  # without any spread there is no t
        return {"difference": change, "interval": [change, change], "p": float(change == 0)}
    test = stats.ttest_ind(values, others, equal_var=False)
    interval = [*test.confidence_interval(CONFIDENCE)]
    return {"difference": change, "interval": interval, "p": float(test.pvalue)}


def seeds_needed(size, std, other_std):
    """Seeds on each side with which Welch's test sees a difference of `size`, POWER of the time."""
    seeds = np.arange(2, MOST + 1)
    errors = std**2 / seeds, other_std**2 / seeds
    error = np.sqrt(errors[0] + errors[1])
    freedom = error**4 * (seeds - 1) / (errors[0] ** 2 + errors[1] ** 2)
    limit = stats.t.ppf((1 + CONFIDENCE) / 2, freedom)
    shift = size / error
    power = stats.nct.sf(limit, freedom, shift) + stats.nct.cdf(-limit, freedom, shift)
    enough = seeds[np.nan_to_num(power) >= POWER]
    return max(SEEDS, int(enough[0])) if len(enough) else None


# === tables
def table(settings, measure, baseline, size=None):
    """The lines of a table, of {label: {run: its measures}}."""
    wanted = format_number(size) if size else "10 %"
    minus = [f"minus {baseline}", "p", "verdict", f"seeds to see {wanted}"]
    yield ["setting", "seeds", measure, *minus]
    for label, found in settings.items():
        values = column(found, measure)
        text = format_number(values.mean())
        if len(values) > 1 and np.isfinite(values).all():
            text += " [{}, {}]".format(*map(format_number, interval(values)))
        compared = label != baseline and baseline in settings
        cells = difference(found, settings[baseline], measure, size) if compared else [""] * 4
        yield [label, str(len(found)), text, *cells]


def column(found, measure):
    return np.array([values[measure] for values in found.values()], float)


def difference(found, others, measure, size=None):
    """(difference and interval, p, verdict, seeds needed) as a table shows them."""
    ours, theirs = column(found, measure), column(others, measure)
    few = min(len(ours), len(theirs))
    if few < 2 or not np.isfinite([*ours, *theirs]).all():
        change = f"{np.mean(ours) - np.mean(theirs):+,.1f}"
        return change, "", "one seed" if few < 2 else "not finite", ""
    change, (low, high), p = beside(ours, theirs).values()
    words = [f"{p:.2f}" if p >= 0.01 else "< 0.01", judge(p, change)]
    if len({values["budget"] for values in [*found.values(), *others.values()]}) > 1:
        words = ["", "other numbers of steps"]
    elif few < SEEDS:
        words = ["", f"fewer than {SEEDS} seeds"]
    elif {run.args["seed"] for run in found} != {run.args["seed"] for run in others}:
        words[1] += ", other seeds"
    return f"{change:+,.1f} [{low:+,.1f}, {high:+,.1f}]", *words, needed(ours, theirs, size)


def needed(values, others, size):
    size = size or 0.1 * abs(np.mean(others))
    spreads = np.std(values, ddof=1), np.std(others, ddof=1)
    if not size or not any(spreads):
        return ""
    seeds = seeds_needed(size, *spreads)
    text = f"more than {MOST:,}" if seeds is None else str(seeds)
    return f"{text} (of {format_number(size)})"


def markdown(lines):
    """A table whose columns are as wide as their longest cell: for a terminal, and Markdown."""
    lines = list(lines)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        yield f"| {' | '.join(cells)} |"


# === all runs
def origin(groups):
    """The label of the runs that are nearest to an installed script with its defaults."""

    def distance(label):
        args = groups[label][0].args
        path = tools.SCRIPTS / f"{args['script']}.py"
        if not path.exists():
            return True, True, 0
        return False, args["code"] != tools.code_of(path), len(tools.changed_flags(args, path))

    return min(groups, key=distance)


def main():
    parser = tools.parser(__doc__)
    add = parser.add_argument
    add("folders", nargs="+", help="run directories, or folders with them below")
    add("--by", help="arguments by which to group, such as exp_name,gamma")
    add("--baseline", help="the setting to compare with (the nearest to an installed script)")
    add("--metric", default=tools.RETURN, help=f"a tag of TensorBoard ({tools.RETURN})")
    add("--size", type=float, help="a difference that you would like to see")
    add("--until", type=int, help="compare the first so many steps")
    args = parser.parse_args()
    groups = tools.group(tools.find(args.folders), args.by.split(",") if args.by else None)
    tools.mixed(groups)
    baseline = args.baseline or origin(groups)
    if baseline not in groups:
        tools.refuse(f"--baseline {baseline}: the settings are: {'; '.join(groups)}")
    reason = f"shorter than --until {args.until}" if args.until else "not finished (see --until)"
    reason += f", or without {args.metric}"
    found = tools.collect(groups, lambda run: measures(run, args.metric, args.until), reason)
    if not found:
        tools.refuse("nothing to compare")
    tested = 0
    for env_id, settings in sorted(found.items()):
        ends = {values["steps"] for found in settings.values() for values in found.values()}
        windows = " or ".join(f"{LAST * end:,.0f} to {end:,}" for end in sorted(ends))
        print(f"{env_id}; final: steps {windows}\n")
        for measure in MEASURES:
            lines = list(table(settings, measure, baseline, args.size))
            print(*markdown(lines), "", sep="\n")
            tested += sum(bool(line[4]) for line in lines[1:])
    if tested:
        wrong = (1 - CONFIDENCE) * tested
        print(f"If nothing differed, {wrong:.1f} of {tested} tests would still say above or below.")


if __name__ == "__main__":
    main()
