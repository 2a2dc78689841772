"""Learning curves of all collected runs.

    python -m benchmark.publish.plot

Reads benchmark/results (see collect.py) and draws docs/img/{script}.png, the same against time as
{script}_time.png, aggregate.png and readme.png. A picture has one panel for each environment, a
panel one colour for each experiment (a name and its flags); dashes mark experiments that were
stopped before their end. Thin lines are seeds: the mean return of the last training episodes (5 %
of the run's episodes, at least 10 and at most 100). The thick line is their mean, the band its 95 %
bootstrap interval over resampled seeds. The orange line and its band are CleanRL's published mean
and standard deviation. In the aggregate, returns are normalised (0 is the random policy's, 1
CleanRL's published one), the line is the interquartile mean over seeds and environments, and the
bootstrap is stratified: our seeds and CleanRL's are drawn within each environment.
"""

import gzip
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
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

README = [
    ("ppo", "CartPole-v1"),
    ("ppo_continuous", "Hopper-v4"),
    ("ppo_continuous", "HalfCheetah-v4"),
    ("ppo_continuous", "Walker2d-v4"),
]
# Legible on white and on black.
OURS = "#3987e5"
THEIRS = "#d97b29"
INK = "#75808c"
COLOURS = [OURS, "#c2489b", "#2f9e6e", "#8f6fd8", "#b3901c", "#cf4b4b", "#23a0b5"]


# === curves
def curve(run, time=False):
    """Environment steps, or minutes since the start, and smoothed returns of one run."""
    columns = (3 if time else 0, 1)
    with gzip.open(episodes_path(run), "rt") as file:
        rows = np.loadtxt(file, delimiter=",", skiprows=1, usecols=columns, ndmin=2)
    at, returns = rows.T
    if time:
        at = at / 60
    window = int(np.clip(0.05 * len(returns), 10, 100))
    sums = np.concatenate([[0], returns.cumsum()])
    last = np.arange(1, len(sums))
    first = np.maximum(last - window, 0)
    return at, (sums[last] - sums[first]) / (last - first)


def bootstrap(values, samples=2000):
    """The 95 % interval of the mean over the first axis."""
    picks = np.random.default_rng(0).integers(len(values), size=(samples, len(values)))
    return np.percentile(values[picks].mean(1), [2.5, 97.5], axis=0)


def lines(ax, runs, colour, time=False):
    """An experiment: thin lines for seeds, a thick one for their mean, a band for its interval.

    Returns where its longest curve ends.
    """
    curves = [curve(run, time) for run in runs]
    ends = [x[-1] for x, _ in curves]
    # Where every seed has data; against time to the end of the slowest: the others keep their last
    # return till then.
    end = max(ends) if time else min(ends)
    grid = np.linspace(max(x[0] for x, _ in curves), end, 200)
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    if len(runs) > 1:
        for x, y in curves:
            own = np.linspace(x[0], x[-1], 200)
            ax.plot(own, np.interp(own, x, y), color=colour, linewidth=0.7, alpha=0.5)
        ax.fill_between(grid, *bootstrap(values), color=colour, alpha=0.2, linewidth=0)
    label = f"{runs[0]['exp_name']}, {len(runs)} seed{'s' * (len(runs) > 1)}"
    style = "-"
    if not all(run["finished"] for run in runs):
        label += ", stopped"
        style = (0, (3, 1))
    ax.plot(grid, values.mean(0), color=colour, linewidth=1.9, linestyle=style, label=label)
    return max(ends)


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
        colour = COLOURS[names.index(runs[0]["exp_name"])]
        ends.append(lines(ax, runs, colour, time))
    cleanrl(ax, first, total)
    name = first["env_id"].split(":")[-1]
    size = 10.5 if len(name) < 30 else 8.5  # as wide as the panel
    ax.set_title(name, loc="left", fontsize=size, color=INK, fontweight="bold")
    ax.set_xlim(0, max(ends) if time else total)
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if not time:
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.legend(
        loc="upper left",
        bbox_to_anchor=(0, -0.12),  # below the panel
        borderaxespad=0,
        borderpad=0,
        fontsize=8,
        labelcolor=INK,
        frameon=False,
        labelspacing=0.2,
        handlelength=2.2,
    )
    decorate(ax)


def decorate(ax):
    ax.margins(y=0.1)
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.tick_params(colors=INK, labelsize=8.5, length=0)
    ax.grid(color=INK, alpha=0.22, linewidth=0.6)
    ax.spines[:].set_visible(False)


# === pictures
def save(figure, path, x, y):
    figure.supxlabel(x, fontsize=9, color=INK)
    figure.supylabel(y, fontsize=9, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=180, transparent=True, pil_kwargs={"optimize": True})
    plt.close(figure)
    print(f"{path}: {path.stat().st_size // 1000} kB")


def grid_of_axes(count):
    columns = 2 if count in (2, 4) else min(count, 3)
    rows = -(-count // columns)
    size = 3.6 * columns + 1.2 * (columns == 1), 2.6 * rows
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for ax in axes.flat[count:]:
        ax.set_visible(False)
    return figure, list(axes.flat[:count])


def draw(experiments, path, time=False):
    """One picture with a panel for each script and environment."""
    panels = {}
    for runs in experiments:
        panels.setdefault((runs[0]["script"], runs[0]["env_id"]), []).append(runs)
    figure, axes = grid_of_axes(len(panels))
    labels = max(map(len, panels.values()))
    figure.set_figheight(figure.get_figheight() * (1 + 0.06 * labels))  # room for the legends
    for ax, group in zip(axes, panels.values(), strict=True):
        panel(ax, group, time)
    x = "minutes" if time else "environment steps"
    save(figure, path, x, "return of training episodes")


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
    save(figure, path, "% of the steps", "normalised return")


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


if __name__ == "__main__":
    main()
