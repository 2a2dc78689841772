"""ppo_continuous_adaptive.py: the learning rate, the values' scale;
ppo_continuous_asymmetric.py: who sees what."""

import numpy as np
import pytest
import torch

from cleanrl_lite import ppo_continuous_adaptive
from tests import helpers

NONE = dict(kl_threshold=0.0, norm_value=False, bounds_coef=0.0)


@pytest.mark.slow
def test_with_none_of_the_three_it_is_ppo_continuous(tmp_path):
    flags = dict(helpers.SMALL["ppo_continuous"], total_timesteps=512)
    plain, returns = helpers.train("ppo_continuous", tmp_path / "plain", **flags)
    variant, same = helpers.train("ppo_continuous_adaptive", tmp_path / "variant", **flags, **NONE)
    mine, theirs = (helpers.scalars(run) for run in (variant, plain))
    assert returns == same
    assert set(mine) - set(theirs) == {"losses/bounds_loss"}
    assert all(mine[tag] == theirs[tag] for tag in set(theirs) - helpers.UNSEEDED)


def test_the_learning_rate_follows_the_kl_divergence(monkeypatch, tmp_path):
    """After each epoch: divided by 1.5 above twice the threshold, times 1.5 below half of it,
    within limits."""
    rates, found = [], []
    # minibatches of three epochs: too far, well, too little
    kl = [0.02] * 4 + [0.0, 0.04, 0.0, 0.008] + [0.001] * 4
    loss = ppo_continuous_adaptive.ppo_loss

    class Seen(ppo_continuous_adaptive.LearningRate):
        def __init__(self, learning_rate):
            super().__init__(learning_rate)
            found.append(self.value)

    def drifting(*inputs):
        result, metrics = loss(*inputs)
        rates.append(found[-1].item())
        return result, metrics | {"losses/approx_kl": torch.tensor(kl[(len(rates) - 1) % 12])}

    monkeypatch.setattr(ppo_continuous_adaptive, "LearningRate", Seen)
    monkeypatch.setattr(ppo_continuous_adaptive, "ppo_loss", drifting)
    flags = dict(total_timesteps=256, update_epochs=6, kl_threshold=0.008, learning_rate=8e-3)
    run, _ = helpers.train("ppo_continuous_adaptive", tmp_path, **flags)
    epochs = np.array(rates).reshape(-1, 4)
    assert (epochs == epochs[:, :1]).all() and len(epochs) == 12  # it changes between epochs only
    expected = []
    rate = 8e-3
    for epoch in range(12):
        expected.append(rate)
        rate = min(rate * [1 / 1.5, 1, 1.5][epoch % 3], 1e-2)
    assert epochs[:, 0] == pytest.approx(expected)
    # what is logged, and saved
    assert helpers.scalars(run)["charts/learning_rate"][-1] == (256, pytest.approx(rate))
    assert helpers.load(run)["learning_rate"]["value"].item() == pytest.approx(rate)
    low = ppo_continuous_adaptive.LearningRate(torch.tensor(1e-6))
    low.follow(1.0, 1e-3)
    assert low.value.item() == pytest.approx(1e-6)


def test_the_critic_predicts_normalised_returns(monkeypatch, tmp_path):
    """Of unscaled rewards. Statistics are those of all returns so far, this rollout's too; GAE
    sees real values."""
    module = ppo_continuous_adaptive
    rollouts, batches, seen = [], [], []
    gae, loss = module.compute_gae, module.ppo_loss

    def spy(args, rewards, values, *rest):
        advantages = gae(args, rewards, values, *rest)
        rollouts.append((rewards.copy(), values.copy(), advantages))
        return advantages

    def learning(args, agent, batch):
        if len(batches) % 16 == 0:
            seen.append((agent.value_stats.mean.item(), agent.value_stats.var.item()))
            with torch.no_grad():
                values = agent(batch.obs)[1]
            torch.testing.assert_close(batch.values, values, rtol=1e-4, atol=1e-5)
        batches.append(batch)
        return loss(args, agent, batch)

    monkeypatch.setattr(module, "compute_gae", spy)
    monkeypatch.setattr(module, "ppo_loss", learning)
    helpers.train("ppo_continuous_adaptive", tmp_path, env_id="Pendulum-v1", learning_rate=3e-3)
    returns = []
    before = (0.0, 1.0)

    def sorted_of(k, name):
        """Of the first epoch of the rollout."""
        parts = [getattr(batch, name) for batch in batches[16 * k : 16 * k + 4]]
        return np.sort(torch.cat(parts).numpy())

    for k, ((rewards, values, advantages), (mean, var)) in enumerate(
        zip(rollouts, seen, strict=True)
    ):
        assert rewards.min() < -1.5  # neither scaled nor clipped
        real = sorted_of(k, "values") * before[1] ** 0.5 + before[0]
        np.testing.assert_allclose(np.sort(values.flatten()), real, rtol=1e-4, atol=1e-4)
        returns.append((advantages + values).flatten())
        assert (mean, var) == pytest.approx((np.mean(returns), np.var(returns)), rel=1e-4)
        normal = np.sort((returns[-1] - mean) / var**0.5)
        np.testing.assert_allclose(sorted_of(k, "returns"), normal, rtol=1e-3, atol=1e-4)
        before = mean, var
    assert len(rollouts) == 4


# --- ppo_continuous_asymmetric.py


@pytest.mark.parametrize("privileged", [True, False])
def test_who_sees_what(privileged):
    """The policy sees the state; the critic the privileged state, or the state too."""
    script = "ppo_continuous_asymmetric"
    _, agent = helpers.agent_of(script, privileged_critic=privileged)
    obs = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    dist, values = agent(obs)
    (of_policy,) = torch.autograd.grad(dist.mean.sum(), obs, retain_graph=True)
    (of_critic,) = torch.autograd.grad(values.sum(), obs)
    assert (of_policy[:, 0] != 0).all() and not of_policy[:, 1:].any()
    seen = of_critic != 0
    assert seen.all(0).tolist() == ([False, True, True] if privileged else [True, False, False])
    assert seen.any(0).tolist() == seen.all(0).tolist()
    assert torch.equal(agent.act(obs), dist.mean)
