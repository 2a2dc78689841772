"""cleanrl_lite/tools/export_onnx.py: onnxruntime plays a run's exported policy as the script's own
evaluation does."""

import importlib.util
import shutil

import gymnasium as gym
import pytest
import torch
from gymnasium.spaces import Box

from cleanrl_lite.tools import export_onnx
from tests import helpers

AGENTS = helpers.ROOT / "benchmark/results/agents"
INSTALLED = all(map(importlib.util.find_spec, ["onnx", "onnxscript", "onnxruntime"]))
needs_onnx = pytest.mark.skipif(not INSTALLED, reason="needs the extra `onnx`")


def policy(path, memory=None):
    """The exported policy as a function of a batch of observations; where it has a memory, each
    call is given the last one's, and returns the next."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    state = {} if memory is None else {"state": memory.numpy()}

    def act(obs):
        actions, *states = session.run(None, {"obs": obs.numpy(), **state})
        if states:
            state["state"] = states[0]
        return torch.from_numpy(actions), *map(torch.from_numpy, states)

    return act


def args_of(script, run_dir):
    """A run's arguments; an older version of the script may have had flags that are gone."""
    Args = helpers.module(script).Args
    saved = helpers.load(run_dir)["args"].items()
    return Args(**{name: x for name, x in saved if hasattr(Args, name)})


def evaluate(script, run_dir, monkeypatch, act):
    """--evaluate with act(agent, obs): the returns, and each step's observation and action."""
    steps = []

    def watched(agent, obs):
        steps.append((obs.clone(), act(agent, obs)))
        return steps[-1][1]

    args = args_of(script, run_dir)
    args.evaluate = str(run_dir)
    with monkeypatch.context() as patch:
        patch.setattr(helpers.module(script).Agent, "act", watched)
        record = helpers.main(script, args)
    return record["returns"], *map(torch.cat, zip(*steps))


def assert_plays_alike(script, run_dir, monkeypatch):
    """The same actions for an evaluation's observations, clipped as it clips them, the same memory,
    and the same returns. Returns the actions."""
    path = run_dir / "policy.onnx"
    args = args_of(script, run_dir)
    export_onnx.export(run_dir, path, env_id=args.env_id)
    module = helpers.module(script)
    own_act = module.Agent.act
    memories = []

    def act(agent, obs):
        action = own_act(agent, obs)
        if hasattr(agent, "memory"):
            memories.append(agent.memory.clone())
        return action

    returns, obs, actions = evaluate(script, run_dir, monkeypatch, act)
    zeros = torch.zeros_like(memories[0]) if memories else None
    exported = policy(path, zeros)
    played, *states = map(torch.cat, zip(*map(exported, obs.split(1))))
    space = module.make_env(args).action_space
    clipped = actions
    if isinstance(space, Box):
        clipped = actions.clamp(torch.as_tensor(space.low), torch.as_tensor(space.high))
    torch.testing.assert_close(played, clipped, rtol=0, atol=2e-5)
    if memories:
        torch.testing.assert_close(states[0], torch.cat(memories), rtol=1e-4, atol=2e-5)
    else:
        torch.testing.assert_close(exported(obs)[0], played, rtol=0, atol=2e-5)  # as one batch
    again = policy(path, zeros)
    theirs, *_ = evaluate(script, run_dir, monkeypatch, lambda agent, obs: again(obs)[0])
    assert theirs == pytest.approx(returns, rel=0.02)  # rounding changes how Hopper falls
    return actions


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1__ppo", "Hopper-v4__ppo_continuous_200k"])
def test_trained_agents(name, tmp_path, monkeypatch):
    run_dir = shutil.copytree(AGENTS / name, tmp_path / name)
    actions = assert_plays_alike(helpers.load(run_dir)["script"], run_dir, monkeypatch)
    assert actions.unique().numel() > 1
    assert actions.abs().max() > 1.5 or not name.startswith("Hopper")  # beyond bounds


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("script", sorted({*helpers.TRAINING_SCRIPTS} - {*helpers.GODOT_SCRIPTS}))
def test_all_scripts(script, tmp_path, monkeypatch):
    lstm = dict(eval_episodes=3, learning_rate=1e-2) if script in helpers.LSTM_SCRIPTS else {}
    assert_plays_alike(script, helpers.train(script, tmp_path, **lstm)[0], monkeypatch)


def test_metadata():
    """What gymnasium.make takes and gives; trained in envpool, played in gymnasium."""
    args = {"script": "ppo", "env_id": "envpool/Blackjack-v1", "env_kwargs": '{"sab": true}'}
    env = gym.wrappers.FlattenObservation(gym.make("Blackjack-v1"))
    assert export_onnx.metadata({**args, "max_episode_steps": 9}, env) == {
        "script": "ppo",
        "env_id": "Blackjack-v1",
        "env_kwargs": '{"sab": true, "max_episode_steps": 9}',
        "observation_space": "Tuple(Discrete(32), Discrete(11), Discrete(2))",
        "action_space": "Discrete(2)",
    }


def test_refusals(tmp_path):
    with pytest.raises(SystemExit, match="cannot load .* a run directory"):
        export_onnx.export(tmp_path, tmp_path / "policy.onnx")
    torch.save(dict(script="ppo_godot", args={}), tmp_path / "checkpoint.pt")
    with pytest.raises(SystemExit, match="agents play together: ppo_godot.py --evaluate"):
        export_onnx.export(tmp_path, tmp_path / "policy.onnx")
