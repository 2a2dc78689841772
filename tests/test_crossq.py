"""crossq.py's normalisation and losses, against formulas of their own."""

import copy
import math

import pytest
import torch

from cleanrl_lite import crossq
from tests.test_off_policy import (
    agent_and_batch,
    assert_loss,
    assert_metrics,
    gradients,
    sac_by_hand,
)


def renorm_by_hand(norm, x, running_mean, running_var, renormalise):
    """Algorithm 1 of Ioffe 2017, column by column, in float64."""
    columns = []
    for k, column in enumerate(x.double().T):
        mean = column.sum() / len(column)
        variance = ((column - mean) ** 2).sum() / len(column)
        std = (variance + 1e-3).sqrt()
        r = 1.0
        d = 0.0
        if renormalise:
            running_std = (running_var[k].item() + 1e-3) ** 0.5
            r = std.item() / running_std
            r = min(max(r, 1 / 3), 3.0)
            d = mean.item() - running_mean[k].item()
            d = d / running_std
            d = min(max(d, -5.0), 5.0)
        normalised = (column - mean) / std * r + d
        scaled = normalised * norm.weight[k]
        columns.append(scaled + norm.bias[k])
    return torch.stack(columns, 1)


class ByHand:
    """A network's output by renorm_by_hand; its running statistics as they should be after it."""

    def __init__(self, network, warmup):
        self.network = copy.deepcopy(network)
        self.warmup = warmup
        self.stats = {}

    def norm(self, name, x, batch_stats):
        norm = self.network.get_submodule(name)
        mean = norm.running_mean
        var = norm.running_var
        if not batch_stats:
            normalised = (x - mean) / (var + 1e-3).sqrt()
            return normalised * norm.weight + norm.bias
        moved = {
            "running_mean": 0.99 * mean + 0.01 * x.detach().mean(0),
            "running_var": 0.99 * var + 0.01 * x.detach().var(0, correction=0),
            "step": norm.step + 1,
        }
        self.stats |= {f"{name}.{part}": value for part, value in moved.items()}
        return renorm_by_hand(norm, x, mean, var, norm.step >= self.warmup).float()

    def __call__(self, x, batch_stats=False):
        x = self.norm("norm1", x, batch_stats)
        x = self.network.fc1(x).relu()
        x = self.norm("norm2", x, batch_stats)
        x = self.network.fc2(x).relu()
        x = self.norm("norm3", x, batch_stats)
        return self.network.fc3(x)


def assert_gradients(loss, agent, by_hand, networks):
    """Equal in the parameters of each of these networks."""
    torch.testing.assert_close(loss.double(), by_hand.double(), rtol=1e-4, atol=1e-5)
    found = gradients(loss, agent)
    names = {name.partition(".")[0] for name in found}
    moved = set()
    for head, network in networks.items():
        params = dict(network.network.named_parameters())
        grads = torch.autograd.grad(by_hand, params.values(), retain_graph=True, allow_unused=True)
        for name, grad in zip(params, grads, strict=True):
            if grad is None or not grad.any():
                continue
            moved.add(head)
            ours = found.get(f"{head}.{name}", torch.zeros_like(grad))
            atol = 1e-3 * max(grad.abs().max().item(), 1e-3)
            torch.testing.assert_close(ours, grad, rtol=1e-3, atol=atol, msg=f"{head}.{name}")
    assert names == moved


@pytest.mark.parametrize("steps, autotune", [(0, True), (9, False), (10, True)])
def test_losses_without_targets(steps, autotune, monkeypatch):
    """Before and after the warm-up. Both steps of a transition go through a critic in one
    minibatch; the target is a constant; the policy's loss takes running statistics of the critics
    and leaves them."""
    monkeypatch.setattr(crossq, "ACTOR_UNITS", 24)  # fewer to compute by hand
    monkeypatch.setattr(crossq, "CRITIC_UNITS", 32)
    flags = dict(renorm_warmup=10, autotune=autotune, alpha=0.3)
    args, agent, batch = agent_and_batch("crossq", **flags)
    agent.log_alpha.data.fill_(-0.4)
    alpha = math.exp(-0.4) if autotune else 0.3
    for name, buffer in agent.named_buffers():
        if name.endswith("step"):
            buffer.fill_(steps)
        elif "running" in name:
            buffer.add_(0.3 * torch.rand_like(buffer))
            if name.startswith("qf"):  # r and d are clipped in some columns
                buffer[::2] *= 0.05
                buffer[::3] += 4 if "mean" in name else 0
    noise = torch.randn(64, 3)

    def fresh():
        return {name: ByHand(getattr(agent, name), 10) for name in ("actor", "qf1", "qf2")}

    def assert_statistics(networks, before, changed):
        after = agent.state_dict()
        stats = {
            f"{head}.{name}": x for head in networks for name, x in networks[head].stats.items()
        }
        assert {name.partition(".")[0] for name in stats} == changed
        for name, x in before.items():
            if name in stats:
                torch.testing.assert_close(after[name], stats[name], rtol=1e-4, atol=1e-5)
            else:
                assert torch.equal(after[name], x), f"{name} has changed"

    networks = fresh()
    before = copy.deepcopy(agent.state_dict())
    loss, metrics = crossq.critic_loss(args, agent, batch, noise)
    with torch.no_grad():
        actions, log_probs = sac_by_hand(networks["actor"], batch.next_obs, noise)
    now = torch.cat([batch.obs, batch.actions], 1)
    both = torch.cat([now, torch.cat([batch.next_obs, actions], 1)])
    one, next_one = networks["qf1"](both, True)[:, 0].chunk(2)
    two, next_two = networks["qf2"](both, True)[:, 0].chunk(2)
    soft = torch.minimum(next_one, next_two).detach() - alpha * log_probs
    target = batch.rewards + torch.where(batch.terminations == 1, 0.0, 0.9 * soft)
    qf1_loss, qf2_loss = ((one - target) ** 2).mean(), ((two - target) ** 2).mean()
    found = dict(qf1_loss=qf1_loss, qf2_loss=qf2_loss, qf_loss=qf1_loss + qf2_loss)
    assert_metrics(metrics, found | dict(qf1_values=one.mean(), qf2_values=two.mean()))
    assert_gradients(loss, agent, qf1_loss + qf2_loss, networks)
    assert_statistics(networks, before, {"qf1", "qf2"})

    networks = fresh()
    before = copy.deepcopy(agent.state_dict())
    loss, alpha_loss, metrics = crossq.actor_loss(args, agent, batch, noise)
    actions, log_probs = sac_by_hand(lambda x: networks["actor"](x, True), batch.obs, noise)
    x = torch.cat([batch.obs, actions], 1)
    values = torch.minimum(networks["qf1"](x)[:, 0], networks["qf2"](x)[:, 0])
    by_hand = (alpha * log_probs - values).mean()
    assert_gradients(loss, agent, by_hand, networks)
    of_alpha = -(agent.log_alpha.exp() * (log_probs.detach() - 3)).mean()
    assert_loss(alpha_loss, of_alpha, agent)
    assert_metrics(metrics, dict(actor_loss=by_hand, entropy=-log_probs.mean()))
    assert_statistics(networks, before, {"actor"})
