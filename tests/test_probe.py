"""Training on environments whose right values and actions are known (tests/probe_envs.py)."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests import helpers
from tests.probe_envs import Corner, probe

FAST = dict(
    num_envs=4,
    num_steps=32,
    total_timesteps=6_016,
    num_minibatches=2,
    update_epochs=4,
    learning_rate=1e-2,
    gamma=0.9,
    gae_lambda=0.95,
    clip_vloss=False,
    ent_coef=0.0,
)


def trained(script, env_id, tmp_path, **overrides):
    """The agent of a checkpoint after a short run."""
    run_dir, _ = helpers.train(script, tmp_path, env_id=env_id, **{**FAST, **overrides})
    state = helpers.load(run_dir)["agent"]
    num_actions, obs_dim = len(state["actor.4.bias"]), state["critic.0.weight"].shape[1]
    agent = helpers.module(script).Agent(obs_dim, num_actions)
    agent.load_state_dict(state)
    return agent


def values(agent, *observations):
    """The critic's values of raw observations, in units of the environment's reward."""
    obs = torch.tensor(np.array(observations), dtype=torch.float32)
    with torch.no_grad():
        if hasattr(agent, "obs_stats"):
            scale = (agent.return_stats.var + 1e-8).sqrt().float()
            return (agent(agent.normalize(obs))[1] * scale).numpy()
        return agent(obs)[1].numpy()


def test_constant_value(mlp_script, tmp_path):
    if mlp_script == "ppo_continuous":
        pytest.skip("a constant return has variance 0: the reward's scale is 1e-4, and it is clipped")
    agent = trained(mlp_script, probe("Constant", mlp_script), tmp_path, total_timesteps=4_096)
    assert values(agent, [0.0]) == pytest.approx(1, abs=0.05)


def test_value_from_observation(mlp_script, tmp_path):
    agent = trained(mlp_script, probe("FromObservation", mlp_script), tmp_path, total_timesteps=4_096)
    assert values(agent, [-1.0], [1.0]) == pytest.approx([-1, 1], abs=0.1)


def test_discounting(mlp_script, tmp_path):
    agent = trained(mlp_script, probe("Delayed", mlp_script), tmp_path)
    assert values(agent, [0.0], [1.0]) == pytest.approx([0.9, 1], abs=0.05)


def test_right_action(mlp_script, tmp_path):
    agent = trained(mlp_script, probe("RightAction", mlp_script), tmp_path, total_timesteps=6_016)
    with torch.no_grad():
        obs = torch.tensor([[-1.0], [1.0]])
        actions = agent.act(obs).squeeze().numpy()
        if mlp_script == "ppo_continuous":
            assert actions == pytest.approx([-0.5, 0.5], abs=0.15)
        else:
            assert actions.tolist() == [0, 1]
            assert agent(obs)[0].probs.max(-1).values.min() > 0.9


def test_truncation_bootstraps(mlp_script, tmp_path):
    agent = trained(mlp_script, probe("Truncated", mlp_script), tmp_path, total_timesteps=10_240)
    assert values(agent, [1.0], [0.0]) == pytest.approx([10, -1], abs=1)


def test_termination_does_not_bootstrap(mlp_script, tmp_path):
    agent = trained(mlp_script, probe("Terminated", mlp_script), tmp_path, total_timesteps=10_240)
    assert values(agent, [1.0], [0.0]) == pytest.approx([1.82, -8.36], abs=0.4)


def test_finite_sum(mlp_script, tmp_path):
    agent = trained(mlp_script, probe("Countdown", mlp_script), tmp_path)
    assert values(agent, [0.0], [1.0], [2.0]) == pytest.approx([2.71, 1.9, 1], abs=0.15)


def test_action_at_the_edge_of_uneven_bounds(tmp_path):
    overrides = dict(total_timesteps=16_000, learning_rate=2e-2)
    agent = trained("ppo_continuous", "tests.probe_envs:ProbeCorner-v0", tmp_path, **overrides)
    with torch.no_grad():
        action = agent.act(torch.zeros(1, 1))[0].numpy().clip(Corner.low, Corner.high)
    assert (np.abs(action - Corner.target) / (Corner.high - Corner.low)).max() < 0.1


@pytest.mark.parametrize("kind", ["Dict", "Tuple", "Discrete", "Bytes"])
def test_structured_observations(kind, mlp_script, tmp_path):
    """Dict, Tuple and Discrete observations are flattened; bytes are a vector already. The value is the number."""
    env_id = probe(f"{kind}Obs", mlp_script)
    agent = trained(mlp_script, env_id, tmp_path)
    position, space = np.array([0.3, -0.5], dtype=np.float32), gym.make(env_id).observation_space
    raw = dict(
        Dict=lambda number: dict(mode=number, position=position),
        Tuple=lambda number: (position, number),
        Discrete=lambda number: number,
        Bytes=lambda number: np.array([number]),
    )[kind]
    flat = [gym.spaces.flatten(space, raw(number)) for number in range(3)]
    assert values(agent, *flat) == pytest.approx([0, 1, 2], abs=0.2)
