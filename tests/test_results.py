"""The published numbers are those of the files in benchmark/results/."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tyro
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from benchmark import collect, launch, overview, readme, speed_cleanrl
from tests import helpers
from tests.helpers import ROOT, SCRIPTS

RUNS = json.loads((ROOT / "benchmark/results/runs.json").read_text())


def test_readme_is_what_the_files_give():
    text = (ROOT / "README.md").read_text()
    assert text == readme.render(text), "run `make results`"
    assert "| ppo | CartPole-v1 |" in text


def test_tables_are_what_the_files_give():
    for script in {run["script"] for run in RUNS}:
        written = (ROOT / f"benchmark/results/{script}.md").read_text()
        assert written == collect.table(script), "run `make results`"


def test_the_speed_beside_cleanrl_is_what_the_pairs_give():
    record = helpers.read_json(ROOT / "benchmark" / "results" / "speed_cleanrl.json")
    assert speed_cleanrl.table(record) == (ROOT / "benchmark" / "results" / "speed_cleanrl.md").read_text()


def test_runs_are_what_their_episodes_give():
    for run in RUNS:
        name = f"{run['script']}__{run['env_id']}__{run['exp_name']}__{run['seed']}.csv.gz"
        returns = np.loadtxt(ROOT / "benchmark/results/episodes" / name, delimiter=",", skiprows=1, ndmin=2)[:, 1]
        assert run["last_100_mean"] == pytest.approx(returns[-100:].mean(), rel=1e-3, abs=0.05)


def test_expected_results_in_the_docstrings_are_the_tables(script):
    """`Hopper-v4 2,687` in the field Expected is the mean of that environment's runs, the finished ones if there are
    any; `with --bf16`: of those of that name, `2 seeds` says of how many."""
    expected = re.search(r"Expected: (.*?)\nDetails:", (ROOT / f"cleanrl_lite/{script}.py").read_text(), re.S)[1]
    claims = re.findall(r"([\w/]+-v\d+) (-?[\d,.]*\d)(?: with (--bf16) \((\d+) seeds?)?", expected)
    assert claims
    for env_id, mean, bf16, seeds in claims:
        if bf16:
            runs = [run for run in RUNS if (run["env_id"], run["exp_name"]) == (env_id, f"{script}_bf16")]
            runs = [run for run in runs if run["finished"]]
            assert len(runs) == int(seeds)
            assert float(mean.replace(",", "")) == pytest.approx(np.mean([r["last_100_mean"] for r in runs]), rel=1e-3)
            continue
        runs = [run for run in RUNS if (run["script"], run["env_id"], run["exp_name"]) == (script, env_id, script)]
        runs = runs or [run for run in RUNS if (run["script"], run["env_id"]) == (script, env_id)]
        runs = [run for run in runs if run["finished"]] or runs
        assert float(mean.replace(",", "")) == pytest.approx(np.mean([r["last_100_mean"] for r in runs]), rel=1e-2)


def test_bfloat16_in_the_docs():
    """The tables of last 20 training episodes at some points, by seed, are what the kept episodes give."""
    names = {"ddpg": {"float32": "ddpg_200k__1 ddpg_200k__2 ddpg_200k__3"}, "td3": {}}
    names["ddpg"]["bfloat16"] = "ddpg_bf16__1 ddpg_bf16_200k__2 ddpg_bf16_200k__3 ddpg_bf16_200k__4"
    names["td3"]["float32"] = "td3__1 td3__2 td3__3 td3__4"
    names["td3"]["bfloat16"] = "td3_bf16__1 td3_bf16__2 td3_bf16__3"
    for script, runs in names.items():
        page = (ROOT / f"docs/{script}.md").read_text()
        points = re.search(r"^\| \| ([\d,]+) steps \| (.*) \|$", page, re.M)
        points = [int(point.replace(",", "")) for point in (points[1], *points[2].split(" | "))]
        for name, parts in runs.items():
            means = [[] for _ in points]
            for part in parts.split():
                path = ROOT / f"benchmark/results/episodes/{script}__HalfCheetah-v4__{part}.csv.gz"
                steps, returns = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(0, 1), unpack=True)
                for at, row in zip(points, means, strict=True):
                    if at < steps[-1] + 1000:  # as far as the run came
                        row.append(f"{returns[steps <= at][-20:].mean():,.0f}")
            cells = re.search(rf"^\| {name}, seeds .*? \| (.*) \|$", page, re.M)[1].split(" | ")
            assert cells == ["; ".join(row) for row in means]


def test_every_script_has_results_and_a_benchmark():
    assert {run["script"] for run in RUNS} == set(SCRIPTS)
    assert all((ROOT / f"benchmark/{script}.sh").exists() for script in SCRIPTS)


def test_the_overview_is_what_the_files_give():
    assert (ROOT / "benchmark/results/overview.md").read_text() == overview.page(), "run `make results`"


def test_a_published_figure_of_the_same_steps_comes_first():
    run = dict(script="ppo", env_id="CartPole-v1", exp_name="ppo", seed=1, total_timesteps=100_000)
    found = collect.published(run)
    assert (found["training"]["project"], found["training"]["total_timesteps"]) == ("CleanRL", "500000")
    assert (found["evaluation"]["project"], found["evaluation"]["total_timesteps"]) == ("rl-baselines3-zoo", "100000")
    assert collect.reported(found["training"], 100_000) == "490.0 ± 6.1 at 500k"
    assert collect.reported(found["evaluation"], 100_000) == "500.0 ± 0.0"


@pytest.mark.parametrize(
    "ours, verdict",
    [([10, 11, 12], "yes"), ([9, 9.5, 10], "open"), ([5, 5.1, 4.9], "no"), ([9.9], "no"), ([10], "yes")],
)
def test_at_or_above(ours, verdict):
    """Two standard errors are 1.5 and more here: 9.5 could be as good as 10 ± 1, 5 is not; of one run nobody knows."""
    assert overview.judge(ours, dict(mean="10", std="1", seeds="3")) == verdict


def test_normalised_scores():
    """CleanRL's mean is 1, a random policy's 0; as many seeds of every environment; MountainCar, where nothing is
    learned, and runs with flags or fewer seeds stay out."""
    env_ids, scores = overview.normalised("ppo_continuous")
    assert set(env_ids) >= {"HalfCheetah-v4", "Hopper-v4"} and scores.shape[1] == len(env_ids)
    zero = json.loads((ROOT / "benchmark/results/random.json").read_text())["Hopper-v4"]
    hopper = [run for run in RUNS if (run["exp_name"], run["env_id"]) == ("ppo_continuous", "Hopper-v4")]
    expected = [(run["last_100_mean"] - zero) / (2382.86 - zero) for run in hopper if run["seed"] <= len(scores)]
    assert scores[:, env_ids.index("Hopper-v4")] == pytest.approx(expected)
    assert not any("MountainCar-v0" in overview.normalised(script)[0] for script in ("ppo", "dqn", "c51"))


def test_the_interval_is_stratified():
    """Environments at different heights, seeds that agree: drawing seeds within each environment, nothing varies."""
    scores = np.tile([0.0, 1.0, 2.0, 3.0], (5, 1))
    middle, low, high = overview.intervals(scores, lambda x: np.array([x.mean()]), reps=50)
    assert middle == low == high == pytest.approx(1.5)
    middle, low, high = overview.intervals(scores + np.arange(5)[:, None], lambda x: np.array([x.mean()]), reps=50)
    assert 2 < low < middle < high < 5 and middle == pytest.approx(3.5)
    assert overview.aggregates() == overview.aggregates()


def test_the_clock_stands_still_between_the_parts_of_a_run(tmp_path):
    """Two event files: 100 to 160 s, and 1000 to 1030 s on the clock on the wall."""
    for first, last in ((100, 160), (1000, 1030)):
        with open(tmp_path / f"events.out.tfevents.{first:010}", "wb") as file:
            for at in (first, last):
                RecordWriter(file).write(Event(wall_time=at, step=1).SerializeToString())
    seconds = collect.clock(tmp_path)
    assert [float(seconds(at)) for at in (100, 130, 160, 500, 1000, 1030)] == [0, 30, 60, 60, 60, 90]


@pytest.mark.parametrize("name", [*SCRIPTS, "fast"])
def test_the_commands_of_a_benchmark(name):
    """Every command is one that its script accepts, and no two would share a run directory."""
    shell = helpers.run(["sh", f"benchmark/{name}.sh"], cwd=ROOT, RUN="cat")
    assert shell.returncode == 0 and not shell.stderr
    commands = list(launch.piped(shell.stdout.splitlines(), []))
    assert len(launch.jobs(commands, "runs/benchmark")) == len(commands) > 5
    for command in commands:
        module = helpers.module(Path(command[0]).stem)
        args = tyro.cli(module.Args, args=command[1:])
        environments = {"--env-id": args.env_id, "--seed": str(args.seed)}
        assert all(launch.value(command, flag, None) == value for flag, value in environments.items())


def test_a_benchmark_runs(tmp_path):
    """ENVS, SEEDS, JOBS, more flags, and another launcher: what benchmark/README.md offers."""
    words = f"{sys.executable} -m benchmark.launch --runs-dir {tmp_path} --jobs 1"
    flags = "--total-timesteps 400 --learning-starts 100 --no-compile --eval-episodes 1".split()
    done = helpers.run(["sh", "benchmark/dqn.sh", *flags], cwd=ROOT, ENVS="CartPole-v1", SEEDS="3", RUN=words)
    assert done.returncode == 0, done.stdout
    (found,) = [collect.read_run(path.parent)[0] for path in tmp_path.glob("*/args.json")]
    assert (found["script"], found["env_id"], found["seed"], found["global_step"]) == ("dqn", "CartPole-v1", 3, 400)
    assert found["finished"] and found["wall_seconds"] > 0
