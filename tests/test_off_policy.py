"""The scripts that learn from a replay buffer: updates, schedules, actions and what is stored, against definitions."""

import copy
import inspect
import math
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium.spaces import Box
from stable_baselines3.common.logger import Logger
from torch import nn
from torch.distributions import AffineTransform, Independent, Normal, TanhTransform, TransformedDistribution

from cleanrl_lite import buffers, environments, sac, utils
from tests import helpers, probe_envs
from tests.probe_envs import Corner, probe

VALUE = ["dqn", "c51", "dqn_atari", "c51_atari"]  # epsilon-greedy on Q-values
C51 = ["c51", "c51_atari"]
POLICY = ["ddpg", "td3", "sac"]  # an actor and critics
BOX = Box(Corner.low, Corner.high)
SCALE, BIAS = (Corner.high - Corner.low) / 2, (Corner.high + Corner.low) / 2


def logged(script, tmp_path, **overrides):
    """A small run on the Logged probe, or on a game; its checkpoint."""
    env_id = {} if script.endswith("atari") else dict(env_id=probe("Logged", script))
    run_dir, _ = helpers.train(script, tmp_path, **{**env_id, **overrides})
    return helpers.load(run_dir)


class Spy:
    """Stands in for utils.compile_update: calls `check(update, variables of main, tensors)` instead of the update."""

    def __init__(self, monkeypatch, check):
        self.check, self.calls = check, []
        monkeypatch.setattr(utils, "compile_update", self.compile_update)

    def compile_update(self, update, *_, **__):
        def call(*tensors):
            self.calls.append(update.__name__)
            return self.check(update, inspect.getclosurevars(update).nonlocals, tensors)

        return call


def spy_on_agent(monkeypatch, script):
    """A list that gets the agents that main() makes."""
    script, agents = helpers.module(script), []

    class SpiedAgent(script.Agent):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            agents.append(self)

    monkeypatch.setattr(script, "Agent", SpiedAgent)
    return agents


# --- pure functions


def project_by_hand(probs, rewards, terminations, gamma, atoms):
    """Each atom's probability, moved and shared between its neighbours, one by one, in float64."""
    projected = np.zeros(probs.shape)
    spacing = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    for sample in range(len(probs)):
        for atom, prob in zip(atoms, probs[sample]):
            moved = rewards[sample] + (0.0 if terminations[sample] else gamma * atom)
            moved = min(max(moved, atoms[0]), atoms[-1])
            for k, place in enumerate(atoms):
                projected[sample, k] += prob * max(0.0, 1 - abs(moved - place) / spacing)
    return projected


def project(script, probs, rewards, terminations, gamma, atoms):
    parts = (torch.tensor(np.asarray(part), dtype=torch.float32) for part in (probs, rewards, terminations))
    return helpers.module(script).project_distribution(*parts, gamma, torch.tensor(atoms, dtype=torch.float32)).numpy()


@pytest.mark.parametrize("script", C51)
@pytest.mark.parametrize("v_min, v_max, n_atoms", [(-10, 10, 51), (-3, 21, 9), (0, 1, 2), (-100, 100, 101)])
@pytest.mark.parametrize("gamma", [0.99, 1.0, 0.5])
def test_projection(script, v_min, v_max, n_atoms, gamma):
    """Against the definition: with terminations, beyond the ends of the support, and exactly on its atoms."""
    rng, atoms = np.random.default_rng(1), np.linspace(v_min, v_max, n_atoms)
    probs = rng.dirichlet(np.full(n_atoms, 0.3), size=60)
    rewards = rng.uniform(-0.7, 0.7, 60) * (v_max - v_min)
    rewards[::3] = rng.integers(-2, 3, 20) * (atoms[1] - atoms[0])  # with gamma 1 every atom falls on an atom
    rewards[1::12] = 0
    terminations = rng.random(60) < 0.3
    projected = project(script, probs, rewards, terminations, gamma, atoms)
    expected = project_by_hand(probs, rewards, terminations, gamma, atoms)
    np.testing.assert_allclose(projected, expected, atol=1e-4)  # float32: atoms[1] - atoms[0] lacks digits
    np.testing.assert_allclose(projected.sum(1), 1, atol=1e-5)
    assert projected.min() >= 0


@pytest.mark.parametrize("script", C51)
def test_projection_on_the_atoms(script):
    """With gamma 1: no reward moves nothing, one spacing moves all by one; the ends take what is beyond."""
    atoms, probs = np.linspace(-2, 6, 5), [[0.1, 0.2, 0.3, 0.25, 0.15]]
    np.testing.assert_allclose(project(script, probs, [0], [0], 1.0, atoms), probs, atol=1e-7)
    np.testing.assert_allclose(project(script, probs, [2], [0], 1.0, atoms), [[0, 0.1, 0.2, 0.3, 0.4]], atol=1e-7)
    np.testing.assert_allclose(project(script, probs, [-2], [0], 1.0, atoms), [[0.3, 0.3, 0.25, 0.15, 0]], atol=1e-7)
    np.testing.assert_allclose(project(script, probs, [99], [0], 1.0, atoms), [[0, 0, 0, 0, 1]], atol=1e-7)
    np.testing.assert_allclose(project(script, probs, [-99], [1], 1.0, atoms), [[1, 0, 0, 0, 0]], atol=1e-7)
    np.testing.assert_allclose(project(script, probs, [4], [1], 1.0, atoms), [[0, 0, 0, 1, 0]], atol=1e-7)
    np.testing.assert_allclose(project(script, probs, [3], [1], 1.0, atoms), [[0, 0, 0.5, 0.5, 0]], atol=1e-7)


@pytest.mark.parametrize("script", C51)
def test_projection_keeps_the_mean(script):
    """Inside the support the projection has the mean of the Bellman equation."""
    rng, atoms = np.random.default_rng(1), np.linspace(-30, 50, 41)
    probs = np.zeros((200, 41))
    probs[:, 10:25] = rng.dirichlet(np.ones(15), size=200)  # of returns from -10 to 18
    rewards, terminations = rng.uniform(-15, 15, 200), rng.random(200) < 0.3
    projected = project(script, probs, rewards, terminations, 0.97, atoms)
    expected = rewards + 0.97 * (1 - terminations) * (probs @ atoms)
    np.testing.assert_allclose(projected @ atoms, expected, atol=2e-4)


@pytest.mark.parametrize("eps", [1e-8, 0.01 / 32])
def test_adam_step(off_policy_script, eps):
    """Like torch over 50 steps: gradients of very different sizes, a changing learning rate."""
    torch.manual_seed(1)
    shapes = [(5, 3), (5,), (2, 5), (1,), ()]
    ours = [torch.randn(shape) for shape in shapes]
    theirs = [nn.Parameter(param.clone()) for param in ours]
    total = sum(param.numel() for param in ours)
    adam = dict(step=torch.zeros(()), exp_avg=torch.zeros(total), exp_avg_sq=torch.zeros(total))
    optimizer = torch.optim.Adam(theirs, lr=1.0, eps=eps)
    for step in range(50):
        grads = [torch.randn(shape) * 10.0 ** (-step % 7 - 4) for shape in shapes]
        learning_rate = 1e-2 * (1 - step / 50)
        helpers.module(off_policy_script).adam_step(ours, grads, adam, learning_rate, eps=eps)
        for param, grad in zip(theirs, grads):
            param.grad = grad.clone()
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
    for param, expected in zip(ours, theirs):
        torch.testing.assert_close(param, expected.detach(), rtol=0, atol=3e-6)
    assert adam["step"] == 50


@pytest.mark.parametrize("script", VALUE)
def test_linear_schedule(script):
    schedule = helpers.module(script).linear_schedule
    assert [schedule(1.0, 0.2, 400, step) for step in (0, 100, 200, 400, 401, 10**6)] == pytest.approx(
        [1, 0.8, 0.6, 0.2, 0.2, 0.2]
    )


def test_epsilon_falls_as_the_arguments_say(tmp_path):
    flags = dict(start_e=0.9, end_e=0.1, exploration_fraction=0.5, num_envs=2, total_timesteps=800)
    run_dir, _ = helpers.train("dqn", tmp_path, **flags)
    logs = helpers.scalars(run_dir)["charts/epsilon"]
    acted_at = [step - 2 for step, _ in logs]  # the actions that led to this step were chosen before it
    assert [value for _, value in logs] == pytest.approx([max(0.9 - 0.8 * step / 400, 0.1) for step in acted_at])


# --- updates


def state_of(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def value_references(reference, args, batch, atoms):
    """The loss of dqn and c51, by hand. Gradients flow into reference.q_network only."""
    obs, actions, rewards, next_obs, terminations = batch
    rows = torch.arange(len(rewards))
    with torch.no_grad():
        next_outputs = reference.target_network(next_obs)
    outputs = reference.q_network(obs)
    if atoms is None:
        target = rewards + torch.where(terminations == 1, 0.0, args.gamma * next_outputs.amax(1))
        q_values = outputs[rows, actions.long()]
        return ((q_values - target) ** 2).mean(), q_values
    next_probs = next_outputs.reshape(len(rows), -1, len(atoms)).softmax(2).numpy()
    best = (next_probs * atoms).sum(2).argmax(1)
    next_probs = next_probs[rows, best]
    target = project_by_hand(next_probs, rewards.numpy(), terminations.numpy(), args.gamma, atoms)
    logits = outputs.reshape(len(rows), -1, len(atoms))[rows, actions.long()]
    log_probs = logits - logits.logsumexp(1, keepdim=True)
    cross_entropy = -(torch.tensor(target, dtype=torch.float32) * log_probs).sum(1)
    return cross_entropy.mean(), (log_probs.exp() * torch.tensor(atoms, dtype=torch.float32)).sum(1)


def assert_stepped(agent, reference, names, learning_rate, where):
    """The parameters of these networks are the reference's, within a small part of a step of Adam."""
    for name in names:
        for ours, theirs in zip(agent.get_submodule(name).parameters(), reference.get_submodule(name).parameters()):
            # Adam divides by the gradient's size: noise in a vanishing gradient may turn into a part of a step.
            assert (ours - theirs).abs().max() < 0.05 * learning_rate, (where, name)
            assert (ours - theirs).abs().mean() < 0.002 * learning_rate, (where, name)


def assert_unchanged(agent, before, names):
    for name, tensor in agent.state_dict().items():
        if name.split(".")[0] in names:
            assert torch.equal(tensor, before[name]), f"{name} has changed"


@pytest.mark.parametrize("script", VALUE)
def test_update_of_values(script, monkeypatch, tmp_path):
    """Every minibatch's metrics, and the parameters after it, by hand with torch.optim.Adam."""
    state = {}

    def check(update, main, tensors):
        agent, args = main["agent"], main["args"]
        if not state:
            state["reference"] = copy.deepcopy(agent)
            eps = 0.01 / args.batch_size if script in C51 else 1e-8
            params = state["reference"].q_network.parameters()
            state["optimizer"] = torch.optim.Adam(params, lr=args.learning_rate, eps=eps)
        reference, optimizer = state["reference"], state["optimizer"]
        reference.load_state_dict(agent.state_dict())  # equal before each step: errors do not add up
        before, batch = state_of(agent), main["replay"].unpack(*tensors)
        atoms = np.linspace(args.v_min, args.v_max, args.n_atoms) if script in C51 else None
        loss, q_values = value_references(reference, args, batch, atoms)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = update(*tensors)
        expected = {f"losses/{'loss' if script in C51 else 'td_loss'}": loss, "losses/q_values": q_values.mean()}
        assert set(metrics) == set(expected)
        for name, value in expected.items():
            assert not metrics[name].requires_grad and not metrics[name].shape
            torch.testing.assert_close(metrics[name], value.detach(), rtol=1e-3, atol=3e-5, msg=name)
        assert_stepped(agent, reference, ["q_network"], args.learning_rate, len(spy.calls))
        assert_unchanged(agent, before, ["target_network", "atoms"])
        # A target that was updated outside of no_grad has a history: ever longer, and the update is compiled anew.
        assert not any(param.requires_grad for param in agent.target_network.parameters())
        state["terminations"] = state.get("terminations", 0) + batch[4].sum()
        return metrics

    spy = Spy(monkeypatch, check)
    flags = dict(learning_rate=3e-3)
    if script in C51:
        flags |= dict(v_min=-3.0, v_max=7.0, n_atoms=11)
    if script.endswith("atari"):
        flags |= dict(total_timesteps=500, learning_starts=400, train_frequency=8, batch_size=16, buffer_size=600)
    logged(script, tmp_path, gamma=0.9, **flags)
    assert len(spy.calls) >= 12 and state["terminations"] > 0


def test_dqn_like_stable_baselines3(monkeypatch, tmp_path):
    """The same minibatches: the same losses and parameters as their DQN, with the squared error in place of theirs."""
    theirs = stable_baselines3.DQN(
        "MlpPolicy", "CartPole-v1", learning_rate=1e-3, gamma=0.9, max_grad_norm=1e9, device="cpu",
        policy_kwargs=dict(net_arch=[120, 84]),
    )  # fmt: skip
    theirs.set_logger(Logger(None, []))
    monkeypatch.setattr("stable_baselines3.dqn.dqn.F.smooth_l1_loss", nn.functional.mse_loss)

    def check(update, main, tensors):
        agent = main["agent"]
        obs, actions, rewards, next_obs, terminations = main["replay"].unpack(*tensors)
        parts = dict(observations=obs, actions=actions[:, None], next_observations=next_obs)
        parts |= dict(dones=terminations[:, None], rewards=rewards[:, None], discounts=None)
        theirs.replay_buffer.sample = lambda *_, **__: SimpleNamespace(**parts)
        theirs.q_net.q_net.load_state_dict(agent.q_network.state_dict())
        theirs.q_net_target.q_net.load_state_dict(agent.target_network.state_dict())
        theirs.train(1, len(obs))
        metrics = update(*tensors)
        assert metrics["losses/td_loss"].item() == pytest.approx(theirs.logger.name_to_value["train/loss"], rel=1e-4)
        for ours, param in zip(agent.q_network.parameters(), theirs.q_net.parameters()):
            assert (ours - param).abs().max() < 0.05 * 1e-3 and (ours - param).abs().mean() < 0.002 * 1e-3
        return metrics

    spy = Spy(monkeypatch, check)
    helpers.train("dqn", tmp_path, learning_rate=1e-3, gamma=0.9)
    assert len(spy.calls) > 50


def actions_by_hand(actor, obs):
    """The deterministic policy of ddpg and td3."""
    return torch.tanh(actor(obs)) * torch.tensor(SCALE) + torch.tensor(BIAS)


def sac_by_hand(actor, obs, noise):
    """sac's actions and log-probabilities, from torch.distributions."""
    mean, log_std = actor(obs).tensor_split(2, dim=1)
    std = torch.exp(-5 + 3.5 * (torch.tanh(log_std) + 1))
    raw = mean + std * noise
    slope = torch.tensor(SCALE) * (1 - torch.tanh(raw.double()) ** 2)  # of the action in raw
    log_probs = Normal(mean, std).log_prob(raw) - torch.log(slope).float()
    return torch.tanh(raw) * torch.tensor(SCALE) + torch.tensor(BIAS), log_probs.sum(1)


def q_by_hand(critic, obs, actions):
    return critic(torch.cat([obs, actions], 1))[:, 0]


def critic_losses(script, reference, args, batch, noise, alpha):
    """The losses of the critics, by hand, and the mean values."""
    obs, actions, rewards, next_obs, terminations = batch
    with torch.no_grad():
        if script == "sac":
            next_actions, next_log_probs = sac_by_hand(reference.actor, next_obs, noise)
        else:
            next_actions, next_log_probs = actions_by_hand(reference.target_actor, next_obs), 0.0
        if script == "td3":
            smoothing = torch.clamp(noise * args.policy_noise, -args.noise_clip, args.noise_clip)
            next_actions = next_actions + smoothing * torch.tensor(SCALE)
            next_actions = torch.maximum(torch.minimum(next_actions, torch.tensor(BOX.high)), torch.tensor(BOX.low))
        critics = ["qf1"] if script == "ddpg" else ["qf1", "qf2"]
        targets = [q_by_hand(reference.get_submodule(f"{name}_target"), next_obs, next_actions) for name in critics]
        next_values = torch.stack(targets).amin(0) - alpha * next_log_probs
        target = torch.where(terminations == 1, rewards, rewards + args.gamma * next_values)
    values = {name: q_by_hand(reference.get_submodule(name), obs, actions) for name in critics}
    losses = {f"{name}_loss": ((value - target) ** 2).mean() for name, value in values.items()}
    total = sum(losses.values())
    losses |= dict(qf_loss=total) if len(critics) == 2 else {}
    return total, losses | {f"{name}_values": value.mean() for name, value in values.items()}


@pytest.mark.parametrize("script, autotune", [("ddpg", None), ("td3", None), ("sac", True), ("sac", False)])
def test_update_of_actors_and_critics(script, autotune, monkeypatch, tmp_path):
    """Every update's metrics, and every parameter after it, by hand with torch.optim.Adam: an update changes what it is
    about and nothing else; the targets' step is exact."""
    state = {}

    def begin(agent, args):
        state["reference"] = reference = copy.deepcopy(agent)
        reference.requires_grad_(True)
        critics = [*reference.qf1.parameters(), *(reference.qf2.parameters() if script != "ddpg" else [])]
        rates = (args.q_lr, args.policy_lr) if script == "sac" else [args.learning_rate] * 2
        state["critic"] = torch.optim.Adam(critics, lr=rates[0])
        state["actor"] = torch.optim.Adam(reference.actor.parameters(), lr=rates[1])
        if script == "sac":
            state["alpha"] = torch.optim.Adam([reference.log_alpha], lr=args.q_lr)

    def step(optimizer, loss, **options):
        state[optimizer].zero_grad()
        loss.backward(inputs=state[optimizer].param_groups[0]["params"], **options)
        state[optimizer].step()

    def check(update, main, tensors):
        agent, args = main["agent"], main["args"]
        state or begin(agent, args)
        reference = state["reference"]
        reference.load_state_dict(agent.state_dict())  # equal before each step: errors do not add up
        before = state_of(agent)
        noise, batch = (None, tensors) if script == "ddpg" or len(tensors) == 1 else (tensors[0], tensors[1:])
        batch = main["replay"].unpack(*batch)
        if noise is not None:
            assert noise.shape == (args.batch_size, 3)
            state.setdefault("noise", []).append(noise.clone())
        alpha = 0.0 if script != "sac" else before["log_alpha"].exp() if autotune else args.alpha
        critics = ["qf1"] if script == "ddpg" else ["qf1", "qf2"]
        targets = {f"{name}_target": name for name in critics}
        targets |= dict(target_actor="actor") if script != "sac" else {}
        if update.__name__ == "update_critic":
            loss, expected = critic_losses(script, reference, args, batch, noise, alpha)
            step("critic", loss)
            changed = set(critics) | (set(targets) if script == "sac" else set())
            stepped, rate = critics, args.q_lr if script == "sac" else args.learning_rate
        else:
            obs = batch[0]
            if script == "sac":
                actions, log_probs = sac_by_hand(reference.actor, obs, noise)
                values = torch.stack([q_by_hand(reference.get_submodule(name), obs, actions) for name in critics])
                loss = (alpha * log_probs - values.amin(0)).mean()
                expected = dict(actor_loss=loss, entropy=-log_probs.mean())
            else:
                loss = -q_by_hand(reference.qf1, obs, actions_by_hand(reference.actor, obs)).mean()
                expected = dict(actor_loss=loss)
            step("actor", loss)
            if script == "sac" and autotune:  # the target entropy is -3: three dimensions
                alpha_loss = -(reference.log_alpha.exp() * (log_probs.detach() - 3)).mean()
                step("alpha", alpha_loss)
                expected |= dict(alpha_loss=alpha_loss, alpha=reference.log_alpha.exp())
            changed = {"actor"} | ({"log_alpha"} if script == "sac" and autotune else set(targets) - {"log_alpha"})
            changed -= set(targets) if script == "sac" else set()
            stepped, rate = ["actor"], args.policy_lr if script == "sac" else args.learning_rate
        metrics = update(*tensors)
        assert set(metrics) == {f"losses/{name}" for name in expected}
        for name, value in expected.items():
            assert not metrics[f"losses/{name}"].requires_grad and not metrics[f"losses/{name}"].shape
            torch.testing.assert_close(metrics[f"losses/{name}"], value.detach(), rtol=1e-3, atol=3e-5, msg=name)
        assert_stepped(agent, reference, stepped, rate, len(spy.calls))
        assert_unchanged(agent, before, {name.split(".")[0] for name in before} - changed)
        after = agent.state_dict()
        for name in set(targets) & changed:
            for key in (key for key in before if key.split(".")[0] == name):
                source = after[key.replace(name, targets[name])]
                expected_target = 0.9 * before[key].double() + 0.1 * source.double()
                torch.testing.assert_close(after[key].double(), expected_target, rtol=1e-5, atol=1e-7)
                assert not torch.equal(after[key], before[key])
        if "log_alpha" in changed:
            assert after["log_alpha"].item() == pytest.approx(reference.log_alpha.item(), abs=1e-6)
            assert after["log_alpha"] != before["log_alpha"]
        assert all(param.grad is None for param in agent.parameters())
        state["terminations"] = state.get("terminations", 0) + batch[4].sum()
        return metrics

    spy = Spy(monkeypatch, check)
    rates = dict(learning_rate=3e-3)
    if script == "sac":
        rates = dict(policy_lr=3e-3, q_lr=2e-3, autotune=autotune, alpha=0.3)
    rates |= dict(policy_noise=0.3, noise_clip=0.35) if script == "td3" else {}
    logged(script, tmp_path, tau=0.1, gamma=0.9, total_timesteps=300, **rates)
    assert spy.calls.count("update_critic") > 40 and spy.calls.count("update_actor") > 20
    assert state["terminations"] > 0
    if script != "ddpg":  # given noise is standard normal, new each time, in each dimension its own
        noise = torch.cat(state["noise"])
        assert noise.mean().abs() < 5 / noise.numel() ** 0.5 and abs(noise.std() - 1) < 4 / noise.numel() ** 0.5
        assert (torch.corrcoef(noise.T) - torch.eye(3)).abs().max() < 5 / len(noise) ** 0.5
        assert len(torch.unique(noise)) > 0.99 * noise.numel()


@pytest.mark.parametrize("script, policy_frequency", [("ddpg", 1), ("td3", 2)])
def test_ddpg_and_td3_like_stable_baselines3(script, policy_frequency, monkeypatch, tmp_path):
    """The same minibatches and noise, on BipedalWalker: the same losses, networks and targets as theirs."""
    options = dict(learning_rate=1e-3, gamma=0.9, tau=0.1)
    noises = dict(target_policy_noise=0.3, target_noise_clip=0.35) if script == "td3" else {}
    theirs = getattr(stable_baselines3, script.upper())(
        "MlpPolicy", "BipedalWalker-v3", device="cpu", policy_kwargs=dict(net_arch=[256, 256]), **options, **noises
    )
    theirs.policy_delay = policy_frequency
    theirs.set_logger(Logger(None, []))
    pairs = dict(actor=theirs.actor.mu, target_actor=theirs.actor_target.mu)
    for n in range(1, 3 if script == "td3" else 2):
        pairs |= {f"qf{n}": theirs.critic.q_networks[n - 1], f"qf{n}_target": theirs.critic_target.q_networks[n - 1]}
    terminated = []

    def compare(agent, metrics, loss, names):
        name = loss.replace("critic", "qf" if script == "td3" else "qf1")
        expected = theirs.logger.name_to_value[f"train/{loss}"]
        assert metrics[f"losses/{name}"].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)
        for name in names:
            for ours, param in zip(agent.get_submodule(name).parameters(), pairs[name].parameters(), strict=True):
                assert (ours - param).abs().max() < 0.05 * 1e-3 and (ours - param).abs().mean() < 0.002 * 1e-3, name

    def check(update, main, tensors):
        agent = main["agent"]
        if update.__name__ == "update_actor":  # theirs has trained its actor with its critics, below
            metrics = update(*tensors)
            compare(agent, metrics, "actor_loss", pairs)
            return metrics
        noise, batch = (tensors[0], tensors[1:]) if script == "td3" else (torch.zeros(()), tensors)
        obs, actions, rewards, next_obs, terminations = main["replay"].unpack(*batch)
        parts = dict(observations=obs, actions=actions, next_observations=next_obs)
        parts |= dict(dones=terminations[:, None], rewards=rewards[:, None], discounts=None)
        theirs.replay_buffer.sample = lambda *_, **__: SimpleNamespace(**parts)
        for name, network in pairs.items():
            network.load_state_dict(agent.get_submodule(name).state_dict())
        with monkeypatch.context() as patch:  # theirs draws the target policy's noise with this, ours is given it
            patch.setattr(torch.Tensor, "normal_", lambda self, mean, std: noise * std)
            theirs.train(1, len(obs))
        metrics = update(*tensors)
        compare(agent, metrics, "critic_loss", [name for name in pairs if name in ("qf1", "qf2")])
        terminated.append(terminations.sum())
        return metrics

    spy = Spy(monkeypatch, check)
    flags = dict(policy_noise=0.3, noise_clip=0.35) if script == "td3" else {}
    settings = dict(env_id="BipedalWalker-v3", policy_frequency=policy_frequency, total_timesteps=300)
    helpers.train(script, tmp_path, **settings, **options, **flags)
    assert spy.calls.count("update_critic") > 50 and spy.calls.count("update_actor") > 20
    assert sum(terminated) > 0


def in_float64(agent):
    agent.forward = lambda network, inputs: network(inputs)  # without the casts around bfloat16
    return agent.double()


def random_sac(seed=1, obs_dim=4):
    """An agent in float64 with means and widths all over their ranges, and observations and noise for it."""
    torch.manual_seed(seed)
    agent = in_float64(sac.Agent(obs_dim, BOX))
    for name, param in agent.actor.named_parameters():
        nn.init.normal_(param, std=0.12 if name != "4.bias" else 0.5)
    return agent, torch.randn(200, obs_dim, dtype=torch.float64), torch.randn(200, 3, dtype=torch.float64)


def test_sac_log_probability():
    """Against torch.distributions: tanh of a normal distribution, scaled and moved to uneven bounds."""
    agent, obs, noise = random_sac()
    actions, log_probs = agent.policy(obs, noise)
    with torch.no_grad():
        mean, log_std = agent.actor(obs).chunk(2, dim=1)
    std = torch.exp(-5 + (2 - -5) / 2 * (torch.tanh(log_std) + 1))
    assert std.min() < 0.05 and std.max() > 2  # widths of all sizes
    assert (mean + std * noise).abs().max() > 3 > (mean + std * noise).abs().median()
    scale, bias = torch.tensor(SCALE).double(), torch.tensor(BIAS).double()
    transforms = [TanhTransform(cache_size=1), AffineTransform(bias, scale, cache_size=1)]
    dist = Independent(TransformedDistribution(Normal(mean, std), transforms), 1)
    expected = mean + std * noise
    for transform in transforms:
        expected = transform(expected)
    torch.testing.assert_close(actions.detach(), expected)
    torch.testing.assert_close(log_probs.detach(), dist.log_prob(expected), rtol=1e-8, atol=1e-8)
    low, high = torch.tensor(Corner.low), torch.tensor(Corner.high)
    assert (actions >= low).all() and (actions <= high).all()


def test_sac_log_probability_is_a_density():
    """Its exponential integrates to 1 over the box: the action scale's Jacobian is in it."""
    box = Box(np.array([-1.0], dtype=np.float32), np.array([9.0], dtype=np.float32))
    agent = in_float64(sac.Agent(2, box))
    obs = torch.tensor([[0.3, -0.4]], dtype=torch.float64)
    with torch.no_grad():
        mean, log_std = agent.actor(obs).chunk(2, dim=1)
        std = torch.exp(-5 + 3.5 * (log_std.tanh() + 1))
        actions = torch.linspace(-1 + 1e-6, 9 - 1e-6, 100_001, dtype=torch.float64)[:, None]
        noise = (torch.atanh((actions - 4) / 5) - mean) / std
        same, log_probs = agent.policy(obs.expand(len(actions), 2), noise)
    torch.testing.assert_close(same, actions, rtol=1e-6, atol=1e-6)
    assert torch.trapezoid(log_probs.exp(), actions[:, 0]).item() == pytest.approx(1, abs=1e-4)


def test_sac_log_probability_far_from_zero():
    """Where tanh is 1 in float32 the log-probability and its gradients are finite, and still right."""
    agent = sac.Agent(1, BOX)
    with torch.no_grad():
        agent.actor[-1].weight.zero_()
        agent.actor[-1].bias.copy_(torch.tensor([40.0, -40.0, 15.0, 0, 0, 0]))
    actions, log_probs = agent.policy(torch.zeros(1, 1), torch.zeros(1, 3))
    log_probs.sum().backward()
    assert actions.tolist() == [[3, -2, 10]]
    std = math.exp(-1.5)
    expected = sum(
        -math.log(std) - math.log(2 * math.pi) / 2 - math.log(s) - (2 * math.log(2) - 2 * raw)
        for s, raw in zip(SCALE, (40, 40, 15))
    )
    assert log_probs.item() == pytest.approx(expected, rel=1e-5)
    assert all(param.grad.isfinite().all() for param in agent.actor.parameters())


# --- cadences


CADENCES = [(1, 1, 1, 7, 1.0), (1, 4, 1, 10, 1.0), (3, 4, 2, 10, 1.0), (3, 1, 1, 25, 0.25), (3, 20, 1, 9, 0.5)]
CADENCES += [(3, 1, 1, 1, 0.25), (6, 3, 1, 4, 1.0)]  # several updates of the target in a step


@pytest.mark.parametrize(
    "script, num_envs, train_frequency, gradient_steps, every, tau",
    [(name, *numbers) for name in ("dqn", "c51") for numbers in CADENCES]
    + [(name, *CADENCES[2]) for name in ("dqn_atari", "c51_atari")],
)
def test_target_updates(script, num_envs, train_frequency, gradient_steps, every, tau, monkeypatch, tmp_path):
    """The target network changes when the steps of all environments pass a multiple of --target-network-frequency, and
    only then, to exactly what tau says; the number of gradient steps is right too."""
    starts, total = 60, 240
    seen = []

    def check(update, main, tensors):
        before = state_of(main["agent"].target_network)
        metrics = update(*tensors)
        seen.append((before, state_of(main["agent"].q_network)))
        return metrics

    Spy(monkeypatch, check)
    agents = spy_on_agent(monkeypatch, script)
    flags = dict(learning_starts=starts, total_timesteps=total, num_envs=num_envs, batch_size=2, learning_rate=1e-2)
    flags |= dict(train_frequency=train_frequency, gradient_steps=gradient_steps, buffer_size=300)
    torch.manual_seed(0)
    logged(script, tmp_path, target_network_frequency=every, tau=tau, **flags)
    multiples = lambda step, frequency: len([s for s in range(step - num_envs + 1, step + 1) if s % frequency == 0])  # noqa: E731
    network = target = None
    updates = changes = 0
    for step in range(0, total, num_envs):
        if step <= starts:
            continue
        for _ in range(multiples(step, train_frequency) * gradient_steps):
            before, network = seen[updates]
            target = before if target is None else target
            assert all(torch.equal(before[name], target[name]) for name in before), f"at step {step}"
            updates += 1
        if (times := multiples(step, every)) and network is not None:
            changes += 1
            for name in target:
                expected = target[name].double()
                for _ in range(times):
                    expected = (1 - tau) * expected + tau * network[name].double()
                target[name] = target[name].lerp(network[name], 1 - (1 - tau) ** times)
                torch.testing.assert_close(target[name].double(), expected, rtol=1e-5, atol=1e-7)
                assert tau < 1 or torch.equal(target[name], network[name])
    assert updates == len(seen) and changes > 3
    final = agents[0].target_network.state_dict()
    assert all(torch.equal(final[name], target[name]) for name in target)


@pytest.mark.parametrize("script", helpers.OFF_POLICY_SCRIPTS)
def test_targets_start_as_copies(script, monkeypatch, tmp_path):
    """And the twin critics are two; sac's temperature starts at 1; the networks have the sizes of the paper of TD3."""
    run_dir, _ = helpers.train(script, tmp_path, learning_starts=helpers.SMALL[script]["total_timesteps"] - 2)
    state = helpers.load(run_dir)["agent"]
    pairs = dict(qf1_target="qf1", qf2_target="qf2", target_actor="actor", target_network="q_network")
    targets = [name.split(".", 1) for name in state if name.split(".")[0] in pairs]
    assert targets
    for network, rest in targets:
        assert torch.equal(state[f"{network}.{rest}"], state[f"{pairs[network]}.{rest}"]), f"{network}.{rest}"
    assert "qf2.0.weight" not in state or not torch.equal(state["qf1.0.weight"], state["qf2.0.weight"])
    assert script != "sac" or state["log_alpha"] == 0
    if script in POLICY:
        sizes = [len(state[f"{network}.{layer}.bias"]) for network in ("actor", "qf1") for layer in (0, 2)]
        assert sizes == [256] * 4


@pytest.mark.parametrize("script", POLICY)
@pytest.mark.parametrize("numbers", [(1, 1, 1, 2), (3, 2, 3, 3), (2, 5, 1, 1)])
def test_actor_updates(script, numbers, monkeypatch, tmp_path):
    """The actor learns at every policy_frequency-th update of the critics; sac's then as many times."""
    num_envs, train_frequency, gradient_steps, policy_frequency = numbers
    spy = Spy(monkeypatch, lambda update, main, tensors: update(*tensors))
    sizes = dict(num_envs=num_envs, train_frequency=train_frequency, gradient_steps=gradient_steps, batch_size=2)
    logged(script, tmp_path, **sizes, policy_frequency=policy_frequency, learning_starts=60, total_timesteps=120)
    steps = range(60 // num_envs * num_envs + num_envs, 120, num_envs)
    trainings = sum(1 for step in steps for s in range(step - num_envs + 1, step + 1) if s % train_frequency == 0)
    expected = []
    for k in range(1, trainings * gradient_steps + 1):
        expected.append("update_critic")
        if k % policy_frequency == 0:
            expected += ["update_actor"] * (policy_frequency if script == "sac" else 1)
    assert spy.calls == expected and len(expected) > 10


@pytest.mark.parametrize("script", ["ddpg", "td3"])
def test_actor_and_critics_learn_from_the_same_minibatch(script, monkeypatch, tmp_path):
    """The order of the arguments of the updates: noise first, then the minibatch, which is of the replay."""
    batches = dict(update_critic=[], update_actor=[])

    def check(update, main, tensors):
        batches[update.__name__].append(tensors[-1])
        return update(*tensors)

    Spy(monkeypatch, check)
    state = logged(script, tmp_path, policy_frequency=2)
    assert all(torch.equal(a, b) for a, b in zip(batches["update_critic"][1::2], batches["update_actor"]))
    assert state["replay"]["rows"].shape[1] == batches["update_actor"][0].shape[1] == 2 + 3 + 1 + 2 + 1


# --- actions


def biased(script, monkeypatch, bias):
    """Makes main() start with a policy (or Q-values) that ignores the observation and has this output."""
    module = helpers.module(script)

    class BiasedAgent(module.Agent):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            last = self.actor[-1] if hasattr(self, "actor") else self.q_network[-1]
            with torch.no_grad():
                last.weight.zero_()
                last.bias.copy_(torch.as_tensor(bias))

    monkeypatch.setattr(module, "Agent", BiasedAgent)


def actions_of(script, tmp_path, num_envs=4, steps=4000, **flags):
    """The actions (steps, num_envs, *shape) that the environments were given in a run without updates."""
    probe_envs.ACTIONS.clear()
    total = steps * num_envs
    sizes = dict(num_envs=num_envs, total_timesteps=total, train_frequency=10**9, save_every=0)
    logged(script, tmp_path, **{**sizes, **flags})
    actions = np.array(probe_envs.ACTIONS[:total])
    return actions.reshape(steps, num_envs, *actions.shape[1:])


def assert_independent(columns):
    """Neither between environments and dimensions nor in time."""
    columns = columns.reshape(len(columns), -1)
    bound = 5 / len(columns) ** 0.5
    assert np.abs(np.corrcoef(columns.T) - np.eye(columns.shape[1])).max() < bound
    for lag in (1, 2):
        pairs = np.corrcoef(columns[:-lag].T, columns[lag:].T)[: columns.shape[1], columns.shape[1] :]
        assert np.abs(pairs).max() < bound


@pytest.mark.parametrize("script", POLICY)
def test_random_actions_at_the_start(script, tmp_path):
    """Before learning_starts: uniform within the bounds of each dimension, in each environment its own."""
    actions = actions_of(script, tmp_path, steps=4001, learning_starts=16_000, buffer_size=1000)[:4000]
    uniform = (actions - Corner.low) / (Corner.high - Corner.low)
    for dimension in range(3):
        counts, _ = np.histogram(uniform[..., dimension], bins=20, range=(0, 1))
        expected = counts.sum() / 20
        assert counts.sum() == 16_000 and ((counts - expected) ** 2 / expected).sum() < 60  # 99.9996 %
    assert_independent(uniform)


@pytest.mark.parametrize("script", ["ddpg", "td3"])
def test_exploration_noise(script, monkeypatch, tmp_path):
    """Gaussian around the policy, with a standard deviation in units of half each dimension's range."""
    output = [0.3, -0.5, 0.1]
    biased(script, monkeypatch, output)
    actions = actions_of(script, tmp_path, learning_starts=0, exploration_noise=0.1)
    noise = ((actions - BIAS) / SCALE - np.tanh(output)) / 0.1
    count = noise[..., 0].size
    assert np.abs(noise.mean((0, 1))).max() < 5 / count**0.5
    assert np.abs(noise.std((0, 1)) - 1).max() < 4 / count**0.5
    assert np.abs((noise**4).mean((0, 1)) - 3).max() < 5 * (96 / count) ** 0.5  # Gaussian
    assert_independent(noise)


@pytest.mark.parametrize("script", ["ddpg", "td3"])
def test_actions_are_clipped_to_each_dimensions_bounds(script, monkeypatch, tmp_path):
    biased(script, monkeypatch, [9.0, -9.0, 9.0])
    actions = actions_of(script, tmp_path, steps=1000, learning_starts=0, exploration_noise=0.2)
    assert (actions >= Corner.low).all() and (actions <= Corner.high).all()
    at_the_edge = (actions == Corner.target).mean((0, 1))
    assert ((0.4 < at_the_edge) & (at_the_edge < 0.6)).all()
    spread = np.abs(actions - Corner.target) / SCALE
    assert ((0.1 < spread.std((0, 1))) & (spread.max((0, 1)) < 1.2)).all()


def test_sac_samples_its_distribution(monkeypatch, tmp_path):
    """tanh of a normal distribution with the actor's mean and log sigma, scaled to the bounds of each dimension."""
    mean, log_std = np.array([0.5, -0.8, 0.0]), np.array([0.2, 0.0, 0.3])
    biased("sac", monkeypatch, [*mean, *log_std])
    actions = actions_of("sac", tmp_path, learning_starts=0)
    raw = np.arctanh(((actions - BIAS) / SCALE).astype(np.float64).clip(-1 + 1e-9, 1 - 1e-9))
    noise = (raw - mean) / np.exp(-5 + 3.5 * (np.tanh(log_std) + 1))
    count = noise[..., 0].size
    assert np.abs(noise.mean((0, 1))).max() < 5 / count**0.5
    assert np.abs(noise.std((0, 1)) - 1).max() < 4 / count**0.5
    assert np.abs((noise**4).mean((0, 1)) - 3).max() < 5 * (96 / count) ** 0.5
    assert_independent(noise)


@pytest.mark.parametrize("script", ["dqn", "c51"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 0.0])
def test_epsilon_greedy(script, epsilon, monkeypatch, tmp_path):
    """Random with probability epsilon, in each environment by itself, among all actions; else the best one."""
    best = [[0.0, 0.0, 1.0], np.eye(11)[[5, 4, 6]].ravel() * 9][script == "c51"]  # c51: distributions around 0, -20, 20
    biased(script, monkeypatch, best)
    flags = dict(start_e=epsilon, end_e=epsilon, learning_starts=0)
    actions = actions_of(script, tmp_path, steps=5000, **flags)
    frequencies = np.stack([(actions == action).mean(0) for action in range(3)])  # (3, num_envs)
    expected = np.array([epsilon / 3, epsilon / 3, 1 - epsilon * 2 / 3])[:, None]
    assert (np.abs(frequencies - expected) <= 5 * (expected * (1 - expected) / 5000) ** 0.5 + 1e-9).all()
    if epsilon:
        assert_independent((actions == 2).astype(float))
        assert_independent((actions == 0).astype(float))


@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_acting_networks_are_the_learning_ones(off_policy_script, num_envs, monkeypatch, tmp_path):
    """numpy acts as torch would, with the weights of this moment: each action is that of the agent as it is then."""
    script, agents = off_policy_script, spy_on_agent(monkeypatch, off_policy_script)
    cls = helpers.module(script).Games if "atari" in script else environments.VectorEnv
    step, chosen, expected, weights = cls.step, [], [], []

    def spy(self, actions):
        chosen.append(np.array(actions))
        result = step(self, actions)
        with torch.no_grad():
            obs = torch.from_numpy(np.array(result[0]))
            expected.append(agents[0].act(obs).numpy())
            weights.append(sum(param.abs().sum().item() for param in agents[0].parameters()))
        return result

    monkeypatch.setattr(cls, "step", spy)
    flags = dict(num_envs=num_envs, learning_starts=60, total_timesteps=180, train_frequency=num_envs, batch_size=4)
    if script in VALUE:
        flags |= dict(start_e=0.0, end_e=0.0, learning_rate=1e-2)
        flags |= dict(n_atoms=11, v_min=-2.0, v_max=2.0) if script in C51 else {}
    elif script == "sac":
        flags |= dict(policy_lr=1e-2)
        monkeypatch.setattr(np.random, "standard_normal", np.zeros)
    else:
        flags |= dict(exploration_noise=0.0, learning_rate=1e-2)
    logged(script, tmp_path, **flags)
    after = [t for t in range(1, 180 // num_envs) if script in VALUE or t * num_envs >= 60]
    chosen, expected = (np.stack([x[t] for t in after]) for x in (chosen, [None, *expected]))
    if script in VALUE:
        np.testing.assert_array_equal(chosen, expected)
        assert len(np.unique(chosen)) > 1
    else:
        np.testing.assert_allclose(chosen, expected, rtol=1e-4, atol=1e-5)
    assert len(set(weights)) > 10  # they did learn meanwhile


# --- what is stored


def expected_rows(transitions, num_envs, steps):
    """The rows of the replay buffer, of what the environments of training say that they stepped."""
    envs = list(dict.fromkeys(id(env) for env, *_ in transitions))[:num_envs]
    rows = {env: [] for env in envs}
    for env, *parts in transitions:
        if id(env) in rows:
            rows[id(env)].append(np.concatenate([np.ravel(part) for part in parts]).astype(np.float32))
    assert all(len(rows[env]) == steps for env in envs)
    return np.stack([rows[env][t] for t in range(steps) for env in envs])


WHERE = [(script, num_envs, False) for script in ("dqn", "c51", *POLICY) for num_envs in (1, 3)]


@pytest.mark.parametrize("script, num_envs, async_envs", [*WHERE, ("dqn", 3, True), ("sac", 3, True)])
def test_what_is_stored(script, num_envs, async_envs, tmp_path):
    """Every transition as the environment had it: the true last observation of terminated and truncated episodes, a
    truncation is no termination, and no transition leads from one episode into the next."""
    probe_envs.TRANSITIONS.clear()
    sizes = dict(num_envs=num_envs, total_timesteps=300, learning_starts=250, buffer_size=1000, async_envs=async_envs)
    state = logged(script, tmp_path, **sizes)
    rows, width = state["replay"]["rows"].numpy(), 2
    assert len(rows) == 300
    if not async_envs:  # the workers' lists are their own
        np.testing.assert_array_equal(rows, expected_rows(probe_envs.TRANSITIONS, num_envs, 300 // num_envs))
    obs, next_obs, terminations = rows[:, :width], rows[:, -width - 1 : -1], rows[:, -1]
    np.testing.assert_array_equal(obs[:, 0], next_obs[:, 0])  # the same episode
    np.testing.assert_array_equal(obs[:, 1] + 1, next_obs[:, 1])  # the next step of it
    episode = np.rint(obs[:, 0] * 10).astype(int)
    over = next_obs[:, 1] == episode % 7 + 1
    np.testing.assert_array_equal(terminations, over & (episode % 2 == 0))
    assert (over & (episode % 2 == 1)).sum() > 10 < terminations.sum()


def test_what_is_stored_after_wrapping_around(off_policy_mlp_script, tmp_path):
    probe_envs.TRANSITIONS.clear()
    state = logged(off_policy_mlp_script, tmp_path, num_envs=3, total_timesteps=300, buffer_size=101)
    rows = expected_rows(probe_envs.TRANSITIONS, 3, 100)[-99:]
    position = state["replay"]["position"]
    np.testing.assert_array_equal(np.roll(state["replay"]["rows"].numpy(), -position, axis=0), rows)


@pytest.mark.parametrize("script", ["dqn_atari", "c51_atari"])
def test_what_is_stored_of_games(script, monkeypatch, tmp_path):
    """Observations, actions before FIRE takes their place, signs of rewards, lost lives as terminations, truncations
    with the last observation: as the environment gave them, when they were given."""
    module, calls, steps = helpers.module(script), [], []
    settings, add, step = module.game_settings, buffers.FrameReplayBuffer.add, module.Games.step
    monkeypatch.setattr(module, "game_settings", lambda i: settings(i) | dict(max_num_frames_per_episode=400))

    def spy_add(self, obs, actions, rewards, terminations, truncations, new_games, final_obs):
        finals = [final_obs[n].copy() if truncations[n] else None for n in range(2)]
        parts = obs, actions, rewards, terminations, truncations, new_games
        calls.append([*map(np.array, parts), finals])
        add(self, obs, actions, rewards, terminations, truncations, new_games, final_obs)

    def spy_step(self, actions):
        result = step(self, actions)
        finals = [result[4]["final_obs"][n].copy() if result[3][n] else None for n in range(2)]
        over = result[4].get("_final_info", np.zeros(2, dtype=bool))
        steps.append([np.array(part) for part in (result[0], actions, *result[1:4], over)] + [finals])
        return result

    monkeypatch.setattr(buffers.FrameReplayBuffer, "add", spy_add)
    monkeypatch.setattr(module.Games, "step", spy_step)
    flags = dict(env_id="SpaceInvadersNoFrameskip-v4", total_timesteps=500, learning_starts=480, buffer_size=600)
    flags |= dict(start_e=1.0, end_e=1.0)
    logged(script, tmp_path, **flags)
    assert len(calls) == len(steps) == 250
    for t in range(250):
        obs, actions, rewards, terminations, truncations, new_games, finals = calls[t]
        if t:
            np.testing.assert_array_equal(obs, steps[t - 1][0])
        np.testing.assert_array_equal(actions, steps[t][1])
        np.testing.assert_array_equal(rewards, np.sign(steps[t][2]))
        for ours, theirs in zip((terminations, truncations, new_games), steps[t][3:6]):
            np.testing.assert_array_equal(ours, theirs)
        for ours, theirs in zip(finals, steps[t][6]):
            assert (ours is None) == (theirs is None) and (ours is None or np.array_equal(ours, theirs))
    assert max(s[2].max() for s in steps) > 1 and sum(s[4].sum() for s in steps) >= 4
    assert all((s[5] >= s[4]).all() for s in steps)


# --- number formats


@pytest.mark.parametrize("script", POLICY)
def test_bfloat16_between_the_hidden_layers(script):
    """Outputs within bfloat16's error of float32's; the first and the last layer stay in float32."""
    module = helpers.module(script)
    exact, rough = module.Agent(5, BOX), module.Agent(5, BOX, True)
    rough.load_state_dict(exact.state_dict())
    obs, dtypes = torch.randn(64, 5), []
    network = rough.actor
    for layer in (network[0], network[2], network[4]):
        layer.register_forward_hook(lambda layer, inputs, output: dtypes.append((inputs[0].dtype, output.dtype)))
    with torch.no_grad():
        ours, theirs = rough(rough.actor, obs), exact(exact.actor, obs)
        torch.testing.assert_close(exact.actor(obs), theirs)
    assert dtypes[0] == dtypes[2] == (torch.float32, torch.float32) and dtypes[1][1] == torch.bfloat16
    assert ours.dtype == torch.float32
    difference = (ours - theirs).abs().max()
    assert 0 < difference < 0.02 * theirs.abs().max()
    assert all(tensor.dtype == torch.float32 for tensor in rough.state_dict().values())


@pytest.mark.parametrize("script", POLICY)
def test_bfloat16_in_training(script, monkeypatch, tmp_path):
    """The flag reaches the networks that learn, and gradients and parameters stay in float32."""
    agents = spy_on_agent(monkeypatch, script)
    state = logged(script, tmp_path, bf16=True)
    assert agents[0].bf16
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in state["agent"].values())


@pytest.mark.parametrize("script", ["dqn_atari", "c51_atari"])
def test_bfloat16_convolutions(script):
    module, outputs = helpers.module(script), 4 * (51 if script == "c51_atari" else 1)
    exact, rough = module.QNetwork(outputs), module.QNetwork(outputs, True)
    rough.load_state_dict(exact.state_dict())
    obs, dtypes = torch.randint(256, (4, 4, 84, 84), dtype=torch.uint8), []
    rough.head.register_forward_hook(lambda layer, inputs, output: dtypes.append((inputs[0].dtype, output.dtype)))
    with torch.no_grad():
        ours, theirs = rough(obs), exact(obs)
        torch.testing.assert_close(theirs, exact.head(exact.network(obs.float() / 255)), rtol=1e-4, atol=1e-5)
    assert dtypes == [(torch.float32, torch.float32)]
    assert 0 < (ours - theirs).abs().max() < 0.05 * theirs.abs().max()


@pytest.mark.parametrize("script", POLICY)
def test_actions_in_float64(script, tmp_path):
    """An action space of float64, as researchers' environments have it by accident."""
    gym.register("Float64-v0", Float64)
    try:
        state = logged(script, tmp_path, env_id="Float64-v0")
    finally:
        del gym.registry["Float64-v0"]
    assert all(tensor.dtype == torch.float32 for tensor in state["agent"].values())


@pytest.mark.parametrize("bound", [-0.1, 0.3])
def test_greedy_actions_in_float64(bound, monkeypatch, tmp_path):
    """In float32 these bounds lie outside: an evaluation rounds to the inside."""
    assert not Box(-0.1, 0.3, (2,), np.float64).contains(np.float64(np.full(2, np.float32(bound))))
    args = SimpleNamespace(env_id="Float64", seed=1, eval_episodes=1, track=False)
    make_env = lambda args, render_mode: gym.wrappers.RecordEpisodeStatistics(Float64())  # noqa: E731
    act = lambda obs: torch.full((1, 2), bound)  # noqa: E731
    assert utils.evaluate(act, make_env, args, torch.device("cpu"), 0, tmp_path / "eval.json")


def test_no_entropy_bonus(tmp_path):
    """sac with --alpha 0: an ablation."""
    assert logged("sac", tmp_path, autotune=False, alpha=0.0)["global_step"] > 0


class Float64(probe_envs.Constant):
    def __init__(self, render_mode=None):
        self.render_mode, self.action_space = render_mode, Box(-0.1, 0.3, (2,), np.float64)

    def step(self, action):
        assert self.action_space.contains(action), f"{action} is out of bounds"
        return super().step(action)
