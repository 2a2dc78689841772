"""cleanrl_lite/tools/export_onnx.py: onnxruntime plays a run's exported policy as the script's own evaluation does."""

import importlib.util
import json
import shutil

import pytest
import torch
from gymnasium.spaces import Box

from cleanrl_lite.tools import export_onnx
from tests import helpers

AGENTS = helpers.ROOT / "benchmark/results/agents"
INSTALLED = all(map(importlib.util.find_spec, ["onnx", "onnxscript", "onnxruntime"]))
needs_onnx = pytest.mark.skipif(not INSTALLED, reason="needs the extra `onnx`")


def policy(path):
    """The exported policy as a function of a batch of observations."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)

    def act(obs):
        (actions,) = session.run(["actions"], {"obs": obs.numpy()})
        return torch.from_numpy(actions)

    return act


def remembering(path, memory):
    """The exported policy with what it remembers: each call is given the last one's next_state."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    state = memory.numpy()

    def act(obs):
        nonlocal state
        inputs = {"obs": obs.numpy(), "state": state}
        actions, state = session.run(["actions", "next_state"], inputs)
        return torch.from_numpy(actions), torch.from_numpy(state)

    return act


def args_of(script, run_dir):
    """A run's arguments; an older version of the script may have had flags that are gone."""
    Args = helpers.module(script).Args
    saved = helpers.load(run_dir)["args"].items()
    return Args(**{name: x for name, x in saved if hasattr(Args, name)})


def export(script, run_dir):
    env_id = args_of(script, run_dir).env_id
    export_onnx.export(run_dir, run_dir / "policy.onnx", env_id=env_id)


def evaluate(script, run_dir, monkeypatch, act):
    """--evaluate with act(agent, obs): the returns, and each step's observation and action."""
    steps = []
    module = helpers.module(script)

    def watched(agent, obs):
        steps.append((obs.clone(), act(agent, obs)))
        return steps[-1][1]

    monkeypatch.setattr(module.Agent, "act", watched)
    args = args_of(script, run_dir)
    args.evaluate = str(run_dir)
    record = helpers.main(script, args)
    return record["returns"], *map(torch.cat, zip(*steps))


def clipped(actions, space):
    """To the bounds of the actions, as the evaluation does."""
    if isinstance(space, Box):
        return actions.clamp(torch.as_tensor(space.low), torch.as_tensor(space.high))
    return actions


def assert_plays_alike(script, run_dir, monkeypatch):
    """The same actions for an evaluation's observations, as one batch, and the same returns. Returns the actions."""
    export(script, run_dir)
    module = helpers.module(script)
    exported = policy(run_dir / "policy.onnx")
    returns, obs, actions = evaluate(script, run_dir, monkeypatch, module.Agent.act)
    args = args_of(script, run_dir)
    space = module.make_env(args).action_space
    torch.testing.assert_close(exported(obs), clipped(actions, space), rtol=0, atol=2e-5)

    def act(agent, obs):
        return exported(obs)

    theirs, *_ = evaluate(script, run_dir, monkeypatch, act)
    assert theirs == pytest.approx(returns, rel=0.02)
    return actions


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1__ppo", "Hopper-v4__ppo_continuous_200k"])
def test_trained_agents(name, tmp_path, monkeypatch):
    """Hopper's returns are not equal to the last digit: rounding changes how it falls."""
    run_dir = shutil.copytree(AGENTS / name, tmp_path / name)
    actions = assert_plays_alike(helpers.load(run_dir)["script"], run_dir, monkeypatch)
    assert actions.unique().numel() > 1 and (
        actions.abs().max() > 1.5 or not name.startswith("Hopper")
    )  # beyond bounds


EXPORTED = {*helpers.TRAINING_SCRIPTS} - {*helpers.LSTM_SCRIPTS, *helpers.GODOT_SCRIPTS}


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(EXPORTED))
def test_all_scripts(script, tmp_path, monkeypatch):
    if script in helpers.JAVA_SCRIPTS and not helpers.JAVA:
        pytest.skip("needs gym_microrts and Java")
    assert_plays_alike(script, helpers.train(script, tmp_path)[0], monkeypatch)


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("script", helpers.LSTM_SCRIPTS)
def test_memory(script, tmp_path, monkeypatch):
    """Fed back for whole episodes, the file plays as the evaluation does, and remembers what act()
    remembers."""
    run_dir, _ = helpers.train(script, tmp_path, eval_episodes=3, learning_rate=1e-2)
    export(script, run_dir)
    module = helpers.module(script)
    remembered = []
    args = args_of(script, run_dir)
    space = module.make_env(args).action_space
    own_act = module.Agent.act

    def act(agent, obs):
        action = own_act(agent, obs)
        remembered.append(agent.memory.clone())
        return action

    returns, obs, actions = evaluate(script, run_dir, monkeypatch, act)
    states = torch.cat(remembered)
    zeros = torch.zeros_like(remembered[0])
    exported = remembering(run_dir / "policy.onnx", zeros)
    rows = [exported(row) for row in obs.split(1)]
    played, theirs = map(torch.cat, zip(*rows))
    torch.testing.assert_close(played, clipped(actions, space), rtol=0, atol=2e-5)
    torch.testing.assert_close(theirs, states, rtol=1e-4, atol=2e-5)

    exported = remembering(run_dir / "policy.onnx", zeros)
    again, *_ = evaluate(script, run_dir, monkeypatch, lambda agent, obs: exported(obs)[0])
    assert again == pytest.approx(returns, rel=0.02)


@needs_onnx
@pytest.mark.slow
def test_metadata(tmp_path):
    """What a program reads from the file: uneven bounds, too."""
    import onnxruntime

    export_onnx.export(AGENTS / "Hopper-v4__td3", tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    told = session.get_modelmeta().custom_metadata_map
    assert (told["script"], told["env_id"], told["env_kwargs"]) == ("td3", "Hopper-v4", "{}")
    (part,) = json.loads(told["observation"])
    assert (part["name"], part["size"]) == ("obs", 11)
    assert json.loads(told["actions"])["low"] == [-1, -1, -1]


@needs_onnx
@pytest.mark.slow
def test_what_torch_cannot_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(
        helpers.module("ppo").Agent, "act", lambda agent, obs: torch.tensor(obs.argmax(-1).tolist())
    )
    with pytest.raises(
        SystemExit,
        match=r"^error: cannot export act\(\) of cleanrl_lite.ppo: write it with torch .*$",
    ):
        export_onnx.export(AGENTS / "CartPole-v1__ppo", tmp_path / "policy.onnx")
    assert not any(tmp_path.iterdir())


@needs_onnx
def test_a_script_of_your_own(tmp_path, monkeypatch):
    """Named on the command line, as is the module of its environment: else neither is imported."""
    run_dir, _ = helpers.train("ppo", tmp_path, env_id="tests.probe_envs:ProbeDictObsDiscrete-v0")
    shutil.copy(helpers.SOURCE / "ppo.py", run_dir / "my_idea.py")
    saved = helpers.load(run_dir)
    torch.save({**saved, "script": "my_idea"}, run_dir / "checkpoint.pt")
    words = ["export_onnx", str(run_dir), str(tmp_path / "policy.onnx")]
    script = [str(run_dir / "my_idea.py")]
    module = ["--env-id", saved["args"]["env_id"]]
    for extra, message in (([], "another my_idea.py"), (script, "imports a module")):
        monkeypatch.setattr("sys.argv", [*words, *extra])
        with pytest.raises(SystemExit, match=message):
            export_onnx.main()
    monkeypatch.setattr("sys.argv", [*words, *script, *module])
    export_onnx.main()
    assert (tmp_path / "policy.onnx").exists()


def test_refusals(tmp_path):
    with pytest.raises(SystemExit, match="cannot load .* a run directory"):
        export_onnx.export(tmp_path, tmp_path / "policy.onnx")
    torch.save(dict(script="ppo_godot", args={}), tmp_path / "checkpoint.pt")
    with pytest.raises(SystemExit, match="agents play together: ppo_godot.py --evaluate"):
        export_onnx.export(tmp_path, tmp_path / "policy.onnx")
