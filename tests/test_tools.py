"""cleanrl_lite/tools: from any folder, with a help of one screen; no script needs them."""

import ast
import importlib
import re
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from cleanrl_lite.tools import export_onnx, runs
from tests import helpers
from tests.fake_runs import write_run

TOOLS = ["agents", "compare", "export_onnx", "hub", "notebook", "plot"]


def test_no_script_imports_a_tool_and_no_tool_the_repository():
    for text in helpers.TEXT.values():
        assert not re.search(r"(import|from) .*\btools\b", text)
    for path in (helpers.SOURCE / "tools").glob("*.py"):
        imports = re.findall(r"^ *(?:from|import) (\w+)", path.read_text(), re.M)
        assert not {"benchmark", "tests", "docs", "stable_baselines3"} & {*imports}, path.name


@pytest.mark.parametrize("name", TOOLS)
def test_help_is_a_screen_with_an_example(name, monkeypatch, capsys):
    if name == "notebook":
        pytest.importorskip("nbformat")
    monkeypatch.setenv("COLUMNS", "100")
    tool = importlib.import_module(f"cleanrl_lite.tools.{name}")
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        tool.main()
    text = capsys.readouterr().out
    assert f"    python -m cleanrl_lite.tools.{name} " in text
    assert 10 < text.count("\n") <= 48
    assert max(map(len, text.split("\n"))) <= 100


def test_from_an_empty_folder(tmp_path):
    write_run(tmp_path / "runs", np.arange(50.0))
    words = [sys.executable, "-m", "cleanrl_lite.tools.plot", "runs/"]
    done = helpers.run(words, cwd=tmp_path, PYTHONPATH=str(helpers.ROOT))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "CartPole-v1\n  ppo: 1 seed\ncurves.png\n"
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_the_script_of_a_run_is_not_utils(tmp_path):
    """Whose text lies beside it, before or after it in the alphabet."""
    for script in ("ppo", "vpg"):
        run_dir = write_run(tmp_path, np.arange(5.0), exp_name=script)
        assert runs.source_of(run_dir) == run_dir / f"{script}.py"


# --- what an ONNX file says about itself
IMAGE = Box(0, 255, (2, 2), np.uint8)
SPACE = Dict(
    {
        "position": Box(-1, 1, (3,)),
        "arm": Tuple([Discrete(4), IMAGE]),
    }
)


class Env(gym.Env):
    observation_space = SPACE
    action_space = Box(
        low=np.float32([-1, -np.inf]),
        high=np.float32([0.5, np.inf]),
    )


ARGS = dict(
    script="ppo",
    env_id="my_envs:Arm-v0",
    env_kwargs='{"size": 3}',
)


def test_the_parts_of_an_observation():
    """In the order and with the sizes that the flattened vector has."""
    wrapped = gym.wrappers.TimeLimit(gym.wrappers.FlattenObservation(Env()), 10)
    space = export_onnx.unflattened(wrapped).observation_space
    assert space is SPACE
    parts = list(export_onnx.parts(space, ""))
    sizes = [("arm.0", 4), ("arm.1", 4), ("position", 3)]
    assert [(part["name"], part["size"]) for part in parts] == sizes
    obs = SPACE.sample()
    vector = gym.spaces.flatten(SPACE, obs)
    assert vector[:4].tolist() == np.eye(4)[obs["arm"][0]].tolist()
    assert vector[8:] == pytest.approx(obs["position"])
    (whole,) = export_onnx.parts(Box(-1, 1, (7,)), "")
    assert (whole["name"], whole["size"]) == ("obs", 7)


def test_uneven_and_missing_bounds():
    told = export_onnx.metadata(ARGS, Env())
    assert (told["script"], told["env_id"]) == ("ppo", "my_envs:Arm-v0")
    assert told["env_kwargs"] == '{"size": 3}'
    assert '"low": [-1.0, null], "high": [0.5, null]' in told["actions"]


def test_the_lines_that_it_prints():
    """A whole program where gymnasium's own wrappers suffice, else a call."""
    flat = gym.wrappers.FlattenObservation(Env())
    batch = np.zeros((2, 11), np.float32)
    text = export_onnx.program("policy.onnx", ARGS, flat, object(), batch)
    ast.parse(text)
    assert 'gym.wrappers.FlattenObservation(gym.make("my_envs:Arm-v0", size=3))' in text
    for env, memory in ((gym.wrappers.ClipAction(Env()), None), (flat, np.zeros((1, 2, 64)))):
        agent = type("Agent", (), {"memory": memory} if memory is not None else {})()
        text = export_onnx.program("policy.onnx", ARGS, env, agent, batch)
        ast.parse(text)
        assert (
            'obs = np.zeros((1, 11), "float32")  # instead: what make_env of ppo.py gives' in text
        )
        assert ("state = np.zeros((1, 2, 64)" in text) == (memory is not None)

    args = {**ARGS, "env_id": "envpool/Hopper-v4"}  # trained in envpool, played in gymnasium
    text = export_onnx.program("policy.onnx", args, flat, object(), batch)
    assert 'gym.make("Hopper-v4", size=3)' in text
    assert export_onnx.metadata(args, Env())["env_id"] == "Hopper-v4"
