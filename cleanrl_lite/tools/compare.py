"""Compares the settings of your runs: what is better, and can the seeds tell?

    python -m cleanrl_lite.tools.compare runs/                       by all that differs
    python -m cleanrl_lite.tools.compare runs/ --by learning_rate --size 50
    python -m cleanrl_lite.tools.compare runs/ --baseline ppo        a copy and its origin
    python -m cleanrl_lite.tools.compare before/ after/ --by folder
    python -m cleanrl_lite.tools.compare runs/ --until 50000         unfinished runs too

For each environment: final (mean of the last 100 training episodes), best (of the means of 20
episodes in a row) and area (mean height of the curve over the steps), each as the mean over seeds
and its 95 % interval (Student's t). Then each setting's difference from the baseline: `above` and
`below` if a two-sided Welch's t-test tells the means apart (p < 0.05), else `within noise`; no
verdict with fewer than 3 seeds. The last column says how many seeds on each side it would take to
see a difference of --size (else of 10 % of the baseline) in 4 of 5 experiments, if the seeds spread
as these do. With another --metric, final is the mean over the last 5 % of the steps, best one
value.
"""

import warnings

import numpy as np
from scipy import stats

from cleanrl_lite.tools import plot
from cleanrl_lite.tools import runs as tools
from cleanrl_lite.tools.runs import format_number

CONFIDENCE = 0.95
POWER = 0.8
SEEDS = 3  # on each side, for a verdict
MOST = 1000  # seeds, beyond which the answer is: more
ABOVE = "▲ above"
SAME = "within noise"
BELOW = "▼ below"
FEW = f"fewer than {SEEDS} seeds"


# === a run
def measures(run, metric, until=None):
    """{measure: a run's value}; None without a point or, if unfinished, before `until`."""
    curve = run.curve(metric)
    if not curve:
        return None
    steps, _, values = curve
    if not run.finished and (until is None or steps[-1] < until):
        return None
    if until and steps[0] > until:
        return None
    kept = steps <= (until or np.inf)
    steps = steps[kept]
    values = values[kept]
    by_episode = metric.startswith("charts/episodic_")
    last = values[-100:] if by_episode else values[steps >= 0.95 * steps[-1]]
    smooth = plot.smoothed(values, plot.window_of(metric, len(values)))
    grid = np.linspace(0, until or steps[-1], 1000)
    return {
        "final": last.mean(),
        "best": best_mean(values, 20 if by_episode else 1),
        "area": np.interp(grid, steps, smooth).mean(),
    }


def best_mean(values, window):
    window = min(window, len(values))
    return np.convolve(values, np.ones(window) / window, "valid").max()


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


# === tables
def with_interval(values):
    """The mean of some seeds and its interval."""
    text = format_number(np.mean(values))
    if len(values) < 2:
        return text
    low, high = interval(values)
    return f"{text} [{format_number(low)}, {format_number(high)}]"


def summary(settings):
    """The lines of the first table, of {label: {measure: values}}."""
    yield ["setting", "seeds", "final", "best", "area"]
    for label, found in settings.items():
        seeds = str(len(found["final"]))
        yield [label, seeds, *map(with_interval, found.values())]


def differences(settings, baseline, size):
    """The lines of the second table."""
    wanted = f"{size:g}" if size else "10 %"
    yield ["setting", "measure", f"minus {baseline}", "p", "verdict", f"seeds to see {wanted}"]
    for label, found in settings.items():
        for measure, values in found.items():
            if label != baseline:
                others = settings[baseline][measure]
                yield [label, measure, *difference(values, others, size)]


def difference(values, others, size):
    """(difference and interval, p, verdict, seeds needed) as a table shows them."""
    change = np.mean(values) - np.mean(others)
    text = f"{change:+,.1f}"
    if min(len(values), len(others)) < 2:
        return text, "", "one seed", ""
    low, high = difference_interval(values, others)
    text += f" [{low:+,.1f}, {high:+,.1f}]"
    p = chance(values, others)
    p_text = f"{p:.2f}" if p >= 0.01 else "< 0.01"
    word = judge(p, change)
    if min(len(values), len(others)) < SEEDS:
        word = FEW
    return text, p_text, word, needed(values, others, size)


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
    """{env_id: {label: {measure: values of its seeds}}}; says which runs are left out."""
    found = {}
    without = []
    for label, runs in groups.items():
        for run in runs:
            values = measures(run, metric, until)
            if values is None:
                without.append(run)
                continue
            setting = found.setdefault(run.env_id, {}).setdefault(label, {})
            for name, value in values.items():
                setting.setdefault(name, []).append(value)
    unfinished = [run for run in without if not run.finished]
    tools.say_left_out(unfinished, "not finished (see --until)")
    tools.say_left_out([run for run in without if run.finished], f"without {metric}")
    return found


def origin(groups):
    """The label of the runs that are nearest to an installed script with its defaults."""

    def distance(label):
        run = groups[label][0]
        installed = tools.SCRIPTS / f"{run.args['script']}.py"
        source = run.dir / installed.name
        changed = tools.changed_flags(run.args, source) if source.exists() else {}
        return not installed.exists(), run.args["code"], len(changed)

    return min(groups, key=distance)


def say_lengths(groups):
    """Whether settings were trained for different numbers of steps."""
    lengths = {}
    for runs in groups.values():
        for run in runs:
            lengths.setdefault(run.env_id, set()).add(run.args["total_timesteps"])
    for env_id, found in lengths.items():
        if len(found) > 1:
            tools.say(f"{env_id}: runs of {min(found):,} to {max(found):,} steps (see --until)")


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
    if not args.until:
        say_lengths(groups)
    found = collect(groups, args.metric, args.until)
    if not found:
        tools.refuse("nothing to compare")
    tested = 0
    for env_id, settings in sorted(found.items()):
        print(f"{env_id}\n", *markdown(summary(settings)), "", sep="\n")
        if baseline in settings and len(settings) > 1:
            lines = list(differences(settings, baseline, args.size))
            print(*markdown(lines), "", sep="\n")
            tested += sum(line[4] in (ABOVE, SAME, BELOW) for line in lines)
    if tested:
        wrong = (1 - CONFIDENCE) * tested
        print(f"If nothing differed, {wrong:.1f} of {tested} tests would still say above or below.")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", ".*catastrophic cancellation.*")
    main()
