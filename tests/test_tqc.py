"""tqc.py's quantiles: what is dropped, and the losses, by loops of their own."""

import math

import pytest
import torch

from cleanrl_lite import tqc
from tests.test_off_policy import agent_and_batch, assert_loss, assert_metrics, sac_by_hand


def truncated_by_hand(quantiles, drop):
    """Of each row: the numbers of all critics, without the largest."""
    kept = []
    for row in quantiles.tolist():
        mixture = [number for critic in row for number in critic]
        for _ in range(drop * len(row)):
            mixture.remove(max(mixture))
        kept.append(sorted(mixture))
    return torch.tensor(kept)


def huber_by_hand(quantiles, targets):
    """The mean quantile Huber loss of each critic, number by number."""
    losses = []
    for critic in range(quantiles.shape[1]):
        terms = []
        for row, own in enumerate(quantiles[:, critic]):
            for m, quantile in enumerate(own):
                level = (2 * m + 1) / (2 * len(own))
                for target in targets[row]:
                    error = target - quantile
                    huber = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
                    terms.append((1 - level if error < 0 else level) * huber)
        losses.append(sum(terms) / len(terms))
    return torch.stack(losses)


def quantiles_by_hand(critics, obs, actions):
    x = torch.cat([obs, actions], 1)
    return torch.stack([critic(x) for critic in critics], 1)


@pytest.mark.parametrize("autotune", [True, False])
def test_losses(autotune):
    """The actor sees all quantiles, the target only those that are kept."""
    flags = dict(n_critics=3, n_quantiles=5, top_quantiles_to_drop=2, alpha=0.3)
    args, agent, batch = agent_and_batch("tqc", autotune=autotune, **flags)
    batch = type(batch)(*[part[:12] for part in batch])
    agent.log_alpha.data.fill_(-0.4)
    alpha = math.exp(-0.4) if autotune else 0.3
    noise = torch.randn(12, 3)
    loss, metrics = tqc.critic_loss(args, agent, batch, noise)
    with torch.no_grad():
        actions, log_probs = sac_by_hand(agent.actor, batch.next_obs, noise)
        mixture = quantiles_by_hand(agent.qfs_target, batch.next_obs, actions)
        soft = truncated_by_hand(mixture, 2) - alpha * log_probs[:, None]
        ahead = torch.where(batch.terminations[:, None] == 1, 0.0, 0.9 * soft)
        targets = batch.rewards[:, None] + ahead
    quantiles = quantiles_by_hand(agent.qfs, batch.obs, batch.actions)
    by_hand = huber_by_hand(quantiles, targets).sum()
    assert_loss(loss, by_hand, agent)
    found = dict(qf_loss=by_hand, qf_values=quantiles.mean(), qf_targets=targets.mean())
    assert_metrics(metrics, found)

    loss, alpha_loss, metrics = tqc.actor_loss(args, agent, batch, noise)
    actions, log_probs = sac_by_hand(agent.actor, batch.obs, noise)
    values = quantiles_by_hand(agent.qfs, batch.obs, actions).flatten(1).mean(1)
    by_hand = (alpha * log_probs - values).mean()
    assert_loss(loss, by_hand, agent)
    assert_loss(alpha_loss, -(agent.log_alpha.exp() * (log_probs.detach() - 3)).mean(), agent)
    assert_metrics(metrics, dict(actor_loss=by_hand, entropy=-log_probs.mean()))
