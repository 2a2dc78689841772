"""Learning curves of all collected runs:  python -m benchmark.plot

Reads benchmark/results (see collect.py) and draws docs/img/{script}.png, one panel per environment, and
docs/img/readme.png. Thin lines are seeds: the mean return of the last training episodes (5 % of the run's episodes, at
least 10 and at most 100); the thick line is their mean, the band its 95 % bootstrap interval, over resampled seeds.
"""

import argparse
import gzip
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.ticker import EngFormatter, MaxNLocator  # noqa: E402

from benchmark.collect import episodes_path, groups, published, steps  # noqa: E402

README = [("ppo", "CartPole-v1"), ("ppo_continuous", "Hopper-v4"), ("ppo_continuous", "HalfCheetah-v4")]
README += [("ppo_continuous", "Walker2d-v4")]
OURS, THEIRS, INK = "#3987e5", "#d97b29", "#75808c"  # legible on white and on black


def curve(run):
    """Environment steps and smoothed returns of one run."""
    with gzip.open(episodes_path(run), "rt") as file:
        global_step, returns = np.loadtxt(file, delimiter=",", skiprows=1, usecols=(0, 1), ndmin=2).T
    window = int(np.clip(0.05 * len(returns), 10, 100))
    sums = np.concatenate([[0], returns.cumsum()])
    first = np.maximum(np.arange(1, len(sums)) - window, 0)
    return global_step, (sums[1:] - sums[first]) / (np.arange(1, len(sums)) - first)


def bootstrap(values, samples=2000):
    """The 95 % interval of the mean over the first axis."""
    picks = np.random.default_rng(0).integers(len(values), size=(samples, len(values)))
    return np.percentile(values[picks].mean(1), [2.5, 97.5], axis=0)


def panel(ax, runs):
    first, curves = runs[0], [curve(run) for run in runs]
    grid = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), 200)  # where every seed has data
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    if len(runs) > 1:
        ax.plot(grid, values.T, color=OURS, linewidth=0.7, alpha=0.55)
        ax.fill_between(grid, *bootstrap(values), color=OURS, alpha=0.22, linewidth=0)
    ax.plot(grid, values.mean(0), color=OURS, linewidth=1.9)
    for row in published(first):
        at = int(row["total_timesteps"])
        if row["metric"] == "training":
            label = "CleanRL" + (f" at {steps(at)}" if at != first["total_timesteps"] else "")
            ax.axhline(float(row["mean"]), color=THEIRS, linewidth=1.4, linestyle=(0, (5, 3)))
            place = dict(xytext=(3, 3), textcoords="offset points", fontsize=8, color=THEIRS)
            ax.annotate(label, (0, float(row["mean"])), **place)
    seeds = f"{len(runs)} seed{'s' * (len(runs) > 1)}" + ", unfinished" * (not all(run["finished"] for run in runs))
    name = f"{first['exp_name']}, " if first["exp_name"] != first["script"] else ""
    ax.text(0.985, 0.012, name + seeds, transform=ax.transAxes, ha="right", fontsize=8, color=INK)
    ax.set_title(first["env_id"], loc="left", fontsize=10.5, color=INK, fontweight="bold")
    ax.set_xlim(0, first["total_timesteps"])
    ax.set_xticks(np.linspace(0, first["total_timesteps"], 6))
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.margins(y=0.1)
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.tick_params(colors=INK, labelsize=8.5, length=0)
    ax.grid(color=INK, alpha=0.22, linewidth=0.6)
    ax.spines[:].set_visible(False)


def draw(experiments, path):
    """One picture with a panel per experiment."""
    columns = 2 if len(experiments) in (2, 4) else min(len(experiments), 3)
    rows = -(-len(experiments) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 2.4 * rows), layout="constrained", squeeze=False)
    for ax in axes.flat[len(experiments) :]:
        ax.set_visible(False)
    for ax, runs in zip(axes.flat, experiments):
        panel(ax, runs)
    figure.supxlabel("environment steps", fontsize=9, color=INK)
    figure.supylabel("return of training episodes", fontsize=9, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=180, transparent=True, pil_kwargs=dict(optimize=True))
    plt.close(figure)
    print(f"{path}: {len(experiments)} panels, {path.stat().st_size // 1000} kB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="folder of the pictures")
    args = parser.parse_args()
    found = groups()
    for script in sorted({name[0] for name in found}):
        draw([runs for name, runs in found.items() if name[0] == script], args.out / f"{script}.png")
    chosen = [found[(script, env_id, script)] for script, env_id in README if (script, env_id, script) in found]
    if chosen:
        draw(chosen, args.out / "readme.png")


if __name__ == "__main__":
    main()
