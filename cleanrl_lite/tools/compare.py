"""Compares the settings of your runs: what is better, and can the seeds tell?

    python -m cleanrl_lite.tools.compare runs/                       by all that differs
    python -m cleanrl_lite.tools.compare runs/ --by learning_rate --size 50
    python -m cleanrl_lite.tools.compare runs/ --baseline ppo        a copy and its origin
    python -m cleanrl_lite.tools.compare before/ after/ --by folder
    python -m cleanrl_lite.tools.compare runs/ --until 50000         unfinished runs too

For each environment: final (mean over the last tenth of the steps) and area (mean over all steps),
where each step has the return of its episode, as the mean over seeds and its 95 % interval
(Student's t). Then each setting's difference from the baseline: `above` and `below` if a two-sided
Welch's t-test tells the means apart (p < 0.05), else `within noise`; no verdict with fewer than 3
seeds, or where one side was trained for longer. The last column says how many seeds on each side it
would take to see a difference of --size (else of 10 % of the baseline) in 4 of 5 experiments, if
the seeds spread as these do.
"""

import warnings

import numpy as np
from scipy import stats

from cleanrl_lite.tools import runs as tools
from cleanrl_lite.tools.runs import format_number

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
def measures(run, metric=tools.RETURN, until=None):
    """{measure: a run's value}; None without a point or, of an unfinished run, before `until`."""
    curve = run.curve(metric)
    total = run.args["total_timesteps"]
    if not curve or (until or 0) > total or curve[0][0] > (until or total):
        return None
    steps, _, values = curve
    end = until or total
    if not run.finished and (until is None or steps[-1] < until):
        return None
    last, whole = tools.step_means(steps, values, np.array([[LAST * end, end], [0, end]]))[:, 0]
    return {"final": last, "area": whole}


# === the rule
def chance(values, others):
    """The p-value of a two-sided Welch's t-test; without any spread there is no t."""
    if np.ptp(values) == np.ptp(others) == 0:
        return float(np.mean(values) == np.mean(others))
    return stats.ttest_ind(values, others, equal_var=False).pvalue


def judge(p, difference):
    """What a p-value and a difference of means say."""
    if p >= 1 - CONFIDENCE:
        return SAME
    return ABOVE if difference > 0 else BELOW


def interval(values):
    """The interval of the mean over seeds. A bootstrap is far too narrow for three of them."""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    half = error * stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return np.mean(values) - half, np.mean(values) + half


def difference_interval(values, others):
    """Of mean(values) - mean(others)."""
    if np.ptp(values) == np.ptp(others) == 0:
        difference = np.mean(values) - np.mean(others)
        return difference, difference
    test = stats.ttest_ind(values, others, equal_var=False)
    return test.confidence_interval(CONFIDENCE)


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


def why_not(runs, others, values, until=None):
    """Why two settings get no verdict, or "" if they do."""
    if not np.isfinite(values).all():
        return "not finite"
    if len({run.args["total_timesteps"] for run in [*runs, *others]}) > 1 and not until:
        return "other numbers of steps"
    few = min(len(runs), len(others)) < SEEDS
    return f"fewer than {SEEDS} seeds" if few else ""


# === tables
def column(found, measure):
    return np.array([values[measure] for values in found.values()])


def summary(settings):
    """The lines of the first table, of {label: {run: its measures}}."""
    yield ["setting", "seeds", *MEASURES]
    for label, found in settings.items():
        cells = []
        for values in (column(found, measure) for measure in MEASURES):
            cells.append(format_number(values.mean()))
            if len(values) > 1 and np.isfinite(values).all():
                cells[-1] += " [{}, {}]".format(*map(format_number, interval(values)))
        yield [label, str(len(found)), *cells]


def differences(settings, baseline, size=None, until=None):
    """The lines of the second table."""
    wanted = f"{size:g}" if size else "10 %"
    yield ["setting", "measure", f"minus {baseline}", "p", "verdict", f"seeds to see {wanted}"]
    for label, measure in ((label, m) for label in settings for m in MEASURES):
        if label != baseline:
            cells = difference(settings[label], settings[baseline], measure, size, until)
            yield [label, measure, *cells]


def difference(found, others, measure, size=None, until=None):
    """(difference and interval, p, verdict, seeds needed) as a table shows them."""
    ours, theirs = column(found, measure), column(others, measure)
    change = np.mean(ours) - np.mean(theirs)
    reason = why_not(found, others, [*ours, *theirs], until)
    text = f"{change:+,.1f}"
    if reason == "not finite" or min(len(ours), len(theirs)) < 2:
        return text, "", reason, ""
    low, high = difference_interval(ours, theirs)
    text += f" [{low:+,.1f}, {high:+,.1f}]"
    p = chance(ours, theirs)
    word = reason or judge(p, change)
    if {run.args["seed"] for run in found} != {run.args["seed"] for run in others}:
        word += ", other seeds"
    p = "" if reason else f"{p:.2f}" if p >= 0.01 else "< 0.01"
    return text, p, word, needed(ours, theirs, size)


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
def collect(groups, metric, until):
    """{env_id: {label: {run: its measures}}}; says which runs are left out."""
    found = {}
    without = []
    for label, runs in groups.items():
        for run in runs:
            values = measures(run, metric, until)
            if values is None:
                without.append(run)
            else:
                found.setdefault(run.env_id, {}).setdefault(label, {})[run] = values
    reason = f"shorter than --until {until}" if until else "not finished (see --until)"
    tools.say_left_out(without, f"{reason}, or without {metric}")
    return found


def origin(groups):
    """The label of the runs that are nearest to an installed script with its defaults."""

    def distance(label):
        args = groups[label][0].args
        installed = tools.SCRIPTS / f"{args['script']}.py"
        if not installed.exists():
            return np.inf, 0
        return args["code"], len(tools.changed_flags(args, installed))

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
    found = collect(groups, args.metric, args.until)
    if not found:
        tools.refuse("nothing to compare")
    tested = 0
    for env_id, settings in sorted(found.items()):
        lengths = {run.args["total_timesteps"] for runs in settings.values() for run in runs}
        ends = {args.until} if args.until else lengths
        windows = " or ".join(f"{LAST * end:,.0f} to {end:,}" for end in sorted(ends))
        print(f"{env_id}, final: steps {windows}\n", *markdown(summary(settings)), "", sep="\n")
        if baseline in settings and len(settings) > 1:
            lines = list(differences(settings, baseline, args.size, args.until))
            print(*markdown(lines), "", sep="\n")
            tested += sum(bool(line[3]) for line in lines[1:])
    if tested:
        wrong = (1 - CONFIDENCE) * tested
        print(f"If nothing differed, {wrong:.1f} of {tested} tests would still say above or below.")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", ".*catastrophic cancellation.*")
    main()
