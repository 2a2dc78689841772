"""sac_discrete and sac_atari: the losses against definitions, and what acts."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from cleanrl_lite import sac_discrete
from tests import helpers
from tests.test_off_policy import (
    actions_of,
    agent_and_batch,
    assert_independent,
    assert_loss,
    assert_metrics,
)


def losses_by_hand(agent, args, batch, alpha):
    """Everything that one update logs, action by action; each loss has gradients in its own
    networks only."""
    with torch.no_grad():
        dist = Categorical(logits=agent.actor(batch.next_obs))
        next_values = torch.zeros(64)
        for action in range(3):
            smaller = torch.minimum(
                agent.qf1_target(batch.next_obs)[:, action],
                agent.qf2_target(batch.next_obs)[:, action],
            )
            log_prob = dist.log_prob(torch.full((64,), action))
            next_values += dist.probs[:, action] * (smaller - alpha * log_prob)
        target = batch.rewards + torch.where(batch.terminations == 1, 0.0, 0.9 * next_values)
    values = {name: agent.get_submodule(name)(batch.obs) for name in ("qf1", "qf2")}
    taken = {name: value[range(64), batch.actions.tolist()] for name, value in values.items()}
    found = {f"{name}_loss": ((value - target) ** 2).mean() for name, value in taken.items()}
    found["qf_loss"] = found["qf1_loss"] + found["qf2_loss"]
    found |= {f"{name}_values": value.mean() for name, value in taken.items()}
    dist = Categorical(logits=agent.actor(batch.obs))
    smaller = torch.minimum(values["qf1"], values["qf2"]).detach()
    found["actor_loss"] = -((dist.probs * smaller).sum(1) + alpha * dist.entropy()).mean()
    found["entropy"] = dist.entropy().mean()
    lacking = args.target_entropy_scale * math.log(3) - dist.entropy().detach()
    return found, -(agent.log_alpha.exp() * lacking).mean()


@pytest.mark.parametrize("autotune", [True, False])
def test_losses(autotune):
    flags = dict(autotune=autotune, alpha=0.3, target_entropy_scale=0.4)
    args, agent, batch = agent_and_batch("sac_discrete", **flags)
    agent.log_alpha.data.fill_(-0.4)
    alpha = math.exp(-0.4) if autotune else 0.3
    *losses, metrics = sac_discrete.sac_loss(args, agent, batch)
    found, of_alpha = losses_by_hand(agent, args, batch, alpha)
    by_hand = found["qf_loss"], found["actor_loss"], of_alpha
    for loss, expected in zip(losses, by_hand, strict=True):
        assert_loss(loss, expected, agent)
    assert_metrics(metrics, found)


def test_atari_moves_both_targets(monkeypatch, tmp_path):
    """Each towards its own critic, by tau."""
    agents = helpers.spy_on_agents(monkeypatch, "sac_atari")
    moves = helpers.spy_on_calls(monkeypatch, "sac_atari", "update_target")
    total = helpers.SMALL["sac_atari"]["total_timesteps"]
    flags = dict(tau=0.25, learning_starts=total // 2, target_network_frequency=total // 4)
    helpers.train("sac_atari", tmp_path, batch_size=2, train_frequency=total, **flags)
    states = {name: part.state_dict() for name, part in agents[0].named_children()}

    def is_name(part, name):
        return all(map(torch.equal, part.state_dict().values(), states[name].values()))

    (first, second) = moves
    assert is_name(first[1], "qf1") and is_name(second[1], "qf2")
    assert not is_name(first[1], "qf2")
    assert first[2] == second[2] == 0.25


def test_samples_the_policy(monkeypatch, tmp_path):
    """With the probabilities of the logits, in each environment and step anew."""
    logits = [0.7, -0.4, 1.2]
    flags = dict(learning_starts=0, steps=1000)
    actions = actions_of("sac_discrete", monkeypatch, tmp_path, logits, **flags)
    probs = torch.tensor(logits).softmax(0).numpy()[:, None]
    found = np.stack([(actions == action).mean(0) for action in range(3)])  # (3, num_envs)
    deviations = (probs * (1 - probs) / len(actions)) ** 0.5
    assert (np.abs(found - probs) < 5 * deviations).all()
    assert_independent((actions == 0).astype(float))
    assert_independent((actions == 2).astype(float))
