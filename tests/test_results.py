"""The published numbers are those of the files in benchmark/results/."""

import json
import re

import numpy as np
import pytest

from benchmark import collect, readme
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


def test_runs_are_what_their_episodes_give():
    for run in RUNS:
        name = f"{run['script']}__{run['env_id']}__{run['exp_name']}__{run['seed']}.csv.gz"
        returns = np.loadtxt(ROOT / "benchmark/results/episodes" / name, delimiter=",", skiprows=1, ndmin=2)[:, 1]
        assert run["last_100_mean"] == pytest.approx(returns[-100:].mean(), rel=1e-3, abs=0.05)


def test_expected_results_in_the_docstrings_are_the_tables(script):
    """`Hopper-v4 2,687` in the field Expected is the mean of that environment's runs."""
    expected = re.search(r"Expected: (.*?)\nDetails:", (ROOT / f"cleanrl_lite/{script}.py").read_text(), re.S)[1]
    claims = re.findall(r"([\w/]+-v\d+) (-?[\d,.]*\d)", expected)
    assert claims
    for env_id, mean in claims:
        runs = [run for run in RUNS if (run["script"], run["env_id"], run["exp_name"]) == (script, env_id, script)]
        runs = runs or [run for run in RUNS if (run["script"], run["env_id"]) == (script, env_id)]
        assert float(mean.replace(",", "")) == pytest.approx(np.mean([r["last_100_mean"] for r in runs]), rel=1e-2)


def test_every_script_has_results_and_a_benchmark():
    assert {run["script"] for run in RUNS} == set(SCRIPTS)
    assert all((ROOT / f"benchmark/{script}.sh").exists() for script in SCRIPTS)
