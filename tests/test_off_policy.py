"""The scripts that learn from a replay buffer: updates, cadences, actions and what is stored,
against definitions.

What has the same text in several scripts (test_consistency) is tested in one of them.
"""

import copy
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.distributions import Normal

from cleanrl_lite import c51, sac
from tests import helpers, probe_envs
from tests.probe_envs import Corner, probe

# An actor and critics; the others are epsilon-greedy on Q-values.
POLICY = [name for name in helpers.OFF_POLICY_SCRIPTS if helpers.family(name) == "ddpg"]
EPSILON_GREEDY = [
    name for name in helpers.OFF_POLICY_SCRIPTS if helpers.default(name, "start_e") is not None
]
BOX = Box(Corner.low, Corner.high)
SCALE, BIAS = (
    torch.tensor(x) for x in ((Corner.high - Corner.low) / 2, (Corner.high + Corner.low) / 2)
)


def logged(script, tmp_path, **overrides):
    """A small run on probe Logged, or on a game; its checkpoint."""
    env_id = {} if script in helpers.ATARI_SCRIPTS else dict(env_id=probe("Logged", script))
    run_dir, _ = helpers.train(script, tmp_path, **{**env_id, **overrides})
    return helpers.load(run_dir)


# --- the projection


def project_by_hand(probs, rewards, terminations, gamma, atoms):
    """Each atom's probability, moved and shared between its neighbours, one by one, in float64."""
    projected = np.zeros(probs.shape)
    spacing = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    for sample in range(len(probs)):
        for atom, prob in zip(atoms, probs[sample]):
            moved = rewards[sample] + (0.0 if terminations[sample] else gamma * atom)
            moved = min(max(moved, atoms[0]), atoms[-1])
            for k, place in enumerate(atoms):
                distance = abs(moved - place) / spacing
                projected[sample, k] += prob * max(0.0, 1 - distance)
    return projected


def project(probs, rewards, terminations, gamma, atoms):
    parts = (
        torch.tensor(np.asarray(part), dtype=torch.float32)
        for part in (probs, rewards, terminations)
    )
    return c51.project_distribution(*parts, gamma, torch.tensor(atoms, dtype=torch.float32)).numpy()


@pytest.mark.parametrize(
    "v_min, v_max, n_atoms, gamma", [(-10, 10, 51, 0.99), (-3, 21, 9, 1.0), (0, 1, 2, 0.5)]
)
def test_projection(v_min, v_max, n_atoms, gamma):
    """Against the definition: with terminations, beyond the ends of the support, and exactly on
    its atoms."""
    rng = np.random.default_rng(1)
    atoms = np.linspace(v_min, v_max, n_atoms)
    probs = rng.dirichlet(np.full(n_atoms, 0.3), size=60)
    rewards = rng.uniform(-0.7, 0.7, 60) * (v_max - v_min)
    # with gamma 1 every atom falls on an atom
    spacing = atoms[1] - atoms[0]
    rewards[::3] = rng.integers(-2, 3, 20) * spacing
    rewards[1::12] = 0
    terminations = rng.random(60) < 0.3
    projected = project(probs, rewards, terminations, gamma, atoms)
    expected = project_by_hand(probs, rewards, terminations, gamma, atoms)
    # float32: atoms[1] - atoms[0] lacks digits
    np.testing.assert_allclose(projected, expected, atol=1e-4)
    np.testing.assert_allclose(projected.sum(1), 1, atol=1e-5)
    assert projected.min() >= 0


# --- updates


def values_by_hand(reference, args, batch, atoms):
    """The losses of dqn and c51; gradients flow into reference.q_network only."""
    obs, actions, rewards, next_obs, terminations = batch
    rows = torch.arange(len(rewards))
    next_outputs = reference.target_network(next_obs).detach()
    outputs = reference.q_network(obs)
    if atoms is None:
        ahead = args.gamma * next_outputs.amax(1)
        target = rewards + torch.where(terminations == 1, 0.0, ahead)
        q_values = outputs[rows, actions.long()]
        return dict(td_loss=((q_values - target) ** 2).mean(), q_values=q_values.mean())
    next_probs = next_outputs.reshape(len(rows), -1, len(atoms)).softmax(2).numpy()
    next_probs = next_probs[rows, (next_probs * atoms).sum(2).argmax(1)]
    target = project_by_hand(next_probs, rewards.numpy(), terminations.numpy(), args.gamma, atoms)
    logits = outputs.reshape(len(rows), -1, len(atoms))
    logits = logits[rows, actions.long()]
    log_probs = logits - logits.logsumexp(1, keepdim=True)
    q_values = (log_probs.exp() * torch.tensor(atoms, dtype=torch.float32)).sum(1)
    losses = -(torch.tensor(target) * log_probs).sum(1)
    return dict(loss=losses.mean(), q_values=q_values.mean())


def assert_metrics(metrics, expected):
    assert set(metrics) == {f"losses/{name}" for name in expected}
    for name, value in expected.items():
        assert not metrics[f"losses/{name}"].requires_grad
        torch.testing.assert_close(
            metrics[f"losses/{name}"].double(),
            value.detach().double(),
            rtol=1e-3,
            atol=3e-5,
            msg=name,
        )


def assert_unchanged(agent, before, names):
    for name, tensor in agent.state_dict().items():
        if name.split(".")[0] in names:
            assert torch.equal(tensor, before[name]), f"{name} has changed"


@pytest.mark.parametrize(
    "script", ["dqn", "c51", pytest.param("c51_atari", marks=pytest.mark.slow)]
)
def test_update_of_values(script, monkeypatch, tmp_path):
    """Every minibatch's metrics, and the parameters after it, by hand with torch.optim.Adam."""
    state = {}
    terminated = []
    distributional = "c51" in script

    def check(update, main, tensors):
        agent = main["agent"]
        args = main["args"]
        if not state:
            state["reference"] = copy.deepcopy(agent)
            eps = 0.01 / args.batch_size if distributional else 1e-8
            params = state["reference"].q_network.parameters()
            state["optimizer"] = torch.optim.Adam(params, lr=args.learning_rate, eps=eps)
        reference = state["reference"]
        before = copy.deepcopy(agent.state_dict())
        reference.load_state_dict(before)  # equal before each step: errors do not add up
        batch = main["replay"].unpack(*tensors)
        atoms = np.linspace(args.v_min, args.v_max, args.n_atoms) if distributional else None
        expected = values_by_hand(reference, args, batch, atoms)
        state["optimizer"].zero_grad()
        expected["loss" if distributional else "td_loss"].backward()
        state["optimizer"].step()
        metrics = update(*tensors)
        assert_metrics(metrics, expected)
        helpers.assert_stepped(agent, reference, args.learning_rate, ["q_network"])
        assert_unchanged(agent, before, ["target_network"])
        # A target that was updated outside of no_grad has a history: ever longer, and the update is
        # compiled anew.
        assert not any(param.requires_grad for param in agent.target_network.parameters())
        terminated.append(batch[4].sum())
        return metrics

    calls = helpers.spy_on_updates(monkeypatch, check)
    flags = dict(v_min=-3.0, v_max=7.0, n_atoms=11) if distributional else {}
    if script == "c51_atari":
        flags |= dict(total_timesteps=500, learning_starts=400, batch_size=16, buffer_size=600)
    logged(script, tmp_path, gamma=0.9, learning_rate=3e-3, **flags)
    assert len(calls) >= 12
    assert sum(terminated) > 0


def sac_by_hand(actor, obs, noise):
    """sac's actions and log-probabilities, from torch.distributions."""
    mean, log_std = actor(obs).tensor_split(2, dim=1)
    std = torch.exp(-5 + 3.5 * (torch.tanh(log_std) + 1))
    raw = mean + std * noise
    slope = SCALE / torch.cosh(raw.double()) ** 2  # of the action in raw
    log_probs = Normal(mean, std).log_prob(raw) - torch.log(slope).float()
    return torch.tanh(raw) * SCALE + BIAS, log_probs.sum(1)


def policy_by_hand(actor, obs):
    """The deterministic policy of ddpg and td3."""
    return torch.tanh(actor(obs)) * SCALE + BIAS


def q_by_hand(critic, obs, actions):
    return critic(torch.cat([obs, actions], 1))[:, 0]


def critic_losses(script, reference, args, batch, noise, alpha):
    obs, actions, rewards, next_obs, terminations = batch
    with torch.no_grad():
        if script == "sac":
            next_actions, next_log_probs = sac_by_hand(reference.actor, next_obs, noise)
        else:
            smoothing = (
                torch.clamp(noise * args.policy_noise, -args.noise_clip, args.noise_clip) * SCALE
            )
            next_actions = policy_by_hand(reference.target_actor, next_obs) + smoothing
            next_actions = torch.maximum(
                torch.minimum(next_actions, torch.tensor(BOX.high)), torch.tensor(BOX.low)
            )
            next_log_probs = 0.0
        targets = [
            q_by_hand(critic, next_obs, next_actions)
            for critic in (reference.qf1_target, reference.qf2_target)
        ]
        next_values = torch.stack(targets).amin(0) - alpha * next_log_probs
        target = torch.where(terminations == 1, rewards, rewards + args.gamma * next_values)
    values = {
        name: q_by_hand(reference.get_submodule(name), obs, actions) for name in ("qf1", "qf2")
    }
    losses = {}
    for name, value in values.items():
        losses[f"{name}_loss"] = ((value - target) ** 2).mean()
    return (
        losses
        | dict(qf_loss=sum(losses.values()))
        | {f"{n}_values": value.mean() for n, value in values.items()}
    )


def actor_losses(script, reference, obs, noise, alpha, autotune):
    if script == "td3":
        return dict(
            actor_loss=-q_by_hand(reference.qf1, obs, policy_by_hand(reference.actor, obs)).mean()
        )
    actions, log_probs = sac_by_hand(reference.actor, obs, noise)
    values = torch.minimum(
        q_by_hand(reference.qf1, obs, actions), q_by_hand(reference.qf2, obs, actions)
    )
    losses = {"actor_loss": (alpha * log_probs - values).mean(), "entropy": -log_probs.mean()}
    if autotune:  # the target entropy is -3: three dimensions
        too_much = log_probs.detach() - 3
        losses["alpha_loss"] = -(reference.log_alpha.exp() * too_much).mean()
    return losses


@pytest.mark.parametrize("script, autotune", [("td3", False), ("sac", True), ("sac", False)])
def test_update_of_actors_and_critics(script, autotune, monkeypatch, tmp_path):
    """Every update's metrics, and every parameter after it, by hand with torch.optim.Adam, with
    uneven bounds. An update changes what it is about and nothing else; the targets' step is
    exact; actor and critics share a batch."""
    state = {}
    noises = []
    terminated = []
    targets = dict(qf1_target="qf1", qf2_target="qf2") | (
        dict(target_actor="actor") if script == "td3" else {}
    )

    def begin(agent, rates):
        state["agent"] = reference = copy.deepcopy(agent)
        critics = [*reference.qf1.parameters(), *reference.qf2.parameters()]
        state["critic"] = torch.optim.Adam(critics, lr=rates[0])
        state["actor"] = torch.optim.Adam(reference.actor.parameters(), lr=rates[1])
        state["alpha"] = (
            torch.optim.Adam([reference.log_alpha], lr=rates[0]) if script == "sac" else None
        )

    def step(optimizer, loss):
        optimizer.zero_grad()
        loss.backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()

    def check(update, main, tensors):
        agent = main["agent"]
        args = main["args"]
        critic = update.__name__ == "update_critic"
        rates = (args.q_lr, args.policy_lr) if script == "sac" else (args.learning_rate,) * 2
        if not state:
            begin(agent, rates)
        reference = state["agent"]
        before = copy.deepcopy(agent.state_dict())
        reference.load_state_dict(before)  # equal before each step: errors do not add up
        rows, *noise = tensors
        noises.extend(noise)
        batch = main["replay"].unpack(rows)
        alpha = 0.0 if script == "td3" else before["log_alpha"].exp() if autotune else args.alpha
        if critic:
            state["rows"] = rows
            expected = critic_losses(script, reference, args, batch, *noise, alpha)
            step(state["critic"], expected["qf_loss"])
        else:
            assert torch.equal(rows, state["rows"])
            expected = actor_losses(
                script, reference, batch[0], noise and noise[0], alpha, autotune
            )
            step(state["actor"], expected["actor_loss"])
            if autotune:
                step(state["alpha"], expected["alpha_loss"])
                expected["alpha"] = reference.log_alpha.exp()
        metrics = update(*tensors)
        assert_metrics(metrics, expected)
        stepped = {"qf1", "qf2"} if critic else {"actor"}
        helpers.assert_stepped(agent, reference, rates[not critic], stepped)
        moved = set(targets) if critic == (script == "sac") else set()
        changed = stepped | moved | ({"log_alpha"} if autotune and not critic else set())
        assert_unchanged(agent, before, {name.split(".")[0] for name in before} - changed)
        after = agent.state_dict()
        for key in before:
            network, _, param = key.partition(".")
            if network not in moved:
                continue
            source = after[f"{targets[network]}.{param}"]
            expected_target = 0.9 * before[key].double() + 0.1 * source.double()
            torch.testing.assert_close(after[key].double(), expected_target, rtol=1e-5, atol=1e-7)
        if "log_alpha" in changed:
            assert after["log_alpha"].item() == pytest.approx(reference.log_alpha.item(), abs=1e-6)
        terminated.append(batch[4].sum())
        return metrics

    calls = helpers.spy_on_updates(monkeypatch, check)
    flags = dict(policy_lr=3e-3, q_lr=2e-3, autotune=autotune, alpha=0.3) if script == "sac" else {}
    flags |= dict(learning_rate=3e-3, policy_noise=0.3, noise_clip=0.35) if script == "td3" else {}
    logged(script, tmp_path, tau=0.1, gamma=0.9, total_timesteps=300, **flags)
    assert calls.count("update_critic") > 40
    assert calls.count("update_actor") > 20
    assert sum(terminated) > 0
    noise = torch.cat(noises)  # standard normal, new each time, in each dimension its own
    assert noise.mean().abs() < 5 / noise.numel() ** 0.5
    assert abs(noise.std() - 1) < 4 / noise.numel() ** 0.5
    together = torch.corrcoef(noise.T) - torch.eye(3)
    assert together.abs().max() < 5 / len(noise) ** 0.5
    assert len(torch.unique(noise)) > 0.99 * noise.numel()


# --- sac's policy


def test_sac_log_probability_far_from_zero():
    """Where tanh is 1 in float32 the log-probability and its gradients are finite, and still
    right."""
    agent = sac.Agent(1, BOX)
    agent.actor.fc3.weight.data.zero_()
    bias = torch.tensor([40.0, -40.0, 15.0, 0, 0, 0])
    agent.actor.fc3.bias.data.copy_(bias)
    actions, log_probs = agent.policy(torch.zeros(1, 1), torch.zeros(1, 3))
    log_probs.sum().backward()
    assert actions.tolist() == [[3, -2, 10]]
    slopes = [
        math.log(scale) + 2 * math.log(2) - 2 * raw
        for scale, raw in zip(SCALE, (40, 40, 15), strict=True)
    ]
    assert log_probs.item() == pytest.approx(
        3 * (1.5 - math.log(2 * math.pi) / 2) - sum(slopes), rel=1e-5
    )
    assert all(param.grad.isfinite().all() for param in agent.actor.parameters())


# --- cadences


def expected_updates(script, args):
    """[(environment steps so far, what is updated)] of a whole run.

    After each step of the environments but the last one, beyond learning_starts: one training
    for each multiple of train_frequency among the environment steps that it was, then one update
    of the target network for each multiple of target_network_frequency. An actor learns at
    every policy_frequency-th gradient step (sac: that often).
    """
    updates = []
    gradient_steps = 0
    for step in range(args.num_envs, args.total_timesteps, args.num_envs):
        if step <= args.learning_starts:
            continue
        passed = range(step - args.num_envs + 1, step + 1)
        due = sum(number % args.train_frequency == 0 for number in passed)
        for _ in range(args.gradient_steps * due):
            gradient_steps += 1
            if script not in POLICY:
                updates.append((step, "update"))
                continue
            updates.append((step, "update_critic"))
            if gradient_steps % args.policy_frequency == 0:
                as_often = script in ("sac", "tqc")
                updates += [(step, "update_actor")] * (args.policy_frequency if as_often else 1)
        if script not in POLICY:
            every = args.target_network_frequency
            times = sum(number % every == 0 for number in passed)
            targets = 2 if script == "sac_discrete" else 1
            updates += [(step, "target")] * times * targets
    return updates


CADENCES = [(1, 1, 1), (3, 4, 2), (8, 10, 1), (8, 1, 1)]
CORE = ["dqn", "c51", "ddpg", "td3", "sac"]
VECTORS = [name for name in helpers.OFF_POLICY_SCRIPTS if name in helpers.MLP_SCRIPTS]


@pytest.mark.parametrize(
    "script, num_envs, train_frequency, gradient_steps",
    [(script, *cadence) for script in CORE for cadence in CADENCES]
    + [(script, 3, 4, 2) for script in VECTORS if script not in CORE],
)
def test_number_of_gradient_steps(
    script, num_envs, train_frequency, gradient_steps, monkeypatch, tmp_path
):
    """Every update at its step, whatever the step count grows by; the targets' rhythm is their
    own."""
    flags = dict(
        num_envs=num_envs,
        train_frequency=train_frequency,
        gradient_steps=gradient_steps,
        total_timesteps=240,
        learning_starts=50,
        env_id=probe("Scripted", script),
    )
    flags |= dict(policy_frequency=3) if script in POLICY else dict(target_network_frequency=7)
    updates = []
    steps = [0]

    def check(update, main, tensors):  # none is made
        updates.append((steps[0], update.__name__))
        return {"losses/none": torch.zeros(())}

    def count(envs, actions, result):
        return steps.__setitem__(0, steps[0] + envs.num_envs)

    def note(target, network, tau):
        return updates.append((steps[0], "target"))

    monkeypatch.setattr(helpers.module(script), "update_target", note, raising=False)
    helpers.spy_on_steps(monkeypatch, script, count)
    helpers.spy_on_updates(monkeypatch, check)
    helpers.train(script, tmp_path, **flags)
    assert steps[0] == 240
    assert updates == expected_updates(script, helpers.small_args(script, tmp_path, **flags))
    assert len(updates) > 18


DELAYED = [name for name in helpers.SCRIPTS if helpers.default(name, "policy_frequency")]


def learns_as_often_after_a_resume(script, monkeypatch, tmp_path, **flags):
    """The actor learns after every third update of the critics, also where a run is resumed in
    between."""
    names = helpers.spy_on_updates(monkeypatch)
    flags |= dict(train_frequency=1, policy_frequency=3, learning_starts=20, batch_size=4)
    run_dir, _ = helpers.train(script, tmp_path, num_envs=1, total_timesteps=32, **flags)
    assert names.count("update_critic") % 3
    helpers.train(script, tmp_path, num_envs=1, total_timesteps=50, resume=str(run_dir), **flags)
    critics = 0
    actor = set()
    for name in names:
        critics += name == "update_critic"
        if name == "update_actor":
            actor.add(critics)
    assert critics > 25
    assert actor == {*range(3, critics + 1, 3)}


@pytest.mark.parametrize("script", [name for name in DELAYED if name not in helpers.MJX_SCRIPTS])
def test_a_resumed_actor_learns_as_often(script, monkeypatch, tmp_path):
    learns_as_often_after_a_resume(script, monkeypatch, tmp_path)


@pytest.mark.parametrize("num_envs, every, tau", [(1, 10, 1.0), (3, 25, 0.25)])
def test_target_updates(num_envs, every, tau, monkeypatch, tmp_path):
    """The target network goes that part of the way, and nothing else changes it."""
    module = helpers.module("dqn")
    targets = []

    def spy(target, network, tau):
        before = [param.clone() for param in target.parameters()]
        assert not targets or all(map(torch.equal, before, targets[-1]))
        update_target(target, network, tau)
        targets.append([param.clone() for param in target.parameters()])
        for after, old, new in zip(targets[-1], before, network.parameters(), strict=True):
            expected = old + tau * (new - old)
            torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-7)

    update_target = module.update_target
    monkeypatch.setattr(module, "update_target", spy)
    flags = dict(learning_starts=60, total_timesteps=240, num_envs=num_envs, learning_rate=1e-2)
    helpers.train("dqn", tmp_path, target_network_frequency=every, tau=tau, **flags)
    assert len(targets) > 3


@pytest.mark.parametrize(
    "script", helpers.others_slow(helpers.OFF_POLICY_SCRIPTS, ["dqn", "c51", "td3", "sac", "tqc"])
)
def test_targets_start_as_copies(script, tmp_path):
    """The twin critics are two; sac's temperature starts at 1; the policy's networks have layers of
    256 units."""
    total = helpers.SMALL[script]["total_timesteps"]
    run_dir, _ = helpers.train(script, tmp_path, learning_starts=total - 2)
    state = helpers.load(run_dir)["agent"]
    pairs = dict(target_actor="actor", target_network="q_network")
    targets = [name for name in state if "target" in name]
    for name in targets:
        network, rest = name.split(".", 1)
        source = pairs.get(network, network.removesuffix("_target"))
        assert torch.equal(state[name], state[f"{source}.{rest}"]), name
    assert bool(targets) == hasattr(helpers.module(script), "update_target")
    if "qf2.fc1.weight" in state:
        assert not torch.equal(state["qf1.fc1.weight"], state["qf2.fc1.weight"])
    assert script != "sac" or state["log_alpha"] == 0
    if script in POLICY:
        critic = "qfs.0" if "qfs.0.fc1.bias" in state else "qf1"
        hidden = [
            f"{network}.{layer}.bias" for network in ("actor", critic) for layer in ("fc1", "fc2")
        ]
        assert {len(state[name]) for name in hidden} == {256}


@pytest.mark.parametrize("script", helpers.others_slow(EPSILON_GREEDY, ["dqn", "rainbow"]))
def test_epsilon_falls_by_environment_steps(script, tmp_path):
    """From start_e at step 0 to end_e after that part of the run; logged is what the last action
    was chosen with."""
    flags = dict(
        start_e=0.9,
        end_e=0.1,
        exploration_fraction=0.5,
        num_envs=4,
        total_timesteps=400,
        learning_starts=400,
    )
    if "rainbow" in script:
        flags |= dict(noisy=False)
    run_dir, _ = helpers.train(script, tmp_path, **flags)
    logged = dict(helpers.scalars(run_dir)["charts/epsilon"])
    expected = {100: 0.9 - 0.8 * 96 / 200, 200: 0.9 - 0.8 * 196 / 200}
    expected |= {300: 0.1, 400: 0.1}
    assert logged == pytest.approx(expected)


# --- actions


def actions_of(script, monkeypatch, tmp_path, bias=None, num_envs=4, steps=4000, **flags):
    """The actions (steps, num_envs, *shape) of a run without updates; with `bias` the policy (or
    the Q-values) ignores the observation and has this output."""
    module = helpers.module(script)

    class BiasedAgent(module.Agent):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            if bias is not None:
                network = self.actor if hasattr(self, "actor") else self.q_network
                *_, last = (x for x in network.modules() if isinstance(x, nn.Linear))
                last.weight.data.zero_()
                last.bias.data.copy_(torch.as_tensor(bias))

    monkeypatch.setattr(module, "Agent", BiasedAgent)
    probe_envs.ACTIONS.clear()
    sizes = dict(
        num_envs=num_envs, total_timesteps=steps * num_envs, train_frequency=10**9, save_every=0
    )
    logged(script, tmp_path, **{**sizes, **flags})
    actions = np.array(probe_envs.ACTIONS[: steps * num_envs])
    return actions.reshape(steps, num_envs, *actions.shape[1:])


def assert_independent(columns):
    """Neither between environments and dimensions nor in time."""
    columns = columns.reshape(len(columns), -1)
    bound = 5 / len(columns) ** 0.5
    number = columns.shape[1]
    together = np.corrcoef(columns.T) - np.eye(number)
    assert np.abs(together).max() < bound
    for lag in (1, 2):
        together = np.corrcoef(columns[:-lag].T, columns[lag:].T)
        pairs = together[:number, number:]
        assert np.abs(pairs).max() < bound


def assert_standard_normal(noise):
    count = noise[..., 0].size
    assert np.abs(noise.mean((0, 1))).max() < 5 / count**0.5
    too_wide = noise.std((0, 1)) - 1
    assert np.abs(too_wide).max() < 4 / count**0.5
    fourth_moments = (noise**4).mean((0, 1))
    assert np.abs(fourth_moments - 3).max() < 5 * (96 / count) ** 0.5
    assert_independent(noise)


@pytest.mark.parametrize("script", ["td3", "sac"])
def test_random_actions_at_the_start(script, monkeypatch, tmp_path):
    """Before learning_starts: uniform within the bounds of each dimension, in each environment
    its own."""
    sizes = dict(steps=4001, learning_starts=16_000, buffer_size=1000)
    uniform = (actions_of(script, monkeypatch, tmp_path, **sizes)[:4000] - Corner.low) / (
        Corner.high - Corner.low
    )
    for dimension in range(3):
        numbers = uniform[..., dimension]
        counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
        assert counts.sum() == 16_000
        chi_square = ((counts - 800) ** 2 / 800).sum()
        assert chi_square < 60  # 99.9996 %
    assert_independent(uniform)


@pytest.mark.parametrize("script", helpers.others_slow(["ddpg", "td3"], ["td3"]))
def test_exploration_noise(script, monkeypatch, tmp_path):
    """Gaussian around the policy, with a standard deviation in units of half each dimension's
    range."""
    output = [0.3, -0.5, 0.1]
    flags = dict(learning_starts=0, exploration_noise=0.1)
    actions = actions_of(script, monkeypatch, tmp_path, output, **flags)
    scaled = (actions - BIAS.numpy()) / SCALE.numpy()
    noise = scaled - np.tanh(output)
    assert_standard_normal(noise / 0.1)


def test_actions_are_clipped_to_each_dimensions_bounds(monkeypatch, tmp_path):
    flags = dict(steps=1000, learning_starts=0, exploration_noise=0.2)
    actions = actions_of("td3", monkeypatch, tmp_path, [9.0, -9.0, 9.0], **flags)
    assert (actions >= Corner.low).all()
    assert (actions <= Corner.high).all()
    at_target = (actions == Corner.target).mean((0, 1))
    assert np.abs(at_target - 0.5).max() < 0.1
    spread = np.abs(actions - Corner.target) / SCALE.numpy()
    assert (spread.std((0, 1)) > 0.1).all()
    assert (spread.max((0, 1)) < 1.2).all()


SAC = ["sac", "tqc", "crossq"]


@pytest.mark.parametrize("script", SAC)
def test_rounding_does_not_leave_the_bounds(script, monkeypatch, tmp_path):
    """Where tanh is 1, its product with the scale plus the bias is beyond these bounds, by
    rounding; the environment refuses that."""
    output = [40.0] * 3 + [-9.0] * 3
    flags = dict(env_id="tests.probe_envs:ProbeEdge-v0", learning_starts=0, steps=20, num_envs=1)
    actions = actions_of(script, monkeypatch, tmp_path, output, **flags)
    assert (actions == probe_envs.Edge.high).all()


@pytest.mark.parametrize("script", helpers.others_slow(SAC, ["sac"]))
def test_sac_samples_its_distribution(script, monkeypatch, tmp_path):
    """tanh of a normal distribution with the actor's mean and log sigma, scaled to the bounds of
    each dimension."""
    mean = np.array([0.5, -0.8, 0.0])
    log_std = np.array([0.2, 0.0, 0.3])
    output = [*mean, *log_std]
    actions = actions_of(script, monkeypatch, tmp_path, output, learning_starts=0)
    raw = np.arctanh(
        ((actions - BIAS.numpy()) / SCALE.numpy()).astype(np.float64).clip(-1 + 1e-9, 1 - 1e-9)
    )
    std = np.exp(-5 + 3.5 * (np.tanh(log_std) + 1))
    assert_standard_normal((raw - mean) / std)


@pytest.mark.parametrize("script", ["dqn", "c51"])
def test_epsilon_greedy(script, monkeypatch, tmp_path):
    """Random with probability epsilon, in each environment by itself, among all actions; else
    the best one."""
    # c51: distributions around 0, -20, 20
    best = [0.0, 0.0, 1.0]
    if script == "c51":
        best = 9 * np.eye(11)[[5, 4, 6]].ravel()
    epsilon = 0.3
    flags = dict(steps=3000, start_e=0.3, end_e=0.3, learning_starts=0)
    actions = actions_of(script, monkeypatch, tmp_path, best, **flags)
    frequencies = np.stack([(actions == action).mean(0) for action in range(3)])  # (3, num_envs)
    other = epsilon / 3
    expected = np.array([[other], [other], [1 - 2 * other]])
    deviations = (expected * (1 - expected) / 3000) ** 0.5
    assert (np.abs(frequencies - expected) <= 5 * deviations).all()
    assert_independent((actions == 2).astype(float))
    assert_independent((actions == 0).astype(float))


ACTING = ["dqn", "c51", *POLICY, "sac_discrete"]


@pytest.mark.parametrize("script", helpers.others_slow([*ACTING, "dqn_atari", "sac_atari"], ACTING))
def test_the_acting_networks_are_the_learning_ones(script, monkeypatch, tmp_path):
    """numpy acts as torch would, with the weights of this moment: each action is that of the
    agent as it is then."""
    chosen = []
    expected = [None]
    weights = set()
    agents = helpers.spy_on_agents(monkeypatch, script)

    def note(envs, actions, result):
        chosen.append(np.array(actions))
        with torch.no_grad():
            obs = torch.from_numpy(np.array(result[0]))
            expected.append(agents[0].act(obs).numpy())
        sizes = [param.abs().sum().item() for param in agents[0].parameters()]
        weights.add(sum(sizes))

    helpers.spy_on_steps(monkeypatch, script, note)
    flags = dict(
        num_envs=3, learning_starts=60, total_timesteps=150, train_frequency=3, batch_size=4
    )
    stochastic = "sac" in helpers.lineage(script)
    soft = stochastic or script.startswith("sac_")
    flags |= dict(policy_lr=1e-2) if soft else dict(learning_rate=1e-2)
    if soft:
        monkeypatch.setattr(torch.Tensor, "exponential_", lambda noise: noise.fill_(1.0))
        monkeypatch.setattr(torch, "randn", torch.zeros)
    elif script == "fast_td3":
        flags |= dict(std_min=0.0, std_max=0.0)
    elif script in POLICY:
        flags |= dict(exploration_noise=0.0)
    else:
        flags |= dict(start_e=0.0, end_e=0.0)
        flags |= dict(n_atoms=11, v_min=-2.0, v_max=2.0) if "c51" in script else {}
    logged(script, tmp_path, **flags)
    for t in range(20 if soft or script in POLICY else 1, 50):
        np.testing.assert_allclose(chosen[t], expected[t], rtol=1e-4, atol=1e-5)
    # it did learn meanwhile, and not always the same
    assert len(weights) > 10
    assert len(np.unique(chosen)) > 1


# --- what is stored


def test_what_is_stored(off_policy_mlp_script, tmp_path):
    """Every transition as the environment had it, also after wrapping around: the true last
    observation of terminated and truncated episodes; a truncation is no termination; none leads
    from one episode into the next."""
    probe_envs.TRANSITIONS.clear()
    num_envs, buffer_size = 3, 101
    sizes = dict(
        num_envs=num_envs, total_timesteps=300, learning_starts=250, buffer_size=buffer_size
    )
    state = logged(off_policy_mlp_script, tmp_path, **sizes)["replay"]
    stepped = [
        np.concatenate([np.ravel(part) for part in parts])
        for _, *parts in probe_envs.TRANSITIONS[:300]
    ]
    # where there are windows of n steps: the step of the episode, which the observation has too
    rows = state["rows"].numpy()
    rows, steps = np.split(rows, [len(stepped[0])], axis=1)
    assert (steps == rows[:, 1:2]).all()
    windows = helpers.default(off_policy_mlp_script, "n_step") is not None
    assert (steps.size > 0) == windows
    length = min(300, buffer_size // num_envs * num_envs)
    np.testing.assert_array_equal(
        np.roll(rows, -state["position"], axis=0), np.float32(stepped[-length:])
    )
    obs = rows[:, :2]
    next_obs = rows[:, -3:-1]
    terminations = rows[:, -1]
    # the same episode, its next step
    changes = np.float32([[0, 1]] * length)
    np.testing.assert_array_equal(next_obs - obs, changes)
    lengths = np.rint(obs[:, 0] * 10) % 7 + 1
    ends = next_obs[:, 1] == lengths
    assert 5 < terminations.sum() < ends.sum() - 5
    assert (terminations <= ends).all()


@pytest.mark.parametrize(
    "script", [name for name in helpers.OFF_POLICY_SCRIPTS if name in helpers.ATARI_SCRIPTS]
)
def test_what_is_stored_of_games(script, monkeypatch, tmp_path):
    """Observations, the agent's actions before FIRE takes their place, signs of rewards, lost
    lives as terminations, truncations with the last observation, and where a new game begins: as
    the environment gave them."""
    adds = []
    steps = []
    module = helpers.module(script)
    settings = module.game_settings
    add = module.FrameReplayBuffer.add

    def short_games(args):
        return settings(args) | dict(max_num_frames_per_episode=1400)

    def spy(replay, *parts):
        adds.append(copy.deepcopy(parts))
        add(replay, *parts)

    def note(envs, actions, result):
        steps.append(copy.deepcopy((actions, *result)))

    monkeypatch.setattr(module, "game_settings", short_games)
    monkeypatch.setattr(module.FrameReplayBuffer, "add", spy)
    helpers.spy_on_steps(monkeypatch, script, note)
    flags = dict(env_id="SpaceInvadersNoFrameskip-v4", total_timesteps=1600, learning_starts=1598)
    if script in EPSILON_GREEDY:
        flags |= dict(end_e=1.0)
    if "rainbow" in script:
        flags |= dict(noisy=False)
    logged(script, tmp_path, **flags)
    assert len(adds) == len(steps) == 800
    ends = truncated = lost = best = 0
    for t, (actions, _, rewards, terminations, truncations, infos) in enumerate(steps):
        obs, *stored, final_obs = adds[t]
        if t > 0:
            np.testing.assert_array_equal(obs, steps[t - 1][1])
        new_games = infos["_final_info"]
        expected = actions, np.sign(rewards), terminations, truncations, new_games
        for ours, theirs in zip(stored, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        for n in np.flatnonzero(truncations):
            np.testing.assert_array_equal(final_obs[n], infos["final_obs"][n])
        ends += new_games.sum()
        truncated += truncations.sum()
        lost += (terminations & ~new_games).sum()
        best = max(best, rewards.max())
    assert ends >= truncated >= 4
    assert lost >= 1
    assert best > 1


def test_update_target_copies_buffers(off_policy_script):
    """Such as running statistics, which a copy may put into a network."""
    module = helpers.module(off_policy_script)
    if not hasattr(module, "update_target"):
        return
    target, network = (torch.nn.BatchNorm1d(3) for _ in range(2))
    network(torch.randn(8, 3))
    assert not torch.equal(target.running_mean, network.running_mean)
    module.update_target(target, network, 0.005)
    for old, new in zip(target.buffers(), network.buffers(), strict=True):
        assert torch.equal(old, new)
