"""ppo_hybrid.py: actions of choices and numbers: as vectors, their probabilities, samples.
test_rollouts.py has what a rollout holds."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from torch.distributions import Categorical, Normal

from cleanrl_lite import ppo_hybrid, utils
from tests import helpers


def mixed(action_space):
    env = gym.Env()
    env.observation_space, env.action_space = Box(0, 1, (2,)), action_space
    return ppo_hybrid.MixedActions(env)


def test_vectors_become_actions():
    """Bounds of each number, clipped; choices that do not begin at 0; nested spaces; in the order
    of the keys."""
    numbers = Box(np.float32([0, -5]), np.float32([10, 5]))
    matrix = Box(np.float32([[0, 0, 0], [1, 1, 1]]), np.float32([[1, 2, 4], [2, 2, 3]]))
    choices = Dict(b=Discrete(2), a=Discrete(3, start=4))
    env = mixed(Tuple((numbers, choices, matrix)))
    assert env.action_space.low.tolist() == [0, 0] + [-1] * 8
    assert env.action_space.high.tolist() == [1, 2] + [1] * 8  # b's, then a's
    vector = np.float32([0, 2, 0.5, -3.0, -1, 0, 1, -1, 1, 0])
    pair, named, rows = env.action(vector)
    assert pair == pytest.approx([7.5, -5])
    assert dict(named) == dict(a=6, b=0)
    np.testing.assert_allclose(rows, [[0, 1, 4], [1, 2, 2]])
    assert env.env.action_space.contains((pair, named, rows))
    for space in Tuple((Discrete(2), Box(0, np.inf, (1,)))), MultiDiscrete([2, 2]):
        with pytest.raises(SystemExit, match="actions must be Discrete or Box"):
            mixed(space)


def test_rounding_does_not_leave_the_bounds():
    """low + (high - low) may be above high; the environment gets the bounds."""
    low = np.float32([-0.35, -7.1, 0.1])
    high = np.float32([0.9, 3.3, 0.7])
    for _ in range(100):
        low = low - np.float32(0.013)
        high = high + np.float32(0.017)
        env = mixed(Box(low, high))
        for action, bound in ((-1, low), (1, high), (3, high)):
            taken = env.action(np.full(3, action, dtype=np.float32))
            assert env.env.action_space.contains(taken)
            assert taken == pytest.approx(bound, abs=1e-5)


@pytest.fixture
def agent():
    """Of two choices, of three and of two options, and three numbers."""
    space = mixed(Tuple((Box(0, 1, (3,)), Discrete(3), Discrete(2)))).action_space
    args = helpers.small_args("ppo_hybrid", "unused")
    agent = ppo_hybrid.Agent(args, Box(-9, 9, (2,)), space)
    assert agent.options == [3, 2]
    torch.nn.init.normal_(agent.actor[-1].weight)
    agent.actor_logstd.data = torch.tensor([0.5, -1.0, 0.0])
    agent.obs_stats.mean[:] = torch.tensor([1.0, -1.0])
    agent.obs_stats.var[:] = 4.0
    return agent


def test_probabilities(agent):
    """Log-probability and entropy are the sums over independent parts; act() takes the likeliest
    choices and the mean."""
    obs = torch.randn(50, 2)
    first, second, mean = agent.actor((obs - agent.obs_stats.mean.float()) / 2).split([3, 2, 3], 1)
    dist, value = agent(obs)
    actions = torch.cat(
        [torch.randint(3, (50, 1)), torch.randint(2, (50, 1)), torch.randn(50, 3)], 1
    )
    gaussian = Normal(mean, agent.actor_logstd.exp())
    logprob = gaussian.log_prob(actions[:, 2:]).sum(1)
    entropy = gaussian.entropy().sum(1)
    for n, logits in enumerate((first, second)):
        logprob = logprob + Categorical(logits=logits).log_prob(actions[:, n])
        entropy = entropy + Categorical(logits=logits).entropy()
    torch.testing.assert_close(dist.log_prob(actions), logprob)
    torch.testing.assert_close(dist.entropy(), entropy)
    greedy = torch.cat([first.argmax(1, True), second.argmax(1, True), mean], 1)
    torch.testing.assert_close(agent.act(obs), greedy)
    assert value.shape == (50,)


@torch.no_grad()
def test_samples_follow_the_policy(agent):
    """Frequencies of the choices, means and deviations of the numbers, each on its own; of the
    distribution and of the sampler."""
    one = torch.tensor([[0.3, -0.7]])
    dist, _ = agent(one)
    obs = one.expand(20_000, 2)
    samples = agent(obs)[0].sample()
    for actions in agent.sampler()(obs.numpy()), samples.numpy():
        for n, choice in enumerate(dist.choices):
            frequencies = np.bincount(actions[:, n].astype(int)) / 20_000
            np.testing.assert_allclose(frequencies, choice.probs[0], atol=0.02)
        std = agent.actor_logstd.exp()
        errors = (actions[:, 2:] - dist.mode[0, 2:].numpy()) / std.numpy()
        assert np.abs(errors.mean(0)).max() < 0.04
        np.testing.assert_allclose(errors.std(0), 1, atol=0.03)
        together = np.corrcoef(actions.T) - np.eye(5)
        assert np.abs(together).max() < 0.05
    utils.check_policy(agent, obs[:4].numpy())
