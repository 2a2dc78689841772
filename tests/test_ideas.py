"""The copies fast_sac, sac_simba and xqc: one whole update of a run, against formulas in float64."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from tests import helpers, probe_envs
from tests.probe_envs import probe
from tests.test_changed_copies import copied
from tests.test_off_policy import BIAS, SCALE, project_by_hand

# Large steps, so that each of their parts is seen.
LR, GAMMA, TAU, ALPHA = 0.05, 0.9, 0.3, 0.7
FLAGS = dict(num_envs=2, batch_size=64, buffer_size=300, gamma=GAMMA, eval_every=50)
# One update, at step 62.
FLAGS |= dict(learning_starts=60, train_frequency=62, gradient_steps=1, policy_frequency=1)
FLAGS |= dict(total_timesteps=100, compile=False, cuda=False, eval_episodes=1)
SUPPORT = dict(n_atoms=11, v_min=-3.0, v_max=7.0)
ATOMS = torch.linspace(-3, 7, 11, dtype=torch.float64)


class Weights(dict):
    """What an agent has, in float64, and its layers as formulas."""

    def __init__(self, agent):
        super().__init__({name: x.double().clone() for name, x in agent.state_dict().items()})
        self.params = [name for name, x in agent.named_parameters() if x.requires_grad]
        for name in self.params:
            self[name].requires_grad_()
        self.moved = {}  # running statistics

    def normal(self, obs):
        return (obs - self["obs_stats.mean"]) / (self["obs_stats.var"] + 1e-8) ** 0.5

    def linear(self, name, x):
        return x @ self[f"{name}.weight"].T + self[f"{name}.bias"]

    def layer_norm(self, name, x):
        x = x - x.mean(1, keepdim=True)
        x = x / ((x * x).mean(1, keepdim=True) + 1e-5) ** 0.5
        return x * self[f"{name}.weight"] + self[f"{name}.bias"]

    def batch_norm(self, name, x, batch_stats):
        mean, var = self[f"{name}.running_mean"], self[f"{name}.running_var"]
        if batch_stats:
            means, variances = x.mean(0), ((x - x.mean(0)) ** 2).mean(0)
            self.moved[f"{name}.running_mean"] = 0.99 * mean + 0.01 * means.detach()
            self.moved[f"{name}.running_var"] = 0.99 * var + 0.01 * variances.detach()
            self.moved[f"{name}.step"] = self[f"{name}.step"] + 1
            mean, var = means, variances
        x = (x - mean) / (var + 1e-3) ** 0.5
        return x * self[f"{name}.weight"] + self[f"{name}.bias"]


class OneUpdate:
    """A run of a copy with one update: the Weights, Batch and tensors that its losses got, and what
    was saved and logged. Before, all weights get noise, and alpha is ALPHA."""

    def __init__(self, name, script, folder, sizes, **flags):
        probe_envs.TRANSITIONS.clear()
        self.module = copied(name, script, folder)
        vars(self.module).update(sizes)
        self.given, self.acted = [], []
        for loss in "critic_loss", "actor_loss":
            setattr(self.module, loss, self.spy(getattr(self.module, loss)))
        policy = self.module.Agent.policy

        def spy(agent, obs, noise, **stats):
            actions, log_probs = policy(agent, obs, noise, **stats)
            if len(obs) == 2:  # not an evaluation or an update
                self.acted.append((noise, actions))
            return actions, log_probs

        self.module.Agent.policy = spy
        env_id = probe("Logged", script)
        args = self.module.Args(env_id=env_id, runs_dir=str(folder), **FLAGS, **flags)
        run_dir = self.module.main(args)["dir"]
        self.saved = helpers.load(run_dir)
        self.metrics = {
            tag.removeprefix("losses/"): points[-1][1]
            for tag, points in helpers.scalars(run_dir).items()
        }
        assert len(self.given) == 2
        assert self.given[0][1].terminations.unique().numel() == 2

    def spy(self, loss):
        def call(args, agent, batch, *tensors):
            if not self.given:
                self.first_alpha = agent.log_alpha.exp().item()
                for param in agent.parameters():
                    param.data.add_(0.1 * torch.randn_like(param))
                for name, buffer in agent.named_buffers():
                    buffer.add_(0.3 * torch.rand_like(buffer) * ("running" in name))
                agent.log_alpha.data.fill_(np.log(ALPHA))
            doubles = [x.double() if x.is_floating_point() else x for x in (*batch, *tensors)]
            double_batch = self.module.Batch(*doubles[: len(batch)])
            self.given.append((Weights(agent), double_batch, *doubles[len(batch) :]))
            return loss(args, agent, batch, *tensors)

        return call

    def check(self, critic_loss, actor_loss, alpha_loss, beta1=0.9, decay=0.0, project=None):
        """The gradients, which Adam's first moments are, and all weights after the update."""
        (before, *_), (between, *_) = self.given
        critics = [name for name in before.params if name.startswith("qf")]
        actors = [name for name in before.params if name.startswith("actor")]
        expected = {**before, **before.moved}
        expected |= self.adam("critic_adam", before, critics, critic_loss, beta1, decay)
        expected |= project(expected, critics) if project else {}
        for name in before:
            if "_target" in name:
                new = expected[name.replace("_target", "")]
                expected[name] = before[name] + TAU * (new - before[name])
        assert_close(between, expected)
        expected = {**between, **between.moved}
        expected |= self.adam("actor_adam", between, actors, actor_loss, beta1, decay)
        expected |= project(expected, actors) if project else {}
        expected |= self.adam("alpha_adam", between, ["log_alpha"], alpha_loss, 0.9, 0.0)
        assert_close(self.saved["agent"], expected)
        mine = qf_loss, a_loss = critic_loss.item(), actor_loss.item()
        assert [self.metrics["qf_loss"], self.metrics["actor_loss"]] == pytest.approx(mine, 1e-4)

    def adam(self, adam, before, names, loss, beta1, decay):
        """The weights after a first step of AdamW (Loshchilov & Hutter 2019, algorithm 2)."""
        weights = [before[name] for name in names]
        grad = torch.cat([x.flatten() for x in torch.autograd.grad(loss, weights)])
        state = {name: x.double() for name, x in self.saved[adam].items()}
        scale = grad.abs().max().item()
        mean, square = state["exp_avg"] / (1 - beta1), state["exp_avg_sq"] / 0.001
        torch.testing.assert_close(mean, grad, rtol=1e-3, atol=1e-4 * scale)
        torch.testing.assert_close(square, grad**2, rtol=2e-3, atol=1e-4 * scale**2)
        assert state["step"] == 1 and scale > 1e-4
        steps = (mean / (square**0.5 + 1e-8)).split([weight.numel() for weight in weights])
        return {
            name: weight.detach() * (1 - LR * decay) - LR * step.view_as(weight)
            for name, weight, step in zip(names, weights, steps, strict=True)
        }


def assert_close(found, expected):
    """All but the statistics of observations, to which the run adds."""
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        if "obs_stats" not in name:
            torch.testing.assert_close(found[name].double(), x, rtol=1e-4, atol=1e-5, msg=name)


def in_training(column):
    """What the environments had there; an evaluation's are others."""
    envs = {*[row[0] for row in probe_envs.TRANSITIONS[:2]]}
    return np.array([row[column] for row in probe_envs.TRANSITIONS if row[0] in envs])


def assert_statistics(run):
    """They are those of all observations that the policy got in training, not in evaluations."""
    seen = in_training(1)
    assert len(probe_envs.TRANSITIONS) > len(seen) == 100 == run.saved["agent"]["obs_stats.count"]
    for name, values in ("mean", seen.mean(0)), ("var", seen.var(0)):
        np.testing.assert_allclose(run.saved["agent"][f"obs_stats.{name}"], values, rtol=1e-5)


def squashed(outputs, noise, log_std_max):
    """tanh(raw), within (-1, 1), and its log-probabilities."""
    mean, log_std = outputs.tensor_split(2, dim=1)
    std = torch.exp(-5 + (log_std_max + 5) * (1 + torch.tanh(log_std)) / 2)
    tanh = torch.tanh(mean + std * noise)
    log_probs = Normal(mean, std).log_prob(mean + std * noise) - torch.log(1 - tanh**2)
    return tanh, log_probs.sum(1)


def target_by_hand(probs, returns, discounts, terminations, log_probs):
    """The projected soft returns, row by row."""
    rows = []
    each = zip(probs, returns, discounts, terminations, log_probs.tolist(), strict=True)
    for p, reward, discount, over, log_prob in each:
        soft = reward - (0.0 if over else discount * ALPHA * log_prob)
        rows.append(project_by_hand(p[None].numpy(), [soft], [over], discount, ATOMS.tolist()))
    return torch.from_numpy(np.concatenate(rows))


def cross_entropy(target, logits):
    return -(target * torch.log(torch.softmax(logits, 1))).sum(1).mean()


def test_fast_sac(tmp_path):
    """The target is the mean of both critics', and so is the policy's value; windows of two."""
    flags = dict(**SUPPORT, n_step=2, learning_rate=LR, tau=TAU, target_entropy=-0.5)
    run = OneUpdate("fast_sac", "fast_td3", tmp_path, {}, **flags)
    assert run.first_alpha == pytest.approx(0.001)
    assert_statistics(run)

    def net(w, name, x):
        x = torch.relu(w.layer_norm(f"{name}.norm1", w.linear(f"{name}.fc1", x)))
        x = torch.relu(w.layer_norm(f"{name}.norm2", w.linear(f"{name}.fc2", x)))
        return w.linear(f"{name}.fc3", x)

    def logits(w, name, obs, tanh_or_actions):
        return net(w, name, torch.cat([w.normal(obs), tanh_or_actions], 1))

    w, batch, stored, noise = run.given[0]
    lengths = [
        2 if follows and after == step + 1 else 1
        for (step, after), (_, follows) in zip(batch.steps, stored, strict=True)
    ]
    assert {*lengths} == {1, 2}
    last = range(64), [length - 1 for length in lengths]
    next_obs, over = batch.next_obs[last], batch.terminations[last].tolist()
    returns = [
        first + (GAMMA * second if length == 2 else 0.0)
        for (first, second), length in zip(batch.rewards.tolist(), lengths, strict=True)
    ]
    with torch.no_grad():
        tanh, log_probs = squashed(net(w, "actor", w.normal(next_obs)), noise, 0)
        pair = [
            logits(w, name, next_obs, tanh * SCALE + BIAS).softmax(1)
            for name in ("qf1_target", "qf2_target")
        ]
        discounts = [GAMMA**length for length in lengths]
        target = target_by_hand(sum(pair) / 2, returns, discounts, over, log_probs)
    obs, actions = batch.obs[:, 0], batch.actions[:, 0]
    critic_loss = sum(cross_entropy(target, logits(w, q, obs, actions)) for q in ("qf1", "qf2"))

    w, batch, noise = run.given[1]
    obs = batch.obs[:, 0]
    tanh, log_probs = squashed(net(w, "actor", w.normal(obs)), noise, 0)
    values = [logits(w, q, obs, tanh * SCALE + BIAS).softmax(1) @ ATOMS for q in ("qf1", "qf2")]
    actor_loss = (ALPHA * log_probs - (values[0] + values[1]) / 2).mean()
    alpha_loss = -w["log_alpha"].exp() * (log_probs.detach().mean() - 0.5 * 3)
    run.check(critic_loss, actor_loss, alpha_loss)

    # random actions, then the policy's
    noises, acted = zip(*run.acted, strict=True)
    np.testing.assert_allclose(in_training(2)[60:], torch.cat(acted), rtol=1e-5)
    assert 0.8 < torch.cat(noises).std() < 1.2


def test_sac_simba(tmp_path):
    sizes = dict(ACTOR_UNITS=12, CRITIC_UNITS=20)
    flags = dict(q_lr=LR, policy_lr=LR, tau=TAU)
    run = OneUpdate("sac_simba", "sac", tmp_path, sizes, **flags)
    assert_statistics(run)

    def net(w, name, x, blocks):
        x = w.linear(f"{name}.0", x)
        for k in range(1, blocks + 1):
            hidden = w.linear(f"{name}.{k}.fc1", w.layer_norm(f"{name}.{k}.norm", x))
            x = x + w.linear(f"{name}.{k}.fc2", torch.relu(hidden))
        x = w.layer_norm(f"{name}.{blocks + 1}", x)
        return w.linear(f"{name}.{blocks + 2}", x)

    def policy(w, obs, noise):
        tanh, log_probs = squashed(net(w, "actor", w.normal(obs), 1), noise, 2)
        return tanh * SCALE + BIAS, log_probs - torch.log(SCALE).sum()

    def values(w, names, obs, actions):
        x = torch.cat([w.normal(obs), actions], 1)
        return torch.stack([net(w, name, x, 2)[:, 0] for name in names])

    w, batch, noise = run.given[0]
    assert w["actor.1.fc1.weight"].shape == (48, 12)
    assert w["qf1.2.fc1.weight"].shape == (80, 20)
    with torch.no_grad():
        actions, log_probs = policy(w, batch.next_obs, noise)
        pair = values(w, ["qf1_target", "qf2_target"], batch.next_obs, actions)
        soft = pair.amin(0) - ALPHA * log_probs
        target = batch.rewards + torch.where(batch.terminations == 1, 0.0, GAMMA * soft)
    pair = values(w, ["qf1", "qf2"], batch.obs, batch.actions)
    critic_loss = ((pair - target) ** 2).mean(1).sum()

    w, batch, noise = run.given[1]
    actions, log_probs = policy(w, batch.obs, noise)
    pair = values(w, ["qf1", "qf2"], batch.obs, actions)
    actor_loss = (ALPHA * log_probs - pair.amin(0)).mean()
    alpha_loss = -w["log_alpha"].exp() * (log_probs.detach().mean() - 3)
    run.check(critic_loss, actor_loss, alpha_loss, decay=0.01)


def on_the_sphere(weights, names):
    """Each hidden unit's weights, divided by their length."""
    return {
        name: torch.stack([row / (row * row).sum() ** 0.5 for row in weights[name]])
        for name in names
        if name.endswith(("fc1.weight", "fc2.weight"))
    }


def test_xqc(tmp_path):
    sizes = dict(ACTOR_UNITS=12, CRITIC_UNITS=20)
    flags = dict(**SUPPORT, q_lr=LR, policy_lr=LR)
    run = OneUpdate("xqc", "crossq", tmp_path, sizes, **flags)

    def net(w, name, x, batch_stats):
        x = torch.relu(w.linear(f"{name}.fc1", w.batch_norm(f"{name}.norm1", x, batch_stats)))
        x = torch.relu(w.linear(f"{name}.fc2", w.batch_norm(f"{name}.norm2", x, batch_stats)))
        return w.linear(f"{name}.fc3", w.batch_norm(f"{name}.norm3", x, batch_stats))

    def policy(w, obs, noise, batch_stats):
        tanh, log_probs = squashed(net(w, "actor", obs, batch_stats), noise, 2)
        return tanh * SCALE + BIAS, log_probs - torch.log(SCALE).sum()

    w, batch, noise = run.given[0]
    with torch.no_grad():
        actions, log_probs = policy(w, batch.next_obs, noise, False)
    now, ahead = torch.cat([batch.obs, batch.actions], 1), torch.cat([batch.next_obs, actions], 1)
    one, next_one = net(w, "qf1", torch.cat([now, ahead]), True).chunk(2)
    two, next_two = net(w, "qf2", torch.cat([now, ahead]), True).chunk(2)
    pair = [next_one.detach().softmax(1), next_two.detach().softmax(1)]
    first = pair[0] @ ATOMS < pair[1] @ ATOMS
    assert first.unique().numel() == 2
    probs = torch.where(first[:, None], *pair)
    parts = batch.rewards.tolist(), [GAMMA] * 64, batch.terminations.tolist()
    target = target_by_hand(probs, *parts, log_probs)
    critic_loss = cross_entropy(target, one) + cross_entropy(target, two)

    w, batch, noise = run.given[1]
    actions, log_probs = policy(w, batch.obs, noise, True)
    x = torch.cat([batch.obs, actions], 1)
    values = [net(w, name, x, False).softmax(1) @ ATOMS for name in ("qf1", "qf2")]
    actor_loss = (ALPHA * log_probs - torch.minimum(*values)).mean()
    alpha_loss = -w["log_alpha"].exp() * (log_probs.detach().mean() - 3)
    run.check(critic_loss, actor_loss, alpha_loss, beta1=0.5, project=on_the_sphere)
