"""vpg.py, a2c.py, ppo_simple.py and their variants for Box actions: their returns, advantages,
policies and updates, against the definitions and torch.optim."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_lite import a2c, a2c_continuous, vpg
from tests import helpers

OPTIMIZERS = dict(
    ppo_simple=lambda params, rate: torch.optim.Adam(params, lr=rate),
    vpg=lambda params, rate: torch.optim.Adam(params, lr=rate),
    a2c=lambda params, rate: torch.optim.RMSprop(params, lr=rate, alpha=0.99, eps=1e-5),
)
OPTIMIZERS["ppo_simple_continuous"] = OPTIMIZERS["ppo_simple"]
OPTIMIZERS["a2c_continuous"] = OPTIMIZERS["a2c"]
PPO = "ppo_simple", "ppo_simple_continuous"
A2C = "a2c", "a2c_continuous"


def rollout(steps=40, envs=3):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(3, steps, envs))
    rewards, values, next_values = np.float32(numbers)
    terminations, truncations = rng.random((2, steps, envs)) < 0.1
    return rewards, values, next_values, terminations, terminations | truncations


def tensors(arrays):
    return [torch.from_numpy(array) for array in arrays]


@pytest.mark.parametrize("module", [vpg, a2c, a2c_continuous])
def test_returns(module):
    """The sum from each step to the end of its episode: a termination ends it, all other ends
    add a value."""
    rewards, _, next_values, terminations, dones = rollout()
    arrays = rewards, next_values, terminations, dones
    returns = module.compute_returns(*tensors(arrays), 0.9)
    for n in range(3):
        for t in range(40):
            expected = 0.0
            discount = 1.0
            k = t
            while True:
                expected = expected + discount * rewards[k, n]
                discount = discount * 0.9
                if dones[k, n] or k == 39:
                    break
                k += 1
            if not terminations[k, n]:
                expected += discount * next_values[k, n]
            found = returns[t, n].item()
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("script", OPTIMIZERS)
def test_plain_updates(script, monkeypatch, tmp_path):
    """Each step's metrics, and the parameters after it, against the losses' definitions and an
    optimizer of the test's own."""
    state = {}

    def check(update, main, tensors):
        agent = main["agent"]
        args = main["args"]
        obs, actions, *rest, returns = tensors
        if not state:
            state["agent"] = copy.deepcopy(agent)
            params = state["agent"].parameters()
            state["optimizer"] = OPTIMIZERS[script](params, args.learning_rate)
        reference = state["agent"]
        optimizer = state["optimizer"]
        reference.load_state_dict(agent.state_dict())
        dist, value = reference(obs)
        logprob = dist.log_prob(actions)
        assert logprob.shape == value.shape == returns.shape
        expected = dict(
            value_loss=((value - returns) ** 2).mean() / 2, entropy=dist.entropy().mean()
        )
        if script in PPO:
            old_logprobs, advantages = rest
            ratio = (logprob - old_logprobs).exp()
            clipped = torch.clamp(ratio, min=1 - args.clip_coef, max=1 + args.clip_coef)
            expected["policy_loss"] = -torch.minimum(
                ratio * advantages, clipped * advantages
            ).mean()
            expected["approx_kl"] = (ratio - 1 - ratio.log()).mean()
            if len(calls) % 16 == 1:  # the policy that acted: these are the actions that it drew
                torch.testing.assert_close(logprob, old_logprobs, rtol=1e-4, atol=1e-5)
        else:
            advantages = returns - value.detach()
            expected["policy_loss"] = -(logprob * advantages).mean()
            residuals = (returns - value).detach().numpy()
            targets = returns.numpy()
            unexplained = np.var(residuals) / (np.var(targets) + 1e-8)
            explained = 1 - unexplained
            expected["explained_variance"] = torch.tensor(explained)
        loss = expected["policy_loss"] + args.vf_coef * expected["value_loss"]
        optimizer.zero_grad()
        loss = loss - getattr(args, "ent_coef", 0) * expected["entropy"]
        loss.backward()
        if script in A2C:
            expected["grad_norm"] = nn.utils.clip_grad_norm_(
                reference.parameters(), args.max_grad_norm
            )
        optimizer.step()
        metrics = update(*tensors)
        assert set(metrics) == {f"losses/{name}" for name in expected}
        for name, value in expected.items():
            wanted = pytest.approx(value.item(), 1e-3, 1e-5)
            assert metrics[f"losses/{name}"] == wanted, name
        helpers.assert_stepped(agent, reference, args.learning_rate)
        return metrics

    calls = helpers.spy_on_plain_updates(monkeypatch, script, check)
    flags = dict(clip_coef=0.02) if script in PPO else dict(vf_coef=2.0)
    helpers.train(script, tmp_path, learning_rate=3e-3, **flags)
    updates = 4
    if script in PPO:
        updates = 64
    elif script in A2C:
        updates = 16
    assert len(calls) == updates


@pytest.mark.parametrize("script", helpers.others_slow(OPTIMIZERS, ["ppo_simple"]))
def test_a_resumed_run_takes_a_new_learning_rate(script, tmp_path):
    """The optimizer's state has the old one."""
    run_dir, _ = helpers.train(script, tmp_path, learning_rate=1e-3)
    helpers.next_second()
    helpers.train(script, tmp_path, resume=str(run_dir), learning_rate=5e-4, total_timesteps=1024)
    (group,) = helpers.load(run_dir)["optimizer"]["param_groups"]
    assert group["lr"] == 5e-4
