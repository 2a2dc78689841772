"""The published numbers are those of the files in benchmark/results/."""

import csv
import functools
import gzip
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import stable_baselines3
import tyro
from gymnasium.spaces import Box
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter

from benchmark import shared
from benchmark.launch import launch
from benchmark.measure import (
    cuda_check,
    returns_sb3,
    same_runs,
    speed,
    speed_cleanrl,
    speed_edit,
    speed_parts,
    speed_rltools,
    speed_rltools_ours,
    speed_variants,
    torture,
)
from benchmark.publish import collect, overview, plot, readme
from cleanrl_lite import utils
from cleanrl_lite.tools import compare as rule
from cleanrl_lite.tools.plot import band
from tests import helpers, test_changed_copies
from tests.helpers import ROOT, VISUAL_SCRIPTS

RUNS = json.loads((ROOT / "benchmark/results/runs.json").read_text())
# Visual scripts: their results are those of their parents. New scripts: the docstring says that they
# are not measured yet.
SCRIPTS = [
    name
    for name in helpers.SCRIPTS
    if name not in VISUAL_SCRIPTS
    and not re.search("Expected: Not (yet measured|measured yet)", helpers.TEXT[name])
]


def test_readme_is_what_the_files_give():
    text = (ROOT / "README.md").read_text()
    assert text == readme.render(text), "run `make results`"
    assert "| ppo | CartPole-v1 |" in text
    breakout = "ppo_atari", "BreakoutNoFrameskip-v4", "ppo_atari_bf16", True
    (run,) = collect.groups("ppo_atari")[breakout]
    assert f"take {run['wall_seconds'] / 3600:.0f} hours on one CPU core" in " ".join(text.split())


def test_bold_is_what_is_better():
    """In the README: a mean above CleanRL's, a speed that was above in every pair of runs."""
    bold = re.findall(r"^\|.*\*\*.*\|$", (ROOT / "README.md").read_text(), re.M)
    faster = [r for r in readme.speeds().values() if min(r["ratios"]) > 1]
    above = [runs for runs in overview.compared() if overview.verdict(runs) == rule.ABOVE]
    assert len(bold) == len(faster) + len(above)


def test_the_counts_in_the_readme_are_those_of_its_table():
    """Each cell has one of three marks, and the headline counts all of them."""
    text = (ROOT / "README.md").read_text()
    table = re.search(r"\| our mean is \|\n.*?\n\n", text, re.S)[0]
    marks = re.findall(r"\| (▲ above|within noise|▼ below)[^|]* \|$", table, re.M)
    assert len(marks) == table.count("\n|") - 1  # all rows but the rule
    headline = " ".join(text.split())
    counts = [marks.count(mark) for mark in (rule.ABOVE, rule.SAME, rule.BELOW)]
    assert sum(counts) == len(marks) >= 14
    told = "[CleanRL](https://github.com/vwxyzjn/cleanrl) in {} of {} pairs of script and environment, within noise of it in {}, and below it in {}"
    above, same, below = counts
    assert told.format(above, len(marks), same, below or "none") in headline
    assert table.count("MountainCar-v0") == 4  # ppo, pqn, dqn, c51
    assert "-200.0 ± 0.0 | within noise, neither learns |" in table


def columns(text):
    return [row.strip().count("|") - 1 for row in re.findall(r"^ *\|(?:-|:).*$", text, re.M)]


def test_no_table_is_wider_than_seven_columns():
    paths = [*(ROOT / "benchmark/results").glob("*.md"), ROOT / "README.md"]
    wide = {path.name for path in paths if max(columns(path.read_text()), default=0) > 7}
    assert wide <= {
        "cuda.md",
        "environments.md",
        "peers.md",
        "speed_variants.md",
        "torture.md",
    }  # not returns


def test_commits_and_machines_are_folded():
    """A script's table comes first, then its experiments' flags; what made them opens at a click."""
    text = collect.table("td3")
    table, notes = text.split("<summary>Commands, machines, versions and commits</summary>")
    assert "torch" not in table
    assert "c17942a" not in table
    assert "c17942a" in notes
    assert text.startswith(collect.HEAD)
    assert "| `td3_bf16` | HalfCheetah-v4 | `--bf16` |" in table
    assert notes.rstrip().endswith("</details>")


def test_unfinished_runs_and_starts_of_longer_runs_are_not_in_the_table():
    """td3_300k's episodes are the first ones of td3's seed 1."""
    main, others = collect.split("td3")
    names = [collect.key(runs[0])[1:3] for runs in main]
    assert ("HalfCheetah-v4", "td3") in names
    assert len(names) == len(set(names))
    assert all(runs[0]["finished"] for runs in main)
    told = {(*collect.key(runs[0])[1:3], runs[0]["finished"]): why for runs, why in others}
    assert told["Hopper-v4", "td3_300k", True] == "seed 1 is the start of `td3`'s"
    assert told["Pendulum-v1", "td3_15k", True] == "seeds 1, 2, 3 are the start of `td3`'s"
    assert told["BipedalWalker-v3", "td3_zoo", False] == "unfinished, at 292k"
    # Only seed 1 of ddpg_200k is the start of a longer run.
    names = [collect.key(runs[0])[1:3] for runs in collect.split("ddpg")[0]]
    assert ("HalfCheetah-v4", "ddpg_200k") in names
    longer, *_ = collect.groups("td3")["td3", "Hopper-v4", "td3", True]
    other = collect.groups("td3")["td3", "Hopper-v4", "td3_bf16_300k", True]
    assert not any(collect.is_start(run, longer) for run in [longer, *other])


def test_tables_have_the_first_ten_seeds():
    """Which cells got more seeds hung on what the first ones showed."""
    for (script, env_id, name, _), runs in collect.groups().items():
        same = [run for run in RUNS if collect.key(run)[:3] == (script, env_id, name)]
        seeds = sorted(run["seed"] for run in same if run["finished"] == runs[0]["finished"])
        assert [run["seed"] for run in runs] == seeds[:10]
    fifteen = collect.groups()["c51", "CartPole-v1", "c51", True]
    assert [run["seed"] for run in fifteen] == list(range(1, 11))


def test_one_slow_machine_does_not_set_the_minutes_of_a_run():
    runs = collect.groups()["sac", "Hopper-v4", "sac", True]
    slowed = [{**run, "wall_seconds": 60 * n} for run, n in zip(runs, (500, 146, 148), strict=True)]
    assert collect.row(slowed).endswith("| 148.0 |")


def test_tables_are_what_the_files_give():
    for script in {run["script"] for run in RUNS}:
        written = (ROOT / f"benchmark/results/{script}.md").read_text()
        assert written == collect.table(script), "run `make results`"


def test_the_speed_beside_cleanrl_is_what_the_pairs_give():
    record = helpers.read_json(ROOT / "benchmark" / "results" / "speed_cleanrl.json")
    assert (
        speed_cleanrl.table(record)
        == (ROOT / "benchmark" / "results" / "speed_cleanrl.md").read_text()
    )


def test_the_seconds_after_an_edit_are_what_the_rounds_give():
    record = helpers.read_json(ROOT / "benchmark" / "results" / "speed_edit.json")
    written = (ROOT / "benchmark" / "results" / "speed_edit.md").read_text()
    assert speed_edit.table(record) == written


def test_the_speed_beside_rltools_is_what_the_rounds_give():
    records = helpers.read_json(ROOT / "benchmark" / "results" / "speed_rltools.json")
    assert list(records) == list(speed_rltools.ROWS)
    assert {len(record["rounds"]) for record in records.values()} == {5}
    written = (ROOT / "benchmark" / "results" / "speed_rltools.md").read_text()
    assert speed_rltools.table(records) == written


@pytest.mark.parametrize("name", speed_rltools.ROWS)
def test_rltools_and_ours_do_the_same(name, monkeypatch):
    """Networks, minibatches and steps; a run's speed is that of its second half."""
    script, hidden = speed_rltools.ROWS[name]
    total = 1000 + speed_rltools.TRAINED[hidden]
    half = (1000 + total) // 2 + 100
    marks = []  # 10 and then 50 steps a second, on the clock; twice as many by processor time
    for step in range(100, total + 1, 100):
        clock = min(step, half) / 10 + max(step - half, 0) / 50
        marks.append((step, clock, clock / 2))
    seen = {}

    def run(command, folder, core, cache, python=None, variables=None):
        side = "rltools" if python == "rltools" else "now"
        seen[side] = command
        if side == "now":
            seen["agent"] = runpy.run_path(command[2])["Agent"]
        here = {"rltools": None, "now": {"PYTHONPATH": str(ROOT)}}
        assert variables == here[side]
        Path(folder, "times.json").write_text(json.dumps({"marks": marks}))

    monkeypatch.setattr(speed_rltools, "run", run)
    args = SimpleNamespace(python="rltools", before=None, core=0)
    for side in speed_rltools.sides_of(script, None):
        found = speed_rltools.measure(side, script, hidden, args, "cache")
        assert found == {"sps": 100, "clock_sps": 50, "cpu_s": 0}
    flags = {flag[2:].replace("-", "_") for flag in seen["now"] if flag[:2] == "--"}
    values = dict(zip(seen["now"][1:], seen["now"][2:]))
    assert flags - {"no_cuda"} <= shared.script_defaults(script).keys()
    assert values["--total-timesteps"] == str(total)
    assert values["--learning-starts"] == "1000"
    assert values.get("--policy-frequency") == ("1" if script == "sac" else None)
    agent = seen["agent"](3, Box(-2.0, 2.0, (1,)))
    shapes = {weight.shape for weight in agent.state_dict().values() if weight.ndim == 2}
    assert {max(shape) for shape in shapes} == {hidden}
    assert (hidden, hidden) in shapes
    if script == "ddpg":
        assert "rltools" not in seen
        return
    _, algorithm, settings, steps, _ = seen["rltools"]
    settings = json.loads(settings)
    assert (algorithm.lower(), steps) == (script, str(total))
    for network in ("ACTOR", "CRITIC"):
        assert settings[f"{network}_HIDDEN_DIM"] == hidden
        assert str(settings[f"{network}_BATCH_SIZE"]) == values["--batch-size"]


def test_our_side_of_rltools_rows_records_each_log(tmp_path, monkeypatch):
    """With the step, the time and the processor time."""
    script = ROOT / "cleanrl_lite/vpg.py"
    flags = "--total-timesteps 8192 --num-envs 4 --num-steps 512 --eval-episodes 1 --no-cuda"
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr(utils.Run, "log", utils.Run.log)
    words = [*flags.split(), "--runs-dir", str(tmp_path)]
    speed_rltools_ours.main(str(tmp_path), str(script), *words)
    marks = helpers.read_json(tmp_path / "times.json")["marks"]
    (run_dir,) = [path.parent for path in tmp_path.glob("*/args.json")]
    events = shared.events(run_dir).Scalars("charts/SPS")
    assert (
        [mark[0] for mark in marks] == [event.step for event in events] == [2048, 4096, 6144, 8192]
    )
    for (_, clock, _), event in zip(marks, events):
        assert 0 <= clock - event.wall_time < 60
    spent = [mark[2] for mark in marks]
    assert spent == sorted(spent)


def test_the_speed_of_another_size_needs_the_layers_that_it_knows():
    with pytest.raises(AssertionError, match="layers have changed"):
        speed_rltools.resized("self.fc1 = nn.Linear(inputs, 256)", 64)


def test_the_parts_of_a_step_are_what_the_file_gives():
    records = helpers.read_json(ROOT / "benchmark" / "results" / "speed_parts.json")
    written = (ROOT / "benchmark" / "results" / "speed_parts.md").read_text()
    assert speed_parts.table(records) == written
    assert [*records] == [*speed_parts.ROWS]
    for record in records.values():
        figures = dict(record["microseconds"])
        step = figures.pop("step")
        assert min(figures.values()) >= 0
        assert 0 < sum(figures.values()) < step


def test_the_time_of_a_part_is_that_of_its_undisturbed_calls():
    """10th percentiles after the middle log; a log every 10 steps, a call of `act` every 2."""
    logs = [(10 * n, 1.0 * n) for n in range(21)]
    began = np.arange(0, 20, 0.2)
    disturbed = [9.0] * 50 + [1e-6] * 15 + [5e-6] * 35
    act = list(zip(began, disturbed, strict=True))
    kernels = [(when, 2e-6) for when in range(20)]
    update = [(when, 3e-6) for when in range(20)]
    times = {"logs": logs, "act": act, "kernels a": kernels, "update a": update, "update b": []}
    found = speed_parts.microseconds(times)
    assert found.pop("step") == 100_000
    assert found == dict(act=0.5, kernels=0.2, update=0.1, environment=0, sample=0)


def test_the_speed_of_variants_is_what_the_pairs_give():
    records = helpers.read_json(ROOT / "benchmark" / "results" / "speed_variants.json")
    assert (
        speed_variants.table(records)
        == (ROOT / "benchmark" / "results" / "speed_variants.md").read_text()
    )


def test_stable_baselines3_returns_are_what_the_file_gives():
    entries = returns_sb3.read()
    assert entries
    assert (ROOT / "benchmark/results/returns_sb3.md").read_text() == returns_sb3.table(entries)
    for line in entries:  # of an experiment of ours, as long as it
        assert (
            line["total_timesteps"]
            == returns_sb3.experiment(*(line[name] for name in returns_sb3.NAMES[:3]))[0]
        )


@pytest.mark.slow
@pytest.mark.parametrize("script", ["ddpg", "td3", "sac"])
def test_stable_baselines3_with_our_hyperparameters(script, tmp_path, monkeypatch):
    """Two environments and other flags than the defaults: they reach its model; every episode is there, in order."""
    name = script.upper()
    learn = vars(getattr(stable_baselines3, name))["learn"]
    seen = []
    monkeypatch.setattr(
        f"stable_baselines3.{name}.learn", lambda self, n: seen.append(self) or learn(self, n)
    )
    monkeypatch.setattr(returns_sb3, "ROOT", tmp_path)
    args = shared.default_args((ROOT / f"cleanrl_lite/{script}.py").read_text())
    args |= dict(
        num_envs=2,
        train_frequency=2,
        learning_starts=300,
        gamma=0.9,
        tau=0.1,
        batch_size=32,
        buffer_size=999,
    )
    args |= (
        dict(policy_lr=2e-3) if script == "sac" else dict(learning_rate=2e-3, exploration_noise=0.7)
    )
    args |= dict(policy_frequency=3)
    returns, evaluation = returns_sb3.train(script, "Pendulum-v1", args, 800, seed=1, episodes=3)
    assert len(returns) == 4
    assert len(evaluation) == 3
    assert max(returns + evaluation) < 0
    (model,) = seen
    same = {
        attribute: args[attribute]
        for attribute in ("gamma", "tau", "batch_size", "learning_starts")
    }
    assert {attribute: getattr(model, attribute) for attribute in same} == same
    assert (model.learning_rate, model._n_updates, model.replay_buffer.buffer_size) == (
        2e-3,
        250,
        499,
    )
    assert script == "sac" or (model.policy_delay, model.action_noise.noises[0]._sigma[0]) == (
        3,
        0.7,
    )
    monitors = [
        np.loadtxt(path, delimiter=",", skiprows=2)
        for path in sorted((tmp_path / "runs/sb3").glob("*.csv"))
    ]
    assert returns == pytest.approx(
        [monitors[n][episode][0] for episode in (0, 1) for n in (0, 1)], rel=1e-4
    )


def test_an_experiment_that_stable_baselines3_cannot_take():
    with pytest.raises(SystemExit, match="no finished run nobody of td3 in Hopper-v4"):
        returns_sb3.experiment("td3", "Hopper-v4", "nobody")
    done = helpers.run(
        [sys.executable, "-m", "benchmark.measure.returns_sb3", "td3", "Hopper-v4"], cwd=ROOT
    )
    assert done.returncode == 2
    assert "a script goes with" in done.stderr


def test_runs_are_what_their_episodes_give():
    for run in RUNS:
        name = re.sub(
            "[/:]",
            "-",
            f"{run['script']}__{run['env_id']}__{run['exp_name']}__{run['seed']}.csv.gz",
        )
        returns = np.loadtxt(
            ROOT / "benchmark/results/episodes" / name,
            delimiter=",",
            skiprows=1,
            ndmin=2,
        )[:, 1]
        assert run["last_100_mean"] == pytest.approx(returns[-100:].mean(), abs=1e-6)
        assert collect.format_number(run["last_100_mean"]) == collect.format_number(
            returns[-100:].mean()
        )


def test_the_version_of_a_result_is_that_of_the_package_that_is_imported(tmp_path, monkeypatch):
    """Of two that are installed, the first on the path."""
    info = tmp_path / "mujoco-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mujoco\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert shared.versions()["mujoco"] == "0.0.1"


@pytest.mark.parametrize("script", SCRIPTS)
def test_expected_results_in_the_docstrings_are_the_tables(script):
    """`Hopper-v4 2,687` in the field Expected is the mean of that environment's runs, the finished ones if there are
    any; `as NAME`: of that experiment; `with --bf16`: of those of that name, `2 seeds` says of how many."""
    expected = re.search(
        r"Expected: (.*?)\nDetails:", (ROOT / f"cleanrl_lite/{script}.py").read_text(), re.S
    )[1]
    claims = re.findall(
        r"([\w/:.-]+-v\d+|8x8/\w+|hopper|inverted_pendulum) (-?[\d,.]*\d)(?:\s+as (\w+))?"
        r"(?: with (--bf16) \((\d+) seeds?)?",
        expected,
    )
    if not claims:  # of a new script
        assert "not measured yet" in expected.lower()
        assert not collect.groups(script)
    figure = (
        "eval_mean" if script == "ppo_selfplay" else "last_100_mean"
    )  # training games are against itself
    for env_id, mean, name, bf16, seeds in claims:
        if bf16:
            runs = [
                run
                for run in RUNS
                if (run["env_id"], run["exp_name"]) == (env_id, f"{script}_bf16")
            ]
            runs = [run for run in runs if run["finished"]]
            assert len(runs) == int(seeds)
            assert float(mean.replace(",", "")) == pytest.approx(
                np.mean([r["last_100_mean"] for r in runs]), rel=1e-3
            )
            continue
        found = [run for group in collect.groups(script).values() for run in group]
        # The module of an environment's id may be left out.
        found = [run for run in found if env_id in (run["env_id"], run["env_id"].split(":")[-1])]
        runs = [run for run in found if run["exp_name"] == (name or script)] or found
        runs = [run for run in runs if run["finished"]] or runs
        assert float(mean.replace(",", "")) == pytest.approx(
            np.mean([r[figure] for r in runs]), rel=1e-2
        )


def test_bfloat16_in_the_docs():
    """The tables of last 20 training episodes at some points, by seed, are what the kept episodes give."""
    names = {"ddpg": {"float32": "ddpg_200k__1 ddpg_200k__2 ddpg_200k__3"}, "td3": {}}
    names["ddpg"]["bfloat16"] = "ddpg_bf16__1 ddpg_bf16_200k__2 ddpg_bf16_200k__3 ddpg_bf16_200k__4"
    names["td3"]["float32"] = "td3__1 td3_300k__2 td3__3"
    names["td3"]["bfloat16"] = "td3_bf16_300k__1 td3_bf16_300k__2 td3_bf16_300k__3"
    for script, runs in names.items():
        page = (ROOT / f"docs/{script}.md").read_text()
        points = re.search(r"^\| \| ([\d,]+) steps \| (.*) \|$", page, re.M)
        points = [int(point.replace(",", "")) for point in (points[1], *points[2].split(" | "))]
        for name, parts in runs.items():
            means = [[] for _ in points]
            for part in parts.split():
                path = ROOT / f"benchmark/results/episodes/{script}__HalfCheetah-v4__{part}.csv.gz"
                steps, returns = np.loadtxt(
                    path,
                    delimiter=",",
                    skiprows=1,
                    usecols=(0, 1),
                    unpack=True,
                )
                for at, row in zip(points, means, strict=True):
                    if at < steps[-1] + 1000:  # as far as the run came
                        row.append(f"{returns[steps <= at][-20:].mean():,.0f}")
            cells = re.search(rf"^\| {name}, seeds .*? \| (.*) \|$", page, re.M)[1].split(" | ")
            assert cells == ["; ".join(row) for row in means]


def test_every_script_has_results_and_a_benchmark():
    assert {run["script"] for run in RUNS} == {*SCRIPTS, *collect.COPIES}
    assert all((ROOT / f"benchmark/experiments/{script}.sh").exists() for script in SCRIPTS)


def test_the_overview_is_what_the_files_give(monkeypatch):
    # read once, not for each table
    monkeypatch.setattr(collect, "recorded", functools.cache(collect.recorded))
    assert (ROOT / "benchmark/results/overview.md").read_text() == overview.page(), (
        "run `make results`"
    )


def test_every_script_has_its_pictures():
    for name in SCRIPTS:
        pictures = [f"img/{name}.png", f"img/{name}_time.png"]
        assert all(f"]({path})" in (ROOT / f"docs/{name}.md").read_text() for path in pictures)
        assert all((ROOT / "docs" / path).stat().st_size > 10_000 for path in pictures)
        assert f"]({pictures[0]})" in (ROOT / "docs/results.md").read_text()


def test_learning_curves(tmp_path, monkeypatch):
    """Each point is the mean of the last episodes up to there: of 10 at least, of 5 % of all, of 100 at most."""
    run = dict(
        script="ppo",
        env_id="CartPole-v1",
        exp_name="ppo",
        seed=1,
    )
    monkeypatch.setattr(plot, "episodes_path", lambda run: tmp_path / "episodes.csv.gz")
    for count, window in ((30, 10), (400, 20), (4000, 100)):
        returns = np.random.default_rng(0).normal(size=count)
        rows = [f"{10 * n + 10},{value},5,{6.0 * n}" for n, value in enumerate(returns)]
        with gzip.open(tmp_path / "episodes.csv.gz", "wt") as file:
            file.write("\n".join(["global_step,return,length,wall_time", *rows]))
        steps, smooth = plot.curve(run)
        minutes, same = plot.curve(run, time=True)
        assert (steps[0], steps[-1], minutes[1]) == (10, 10 * count, pytest.approx(0.1))
        assert (smooth == same).all()
        means = [returns[max(n + 1 - window, 0) : n + 1].mean() for n in range(count)]
        assert smooth == pytest.approx(means, abs=1e-4)


def test_the_band_of_a_curve():
    """The 95 % interval of the mean of eight seeds; drawn from two seeds it is from the lower to the higher."""
    values = np.random.default_rng(0).normal([0.0, 10.0], [1.0, 4.0], size=(400, 2))
    low, high = band(values)
    assert (high - low) / 2 == pytest.approx(1.96 * np.array([1, 4]) / 20, rel=0.15)
    assert (low < values.mean(0)).all()
    assert (values.mean(0) < high).all()
    low, high = band(np.array([[1.0], [3.0]]))
    assert (low, high) == (1, 3)


def test_a_picture(tmp_path):
    """A panel of one environment: a thin line per seed from its own first episode on, their mean, CleanRL's figure."""
    runs = collect.groups("ppo")["ppo", "CartPole-v1", "ppo", True]
    figure, (ax,) = plot.grid_of_axes(1)
    plot.panel(ax, [runs])
    *seeds, mean, cleanrl = ax.lines
    assert len(seeds) == len(runs)
    assert len(ax.collections) == 1
    row = collect.published(runs[0])["training"]
    (band,) = ax.patches
    assert band.get_extents().transformed(ax.transData.inverted()).intervaly == pytest.approx(
        [float(row["mean"]) - float(row["std"]), float(row["mean"]) + float(row["std"])]
    )
    assert [line.get_xdata()[0] for line in seeds] == [plot.curve(run)[0][0] for run in runs]
    assert mean.get_xdata()[0] == max(line.get_xdata()[0] for line in seeds)
    assert mean.get_ydata()[-1] == pytest.approx(
        np.mean([plot.curve(run)[1][-1] for run in runs]), rel=0.01
    )
    assert set(cleanrl.get_ydata()) == {float(collect.published(runs[0])["training"]["mean"])}
    plot.save(figure, tmp_path / "ppo.png", "environment steps", "return", transparent=True)
    assert plt.imread(tmp_path / "ppo.png").shape[2] == 4  # transparent, for light and dark pages


def test_figures():
    assert [collect.format_number(n) for n in (-0.04, -0.06, 999.94, -1234.5)] == [
        "0.0",
        "-0.1",
        "999.9",
        "-1,234",
    ]
    assert collect.format_number(2.5, 0.04) == "2.5 ± 0.0"


def test_a_published_figure_of_the_same_steps_comes_first():
    run = dict(
        script="ppo",
        env_id="CartPole-v1",
        exp_name="ppo",
        seed=1,
        total_timesteps=100_000,
    )
    found = collect.published(run)
    assert (found["training"]["project"], found["training"]["total_timesteps"]) == (
        "CleanRL",
        "500000",
    )
    assert (found["evaluation"]["project"], found["evaluation"]["total_timesteps"]) == (
        "rl-baselines3-zoo",
        "100000",
    )
    assert collect.reported(found["training"], 100_000) == "490.0 ± 6.1 at 500k"
    assert collect.reported(found["evaluation"], 100_000) == "500.0 ± 0.0"


@pytest.mark.parametrize(
    "ours, verdict",
    [
        ([14, 14.5, 15], "▲ above"),
        ([11, 12, 13], "within noise"),
        ([8, 9, 10], "within noise"),
        ([5, 5.1, 4.9], "▼ below"),
        ([10, 10, 10], "within noise"),
    ],
)
def test_above_within_noise_below(ours, verdict):
    """Beside 10 ± 1 with three seeds. Both sides' spread counts."""
    assert overview.judge(ours, dict(mean="10", std="1", seeds="3")) == verdict


def test_a_verdict_without_spread():
    """MountainCar: all seeds of both sides at -200. There is no t."""
    theirs = dict(mean="-200.00", std="0.00", seeds="3")
    assert overview.judge([-200.0] * 5, theirs) == rule.SAME
    assert overview.judge([-199.0] * 5, theirs) == rule.ABOVE
    assert overview.judge([-201.0] * 5, theirs) == rule.BELOW


@pytest.mark.parametrize("spread", [0.2, 1.0, 5.0])
def test_how_often_a_verdict_is_wrong(spread):
    """Equal means, five seeds beside three: above or below in some 5 % of the cases."""
    rng = np.random.default_rng(1)
    verdicts = []
    for _ in range(2000):
        ours = rng.normal(0, spread, 5)
        theirs = rng.normal(0, 1, 3)
        verdicts.append(overview.judge(ours, dict(mean=theirs.mean(), std=theirs.std(), seeds=3)))
    above, below = (verdicts.count(word) / 2000 for word in (rule.ABOVE, rule.BELOW))
    assert above + below < 0.075
    assert above == pytest.approx(below, abs=0.02)


def test_fewer_than_three_seeds_have_no_verdict():
    """They stand apart; so do flags, other steps and figures without a deviation."""
    for (_, _, name, finished), runs in collect.groups().items():
        if len(runs) < 3 or overview.flags(runs) or not finished:
            assert overview.verdict(runs) == ""
    pong = dict(
        script="ppo_atari_lstm",
        exp_name="ppo_atari_lstm",
        env_id="PongNoFrameskip-v4",
        total_timesteps=10_000_000,
        arguments={},
        finished=True,
    )
    runs = [run | pong for run in RUNS[:3]]
    assert overview.comparable(runs)
    assert overview.verdict(runs) == ""


ROBOTS = "HalfCheetah-v4", "Hopper-v4", "Walker2d-v4"


def made_up(monkeypatch, folder, seeds, **changed):
    """A runs.json of ddpg, td3 and sac on three robots, with returns around CleanRL's."""
    runs = []
    run = (
        dict(
            total_timesteps=1_000_000,
            finished=True,
            arguments={},
        )
        | changed
    )
    for script in ("ddpg", "td3", "sac"):
        for env_id in ROBOTS:
            cell = run | dict(
                script=script,
                env_id=env_id,
                exp_name=run.get("exp_name", script),
            )
            mean = float(collect.published(cell | dict(seed=1))["training"]["mean"])
            runs += [
                cell | dict(seed=seed, last_100_mean=mean + 10 * seed)
                for seed in range(1, seeds + 1)
            ]
    for name in ("random.json", "published.csv"):
        (folder / name).write_text((ROOT / "benchmark/results" / name).read_text())
    (folder / "runs.json").write_text(json.dumps(runs))
    for module in (collect, overview):
        monkeypatch.setattr(module, "RESULTS", folder)


def test_two_seeds_are_in_no_aggregate(tmp_path, monkeypatch):
    """They stand apart from the main table, and the aggregate says that they are left out."""
    made_up(monkeypatch, tmp_path, seeds=2)
    assert not any(overview.units(script) for script in overview.SCRIPTS)
    assert len(overview.open_cells()) == 9
    assert overview.compared() == []
    head, rule, _, *told = overview.aggregates()
    robots = f"({', '.join(ROBOTS)})"
    assert told == [
        "Left out, with fewer than 3 seeds on one side so far: "
        f"ddpg {robots}, td3 {robots}, sac {robots}."
    ]


def test_three_seeds_join_by_themselves(tmp_path, monkeypatch):
    """The main tables of the README and of the results, the aggregate and its picture."""
    made_up(monkeypatch, tmp_path, seeds=3)
    rows = [row.split(" | ")[:4] for row in overview.verdict_table() if "-v4 |" in row]
    assert rows == [
        [f"| {script}", env_id, "1M", "3"] for script in ("ddpg", "td3", "sac") for env_id in ROBOTS
    ]
    assert all(" within noise (p" in row for row in readme.results().split("\n") if "-v4 |" in row)
    assert overview.open_cells() == []
    text = "\n".join(overview.aggregates())
    for script in ("td3", "sac"):
        assert f"| {script} | {', '.join(ROBOTS)} | 3 | 1.0" in text
    # CleanRL's ddpg has 1,577 ± 819 on Hopper: too little to be a unit, by a rule that is not new
    assert "| ddpg | HalfCheetah-v4, Walker2d-v4 | 3 | 1.0" in text
    assert text.endswith(
        "Left out, because CleanRL's figure is too close to random: ddpg (Hopper-v4)."
    )
    drawn = []
    monkeypatch.setattr(plot, "curve", lambda run: ([0, 1_000_000], [0, run["last_100_mean"]]))
    monkeypatch.setattr(plot, "save", lambda figure, *_, **__: drawn.append(figure))
    plot.draw_aggregate(tmp_path / "aggregate.png", points=3, resamples=20)
    titles = [ax.get_title("left") for ax in drawn[0].axes if ax.get_visible()]
    assert titles == ["ddpg.py", "td3.py", "sac.py"]
    plt.close(drawn[0])


def test_bfloat16_never_joins_the_cells_with_default_flags(tmp_path, monkeypatch):
    """With three seeds, it still has no verdict, and is listed among those without."""
    made_up(
        monkeypatch,
        tmp_path,
        seeds=3,
        exp_name="sac_bf16",
        arguments={"bf16": True},
    )
    assert overview.compared() == []
    assert [collect.key(runs[0])[:2] for runs in overview.open_cells()] == [
        ("sac", env_id) for env_id in ROBOTS
    ]
    assert "or bfloat16" in overview.OPEN


def test_published_figures_of_the_other_atari_scripts():
    run = dict(exp_name="", seed=1, total_timesteps=10_000_000)
    want = {"ppo_atari_lstm": ("19.8", "1,299", "113.4")}
    want |= {"ppo_atari_multigpu": ("20.3", "2,415", "414.9")}
    for script, figures in want.items():
        for game, figure in zip(("Pong", "BeamRider", "Breakout"), figures, strict=True):
            found = collect.published(run | dict(script=script, env_id=f"{game}NoFrameskip-v4"))
            assert collect.reported(found["training"], 10_000_000) == figure


def test_normalised_scores():
    """CleanRL's mean is 1, a random policy's 0; as many seeds of every environment; MountainCar, where nothing is
    learned, and runs with flags or fewer seeds stay out."""
    cells = overview.units("ppo_continuous")
    assert set(cells) >= {"HalfCheetah-v4", "Hopper-v4"}
    assert len({ours.shape for ours, _, _ in cells.values()}) == 1
    zero = json.loads((ROOT / "benchmark/results/random.json").read_text())["Hopper-v4"]
    hopper = [
        run for run in RUNS if (run["exp_name"], run["env_id"]) == ("ppo_continuous", "Hopper-v4")
    ]
    scores = overview.normalised(*cells["Hopper-v4"])
    expected = [
        (run["last_100_mean"] - zero) / (2382.86 - zero)
        for run in hopper
        if run["seed"] <= len(scores)
    ]
    assert scores == pytest.approx(expected)
    assert not any("MountainCar-v0" in overview.units(script) for script in ("ppo", "dqn", "c51"))


def test_the_sample_that_stands_for_a_published_figure():
    """Its mean is the published one; drawn means have the error of that one, std / sqrt(n - 1)."""
    for seeds in (3, 10):
        values = overview.sample(dict(mean="50", std="6", seeds=str(seeds)))
        picks = np.random.default_rng(0).choice(values, (20_000, seeds))
        assert len(values) == seeds
        assert values.mean() == pytest.approx(50)
        assert picks.mean(1).std() == pytest.approx(6 / np.sqrt(seeds - 1), rel=0.03)


def test_what_chance_gets_is_asked_for(tmp_path, monkeypatch):
    """Three finished games would count, and must not silently stay out."""
    run = dict(
        script="dqn_atari",
        env_id="PongNoFrameskip-v4",
        exp_name="dqn_atari",
        total_timesteps=10_000_000,
        finished=True,
        last_100_mean=20.0,
        arguments={},
    )
    results = tmp_path / "results"
    results.mkdir()
    (results / "runs.json").write_text(json.dumps([run | dict(seed=seed) for seed in (1, 2, 3)]))
    (results / "random.json").write_text("{}")
    (results / "published.csv").write_text((ROOT / "benchmark/results/published.csv").read_text())
    for module in (collect, overview):
        monkeypatch.setattr(module, "RESULTS", results)
    with pytest.raises(SystemExit, match="random_policy PongNoFrameskip-v4"):
        overview.units("dqn_atari")
    (results / "random.json").write_text('{"PongNoFrameskip-v4": -20.7}')
    ((env_id, cell),) = overview.units("dqn_atari").items()
    assert env_id == "PongNoFrameskip-v4"
    assert overview.normalised(*cell) == pytest.approx(np.full(3, 40.7 / (20.25 + 20.7)), 0.01)


def test_the_plan_is_not_the_callers(monkeypatch):
    """What is exported for a part of the runs changes nothing of what all of them are."""
    plan = overview.planned("td3")
    for name, value in dict(
        SEEDS="1",
        EXP_NAME="x",
        STEPS="10",
        ENVS="Hopper-v4",
        FLAGS="--bf16",
        NAME="host",
    ).items():
        monkeypatch.setenv(name, value)
    assert overview.planned("td3") == plan


def cells_of(scores, error=0.0):
    """As units() gives them: a row of scores for each seed, CleanRL's figure is 1, zero is 0."""
    theirs = 1 + error * np.array([-1.0, 0.0, 1.0])
    return {str(env): (scores[:, env], theirs, 0.0) for env in range(scores.shape[1])}


def test_the_interval_is_stratified():
    """Environments at different heights, seeds that agree: drawing seeds within each environment, nothing varies."""
    scores = np.tile([0.0, 1.0, 2.0, 3.0], (5, 1))
    middle, low, high = overview.interval(cells_of(scores), overview.mean, 50)
    assert middle == low == high == pytest.approx(1.5)
    scores = scores + np.arange(5)[:, None]
    middle, low, high = overview.interval(cells_of(scores), overview.mean, 50)
    assert 2 < low < middle < high < 5
    assert middle == pytest.approx(3.5)


def test_the_interval_counts_cleanrls_error():
    """Our seeds agree; CleanRL's do not, so nobody knows how far above them ours are."""
    scores = np.full((5, 2), 1.0)
    for measure in (overview.interquartile_mean, overview.mean, overview.median):
        middle, low, high = overview.interval(cells_of(scores, error=0.1), measure, 500)
        assert middle == pytest.approx(1)
        assert low < 0.95
        assert high > 1.05
    curves = {}
    for name, (ours, theirs, zero) in cells_of(scores, error=0.1).items():
        curves[name] = np.tile(ours, (4, 1)), np.tile(theirs, (4, 1)), zero
    middle, low, high = overview.interval(curves, overview.interquartile_mean, 500)
    assert middle.shape == low.shape == (4,)
    assert (low < 0.95).all()
    assert (high > 1.05).all()


def test_the_interquartile_mean():
    """Of the middle half of all seeds and environments."""
    scores = np.array([[-50.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 900.0]])
    assert overview.interquartile_mean(scores) == pytest.approx(np.mean([2, 3, 4, 5]))
    assert overview.median(scores) == pytest.approx((scores[0].mean() + scores[1].mean()) / 2)


def test_both_sides_of_a_speed_comparison_do_the_same(monkeypatch, tmp_path):
    """As many iterations of ours as of Stable-Baselines3: a longer run may be a faster one."""
    monkeypatch.setattr(speed, "RESULTS", tmp_path)
    asked = {}

    def measure(side, script, env_id, args, iterations, core, cache):
        asked.setdefault(script, []).append(iterations)
        return dict(
            sps=1.0,
            first_update_s=1.0,
            peak_mb=1,
            iteration_sps=[1.0] * (iterations - 1),
        )

    monkeypatch.setattr(speed, "measure", measure)
    for script, _, modes in speed.PUBLISHED:
        speed.compare(script, None, modes, 1, 0, None, with_cold=False)
        assert len(asked[script]) == len(modes) + 1
        assert len(set(asked[script])) == 1
    records = [json.loads(path.read_text()) for path in (tmp_path / "speed").glob("*.json")]
    told = {record["script"] for record in records if speed.unequal(record)}
    assert told == {"ddpg"}  # measured without its policy_delay here


@pytest.mark.parametrize("script, delay", [("ddpg", 2), ("td3", 2), ("dqn", None)])
def test_stable_baselines3_updates_as_often_as_ours(script, delay, tmp_path, monkeypatch):
    """Its DDPG would update the actor at every step, ours does at every second one."""
    from benchmark.measure import speed_sb3

    name = script.upper()
    seen = []

    def learn(self, total, callback):
        seen.append(self)
        self.num_timesteps = total

    monkeypatch.setattr(f"stable_baselines3.{name}.learn", learn)
    args = shared.default_args((ROOT / f"cleanrl_lite/{script}.py").read_text())
    args |= dict(buffer_size=100)
    env_id = "CartPole-v1" if script == "dqn" else "Pendulum-v1"
    speed_sb3.main(script, env_id, json.dumps(args), "100", "100", str(tmp_path))
    (model,) = seen
    times = json.loads((tmp_path / "times.json").read_text())
    assert getattr(model, "policy_delay", None) == times["policy_delay"] == delay
    assert times["marks"][-1][0] == 100


def test_the_speed_table_is_what_the_records_give():
    paths = sorted((ROOT / "benchmark/results/speed").glob("*.json"))
    records = [json.loads(path.read_text()) for path in paths]
    assert (ROOT / "benchmark/results/speed.md").read_text() == speed.table(records)
    starred = [f"{r['script']} {r['mode']}" for r in records if speed.unequal(r)]
    assert all(name in speed.stars(records) for name in starred)


def test_the_headline_on_speed_counts_equal_sides_only():
    ratios = [record["ratio"] for record in readme.speeds().values() if not speed.unequal(record)]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times" in readme.summary()


def events(path, *points):
    """An event file of (wall time, step) points; ("start", wall time, step): a run resumed before this step."""
    with open(path, "wb") as file:
        for *start, at, step in points:
            log = SessionLog(status=SessionLog.START) if start else None
            RecordWriter(file).write(
                Event(wall_time=at, step=step, session_log=log).SerializeToString()
            )


@pytest.mark.parametrize(
    "files, want",
    [
        # Stopped at 160 s on the wall's clock, resumed at 1000 s.
        ([[(100, 0), (160, 5)], [(1000, 0), ("start", 1000, 6), (1030, 8)]], {130: 30, 160: 60, 500: 60, 1030: 90,}),
        # Suspended: two minutes without an event are a pause, less is not.
        ([[(100, 0), (200, 1), (1000, 2), (1010, 3)]], {150: 50, 200: 100, 700: 100, 1010: 110,}),
        # Killed: the steps from 3 on were lost, twice, and do not count.
        ([[(100, 0), (110, 2), (150, 4)], [(300, 0), ("start", 300, 3), (340, 3)],
          [(500, 0), ("start", 500, 3), (520, 4)]], {110: 10, 400: 10, 520: 30}),
    ],
)  # fmt: skip
def test_the_clock_stands_still_while_a_run_does(files, want, tmp_path):
    for number, points in enumerate(files):
        events(tmp_path / f"events.out.tfevents.{number}", *points)
    seconds = collect.clock(collect.read_events(tmp_path))
    assert {at: float(seconds(at)) for at in want} == want


def test_the_commands_of_the_published_runs(monkeypatch, capsys):
    """Every run in the tables has one that its script accepts, with the arguments it had; no two are one job."""
    monkeypatch.setattr("sys.argv", ["collect", "--commands"])
    collect.main()
    lines = capsys.readouterr().out
    for copy, script in collect.COPIES.items():  # which another command makes
        lines = lines.replace(f"runs/{copy}.py", f"cleanrl_lite/{script}.py")
    commands = list(launch.piped(lines.splitlines(), []))
    assert len(launch.jobs(commands, "runs/benchmark")) == len(commands) == len(RUNS)
    seen = set()
    for command, run in zip(commands, RUNS, strict=True):
        if (experiment := collect.key(run)[:3]) in seen:
            continue
        seen.add(experiment)
        args = vars(tyro.cli(helpers.module(Path(command[0]).stem).Args, args=command[1:]))
        total, flags = collect.experiment(run)
        given = (
            {name: run[name] for name in ("env_id", "exp_name", "seed")}
            | flags
            | dict(total_timesteps=total)
        )
        assert {name: args[name] for name in given} == given


@pytest.mark.parametrize("name", [*SCRIPTS, "fast", "bfloat16"])
def test_the_commands_of_a_benchmark(name):
    """Every command is one that its script accepts, and no two would share a run directory."""
    shell = helpers.run(["sh", f"benchmark/experiments/{name}.sh"], cwd=ROOT, RUN="cat")
    assert shell.returncode == 0
    assert not shell.stderr
    commands = list(launch.piped(shell.stdout.splitlines(), []))
    assert len(launch.jobs(commands, "runs/benchmark")) == len(commands) >= 3
    for command in commands:
        module = helpers.module(Path(command[0]).stem)
        args = tyro.cli(module.Args, args=command[1:])
        environments = {"--env-id": args.env_id, "--seed": str(args.seed)}
        assert all(
            launch.value(command, flag, None) == value for flag, value in environments.items()
        )


def test_the_commands_of_a_changed_copy(tmp_path):
    """The copy is the one that the page shows; its commands are sac_bf16_200k's."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    script = ROOT / "benchmark/experiments/residual_critics.sh"
    shell = helpers.run(["sh", script], cwd=tmp_path, RUN="cat", PATH=path)
    assert shell.returncode == 0, shell.stderr
    copy = (tmp_path / "runs/residual_critics.py").read_text()
    assert copy == test_changed_copies.changed("residual_critics", "sac")
    commands = shell.stdout.replace("runs/residual_critics.py", "cleanrl_lite/sac.py")
    commands = commands.replace("sac_residual_bf16_200k", "sac_bf16_200k")
    shell = helpers.run(["sh", "benchmark/experiments/crossq.sh"], cwd=ROOT, RUN="cat")
    assert set(commands.splitlines()) < set(shell.stdout.splitlines())


@pytest.mark.slow
def test_a_benchmark_runs(tmp_path):
    """ENVS, SEEDS, JOBS, more flags, and another launcher: what benchmark/README.md offers."""
    words = f"{sys.executable} -m benchmark.launch --runs-dir {tmp_path} --jobs 1"
    flags = "--total-timesteps 400 --learning-starts 100 --no-compile --eval-episodes 1".split()
    done = helpers.run(
        ["sh", "benchmark/experiments/dqn.sh", *flags],
        cwd=ROOT,
        ENVS="CartPole-v1",
        SEEDS="3",
        RUN=words,
    )
    assert done.returncode == 0, done.stdout
    (found,) = [collect.read_run(path.parent)[0] for path in tmp_path.glob("*/args.json")]
    assert (found["script"], found["env_id"], found["seed"], found["global_step"]) == (
        "dqn",
        "CartPole-v1",
        3,
        400,
    )
    assert found["finished"]
    assert found["wall_seconds"] > 0


def test_the_best_published_figure():
    """The highest with as many steps or fewer; where there is none, the one with the fewest."""
    with open(ROOT / "benchmark/results/published.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for runs in collect.groups().values():
        total = runs[0]["total_timesteps"]
        best = collect.published(runs[0]).get("best")
        others = [row for row in rows if (row["script"], row["env_id"]) == collect.key(runs[0])[:2]]
        within = [float(row["mean"]) for row in others if int(row["total_timesteps"]) <= total]
        if within:
            assert float(best["mean"]) == max(within)
        elif best:
            assert int(best["total_timesteps"]) == min(
                int(row["total_timesteps"]) for row in others
            )


def test_an_experiment_is_one(tmp_path, monkeypatch, capsys):
    """A run with other steps or flags under the same name neither joins the others nor takes the place of one."""
    monkeypatch.setattr(collect, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()

    def run(name, seed, steps=500, **arguments):
        (tmp_path / name).mkdir()
        (tmp_path / name / "args.json").write_text("{}")
        found = dict(
            script="ppo",
            env_id="CartPole-v1",
            exp_name="ppo",
            seed=seed,
            total_timesteps=steps,
        )
        return found | dict(finished=True, started=name, arguments=arguments)

    found = {
        "1": run("1", 1),
        "2": run("2", 2, cuda=False),
        "3": run("3", 3, steps=100),
        "4": run("4", 1, gamma=0.9),
    }
    monkeypatch.setattr(collect, "read_run", lambda folder: (found[folder.name], []))
    collect.collect(tmp_path, partial=False)
    kept = json.loads((tmp_path / "results/runs.json").read_text())
    assert [run["started"] for run in kept] == ["1", "2"]
    assert capsys.readouterr().out.count("left out") == 2


def test_a_run_whose_arguments_are_cut_off(tmp_path, monkeypatch, capsys):
    """Collecting beside a run that begins at this moment: it is left out, the others are collected."""
    monkeypatch.setattr(collect, "RESULTS", tmp_path / "results")
    for name in ("results", "1"):
        (tmp_path / name).mkdir()
    (tmp_path / "1/args.json").write_text('{\n  "env_id": "CartPole-v1",\n  "se')
    collect.collect(tmp_path, partial=False)
    assert "left out, a broken file" in capsys.readouterr().out
    assert json.loads((tmp_path / "results/runs.json").read_text()) == []


def test_an_evaluation_that_is_not_on_the_disk_yet(tmp_path):
    """eval.json is written before TensorBoard's file: a run that was killed between them is read all the same."""
    args = dict(
        env_id="CartPole-v1",
        exp_name="ppo",
        seed=1,
        total_timesteps=500,
    )
    (tmp_path / "args.json").write_text(json.dumps(args))
    (tmp_path / "eval.json").write_text(
        json.dumps(
            dict(
                global_step=400,
                mean=1.0,
                std=0.0,
                returns=[1.0],
            )
        )
    )
    (tmp_path / "machine.json").write_text(
        json.dumps(dict(hardware="a machine", versions={}, commit="abc"))
    )
    (tmp_path / "ppo.py").write_text((ROOT / "cleanrl_lite/ppo.py").read_text())
    with SummaryWriter(tmp_path) as writer:
        for tag in ("charts/episodic_return", "charts/episodic_length", "charts/SPS"):
            writer.add_scalar(tag, 20.0, 300)
    run, rows = collect.read_run(tmp_path)
    assert (run["finished"], run["global_step"], run["eval_mean"], len(rows)) == (
        False,
        300,
        1.0,
        1,
    )
    assert (run["hardware"], run["commit"]) == ("a machine", "abc")


def test_a_finished_run_that_was_resumed_for_longer_and_stopped(tmp_path):
    """Its evaluation is that of the shorter run."""
    run_dir, _ = helpers.train("ppo", tmp_path)
    run, _ = collect.read_run(run_dir)
    assert run["finished"]
    args = helpers.read_json(run_dir / "args.json")
    longer = args | {"total_timesteps": 2 * args["total_timesteps"]}  # as a resumed run writes it
    (run_dir / "args.json").write_text(json.dumps(longer))
    again, _ = collect.read_run(run_dir)
    assert again["total_timesteps"] == longer["total_timesteps"]
    assert not again["finished"]


def test_speeds_of_a_gpu_are_published(tmp_path, monkeypatch):
    """New rows replace the old ones, with the machine and the commit that they came from."""
    published = tmp_path / "cuda.json"
    row = {
        "script": "sac",
        "mode": "graph",
        "flags": "--bf16",
        "sps": 10.0,
    }
    made = {
        "command": "x",
        "hardware": "a GPU",
        "versions": {},
        "commit": "abc",
    }
    published.write_text(
        json.dumps(
            {
                **made,
                "note": "old",
                "rows": [row],
                "check": {},
            }
        )
    )
    monkeypatch.setattr(cuda_check, "PUBLISHED", published)
    cuda_check.publish(tmp_path / "speed.json")
    assert "old" in published.with_suffix(".md").read_text()
    new = {**made, "commit": "def", "rows": [{**row, "sps": 20.0}]}
    (tmp_path / "speed.json").write_text(json.dumps(new))
    cuda_check.publish(tmp_path / "speed.json")
    assert helpers.read_json(published) == {**new, "check": {}}
    text = published.with_suffix(".md").read_text()
    assert "| 20 |" in text
    assert "def" in text
    assert "old" not in text


def test_outside_of_git(monkeypatch):
    """From an archive, or where git is not installed, commits are not recorded."""
    monkeypatch.setenv("PATH", "")
    assert shared.commit() is None
    assert "at commit not recorded, on:" in shared.made_by("x", ["a machine"], [None])


@pytest.mark.parametrize(
    "tool, words, message",
    [
        (speed, ["--modes", "eagr"], ", got eagr"),
        (collect, ["nowhere"], "there is no folder nowhere"),
        (collect, ["nowhere", "--stamp"], "there is no folder nowhere"),
        (same_runs, [".", "pp"], "there is no pp. Scripts: ppo, "),
        (torture, ["--scripts", "ppo,pp"], ", got pp"),
    ],
)
def test_wrong_input_of_a_tool(tool, words, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tool", *words])
    with pytest.raises(SystemExit) as end:
        tool.main()
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_a_default_that_has_changed_since(tmp_path):
    """A run is collected with today's script beside it: a default that was another one is a flag."""
    run_dir, _ = helpers.train("ppo", tmp_path, gamma=0.9, total_timesteps=512)
    script = run_dir / "ppo.py"
    script.write_text(script.read_text().replace("gamma: float = 0.99", "gamma: float = 0.9"))
    assert collect.read_run(run_dir)[0]["arguments"]["gamma"] == 0.9
    script.rename(run_dir / "my_idea.py")  # a copy, which has no script of today
    assert "gamma" not in collect.read_run(run_dir)[0]["arguments"]


def test_the_commit_of_a_run(tmp_path, monkeypatch):
    """In eval.json as git described it when the run began; none without git."""
    utils.git_commit.cache_clear()
    run_dir, _ = helpers.train("ppo", tmp_path / "a")
    assert re.fullmatch(
        r"[0-9a-f]{7,}(-dirty)?", helpers.read_json(run_dir / "eval.json")["commit"] or "0000000"
    )
    monkeypatch.setenv("PATH", "/nowhere")
    utils.git_commit.cache_clear()
    run_dir, _ = helpers.train("ppo", tmp_path / "b")
    assert helpers.read_json(run_dir / "eval.json")["commit"] is None
    found = iter(["old", "new"])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=next(found)))
    utils.git_commit.cache_clear()
    run_dir, _ = helpers.train("ppo", tmp_path / "c", eval_every=1)
    assert helpers.read_json(run_dir / "eval.json")["commit"] == "old"
    utils.git_commit.cache_clear()


@pytest.mark.slow
def test_two_checkouts(tmp_path):
    """benchmark/measure/same_runs.py: this checkout trains as itself, and not as one with another discount."""
    for name in ("benchmark", "cleanrl_lite"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("results", "runs")
        )
    words = [sys.executable, "-m", "benchmark.measure.same_runs", tmp_path, "ppo"]
    assert "curves and tensors: equal" in helpers.run(words, cwd=ROOT).stdout
    script = tmp_path / "cleanrl_lite/ppo.py"
    script.write_text(script.read_text().replace("gamma: float = 0.99", "gamma: float = 0.9"))
    done = helpers.run(words, cwd=ROOT)
    assert done.returncode == 1
    assert "DIFFER: " in done.stdout
