"""ppo_hybrid.py: actions of choices and numbers: as vectors, their probabilities, samples."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from torch.distributions import Categorical, Normal

from cleanrl_lite import ppo_hybrid
from tests import helpers, probe_envs

OPTIONS = [3, 2]  # of two choices; and three numbers


def test_vectors_become_actions():
    """Bounds of each number, clipped; choices that do not begin at 0; nested spaces; the order
    of the keys."""
    env = gym.Env()
    env.observation_space = Box(0, 1, (1,))
    numbers = Box(np.float32([0, -5]), np.float32([10, 5]))
    choices = Dict(b=Discrete(2), a=Discrete(3, start=4))
    env.action_space = Tuple((numbers, choices))
    wrapped = ppo_hybrid.MixedActions(env)
    assert wrapped.action_space.shape == (4,)
    assert sorted(wrapped.options) == [2, 3]
    assert wrapped.num_numbers == 2
    indices = {3: 2, 2: 0}  # of the choice with so many options
    vector = [indices[options] for options in wrapped.options]
    action = np.float32([*vector, 0.5, -3.0])
    pair, named = wrapped.action(action)
    assert pair == pytest.approx([7.5, -5])
    assert named == dict(a=6, b=0)
    assert env.action_space.contains((pair, named))


def test_rounding_does_not_leave_the_bounds():
    """low + (high - low) may be above high; the environment gets the bounds."""
    low = np.float32([-0.35, -7.1, 0.1])
    high = np.float32([0.9, 3.3, 0.7])
    for _ in range(100):
        low = low - np.float32(0.013)
        high = high + np.float32(0.017)
        env = gym.Env()
        env.observation_space = Box(0, 1, (1,))
        env.action_space = Box(low, high)
        wrapped = ppo_hybrid.MixedActions(env)
        for action, bound in ((-1, low), (1, high), (3, high)):
            taken = wrapped.action(np.full(3, action, dtype=np.float32))
            assert env.action_space.contains(taken)
            assert taken == pytest.approx(bound, abs=1e-5)


def test_probabilities():
    """The sum over independent parts, by hand."""
    agent = ppo_hybrid.Agent(2, OPTIONS, 3)
    torch.nn.init.normal_(agent.actor[-1].weight)
    agent.actor_logstd.data = torch.tensor([0.5, -1.0, 0.0])
    obs = torch.randn(50, 2)
    first, second, mean = agent.actor(obs).split([3, 2, 3], dim=1)
    dist, _ = agent(obs)
    actions = dist.sample(torch.randn(50, 8)).detach()
    gaussian = Normal(mean, agent.actor_logstd.exp())
    logprob = gaussian.log_prob(actions[:, 2:]).sum(1)
    entropy = gaussian.entropy().sum(1)
    for n, logits in enumerate((first, second)):
        part = Categorical(logits=logits)
        logprob = logprob + part.log_prob(actions[:, n])
        entropy = entropy + part.entropy()
    torch.testing.assert_close(dist.log_prob(actions), logprob)
    torch.testing.assert_close(dist.entropy(), entropy)
    agent.obs_stats.update(obs)
    raw = torch.randn(20, 2, dtype=torch.float64)
    outputs = agent.actor(agent.normalize(raw.float()))
    first, second, mean = outputs.split([3, 2, 3], dim=1)
    choices = [first.argmax(1, True), second.argmax(1, True)]
    greedy = torch.cat([*choices, mean], dim=1)
    torch.testing.assert_close(agent.act(raw), greedy)


def test_samples_follow_the_policy(monkeypatch, tmp_path):
    """Frequencies of the choices, mean and deviation of the number."""

    class Biased(ppo_hybrid.Agent):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.actor[-1].weight.data.zero_()
            self.actor[-1].bias.data[-1] = 0.2
            self.actor[-1].bias.data[0] = 1.0
            self.actor_logstd.data.fill_(math.log(0.1))

    monkeypatch.setattr(ppo_hybrid, "Agent", Biased)
    probe_envs.ACTIONS.clear()
    sizes = dict(
        num_envs=5, num_steps=400, num_minibatches=1, update_epochs=1, total_timesteps=10_000
    )
    helpers.train("ppo_hybrid", tmp_path, **sizes, learning_rate=1e-20)
    actions = probe_envs.ACTIONS[:10_000]
    choices = np.bincount([choice - 2 for choice, _ in actions]) / 10_000
    probs = torch.tensor([1.0, 0, 0]).softmax(0)
    assert choices == pytest.approx(probs, abs=0.02)
    # 0.2 of [-1, 1] is 6 of [0, 10]
    numbers = [inner["number"][0] for _, inner in actions]
    numbers = np.array(numbers)
    assert (numbers.mean(), numbers.std()) == (
        pytest.approx(6, abs=0.05),
        pytest.approx(0.5, abs=0.03),
    )
    signs = [inner["sign"] for _, inner in actions]
    assert np.mean(signs) == pytest.approx(0.5, abs=0.02)
