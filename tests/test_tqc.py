"""tqc.py's quantiles: what is dropped, the loss and whole updates, by loops of their own."""

import copy

import numpy as np
import pytest
import torch

from cleanrl_lite import tqc
from tests import helpers
from tests.test_off_policy import assert_metrics, assert_unchanged, logged, sac_by_hand


def truncated_by_hand(quantiles, drop):
    """Of each row: the numbers of all critics, without the largest."""
    kept = []
    for row in quantiles.tolist():
        mixture = [number for critic in row for number in critic]
        for _ in range(drop * len(row)):
            mixture.remove(max(mixture))
        kept.append(sorted(mixture))
    return torch.tensor(kept)


def loss_by_hand(quantiles, targets):
    """The mean quantile Huber loss of each critic, number by number, in float64."""
    quantiles = quantiles.double().detach().numpy()
    targets = targets.double().numpy()
    losses = []
    for critic in range(quantiles.shape[1]):
        terms = []
        for row, own in enumerate(quantiles[:, critic]):
            for m, quantile in enumerate(own):
                level = (2 * m + 1) / (2 * len(own))
                for target in targets[row]:
                    error = target - quantile
                    huber = abs(error) - 0.5
                    if abs(error) <= 1:
                        huber = error**2 / 2
                    terms.append((1 - level if error < 0 else level) * huber)
        losses.append(np.mean(terms))
    return torch.tensor(losses)


@pytest.mark.parametrize("n_critics, drop", [(1, 0), (1, 2), (3, 0), (3, 2), (5, 6)])
def test_the_largest_of_the_mixture_go(n_critics, drop):
    """As many as `drop` for each critic, but not of each critic: one that is far above the others
    loses all that it has."""
    quantiles = torch.randn(16, n_critics, 7)
    quantiles[:8, 0] += 100
    kept = tqc.truncate(quantiles, drop)
    assert kept.shape == (16, n_critics * (7 - drop))
    torch.testing.assert_close(kept, truncated_by_hand(quantiles, drop), rtol=0, atol=0)
    if n_critics * drop > 7:
        assert kept[:8].max() < 50


def test_quantile_huber_loss():
    quantiles = 2 * torch.randn(6, 3, 5)
    targets = 2 * torch.randn(6, 11)
    losses = tqc.quantile_huber_loss(quantiles, targets)
    torch.testing.assert_close(losses.double(), loss_by_hand(quantiles, targets))


def quantiles_by_hand(critics, obs, actions):
    x = torch.cat([obs, actions], 1)
    return torch.stack([critic(x) for critic in critics], 1)


@pytest.mark.parametrize("autotune", [True, False])
def test_updates_of_quantiles(autotune, monkeypatch, tmp_path):
    """Every update's metrics and every parameter after it, by hand with torch.optim.Adam; the
    actor sees all quantiles; what an update is not about stays as it was."""
    state = {}

    def begin(agent, args):
        state["agent"] = reference = copy.deepcopy(agent)
        state["critic"] = torch.optim.Adam(reference.qfs.parameters(), lr=args.q_lr)
        state["actor"] = torch.optim.Adam(reference.actor.parameters(), lr=args.policy_lr)
        state["alpha"] = torch.optim.Adam([reference.log_alpha], lr=args.q_lr)

    def step(optimizer, loss):
        optimizer.zero_grad()
        loss.backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()

    def critic_losses(reference, args, batch, noise, alpha):
        obs, actions, rewards, next_obs, terminations = batch
        with torch.no_grad():
            next_actions, next_log_probs = sac_by_hand(reference.actor, next_obs, noise)
            mixture = quantiles_by_hand(reference.qfs_target, next_obs, next_actions)
            kept = truncated_by_hand(mixture, args.top_quantiles_to_drop)
            soft = kept - alpha * next_log_probs[:, None]
            ended = terminations[:, None] == 1
            targets = rewards[:, None] + torch.where(ended, 0.0, args.gamma * soft)
        quantiles = quantiles_by_hand(reference.qfs, obs, actions)
        loss = tqc.quantile_huber_loss(quantiles, targets).sum()
        expected = loss_by_hand(quantiles, targets).sum().item()
        assert loss.item() == pytest.approx(expected, rel=1e-4)
        return dict(qf_loss=loss, qf_values=quantiles.mean(), qf_targets=targets.mean())

    def actor_losses(reference, obs, noise, alpha):
        actions, log_probs = sac_by_hand(reference.actor, obs, noise)
        all_quantiles = quantiles_by_hand(reference.qfs, obs, actions).flatten(1)
        loss = (alpha * log_probs - all_quantiles.mean(1)).mean()
        losses = dict(actor_loss=loss, entropy=-log_probs.mean())
        if autotune:
            losses["alpha_loss"] = -(reference.log_alpha.exp() * (log_probs.detach() - 3)).mean()
        return losses

    def check(update, main, tensors):
        agent = main["agent"]
        args = main["args"]
        critic = update.__name__ == "update_critic"
        if not state:
            begin(agent, args)
        reference = state["agent"]
        before = copy.deepcopy(agent.state_dict())
        reference.load_state_dict(before)
        rows, noise = tensors
        batch = main["replay"].unpack(rows)
        alpha = before["log_alpha"].exp() if autotune else args.alpha
        if critic:
            expected = critic_losses(reference, args, batch, noise, alpha)
            step(state["critic"], expected["qf_loss"])
        else:
            expected = actor_losses(reference, batch[0], noise, alpha)
            step(state["actor"], expected["actor_loss"])
            if autotune:
                step(state["alpha"], expected["alpha_loss"])
                expected["alpha"] = reference.log_alpha.exp()
        metrics = update(*tensors)
        assert_metrics(metrics, expected)
        changed = {"qfs", "qfs_target"} if critic else {"actor", *["log_alpha"] * autotune}
        rate = args.q_lr if critic else args.policy_lr
        helpers.assert_stepped(agent, reference, rate, ["qfs" if critic else "actor"])
        assert_unchanged(agent, before, {name.split(".")[0] for name in before} - changed)
        after = agent.state_dict()
        for name in (name for name in before if critic and name.startswith("qfs_target")):
            source = after[name.replace("qfs_target", "qfs")]
            torch.testing.assert_close(after[name], 0.9 * before[name] + 0.1 * source)
        return metrics

    calls = helpers.spy_on_updates(monkeypatch, check)
    flags = dict(policy_lr=3e-3, q_lr=2e-3, autotune=autotune, alpha=0.3, top_quantiles_to_drop=2)
    logged("tqc", tmp_path, tau=0.1, gamma=0.9, total_timesteps=220, **flags)
    assert calls.count("update_critic") > 15
    assert calls.count("update_actor") > 15
