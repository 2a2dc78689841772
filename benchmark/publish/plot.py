"""Learning curves of all collected runs.

    python -m benchmark.publish.plot

Reads benchmark/results (see collect.py) and draws docs/img/{script}.png, the same against time as
{script}_time.png, minatar.png and readme.png. A picture has one panel for each environment, a panel
one colour for each experiment; dashes mark experiments that were stopped before their end. Thin
lines are seeds: the mean return of the last training episodes (5 % of the run's episodes, at least
10 and at most 100). The thick line is their mean, the band its 95 % bootstrap interval over
resampled seeds. The orange line and its band are CleanRL's published mean and standard deviation.
"""

import gzip

import numpy as np
from matplotlib.ticker import EngFormatter, MaxNLocator

from benchmark.publish.collect import COPIES, MINATAR, episodes_path, groups, published
from benchmark.publish.tables import reported, steps
from benchmark.shared import ROOT
from cleanrl_lite.tools.plot import (
    COLOURS,
    decorate,
    draw_group,
    grid_of_axes,
    legend,
    save,
    title,
)

README = {
    "ppo": ["CartPole-v1"],
    "ppo_continuous": ["Hopper-v4", "HalfCheetah-v4", "Walker2d-v4"],
}
OURS, THEIRS, *OTHERS = COLOURS


# === curves
def smoothed(values):
    """The mean of the latest values at each point: 5 % of all, at least 10 and at most 100."""
    window = int(np.clip(0.05 * len(values), 10, 100))
    sums = np.concatenate([[0], values.cumsum()])
    last = np.arange(1, len(sums))
    first = np.maximum(last - window, 0)
    return (sums[last] - sums[first]) / (last - first)


def curve(run, time=False):
    """Environment steps, or minutes since the start, and smoothed returns of one run."""
    with gzip.open(episodes_path(run), "rt") as file:
        rows = np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)
    returns = rows[:, 1]
    at = rows[:, 3] / 60 if time else rows[:, 0]
    return at, smoothed(returns)


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
    row = published(run)
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
    """One picture with a panel for each environment."""
    panels = {}
    for runs in experiments:
        panels.setdefault(runs[0]["env_id"], []).append(runs)
    figure, axes = grid_of_axes(len(panels), labels=max(map(len, panels.values())))
    for ax, group in zip(axes, panels.values(), strict=True):
        panel(ax, group, time)
    x = "minutes" if time else "environment steps"
    save(figure, path, x, "return of training episodes", transparent=True)


def main():
    found = groups()
    pictures = ROOT / "docs/img"
    for script in sorted({name[0] for name in found} - COPIES.keys()):
        experiments = [runs for name, runs in found.items() if name[0] == script]
        experiments = [runs for runs in experiments if "start_of" not in runs[0]]
        draw(experiments, pictures / f"{script}.png")
        draw(experiments, pictures / f"{script}_time.png", time=True)
    minatar = [runs for name, runs in found.items() if name[0] in MINATAR and name[3]]
    draw(minatar, pictures / "minatar.png")
    chosen = [found[name, env_id, name, True] for name, ids in README.items() for env_id in ids]
    draw(chosen, pictures / "readme.png")


if __name__ == "__main__":
    main()
