"""ppo_microrts.py: the distribution of many units' actions by hand, and a made-up game.
test_rollouts.py has what a rollout holds."""

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


def masks(rng, batch, cells, units):
    """Random masks (batch, cells, 78) with so many waiting units: doing nothing is valid, and
    random other choices."""
    mask = np.zeros((batch, cells, 78))
    for sample in mask:
        for cell in rng.permutation(cells)[:units]:
            parts = np.split(sample[cell], np.cumsum(PARTS)[:-1])
            parts[0][0] = 1
            for action in range(1, 6):
                if rng.random() < 0.6:
                    parts[0][action] = 1
                    for part in COUNTS[action][1:]:
                        some = rng.permutation(PARTS[part])[:3]
                        parts[part][some] = 1
    return mask


def distribution(logits, mask):
    """As Agent.forward makes it, of the logits of all cells."""
    mask = torch.as_tensor(mask).byte()
    batch, cells, _ = mask.shape
    units = mask[..., 0].topk(cells).indices
    index = torch.arange(batch)[:, None], units
    return ppo_microrts.UnitActions(logits[index], mask[index], index, cells)


def probabilities(logits, mask):
    """Those of each part of one cell, with the exponential; 0 where nothing is valid."""
    parts = np.split(np.exp(logits) * mask, np.cumsum(PARTS)[:-1])
    return [part / (part.sum() or 1) for part in parts]


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


def test_log_probability_and_entropy_by_hand():
    """What is invalid, does not count, or is not a waiting unit's has no gradient either."""
    rng = np.random.default_rng(1)
    logits = torch.randn(6, 5, 78, requires_grad=True)
    mask = masks(rng, 6, 5, 3)
    dist = distribution(logits, mask)
    actions = dist.sample()
    samples = zip(logits.detach().numpy(), mask, actions.numpy())
    logprobs, entropies = zip(*(by_hand(*sample) for sample in samples))
    logprob, entropy = dist.log_prob(actions), dist.entropy()
    np.testing.assert_allclose(logprob.detach(), logprobs, rtol=1e-4)
    np.testing.assert_allclose(entropy.detach(), entropies, rtol=1e-4)
    (gradient,) = torch.autograd.grad((logprob + entropy).sum(), logits)
    assert not gradient[torch.from_numpy(mask) == 0].any()
    assert gradient[torch.from_numpy(mask) == 1].bool().float().mean() > 0.5


def test_what_is_sampled():
    """Only valid choices, in every part that the chosen action needs."""
    mask = masks(np.random.default_rng(3), 400, 5, 2)
    logits = torch.randn(400, 5, 78)
    dist = distribution(logits, mask)
    for greedy in (False, True):
        actions = dist.sample(greedy).numpy()
        assert not actions[mask[..., 0] == 0].any()
        for n, cell in np.argwhere(mask[..., 0]):
            probs = probabilities(logits[n, cell].numpy(), mask[n, cell])
            for part in COUNTS[actions[n, cell, 0]]:
                chosen = actions[n, cell, part]
                assert probs[part][chosen] > 0
                assert not greedy or chosen == probs[part].argmax()
        kinds = actions[mask[..., 0] == 1, 0]
        assert set(kinds) == set(range(6))


@torch.no_grad()
def test_an_agent_of_units():
    """Its distribution is of the cells where units wait, with the logits of their own features;
    --max-orders: no more units get an order, and the others wait."""
    spaces = Box(0, 1, (5, 4, 105), np.uint8), MultiDiscrete([PARTS] * 20)
    mask = masks(np.random.default_rng(0), 3, 20, 4)
    planes = torch.randint(2, (3, 5, 4, 27))
    obs = torch.cat([planes, torch.from_numpy(mask).reshape(3, 5, 4, 78)], -1).byte()
    for orders in 16, 2:
        args = helpers.small_args("ppo_microrts", "unused", max_orders=orders)
        agent = ppo_microrts.Agent(args, *spaces)
        torch.nn.init.normal_(agent.actor[-1].weight)
        dist, value = agent(obs)
        actions = agent.act(obs)
        assert value.shape == (3,)
        assert actions.shape == (3, 20, 7)
        near = agent.near(planes.permute(0, 3, 1, 2).float())
        far = agent.far(near)
        for n, cell in np.argwhere(mask[..., 0]):
            if orders == 2:
                continue
            y, x = divmod(cell, 4)
            features = torch.cat([near[n, :, y, x], far[n, :, y // 2, x // 2]])
            logits = agent.actor(features).masked_fill(torch.from_numpy(mask[n, cell]) == 0, -1e9)
            assert actions[n, cell, 0] == logits[:6].argmax()
        torch.testing.assert_close(value, agent.critic(far)[:, 0])
        given = dist.waits.sum((1, 2)).tolist()
        assert given == [min(orders, 4)] * 3


@pytest.mark.slow
def test_learns_to_march(monkeypatch, tmp_path):
    """Which unit waits, and where to: the greedy policy makes no mistake. Returns are not
    weighted."""
    monkeypatch.setattr(ppo_microrts, "MicroRTS", March)
    flags = dict(num_envs=8, num_steps=32, num_minibatches=2, total_timesteps=3_000, gamma=0.5)
    flags |= dict(learning_rate=5e-3, reward_weights="2,0.5,9,9,9,9", eval_episodes=20)
    run_dir, returns = helpers.train("ppo_microrts", tmp_path, **flags)
    assert returns == [5.0] * 20
    episodes = helpers.scalars(run_dir)["charts/episodic_return"]
    assert {value for _, value in episodes} <= set(range(6))
