"""The scripts that learn Q-values from rollouts: their returns, what main does, what acts.

What they share has the same text in each of them (test_consistency). Their RAdam: test_math.py.
"""

import numpy as np
import pytest
import torch

from cleanrl_lite import pqn
from tests import helpers, probe_envs
from tests.shadow import Shadow
from tests.test_math import rows_of
from tests.test_off_policy import agent_and_batch, assert_loss, assert_metrics


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


def test_loss():
    args, agent, batch = agent_and_batch("pqn")
    loss, metrics = pqn.q_lambda_loss(args, agent, batch)
    taken = agent.q_network(batch.obs)[range(64), batch.actions.tolist()]
    by_hand = ((taken.double() - batch.returns) ** 2).sum() / 64
    assert_loss(loss, by_hand, agent)
    assert_metrics(metrics, dict(td_loss=by_hand, q_values=taken.mean()))


def test_every_step_of_a_run(monkeypatch, tmp_path):
    """Each is torch's RAdam step on the clipped gradient; every sample comes once per epoch, in a
    new order, with the action and the return of its step; next_values[t] is the best value in what
    step t led to: at an episode's end the last observation of it. 0.3 of the actions are random, the
    others those of the network that plays the rollout. Logged is the mean over a
    rollout's updates."""
    rollouts = helpers.spy_on_calls(monkeypatch, "pqn", "compute_q_lambda")
    shadow = Shadow(monkeypatch, "pqn")
    states = []
    learn = shadow.learn

    def note(*inputs):
        if len(shadow.calls) % 16 == 0:
            states.append({name: x.clone() for name, x in shadow.agent.state_dict().items()})
        learn(*inputs)

    monkeypatch.setattr(shadow, "learn", note)
    sizes = dict(num_envs=4, num_steps=32, num_minibatches=4, update_epochs=4)
    sizes |= dict(start_e=0.3, end_e=0.3)
    greedy = []
    run_dir = shadow.train(
        tmp_path, learning_rate=3e-3, max_grad_norm=1.0, total_timesteps=256, **sizes
    )
    assert [step for step, *_ in shadow.events] == [*np.repeat([128, 256], 16)]
    batches = [given[0] for _, given in shadow.calls]
    _, agent = helpers.agent_of("pqn", env_id=shadow.args.env_id)
    for k, rollout in enumerate(rollouts):
        rewards, next_values, terminations, dones, gamma, q_lambda = rollout
        _, obs, actions, received, expected, terminated = zip(
            *probe_envs.TRANSITIONS[128 * k : 128 * k + 128], strict=True
        )
        agent.load_state_dict(states[k])
        greedy.extend(agent.act(torch.tensor(np.array(obs))).numpy() == np.array(actions))
        best = agent.q_network(torch.tensor(np.array(expected))).max(1).values.detach()
        np.testing.assert_allclose(next_values.flatten(), best, rtol=1e-4, atol=1e-5)
        assert terminations.flatten().tolist() == list(terminated)
        np.testing.assert_allclose(rewards.flatten(), received, rtol=1e-6)
        assert 0 < terminations.sum() < dones.sum() < dones.size  # both kinds of ends
        returns = q_lambda_by_definition(*rollout).flatten()
        stepped = np.column_stack([np.array(obs), actions, returns])
        epochs = []
        for n in range(16 * k, 16 * k + 16, 4):
            epochs.append([row for batch in batches[n : n + 4] for row in rows_of(batch)])
            found = np.array(sorted(epochs[-1]))
            np.testing.assert_allclose(found, sorted(stepped.tolist()), rtol=1e-4, atol=1e-5)
        assert epochs[0] != epochs[1]
    assert (gamma, q_lambda) == (shadow.args.gamma, shadow.args.q_lambda)
    # a random action, of three, may be the best one
    assert abs(np.mean(greedy) - 0.8) < 4.5 * (0.8 * 0.2 / 256) ** 0.5
    scalars = helpers.scalars(run_dir)
    assert {value for _, value in scalars["charts/epsilon"]} == {np.float32(0.3)}
    for name in shadow.metrics[0]:
        means = np.array([metrics[name] for metrics in shadow.metrics]).reshape(-1, 16).mean(1)
        _, found = zip(*scalars[name], strict=True)
        assert found == pytest.approx(means, rel=1e-3, abs=1e-6), name


def test_rewards_of_games_are_clipped_for_learning(monkeypatch, tmp_path):
    """Rewards from -3 to 3, which the game's own would seldom be; values of truncated games are
    those of their last stack."""
    module = helpers.module("pqn_atari")
    rollouts = helpers.spy_on_calls(monkeypatch, "pqn_atari", "compute_q_lambda")
    rng = np.random.default_rng(1)
    rewards = []
    step = module.Games.step

    def rewarded(envs, actions):
        obs, _, *rest = step(envs, actions)
        rewards.append(np.float32(rng.integers(-3, 4, size=envs.num_envs)))
        return obs, rewards[-1], *rest

    monkeypatch.setattr(module.Games, "step", rewarded)
    helpers.train("pqn_atari", tmp_path)
    received = np.concatenate([rollout[0] for rollout in rollouts])
    np.testing.assert_array_equal(received, np.sign(rewards))
    assert np.abs(rewards).max() == 3
