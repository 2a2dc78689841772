"""The trained agents of benchmark/results/agents play as well as their recorded evaluations say."""

import shutil

import gymnasium as gym
import pytest
import torch

from cleanrl_lite.tools import agents
from tests import helpers

AGENTS = helpers.ROOT / "benchmark" / "results" / "agents"
RANDOM = helpers.read_json(AGENTS.parent / "random.json")  # returns of random actions
PROBE = "tests.probe_envs:ProbeDictObsDiscrete-v0"


NAMES = sorted(path.name for path in AGENTS.iterdir() if path.is_dir())
FIRST = ["Acrobot-v1__ppo"]  # before every commit
PLAYED = helpers.MLP_SCRIPTS + helpers.ENVPOOL_SCRIPTS + helpers.IMAGE_SCRIPTS
PLAYED += helpers.GOAL_SCRIPTS + helpers.ATARI_SCRIPTS
PLAYED += ["ppo_multiagent", "ppo_continuous_asymmetric", "ppo_hybrid", "ppo_selfplay"]


@pytest.mark.parametrize("name", helpers.others_slow(NAMES, FIRST))
def test_a_trained_agent(name, tmp_path):
    """The same seeds on another machine may give other digits, but not another mean: both are
    means of ten episodes, whose difference has a deviation of 0.45 of an episode's."""
    folder = tmp_path / name
    recorded = helpers.read_json(AGENTS / name / "eval.json")
    shutil.copytree(AGENTS / name, folder, ignore=shutil.ignore_patterns("eval_*"))
    words = ["--evaluate", folder]
    assert helpers.command_line(name.split("__")[1].removesuffix("_200k"), words) == 0
    (evaluation,) = folder.glob("eval_*.json")
    record = helpers.read_json(evaluation)
    assert len(record["returns"]) == 10
    assert len(recorded["returns"]) == 10
    assert record["global_step"] == recorded["global_step"]
    difference = record["mean"] - recorded["mean"]
    assert abs(difference) <= 2 * recorded["std"]
    random = RANDOM.get(name.split("__")[0])
    if random is not None:  # far from where learning begins, however large the deviation
        expected = recorded["mean"] - random
        assert record["mean"] - random > 0.3 * expected


@pytest.mark.parametrize("script", helpers.others_slow(PLAYED, ["ppo"]))
def test_a_trained_agent_from_python(script, fake_envpool, tmp_path):
    """cleanrl_lite/tools/agents.py: the loaded agent plays as the run's evaluation did."""
    run_dir, returns = helpers.train(script, tmp_path)
    agent, env = agents.load(run_dir, env_id=helpers.load(run_dir)["args"]["env_id"])
    if script in helpers.ATARI_SCRIPTS:  # as helpers.main does
        env = gym.wrappers.TimeLimit(env, 40)
    assert agents.play(agent, env, seed=10_001) == pytest.approx(returns[0])


def test_only_what_is_named_is_imported(tmp_path):
    """A run directory may be a stranger's: neither its script runs, nor the module of its id. A
    copy that kept an installed script's name is not taken for that one."""
    run_dir, returns = helpers.train("ppo", tmp_path, env_id=PROBE)
    with pytest.raises(SystemExit, match=f"To allow it: --env-id {PROBE}"):
        agents.load(run_dir, env_id=None)  # as from the shell
    env_id = {"env_id": PROBE}
    with open(run_dir / "ppo.py", "a") as copy:
        copy.write(f"\nopen({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(SystemExit, match=f"another ppo.py: name the script, such as {run_dir}"):
        agents.load(run_dir, **env_id)
    saved = helpers.load(run_dir)
    torch.save({**saved, "script": "my_idea"}, run_dir / "checkpoint.pt")
    (run_dir / "ppo.py").rename(run_dir / "my_idea.py")
    with pytest.raises(SystemExit, match="another my_idea.py"):
        agents.load(run_dir, **env_id)
    assert not (tmp_path / "ran").exists()
    agent, env = agents.load(run_dir, run_dir / "my_idea.py", **env_id)
    assert (tmp_path / "ran").exists()
    assert agents.play(agent, env, seed=10_001) == pytest.approx(returns[0])
