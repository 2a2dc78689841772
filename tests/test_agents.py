"""The trained agents of benchmark/results/agents play as well as their recorded evaluations say."""

import shutil

import pytest

from tests import helpers

AGENTS = helpers.ROOT / "benchmark" / "results" / "agents"


@pytest.mark.parametrize("name", sorted(path.name for path in AGENTS.iterdir()))
def test_a_trained_agent(name, tmp_path):
    """The same seeds on another machine may give other digits, but not another mean."""
    folder, recorded = tmp_path / name, helpers.read_json(AGENTS / name / "eval.json")
    # of README's commands
    shutil.copytree(AGENTS / name, folder, ignore=shutil.ignore_patterns("eval_*"))
    (script,) = (path.stem for path in folder.glob("*.py"))
    assert helpers.command_line(script, ["--evaluate", folder]) == 0
    (record,) = (helpers.read_json(path) for path in folder.glob("eval_*.json"))
    assert (
        record["episodes"] == recorded["episodes"] == 10
        and record["global_step"] == recorded["global_step"]
    )
    assert abs(record["mean"] - recorded["mean"]) <= recorded["std"]


def test_agents_are_small():
    assert sum(path.stat().st_size for path in AGENTS.rglob("*") if path.is_file()) < 12e6
