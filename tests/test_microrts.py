"""ppo_microrts.py: the distribution of many units' actions by hand, and a made-up game."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete

from cleanrl_lite import ppo_microrts
from tests import helpers

PARTS = [6, 4, 4, 4, 4, 7, 49]
# The parts that count with each action: nothing, move, harvest, return, produce where and what,
# attack.
COUNTS = [[0], [0, 1], [0, 2], [0, 3], [0, 4, 5], [0, 6]]


class March(gym.Env):
    """Two units on 3 x 3 cells, one of them busy. The other is to move in the direction that its
    hit points name."""

    def __init__(self, map_name, opponents, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = Box(0, 1, (3, 3, 27 + 78), np.uint8)
        self.action_space = MultiDiscrete([PARTS] * 9)

    def observe(self):
        numbers = np.zeros((5, 9), int)
        mask = np.zeros((9, 78), int)
        self.cell, busy = self.np_random.permutation(9)[:2]
        self.direction = self.np_random.integers(4)
        numbers[:, self.cell] = self.direction, 0, 1, 4, 0
        numbers[:, busy] = self.np_random.integers(4), 0, 1, 4, 1
        # to do nothing, or to move in any direction
        mask[self.cell, :2] = 1
        mask[self.cell, 6:10] = 1
        return ppo_microrts.encode(numbers.reshape(5, 3, 3), mask.reshape(3, 3, 78))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        kind, direction = action[self.cell, :2]
        assert kind in (0, 1), "an invalid action"
        right = float(kind == 1 and direction == self.direction)
        info = dict(rewards=np.array([right, 1, 0, 0, 0, 0]))
        return self.observe(), right, self.steps == 5, False, info


@pytest.fixture
def march(monkeypatch):
    monkeypatch.setattr(ppo_microrts, "MicroRTS", March)


def split(numbers):
    """The 78 numbers of a cell as views of its seven parts."""
    return np.split(numbers, np.cumsum(PARTS)[:-1])


def masks(rng, batch, cells, units):
    """Random masks (batch, cells, 78) with so many waiting units: doing nothing is valid, and
    random other choices."""
    mask = np.zeros((batch, cells, 78))
    for sample in mask:
        for cell in rng.permutation(cells)[:units]:
            parts = split(sample[cell])
            parts[0][0] = 1
            for action in range(1, 6):
                if rng.random() < 0.6:
                    parts[0][action] = 1
                    for part in COUNTS[action][1:]:
                        some = rng.permutation(PARTS[part])[:3]
                        parts[part][some] = 1
    return mask


def distribution(logits, mask, orders=None):
    """As Agent.forward makes it, of the logits of all cells."""
    mask = torch.as_tensor(mask).byte()
    batch, cells, _ = mask.shape
    units = mask[..., 0].topk(orders or cells).indices
    index = torch.arange(batch)[:, None], units
    return ppo_microrts.UnitActions(logits[index], mask[index], index, cells)


def probabilities(logits, mask):
    """Those of each part of one cell, with the exponential; 0 where nothing is valid."""
    weights = np.exp(logits) * mask
    return [part / (part.sum() or 1) for part in split(weights)]


def entropy_of(probs):
    probs = probs[probs > 0]
    return -(probs * np.log(probs)).sum()


def by_hand(logits, mask, actions):
    """Log-probability and entropy of one sample."""
    logprob = 0.0
    entropy = 0.0
    for cell in np.flatnonzero(mask[:, 0]):
        probs = probabilities(logits[cell], mask[cell])
        chosen = actions[cell]
        for part in COUNTS[chosen[0]]:
            logprob += np.log(probs[part][chosen[part]])
        for action, prob in enumerate(probs[0]):
            for part in COUNTS[action]:
                entropy += prob * entropy_of(probs[part])
    return logprob, entropy


def counted(mask, actions):
    """Sample, cell and part of everything that counts."""
    for sample, cell in np.argwhere(mask[..., 0]):
        for part in COUNTS[actions[sample, cell, 0]]:
            yield sample, cell, part


def test_log_probability_and_entropy_by_hand():
    rng = np.random.default_rng(1)
    logits = torch.randn(6, 5, 78)
    mask = masks(rng, 6, 5, 3)
    dist = distribution(logits, mask)
    actions = dist.sample()
    samples = zip(logits.numpy(), mask, actions.numpy())
    logprobs, entropies = zip(*(by_hand(*sample) for sample in samples))
    np.testing.assert_allclose(dist.log_prob(actions), logprobs, rtol=1e-4)
    np.testing.assert_allclose(dist.entropy(), entropies, rtol=1e-4)


def test_what_is_sampled():
    """Only valid choices, in every part that the chosen action needs."""
    mask = masks(np.random.default_rng(3), 400, 5, 2)
    logits = torch.randn(400, 5, 78)
    dist = distribution(logits, mask)
    for greedy in (False, True):
        actions = dist.sample(greedy).numpy()
        for n, cell, part in counted(mask, actions):
            probs = probabilities(logits[n, cell].numpy(), mask[n, cell])
            probs = probs[part]
            chosen = actions[n, cell, part]
            assert probs[chosen] > 0
            assert not greedy or chosen == probs.argmax()
        kinds = actions[mask[..., 0] == 1, 0]
        assert set(kinds) == set(range(6))


def test_learns_to_march(march, monkeypatch, tmp_path):
    """Which unit waits, and where to: the greedy policy makes no mistake. Rewards are weighted
    for learning only."""
    agents = helpers.spy_on_agents(monkeypatch, "ppo_microrts")
    rollouts = helpers.spy_on_calls(monkeypatch, "ppo_microrts")
    flags = dict(
        num_envs=8,
        num_steps=32,
        num_minibatches=2,
        total_timesteps=3_000,
        learning_rate=5e-3,
        gamma=0.5,
        reward_weights="2,0.5,9,9,9,9",
        eval_episodes=20,
    )
    run_dir, returns = helpers.train("ppo_microrts", tmp_path, **flags)
    assert returns == [5.0] * 20
    rewards = np.concatenate([rollout[0] for rollout in rollouts])
    assert set(rewards.flat) == {0.5, 2.5}
    episodes = helpers.scalars(run_dir)["charts/episodic_return"]
    assert {value for _, value in episodes} <= set(range(6))
    env = March("", [])
    obs, _ = env.reset(seed=3)
    _, value = agents[0](torch.as_tensor(obs[None]))
    # of 1 to 5 steps that are left: it cannot count them
    returns = np.cumsum(2.5 * 0.5 ** np.arange(5))
    assert value.item() == pytest.approx(returns.mean(), rel=0.25)
