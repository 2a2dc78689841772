"""sac_discrete and sac_atari: updates against definitions, what acts, and a policy that is
known."""

import copy
import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from tests import helpers
from tests.probe_envs import probe
from tests.test_off_policy import (
    actions_of,
    assert_independent,
    assert_metrics,
    assert_unchanged,
    logged,
)

NETWORKS = ("qf1", "qf2", "actor")
FAST = dict(
    num_envs=2,
    buffer_size=2_000,
    learning_starts=200,
    train_frequency=2,
    batch_size=32,
    target_network_frequency=2,
    tau=0.1,
    policy_lr=3e-3,
    q_lr=3e-3,
    save_every=0,
    total_timesteps=1_600,
    gamma=0.9,
)


# --- the update


def losses_by_hand(reference, args, batch, alpha):
    """Everything that one update logs, action by action; each loss has gradients in its own
    networks only."""
    obs, actions, rewards, next_obs, terminations = batch
    with torch.no_grad():
        dist = Categorical(logits=reference.actor(next_obs))
        next_values = torch.zeros(len(rewards))
        for action in range(dist.probs.shape[1]):
            smaller = torch.minimum(
                reference.qf1_target(next_obs)[:, action], reference.qf2_target(next_obs)[:, action]
            )
            log_prob = dist.log_prob(torch.full((len(rewards),), action))
            next_values += dist.probs[:, action] * (smaller - alpha * log_prob)
        target = torch.where(terminations == 1, rewards, rewards + args.gamma * next_values)
    rows = torch.arange(len(rewards))
    values = {name: reference.get_submodule(name)(obs) for name in ("qf1", "qf2")}
    taken = {name: value[rows, actions.long()] for name, value in values.items()}
    found = {f"{name}_loss": ((value - target) ** 2).mean() for name, value in taken.items()}
    found["qf_loss"] = found["qf1_loss"] + found["qf2_loss"]
    found |= {f"{name}_values": value.mean() for name, value in taken.items()}
    dist = Categorical(logits=reference.actor(obs))
    smaller = torch.minimum(values["qf1"], values["qf2"]).detach()
    found["actor_loss"] = -((dist.probs * smaller).sum(1) + alpha * dist.entropy()).mean()
    found["entropy"] = dist.entropy().mean()
    if args.autotune:
        lacking = args.target_entropy_scale * math.log(smaller.shape[1]) - dist.entropy().detach()
        found["alpha_loss"] = -(reference.log_alpha.exp() * lacking).mean()
    return found


@pytest.mark.parametrize(
    "script, autotune",
    [
        ("sac_discrete", True),
        ("sac_discrete", False),
        pytest.param("sac_atari", True, marks=pytest.mark.slow),
    ],
)
def test_update(script, autotune, monkeypatch, tmp_path):
    """Every minibatch's metrics, and all parameters after it, by hand with torch.optim.Adam. The
    targets do not move in an update, and none gets a history."""
    state = {}
    terminated = []
    eps = 1e-4 if script == "sac_atari" else 1e-8
    rates = dict(policy_lr=3e-3, q_lr=2e-3)

    def begin(agent):
        state["agent"] = reference = copy.deepcopy(agent)
        critics = [*reference.qf1.parameters(), *reference.qf2.parameters()]
        parts = dict(qf=critics, actor=reference.actor.parameters(), alpha=[reference.log_alpha])
        for name, params in parts.items():
            rate = rates["policy_lr" if name == "actor" else "q_lr"]
            state[name] = torch.optim.Adam(params, lr=rate, eps=eps)

    def check(update, main, tensors):
        agent = main["agent"]
        args = main["args"]
        if not state:
            begin(agent)
        reference = state["agent"]
        before = copy.deepcopy(agent.state_dict())
        reference.load_state_dict(before)  # equal before each step: errors do not add up
        batch = main["replay"].unpack(*tensors)
        alpha = before["log_alpha"].exp() if autotune else args.alpha
        expected = losses_by_hand(reference, args, batch, alpha)
        for name in ("qf", "actor", "alpha")[: 3 if autotune else 2]:
            state[name].zero_grad()
            params = state[name].param_groups[0]["params"]
            expected[f"{name}_loss"].backward(inputs=params, retain_graph=True)
        for name in ("qf", "actor", "alpha")[: 3 if autotune else 2]:
            state[name].step()
        if autotune:
            expected["alpha"] = reference.log_alpha.exp()
        metrics = update(*tensors)
        assert_metrics(metrics, expected)
        helpers.assert_stepped(agent, reference, rates["q_lr"], NETWORKS)
        changed = {*NETWORKS, *(["log_alpha"] if autotune else [])}
        assert_unchanged(agent, before, {name.split(".")[0] for name in before} - changed)
        assert agent.log_alpha.item() == pytest.approx(reference.log_alpha.item(), abs=1e-6)
        targets = [*agent.qf1_target.parameters(), *agent.qf2_target.parameters()]
        assert not any(param.requires_grad for param in targets)
        terminated.append(batch[4].sum())
        return metrics

    calls = helpers.spy_on_updates(monkeypatch, check)
    flags = dict(gamma=0.9, alpha=0.3, autotune=autotune, target_entropy_scale=0.4, **rates)
    if script == "sac_atari":
        flags |= dict(total_timesteps=500, learning_starts=400, batch_size=16, buffer_size=600)
    logged(script, tmp_path, **flags)
    assert len(calls) >= 12
    assert sum(terminated) > 0


@pytest.mark.parametrize("script", ["sac_discrete", "sac_atari"])
def test_the_critics_are_two_and_their_targets_follow(script, monkeypatch, tmp_path):
    """Each target its own critic, by tau."""
    agents = helpers.spy_on_agents(monkeypatch, script)
    pairs = []
    module = helpers.module(script)

    def note(target, network, tau):
        names = {id(network): name for name, network in agents[0].named_children()}
        pairs.append((names[id(target)], names[id(network)], tau))

    monkeypatch.setattr(module, "update_target", note)
    total = helpers.SMALL[script]["total_timesteps"]
    flags = dict(tau=0.25, learning_starts=total // 2, target_network_frequency=total // 4)
    helpers.train(script, tmp_path, **flags)
    assert pairs == [("qf1_target", "qf1", 0.25), ("qf2_target", "qf2", 0.25)]
    first = agents[0].qf1.parameters()
    second = agents[0].qf2.parameters()
    assert not any(map(torch.equal, first, second))


# --- what acts


def test_samples_the_policy(monkeypatch, tmp_path):
    """With the probabilities of the logits, in each environment and step anew."""
    logits = [0.7, -0.4, 1.2]
    actions = actions_of("sac_discrete", monkeypatch, tmp_path, logits, learning_starts=0)
    probs = torch.tensor(logits).softmax(0).numpy()[:, None]
    found = np.stack([(actions == action).mean(0) for action in range(3)])  # (3, num_envs)
    deviations = (probs * (1 - probs) / len(actions)) ** 0.5
    assert (np.abs(found - probs) < 5 * deviations).all()
    assert_independent((actions == 0).astype(float))
    assert_independent((actions == 2).astype(float))


# --- known answers


def trained(name, monkeypatch, tmp_path, **flags):
    agents = helpers.spy_on_agents(monkeypatch, "sac_discrete")
    env_id = probe(name, "sac_discrete")
    run_dir, _ = helpers.train("sac_discrete", tmp_path, env_id=env_id, **{**FAST, **flags})
    return agents[0], helpers.scalars(run_dir)


def test_the_policy_is_the_softmax_of_the_values(monkeypatch, tmp_path):
    """One step that pays 1 or 0: with the temperature 0.5, the odds are e^2, not more."""
    flags = dict(autotune=False, alpha=0.5)
    agent, _ = trained("RightAction", monkeypatch, tmp_path, **flags)
    obs = torch.tensor([[-1.0], [1.0]])
    probs = agent.policy(obs).exp().detach().numpy()
    right = 1 / (1 + math.exp(-2))
    expected = np.array([[right, 1 - right], [1 - right, right]])
    assert probs == pytest.approx(expected, abs=0.04)
