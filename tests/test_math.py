"""The pure functions and the update against independent definitions."""

import copy
import inspect
import math
import random
import types

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_lite import environments, ppo, ppo_continuous, utils
from tests import helpers, probe_envs
from tests.probe_envs import probe


def random_rollout(num_steps, num_envs, rng):
    """rewards, values, next_values, terminations, dones with many ends of episodes of both kinds."""
    rewards, values, next_values = rng.normal(size=(3, num_steps, num_envs)).astype(np.float32)
    terminations, truncations = rng.random((2, num_steps, num_envs)) < 0.15
    return rewards, values, next_values, terminations, terminations | truncations


def gae_by_definition(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """A_t = sum over k of (gamma lambda)^k delta_{t + k}, up to the end of t's episode or of the rollout."""
    advantages = np.zeros(rewards.shape)
    for t, n in np.ndindex(*rewards.shape):
        for k in range(t, len(rewards)):
            bootstrap = 0.0 if terminations[k, n] else gamma * next_values[k, n]
            advantages[t, n] += (gamma * gae_lambda) ** (k - t) * (rewards[k, n] + bootstrap - values[k, n])
            if dones[k, n]:
                break
    return advantages


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("gamma, gae_lambda", [(0.99, 0.95), (0.9, 0.0), (1.0, 1.0)])
def test_gae(rollout_script, gamma, gae_lambda, num_envs):
    rollout = random_rollout(60, num_envs, np.random.default_rng(num_envs))
    advantages = helpers.module(rollout_script).compute_gae(*rollout, gamma, gae_lambda)
    assert advantages.shape == rollout[0].shape
    np.testing.assert_allclose(advantages, gae_by_definition(*rollout, gamma, gae_lambda), rtol=1e-4, atol=1e-4)


def test_gae_of_one_step(rollout_script):
    """lambda does not matter, the terminated episode has no future, the truncated one has."""
    one = np.ones((1, 3), dtype=np.float32)
    terminations, dones = np.array([[True, False, False]]), np.array([[True, True, False]])
    advantages = helpers.module(rollout_script).compute_gae(one, 2 * one, 10 * one, terminations, dones, 0.9, 0.95)
    np.testing.assert_allclose(advantages, [[1 - 2, 1 + 9 - 2, 1 + 9 - 2]], rtol=1e-6)


def test_linear_recurrence(rollout_script):
    rng = np.random.default_rng(1)
    inputs, decays, initial = rng.normal(size=(40, 3)), rng.random((40, 3)), rng.normal(size=3)
    expected, y = [], initial
    for x, decay in zip(inputs, decays):
        y = x + decay * y
        expected.append(y)
    np.testing.assert_allclose(
        helpers.module(rollout_script).linear_recurrence(inputs, decays, initial), expected, rtol=1e-12
    )


def test_adam_step(rollout_script):
    """Clipping and Adam like torch over 50 steps: gradients of very different norms, a falling learning rate."""
    torch.manual_seed(1)
    shapes = [(5, 3), (5,), (2, 5), (1,)]
    ours = [torch.randn(shape) for shape in shapes]
    theirs = [nn.Parameter(param.clone()) for param in ours]
    total = sum(param.numel() for param in ours)
    adam = dict(step=torch.zeros(()), exp_avg=torch.zeros(total), exp_avg_sq=torch.zeros(total))
    optimizer = torch.optim.Adam(theirs, lr=1.0, eps=1e-5)
    clipped = 0
    for step in range(50):
        grads = [torch.randn(shape) * 10.0 ** (-step % 7 - 4) for shape in shapes]
        learning_rate = 1e-2 * (1 - step / 50)
        norm = helpers.module(rollout_script).adam_step(
            ours, grads, adam, torch.tensor(learning_rate), max_grad_norm=0.5
        )
        for param, grad in zip(theirs, grads):
            param.grad = grad.clone()
        expected_norm = nn.utils.clip_grad_norm_(theirs, 0.5)
        clipped += float(expected_norm > 0.5)
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
        torch.testing.assert_close(norm, expected_norm)
    assert 5 < clipped < 45  # both branches
    for param, expected in zip(ours, theirs):
        # float32: 1 - 0.999^t loses digits in the first steps, 3e-5 of a step of 1e-2
        torch.testing.assert_close(param, expected.detach(), rtol=0, atol=3e-6)


def test_running_mean_std():
    rng = np.random.default_rng(1)
    stats = ppo_continuous.RunningMeanStd(3)
    batches = [rng.normal((1000, -2, 0), (0.1, 5, 1), (size, 3)).astype(np.float32) for size in (1, 7, 300, 2, 64, 1)]
    for batch in batches:
        stats.update(torch.from_numpy(batch))
    everything = np.concatenate(batches).astype(np.float64)
    np.testing.assert_allclose(stats.mean, everything.mean(0), rtol=1e-9)
    np.testing.assert_allclose(stats.var, everything.var(0), rtol=1e-7)
    assert stats.count == len(everything)
    assert set(stats.state_dict()) == {"mean", "var", "count"}


def test_normalize():
    agent = ppo_continuous.Agent(2, 1)
    agent.obs_stats.update(torch.tensor([[0.0, 10.0], [4.0, 30.0]]))  # mean (2, 20), standard deviation (2, 10)
    normalised = agent.normalize(torch.tensor([[4.0, 10.0], [2.0, 1e6]]))
    torch.testing.assert_close(normalised, torch.tensor([[1.0, -1.0], [0.0, 10.0]]))
    nn.init.normal_(agent.actor[-1].weight)
    raw = torch.tensor([[4.0, 10.0], [2.0, 1e6]], dtype=torch.float64)  # as an environment returns it
    torch.testing.assert_close(agent.act(raw), agent(torch.tensor([[1.0, -1.0], [0.0, 10.0]]))[0].mean)


@pytest.mark.parametrize("script", ["ppo", "ppo_continuous", "ppo_atari"])
def test_initialisation(script):
    """Orthogonal; near zero where it decides on the first policy; log sigma 0."""
    module = helpers.module(script)
    agent = module.Agent(4) if script == "ppo_atari" else module.Agent(3, 4)
    last = agent.actor if script == "ppo_atari" else agent.actor[-1]
    value = agent.critic if script == "ppo_atari" else agent.critic[-1]
    torch.testing.assert_close(last.weight @ last.weight.T, 1e-4 * torch.eye(4), rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(value.weight @ value.weight.T, torch.eye(1), rtol=1e-4, atol=1e-6)
    layers = [layer for layer in agent.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    assert not any(layer.bias.any() for layer in layers) and len(layers) == (6 if script == "ppo_atari" else 6)
    for layer in set(layers) - {last, value}:
        weight = layer.weight.flatten(1)
        weight = weight if weight.shape[0] <= weight.shape[1] else weight.T
        torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(len(weight)), rtol=1e-4, atol=1e-5)
    assert script != "ppo_continuous" or not agent.actor_logstd.any()


def test_setup(monkeypatch):
    args = types.SimpleNamespace(seed=1, threads=2, track=False, cuda=False, torch_deterministic=False)
    threads, deterministic = torch.get_num_threads(), torch.backends.cudnn.deterministic
    try:
        utils.setup_torch(args)
        first = random.random(), np.random.random(), torch.rand(())
        assert torch.get_num_threads() == 2 and not torch.backends.cudnn.deterministic
        args.torch_deterministic = True
        utils.setup_torch(args)
        assert torch.backends.cudnn.deterministic
        assert first == (random.random(), np.random.random(), torch.rand(()))
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic = deterministic


def test_progress(monkeypatch, capsys):
    """Speed and time left are those of this process, the return that of the last 20 episodes."""
    now = [100.0]
    monkeypatch.setattr(utils.time, "time", lambda: now[0])
    progress = utils.Progress(1000, 500)
    progress.returns.extend(range(30))
    now[0] += 10
    progress.update(600)
    assert capsys.readouterr().out == "step 600 of 1,000 | 10 SPS | return 19.5 | 40 s left\n"


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)),
        nn.Linear(4, 2),
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)),  # torch's fallback
        nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 2))),
        nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 2)),
    ],
    ids=["tanh", "relu", "linear", "layer norm", "nested", "no bias"],
)
def test_numpy_forward(network):
    for param in network.parameters():
        nn.init.normal_(param)
    for rows in (1, 5):
        obs = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        result = utils.numpy_forward(network, torch.device("cpu"))(obs)
        assert isinstance(result, np.ndarray) and result.dtype == np.float32
        np.testing.assert_allclose(result, network(torch.from_numpy(obs)).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("script", helpers.MLP_SCRIPTS)
def test_who_acts_with_the_newest_weights(script, monkeypatch, tmp_path):
    """Off-policy scripts ask once for a function that follows the weights, the ppo scripts anew for each rollout."""
    original, asked = utils.numpy_forward, []

    def spy(module, device, live=False):
        asked.append(live)
        return original(module, device, live)

    monkeypatch.setattr(utils, "numpy_forward", spy)
    helpers.train(script, tmp_path)
    args = helpers.small_args(script, tmp_path)
    on_policy = script in helpers.ROLLOUT_SCRIPTS
    assert asked == ([False] * (args.total_timesteps // (args.num_envs * args.num_steps)) if on_policy else [True])


def test_numpy_forward_on_a_gpu(monkeypatch):
    """A function that follows the weights acts there: numpy would need a copy for each step."""
    network, as_tensor = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.as_tensor
    monkeypatch.setattr(torch, "as_tensor", lambda x, device: as_tensor(x))  # there is none here
    act = utils.numpy_forward(network, types.SimpleNamespace(type="cuda"), live=True)
    obs = np.ones((1, 2), dtype=np.float32)
    before = act(obs)
    with torch.no_grad():
        for name, param in [*network[2].named_parameters()]:
            setattr(network[2], name, nn.Parameter(param + 1))  # other memory
    assert act(obs) == pytest.approx(network(torch.from_numpy(obs)).item()) != before


def biased_agent(script, monkeypatch, **parameters):
    """Makes main() start with an actor that ignores the observation and has these parameters."""
    script = helpers.module(script)

    class BiasedAgent(script.Agent):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            with torch.no_grad():
                self.actor[-1].weight.zero_()
                for name, values in parameters.items():
                    self.get_parameter(name.replace("__", ".")).copy_(torch.tensor(values))

    monkeypatch.setattr(script, "Agent", BiasedAgent)


def test_sampling_follows_softmax(monkeypatch, tmp_path):
    """The Gumbel-max trick: the actions' frequencies are the policy's probabilities, in every environment."""
    logits = [0.7, -0.9]
    biased_agent("ppo", monkeypatch, actor__4__bias=logits)
    probe_envs.ACTIONS.clear()
    sizes = dict(num_envs=5, num_steps=400, total_timesteps=20_000, num_minibatches=1, update_epochs=1)
    helpers.train("ppo", tmp_path, env_id=probe("Constant", "ppo"), learning_rate=1e-20, **sizes)
    actions = np.array(probe_envs.ACTIONS[:20_000]).reshape(-1, 5)
    right = 1 / (1 + math.exp(logits[0] - logits[1]))
    assert np.abs(actions.mean() - right) < 4 * (right * (1 - right) / actions.size) ** 0.5
    assert np.abs(actions.mean(0) - right).max() < 5 * (right * (1 - right) / len(actions)) ** 0.5
    assert np.abs(np.corrcoef(actions.T) - np.eye(5)).max() < 0.08  # each environment has its own noise


def test_sampling_is_gaussian(monkeypatch, tmp_path):
    """Actions have the policy's mean and standard deviation and are clipped to the bounds."""
    biased_agent("ppo_continuous", monkeypatch, actor__4__bias=[0.3], actor_logstd=[math.log(0.2)])
    probe_envs.ACTIONS.clear()
    sizes = dict(num_envs=5, num_steps=400, total_timesteps=20_000, num_minibatches=1, update_epochs=1)
    largest = []
    Spy(monkeypatch, lambda update, main, inds: largest.append(main["b_actions"].max()) or update(inds))
    helpers.train("ppo_continuous", tmp_path, env_id=probe("Constant", "ppo_continuous"), learning_rate=1e-20, **sizes)
    actions = np.array(probe_envs.ACTIONS[:20_000]).reshape(-1, 5)
    assert actions.mean() == pytest.approx(0.3, abs=4 * 0.2 / actions.size**0.5)
    assert actions.std() == pytest.approx(0.2, abs=0.005)
    assert actions.max() == 1 < max(largest)  # what is learned from is the sample, not what the environment saw
    assert np.abs(np.corrcoef(actions.T) - np.eye(5)).max() < 0.08


def test_gaussian_log_probability_and_entropy():
    agent = ppo_continuous.Agent(3, 2)
    with torch.no_grad():
        agent.actor_logstd.copy_(torch.tensor([-0.5, 0.3]))
    mean, actions = torch.randn(2, 7, 2).unbind()
    dist, std = agent.policy(mean), np.exp([-0.5, 0.3])
    expected = -0.5 * ((actions - mean).numpy() / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(dist.log_prob(actions).detach(), expected.sum(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        dist.entropy().detach(), np.full(7, (np.log(std) + 0.5 * math.log(2 * math.pi * math.e)).sum()), rtol=1e-6
    )


def test_categorical_log_probability_and_entropy():
    logits, actions = torch.randn(7, 3), torch.randint(3, (7,))
    dist, probs = ppo.Agent(4, 3).policy(logits), np.exp(logits.numpy())
    probs /= probs.sum(1, keepdims=True)
    np.testing.assert_allclose(dist.log_prob(actions), np.log(probs[np.arange(7), actions]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dist.entropy(), -(probs * np.log(probs)).sum(1), rtol=1e-5)


class Spy:
    """Stands in for utils.compile_update: calls `check(update, variables of main, inds)` instead of the update."""

    def __init__(self, monkeypatch, check):
        self.check, self.calls = check, 0
        monkeypatch.setattr(utils, "compile_update", self.compile_update)

    def compile_update(self, update, *_):
        def call(inds):
            self.calls += 1
            return self.check(update, inspect.getclosurevars(update).nonlocals, inds)

        return call


def log_prob_and_entropy(dist, actions):
    """By hand, from the distribution's parameters."""
    if hasattr(dist, "logits"):
        log_probs = dist.logits - dist.logits.logsumexp(-1, keepdim=True)
        return log_probs.gather(-1, actions[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(-1)
    mean, std = dist.base_dist.loc, dist.base_dist.scale
    log_probs = -0.5 * ((actions - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)
    return log_probs.sum(-1), (std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def losses_by_hand(agent, batch, args):
    """PPO's losses in the form that Stable-Baselines3 has them (the value loss: the original's, max and half)."""
    obs, actions, old_log_probs, old_values, advantages, returns = batch
    dist, values = agent(obs)
    log_probs, entropy = log_prob_and_entropy(dist, actions)
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=1) + 1e-8)
    ratio = torch.exp(log_probs - old_log_probs)
    surrogate = torch.minimum(
        advantages * ratio, advantages * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
    )
    value_loss = (returns - values) ** 2
    if args.clip_vloss:
        near = old_values + torch.clamp(values - old_values, -args.clip_coef, args.clip_coef)
        value_loss = torch.maximum(value_loss, (returns - near) ** 2)
    losses = dict(policy_loss=-surrogate.mean(), value_loss=0.5 * value_loss.mean(), entropy=entropy.mean())
    loss = losses["policy_loss"] - args.ent_coef * losses["entropy"] + args.vf_coef * losses["value_loss"]
    losses["approx_kl"] = torch.mean((ratio - 1) - (log_probs - old_log_probs))
    losses["old_approx_kl"] = torch.mean(old_log_probs - log_probs)
    losses["clipfrac"] = (torch.abs(ratio - 1) > args.clip_coef).float().mean()
    return loss, losses


@pytest.mark.parametrize("options", [dict(), dict(clip_vloss=False, norm_adv=False, ent_coef=0.1, vf_coef=2.0)])
def test_update(rollout_script, options, monkeypatch, tmp_path):
    """Every minibatch's metrics, and the parameters after it, against the formulas, autograd and torch.optim.Adam."""
    state = {}

    def check(update, main, inds):
        agent, args = main["agent"], main["args"]
        if "agent" not in state:
            state["agent"] = copy.deepcopy(agent)
            state["optimizer"] = torch.optim.Adam(state["agent"].parameters(), lr=1.0, eps=1e-5)
        names = ("b_obs", "b_actions", "b_logprobs", "b_values", "b_advantages", "b_returns")
        reference, optimizer = state["agent"], state["optimizer"]
        reference.load_state_dict(agent.state_dict())  # equal before each step: errors do not add up
        loss, expected = losses_by_hand(reference, [main[name][inds] for name in names], args)
        optimizer.zero_grad()
        loss.backward()
        expected["grad_norm"] = nn.utils.clip_grad_norm_(reference.parameters(), args.max_grad_norm)
        optimizer.param_groups[0]["lr"] = main["learning_rate"].item()
        optimizer.step()
        metrics = update(inds)
        assert set(metrics) == {f"losses/{name}" for name in expected}
        assert not any(metric.requires_grad or metric.shape for metric in metrics.values())
        for name, value in expected.items():
            torch.testing.assert_close(metrics[f"losses/{name}"], value.detach(), rtol=2e-3, atol=2e-5, msg=name)
        for (name, ours), theirs in zip(agent.named_parameters(), reference.parameters()):
            step = optimizer.param_groups[0]["lr"]
            # Adam divides by the gradient's size: noise in a vanishing gradient may turn into a part of a step.
            assert (ours - theirs).abs().max() < 0.05 * step, name
            assert (ours - theirs).abs().mean() < 0.002 * step, name
        return metrics

    spy = Spy(monkeypatch, check)
    # A large learning rate and a small clip range: after one epoch samples are on both sides of every clip.
    helpers.train(rollout_script, tmp_path, learning_rate=3e-3, clip_coef=0.05, **options)
    assert spy.calls >= 16


def test_rollout_is_consistent_with_the_networks(rollout_script, monkeypatch, tmp_path):
    """At a rollout's first minibatch no network has changed: stored values and log-probabilities are those of now."""
    rollouts = []

    def check(update, main, inds):
        metrics = update(inds)
        if metrics["losses/approx_kl"].abs() < 1e-7:
            rollouts.append(1)
            assert metrics["losses/clipfrac"] == 0
        return metrics

    def check_values(update, main, inds):
        seen = state.setdefault("returns", None)
        if seen is None or not torch.equal(seen, main["b_returns"]):  # a new rollout
            state["returns"] = main["b_returns"].clone()
            with torch.no_grad():
                dist, value = main["agent"](main["b_obs"])
            torch.testing.assert_close(value, main["b_values"], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(dist.log_prob(main["b_actions"]), main["b_logprobs"], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(main["b_returns"], main["b_advantages"] + main["b_values"])
        return check(update, main, inds)

    state = {}
    Spy(monkeypatch, check_values)
    helpers.train(rollout_script, tmp_path)
    args = helpers.small_args(rollout_script, tmp_path)
    assert len(rollouts) >= args.total_timesteps // (args.num_envs * args.num_steps)


def test_every_sample_once_per_epoch(rollout_script, monkeypatch, tmp_path):
    used = []

    def check(update, main, inds):
        used.append(inds.tolist())
        return update(inds)

    Spy(monkeypatch, check)
    helpers.train(rollout_script, tmp_path)
    args = helpers.small_args(rollout_script, tmp_path)
    batch = args.num_envs * args.num_steps
    epochs = np.array(used).reshape(-1, batch)
    assert len(epochs) == args.update_epochs * (args.total_timesteps // batch)
    assert (np.sort(epochs) == np.arange(batch)).all()
    assert (epochs[0] != epochs[1]).any() and (epochs[0] != np.arange(batch)).any()


def test_bootstrap_values_belong_to_the_true_next_observation(rollout_mlp_script, monkeypatch, tmp_path):
    """next_values[t] is the critic's value of what step t led to: at an episode's end the last observation of it."""
    script, rollouts, agents = helpers.module(rollout_mlp_script), [], []
    gae = script.compute_gae

    def spy(*rollout):
        rollouts.append(copy.deepcopy(rollout))  # main() writes the next rollout into the same arrays
        return gae(*rollout)

    class SpiedAgent(script.Agent):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            agents.append(self)

    monkeypatch.setattr(script, "compute_gae", spy)
    monkeypatch.setattr(script, "Agent", SpiedAgent)
    sizes = dict(num_envs=3, num_steps=40, total_timesteps=240, num_minibatches=2)
    helpers.train(
        rollout_mlp_script, tmp_path, env_id=probe("Scripted", rollout_mlp_script), learning_rate=1e-20, **sizes
    )
    rewards, values, next_values, terminations, dones = rollouts[0][:5]
    assert rewards.shape == next_values.shape == (40, 3)
    for n in range(3):
        # What the environment does: see probe_envs.Scripted. The seeds of the environments are 1, 2 and 3.
        episode, step, expected = 1 + n + 1, 0, []
        for _ in range(40):
            step += 1
            over = step == episode % 7 + 1
            expected.append((episode, step, over and episode % 2 == 0, over))
            episode, step = (episode + 1, 0) if over else (episode, step)
        obs = torch.tensor([[episode / 10, step] for episode, step, *_ in expected]).clamp(-10, 10)
        with torch.no_grad():
            true_values = agents[0].critic(obs)[:, 0]
        np.testing.assert_allclose(next_values[:, n], true_values, rtol=1e-4, atol=1e-5)
        assert terminations[:, n].tolist() == [terminated for *_, terminated, _ in expected]
        assert dones[:, n].tolist() == [over for *_, over in expected]
    inner = ~dones[:-1]
    np.testing.assert_allclose(next_values[:-1][inner], values[1:][inner], rtol=1e-4, atol=1e-5)


def test_reward_scaling(monkeypatch, tmp_path):
    """The rewards are divided by the standard deviation of the discounted returns so far, each episode on its own."""
    received, rollouts = [], []
    original_step, gae = environments.VectorEnv.step, ppo_continuous.compute_gae

    def step(self, actions):
        result = original_step(self, actions)
        received.append((result[1].copy(), result[2] | result[3]))
        return result

    def spy(*rollout):
        rollouts.append(copy.deepcopy(rollout))  # main() writes the next rollout into the same arrays
        return gae(*rollout)

    monkeypatch.setattr(environments.VectorEnv, "step", step)
    monkeypatch.setattr(ppo_continuous, "compute_gae", spy)
    sizes = dict(num_envs=3, num_steps=40, total_timesteps=360, num_minibatches=2)
    run_dir, _ = helpers.train("ppo_continuous", tmp_path, env_id=probe("Scripted", "ppo_continuous"), **sizes)
    running, returns = np.zeros(3), []
    for rewards, dones in received[:120]:
        running = 0.99 * running + rewards
        returns.append(running)
        running = running * ~dones
    for k in (1, 2, 3):
        scale = (np.var(returns[: 40 * k]) + 1e-8) ** 0.5
        expected = np.clip(np.stack([rewards for rewards, _ in received[40 * k - 40 : 40 * k]]) / scale, -10, 10)
        np.testing.assert_allclose(rollouts[k - 1][0], expected, rtol=1e-5)
    agent = helpers.load(run_dir)["agent"]
    assert agent["return_stats.count"] == 360
    np.testing.assert_allclose(agent["return_stats.var"], np.var(returns), rtol=1e-6)


def test_huge_observations_and_rewards_are_cut(monkeypatch, tmp_path):
    """After normalisation, to 10: where the statistics, which are those of the rollouts before, do not expect them."""
    observations, rewards, gae = [], [], ppo_continuous.compute_gae
    Spy(monkeypatch, lambda update, main, inds: observations.append(main["b_obs"].abs().max()) or update(inds))
    monkeypatch.setattr(
        ppo_continuous, "compute_gae", lambda *rollout: rewards.append(np.abs(rollout[0]).max()) or gae(*rollout)
    )
    sizes = dict(num_envs=1, num_steps=400, total_timesteps=1200, num_minibatches=1, update_epochs=1)
    helpers.train("ppo_continuous", tmp_path, env_id=probe("Loud", "ppo_continuous"), **sizes)
    assert max(observations) == 10 and max(rewards) == 10


def test_a_short_last_rollout_learns_from_itself(rollout_script, monkeypatch, tmp_path):
    """Not from what an earlier, longer rollout has left in the batch."""
    used = []
    Spy(monkeypatch, lambda update, main, inds: used.append(inds.tolist()) or update(inds))
    args = helpers.small_args(rollout_script, tmp_path)
    batch, extra = args.num_envs * args.num_steps, 3 * args.num_envs
    helpers.train(rollout_script, tmp_path, total_timesteps=batch + extra)
    short = used[args.update_epochs * args.num_minibatches :]
    assert short and set(sum(short, [])) == set(range(extra))


def test_what_a_rollout_logs(rollout_mlp_script, monkeypatch, tmp_path):
    """The mean over all of its updates; and how much of the returns' variance the critic explained."""
    seen, explained = [], []

    def check(update, main, inds):
        if len(seen) % updates == 0:
            returns, values = main["b_returns"].double(), main["b_values"].double()
            explained.append(float(1 - (returns - values).var() / returns.var()))
        seen.append({name: float(metric) for name, metric in update(inds).items()})
        return {name: torch.tensor(metric) for name, metric in seen[-1].items()}

    args = helpers.small_args(rollout_mlp_script, tmp_path)
    updates = args.update_epochs * args.num_minibatches
    Spy(monkeypatch, check)
    run_dir, _ = helpers.train(rollout_mlp_script, tmp_path)
    scalars = helpers.scalars(run_dir)
    for k, (_, value) in enumerate(scalars["losses/explained_variance"]):
        assert value == pytest.approx(explained[k], abs=1e-4)
        for name in seen[0]:
            mean = np.mean([metrics[name] for metrics in seen[k * updates : (k + 1) * updates]])
            assert scalars[name][k][1] == pytest.approx(mean, rel=1e-3, abs=1e-6), name


def test_minibatch_of_one(rollout_mlp_script, tmp_path):
    sizes = dict(num_envs=1, num_steps=4, num_minibatches=4, total_timesteps=4)
    with pytest.raises(SystemExit, match="^error: minibatches of one sample need --no-norm-adv$"):
        helpers.train(rollout_mlp_script, tmp_path, **sizes)
    assert not list(tmp_path.iterdir())
    run_dir, _ = helpers.train(rollout_mlp_script, tmp_path, norm_adv=False, **sizes)
    assert all(np.isfinite(value).all() for value in helpers.load(run_dir)["agent"].values())
