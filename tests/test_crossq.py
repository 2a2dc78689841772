"""crossq.py's normalisation and updates, against formulas of their own."""

import copy

import pytest
import torch
from torch import nn

from cleanrl_lite import crossq
from tests import helpers
from tests.test_off_policy import BIAS, SCALE, assert_metrics, logged


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


def random_norm(features, warmup):
    norm = crossq.BatchRenorm(features, warmup)
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.uniform_(norm.bias, -1, 1)
    return norm


def test_renormalisation():
    """From the warm-up's end on; r and d are clipped, are constants of the gradient, and come from
    the statistics before this minibatch. At rest it gives what the running statistics give."""
    norm = random_norm(4, 3)
    stds = torch.tensor([0.1, 1, 9, 1])
    means = torch.tensor([0, 1, 2, 99.0])
    for step in range(6):
        before = norm.running_mean.clone(), norm.running_var.clone()
        x = torch.randn(32, 4) * stds + means
        expected = renorm_by_hand(norm, x, *before, renormalise=step >= 3)
        ours = x.clone().requires_grad_()
        theirs = x.clone().requires_grad_()
        y = norm(ours, True)
        weights = torch.randn(32, 4)
        torch.testing.assert_close(y.double(), expected.double(), rtol=1e-4, atol=1e-4)
        by_hand = renorm_by_hand(norm, theirs, *before, renormalise=step >= 3)
        grads = [
            torch.autograd.grad((z * weights).sum(), each)[0]
            for z, each in ((y, ours), (by_hand, theirs))
        ]
        torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)
    assert norm.step == 6
    x = torch.randn(32, 4) + 5
    norm.running_mean.copy_(x.mean(0) + 0.1)
    norm.running_var.copy_(x.var(0) * 1.2)
    torch.testing.assert_close(norm(x, False), norm(x, True), rtol=1e-4, atol=1e-4)


class ByHand:
    """A network's output by renorm_by_hand; its running statistics as they should be after it."""

    def __init__(self, network, warmup):
        self.network = network
        self.warmup = warmup
        self.stats = {}

    def norm(self, name, x, batch_stats):
        norm = self.network.get_submodule(name)
        mean = norm.running_mean
        var = norm.running_var
        if not batch_stats:
            normalised = (x - mean) / (var + 1e-3).sqrt()
            return normalised * norm.weight + norm.bias
        batch_mean = x.detach().mean(0)
        batch_var = x.detach().var(0, correction=0)
        moved = {
            "running_mean": 0.99 * mean + 0.01 * batch_mean,
            "running_var": 0.99 * var + 0.01 * batch_var,
            "step": norm.step + 1,
        }
        for part, value in moved.items():
            self.stats[f"{name}.{part}"] = value
        renormalise = norm.step >= self.warmup
        return renorm_by_hand(norm, x, mean, var, renormalise).float()

    def __call__(self, x, batch_stats=False):
        x = self.norm("norm1", x, batch_stats)
        x = self.network.fc1(x).relu()
        x = self.norm("norm2", x, batch_stats)
        x = self.network.fc2(x).relu()
        x = self.norm("norm3", x, batch_stats)
        return self.network.fc3(x)


def policy_by_hand(actor, obs, noise, batch_stats=False):
    """test_off_policy's sac_by_hand, with a network by hand."""
    mean, log_std = actor(obs, batch_stats).tensor_split(2, dim=1)
    log_std = -5 + 3.5 * (torch.tanh(log_std) + 1)
    std = torch.exp(log_std)
    raw = mean + std * noise
    slope = SCALE / torch.cosh(raw.double()) ** 2
    normal = torch.distributions.Normal(mean, std)
    log_probs = normal.log_prob(raw)
    log_probs = log_probs - torch.log(slope).float()
    actions = torch.tanh(raw) * SCALE + BIAS
    return actions, log_probs.sum(1)


# 10 is within the run
@pytest.mark.parametrize("warmup", helpers.others_slow([0, 10, 10**6], [10]))
def test_updates_without_targets(warmup, monkeypatch, tmp_path):
    """Every update's metrics, every parameter and running statistic after it, by hand with
    torch.optim.Adam. Both steps of a transition go through a critic in one minibatch; the target
    is a constant; the policy's loss takes running statistics of the critics and leaves them."""
    state = {}

    def begin(agent, args):
        state["agent"] = reference = copy.deepcopy(agent)
        betas = (0.5, 0.999)
        state["critic"] = torch.optim.Adam(
            [*reference.qf1.parameters(), *reference.qf2.parameters()], lr=args.q_lr, betas=betas
        )
        state["actor"] = torch.optim.Adam(
            reference.actor.parameters(), lr=args.policy_lr, betas=betas
        )
        state["alpha"] = torch.optim.Adam([reference.log_alpha], lr=args.q_lr)
        state["by hand"] = {
            "actor": ByHand(reference.actor, warmup),
            "qf1": ByHand(reference.qf1, warmup),
            "qf2": ByHand(reference.qf2, warmup),
        }

    def step(optimizer, loss):
        optimizer.zero_grad()
        loss.backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()

    def critic_losses(networks, args, batch, noise, alpha):
        obs, actions, rewards, next_obs, terminations = batch
        with torch.no_grad():
            next_actions, next_log_probs = policy_by_hand(networks["actor"], next_obs, noise)
        now = torch.cat([obs, actions], 1)
        later = torch.cat([next_obs, next_actions], 1)
        both = torch.cat([now, later])
        values = networks["qf1"](both, True)
        one, next_one = values[:, 0].chunk(2)
        values = networks["qf2"](both, True)
        two, next_two = values[:, 0].chunk(2)
        next_values = torch.minimum(next_one, next_two).detach()
        soft = next_values - alpha * next_log_probs
        ahead = torch.where(terminations == 1, 0.0, args.gamma * soft)
        target = rewards + ahead
        qf1_loss = ((one - target) ** 2).mean()
        qf2_loss = ((two - target) ** 2).mean()
        return {
            "qf_loss": qf1_loss + qf2_loss,
            "qf1_loss": qf1_loss,
            "qf2_loss": qf2_loss,
            "qf1_values": one.mean(),
            "qf2_values": two.mean(),
        }

    def actor_losses(networks, reference, obs, noise, alpha):
        actions, log_probs = policy_by_hand(networks["actor"], obs, noise, True)
        x = torch.cat([obs, actions], 1)
        one = networks["qf1"](x)[:, 0]
        two = networks["qf2"](x)[:, 0]
        too_much = log_probs.detach() - 3
        temperature = reference.log_alpha.exp()
        return {
            "actor_loss": (alpha * log_probs - torch.minimum(one, two)).mean(),
            "entropy": -log_probs.mean(),
            "alpha_loss": -(temperature * too_much).mean(),
        }

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
        alpha = before["log_alpha"].exp()
        networks = state["by hand"]
        for network in networks.values():
            network.stats.clear()
        if critic:
            expected = critic_losses(networks, args, batch, noise, alpha)
            step(state["critic"], expected["qf_loss"])
        else:
            expected = actor_losses(networks, reference, batch[0], noise, alpha)
            step(state["actor"], expected["actor_loss"])
            step(state["alpha"], expected["alpha_loss"])
            expected["alpha"] = reference.log_alpha.exp()
        stats = {}
        for head, network in networks.items():
            for name, value in network.stats.items():
                stats[f"{head}.{name}"] = value
        assert len(stats) == (18 if critic else 9)
        metrics = update(*tensors)
        assert_metrics(metrics, expected)
        stepped = ["qf1", "qf2"] if critic else ["actor"]
        rate = args.q_lr if critic else args.policy_lr
        helpers.assert_mostly_stepped(agent, reference, rate, stepped)
        changed = stepped if critic else [*stepped, "log_alpha"]
        for name, tensor in agent.state_dict().items():
            head, _, _ = name.partition(".")
            if name in stats:
                torch.testing.assert_close(tensor, stats[name], rtol=1e-4, atol=1e-5)
            elif head not in changed:
                assert torch.equal(tensor, before[name]), f"{name} has changed"
        return metrics

    calls = helpers.spy_on_updates(monkeypatch, check)
    monkeypatch.setattr(crossq, "ACTOR_UNITS", 48)  # fewer to compute by hand
    monkeypatch.setattr(crossq, "CRITIC_UNITS", 64)
    flags = dict(policy_lr=3e-3, q_lr=2e-3, gamma=0.9, total_timesteps=260, renorm_warmup=warmup)
    logged("crossq", tmp_path, **flags)
    critic = calls.count("update_critic")
    actor = calls.count("update_actor")
    assert critic > 30
    assert actor == critic // 3
