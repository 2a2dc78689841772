"""Draws your runs: a panel for each environment, a colour for each setting, its seeds together.

    python -m cleanrl_lite.tools.plot runs/                      all runs below runs/, curves.png
    python -m cleanrl_lite.tools.plot runs/ --by exp_name,gamma --out curves.pdf
    python -m cleanrl_lite.tools.plot before/ after/ --by folder --x time
    python -m cleanrl_lite.tools.plot runs/ --also sb3_logs/     other libraries' runs beside yours

Without --by, runs are told apart by what differs in their args.json, but for the seed and flags of
the machine. The thick line is the mean over seeds, the band its 95 % bootstrap interval. Thin lines
are seeds, dashed where a run is unfinished. Guide: docs/guides/plot_compare.md.
"""

import re
import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import EngFormatter, MaxNLocator
from scipy import stats

from cleanrl_lite.tools import runs as tools

# Legible on white and on black.
COLOURS = ["#3987e5", "#d97b29", "#c2489b", "#2f9e6e", "#8f6fd8", "#b3901c", "#cf4b4b", "#23a0b5"]
INK = "#75808c"
DASHES = (0, (3, 1))
NAMES = {tools.RETURN: "return of training episodes", "eval/episodic_return": "return, evaluated"}
WIDTH = 40  # characters of a line of the legend


# === curves
def curve_of(run, x, metric):
    """(x, values) of a run's curve, each the mean over the last 5 % of the run's steps."""
    found = run.curve(metric)
    if not found:
        return None
    steps, minutes, values = found
    if not run.averages:
        width = min(0.05 * run.args.get("total_timesteps", steps[-1]), steps[-1])
        ends = np.linspace(width, steps[-1], 200)
        values = tools.step_means(steps, values, np.stack([ends - width, ends], -1))[:, 0]
        minutes = np.interp(ends, steps, minutes)
        steps = ends
    return minutes if x == "time" else steps, values


def band(values):
    """The 95 % bootstrap interval of the mean over the first axis."""
    rng = np.random.default_rng(0)
    options = {"axis": 0, "n_resamples": 2000, "method": "percentile", "rng": rng}
    return stats.bootstrap((values,), np.mean, **options).confidence_interval


def draw_group(ax, curves, colour, label, dashed=False, hold=False):
    """A setting: thin lines for seeds, a thick one for their mean, a band for its interval.

    It ends where the shortest seed ends; with `hold`, others keep their last value to the end of
    the longest, as against time.
    """
    ends = [x[-1] for x, _ in curves]
    grid = np.linspace(max(x[0] for x, _ in curves), max(ends) if hold else min(ends), 200)
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    style = DASHES if dashed else "-"
    if len(curves) > 1:
        for x, y in curves:
            ax.plot(x, y, color=colour, linewidth=0.7, linestyle=style, alpha=0.5)
        ax.fill_between(grid, *band(values), color=colour, alpha=0.2, linewidth=0)
    ax.plot(grid, values.mean(0), color=colour, linewidth=1.9, linestyle=style, label=label)


# === panels
def draw_panel(ax, env_id, groups, colours, x):
    """An environment: `groups` has {label: {run: its curve}}."""
    for label, found in groups.items():
        curves = [curve for run, curve in found.items() if run.finished]
        others = [curve for run, curve in found.items() if not run.finished]
        text = in_legend(label, found)
        draw_group(ax, curves or others, colours[label], text, not curves, hold=x == "time")
        for at, values in others if curves else []:
            ax.plot(at, values, color=colours[label], linewidth=1, linestyle=DASHES, alpha=0.8)
    ax.set_xlim(0, max(at[-1] for found in groups.values() for at, _ in found.values()))
    title(ax, env_id)
    legend(ax)
    decorate(ax)
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if x == "steps":
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def in_legend(label, found):
    """A setting's line or lines in the legend, as wide as the panel."""
    words = seeds(found).replace(" ", "\u00a0")  # where no line may break
    return textwrap.fill(f"{label} ({words})", WIDTH)


def seeds(found):
    """3 seeds, 1 unfinished."""
    unfinished = sum(not run.finished for run in found)
    text = tools.count(len(found), "seed")
    return f"{text}, {unfinished} unfinished" if unfinished else text


def title(ax, name):
    name = name.split(":")[-1]
    size = 10.5 if len(name) < 30 else 8.5  # as wide as the panel
    ax.set_title(name, loc="left", fontsize=size, color=INK, fontweight="bold")


def legend(ax):
    below = {"loc": "upper left", "bbox_to_anchor": (0, -0.12), "borderaxespad": 0, "borderpad": 0}
    style = {"fontsize": 8, "labelcolor": INK, "frameon": False}
    ax.legend(labelspacing=0.2, handlelength=2.2, **below, **style)


def decorate(ax):
    ax.margins(y=0.1)
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.tick_params(colors=INK, labelsize=8.5, length=0)
    ax.grid(color=INK, alpha=0.22, linewidth=0.6)
    ax.spines[:].set_visible(False)


# === pictures
def grid_of_axes(count, labels=0):
    """A figure with `count` panels, and room for legends of so many lines below them."""
    columns = 2 if count in (2, 4) else min(count, 3)
    rows = -(-count // columns)
    size = 3.6 * columns + 1.2 * (columns == 1), 2.6 * rows * (1 + 0.06 * labels)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for ax in axes.flat[count:]:
        ax.set_visible(False)
    return figure, list(axes.flat[:count])


def save(figure, path, x, y, transparent=False):
    figure.supxlabel(x, fontsize=9, color=INK)
    figure.supylabel(y, fontsize=9, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"pil_kwargs": {"optimize": True}} if path.suffix == ".png" else {}
    figure.savefig(path, dpi=180, transparent=transparent, **options)
    plt.close(figure)


def draw(groups, path, x="steps", metric=tools.RETURN):
    """One picture of {label: runs}."""
    panels = tools.collect(groups, lambda run: curve_of(run, x, metric), f"without {metric}")
    if not panels:
        tools.refuse(f"no run has {metric}. TensorBoard lists the tags of a run")
    labels = [label for label in groups if any(label in panel for panel in panels.values())]
    many = matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, len(labels)))
    colours = dict(zip(labels, COLOURS if len(labels) <= len(COLOURS) else many, strict=False))
    texts = [[in_legend(*setting) for setting in panel.items()] for panel in panels.values()]
    lines = max(sum(text.count("\n") + 1 for text in panel) for panel in texts)
    figure, axes = grid_of_axes(len(panels), lines)
    for ax, (env_id, panel) in zip(axes, sorted(panels.items()), strict=True):
        draw_panel(ax, env_id, panel, colours, x)
    save(figure, path, "minutes" if x == "time" else "environment steps", NAMES.get(metric, metric))


# === other libraries' runs
def find_also(folders, env_ids):
    """{label: runs} of the folders with event files below `folders`."""
    groups = {}
    for folder in map(Path, folders):
        paths = [path for path in tools.folders_below(folder) if tools.event_files(path)]
        if not paths:
            tools.refuse(f"--also {folder}: there are no TensorBoard files below it")
        for path in paths:
            name, run = read_foreign(path, env_ids)
            groups.setdefault(f"{name} of {folder.name}", []).append(run)
    return groups


def read_foreign(path, env_ids):
    """(name, run): CleanRL's directories tell environment, name and seed, others a name."""
    cleanrl = re.fullmatch(r"(.+?)__(.+)__(\d+)__\d+", path.name)
    if cleanrl and not (path / "args.json").exists():
        end = f"/{cleanrl[1]}"  # of an id such as ALE/Pong-v5, whose slash makes a folder
        place = f"{path.resolve().parent}{end}"
        known = [env_id for env_id in env_ids if place.endswith("/" + env_id.split(":")[-1])]
        env_id = max(known, key=len, default=cleanrl[1])
        return cleanrl[2], tools.Run(path, {"env_id": env_id, "seed": cleanrl[3]})
    name = path.name
    if name in ("summaries", "nn"):  # rl_games: Ant_27-17-40-02/summaries
        name = re.sub(r"_\d\d-\d\d-\d\d-\d\d$", "", path.parent.name)
    elif path.with_name(re.sub(r"\d+$", "1", name)).exists():  # Stable-Baselines3: PPO_1, PPO_2
        name = re.sub(r"_\d+$", "", name)
    args = {"env_id": env_of(path, env_ids), "seed": str(path)}
    return name, tools.Run(path, args, averages=True)


def env_of(path, env_ids):
    """The environment of a run, from the names of its folders or because there is only one."""
    named = [env_id for env_id in env_ids if env_id.split(":")[-1] in str(path)]
    if named:
        return max(named, key=len)
    if len(env_ids) > 1:
        known = ", ".join(sorted(env_ids))
        tools.refuse(f"--also {path}: which environment? Name a folder of it after one of {known}")
    return next(iter(env_ids))


# === command line
def main():
    parser = tools.parser(__doc__)
    add = parser.add_argument
    add("folders", nargs="+", help="run directories, or folders with them below")
    add("--out", type=Path, default=Path("curves.png"), help="a .png, .svg or .pdf (curves.png)")
    add("--by", help="arguments by which to group, such as exp_name,gamma")
    add("--x", choices=["steps", "time"], default="steps", help="the horizontal axis")
    add("--metric", default=tools.RETURN, help=f"a tag of TensorBoard ({tools.RETURN})")
    add("--also", nargs="+", default=[], help="folders of other libraries' TensorBoard files")
    args = parser.parse_args()
    args.out = args.out.with_suffix(args.out.suffix or ".png")
    runs = tools.find(args.folders)
    groups = tools.group(runs, args.by.split(",") if args.by else None)
    tools.mixed(groups)
    groups |= find_also(args.also, {run.env_id for run in runs})
    draw(groups, args.out, args.x, args.metric)
    print(args.out)


if __name__ == "__main__":
    main()
