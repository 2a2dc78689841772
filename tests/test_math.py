"""Pure functions and the scripts that learn from rollouts: what they compute, against independent
definitions.

What has the same text in several scripts (test_consistency) is tested in one of them.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from cleanrl_lite import ppo, utils
from tests import helpers, probe_envs
from tests.probe_envs import probe
from tests.shadow import Shadow
from tests.test_off_policy import assert_loss, assert_metrics


@pytest.mark.parametrize(
    "make, kind, options",
    [
        (utils.Adam, torch.optim.Adam, dict(eps=1e-5)),
        (utils.Adam, torch.optim.Adam, dict(eps=1e-8, betas=(0.5, 0.999))),
        (helpers.module("pqn").RAdam, torch.optim.RAdam, {}),
    ],
)
def test_optimizers(make, kind, options):
    """Like torch over 50 steps (RAdam's first five do without the variance): gradients of very
    different norms, which are clipped, and a falling learning rate. What is saved goes on as if
    nothing had been."""
    shapes = [(5, 3), (5,), (2, 5), (1,), ()]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(param.detach().clone()) for param in ours]
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    mine = {name: x for name, x in options.items() if name != "betas"}
    if "betas" in options:
        mine["beta1"] = options["betas"][0]

    def fresh():
        return make([frozen, *ours], 1.0, max_grad_norm=0.5, **mine)

    adam = fresh()
    optimizer = kind(theirs, **options)
    clipped = []
    for step in range(50):
        learning_rate = 1e-2 * (1 - step / 50)
        scale = 10.0 ** (-step % 7 - 4)
        factors = [torch.randn(shape) * scale for shape in shapes]
        for param, factor in zip(theirs, factors, strict=True):
            param.grad = factor.clone()
        if step == 20:
            state = adam.state_dict()
            adam = fresh()
            adam.load_state_dict(state)
        adam.learning_rate.fill_(learning_rate)
        loss = sum((param * factor).sum() for param, factor in zip(ours, factors, strict=True))
        norm = adam.minimize(loss)
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(theirs, 0.5))
        clipped.append(norm > 0.5)
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
        for param, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(param, expected, rtol=0, atol=3e-6)  # 3e-4 of a step
    assert 5 < sum(clipped) < 45  # both branches
    assert (frozen == 1).all()
    assert adam.step == 50
    # float32: inductor of torch 2.13 loses changes of a float64 number in place
    assert adam.step.dtype == torch.float32


@pytest.mark.parametrize("script", ["ppo_continuous", "ppo_continuous_adaptive", "ppo_hybrid"])
def test_observations_are_normalised_in_their_own_precision(script):
    """(obs - mean) / std, clipped to 10: in float32 most of these observations would be equal."""
    _, agent = helpers.agent_of(script)
    mean = torch.full_like(agent.obs_stats.mean, 12345.678)
    dim = len(mean)
    agent.obs_stats.mean.copy_(mean)
    agent.obs_stats.var.fill_(1e-6)
    obs = mean + 1e-3 * torch.randn(50, dim, dtype=torch.float64)
    obs[0] = 1e9
    normalised = ((obs - mean) / math.sqrt(1e-6 + 1e-8)).clamp(-10, 10)
    assert normalised[0].eq(10).all()
    values = agent.critic(normalised.float())[:, 0]
    torch.testing.assert_close(agent(obs)[1], values)
    assert len(agent(obs)[1].unique()) == 50
    if script != "ppo_hybrid":
        with torch.no_grad():  # so that tanh shows what is clipped
            agent.actor[0].weight.mul_(0.02)
            agent.actor[-1].weight.mul_(20)
        dist, _ = agent(obs)
        torch.testing.assert_close(dist.mean, agent.actor(normalised.float()))
        torch.testing.assert_close(agent.act(obs), dist.mean)
        sampled = np.stack([agent.sampler()(obs.numpy()) for _ in range(2000)])
        std = agent.actor_logstd.exp().detach().numpy()
        errors = (sampled.mean(0) - dist.mean.detach().numpy()) / std * 2000**0.5
        assert np.abs(errors).max() < 5


@pytest.mark.parametrize("script", ["ppo", "ppo_continuous", "ppo_atari"])
def test_initialisation(script):
    """Orthogonal; near zero where it decides on the first policy; log sigma 0."""
    args = helpers.small_args(script, "unused")
    env = helpers.module(script).make_env(args)
    agent = helpers.module(script).Agent(args, env.observation_space, env.action_space)
    last = []
    for net in (agent.actor, agent.critic):
        last.append(net if isinstance(net, nn.Linear) else net[-1])
    gains = dict(zip(last, (0.01, 1.0), strict=True))
    layers = [layer for layer in agent.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    assert len(layers) >= 5
    for layer in layers:
        assert not layer.bias.any()
        gain = gains.get(layer, 2**0.5)
        weight = layer.weight.flatten(1)
        weight = weight if len(weight) <= weight.shape[1] else weight.T
        product = weight @ weight.T / gain**2
        torch.testing.assert_close(product, torch.eye(len(weight)), rtol=1e-4, atol=1e-5)
    log_std = getattr(agent, "actor_logstd", None)
    assert log_std is None or not log_std.any()


# --- sampling


def test_sampling_follows_softmax():
    """The Gumbel-max trick: the actions' frequencies are the policy's probabilities; rows of a
    minibatch have draws of their own."""
    _, agent = helpers.agent_of("ppo", env_id=probe("Logged", "ppo"))
    agent.actor[-1].weight.data.zero_()
    agent.actor[-1].bias.data.copy_(torch.tensor([0.7, -0.9, 0.0]))
    obs = np.zeros((4000, 5, 2), np.float32)
    actions = np.stack([agent.sampler()(rows) for rows in obs])
    probs = np.exp([0.7, -0.9, 0.0]) / np.exp([0.7, -0.9, 0.0]).sum()
    for action, prob in enumerate(probs):
        frequencies = (actions == action).mean(0)
        assert np.abs(frequencies - prob).max() < 5 * (prob * (1 - prob) / 4000) ** 0.5
    together = np.corrcoef((actions == 0).T) - np.eye(5)
    assert np.abs(together).max() < 0.08


def test_sampling_is_gaussian():
    """With the policy's mean and deviation."""
    _, agent = helpers.agent_of("ppo_continuous", env_id=probe("Logged", "ppo_continuous"))
    agent.actor[-1].weight.data.zero_()
    agent.actor[-1].bias.data.copy_(torch.tensor([0.3, -2.0, 0.0]))
    agent.actor_logstd.data.fill_(math.log(0.2))
    actions = agent.sampler()(np.zeros((20_000, 2)))
    assert actions.mean(0) == pytest.approx([0.3, -2, 0], abs=5 * 0.2 / 20_000**0.5)
    assert actions.std(0) == pytest.approx([0.2] * 3, abs=0.005)
    together = np.corrcoef(actions.T) - np.eye(3)
    assert np.abs(together).max() < 5 / 20_000**0.5


# --- the loss


def losses_by_hand(batch, agent, args):
    """PPO's losses in float64, in the form that Stable-Baselines3 has them (the value loss: the
    original's, max and half)."""
    output, values = agent.actor(batch.obs).double(), agent.critic(batch.obs)[:, 0].double()
    dist = Categorical(logits=output)
    if hasattr(agent, "actor_logstd"):
        dist = Independent(Normal(output, agent.actor_logstd.double().exp()), 1)
    log_probs = dist.log_prob(batch.actions)
    _, _, old_log_probs, old_values, advantages, returns = [x.double() for x in batch]
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=1) + 1e-8)
    ratio = torch.exp(log_probs - old_log_probs)
    near = torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
    value_loss = (returns - values) ** 2
    if args.clip_vloss:
        change = torch.clamp(values - old_values, -args.clip_coef, args.clip_coef)
        clipped = old_values + change
        value_loss = torch.maximum(value_loss, (returns - clipped) ** 2)
    gain = torch.minimum(advantages * ratio, advantages * near)
    far = torch.abs(ratio - 1) > args.clip_coef
    assert 0.2 < far.double().mean() < 0.9
    found = dict(
        value_loss=0.5 * value_loss.mean(),
        entropy=dist.entropy().double().mean(),
        policy_loss=-gain.mean(),
        approx_kl=torch.mean((ratio - 1) - torch.log(ratio)),
        old_approx_kl=torch.mean(old_log_probs - log_probs),
        clipfrac=far.double().mean(),
    )
    loss = found["policy_loss"] - args.ent_coef * found["entropy"]
    return loss + args.vf_coef * found["value_loss"], found


PLAIN = dict(clip_vloss=False, norm_adv=False, ent_coef=0.1, vf_coef=2.0)


@pytest.mark.parametrize("options", [{}, PLAIN, dict(clip_coef=0.05)])
@pytest.mark.parametrize("script", ["ppo", "ppo_continuous", "ppo_continuous_adaptive"])
def test_ppos_loss(script, options):
    """Its number, its gradients and its metrics, with samples on both sides of every clip."""
    flags = {**dict(ent_coef=0.02), **options, "env_id": probe("Logged", script)}
    if script == "ppo_continuous_adaptive":
        flags["bounds_coef"] = 5.0
    args, agent = helpers.agent_of(script, **flags)
    if script != "ppo":
        agent.actor[-1].bias.data.copy_(torch.tensor([3.3, -2.2, 4.0]))
    batch = helpers.random_batch(script, args, agent)
    with torch.no_grad():
        _, values = agent(batch.obs)
    batch = batch._replace(values=values + 0.3 * torch.randn(64))
    loss, metrics = helpers.module(script).ppo_loss(args, agent, batch)
    by_hand, found = losses_by_hand(batch, agent, args)
    if script == "ppo_continuous_adaptive":  # the bounds and a twentieth of their range
        low, high = torch.tensor(np.array([probe_envs.Corner.low, probe_envs.Corner.high]))
        mean = agent(batch.obs)[0].mean
        far = torch.maximum(low - mean, mean - high) - 0.05 * (high - low)
        found["bounds_loss"] = torch.relu(far).square().sum(1).mean()
        assert 0 < found["bounds_loss"]
        by_hand = by_hand + 5 * found["bounds_loss"]
    assert_loss(loss, by_hand, agent)
    assert_metrics(metrics, found)


# --- what main does

EPOCHS = [name for name in helpers.MEMORYLESS_SCRIPTS if name in helpers.ROLLOUT_SCRIPTS]


def rows_of(batch):
    """A minibatch as a list of numbers for each sample."""
    parts = [part.flatten(1) if part.ndim > 1 else part[:, None] for part in batch]
    return torch.cat([part.double() for part in parts], 1).tolist()


@pytest.mark.parametrize("script", helpers.others_slow(EPOCHS, ["ppo", "ppo_continuous"]))
def test_every_step_of_a_run(script, monkeypatch, tmp_path):
    """Each step is Adam's on the clipped gradient, at the rate of where its rollout began. Every
    sample comes once per epoch, in a new order. Logged is the mean over a rollout's updates."""
    shadow = Shadow(monkeypatch, script)
    norms = []
    learn = shadow.learn

    def note(*inputs):
        learn(*inputs)
        norms.append(float(shadow.norm))

    monkeypatch.setattr(shadow, "learn", note)
    env_id = helpers.SMALL[script]["env_id"]
    known = script in ("ppo", "ppo_continuous", "ppo_continuous_adaptive")
    flags = dict(env_id=probe("Logged", script) if known else env_id)
    if not known:
        flags["anneal_lr"] = False
    if script == "ppo_continuous_adaptive":  # test_adaptive.py has these
        flags |= dict(norm_value=False, kl_threshold=0.0)
    run_dir = shadow.train(tmp_path, learning_rate=3e-3, clip_coef=0.05, **flags)
    assert len(shadow.calls) == 64
    assert not known or [step for step, *_ in shadow.events] == [
        *np.repeat([128, 256, 384, 512], 16)
    ]
    batches = [given[0] for _, given in shadow.calls]
    explained = []
    for k in range(0, 64, 16):  # rollouts
        epochs = [
            [row for batch in batches[n : n + 4] for row in rows_of(batch)]
            for n in range(k, k + 16, 4)
        ]
        assert len({tuple(row) for row in epochs[0]}) > 120 and len(epochs[0]) == 128
        assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
        assert epochs[0] != epochs[1]
        advantages, values, returns = (
            torch.cat([getattr(batch, name) for batch in batches[k : k + 4]])
            for name in ("advantages", "values", "returns")
        )
        torch.testing.assert_close(returns, advantages + values)
        explained.append(1 - float((returns - values).var() / returns.var()))
    scalars = helpers.scalars(run_dir)
    rates = [value for _, value in scalars["charts/learning_rate"]]
    falling = [1, 0.75, 0.5, 0.25] if shadow.args.anneal_lr else [1] * 4
    assert rates == pytest.approx(3e-3 * np.array(falling), rel=1e-5)
    logged = [value for _, value in scalars["losses/explained_variance"]]
    assert logged == pytest.approx(explained, rel=2e-3, abs=1e-3)
    for metrics, norm in zip(shadow.metrics, norms, strict=True):
        metrics["losses/grad_norm"] = norm
    for name in shadow.metrics[0]:
        means = np.array([metrics[name] for metrics in shadow.metrics]).reshape(-1, 16).mean(1)
        _, found = zip(*scalars[name], strict=True)
        assert found == pytest.approx(means, rel=1e-3, abs=1e-6), name


def stepped(count):
    """Parts of the first transitions, each (steps, 3, ...): obs, rewards, next_obs, terminated,
    over."""
    _, obs, _, rewards, next_obs, terminated = zip(*probe_envs.TRANSITIONS[:count], strict=True)
    parts = [np.array(x).reshape(-1, 3, *np.shape(x[0])) for x in (obs, rewards, next_obs)]
    over = parts[2][..., 1] == np.rint(parts[2][..., 0] * 10) % 7 + 1
    return *parts, np.array(terminated).reshape(-1, 3), over


MEAN_KL = [((0, 0, 0, 9), 2.5, 12), ((3, 3, 3, 0), 2.5, 12), ((3, 3, 3, 0), 2.0, 4)]


# the others have ppo's line (test_schedules_have_one_text)
@pytest.mark.parametrize("divergences, bound, updates", MEAN_KL)
def test_target_kl_is_the_mean_of_an_epoch(divergences, bound, updates, monkeypatch, tmp_path):
    """Means of 2.25, with the last minibatch far above or below: only a bound of 2 ends the
    epochs."""
    loss_of = ppo.ppo_loss
    calls = []

    def drifting(*inputs):
        loss, metrics = loss_of(*inputs)
        calls.append(len(calls) % 4)
        return loss, metrics | {"losses/approx_kl": torch.tensor(float(divergences[calls[-1]]))}

    monkeypatch.setattr(ppo, "ppo_loss", drifting)
    args = helpers.small_args("ppo", tmp_path)
    sizes = dict(total_timesteps=args.num_envs * args.num_steps, num_minibatches=4)
    helpers.train("ppo", tmp_path, target_kl=bound, update_epochs=3, **sizes)
    assert len(calls) == updates
