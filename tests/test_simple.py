"""vpg.py, a2c.py, ppo_simple.py and their variants for Box actions: returns, losses and steps,
against the definitions and torch.optim."""

import numpy as np
import pytest
import torch

from tests import helpers, probe_envs
from tests.shadow import Shadow
from tests.test_math import rows_of, stepped
from tests.test_off_policy import agent_and_batch, assert_loss, assert_metrics

PLAIN = "ppo_simple", "ppo_simple_continuous", "vpg", "a2c", "a2c_continuous"


def returns_by_hand(rewards, next_values, terminations, dones, gamma):
    """The sum from each step to the end of its episode: a termination ends it, all other ends
    add a value."""
    returns = np.zeros(rewards.shape)
    for t, n in np.ndindex(*rewards.shape):
        discount = 1.0
        for k in range(t, len(rewards)):
            returns[t, n] += discount * rewards[k, n]
            discount *= gamma
            if dones[k, n]:
                break
        if not terminations[k, n]:
            returns[t, n] += discount * next_values[k, n]
    return returns


def gae_by_definition(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """A_t = sum over k of (gamma lambda)^k delta_{t + k}, up to the end of t's episode or of the
    rollout."""
    advantages = np.zeros(rewards.shape)
    for t, n in np.ndindex(*rewards.shape):
        for k in range(t, len(rewards)):
            delta = rewards[k, n] - values[k, n]
            if not terminations[k, n]:
                delta += gamma * next_values[k, n]
            discount = (gamma * gae_lambda) ** (k - t)
            advantages[t, n] += discount * delta
            if dones[k, n]:
                break
    return advantages


@pytest.mark.parametrize("script", PLAIN)
def test_losses(script):
    """Where the critic is a baseline, it gets no gradient from the policy's loss."""
    flags = dict(vf_coef=2.0, clip_coef=0.1, ent_coef=0.1)
    known = {name: x for name, x in flags.items() if helpers.default(script, name) is not None}
    args, agent, batch = agent_and_batch(script, **known)
    dist, values = agent(batch.obs)
    log_probs, values = dist.log_prob(batch.actions).double(), values.double()
    returns = batch.returns.double()
    found = dict(value_loss=((values - returns) ** 2).mean() / 2, entropy=dist.entropy().mean())
    module = helpers.module(script)
    if "ppo" in script:
        loss, metrics = module.ppo_loss(args, agent, batch)
        ratio = (log_probs - batch.logprobs).exp()
        clipped = torch.clamp(ratio, min=0.9, max=1.1)
        assert 0.2 < (ratio != clipped).double().mean() < 0.9
        gain = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
        found["policy_loss"] = -gain.mean()
        found["approx_kl"] = (ratio - 1 - ratio.log()).mean()
    else:
        loss, metrics = module.policy_gradient_loss(args, agent, batch)
        advantages = returns - values.detach()
        found["policy_loss"] = -(log_probs * advantages).mean()
        unexplained = np.var(advantages.numpy()) / (np.var(returns.numpy()) + 1e-8)
        found["explained_variance"] = torch.tensor(1 - unexplained)
    by_hand = found["policy_loss"] + args.vf_coef * found["value_loss"]
    by_hand = by_hand - getattr(args, "ent_coef", 0.0) * found["entropy"]
    assert_loss(loss, by_hand, agent)
    assert_metrics(metrics, found)


@pytest.mark.parametrize(
    "script", helpers.others_slow(PLAIN, ["ppo_simple", "vpg", "a2c_continuous"])
)
def test_every_step_of_a_run(script, monkeypatch, tmp_path):
    """Each is the optimizer's step. What is learned from is what was stepped, with values of this
    moment and of the true last observation of an episode."""
    shadow = Shadow(monkeypatch, script)
    states = []
    learn = shadow.learn

    def note(*inputs):
        states.append({name: x.clone() for name, x in shadow.agent.state_dict().items()})
        learn(*inputs)

    monkeypatch.setattr(shadow, "learn", note)
    flags = dict(num_envs=3, num_steps=40, num_minibatches=13, update_epochs=2)
    flags = {name: x for name, x in flags.items() if helpers.default(script, name) is not None}
    shadow.train(tmp_path, learning_rate=3e-3, total_timesteps=240, **flags)
    each = 26 if "ppo" in script else 1
    assert [step for step, *_ in shadow.events] == [*np.repeat([120, 240], each)]
    _, agent = helpers.agent_of(script, env_id=shadow.args.env_id)
    obs, rewards, next_obs, terminated, over = stepped(240)
    actions = [np.ravel(row[2]) for row in probe_envs.TRANSITIONS[:240]]
    for k in range(2):
        agent.load_state_dict(states[each * k])
        part = slice(40 * k, 40 * k + 40)
        with torch.no_grad():
            dist, values = agent(torch.from_numpy(obs[part]))
            _, next_values = agent(torch.from_numpy(next_obs[part]))
        rollout = rewards[part], next_values.numpy(), terminated[part], over[part]
        batches = [given[0] for _, given in shadow.calls[each * k : each * k + each]]
        if "ppo" not in script:
            (batch,) = batches
            np.testing.assert_array_equal(batch.obs, obs[part])
            returns = returns_by_hand(*rollout, shadow.args.gamma)
            np.testing.assert_allclose(batch.returns, returns, rtol=1e-4, atol=1e-4)
            if "continuous" not in script:  # the others are clipped
                taken = np.concatenate(actions[120 * k : 120 * k + 120])
                np.testing.assert_array_equal(batch.actions.flatten(), taken)
            continue
        first, second = (
            [row for batch in batches[n : n + 13] for row in rows_of(batch)] for n in (0, 13)
        )
        assert first != second and sorted(first) == sorted(second) and len(first) == 120
        advantages, returns = (
            torch.cat([getattr(batch, name) for batch in batches[:13]])
            for name in ("advantages", "returns")
        )
        parts = shadow.args.gamma, shadow.args.gae_lambda
        expected = gae_by_definition(rollout[0], values.numpy(), *rollout[1:], *parts)
        expected = np.sort(expected.flatten())
        np.testing.assert_allclose(np.sort(advantages), expected, rtol=1e-4, atol=1e-4)
        found = np.sort((returns - advantages).numpy())
        np.testing.assert_allclose(found, np.sort(values.flatten()), rtol=1e-4, atol=1e-4)
        logprobs = torch.cat([batch.logprobs for batch in batches[:13]])
        assert logprobs.isfinite().all()


@pytest.mark.parametrize("script", helpers.others_slow(PLAIN, ["ppo_simple", "a2c"]))
def test_a_resumed_run_takes_a_new_learning_rate(script, tmp_path):
    """The optimizer's state has the old one."""
    run_dir, _ = helpers.train(script, tmp_path, learning_rate=1e-3, total_timesteps=256)
    helpers.train(script, tmp_path, resume=str(run_dir), learning_rate=5e-4, total_timesteps=512)
    (group,) = helpers.load(run_dir)["optimizer"]["param_groups"]
    assert group["lr"] == 5e-4
