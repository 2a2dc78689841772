"""Learning curves of all collected runs.

    python -m benchmark.publish.plot

Reads benchmark/results (see collect.py) and draws docs/img/{script}.png, the same against time as
{script}_time.png, aggregate.png, readme.png and speed.png. A picture has one panel for each
environment, a panel one colour for each experiment (a name and its flags); dashes mark experiments
that were stopped before their end. Thin lines are seeds: the mean return of the last training
episodes (5 % of the run's episodes, at least 10 and at most 100). The thick line is their mean, the
band its 95 % bootstrap interval over resampled seeds. The orange line and its band are CleanRL's
published mean and standard deviation. In the aggregate, returns are normalised (0 is the random
policy's, 1 CleanRL's published one), the line is the interquartile mean over seeds and
environments, and the bootstrap is stratified: our seeds and CleanRL's are drawn within each
environment.
"""

import gzip
from pathlib import Path

import numpy as np
from matplotlib.ticker import EngFormatter, MaxNLocator

from benchmark import shared
from benchmark.publish.collect import (
    episodes_path,
    groups,
    only_starts,
    published,
    reported,
    steps,
)
from benchmark.publish.overview import SCRIPTS, interquartile_mean, interval, units
from benchmark.publish.readme import CORE, speeds
from cleanrl_lite.tools.plot import (
    COLOURS,
    INK,
    decorate,
    draw_group,
    grid_of_axes,
    legend,
    save,
    smoothed,
    title,
    window_of,
)
from cleanrl_lite.tools.runs import RETURN

README = [
    ("ppo", "CartPole-v1"),
    ("ppo_continuous", "Hopper-v4"),
    ("ppo_continuous", "HalfCheetah-v4"),
    ("ppo_continuous", "Walker2d-v4"),
]
OURS, THEIRS = COLOURS[:2]
OTHERS = COLOURS[2:]


# === curves
def curve(run, time=False):
    """Environment steps, or minutes since the start, and smoothed returns of one run."""
    columns = (3 if time else 0, 1)
    with gzip.open(episodes_path(run), "rt") as file:
        rows = np.loadtxt(file, delimiter=",", skiprows=1, usecols=columns, ndmin=2)
    at, returns = rows.T
    if time:
        at = at / 60
    return at, smoothed(returns, window_of(RETURN, len(returns)))


def lines(ax, runs, colour, time=False):
    """An experiment: thin lines for seeds, a thick one for their mean, a band for its interval.

    Returns where its longest curve ends.
    """
    curves = [curve(run, time) for run in runs]
    label = f"{runs[0]['exp_name']}, {len(runs)} seed{'s' * (len(runs) > 1)}"
    stopped = not all(run["finished"] for run in runs)
    if stopped:
        label += ", stopped"
    draw_group(ax, curves, colour, label, dashed=stopped, hold=time)
    return max(x[-1] for x, _ in curves)


# === panels
def cleanrl(ax, run, total):
    """CleanRL's mean and standard deviation; far above, they would flatten our curves."""
    row = published(run).get("training")
    if not row:
        return
    at = int(row["total_timesteps"])
    if at > 10 * total:
        ax.plot([], [], " ", label=f"CleanRL: {reported(row, total)}")  # in the legend only
        return
    mean = float(row["mean"])
    std = float(row["std"] or 0)
    label = "CleanRL" if at == total else f"CleanRL at {steps(at)}"
    ax.axhspan(mean - std, mean + std, color=THEIRS, alpha=0.14, linewidth=0)
    ax.axhline(mean, color=THEIRS, linewidth=1.4, linestyle=(0, (5, 3)), label=label)


def panel(ax, experiments, time=False):
    """An environment: its experiments (lists of runs, one a seed), the script's own first."""
    experiments = sorted(experiments, key=lambda runs: runs[0]["exp_name"] != runs[0]["script"])
    names = list(dict.fromkeys(runs[0]["exp_name"] for runs in experiments))
    first = experiments[0][0]
    total = max(runs[0]["total_timesteps"] for runs in experiments)
    ends = []
    for runs in experiments:
        colour = [OURS, *OTHERS][names.index(runs[0]["exp_name"])]
        ends.append(lines(ax, runs, colour, time))
    cleanrl(ax, first, total)
    title(ax, first["env_id"])
    ax.set_xlim(0, max(ends) if time else total)
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if not time:
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    legend(ax)
    decorate(ax)


# === pictures
def draw(experiments, path, time=False):
    """One picture with a panel for each script and environment."""
    panels = {}
    for runs in experiments:
        panels.setdefault((runs[0]["script"], runs[0]["env_id"]), []).append(runs)
    figure, axes = grid_of_axes(len(panels), labels=max(map(len, panels.values())))
    for ax, group in zip(axes, panels.values(), strict=True):
        panel(ax, group, time)
    x = "minutes" if time else "environment steps"
    save(figure, path, x, "return of training episodes", transparent=True)


def draw_aggregate(path, points=30, resamples=1000):
    """A panel per script: interquartile mean over seeds and environments of normalised returns."""

    def returns(run):
        at = np.linspace(0, run["total_timesteps"], points)
        return np.interp(at, *curve(run))

    cells_of = {script: units(script, returns) for script in SCRIPTS}
    cells_of = {script: cells for script, cells in cells_of.items() if len(cells) >= 2}
    figure, axes = grid_of_axes(len(cells_of))
    x = np.linspace(0, 100, points)
    for ax, (script, cells) in zip(axes, cells_of.items(), strict=True):
        middle, low, high = interval(cells, interquartile_mean, resamples)
        seeds = min(ours.shape[-1] for ours, _, _ in cells.values())
        ax.fill_between(x, low, high, color=OURS, alpha=0.22, linewidth=0)
        ax.plot(x, middle, color=OURS, linewidth=1.9)
        ax.axhline(1, color=THEIRS, linewidth=1.4, linestyle=(0, (5, 3)))
        ax.annotate(
            "CleanRL",
            (0, 1),
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=8,
            color=THEIRS,
        )
        label = f"{len(cells)} environments, {seeds} seeds"
        ax.text(0.985, 0.012, label, transform=ax.transAxes, ha="right", fontsize=8, color=INK)
        title = f"{script}.py"
        ax.set_title(title, loc="left", fontsize=10.5, color=INK, fontweight="bold")
        ax.set_xlim(0, 100)
        decorate(ax)
    save(figure, path, "% of the steps", "normalised return", transparent=True)


def draw_speed(path):
    """Steps per second of each core script, compiled and eager, where those of SB3 are 1."""
    figure, (ax,) = grid_of_axes(1)
    figure.set_size_inches(7.2, 3.6)
    for offset, (mode, alpha) in enumerate({"compiled": 1.0, "eager": 0.45}.items()):
        records = speeds(mode)
        for place, script in enumerate(CORE):
            if script not in records:
                continue
            record = records[script]
            ratio = record["ratio"]
            at = place + 0.36 * offset
            ends = [[ratio - min(record["ratios"])], [max(record["ratios"]) - ratio]]
            ax.barh(at, ratio, height=0.34, color=OURS, alpha=alpha, linewidth=0)
            ax.errorbar(ratio, at, xerr=ends, color=INK, linewidth=1)
            ax.text(
                max(record["ratios"]) + 0.06,
                at,
                f"{ratio:.1f}",
                va="center",
                fontsize=7.5,
                color=INK,
            )
        ax.barh(0, 0, color=OURS, alpha=alpha, label=mode)  # in the legend only
    ax.axvline(1, color=THEIRS, linewidth=1.4, linestyle=(0, (5, 3)), label="Stable-Baselines3")
    decorate(ax)
    ax.set_yticks(np.arange(len(CORE)) + 0.18, CORE)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.legend(loc="lower right", fontsize=8, labelcolor=INK, frameon=False)
    save(
        figure,
        path,
        "steps per second, where those of Stable-Baselines3 are 1",
        "",
        transparent=True,
    )


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="folder of the pictures")
    args = parser.parse_args()
    found = groups()
    for script in sorted({name[0] for name in found}):
        experiments = [runs for name, runs in found.items() if name[0] == script]
        experiments = [runs for runs in experiments if not only_starts(runs)]
        draw(experiments, args.out / f"{script}.png")
        draw(experiments, args.out / f"{script}_time.png", time=True)
    chosen = [found[script, env_id, script, True] for script, env_id in README]
    draw(chosen, args.out / "readme.png")
    draw_aggregate(args.out / "aggregate.png")
    draw_speed(args.out / "speed.png")


if __name__ == "__main__":
    main()
