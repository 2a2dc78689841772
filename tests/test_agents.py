"""The trained agents of benchmark/results/agents play as well as their recorded evaluations say."""

import shutil

import gymnasium as gym
import pytest
import torch

from cleanrl_lite.tools import agents, convert
from tests import helpers

AGENTS = helpers.ROOT / "benchmark" / "results" / "agents"
RANDOM = helpers.read_json(AGENTS.parent / "random.json")  # returns of random actions


NAMES = [path.name for path in AGENTS.iterdir() if path.is_dir()]
NAMES.sort()
FIRST = ["Hopper-v4__ppo_continuous_200k"]  # before every commit


def only_evaluation(folder):
    (path,) = folder.glob("eval_*.json")
    return helpers.read_json(path)


@pytest.mark.parametrize("name", helpers.others_slow(NAMES, FIRST))
def test_a_trained_agent(name, tmp_path):
    """The same seeds on another machine may give other digits, but not another mean: both are
    means of ten episodes, whose difference has a deviation of 0.45 of an episode's."""
    folder = tmp_path / name
    recorded = helpers.read_json(AGENTS / name / "eval.json")
    # of README's commands
    evaluations = shutil.ignore_patterns("eval_*")
    shutil.copytree(AGENTS / name, folder, ignore=evaluations)
    words = ["--evaluate", folder]
    assert helpers.command_line(name.split("__")[1].removesuffix("_200k"), words) == 0
    record = only_evaluation(folder)
    assert len(record["returns"]) == 10
    assert len(recorded["returns"]) == 10
    assert record["global_step"] == recorded["global_step"]
    difference = record["mean"] - recorded["mean"]
    assert abs(difference) <= 2 * recorded["std"]
    random = RANDOM.get(record["env_id"])
    if random is not None:  # far from where learning begins, however large the deviation
        expected = recorded["mean"] - random
        assert record["mean"] - random > 0.3 * expected


def test_agents_are_small():
    files = [path for path in AGENTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 12e6


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_of_an_older_version(whole, tmp_path):
    """It plays as before, cannot be resumed, and the old file stays where it held more."""
    run_dir, returns = helpers.train("td3", tmp_path)
    path = run_dir / "checkpoint.pt"
    saved = torch.load(path, weights_only=True)
    old_names = {"fc1": "0", "fc2": "2", "fc3": "4"}
    old = {}
    for name, weight in saved["agent"].items():
        for new_name, old_name in old_names.items():
            name = name.replace(new_name, old_name)
        old[name] = weight
    names = saved.keys() if whole else convert.KEPT
    kept = {name: saved[name] for name in names}
    kept["agent"] = old
    torch.save(kept, path)
    assert convert.convert(path)
    assert not convert.convert(path)
    assert (run_dir / "checkpoint_old.pt").exists() == whole
    assert helpers.command_line("td3", ["--evaluate", run_dir]) == 0
    assert only_evaluation(run_dir)["returns"] == returns
    assert helpers.command_line("td3", ["--resume", run_dir]) != 0


@pytest.mark.parametrize(
    "script",
    [
        *helpers.variants_slow(helpers.MLP_SCRIPTS),
        *helpers.GOAL_SCRIPTS,
        *helpers.ENVPOOL_SCRIPTS,
        *helpers.IMAGE_SCRIPTS,
        *["ppo_multiagent", "ppo_continuous_asymmetric", "ppo_hybrid", "ppo_selfplay"],
        *[pytest.param(script, marks=pytest.mark.slow) for script in helpers.ATARI_SCRIPTS],
    ],
)
def test_a_trained_agent_from_python(script, fake_envpool, tmp_path):
    """cleanrl_lite/tools/agents.py: the loaded agent plays as the run's evaluation did."""
    run_dir, returns = helpers.train(script, tmp_path)
    agent, env = agents.load(run_dir)
    if script in helpers.ATARI_SCRIPTS:  # as helpers.main does
        env = gym.wrappers.TimeLimit(env, 40)
    assert agents.play(agent, env, seed=10_001) == pytest.approx(returns[0])
