"""The scripts that learn from a replay buffer: losses, what main does and when, actions and what is
stored, against definitions.

What has the same text in several scripts (test_consistency) is tested in one of them.
"""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal

from cleanrl_lite import c51, sac
from tests import helpers, probe_envs
from tests.probe_envs import Corner, probe
from tests.shadow import Shadow, expected_events

# An actor and critics; the others are epsilon-greedy on Q-values.
POLICY = [name for name in helpers.OFF_POLICY_SCRIPTS if helpers.family(name) == "ddpg"]
EPSILON_GREEDY = [
    name for name in helpers.OFF_POLICY_SCRIPTS if helpers.default(name, "start_e") is not None
]
VECTORS = [name for name in helpers.OFF_POLICY_SCRIPTS if name in helpers.MLP_SCRIPTS]
LOW, HIGH = torch.from_numpy(Corner.low), torch.from_numpy(Corner.high)
SCALE, BIAS = (HIGH - LOW) / 2, (HIGH + LOW) / 2


def logged(script, tmp_path, **overrides):
    """A small run on probe Logged; its directory."""
    probe_envs.TRANSITIONS.clear()
    run_dir, _ = helpers.train(script, tmp_path, **{"env_id": probe("Logged", script), **overrides})
    return run_dir


# --- losses, by direct calls


def agent_and_batch(script, **flags):
    """On probe Logged: three actions, or three dimensions with uneven bounds."""
    flags = dict(env_id=probe("Logged", script), gamma=0.9, **flags)
    args, agent = helpers.agent_of(script, **flags)
    return args, agent, helpers.random_batch(script, args, agent)


def gradients(loss, agent):
    """{name: gradient} of all parameters that the loss moves."""
    params = {name: param for name, param in agent.named_parameters() if param.requires_grad}
    grads = torch.autograd.grad(loss, params.values(), retain_graph=True, allow_unused=True)
    found = dict(zip(params, grads, strict=True))
    return {name: grad for name, grad in found.items() if grad is not None and grad.any()}


def assert_loss(loss, by_hand, agent):
    """The same number, the same gradients, and in the same parameters only."""
    torch.testing.assert_close(loss.double(), by_hand.double(), rtol=1e-4, atol=1e-5)
    ours, theirs = gradients(loss, agent), gradients(by_hand, agent)
    assert ours.keys() == theirs.keys() and ours
    for name, grad in ours.items():
        atol = 1e-4 * theirs[name].abs().max().item()
        torch.testing.assert_close(grad, theirs[name], rtol=1e-3, atol=atol, msg=name)


def assert_metrics(metrics, by_hand):
    assert set(metrics) == {f"losses/{name}" for name in by_hand}
    for name, value in by_hand.items():
        found = metrics[f"losses/{name}"].double()
        torch.testing.assert_close(found, value.double(), rtol=1e-4, atol=1e-5, msg=name)


def project_by_hand(probs, rewards, terminations, gamma, atoms):
    """Each atom's probability, moved and shared between its neighbours, one by one, in float64."""
    projected = np.zeros(probs.shape)
    spacing = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    for sample in range(len(probs)):
        for atom, prob in zip(atoms, probs[sample], strict=True):
            moved = rewards[sample] + (0.0 if terminations[sample] else gamma * atom)
            moved = min(max(moved, atoms[0]), atoms[-1])
            for k, place in enumerate(atoms):
                distance = abs(moved - place) / spacing
                projected[sample, k] += prob * max(0.0, 1 - distance)
    return projected


def test_dqns_loss():
    args, agent, batch = agent_and_batch("dqn")
    loss, metrics = helpers.module("dqn").td_loss(args, agent, batch)
    every = agent.target_network(batch.next_obs).detach()
    targets = [
        float(reward) + (0.0 if over else 0.9 * float(values.max()))
        for reward, values, over in zip(batch.rewards, every, batch.terminations, strict=True)
    ]
    taken = agent.q_network(batch.obs)[range(64), batch.actions.tolist()]
    by_hand = ((taken - torch.tensor(targets)) ** 2).sum() / 64
    assert_loss(loss, by_hand, agent)
    assert_metrics(metrics, dict(td_loss=by_hand, q_values=taken.mean()))


def test_c51s_loss():
    """With rewards beyond the ends of the support, and exactly on its atoms."""
    args, agent, batch = agent_and_batch("c51", v_min=-3.0, v_max=7.0, n_atoms=11)
    batch.rewards.mul_(5)[::3] = batch.rewards[::3].round()
    loss, metrics = c51.c51_loss(args, agent, batch)
    atoms = np.linspace(-3, 7, 11)
    probs = agent.target_network(batch.next_obs).reshape(64, 3, 11).softmax(2).detach().numpy()
    probs = probs[range(64), (probs * atoms).sum(2).argmax(1)]
    numbers = batch.rewards.numpy(), batch.terminations.numpy()
    target = torch.from_numpy(project_by_hand(probs, *numbers, 0.9, atoms))
    logits = agent.q_network(batch.obs).reshape(64, 3, 11)[range(64), batch.actions.tolist()]
    log_probs = logits.double() - logits.double().logsumexp(1, keepdim=True)
    by_hand = -(target * log_probs).sum() / 64
    assert_loss(loss, by_hand, agent)
    q_values = (log_probs.exp() * torch.from_numpy(atoms)).sum(1).mean()
    assert_metrics(metrics, dict(loss=by_hand, q_values=q_values))


def critic(network, obs, actions):
    return network(torch.cat([obs, actions], 1))[:, 0]


def policy_by_hand(actor, obs):
    """The deterministic policy of ddpg and td3."""
    return torch.tanh(actor(obs)) * SCALE + BIAS


def critics_by_hand(agent, batch, targets, names=("qf1", "qf2")):
    """The critics' losses and metrics, with the values after each transition."""
    ahead = torch.where(batch.terminations == 1, 0.0, 0.9 * targets)
    found = {}
    for name in names:
        values = critic(agent.get_submodule(name), batch.obs, batch.actions)
        found[f"{name}_loss"] = ((values - batch.rewards - ahead) ** 2).mean()
        found[f"{name}_values"] = values.mean()
    return found


def test_ddpgs_losses():
    args, agent, batch = agent_and_batch("ddpg")
    loss, metrics = helpers.module("ddpg").critic_loss(args, agent, batch)
    with torch.no_grad():
        actions = policy_by_hand(agent.target_actor, batch.next_obs)
        targets = critic(agent.qf1_target, batch.next_obs, actions)
    by_hand = critics_by_hand(agent, batch, targets, ["qf1"])
    assert_loss(loss, by_hand["qf1_loss"], agent)
    assert_metrics(metrics, by_hand)


def test_td3s_losses():
    """Smoothing noise is clipped, in units of each dimension; the action with it, to the bounds."""
    args, agent, batch = agent_and_batch("td3", policy_noise=1.0, noise_clip=0.9)
    noise = torch.randn(64, 3)
    loss, metrics = helpers.module("td3").critic_loss(args, agent, batch, noise)
    with torch.no_grad():
        actions = policy_by_hand(agent.target_actor, batch.next_obs)
        limit = torch.full((3,), 0.9)
        smooth = actions + SCALE * torch.minimum(torch.maximum(noise, -limit), limit)
        inside = torch.maximum(torch.minimum(smooth, HIGH), LOW)
        assert 0.1 < (smooth != inside).float().mean() < 0.9
        pair = [critic(net, batch.next_obs, inside) for net in (agent.qf1_target, agent.qf2_target)]
    by_hand = critics_by_hand(agent, batch, torch.stack(pair).amin(0))
    by_hand["qf_loss"] = by_hand["qf1_loss"] + by_hand["qf2_loss"]
    assert_loss(loss, by_hand["qf_loss"], agent)
    assert_metrics(metrics, by_hand)
    loss, metrics = helpers.module("td3").actor_loss(args, agent, batch)
    by_hand = -critic(agent.qf1, batch.obs, policy_by_hand(agent.actor, batch.obs)).mean()
    assert_loss(loss, by_hand, agent)
    assert_metrics(metrics, dict(actor_loss=by_hand))


def sac_by_hand(actor, obs, noise):
    """sac's actions and log-probabilities, from torch.distributions."""
    mean, log_std = actor(obs).tensor_split(2, dim=1)
    std = torch.exp(-5 + 3.5 * (torch.tanh(log_std) + 1))
    raw = mean + std * noise
    slope = SCALE / torch.cosh(raw.double()) ** 2  # of the action in raw
    log_probs = Normal(mean, std).log_prob(raw) - torch.log(slope).float()
    return torch.tanh(raw) * SCALE + BIAS, log_probs.sum(1)


@pytest.mark.parametrize("autotune", [True, False])
def test_sacs_losses(autotune):
    args, agent, batch = agent_and_batch("sac", autotune=autotune, alpha=0.3)
    agent.log_alpha.data.fill_(-0.4)
    alpha = math.exp(-0.4) if autotune else 0.3
    noise = torch.randn(64, 3)
    loss, metrics = sac.critic_loss(args, agent, batch, noise)
    with torch.no_grad():
        actions, log_probs = sac_by_hand(agent.actor, batch.next_obs, noise)
        networks = agent.qf1_target, agent.qf2_target
        pair = [critic(network, batch.next_obs, actions) for network in networks]
    targets = torch.stack(pair).amin(0) - alpha * log_probs
    by_hand = critics_by_hand(agent, batch, targets)
    by_hand["qf_loss"] = by_hand["qf1_loss"] + by_hand["qf2_loss"]
    assert_loss(loss, by_hand["qf_loss"], agent)
    assert_metrics(metrics, by_hand)

    loss, alpha_loss, metrics = sac.actor_loss(args, agent, batch, noise)
    actions, log_probs = sac_by_hand(agent.actor, batch.obs, noise)
    pair = critic(agent.qf1, batch.obs, actions), critic(agent.qf2, batch.obs, actions)
    by_hand = (alpha * log_probs - torch.minimum(*pair)).mean()
    assert_loss(loss, by_hand, agent)
    # the target entropy is -3: three dimensions
    of_alpha = -(agent.log_alpha.exp() * (log_probs.detach() - 3)).mean()
    assert_loss(alpha_loss, of_alpha, agent)
    assert_metrics(metrics, dict(actor_loss=by_hand, entropy=-log_probs.mean()))


def test_sac_log_probability_far_from_zero():
    """Where tanh is 1 in float32 the log-probability and its gradients are finite, and still
    right."""
    _, agent = helpers.agent_of("sac", env_id=probe("Logged", "sac"))
    agent.actor.fc3.weight.data.zero_()
    agent.actor.fc3.bias.data.copy_(torch.tensor([40.0, -40.0, 15.0, 0, 0, 0]))
    actions, log_probs = agent.policy(torch.zeros(1, 2), torch.zeros(1, 3))
    log_probs.sum().backward()
    assert actions.tolist() == [[3, -2, 10]]
    slopes = SCALE.log() + 2 * math.log(2) - 2 * torch.tensor([40.0, 40, 15])
    expected = 3 * (1.5 - math.log(2 * math.pi) / 2) - slopes.sum().item()
    assert log_probs.item() == pytest.approx(expected, rel=1e-5)
    assert all(param.grad.isfinite().all() for param in agent.actor.parameters())


# --- what main does, and when

CADENCES = [(1, 1, 1), (8, 10, 1), (8, 1, 1)]


@pytest.mark.parametrize(
    "script, num_envs, train_frequency, gradient_steps",
    [(script, 3, 4, 2) for script in VECTORS] + [("dqn", *cadence) for cadence in CADENCES],
)
def test_every_step_of_a_run(
    script, num_envs, train_frequency, gradient_steps, monkeypatch, tmp_path
):
    """Each loss and target update comes at its step, whatever the step count grows by; each is the
    optimizer's step with that rate on those networks, a target goes the part tau towards its own
    network, and nothing else changes. All this as if the run had never stopped: it does so between
    two updates of a delayed actor. Each action, without noise, is that of the agent as it is then;
    every transition is stored as the environment had it."""
    flags = dict(
        num_envs=num_envs,
        train_frequency=train_frequency,
        gradient_steps=gradient_steps,
        learning_starts=48,
        buffer_size=101,
        batch_size=8,
        tau=0.1,
        n_atoms=11,
        v_min=-2.0,
        v_max=2.0,
        n_critics=2,
        n_quantiles=5,
    )
    if script in POLICY:
        flags |= dict(policy_frequency=3)
    else:
        flags |= dict(target_network_frequency=7)
    if script in ("sac", "tqc", "crossq", "sac_discrete"):
        flags |= dict(policy_lr=3e-3, q_lr=2e-3)
    else:
        flags |= dict(learning_rate=3e-3)
    flags = {name: x for name, x in flags.items() if helpers.default(script, name) is not None}
    shadow = Shadow(monkeypatch, script)
    flags |= without_noise(script, monkeypatch)
    pairs = actions_and_agents(shadow, monkeypatch)
    run_dir = shadow.train(tmp_path, total_timesteps=120, **flags)
    transitions = probe_envs.TRANSITIONS[:120]
    shadow.train(tmp_path, 120, total_timesteps=192, resume=str(run_dir), **flags)
    assert shadow.events == expected_events(script, shadow.args)
    assert len(shadow.events) >= 15
    # logged is what the last update found
    scalars = helpers.scalars(run_dir)
    for tag, metric in shadow.metrics[-1].items():
        assert scalars[tag][-1] == (192, pytest.approx(metric, rel=1e-5, abs=1e-6)), tag
    state = helpers.load(run_dir)["replay"]
    length = 101 // num_envs * num_envs
    taken, wanted = (np.array(x) for x in zip(*pairs, strict=True))
    np.testing.assert_allclose(taken, wanted, rtol=1e-4, atol=1e-4)
    assert len(taken) > 130 and len(np.unique(wanted.round(3))) > 1
    assert_stored(state, (transitions + probe_envs.TRANSITIONS[:72])[-length:])


def without_noise(script, monkeypatch):
    """The flags for it; random numbers that no flag turns off are those that do nothing."""
    if script in ("rainbow", "sac", "tqc", "crossq", "sac_discrete"):
        monkeypatch.setattr(torch.Tensor, "exponential_", lambda noise: noise.fill_(1.0))
        monkeypatch.setattr(torch, "randn", torch.zeros)
    noise = ("std_min", "std_max", "exploration_noise", "start_e", "end_e")
    return {name: 0.0 for name in noise if helpers.default(script, name) is not None}


def actions_and_agents(shadow, monkeypatch):
    """A list that gets each action that Logged is given, and what the agent of that moment does,
    where actions are not random yet."""
    step, first = probe_envs.Logged.step, probe_envs.Logged.first
    pairs = []

    def choose(env, obs):
        env.wanted = None
        if shadow.agents:
            with torch.no_grad():
                env.wanted = shadow.agent.act(torch.from_numpy(obs)[None])[0].numpy()
        return obs

    def stepped(env, action):
        random = not hasattr(shadow.args, "start_e") and shadow.step < shadow.args.learning_starts
        if env.wanted is not None and not random:
            pairs.append((np.array(action), env.wanted))
        obs, *rest = step(env, action)
        return choose(env, obs), *rest

    monkeypatch.setattr(probe_envs.Logged, "step", stepped)
    monkeypatch.setattr(probe_envs.Logged, "first", lambda env: choose(env, first(env)))
    return pairs


def assert_stored(state, transitions):
    """The true last observation of terminated and truncated episodes; a truncation is no
    termination; none leads from one episode into the next."""
    expected = [np.concatenate([np.ravel(part) for part in parts]) for _, *parts in transitions]
    # where there are windows of n steps: the step of the episode, which the observation has too
    rows, steps = np.split(state["rows"].numpy(), [len(expected[0])], axis=1)
    assert (steps == rows[:, 1:2]).all()
    np.testing.assert_array_equal(np.roll(rows, -state["position"], axis=0), np.float32(expected))
    obs, next_obs, terminations = rows[:, :2], rows[:, -3:-1], rows[:, -1]
    # the same episode, its next step
    np.testing.assert_array_equal(next_obs - obs, np.float32([[0, 1]] * len(rows)))
    ends = next_obs[:, 1] == np.rint(obs[:, 0] * 10) % 7 + 1
    assert 5 < terminations.sum() < ends.sum() - 5
    assert (terminations <= ends).all()


def test_minibatches_and_noise(monkeypatch, tmp_path):
    """Actor and critics share a minibatch; noise is standard normal, new each time and in each
    dimension."""
    shadow = Shadow(monkeypatch, "sac")
    shadow.train(tmp_path, total_timesteps=248, batch_size=64)
    noises = [given[1] for _, given in shadow.calls if len(given) > 1]
    for (_, before), (name, given) in zip(shadow.calls, shadow.calls[1:], strict=False):
        same = torch.equal(before[0].obs, given[0].obs)
        assert same == (name == "actor_loss")
    noise = torch.cat(noises)
    assert noise.mean().abs() < 5 / noise.numel() ** 0.5
    assert abs(noise.std() - 1) < 4 / noise.numel() ** 0.5
    together = torch.corrcoef(noise.T) - torch.eye(3)
    assert together.abs().max() < 5 / len(noise) ** 0.5
    assert len(torch.unique(noise)) > 0.99 * noise.numel()


def test_update_target_copies_buffers():
    """Such as running statistics, which a copy may put into a network."""
    target, network = (nn.BatchNorm1d(3) for _ in range(2))
    network(torch.randn(8, 3))
    assert not torch.equal(target.running_mean, network.running_mean)
    sac.update_target(target, network, 0.005)
    for old, new in zip(target.buffers(), network.buffers(), strict=True):
        assert torch.equal(old, new)
    assert not any(param.grad_fn for param in target.parameters())


@pytest.mark.parametrize("script", helpers.OFF_POLICY_SCRIPTS)
def test_new_agents(script):
    """Targets are copies that take no gradient; twin critics are two."""
    args = helpers.small_args(script, "unused")
    env = helpers.module(script).make_env(args)
    agent = helpers.module(script).Agent(args, env.observation_space, env.action_space)
    state = agent.state_dict()
    pairs = dict(target_actor="actor", target_network="q_network")
    targets = [name for name in state if "target" in name]
    for name in targets:
        network, rest = name.split(".", 1)
        source = pairs.get(network, network.removesuffix("_target"))
        assert torch.equal(state[name], state[f"{source}.{rest}"]), name
    assert bool(targets) == hasattr(helpers.module(script), "update_target")
    assert not any(p.requires_grad for name, p in agent.named_parameters() if "target" in name)
    if hasattr(agent, "qf2"):
        pairs = zip(agent.qf1.parameters(), agent.qf2.parameters(), strict=True)
        assert not all(torch.equal(one, two) for one, two in pairs)
    assert not hasattr(agent, "log_alpha") or agent.log_alpha == 0


@pytest.mark.parametrize("script", helpers.others_slow(EPSILON_GREEDY, ["dqn"]))
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
        def __init__(self, *inputs):
            super().__init__(*inputs)
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


def test_random_actions_at_the_start(monkeypatch, tmp_path):
    """Before learning_starts: uniform within the bounds of each dimension, in each environment
    its own."""
    sizes = dict(steps=1001, learning_starts=4000, buffer_size=1000)
    actions = actions_of("sac", monkeypatch, tmp_path, [40.0] * 6, **sizes)
    uniform = (actions[:1000] - Corner.low) / (Corner.high - Corner.low)
    assert uniform[-1].min() < 0.9 < uniform.max()  # the last one too, but not the one after it
    np.testing.assert_allclose(actions[1000], np.broadcast_to(Corner.high, (4, 3)), rtol=0.1)
    for dimension in range(3):
        numbers = uniform[..., dimension]
        counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
        assert counts.sum() == 4000
        chi_square = ((counts - 200) ** 2 / 200).sum()
        assert chi_square < 60  # 99.9996 %
    assert_independent(uniform)


def test_exploration_noise(monkeypatch, tmp_path):
    """Gaussian around the policy, with a standard deviation in units of half each dimension's
    range."""
    output = [0.3, -0.5, 0.1]
    flags = dict(learning_starts=0, exploration_noise=0.1, steps=1000)
    actions = actions_of("td3", monkeypatch, tmp_path, output, **flags)
    scaled = (actions - BIAS.numpy()) / SCALE.numpy()
    noise = scaled - np.tanh(output)
    assert_standard_normal(noise / 0.1)


@pytest.mark.parametrize("script", ["td3", "fast_td3"])
def test_actions_are_clipped_to_each_dimensions_bounds(script, monkeypatch, tmp_path):
    """What is stored too."""
    flags = dict(steps=300, learning_starts=0, buffer_size=1200)
    noise = dict(std_min=0.2, std_max=0.2) if script == "fast_td3" else dict(exploration_noise=0.2)
    flags |= noise
    actions = actions_of(script, monkeypatch, tmp_path, [9.0, -9.0, 9.0], **flags)
    rows = helpers.load(helpers.only_run(tmp_path))["replay"]["rows"].numpy()
    for found in (actions.reshape(-1, 3), rows[:, 2:5]):
        assert (found >= Corner.low).all() and (found <= Corner.high).all()
        at_target = (found == Corner.target).mean(0)
        assert np.abs(at_target - 0.5).max() < 0.1


def test_rounding_does_not_leave_the_bounds(monkeypatch, tmp_path):
    """Where tanh is 1, its product with the scale plus the bias is beyond these bounds, by
    rounding; the environment refuses that."""
    output = [40.0] * 3 + [-9.0] * 3
    flags = dict(env_id="tests.probe_envs:ProbeEdge-v0", learning_starts=0, steps=20, num_envs=1)
    actions = actions_of("sac", monkeypatch, tmp_path, output, **flags)
    assert (actions == probe_envs.EDGE.high).all()


def test_sac_samples_its_distribution(monkeypatch, tmp_path):
    """tanh of a normal distribution with the actor's mean and log sigma, scaled to the bounds of
    each dimension."""
    mean = np.array([0.5, -0.8, 0.0])
    log_std = np.array([0.2, 0.0, 0.3])
    output = [*mean, *log_std]
    flags = dict(learning_starts=0, steps=1000)
    actions = actions_of("sac", monkeypatch, tmp_path, output, **flags)
    raw = np.arctanh(
        ((actions - BIAS.numpy()) / SCALE.numpy()).astype(np.float64).clip(-1 + 1e-9, 1 - 1e-9)
    )
    std = np.exp(-5 + 3.5 * (np.tanh(log_std) + 1))
    assert_standard_normal((raw - mean) / std)


def test_epsilon_greedy(monkeypatch, tmp_path):
    """Random with probability epsilon, in each environment by itself, among all actions; else
    the best one."""
    epsilon = 0.3
    flags = dict(steps=1000, start_e=0.3, end_e=0.3, learning_starts=0)
    actions = actions_of("dqn", monkeypatch, tmp_path, [0.0, 0.0, 1.0], **flags)
    frequencies = np.stack([(actions == action).mean(0) for action in range(3)])  # (3, num_envs)
    other = epsilon / 3
    expected = np.array([[other], [other], [1 - 2 * other]])
    deviations = (expected * (1 - expected) / 1000) ** 0.5
    assert (np.abs(frequencies - expected) <= 5 * deviations).all()
    assert_independent((actions == 2).astype(float))
    assert_independent((actions == 0).astype(float))


GAMES = [name for name in helpers.OFF_POLICY_SCRIPTS if name in helpers.ATARI_SCRIPTS]


@pytest.mark.parametrize("script", helpers.others_slow(GAMES, ["dqn_atari"]))
def test_what_is_stored_of_games(script, monkeypatch, tmp_path):
    """Observations, the agent's actions before FIRE takes their place, signs of rewards, lost
    lives as terminations, truncations with the last observation, and where a new game begins: as
    the environment gave them."""
    adds, steps = [], []
    module = helpers.module(script)
    add, step = module.FrameReplayBuffer.add, module.Games.step

    def stored(replay, *parts):
        adds.append(copy.deepcopy(parts))
        add(replay, *parts)

    def stepped(games, actions):
        steps.append((np.array(actions), copy.deepcopy(result := step(games, actions))))
        return result

    monkeypatch.setattr(module.FrameReplayBuffer, "add", stored)
    monkeypatch.setattr(module.Games, "step", stepped)
    flags = dict(env_id="SpaceInvadersNoFrameskip-v4", total_timesteps=1000, learning_starts=998)
    flags |= dict(env_kwargs='{"max_num_frames_per_episode": 900}')
    if script in EPSILON_GREEDY:
        flags |= dict(end_e=1.0)
    if "rainbow" in script:
        flags |= dict(noisy=False)
    helpers.train(script, tmp_path, **flags)
    assert len(adds) == len(steps) == 500
    ends = truncated = lost = best = 0
    for t, (actions, (shown, rewards, terminations, truncations, infos)) in enumerate(steps):
        obs, *stored = adds[t]
        if t > 0:
            np.testing.assert_array_equal(obs, steps[t - 1][1][0])
        new_games = np.array([n in infos for n in range(2)])
        next_obs = shown.copy()
        for n in infos:
            next_obs[n] = infos[n]["final_obs"]
        expected = actions, np.sign(rewards), next_obs, terminations, truncations, new_games
        for ours, theirs in zip(stored, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        ends += new_games.sum()
        truncated += truncations.sum()
        lost += (terminations & ~new_games).sum()
        best = max(best, rewards.max())
    assert ends >= truncated >= 2
    assert lost >= 1
    assert best > 1
