"""ppo_microrts.py: the distribution of many units' actions by hand, a made-up game, and the real
one where it is."""

import copy
import sys

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
COUNTS = [
    [0],
    [0, 1],
    [0, 2],
    [0, 3],
    [0, 4, 5],
    [0, 6],
]


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
        self.rewards = np.array([right, 1, 0, 0, 0, 0])
        return self.observe(), right, self.steps == 5, False, {}


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
    return ppo_microrts.UnitActions(
        logits[index],
        mask[index],
        index,
        cells,
    )


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


def test_entropy_is_that_of_the_samples():
    """The mean of -log p over many samples of one state."""
    draws = 20_000
    mask = masks(np.random.default_rng(2), 1, 4, 3)
    mask = torch.as_tensor(mask).expand(draws, 4, 78)
    logits = torch.randn(1, 4, 78).expand(draws, 4, 78)
    dist = distribution(logits, mask)
    mean = -dist.log_prob(dist.sample()).mean()
    assert mean.item() == pytest.approx(dist.entropy()[0].item(), rel=0.02)


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


def sum_of_parts(numbers):
    """(..., 78) to (..., 7)."""
    parts = numbers.split(PARTS, -1)
    return torch.stack([part.sum(-1) for part in parts], -1)


def test_what_does_not_count_has_no_gradient():
    mask = masks(np.random.default_rng(4), 50, 5, 3)
    valid = torch.as_tensor(mask)
    logits = torch.randn(50, 5, 78, requires_grad=True)
    dist = distribution(logits, mask)
    actions = dist.sample()
    entropy = dist.entropy().sum()
    logprob = dist.log_prob(actions).sum()
    (of_entropy,) = torch.autograd.grad(entropy, logits, retain_graph=True)
    (of_logprob,) = torch.autograd.grad(logprob, logits)
    assert not of_entropy[valid == 0].any()
    assert not of_logprob[valid == 0].any()
    used = torch.zeros(50, 5, 7, dtype=torch.bool)
    for place in counted(mask, actions):
        used[place] = True
    has_gradient = sum_of_parts(of_logprob.abs()) > 1e-6
    # what has one valid choice has no gradient either
    has_choice = sum_of_parts(valid) > 1
    assert torch.equal(has_gradient, used & has_choice)


def test_at_most_so_many_orders():
    """Units beyond --max-orders do nothing, and do not count."""
    mask = masks(np.random.default_rng(5), 30, 6, 4)
    logits = torch.randn(30, 6, 78)
    mask[..., 2:6] = 0  # to move or not
    all_units = distribution(logits, mask)
    two_units = distribution(logits, mask, orders=2)
    actions = two_units.sample()
    ordered = (actions != 0).any(-1)
    assert (ordered.sum(1) <= 2).all()
    assert (two_units.log_prob(actions) <= 0).all()
    of_all = all_units.entropy()
    of_two = two_units.entropy()
    assert (of_two <= of_all + 1e-6).all()
    assert of_two.mean() < of_all.mean()


def test_encode():
    """One-hot planes, with numbers that are too large in the last one; the mask as it is."""
    rng = np.random.default_rng(6)
    numbers = rng.integers(0, 12, (5, 2, 3))
    mask = rng.integers(0, 2, (2, 3, 78))
    planes = ppo_microrts.encode(numbers, mask)
    assert planes.dtype == np.uint8
    assert planes.shape == (2, 3, 105)
    assert (planes[..., 27:] == mask).all()
    for cell in np.ndindex(2, 3):
        expected = []
        for plane, n in zip(numbers, (5, 5, 3, 8, 6)):
            one_hot = [0] * n
            one_hot[min(plane[cell], n - 1)] = 1
            expected += one_hot
        assert planes[cell][:27].tolist() == expected


@pytest.mark.parametrize("height, width", [(8, 8), (3, 5)])
def test_the_networks_see_every_cell_and_no_mask(height, width):
    agent = ppo_microrts.Agent(height, width, 4)
    torch.nn.init.normal_(agent.actor[-1].weight)
    obs = torch.zeros(1, height, width, 105, dtype=torch.uint8)
    obs[..., 27:33] = 1
    dist, value = agent(obs)
    assert value.shape == (1,)
    assert dist.sample().shape == (1, height * width, 7)

    def logits_of_actions(obs):
        dist, _ = agent(obs)
        return dist.parts[0].logits

    other = obs.clone()
    other[..., 33:37] = 1  # more is valid: the logits are the same
    torch.testing.assert_close(agent(other)[1], value)
    torch.testing.assert_close(logits_of_actions(other), logits_of_actions(obs))
    for row, column in np.ndindex(height, width):
        seen = obs.clone()
        seen[0, row, column, 3] = 1
        _, other_value = agent(seen)
        assert other_value != value
    one_unit = torch.zeros_like(obs)
    one_unit[0, 0, 0, 27:33] = 1
    far = one_unit.clone()
    far[..., 2, 4, 3] = 1  # four columns away, beyond the first convolution
    at_unit = logits_of_actions(one_unit)[0, 0]
    assert not torch.equal(logits_of_actions(far)[0, 0], at_unit)


def spy_on_gae(monkeypatch):
    """A list that gets copies of the arguments of each rollout's compute_gae."""
    calls = []
    gae = ppo_microrts.compute_gae

    def spied(*args):
        calls.append(copy.deepcopy(args))
        return gae(*args)

    monkeypatch.setattr(ppo_microrts, "compute_gae", spied)
    return calls


def test_learns_to_march(march, monkeypatch, tmp_path):
    """Which unit waits, and where to: the greedy policy makes no mistake. Rewards are weighted
    for learning only."""
    agents = helpers.spy_on_agents(monkeypatch, "ppo_microrts")
    rollouts = spy_on_gae(monkeypatch)
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


class EndlessMarch(March):
    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, False, truncated, info


def test_a_game_at_the_time_limit_bootstraps(monkeypatch, tmp_path):
    """From its last observation, not from the first one of the next game."""
    monkeypatch.setattr(ppo_microrts, "MicroRTS", EndlessMarch)
    agents = helpers.spy_on_agents(monkeypatch, "ppo_microrts")
    rollouts = spy_on_gae(monkeypatch)
    led_to = []  # the observations after each step

    def note(envs, actions, result):
        obs, _, _, truncations, infos = result
        if truncations.all():
            obs = np.stack([infos["final_obs"][n] for n in range(2)])
        led_to.append(torch.tensor(obs))

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
        expected = [agents[0](obs)[1].numpy() for obs in led_to]
    np.testing.assert_allclose(next_values, expected, rtol=1e-4, atol=1e-5)


SIX = "--reward-weights must be six numbers, got"


@pytest.mark.parametrize(
    "flags, line",
    [
        (dict(render=True), "no window here. Use --capture-video"),
        (dict(reward_weights="1,2,3"), f"{SIX} 1,2,3"),
        (dict(reward_weights="1,2,3,4,5,six"), f"{SIX} 1,2,3,4,5,six"),
    ],
)
def test_refused(march, flags, line, monkeypatch, tmp_path):
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")  # as with a display
    with pytest.raises(SystemExit, match=line):
        helpers.train("ppo_microrts", tmp_path, **flags)
    assert not list(tmp_path.iterdir())


def test_the_game_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "gym_microrts", None)
    told = r"error: .*gym_microrts.* Install: pip install .*gym_microrts==.*-jre-headless$"
    with pytest.raises(SystemExit, match=told):
        ppo_microrts.make_env(ppo_microrts.Args())


# --- the real game
def real(test):
    reason = "gym_microrts, JPype1 or Java is not installed"
    test = pytest.mark.skipif(not helpers.JAVA, reason=reason)(test)
    return pytest.mark.slow(test)


def game(render_mode=None, **flags):
    env = ppo_microrts.make_env(ppo_microrts.Args(**flags), render_mode)
    env.reset(seed=1)
    return env


def orders(**by_cell):
    """No action but in these cells, as in c9=[1, 2]: the first parts."""
    action = np.zeros((64, 7), dtype=np.int64)
    for cell, parts in by_cell.items():
        number = int(cell[1:])
        action[number, : len(parts)] = parts
    return action


OURS, THEIRS = 11, 12  # planes


def where(plane):
    """[row, column] of the cells that have it."""
    return np.argwhere(plane).tolist()


@real
def test_the_first_observation():
    """basesWorkers8x8: our base is at row 1, column 2, our worker beside it, resources in the
    corner."""
    env = game(opponents="passiveAI")
    obs, _ = env.reset(seed=1)
    planes, valid = np.split(obs, [27], axis=-1)
    assert env.observation_space.contains(obs)
    assert (planes.sum(-1) == 5).all()
    assert where(obs[..., OURS]) == [[1, 1], [1, 2]]
    assert where(obs[..., THEIRS]) == [[6, 5], [6, 6]]
    cells = {
        "resources": (planes[0, 0], [1, 9, 10, 14, 21]),
        "worker": (planes[1, 1], [1, 5, OURS, 17, 21]),
        "base": (planes[1, 2], [4, 5, OURS, 15, 21]),
    }
    for name, (cell, expected) in cells.items():
        assert np.flatnonzero(cell).tolist() == expected, name
    assert env.unwrapped.waiting.tolist() == [9, 10]
    assert where(valid.any(-1)) == [[1, 1], [1, 2]]
    # of the worker; right is the base
    actions, moves, *_ = split(valid[1, 1])
    assert actions.tolist() == [1, 1, 0, 0, 1, 0]
    assert moves.tolist() == [1, 0, 1, 1]
    # of the base: workers only
    actions, *_, kinds, _ = split(valid[1, 2])
    assert np.flatnonzero(actions).tolist() == [0, 4]
    assert np.flatnonzero(kinds).tolist() == [3]


@real
def test_orders_are_carried_out():
    """The worker moves down, the base makes a worker to its right; others' actions do nothing."""
    env = game(opponents="passiveAI")
    action = orders(c9=[1, 2], c10=[4, 0, 0, 0, 1, 3], c54=[1, 0])
    obs, reward, terminated, truncated, _ = env.step(action)
    assert reward == 0
    assert not terminated
    assert not truncated
    assert env.unwrapped.rewards.tolist() == [0, 0, 1, 0, 0, 0]
    assert not len(env.unwrapped.waiting)
    assert not obs[..., 27:].any()
    for _ in range(60):
        obs, *_ = env.step(orders())
    assert where(obs[..., OURS]) == [[1, 2], [1, 3], [2, 1]]
    assert obs[6, 6, THEIRS]


def until_the_end(envs):
    """Nobody gets an order until a game is over: the first observations of the next,
    terminations, truncations, last observations and returns."""
    nothing = np.stack([orders()] * 2)
    over = False
    while not over:
        obs, _, terminations, truncations, infos = envs.step(nothing)
        over = (terminations | truncations).any()
    finals = np.stack([infos["final_obs"][n] for n in range(2)])
    returns = [infos["final_info"][n]["statistics"][0] for n in range(2)]
    return obs, terminations.tolist(), truncations.tolist(), finals, returns


@real
def test_losses_time_limits_and_opponents_in_turn():
    """Who does nothing loses against a rush; nobody loses against the passive opponent, whose
    turn is next."""
    args = ppo_microrts.Args(opponents="workerRushAI,passiveAI", max_episode_steps=900)
    envs = ppo_microrts.utils.vector_env([lambda: ppo_microrts.make_env(args)] * 2, False)
    first, _ = envs.reset(seed=[1, 2])
    first = first.copy()

    obs, terminations, truncations, finals, returns = until_the_end(envs)
    assert terminations == [True, True]
    assert truncations == [False, False]
    assert returns == [-1, -1]
    for env in envs.envs:
        # of the reasons for a reward, the first: won or lost
        assert env.unwrapped.rewards[0] == -1
    assert not finals[..., OURS].any()
    np.testing.assert_array_equal(obs, first)

    obs, terminations, truncations, finals, returns = until_the_end(envs)
    assert terminations == [False, False]
    assert truncations == [True, True]
    assert returns == [0, 0]
    assert finals[..., OURS].any((1, 2)).all()
    assert finals[..., THEIRS].any((1, 2)).all()
    np.testing.assert_array_equal(obs, first)


@real
def test_games_are_independent():
    one = game(opponents="passiveAI")
    other = game(opponents="passiveAI")
    for _ in range(20):
        obs, *_ = one.step(orders(c9=[1, 2]))
    still, *_ = other.step(orders())
    assert obs[2, 1, OURS]
    assert still[1, 1, OURS]
    assert not still[2, 1, OURS]
    one.close()
    still, *_ = other.step(orders())
    assert still[1, 1, OURS]


@real
def test_drawing():
    env = game("rgb_array", opponents="passiveAI")
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
    told = r"error: No JVM .* found\.\. Install: .*apt-get install default-jre-headless"
    with pytest.raises(SystemExit, match=told):
        game()
