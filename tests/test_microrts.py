"""ppo_microrts.py: the distribution of many units' actions by hand, a made-up game, and the real
one where it is."""

import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete

from cleanrl_lite import ppo_microrts
from tests import helpers

PARTS = [6, 4, 4, 4, 4, 7, 49]
STARTS = np.cumsum([0, *PARTS])
# What each action needs besides itself: nothing, move, harvest, return, produce where and what,
# attack.
NEEDS = [[], [1], [2], [3], [4, 5], [6]]


class March(gym.Env):
    """Two units on 3 x 3 cells, one of them busy. The other is to move in the direction that its
    hit points name."""

    def __init__(self, map_name, opponents, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = Box(0, 1, (3, 3, 27 + 78), np.uint8)
        self.action_space = MultiDiscrete(np.tile(PARTS, (9, 1)))

    def observe(self):
        numbers = np.zeros((5, 3, 3), int)
        mask = np.zeros((3, 3, 78), int)
        self.cell, busy = self.np_random.permutation(9)[:2]
        self.direction = self.np_random.integers(4)
        numbers[:, self.cell // 3, self.cell % 3] = self.direction, 0, 1, 4, 0
        numbers[:, busy // 3, busy % 3] = self.np_random.integers(4), 0, 1, 4, 1
        mask[self.cell // 3, self.cell % 3, :10] = 1, 1, 0, 0, 0, 0, 1, 1, 1, 1
        return ppo_microrts.encode(numbers, mask)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        action = action[self.cell]
        self.steps = self.steps + 1
        assert action[0] in (0, 1), "an invalid action"
        right = float(action[0] == 1 and action[1] == self.direction)
        self.rewards = np.array([right, 1, 0, 0, 0, 0])
        return self.observe(), right, self.steps == 5, False, {}


@pytest.fixture
def march(monkeypatch):
    monkeypatch.setattr(ppo_microrts, "MicroRTS", March)


def masks(rng, batch, cells, units):
    """Random masks (batch, cells, 78) with so many waiting units: doing nothing is valid, and
    random other choices."""
    mask = np.zeros((batch, cells, 78))
    for sample in mask:
        for cell in rng.permutation(cells)[:units]:
            sample[cell, 0] = 1
            for action in range(1, 6):
                if rng.random() < 0.6:
                    sample[cell, action] = 1
                    for part in NEEDS[action]:
                        sample[cell, STARTS[part] + rng.permutation(PARTS[part])[:3]] = 1
    return mask


def distribution(logits, mask, orders=None):
    """As Agent.forward makes it, of the logits of all cells."""
    mask, orders = torch.as_tensor(mask).to(torch.uint8), orders or mask.shape[1]
    index = torch.arange(len(mask))[:, None], mask[..., 0].topk(orders).indices
    return ppo_microrts.UnitActions(logits[index], mask[index], index, mask.shape[1])


def part_probabilities(logits, mask, part):
    """Those of one part of one cell, with loops and the exponential."""
    weights = (
        np.exp(logits[STARTS[part] : STARTS[part + 1]]) * mask[STARTS[part] : STARTS[part + 1]]
    )
    return weights / weights.sum() if weights.any() else weights


def by_hand(logits, mask, actions):
    """Log-probability and entropy of one sample."""
    logprob = entropy = 0.0
    for cell in np.flatnonzero(mask[:, 0]):
        probs = [part_probabilities(logits[cell], mask[cell], part) for part in range(7)]
        chosen = actions[cell]
        logprob += sum(np.log(probs[part][chosen[part]]) for part in [0, *NEEDS[chosen[0]]])
        for action, prob in enumerate(probs[0]):
            needed = [probs[part] for part in NEEDS[action]] if prob else []
            entropies = [-sum(p * np.log(p) for p in part if p) for part in needed]
            entropy += prob * sum(entropies) - (prob * np.log(prob) if prob else 0)
    return logprob, entropy


def test_log_probability_and_entropy_by_hand():
    rng = np.random.default_rng(1)
    logits = torch.randn(6, 5, 78)
    mask = masks(rng, 6, 5, 3)
    dist = distribution(logits, mask)
    actions = dist.sample()
    expected = np.array([by_hand(*sample) for sample in zip(logits.numpy(), mask, actions.numpy())])
    np.testing.assert_allclose(dist.log_prob(actions), expected[:, 0], rtol=1e-4)
    np.testing.assert_allclose(dist.entropy(), expected[:, 1], rtol=1e-4)


def test_entropy_is_that_of_the_samples():
    """The mean of -log p over many samples of one state."""
    mask = torch.as_tensor(masks(np.random.default_rng(2), 1, 4, 3)).expand(20_000, 4, 78)
    dist = distribution(torch.randn(1, 4, 78).expand(20_000, 4, 78), mask)
    assert -dist.log_prob(dist.sample()).mean().item() == pytest.approx(
        dist.entropy()[0].item(), rel=0.02
    )


def test_what_is_sampled():
    """Only valid choices, in every part that the chosen action needs."""
    mask = masks(np.random.default_rng(3), 400, 5, 2)
    logits = torch.randn(400, 5, 78)
    for dist, greedy in ((distribution(logits, mask), False), (distribution(logits, mask), True)):
        actions = dist.sample(greedy).numpy()
        for n, cell in np.argwhere(mask[..., 0] == 1):
            for part in [0, *NEEDS[actions[n, cell, 0]]]:
                probs = part_probabilities(logits[n, cell].numpy(), mask[n, cell], part)
                assert probs[actions[n, cell, part]] > 0
                assert not greedy or actions[n, cell, part] == probs.argmax()
        assert len(set(actions[mask[..., 0] == 1][:, 0])) == 6


def test_what_does_not_count_has_no_gradient():
    mask = masks(np.random.default_rng(4), 50, 5, 3)
    logits = torch.randn(50, 5, 78, requires_grad=True)
    dist = distribution(logits, mask)
    actions = dist.sample()
    (of_entropy,) = torch.autograd.grad(dist.entropy().sum(), logits, retain_graph=True)
    (of_logprob,) = torch.autograd.grad(dist.log_prob(actions).sum(), logits)
    assert not of_entropy[torch.as_tensor(mask) == 0].any()
    assert not of_logprob[torch.as_tensor(mask) == 0].any()
    used = torch.zeros(50, 5, 7, dtype=torch.bool)
    for n, cell in np.argwhere(mask[..., 0] == 1):
        used[n, cell, [0, *NEEDS[actions[n, cell, 0]]]] = True
    per_part = torch.stack([part.abs().sum(-1) for part in of_logprob.split(PARTS, -1)], -1)
    choices = torch.stack([part.sum(-1) for part in torch.as_tensor(mask).split(PARTS, -1)], -1)
    # what has one valid choice has no gradient either
    assert torch.equal(per_part > 1e-6, used & (choices > 1))


def test_at_most_so_many_orders():
    """Units beyond --max-orders do nothing, and do not count."""
    mask = masks(np.random.default_rng(5), 30, 6, 4)
    logits = torch.randn(30, 6, 78)
    mask[..., 1:6] *= np.arange(78)[None, None, 1:6] < 2  # to move or not
    all_units = distribution(logits, mask)
    two_units = distribution(logits, mask, orders=2)
    assert ((two_units.sample() != 0).any(-1).sum(1) <= 2).all()
    assert (two_units.entropy() <= all_units.entropy() + 1e-6).all()
    assert (two_units.log_prob(two_units.sample()) <= 0).all()
    assert two_units.entropy().mean() < all_units.entropy().mean()


def test_encode():
    """One-hot planes, with numbers that are too large in the last one; the mask as it is."""
    rng = np.random.default_rng(6)
    numbers = rng.integers(0, 12, (5, 2, 3))
    mask = rng.integers(0, 2, (2, 3, 78))
    planes = ppo_microrts.encode(numbers, mask)
    assert planes.dtype == np.uint8
    assert planes.shape == (2, 3, 105)
    assert (planes[..., 27:] == mask).all()
    for row, column in np.ndindex(2, 3):
        expected = []
        for number, n in zip(numbers[:, row, column], (5, 5, 3, 8, 6)):
            expected += [int(k == min(number, n - 1)) for k in range(n)]
        assert planes[row, column, :27].tolist() == expected


@pytest.mark.parametrize("height, width", [(8, 8), (3, 5)])
def test_the_networks_see_every_cell_and_no_mask(height, width):
    agent = ppo_microrts.Agent(height, width, 4)
    torch.nn.init.normal_(agent.actor[-1].weight)
    obs = torch.zeros(1, height, width, 105, dtype=torch.uint8)
    obs[..., 27:33] = 1
    dist, value = agent(obs)
    assert value.shape == (1,)
    assert dist.sample().shape == (1, height * width, 7)
    other = obs.clone()
    other[..., 33:37] = 1  # more is valid: the logits are the same
    torch.testing.assert_close(agent(other)[1], value)
    torch.testing.assert_close(agent(other)[0].parts[0].logits, dist.parts[0].logits)
    for cell in np.ndindex(height, width):
        seen = obs.clone()
        seen[(0, *cell, 3)] = 1
        assert agent(seen)[1] != value, cell
    one_unit = torch.zeros_like(obs)
    far = torch.zeros_like(obs)
    one_unit[0, 0, 0, 27:33] = far[0, 0, 0, 27:33] = 1
    far[0, 2, 4, 3] = 1  # four columns away, beyond the first convolution
    logits = [agent(x)[0].parts[0].logits[0, 0] for x in (one_unit, far)]
    assert not torch.equal(*logits)


def test_learns_to_march(march, monkeypatch, tmp_path):
    """Which unit waits, and where to: the greedy policy makes no mistake. Rewards are weighted
    for learning only."""
    agents = helpers.spy_on_agents(monkeypatch, "ppo_microrts")
    rewards = []
    gae = ppo_microrts.compute_gae
    monkeypatch.setattr(
        ppo_microrts, "compute_gae", lambda *args: rewards.append(args[0].copy()) or gae(*args)
    )
    flags = dict(
        num_envs=8,
        num_steps=32,
        num_minibatches=2,
        total_timesteps=3_000,
        learning_rate=5e-3,
        gamma=0.5,
    )
    run_dir, returns = helpers.train(
        "ppo_microrts", tmp_path, **flags, reward_weights="2,0.5,9,9,9,9", eval_episodes=20
    )
    assert returns == [5.0] * 20
    assert {*np.concatenate(rewards).flat} == {0.5, 2.5}
    assert {value for _, value in helpers.scalars(run_dir)["charts/episodic_return"]} <= {
        0,
        1,
        2,
        3,
        4,
        5,
    }
    env = March("", [])
    obs, _ = env.reset(seed=3)
    # it cannot count the steps
    value = np.mean([2.5 * sum(0.5**k for k in range(left)) for left in range(1, 6)])
    assert agents[0](torch.as_tensor(obs[None]))[1].item() == pytest.approx(value, rel=0.25)


class EndlessMarch(March):
    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, False, truncated, info


def test_a_game_at_the_time_limit_bootstraps(monkeypatch, tmp_path):
    """From its last observation, not from the first one of the next game."""
    monkeypatch.setattr(ppo_microrts, "MicroRTS", EndlessMarch)
    agents = helpers.spy_on_agents(monkeypatch, "ppo_microrts")
    rollouts = []
    gae = ppo_microrts.compute_gae
    monkeypatch.setattr(
        ppo_microrts, "compute_gae", lambda *args: rollouts.append(args) or gae(*args)
    )
    led_to = []  # the observations after each step

    def note(envs, actions, result):
        led_to.append(
            [
                (result[4]["final_obs"] if over else result[0])[n].copy()
                for n, over in enumerate(result[3])
            ]
        )

    helpers.spy_on_steps(monkeypatch, "ppo_microrts", note)
    flags = dict(
        num_steps=16,
        total_timesteps=32,
        max_episode_steps=5,
        learning_rate=1e-20,
    )
    helpers.train("ppo_microrts", tmp_path, **flags)
    ((_, _, next_values, terminations, dones, *_),) = rollouts
    assert not terminations.any()
    assert dones.all(1).tolist() == [t % 5 == 4 for t in range(16)]
    with torch.no_grad():
        expected = [agents[0](torch.as_tensor(np.array(obs)))[1].numpy() for obs in led_to]
    np.testing.assert_allclose(next_values, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "flags, line",
    [
        (dict(render=True), "no window here. Use --capture-video"),
        (dict(reward_weights="1,2,3"), "--reward-weights must be six numbers, got 1,2,3"),
        (
            dict(reward_weights="1,2,3,4,5,six"),
            "--reward-weights must be six numbers, got 1,2,3,4,5,six",
        ),
    ],
)
def test_refused(march, flags, line, monkeypatch, tmp_path):
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")  # as with a display
    with pytest.raises(SystemExit, match=line):
        helpers.train("ppo_microrts", tmp_path, **flags)
    assert not list(tmp_path.iterdir())


def test_the_game_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "gym_microrts", None)
    with pytest.raises(
        SystemExit,
        match=r"error: .*gym_microrts.* Install: pip install .*gym_microrts==.*-jre-headless$",
    ):
        ppo_microrts.make_env(ppo_microrts.Args())


# --- the real game
def real(test):
    reason = "gym_microrts, JPype1 or Java is not installed"
    return pytest.mark.slow(pytest.mark.skipif(not helpers.JAVA, reason=reason)(test))


def game(**flags):
    return ppo_microrts.make_env(ppo_microrts.Args(**flags))


def orders(**by_cell):
    """No action but in these cells, as in c9=[1, 2]: the first parts."""
    action = np.zeros((64, 7), dtype=np.int64)
    for cell, parts in by_cell.items():
        action[int(cell[1:]), : len(parts)] = parts
    return action


OURS, THEIRS, IDLE = 11, 12, 21  # planes


@real
def test_the_first_observation():
    """basesWorkers8x8: our base is at row 1, column 2, our worker beside it, resources in the
    corner."""
    env = game(opponents="passiveAI")
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    assert (obs[..., :27].sum(-1) == 5).all()
    assert np.argwhere(obs[..., OURS]).tolist() == [[1, 1], [1, 2]]
    assert np.argwhere(obs[..., THEIRS]).tolist() == [[6, 5], [6, 6]]
    assert obs[0, 0, [4, 9, 10, 14]].tolist() == [0, 1, 1, 1]
    assert obs[1, 2, [4, 15]].all()
    assert obs[1, 1, [1, 17]].all()
    assert env.unwrapped.waiting.tolist() == [9, 10]
    assert obs[..., 27:].any(-1).sum() == 2
    worker = obs[1, 1, 27:]
    base = obs[1, 2, 27:]
    # right is the base
    assert worker[:6].tolist() == [1, 1, 0, 0, 1, 0]
    assert worker[6:10].tolist() == [1, 0, 1, 1]
    # workers only
    assert base[:6].tolist() == [1, 0, 0, 0, 1, 0]
    assert base[22:29].tolist() == [0, 0, 0, 1, 0, 0, 0]


@real
def test_orders_are_carried_out():
    """The worker moves down, the base makes a worker to its right; others' actions do nothing."""
    env = game(opponents="passiveAI")
    env.reset(seed=1)
    obs, reward, terminated, truncated, _ = env.step(
        orders(c9=[1, 2], c10=[4, 0, 0, 0, 1, 3], c54=[1, 0])
    )
    assert (reward, terminated, truncated) == (
        0,
        False,
        False,
    )
    assert env.unwrapped.rewards.tolist() == [0, 0, 1, 0, 0, 0]
    assert not len(env.unwrapped.waiting)
    assert not obs[..., 27:].any()
    for _ in range(60):
        obs, *_ = env.step(orders())
    assert np.argwhere(obs[..., OURS]).tolist() == [[1, 2], [1, 3], [2, 1]]
    assert obs[6, 6, THEIRS]


@real
def test_losses_time_limits_and_opponents_in_turn():
    """Who does nothing loses against a rush; nobody loses against the passive opponent, whose
    turn is next."""
    args = ppo_microrts.Args(opponents="workerRushAI,passiveAI", max_episode_steps=900)
    envs = ppo_microrts.utils.vector_env([lambda: ppo_microrts.make_env(args)] * 2, False)
    first, _ = envs.reset(seed=[1, 2])
    ends = []
    first = first.copy()
    while len(ends) < 2:
        obs, _, terminations, truncations, infos = envs.step(np.stack([orders()] * 2))
        if (terminations | truncations).any():
            # of the reasons for a reward, the first: won or lost
            rewards = [env.unwrapped.rewards[0] for env in envs.envs]
            ends.append((terminations.tolist(), truncations.tolist(), rewards))
            returns = [infos["final_info"][n]["statistics"][0] for n in range(2)]
            ends[-1] += returns, [infos["final_obs"][n] for n in range(2)]
            np.testing.assert_array_equal(obs, first)
    (lost, _, rewards, returns, finals), (_, timed_out, *_, undecided, others) = ends
    assert lost == timed_out == [True, True]
    assert returns == [-1, -1]
    assert undecided == [0, 0]
    assert rewards == [-1, -1]
    assert not any(final[..., OURS].any() for final in finals)
    assert all(final[..., OURS].any() and final[..., THEIRS].any() for final in others)
    assert ends[0][1] == ends[1][0] == [False, False]


@real
def test_games_are_independent():
    one = game(opponents="passiveAI")
    other = game(opponents="passiveAI")
    one.reset(seed=1)
    other.reset(seed=1)
    for _ in range(20):
        obs, *_ = one.step(orders(c9=[1, 2]))
    still, *_ = other.step(orders())
    assert obs[2, 1, OURS]
    assert still[1, 1, OURS]
    assert not still[2, 1, OURS]
    one.close()
    assert other.step(orders())[0][1, 1, OURS]


@real
def test_drawing():
    env = ppo_microrts.make_env(ppo_microrts.Args(opponents="passiveAI"), "rgb_array")
    env.reset(seed=1)
    before = env.render()
    for _ in range(20):
        env.step(orders(c9=[1, 2]))
    after = env.render()
    assert before.shape == (640, 640, 3)
    assert before.dtype == np.uint8
    changed = np.argwhere((before != after).any(-1))
    changed = changed[changed[:, 0] < 600]  # the clock is below the map
    assert changed.min(0).tolist() > [100, 100]
    assert changed.max(0).tolist() < [300, 300]
    # resources are green: red, green, blue in this order
    assert before[60, 60].tolist() == [194, 223, 174]


@real
@pytest.mark.parametrize(
    "flags, line",
    [
        (dict(env_id="8x8/nowhere"), "--env-id 8x8/nowhere: no such map in .*microrts/maps"),
        (
            dict(opponents="coacAI,nobody"),
            "--opponents coacAI,nobody: choose from .*passiveAI.*coacAI",
        ),
    ],
)
def test_unknown_names(flags, line):
    with pytest.raises(SystemExit, match=line):
        game(**flags)


@real
def test_java_is_missing(monkeypatch):
    import jpype

    def start(*options, **settings):
        raise jpype.JVMNotFoundException("No JVM shared library file (libjvm.so) found.")

    monkeypatch.setattr(jpype, "isJVMStarted", lambda: False)
    monkeypatch.setattr(jpype, "startJVM", start)
    with pytest.raises(
        SystemExit,
        match=r"error: No JVM .* found\.\. Install: .*apt-get install default-jre-headless",
    ):
        game()
