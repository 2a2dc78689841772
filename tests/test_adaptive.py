"""ppo_continuous_adaptive.py: the learning rate, the values' scale."""

import numpy as np
import pytest
import torch

from cleanrl_lite import ppo_continuous_adaptive
from tests import helpers

NONE = dict(kl_threshold=0.0, norm_value=False, bounds_coef=0.0)


def test_with_none_of_the_three_it_is_ppo_continuous(tmp_path):
    flags = dict(helpers.SMALL["ppo_continuous"], total_timesteps=1_024)
    plain, returns = helpers.train("ppo_continuous", tmp_path / "plain", **flags)
    variant, same = helpers.train("ppo_continuous_adaptive", tmp_path / "variant", **flags, **NONE)
    mine, theirs = (helpers.scalars(run) for run in (variant, plain))
    assert returns == same
    assert set(mine) - set(theirs) == {"losses/bounds_loss"}
    assert all(mine[tag] == theirs[tag] for tag in set(theirs) - helpers.UNSEEDED)


def test_the_learning_rate_follows_the_kl_divergence(monkeypatch, tmp_path):
    """After each epoch: divided by 1.5 above twice the threshold, times 1.5 below half of it,
    within limits."""
    rates = []
    # minibatches of three epochs: too far, well, too little
    kl = [0.02] * 4 + [0.0, 0.04, 0.0, 0.008] + [0.001] * 4

    def check(update, main, tensors):
        rates.append(main["learning_rate"].item())
        return update(*tensors) | {"losses/approx_kl": torch.tensor(kl[(len(rates) - 1) % 12])}

    helpers.spy_on_updates(monkeypatch, check)
    flags = dict(total_timesteps=256, update_epochs=6, kl_threshold=0.008, learning_rate=8e-3)
    helpers.train("ppo_continuous_adaptive", tmp_path, **flags)
    epochs = np.array(rates).reshape(-1, 4)
    assert (epochs == epochs[:, :1]).all() and len(epochs) == 12  # it changes between epochs only
    expected = []
    rate = 8e-3
    for epoch in range(12):
        expected.append(rate)
        rate = min(rate * [1 / 1.5, 1, 1.5][epoch % 3], 1e-2)
    assert epochs[:, 0] == pytest.approx(expected)
    flags |= dict(total_timesteps=128, update_epochs=1, kl_threshold=1e-20, learning_rate=1e-6)
    run, _ = helpers.train("ppo_continuous_adaptive", tmp_path / "limit", **flags)
    assert helpers.load(run)["learning_rate"]["value"].item() == pytest.approx(1e-6)


def test_the_critic_predicts_normalised_returns(monkeypatch, tmp_path):
    """Of unscaled rewards. Statistics are those of all returns so far, this rollout's too; GAE
    sees real values."""
    module = ppo_continuous_adaptive
    rollouts = []
    batches = []
    seen = []
    gae = module.compute_gae

    def spy(rewards, values, *rest):
        advantages = gae(rewards, values, *rest)
        rollouts.append((rewards.copy(), values.copy(), advantages))
        return advantages

    def check(update, main, tensors):
        agent = main["agent"]
        if len(batches) < len(rollouts):
            batches.append(
                {name: main[name].clone() for name in ("b_returns", "b_values")} | dict(agent=agent)
            )
            seen.append((agent.value_stats.mean.item(), agent.value_stats.var.item()))
            with torch.no_grad():
                torch.testing.assert_close(
                    batches[-1]["b_values"], agent(main["b_obs"])[1], rtol=1e-4, atol=1e-5
                )
        return update(*tensors)

    monkeypatch.setattr(module, "compute_gae", spy)
    helpers.spy_on_updates(monkeypatch, check)
    helpers.train("ppo_continuous_adaptive", tmp_path, env_id="Pendulum-v1", learning_rate=3e-3)
    returns = []
    before = (0.0, 1.0)
    for (rewards, values, advantages), batch, (mean, var) in zip(
        rollouts, batches, seen, strict=True
    ):
        assert rewards.min() < -1.5  # neither scaled nor clipped
        np.testing.assert_allclose(
            values.flatten(), batch["b_values"] * before[1] ** 0.5 + before[0], rtol=1e-4, atol=1e-4
        )
        returns.append((advantages + values).flatten())
        assert (mean, var) == pytest.approx((np.mean(returns), np.var(returns)), rel=1e-4)
        np.testing.assert_allclose(
            batch["b_returns"], (returns[-1] - mean) / var**0.5, rtol=1e-3, atol=1e-4
        )
        before = mean, var
    assert len(rollouts) == 4


def test_the_learning_rate_is_resumed(tmp_path):
    flags = dict(kl_threshold=1e-20, learning_rate=3e-3, update_epochs=2)
    run, _ = helpers.train("ppo_continuous_adaptive", tmp_path, **flags)
    first = helpers.load(run)["learning_rate"]["value"].item()
    helpers.next_second()
    args = helpers.small_args(
        "ppo_continuous_adaptive", tmp_path, **flags, total_timesteps=640, resume=str(run)
    )
    helpers.main("ppo_continuous_adaptive", args)
    (step, rate) = helpers.scalars(run)["charts/learning_rate"][-1]
    assert first < 3e-3
    assert step == 640
    assert rate == pytest.approx(first / 1.5**2, rel=1e-4)
