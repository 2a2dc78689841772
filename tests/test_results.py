"""The published tables are those of the files in benchmark/results/."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import tyro

from benchmark.launch import launch
from benchmark.measure import cuda_check, speed, time_to_return, torture
from benchmark.publish import collect, readme, tables
from cleanrl_lite.tools import compare
from tests import helpers
from tests.helpers import ROOT

RESULTS = ROOT / "benchmark/results"
RUNS = json.loads((RESULTS / "runs.json").read_text())
EXPERIMENTS = sorted(path.stem for path in (ROOT / "benchmark/experiments").glob("*.sh"))
EXPERIMENTS.remove("gpu")  # it measures, too
EXPERIMENTS.remove("residual_critics")  # these make changed copies
EXPERIMENTS.remove("minatar")


def written(name):
    return (RESULTS / f"{name}.md").read_text()


# === tables are made from files
def test_make_results_changes_nothing(monkeypatch):
    """Where this fails, run `make results`."""
    monkeypatch.setattr(collect, "recorded", functools.cache(collect.recorded))  # read once
    for name, text in tables.all_tables().items():
        assert written(name) == f"{text}\n"
    records = map(helpers.read_json, sorted((RESULTS / "speed").glob("*.json")))
    assert written("speed") == speed.table([*records])
    runs = time_to_return.read(time_to_return.FILE)
    assert written("time_to_return") == time_to_return.table(runs)
    assert written("torture") == torture.table(helpers.read_json(torture.RECORD))
    assert written("cuda") == cuda_check.table(helpers.read_json(cuda_check.PUBLISHED))
    text = (ROOT / "README.md").read_text()
    assert text == readme.render(text)


@pytest.mark.slow
def test_runs_are_what_their_episodes_give():
    for run in RUNS:
        returns = collect.episodes(run)[:, 1]
        assert run["last_100_mean"] == pytest.approx(returns[-100:].mean(), abs=1e-6)
        assert run["episodes"] == len(returns)


# === beside CleanRL's figures
def test_the_p_value_is_that_of_welchs_test():
    """From mean, deviation over n and number of seeds, as scipy has it for both sides' values."""
    ours = [1.0, 2.0, 4.0]
    theirs = np.array([3.0, 5.0, 9.0])
    known = {"mean": theirs.mean(), "std": theirs.std(), "seeds": 3}
    assert tables.judge(ours, known)[1] == pytest.approx(compare.beside(ours, theirs)["p"])
    never = {"mean": "-200.00", "std": "0.00", "seeds": "3"}  # MountainCar: there is no t
    assert tables.judge([-200.0] * 5, never)[0] == compare.SAME
    assert tables.judge([-201.0] * 5, never)[0] == compare.BELOW
    assert tables.judge([-199.0] * 5, never)[0] == compare.ABOVE


def test_what_has_no_verdict():
    """Fewer than three seeds, other flags, unfinished."""
    for (script, _, name, finished), runs in collect.groups().items():
        if len(runs) < 3 or tables.flags(runs) or not finished or name != script:
            assert tables.verdict(runs) == ("", None)


# === collecting
def test_a_run_is_read(tmp_path):
    """Finished, then resumed for longer: its evaluation is that of the shorter run."""
    run_dir, returns = helpers.train("ppo", tmp_path, gamma=0.9)
    run, rows = collect.read_run(run_dir)
    assert run["finished"]
    assert run["eval_mean"] == pytest.approx(np.mean(returns))
    assert run["episodes"] == len(rows)
    assert run["last_100_mean"] == pytest.approx(np.mean([float(row[1]) for row in rows[-100:]]))
    assert rows[-1][0] <= run["global_step"] == run["total_timesteps"]
    assert 0 < float(rows[-1][3]) <= run["wall_seconds"] + 0.05  # it has one digit
    assert run["arguments"]["gamma"] == 0.9
    args = helpers.read_json(run_dir / "args.json")
    args["total_timesteps"] *= 2  # as a resumed run writes it
    (run_dir / "args.json").write_text(json.dumps(args))
    assert not collect.read_run(run_dir)[0]["finished"]


def test_an_experiment_is_one(tmp_path, monkeypatch, capsys):
    """Under the same name, a run with other steps or flags neither joins nor replaces the others.

    A run whose arguments are cut off, because it begins at this moment, is left out.
    """
    monkeypatch.setattr(collect, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    cartpole = {"script": "ppo", "env_id": "CartPole-v1", "exp_name": "ppo", "finished": True}
    found = {
        "1": {"seed": 1, "total_timesteps": 500, "arguments": {}},
        "2": {"seed": 2, "total_timesteps": 500, "arguments": {"cuda": False}},
        "3": {"seed": 3, "total_timesteps": 100, "arguments": {}},
        "4": {"seed": 1, "total_timesteps": 500, "arguments": {"gamma": 0.9}},
    }

    def read_run(folder):
        args = json.loads((folder / "args.json").read_text())
        return cartpole | found[folder.name] | {"started": folder.name} | args, []

    monkeypatch.setattr(collect, "read_run", read_run)
    for name in [*found, "5"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "args.json").write_text("{}" if name in found else '{"env_')
    collect.collect(tmp_path, partial=False)
    kept = json.loads((tmp_path / "results/runs.json").read_text())
    assert [run["started"] for run in kept] == ["1", "2"]
    told = capsys.readouterr().out
    assert told.count("left out") == 3
    assert told.count("a broken file") == 1


# === the commands
def test_the_commands_of_the_published_runs(monkeypatch, capsys):
    """Every run in the tables has one that its script accepts, with the arguments it had."""
    monkeypatch.setattr("sys.argv", ["collect", "--commands"])
    collect.main()
    lines = capsys.readouterr().out
    for copy, script in collect.COPIES.items():  # which another command makes
        lines = lines.replace(f"runs/{copy}.py", f"cleanrl_lite/{script}.py")
    commands = list(launch.piped(lines.splitlines(), []))
    assert len(launch.jobs(commands, "runs/benchmark")) == len(commands) == len(RUNS)
    seen = set()
    for command, run in zip(commands, RUNS, strict=True):
        if collect.key(run)[:3] in seen:
            continue
        seen.add(collect.key(run)[:3])
        args = vars(tyro.cli(helpers.module(Path(command[0]).stem).Args, args=command[1:]))
        total, given = collect.experiment(run)
        given |= {name: run[name] for name in ("env_id", "exp_name", "seed")}
        given["total_timesteps"] = total
        assert {name: args[name] for name in given} == given


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_commands_of_an_experiment(name):
    """Every command is one that its script accepts, and no two would share a run directory."""
    shell = helpers.run(["sh", f"benchmark/experiments/{name}.sh"], cwd=ROOT, RUN="cat")
    assert shell.returncode == 0
    assert not shell.stderr
    commands = list(launch.piped(shell.stdout.splitlines(), []))
    assert len(launch.jobs(commands, "runs/benchmark")) == len(commands) >= 3
    for command in commands:
        tyro.cli(helpers.module(Path(command[0]).stem).Args, args=command[1:])
