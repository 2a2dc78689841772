"""ppo_masked.py: the masked distribution of several parts, where masks come from, and what
ppo.py would do."""

import json

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from cleanrl_lite import ppo_masked, utils
from tests import helpers
from tests.test_probe import values

MASKED = "tests.probe_envs:ProbeMasked-v0"
SOURCES = ["info", "method", "obs", "parts"]


def of(source):
    return dict(env_id=MASKED, env_kwargs=json.dumps(dict(source=source)))


def env_of(source, mask=True):
    return ppo_masked.make_env(ppo_masked.Args(mask=mask, **of(source)))


def test_the_masked_distribution():
    """Three choices of which the second is invalid, and two in a part that is padded: torch's,
    of what remains."""
    agent = ppo_masked.Agent(4, 2, 3)
    torch.nn.init.normal_(agent.actor[-1].weight)
    obs = torch.randn(500, 4)
    masks = torch.tensor([1.0, 0, 1, 1, 1, -1]).expand(500, 6)
    masked = torch.cat([obs, masks], 1)
    dist, value = agent(masked)
    logits = agent.actor(obs)
    one = Categorical(logits=logits[:, [0, 2]])
    two = Categorical(logits=logits[:, 3:5])
    actions = dist.sample()
    assert set(actions[:, 0].tolist()) == {0, 2}
    assert set(actions[:, 1].tolist()) == {0, 1}
    first = one.log_prob(actions[:, 0] // 2)
    second = two.log_prob(actions[:, 1])
    torch.testing.assert_close(dist.log_prob(actions), first + second)
    torch.testing.assert_close(dist.entropy(), one.entropy() + two.entropy())
    assert dist.entropy().shape == value.shape == (500,)
    best_first = 2 * one.probs.argmax(-1)
    best_second = two.probs.argmax(-1)
    best = torch.stack([best_first, best_second], 1)
    assert torch.equal(agent.act(masked.double()), best)
    torch.testing.assert_close(value, agent.critic(obs)[:, 0])  # the mask is no input
    loss = (dist.log_prob(actions) + dist.entropy()).sum()
    (gradient,) = torch.autograd.grad(loss, agent.actor[-1].bias)
    assert gradient[[1, 5]].tolist() == [0, 0]
    assert gradient[[0, 2, 3, 4]].all()


def test_a_part_in_which_nothing_is_valid_has_no_gradient():
    """Not in the log-probability and not in the entropy; the others are as without that part."""
    obs = torch.randn(50, 4)
    idle = torch.tensor([1.0, 1, 0, 0, 0, -1]).expand(50, 6)
    for script in ("ppo_masked", "ppo_selfplay"):
        agent = helpers.module(script).Agent(4, 2, 3)
        torch.nn.init.normal_(agent.actor[-1].weight)
        dist, _ = agent(torch.cat([obs, idle], 1))
        actions = dist.sample()
        last = agent.actor[-1]
        loss = (dist.log_prob(actions) + dist.entropy()).sum()
        weight, bias = torch.autograd.grad(loss, [last.weight, last.bias])
        assert not weight[2:].any(), script
        assert not bias[2:].any(), script
        logits = agent.actor(obs)[:, :2]
        one = Categorical(logits=logits)
        loss = (one.log_prob(actions[:, 0]) + one.entropy()).sum()
        (expected,) = torch.autograd.grad(loss, last.weight)
        assert weight.any()
        torch.testing.assert_close(weight, expected)


@pytest.mark.parametrize("source", SOURCES)
def test_where_masks_come_from(source):
    """After the reset and after every step, in training's environments too; the observation
    comes first."""
    env = utils.Checked(env_of(source))
    obs, _ = env.reset(seed=1)
    seen = set()

    def mask():
        return env.unwrapped.mask.tolist()

    for _ in range(20):
        assert env.observation_space.contains(obs)
        assert obs.tolist() == [3, *mask(), -1]
        seen.add(mask()[0])
        obs, *_, info = env.step(np.array([1, 0]))
        assert obs.tolist() == [3, *mask(), -1]
        assert info["statistics"][0] == 0.5
        obs, _ = env.reset()
    assert seen == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_the_best_of_what_is_valid(source, monkeypatch, tmp_path):
    """The probe refuses invalid actions; the value says that the better choice is taken whenever
    it is valid."""
    agents = helpers.spy_on_agents(monkeypatch, "ppo_masked")
    flags = dict(
        num_envs=4,
        num_steps=32,
        num_minibatches=2,
        total_timesteps=6_016,
        learning_rate=1e-2,
        gamma=0.9,
        clip_vloss=False,
        ent_coef=0.0,
    )
    _, returns = helpers.train("ppo_masked", tmp_path, **of(source), **flags, eval_episodes=50)
    assert set(returns) == {2.0, 1.5}
    obs = torch.tensor([[3.0, 1, 1, 1, 1, 1, -1], [3.0, 0, 1, 1, 1, 1, -1]])
    assert agents[0].act(obs).tolist() == [[0, 1], [1, 1]]
    assert values(agents[0], [3.0]) == pytest.approx(1.75, abs=0.1)


@pytest.mark.parametrize(
    "flags", [dict(compile=False), pytest.param(dict(compile=True), marks=pytest.mark.slow)]
)
def test_one_part_without_a_mask_is_ppo(flags, tmp_path):
    """The same random numbers, so the same run: curves, networks, random generators."""
    flags |= dict(
        env_id="CartPole-v1", num_envs=4, num_steps=64, total_timesteps=1024, max_episode_steps=None
    )
    masked, returns = helpers.train("ppo_masked", tmp_path / "masked", **flags)
    plain, same = helpers.train("ppo", tmp_path / "ppo", **flags)
    assert returns == same
    mine, theirs = (helpers.scalars(run) for run in (masked, plain))
    assert mine.keys() == theirs.keys()
    for tag in set(mine) - helpers.UNSEEDED:
        assert [value for _, value in mine[tag]] == pytest.approx(
            [value for _, value in theirs[tag]], rel=1e-4, abs=1e-5
        )
    one, other = (helpers.load(run) for run in (masked, plain))
    helpers.assert_same_state(one["rng"], other["rng"])
    for name, weight in one["agent"].items():
        torch.testing.assert_close(weight, other["agent"][name], rtol=1e-4, atol=1e-5)
