"""The scripts that learn Q-values from rollouts: their returns, RAdam, their update, what acts."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_lite import pqn
from tests import helpers, probe_envs
from tests.probe_envs import probe

q_script = pytest.mark.parametrize("script", helpers.Q_SCRIPTS)


# --- returns


def q_lambda_by_definition(rewards, next_values, terminations, dones, gamma, q_lambda):
    """The mixture of all n-step returns: (1 - lambda) lambda^(n - 1) for each n, and what is left
    for the longest one, which ends with its episode or with the rollout."""
    returns = np.zeros(rewards.shape)
    for t, n in np.ndindex(*rewards.shape):
        total = 0.0
        weight = 1.0
        for k in range(t, len(rewards)):
            total += gamma ** (k - t) * rewards[k, n]
            bootstrap = 0.0
            if not terminations[k, n]:
                discount = gamma ** (k - t + 1)
                bootstrap = discount * next_values[k, n]
            if dones[k, n] or k == len(rewards) - 1:
                returns[t, n] += weight * (total + bootstrap)
                break
            share = weight * (1 - q_lambda)
            returns[t, n] += share * (total + bootstrap)
            weight *= q_lambda
    return returns


@pytest.mark.parametrize("gamma, q_lambda", [(0.99, 0.9), (0.9, 0.65), (0.9, 0.0), (1.0, 1.0)])
def test_q_lambda(gamma, q_lambda):
    """With many ends of episodes of both kinds, also at the end of the rollout."""
    rng = np.random.default_rng(1)
    shape = (60, 4)
    numbers = rng.normal(size=(2, *shape))
    rewards, next_values = np.float32(numbers)
    terminations, truncations = rng.random((2, *shape)) < 0.15
    terminations[-1] = [True, False, False, True]
    truncations[-1] = [False, True, False, True]
    rollout = rewards, next_values, terminations, terminations | truncations
    np.testing.assert_allclose(
        pqn.compute_q_lambda(*rollout, gamma, q_lambda),
        q_lambda_by_definition(*rollout, gamma, q_lambda),
        rtol=1e-4,
        atol=1e-4,
    )


# --- the optimizer


def test_radam():
    """Like torch over 50 steps, the first five without the variance: gradients of very different
    norms, a falling learning rate, clipped norms."""
    shapes = [(5, 3), (5,), (2, 5), (1,), ()]
    clipped = []
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(param.detach().clone()) for param in ours]
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    radam = pqn.RAdam([frozen, *ours])
    optimizer = torch.optim.RAdam(theirs)
    for step in range(50):
        learning_rate = 1e-2 * (1 - step / 50)
        scale = 10.0 ** (-step % 7 - 4)
        for param in theirs:
            param.grad = torch.randn(param.shape) * scale
        grads = [param.grad.clone() for param in theirs]
        norm = radam.update(grads, torch.tensor(learning_rate), max_grad_norm=0.5)
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(theirs, 0.5))
        clipped.append(norm > 0.5)
        optimizer.param_groups[0]["lr"] = learning_rate
        optimizer.step()
        for param, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(param, expected, rtol=0, atol=3e-6)  # 3e-4 of a step
    assert 5 < sum(clipped) < 45  # both branches
    assert (frozen == 1).all()
    assert radam.step == 50
    # float32: inductor of torch 2.13 loses changes of a float64 number in place
    assert radam.step.dtype == torch.float32
    assert {name: state.numel() for name, state in radam.state_dict().items()} == {
        "step": 1,
        "exp_avg": 32,
        "exp_avg_sq": 32,
    }


# --- the update and its batch


@q_script
def test_update(script, monkeypatch, tmp_path):
    """Every minibatch's metrics, and the parameters after it, against the formula, autograd and
    torch.optim.RAdam."""
    state = {}
    reached = []

    def check(update, main, tensors):
        agent = main["agent"]
        args = main["args"]
        (inds,) = tensors
        if not state:
            state["agent"] = copy.deepcopy(agent)
            state["optimizer"] = torch.optim.RAdam(state["agent"].parameters())
        reference = state["agent"]
        optimizer = state["optimizer"]
        reference.load_state_dict(agent.state_dict())  # errors do not add up
        rate = main["learning_rate"].item()
        every = reference(main["b_obs"][inds])
        actions = main["b_actions"][inds]
        q_values = every[torch.arange(len(inds)), actions]
        loss = nn.functional.mse_loss(q_values, main["b_returns"][inds])
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(reference.parameters(), args.max_grad_norm)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        metrics = update(*tensors)
        expected = {"td_loss": loss, "q_values": q_values.mean(), "grad_norm": norm}
        assert set(metrics) == {f"losses/{name}" for name in expected}
        for name, value in expected.items():
            metric = metrics[f"losses/{name}"]
            assert not metric.requires_grad
            torch.testing.assert_close(metric, value.detach(), rtol=2e-3, atol=2e-5, msg=name)
        helpers.assert_stepped(agent, reference, rate)
        reached.append(float(norm > args.max_grad_norm))
        return metrics

    calls = helpers.spy_on_updates(monkeypatch, check)
    helpers.train(script, tmp_path, learning_rate=3e-3, max_grad_norm=1.0)
    assert len(calls) >= 16
    assert 0 < sum(reached)


def rollouts_of(script, monkeypatch, tmp_path, **flags):
    """What compute_q_lambda is given in a run."""
    rollouts = helpers.spy_on_calls(monkeypatch, script, "compute_q_lambda")
    helpers.train(script, tmp_path, **flags)
    return rollouts


def test_next_values_belong_to_the_true_next_observation(monkeypatch, tmp_path):
    """next_values[t] is the best value in what step t led to: at an episode's end the last
    observation of it."""
    agents = helpers.spy_on_agents(monkeypatch, "pqn")
    probe_envs.TRANSITIONS.clear()
    sizes = dict(
        num_envs=3,
        num_steps=40,
        num_minibatches=2,
        total_timesteps=120,
        env_id=probe("Logged", "pqn"),
        learning_rate=1e-20,
    )
    rollouts = rollouts_of("pqn", monkeypatch, tmp_path, **sizes)
    rewards, next_values, terminations, dones, gamma, q_lambda = rollouts[0]
    # step by step, each time the three environments
    steps = probe_envs.TRANSITIONS[:120]
    _, _, _, received, expected, terminated = zip(*steps)
    expected = torch.tensor(np.array(expected)).clamp(-10, 10)
    with torch.no_grad():
        best = agents[0].q_network(expected).max(1).values
    np.testing.assert_allclose(next_values.flatten(), best, rtol=1e-4, atol=1e-5)
    assert terminations.flatten().tolist() == list(terminated)
    np.testing.assert_allclose(rewards.flatten(), received, rtol=1e-6)
    assert 0 < terminations.sum() < dones.sum() < dones.size  # both kinds of ends
    assert (gamma, q_lambda) == (0.99, 0.9)


def test_rewards_are_clipped_for_learning(monkeypatch, tmp_path):
    """Rewards from -3 to 3, which the game's own would seldom be."""
    Games = helpers.module("pqn_atari").Games
    rng = np.random.default_rng(1)
    rewards = []
    step = Games.step

    def rewarded(envs, actions):
        obs, _, *rest = step(envs, actions)
        drawn = rng.integers(-3, 4, size=envs.num_envs)
        rewards.append(np.float32(drawn))
        return obs, rewards[-1], *rest

    monkeypatch.setattr(Games, "step", rewarded)
    rollouts = rollouts_of("pqn_atari", monkeypatch, tmp_path)
    received = np.concatenate([rollout[0] for rollout in rollouts])
    np.testing.assert_array_equal(received, np.sign(rewards))
    assert np.abs(rewards).max() == 3


# --- acting


def assert_independent(columns):
    together = np.corrcoef(columns.T) - np.eye(4)
    assert np.abs(together).max() < 4.5 / len(columns) ** 0.5


@q_script
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon(script, epsilon, monkeypatch, tmp_path):
    """The part of the actions that are random; the others are the best ones of the network that
    plays the rollout. Environments explore at different steps."""
    agents = helpers.spy_on_agents(monkeypatch, script)
    greedy = []
    before = []

    def note(envs, actions, result):
        if before:
            with torch.no_grad():
                best = agents[0].act(torch.from_numpy(before.pop()))
            greedy.append(best.numpy() == actions)
        before.append(result[0])

    helpers.spy_on_steps(monkeypatch, script, note)
    flags = dict(start_e=epsilon, end_e=epsilon, num_envs=4, num_minibatches=1, update_epochs=1)
    steps = 400 if script == "pqn" else 100
    flags |= dict(num_steps=steps, total_timesteps=4 * steps, learning_rate=1e-20)
    run_dir, _ = helpers.train(script, tmp_path, **flags)
    greedy = np.array(greedy)
    actions = 2 if script == "pqn" else 4
    expected = 1 - epsilon * (1 - 1 / actions)  # a random action may be the best one
    deviation = (expected * (1 - expected) / greedy.size) ** 0.5
    assert abs(greedy.mean() - expected) <= 4.5 * deviation
    if epsilon == 0.3:
        assert_independent(greedy)
    assert {value for _, value in helpers.scalars(run_dir)["charts/epsilon"]} == {
        np.float32(epsilon)
    }
