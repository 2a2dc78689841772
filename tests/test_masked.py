"""ppo_masked.py, and what ppo_selfplay.py shares with it: the masked distribution of several parts,
where masks come from, and what ppo.py would do. test_rollouts.py has what a rollout holds."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from torch.distributions import Categorical

from cleanrl_lite import ppo_masked, utils
from tests import helpers

MASKED = "tests.probe_envs:ProbeMasked-v0"
SOURCES = ["info", "method", "obs", "parts"]


def of(source):
    return dict(env_id=MASKED, env_kwargs=json.dumps(dict(source=source)))


def agent_and_obs(script, mask):
    """An agent with three choices in one part and two in the other, and observations with this
    mask."""
    args = helpers.small_args(script, "unused")
    spaces = Box(-np.inf, np.inf, (10,)), MultiDiscrete([3, 2])
    agent = helpers.module(script).Agent(args, *spaces)
    torch.nn.init.normal_(agent.actor[-1].weight)
    obs = torch.randn(500, 4)
    return agent, obs, torch.cat([obs, torch.tensor(mask).float().expand(500, 6)], 1)


@pytest.mark.parametrize("script", ["ppo_masked", "ppo_selfplay"])
def test_the_masked_distribution(script):
    """Three choices of which the second is invalid, and two in a part that is padded: torch's, of
    what remains; so are samples, and what is best. What is invalid has no gradient."""
    agent, obs, masked = agent_and_obs(script, [1, 0, 1, 1, 1, -1])
    dist, value = agent(masked)
    logits = agent.actor(obs)
    one = Categorical(logits=logits[:, [0, 2]])
    two = Categorical(logits=logits[:, 3:5])
    sampled = torch.from_numpy(agent.sampler()(masked.numpy()))
    for actions in dist.sample(), sampled:
        assert set(actions[:, 0].tolist()) == {0, 2}
        assert set(actions[:, 1].tolist()) == {0, 1}
    first = one.log_prob(actions[:, 0] // 2)
    second = two.log_prob(actions[:, 1])
    torch.testing.assert_close(dist.log_prob(actions), first + second)
    torch.testing.assert_close(dist.entropy(), one.entropy() + two.entropy())
    torch.testing.assert_close(value, agent.critic(obs)[:, 0])  # the mask is no input
    assert dist.entropy().shape == value.shape == (500,)
    best = torch.stack([2 * one.probs.argmax(-1), two.probs.argmax(-1)], 1)
    assert torch.equal(agent.act(masked), best)
    utils.check_policy(agent, masked[:4].numpy())
    loss = (dist.log_prob(actions) + dist.entropy()).sum()
    (gradient,) = torch.autograd.grad(loss, agent.actor[-1].bias)
    assert gradient[[1, 5]].tolist() == [0, 0]
    assert gradient[[0, 2, 3, 4]].all()


@pytest.mark.parametrize("script", ["ppo_masked", "ppo_selfplay"])
def test_a_part_in_which_nothing_is_valid_has_no_gradient(script):
    """Not in the log-probability and not in the entropy; the others are as without that part."""
    agent, obs, idle = agent_and_obs(script, [1, 1, 0, 0, 0, -1])
    dist, _ = agent(idle)
    actions = dist.sample()
    weight = agent.actor[-1].weight
    (found,) = torch.autograd.grad((dist.log_prob(actions) + dist.entropy()).sum(), weight)
    one = Categorical(logits=agent.actor(obs)[:, :2])
    loss = (one.log_prob(actions[:, 0]) + one.entropy()).sum()
    (expected,) = torch.autograd.grad(loss, weight)
    torch.testing.assert_close(found, expected)
    assert not found[2:].any()
    assert found[:2].any(1).all()


@pytest.mark.parametrize("source", SOURCES)
def test_where_masks_come_from(source):
    """After the reset and after every step; the observation comes first, -1 is what a part does
    not have. --no-mask: all is valid."""
    args = helpers.small_args("ppo_masked", "unused", **of(source), num_envs=2)
    envs = utils.make_envs(args, ppo_masked.make_env)
    seen = set()
    for _ in range(20):
        for obs, env in zip(envs.obs, envs.env.envs, strict=True):
            assert obs.tolist() == [3, *env.unwrapped.mask, -1]
            seen.add(obs[1])
        next_obs, rewards, *_ = envs.step(np.array([[1, 0], [2, 1]]))
        assert rewards.tolist() == [0.5, 1.0]
        assert envs.observation_space.contains(next_obs)
    assert seen == {0, 1}
    args.mask = False
    env = ppo_masked.make_env(args)
    for seed in range(5):
        obs, _ = env.reset(seed=seed)
        assert obs.tolist() == [3, 1, 1, 1, 1, 1, -1]


class Echo(gym.Env):
    """Its last action is in its info."""

    observation_space = Box(-1, 1, (1,))

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.zeros(1, np.float32), 0.0, False, False, dict(action=action)


@pytest.mark.parametrize(
    "space, vector, action",
    [
        (Discrete(3, start=2), [1], 3),
        (MultiDiscrete([[2, 3], [4, 2]], start=[[0, 5], [0, 0]]), [1, 2, 3, 0], [[1, 7], [3, 0]]),
    ],
)
def test_vectors_become_actions(space, vector, action):
    """In the environment's shape, counted from where it starts."""
    env = ppo_masked.ActionMask(Echo(space), True)
    *_, info = env.step(np.array(vector))
    assert np.array(info["action"]).tolist() == action
    assert env.action_space.contains(np.array(vector))
    assert len(env.action_space) == len(vector)


def test_a_mask_leaves_out_what_a_part_does_not_have():
    """Wherever in the rectangle that is; a list of parts is the same as one list."""
    env = ppo_masked.ActionMask(Echo(MultiDiscrete([2, 3, 1])), True)
    expected = [0, 1, -1, 1, 0, 1, 1, -1, -1]
    for mask in np.array([[0, 1, 1, 0, 1, 1]]), ([0, 1], [1, 0, 1], [1]):
        obs = env.append_mask(np.zeros(1, np.float32), dict(action_mask=mask))
        assert obs.tolist() == [0, *expected]
