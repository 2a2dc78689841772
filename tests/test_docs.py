"""What the README and the guides show works."""

import re
import shlex
import shutil
import sys

import gymnasium as gym
import pytest
import tyro

from tests import helpers
from tests.helpers import ROOT, SOURCE, run

PAGES = [
    "README.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
]


def commands(page):
    """(script, words) of every command of a script in the page's shell blocks."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
        for script, words in re.findall(
            r"(?:python|cleanrl_lite|torchrun .*) (?:cleanrl_lite/)?(\w+)\.py(.*)", block
        ):
            if script in helpers.SCRIPTS:
                yield script, shlex.split(re.split(r"[&;|]", words)[0].rstrip("\"'"), comments=True)


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_flags_that_exist(page):
    for script, words in commands(page):
        values = ["1" if word.startswith("$") else word for word in words]
        tyro.cli(helpers.module(script).Args, args=values)


def test_these_are_the_commands():
    """The pattern finds them."""
    assert len([*commands("README.md")]) >= 6
    assert sum(len([*commands(page)]) for page in PAGES) > 30


@pytest.mark.slow
def test_the_commands_of_the_readme(tmp_path):
    """Its section A run, line by line, on a run of some seconds; and a copy of a script."""
    python = f"{shlex.quote(sys.executable)} "
    (tmp_path / "cleanrl_lite").symlink_to(SOURCE)
    shutil.copytree(ROOT / "benchmark/results/agents", tmp_path / "benchmark/results/agents")
    small = (
        "--no-compile --num-steps 128 --num-minibatches 4 --update-epochs 1 --total-timesteps 256"
    )
    block = re.search(r"```sh\n(run=.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    block = block.replace("2000000", "512").replace("--eval-episodes 100", "--eval-episodes 2")
    lines = [
        "set -e",
        f"python cleanrl_lite/ppo_continuous.py --env-id Hopper-v4 {small} --eval-episodes 1",
        block,
    ]
    lines += [
        f"cp cleanrl_lite/ppo_continuous.py my_idea.py && python my_idea.py --env-id Walker2d-v4 {small}"
    ]
    lines = [line.replace("python ", python) for line in lines]
    done = run(["bash", "-c", "\n".join(lines)], cwd=tmp_path, timeout=400)
    assert done.returncode == 0, done.stderr
    run_dir = next((tmp_path / "runs").glob("Hopper-v4__ppo_continuous__1__*"))
    assert (
        helpers.load(run_dir)["global_step"] == 512 and len(list(run_dir.glob("eval_*.json"))) == 1
    )
    assert list((tmp_path / "runs").glob("Walker2d-v4__my_idea__1__*/my_idea.py"))


@pytest.mark.parametrize(
    "script",
    [
        *helpers.MLP_SCRIPTS,
        *helpers.GOAL_SCRIPTS,
        *helpers.ENVPOOL_SCRIPTS,
        *helpers.IMAGE_SCRIPTS,
        "ppo_multiagent",
    ]
    + ["ppo_continuous_asymmetric", "ppo_hybrid", "ppo_selfplay"]
    + [pytest.param(script, marks=pytest.mark.slow) for script in helpers.ATARI_SCRIPTS],
)
def test_a_trained_agent_from_python(script, tmp_path, monkeypatch):
    """docs/guides/agents.py: the loaded agent plays as the run's evaluation did."""
    monkeypatch.syspath_prepend(ROOT / "docs/guides")
    import agents

    run_dir, returns = helpers.train(script, tmp_path)
    agent, env = agents.load(run_dir)
    env = (
        gym.wrappers.TimeLimit(env, 40) if script in helpers.ATARI_SCRIPTS else env
    )  # as helpers.main does
    assert agents.play(agent, env, seed=10_001) == pytest.approx(returns[0])
