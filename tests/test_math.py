"""Pure functions and the scripts that learn from rollouts: what they compute, against independent
definitions.

What has the same text in several scripts (test_consistency) is tested in one of them.
"""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_lite import c51, ppo, ppo_continuous, sac, utils
from tests import helpers, probe_envs
from tests.probe_envs import Corner, probe


def gae_by_definition(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """A_t = sum over k of (gamma lambda)^k delta_{t + k}, up to the end of t's episode or of the
    rollout."""
    advantages = np.zeros(rewards.shape)
    for t, n in np.ndindex(*rewards.shape):
        for k in range(t, len(rewards)):
            delta = rewards[k, n] - values[k, n]
            if not terminations[k, n]:
                delta += gamma * next_values[k, n]
            discount = (gamma * gae_lambda) ** (k - t)
            advantages[t, n] += discount * delta
            if dones[k, n]:
                break
    return advantages


@pytest.mark.parametrize("gamma, gae_lambda", [(0.99, 0.95), (0.9, 0.0), (1.0, 1.0)])
def test_gae(gamma, gae_lambda):
    """With many ends of episodes of both kinds."""
    rng = np.random.default_rng(1)
    shape = (60, 3)
    parts = rng.normal(size=(3, *shape)).astype(np.float32)
    terminations, truncations = rng.random((2, *shape)) < 0.15
    rollout = *parts, terminations, terminations | truncations
    advantages = ppo.compute_gae(*rollout, gamma, gae_lambda)
    np.testing.assert_allclose(
        advantages, gae_by_definition(*rollout, gamma, gae_lambda), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("script, eps", [(ppo, 1e-5), (sac, 1e-8), (c51, 0.01 / 32)])
def test_adam(script, eps):
    """Like torch over 50 steps: gradients of very different norms, a falling learning rate,
    clipped norms for ppo."""
    shapes = [(5, 3), (5,), (2, 5), (1,), ()]
    clipped = []
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(param.detach().clone()) for param in ours]
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    adam = script.Adam([frozen, *ours])
    optimizer = torch.optim.Adam(theirs, eps=eps)
    for step in range(50):
        learning_rate = 1e-2 * (1 - step / 50)
        scale = 10.0 ** (-step % 7 - 4)
        for param in theirs:
            param.grad = torch.randn(param.shape) * scale
        grads = [param.grad.clone() for param in theirs]
        options = dict(max_grad_norm=0.5) if script is ppo else dict(eps=eps)
        norm = adam.update(grads, torch.tensor(learning_rate), **options)
        if script is ppo:
            torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(theirs, 0.5))
            clipped.append(norm > 0.5)
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
    assert script is not ppo or 5 < sum(clipped) < 45  # both branches
    for param, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(param, expected, rtol=0, atol=3e-6)  # 3e-4 of a step
    assert (frozen == 1).all()
    assert adam.step == 50
    # what a checkpoint needs to go on
    assert {name: state.numel() for name, state in adam.state_dict().items()} == {
        "step": 1,
        "exp_avg": 32,
        "exp_avg_sq": 32,
    }


def test_running_mean_std():
    rng = np.random.default_rng(1)
    stats = ppo_continuous.RunningMeanStd(3)
    batches = [
        rng.normal((1000, -2, 0), (0.1, 5, 1), (size, 3)).astype(np.float32)
        for size in (1, 7, 300, 2, 64, 1)
    ]
    for batch in batches:
        stats.update(torch.from_numpy(batch))
    everything = np.concatenate(batches).astype(np.float64)
    np.testing.assert_allclose(stats.mean, everything.mean(0), rtol=1e-9)
    np.testing.assert_allclose(stats.var, everything.var(0), rtol=1e-7)
    assert stats.count == len(everything)
    assert set(stats.state_dict()) == {"mean", "var", "count"}


def test_normalize():
    agent = ppo_continuous.Agent(2, 1)
    # mean (2, 20), standard deviation (2, 10)
    agent.obs_stats.update(torch.tensor([[0.0, 10.0], [4.0, 30.0]]))
    normalised = torch.tensor([[1.0, -1.0], [0.0, 10.0]])
    obs = torch.tensor([[4.0, 10.0], [2.0, 1e6]])
    torch.testing.assert_close(agent.normalize(obs), normalised)
    nn.init.normal_(agent.actor[-1].weight)
    # as an environment may return it
    raw = torch.tensor([[4.0, 10.0], [2.0, 1e6]], dtype=torch.float64)
    dist, _ = agent(normalised)
    torch.testing.assert_close(agent.act(raw), dist.mean)


def test_initialisation(rollout_script, monkeypatch, tmp_path):
    """Orthogonal; near zero where it decides on the first policy; log sigma 0."""
    agent = helpers.fresh_agent(rollout_script, monkeypatch, tmp_path)
    if rollout_script in ("ppo_lstm", "ppo_continuous_lstm"):
        pytest.skip("test_lstm.py has it")
    last = []
    for net in (agent.actor, agent.critic):
        one_layer = isinstance(net, nn.Linear)
        last.append(net if one_layer else net[-1])
    gains = dict(zip(last, (0.01, 1.0), strict=True))
    kinds = nn.Linear | nn.Conv2d
    layers = [layer for layer in agent.modules() if isinstance(layer, kinds)]
    for cell in (cell for cell in agent.modules() if isinstance(cell, nn.LSTMCell)):
        for param in cell.parameters():
            if param.ndim == 2:
                identity = torch.eye(param.shape[-1])
                torch.testing.assert_close(param.T @ param, identity, rtol=1e-4, atol=1e-5)
            else:
                assert not param.any()
    assert len(layers) >= 5
    assert not any(layer.bias.any() for layer in layers)
    for layer in layers:
        weight = layer.weight.flatten(1)
        gain = gains.get(layer, 2**0.5)
        weight = weight if len(weight) <= weight.shape[1] else weight.T
        identity = torch.eye(len(weight))
        product = weight @ weight.T / gain**2
        torch.testing.assert_close(product, identity, rtol=1e-4, atol=1e-5)
    log_std = getattr(agent, "actor_logstd", None)
    assert log_std is None or not log_std.any()


@torch.no_grad()
def test_policies():
    """Log-probabilities and entropies of both kinds of policy, from their definitions."""
    agent = ppo_continuous.Agent(3, 2)
    agent.actor_logstd.copy_(torch.tensor([-0.5, 0.3]))
    obs = torch.randn(7, 3)
    actions = torch.randn(7, 2)
    dist = agent(obs)[0]
    std = np.exp([-0.5, 0.3])
    mean = agent.actor(obs)
    z = (actions - mean).numpy() / std
    expected = -0.5 * z**2 - np.log(std)
    expected = expected - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(dist.log_prob(actions), expected.sum(1), rtol=1e-5, atol=1e-6)
    of_one = 0.5 * math.log(2 * math.pi * math.e)
    entropy = (np.log(std) + of_one).sum()
    np.testing.assert_allclose(dist.entropy(), np.full(7, entropy), rtol=1e-6)
    agent = ppo.Agent(4, 3)
    obs = torch.randn(7, 4)
    actions = torch.randint(3, (7,))
    agent.actor[-1].weight.mul_(300)
    dist = agent(obs)[0]
    probs = np.exp(agent.actor(obs).numpy())
    probs /= probs.sum(1, keepdims=True)
    log_probs = dist.log_prob(actions)
    expected = np.log(probs[np.arange(7), actions])
    np.testing.assert_allclose(log_probs, expected, rtol=1e-5, atol=1e-6)
    entropies = -(probs * np.log(probs)).sum(1)
    np.testing.assert_allclose(dist.entropy(), entropies, rtol=1e-5, atol=1e-6)
    assert probs.max() > 0.5


# --- sampling


def actions_of(script, monkeypatch, tmp_path, **parameters):
    """10,000 actions (2000, 5) of an actor that ignores the observation and has these
    parameters."""
    Agent = helpers.module(script).Agent
    sizes = dict(num_envs=5, num_steps=400, num_minibatches=1, update_epochs=1)
    sizes = helpers.rollout_only(script, **sizes)

    class BiasedAgent(Agent):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.actor[-1].weight.data.zero_()
            for name, values in parameters.items():
                param = self.get_parameter(name.replace("__", "."))
                param.data.copy_(torch.tensor(values))

    monkeypatch.setattr(helpers.module(script), "Agent", BiasedAgent)
    probe_envs.ACTIONS.clear()
    sizes |= dict(total_timesteps=10_000, learning_rate=1e-20)
    helpers.train(script, tmp_path, env_id=probe("Constant", script), **sizes)
    actions = np.array(probe_envs.ACTIONS[:10_000]).reshape(-1, 5)
    # each environment has noise of its own
    together = np.corrcoef(actions.T) - np.eye(5)
    assert np.abs(together).max() < 0.1
    return actions


def test_sampling_follows_softmax(monkeypatch, tmp_path):
    """The Gumbel-max trick: the actions' frequencies are the policy's probabilities, in every
    environment."""
    actions = actions_of("ppo", monkeypatch, tmp_path, actor__4__bias=[0.7, -0.9])
    right = 1 / (1 + math.exp(0.7 + 0.9))
    deviation = (right * (1 - right) / len(actions)) ** 0.5
    error = actions.mean(0) - right
    assert np.abs(error).max() < 5 * deviation


def test_sampling_is_gaussian(monkeypatch, tmp_path):
    """With the policy's mean and deviation. The environment sees clipped actions, the update
    sees the samples."""
    largest = []
    helpers.spy_on_updates(
        monkeypatch, lambda f, main, inds: largest.append(main["b_actions"].max()) or f(*inds)
    )
    parameters = dict(actor__4__bias=[0.3], actor_logstd=[math.log(0.2)])
    actions = actions_of("ppo_continuous", monkeypatch, tmp_path, **parameters)
    deviation = 0.2 / actions.size**0.5
    assert actions.mean() == pytest.approx(0.3, abs=4 * deviation)
    assert actions.std() == pytest.approx(0.2, abs=0.007)
    assert actions.max() == 1 < max(largest)


# --- the update


def losses_by_hand(batch, args):
    """PPO's losses in the form that Stable-Baselines3 has them (the value loss: the original's,
    max and half)."""
    (dist, values), actions, old_log_probs, old_values, advantages, returns = batch
    log_probs, entropy = dist.log_prob(actions), dist.entropy()  # see test_policies
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=1) + 1e-8)
    ratio = torch.exp(log_probs - old_log_probs)
    near = torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
    value_loss = (returns - values) ** 2
    if args.clip_vloss:
        change = torch.clamp(values - old_values, -args.clip_coef, args.clip_coef)
        clipped = old_values + change
        value_loss = torch.maximum(value_loss, (returns - clipped) ** 2)
    losses = dict(value_loss=0.5 * value_loss.mean(), entropy=entropy.mean())
    gain = torch.minimum(advantages * ratio, advantages * near)
    losses["policy_loss"] = -gain.mean()
    if hasattr(args, "bounds_coef"):  # the bounds and a twentieth of their range
        low = torch.tensor(Corner.low)
        high = torch.tensor(Corner.high)
        beyond = torch.maximum(low - dist.mean, dist.mean - high)
        far = beyond - 0.05 * (high - low)
        losses["bounds_loss"] = torch.relu(far).square().sum(1).mean()
    log_ratio = log_probs - old_log_probs
    losses["approx_kl"] = torch.mean((ratio - 1) - log_ratio)
    losses["old_approx_kl"] = torch.mean(old_log_probs - log_probs)
    clipped = torch.abs(ratio - 1) > args.clip_coef
    losses["clipfrac"] = clipped.float().mean()
    return losses


PLAIN = dict(clip_vloss=False, norm_adv=False, ent_coef=0.1, vf_coef=2.0)
OPTIONS = dict(
    ppo_continuous_adaptive=dict(env_id="tests.probe_envs:ProbeCorner-v0", bounds_coef=5.0)
)


FAST_UPDATES = {"ppo_continuous", "ppo_continuous_adaptive", "ppo_atari", "ppo_lstm", "ppo_masked"}


def half_a_run(script):
    return helpers.SMALL[script]["total_timesteps"] // 2


@pytest.mark.parametrize(
    "script, options",
    [
        ("ppo", {}),
        ("ppo", PLAIN),
        *(
            pytest.param(*name.values, OPTIONS.get(name.values[0], {}), marks=name.marks)
            for name in helpers.others_slow(
                [name for name in helpers.ROLLOUT_SCRIPTS if name != "ppo"], FAST_UPDATES
            )
        ),
        ("ppo_multiagent", dict(central_critic=False)),
    ],
)
def test_update(script, options, monkeypatch, tmp_path):
    """Every minibatch's metrics, and the parameters after it, against the formulas, autograd and
    torch.optim.Adam."""
    state = {}

    def check(update, main, tensors):
        agent = main["agent"]
        args = main["args"]
        if not state:
            state["agent"] = copy.deepcopy(agent)
            state["optimizer"] = torch.optim.Adam(state["agent"].parameters(), eps=1e-5)
        names = ("b_obs", "b_actions", "b_logprobs", "b_values", "b_advantages", "b_returns")
        reference = state["agent"]
        optimizer = state["optimizer"]
        rate = main["learning_rate"].item()
        # equal before each step: errors do not add up
        reference.load_state_dict(agent.state_dict())
        batch = [main[name][tensors[0]] for name in names]
        of_reference = main | dict(agent=reference)
        batch[0] = helpers.look(of_reference, tensors[0])
        expected = losses_by_hand(batch, args)
        loss = (
            expected["policy_loss"]
            - args.ent_coef * expected["entropy"]
            + args.vf_coef * expected["value_loss"]
        )
        loss = loss + getattr(args, "bounds_coef", 0) * expected.get("bounds_loss", 0)
        optimizer.zero_grad()
        loss.backward()
        expected["grad_norm"] = nn.utils.clip_grad_norm_(reference.parameters(), args.max_grad_norm)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        metrics = update(*tensors)
        assert set(metrics) == {f"losses/{name}" for name in expected}
        for name, value in expected.items():
            assert not metrics[f"losses/{name}"].requires_grad
            torch.testing.assert_close(
                metrics[f"losses/{name}"], value.detach(), rtol=2e-3, atol=2e-5, msg=name
            )
        helpers.assert_stepped(agent, reference, rate)
        return metrics

    calls = helpers.spy_on_updates(monkeypatch, check)
    # A large learning rate and a small clip range: after one epoch samples are on both sides of
    # every clip.
    flags = dict(learning_rate=3e-3, clip_coef=0.05, total_timesteps=half_a_run(script))
    helpers.train(script, tmp_path, **flags | options)
    assert len(calls) >= 16


# --- the rollout


@pytest.mark.parametrize(
    "script",
    helpers.others_slow(
        helpers.ROLLOUT_SCRIPTS, ["ppo", "ppo_continuous", "ppo_atari", "ppo_lstm", "ppo_hybrid"]
    ),
)
def test_epochs(script, monkeypatch, tmp_path):
    """Every sample once per epoch, in a new order. At a rollout's first minibatch no network has
    changed: the stored values and log-probabilities are those of now. Logged is the mean over a
    rollout's updates."""
    args = helpers.small_args(script, tmp_path, total_timesteps=half_a_run(script))
    batch = args.num_envs * args.num_steps
    per_rollout = args.update_epochs * args.num_minibatches
    used = []
    seen = []
    explained = []

    def check(update, main, tensors):
        if len(used) % per_rollout == 0:
            with torch.no_grad():
                every = torch.arange(batch)
                inds = every.view(args.num_steps, args.num_envs) if "b_states" in main else every
                # with an LSTM the whole rollout is one sequence
                dist, value = helpers.look(main, inds)
            torch.testing.assert_close(value, main["b_values"][inds], rtol=1e-4, atol=1e-5)
            logprobs = dist.log_prob(main["b_actions"][inds])
            torch.testing.assert_close(logprobs, main["b_logprobs"][inds], rtol=1e-4, atol=1e-5)
            returns = main["b_returns"]
            torch.testing.assert_close(returns, main["b_advantages"] + main["b_values"])
            unexplained = (returns - main["b_values"]).var() / returns.var()
            explained.append(float(1 - unexplained))
        used.append(tensors[0].flatten().tolist())
        metrics = update(*tensors)
        numbers = {name: float(metric) for name, metric in metrics.items()}
        seen.append(numbers)
        return metrics

    helpers.spy_on_updates(monkeypatch, check)
    # test_adaptive.py has it
    unscaled = dict(norm_value=False) if script == "ppo_continuous_adaptive" else {}
    run_dir, _ = helpers.train(script, tmp_path, total_timesteps=args.total_timesteps, **unscaled)
    epochs = np.array(used).reshape(-1, batch)
    assert len(epochs) == args.update_epochs * (args.total_timesteps // batch)
    assert (np.sort(epochs) == np.arange(batch)).all()
    assert (epochs[0] != epochs[1]).any()
    scalars = helpers.scalars(run_dir)
    assert [value for _, value in scalars["losses/explained_variance"]] == pytest.approx(
        explained, rel=2e-3, abs=1e-3
    )
    for name in seen[0]:
        values = np.array([metrics[name] for metrics in seen])
        means = values.reshape(-1, per_rollout).mean(1)
        _, found = zip(*scalars[name])
        assert found == pytest.approx(means, rel=1e-3, abs=1e-6), name


def rollouts_of(script, monkeypatch, tmp_path, env="Logged", **flags):
    """What compute_gae is given in a run on three environments, rollouts of 40 steps; and the
    agent's final state."""
    rollouts = helpers.spy_on_calls(monkeypatch, script)
    probe_envs.TRANSITIONS.clear()
    sizes = dict(
        num_envs=3,
        num_steps=40,
        num_minibatches=2,
        env_id=env if ":" in env else probe(env, script),
    )
    run_dir, _ = helpers.train(script, tmp_path, **sizes, **flags)
    return rollouts, helpers.load(run_dir)["agent"]


SCALING_FLAGS = {
    "ppo_continuous_adaptive": dict(norm_value=False),
    "ppo_continuous_lstm": dict(seq_len=10),
}
# Variants that divide rewards by the spread of returns in their own main().
SCALING = [
    "ppo_continuous_adaptive",
    "ppo_continuous_asymmetric",
    "ppo_continuous_lstm",
    "ppo_hybrid",
]


@pytest.mark.parametrize("script", ["ppo", "ppo_continuous", "ppo_hybrid"])
def test_bootstrap_values_belong_to_the_true_next_observation(script, monkeypatch, tmp_path):
    """next_values[t] is the critic's value of what step t led to: at an episode's end the last
    observation of it."""
    agents = helpers.spy_on_agents(monkeypatch, script)
    rollouts, _ = rollouts_of(
        script, monkeypatch, tmp_path, total_timesteps=120, learning_rate=1e-20
    )
    _, _, next_values, terminations, dones = rollouts[0][:5]
    # step by step, each time the three environments
    *_, expected, terminated = zip(*probe_envs.TRANSITIONS[:120])
    expected = torch.tensor(np.array(expected)).clamp(-10, 10)
    with torch.no_grad():
        true_values = agents[0].critic(expected)[:, 0].numpy()
    np.testing.assert_allclose(next_values.flatten(), true_values, rtol=1e-4, atol=1e-5)
    assert terminations.flatten().tolist() == list(terminated)
    assert 0 < terminations.sum() < dones.sum()  # both kinds of ends


@pytest.mark.parametrize("script", ["ppo_continuous", *SCALING])
def test_reward_scaling(script, monkeypatch, tmp_path):
    """The rewards are divided by the standard deviation of the discounted returns so far, each
    episode on its own."""
    received = []

    def note(envs, actions, result):
        _, rewards, terminations, truncations, _ = result
        received.append((rewards.copy(), terminations | truncations))

    helpers.spy_on_steps(monkeypatch, script, note)
    env = {"ppo_continuous_asymmetric": f"{helpers.PROBES}Privileged-v0"}.get(script, "Logged")
    flags = dict(env=env, total_timesteps=360, **SCALING_FLAGS.get(script, {}))
    rollouts, agent = rollouts_of(script, monkeypatch, tmp_path, **flags)
    running = np.zeros(3)
    returns = []
    for rewards, dones in received[:120]:
        running = 0.99 * running + rewards
        returns.append(running)
        running = running * ~dones
    for k in (1, 2, 3):
        scale = (np.var(returns[: 40 * k]) + 1e-8) ** 0.5
        steps = received[40 * k - 40 : 40 * k]
        raw = np.stack([rewards for rewards, _ in steps])
        expected = np.clip(raw / scale, -10, 10)
        rewards, *_ = rollouts[k - 1]
        np.testing.assert_allclose(rewards, expected, rtol=1e-5)
    assert agent["return_stats.count"] == 360
    np.testing.assert_allclose(agent["return_stats.var"], np.var(returns), rtol=1e-6)


def test_observation_statistics_are_those_of_all_observations(monkeypatch, tmp_path):
    seen = [np.zeros((3, 11))]
    helpers.spy_on_steps(
        monkeypatch, "ppo_continuous", lambda envs, actions, result: seen.append(result[0].copy())
    )
    reset = utils.VectorEnv.reset

    def spy(envs, **kwargs):
        result = reset(envs, **kwargs)
        if envs.num_envs == 3:  # not an evaluation's
            seen[0] = result[0].copy()
        return result

    monkeypatch.setattr(utils.VectorEnv, "reset", spy)
    run_dir, _ = helpers.train(
        "ppo_continuous", tmp_path, env_id="Hopper-v4", num_envs=3, total_timesteps=768
    )
    # what actions were chosen from
    agent = helpers.load(run_dir)["agent"]
    seen = np.concatenate(seen[:-1])
    assert agent["obs_stats.count"] == len(seen) == 768
    np.testing.assert_allclose(agent["obs_stats.mean"], seen.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(agent["obs_stats.var"], seen.var(0), rtol=1e-4, atol=1e-6)


NORMALIZING = ["ppo_continuous", "ppo_continuous_adaptive", "ppo_continuous_lstm"]


@pytest.mark.parametrize("script", NORMALIZING)
def test_one_precision(script, monkeypatch, tmp_path):
    """Observations are normalised in their own precision: in float32, most of these would be
    equal."""
    found = []  # of the last rollout: the first one's statistics are 0 and 1

    def check(update, main, tensors):
        found[:] = [main["b_obs"].clone()]
        return update(*tensors)

    helpers.spy_on_updates(monkeypatch, check)
    flags = dict(env="Steady", total_timesteps=240, **SCALING_FLAGS.get(script, {}))
    _, state = rollouts_of(script, monkeypatch, tmp_path, **flags)
    assert len(found[0][:, 0].unique()) == 120
    if script != "ppo_continuous":
        return
    agent = ppo_continuous.Agent(1, 1)
    agent.load_state_dict(state)
    obs = 12345.678 + 1e-3 * torch.randn(50, 1, dtype=torch.float64)
    normalized = (obs - state["obs_stats.mean"]) / (state["obs_stats.var"] + 1e-8).sqrt()
    expected = agent.actor(normalized.clamp(-10, 10).float())
    torch.testing.assert_close(agent.act(obs), expected)
    assert len(agent.act(obs).unique()) == 50


ANNEALING = [
    name
    for name in helpers.TRAINING_SCRIPTS
    if helpers.default(name, "anneal_lr") is not None
    and name not in helpers.JAVA_SCRIPTS + helpers.MJX_SCRIPTS  # test_schedules_have_one_text
]


@pytest.mark.parametrize("anneal_lr", [True, False])
# the others have ppo's lines (test_schedules_have_one_text)
@pytest.mark.parametrize(
    "script", helpers.others_slow(ANNEALING, ["ppo", "pqn", "ppo_continuous_adaptive"])
)
def test_learning_rate_falls_by_environment_steps(script, anneal_lr, tmp_path):
    args = helpers.small_args(script, tmp_path)
    total = 3 * args.num_envs * args.num_steps  # three rollouts
    flags = dict(anneal_lr=anneal_lr, total_timesteps=total, update_epochs=1)
    if script == "ppo_continuous_adaptive":
        flags["kl_threshold"] = 0  # --anneal-lr decides
    run_dir, _ = helpers.train(script, tmp_path, **flags)
    logged = helpers.scalars(run_dir)["charts/learning_rate"]
    rates = [rate / args.learning_rate for _, rate in logged]
    expected = [1, 2 / 3, 1 / 3] if anneal_lr else [1, 1, 1]
    assert rates == pytest.approx(expected, rel=1e-5)


MEAN_KL = [((0, 0, 0, 9), 2.5, 12), ((3, 3, 3, 0), 2.5, 12), ((3, 3, 3, 0), 2.0, 4)]


# the others have ppo's line (test_schedules_have_one_text)
KL_SCRIPTS = ["ppo", "ppo_lstm", "ppo_continuous_adaptive", "ppo_atari_multigpu"]


@pytest.mark.parametrize("divergences, bound, updates", MEAN_KL)
@pytest.mark.parametrize("script", KL_SCRIPTS)
def test_target_kl_is_the_mean_of_an_epoch(
    script, divergences, bound, updates, monkeypatch, tmp_path
):
    """Means of 2.25, with the last minibatch far above or below: only a bound of 2 ends the
    epochs."""

    def check(update, main, tensors):
        return update(*tensors) | {
            "losses/approx_kl": torch.tensor(float(divergences[len(calls) % 4 - 1]))
        }

    calls = helpers.spy_on_updates(monkeypatch, check)
    args = helpers.small_args(script, tmp_path)
    sizes = dict(total_timesteps=args.num_envs * args.num_steps, num_minibatches=4)
    helpers.train(script, tmp_path, target_kl=bound, update_epochs=3, **sizes)
    assert len(calls) == updates
