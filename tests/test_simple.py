"""vpg.py, a2c.py, ppo_simple.py: their returns, advantages and updates, against the definitions
and torch.optim."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_lite import a2c, ppo, ppo_simple, vpg
from tests import helpers

OPTIMIZERS = dict(
    ppo_simple=lambda params, rate: torch.optim.Adam(params, lr=rate),
    vpg=lambda params, rate: torch.optim.Adam(params, lr=rate),
    a2c=lambda params, rate: torch.optim.RMSprop(params, lr=rate, alpha=0.99, eps=1e-5),
)


def rollout(steps=40, envs=3):
    rng = np.random.default_rng(0)
    rewards, values, next_values = rng.normal(size=(3, steps, envs)).astype(np.float32)
    terminations, truncations = rng.random((2, steps, envs)) < 0.1
    return rewards, values, next_values, terminations, terminations | truncations


@pytest.mark.parametrize("module", [vpg, a2c])
def test_returns(module):
    """The sum from each step to the end of its episode: a termination ends it, all other ends
    add a value."""
    rewards, _, next_values, terminations, dones = rollout()
    returns = module.compute_returns(rewards, next_values, terminations, dones, 0.9)
    for n in range(3):
        for t in range(40):
            expected, discount, k = 0.0, 1.0, t
            while True:
                expected, discount = expected + discount * rewards[k, n], discount * 0.9
                if dones[k, n] or k == 39:
                    break
                k += 1
            expected += 0 if terminations[k, n] else discount * next_values[k, n]
            assert returns[t, n] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_advantages_are_those_of_ppo():
    sample = rollout()
    expected = ppo.compute_gae(*sample, 0.9, 0.8)
    np.testing.assert_allclose(
        ppo_simple.compute_gae(*sample, 0.9, 0.8), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("script", OPTIMIZERS)
def test_plain_updates(script, monkeypatch, tmp_path):
    """Each step's metrics, and the parameters after it, against the losses' definitions and
    torch.optim."""
    state = {}

    def check(update, main, tensors):
        agent, args = main["agent"], main["args"]
        inds = tensors[0] if tensors else slice(None)  # vpg and a2c take the whole batch
        if not state:
            state["agent"] = copy.deepcopy(agent)
            state["optimizer"] = OPTIMIZERS[script](state["agent"].parameters(), args.learning_rate)
        reference, optimizer = state["agent"], state["optimizer"]
        reference.load_state_dict(agent.state_dict())
        dist, value = reference(main["b_obs"][inds])
        logprob, returns = dist.log_prob(main["b_actions"][inds]), main["b_returns"][inds]
        expected = dict(
            value_loss=((value - returns) ** 2).mean() / 2, entropy=dist.entropy().mean()
        )
        if script == "ppo_simple":
            ratio, advantages = (
                (logprob - main["b_logprobs"][inds]).exp(),
                main["b_advantages"][inds],
            )
            clipped = torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
            expected["policy_loss"] = -torch.minimum(
                ratio * advantages, clipped * advantages
            ).mean()
            expected["approx_kl"] = (ratio - 1 - ratio.log()).mean()
        else:
            expected["policy_loss"] = -(logprob * (returns - value.detach())).mean()
        loss = expected["policy_loss"] + args.vf_coef * expected["value_loss"]
        optimizer.zero_grad()
        (loss - getattr(args, "ent_coef", 0) * expected["entropy"]).backward()
        if script == "a2c":
            expected["grad_norm"] = nn.utils.clip_grad_norm_(
                reference.parameters(), args.max_grad_norm
            )
        optimizer.step()
        metrics = update(*tensors)
        assert set(metrics) == {f"losses/{name}" for name in expected}
        for name, value in expected.items():
            torch.testing.assert_close(
                metrics[f"losses/{name}"], value.detach(), rtol=2e-3, atol=2e-5, msg=name
            )
        helpers.assert_stepped(agent, reference, args.learning_rate)
        return metrics

    calls = helpers.spy_on_updates(monkeypatch, check)
    flags = dict(clip_coef=0.02) if script == "ppo_simple" else dict(vf_coef=2.0)
    helpers.train(script, tmp_path, learning_rate=3e-3, **flags)
    assert len(calls) == dict(ppo_simple=64, vpg=4, a2c=16)[script]


@pytest.mark.parametrize("script", OPTIMIZERS)
def test_learns_cartpole(script, tmp_path):
    sizes = dict(ppo_simple=(4, 128, 2.5e-4), vpg=(8, 64, 1e-2), a2c=(16, 5, 3e-3))[script]
    num_envs, num_steps, rate = sizes
    flags = dict(num_envs=num_envs, num_steps=num_steps, learning_rate=rate, total_timesteps=60_000)
    _, returns = helpers.train(script, tmp_path, **flags, eval_episodes=5)
    assert np.mean(returns) > 150
