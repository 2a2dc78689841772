"""rainbow.py and rainbow_atari.py: the sum tree, windows of n steps, noise, and the update, against
definitions; without its five parts, rainbow is c51."""

import copy
import functools

import numpy as np
import pytest
import torch

from cleanrl_lite import c51, rainbow, rainbow_atari
from cleanrl_lite.rainbow import NoisyLinear, ReplayBuffer, SumTree
from tests import helpers, test_replay
from tests.probe_envs import probe
from tests.test_consistency import definitions
from tests.test_off_policy import assert_metrics, assert_unchanged, logged, project_by_hand

CPU = torch.device("cpu")
SHAPES = (2,), (), (), (2,), (), ()
OFF = {
    "double": False,
    "dueling": False,
    "noisy": False,
    "n_step": 1,
    "priority_alpha": 0.0,
}


# --- the sum tree


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
def test_tree(size):
    """Against one long cumulated sum: the place that each point falls on, among priorities of very
    different sizes, some of them 0, set anew many times; the ends of the line too."""
    rng = np.random.default_rng(size)
    tree = SumTree(size, CPU)
    priorities = np.zeros(size)
    for _ in range(30):
        some = rng.permutation(size)[: rng.integers(1, size + 1)]
        priorities[some] = 10 ** rng.uniform(-6, 3, len(some)) * (rng.random(len(some)) < 0.8)
        priorities[some[0]] = 1.0
        tree.set(torch.from_numpy(some), torch.from_numpy(priorities[some]))
        ends = priorities.cumsum()
        points = rng.random(200)
        expected = np.searchsorted(ends, points * ends[-1], side="right")
        np.testing.assert_array_equal(tree.draw(torch.from_numpy(points)).numpy(), expected)
        positive = np.flatnonzero(priorities)
        both = torch.tensor([0.0, np.nextafter(1.0, 0.0)], dtype=torch.float64)
        assert tree.draw(both).tolist() == [positive[0], positive[-1]]


def filled(priorities, num_envs=1, n_step=1):
    """A buffer of as many transitions, with these priorities."""
    buffer = ReplayBuffer(len(priorities), num_envs, SHAPES, CPU, n_step)
    for _ in range(len(priorities) // num_envs):
        buffer.add(*(np.zeros((num_envs, *shape), dtype=np.float32) for shape in SHAPES))
    buffer.tree.set(torch.arange(len(priorities)), torch.as_tensor(priorities))
    return buffer


def counts(buffer, batch_size, batches):
    index = torch.cat([buffer.sample(batch_size)[2] for _ in range(batches)])
    return np.bincount(index.numpy(), minlength=buffer.capacity)


def test_draws_are_proportional_and_stratified():
    """As often as the priority says, and one from each part of a minibatch: so its count differs
    from the expected one by less than 1, or 2 where both ends of its stretch lie within parts."""
    priorities = np.random.default_rng(1).uniform(0.1, 3, 40)
    buffer = filled(priorities)
    expected = 64 * priorities / priorities.sum()
    for _ in range(50):
        assert (np.abs(counts(buffer, 64, 1) - expected) < 2).all()
    means = counts(buffer, 64, 2000) / 2000
    assert np.abs(means - expected).max() < 5 * (0.5 / 2000) ** 0.5
    assert len({tuple(buffer.sample(8)[2].tolist()) for _ in range(20)}) > 10


class BinarySumTree:
    """Prioritised replay, appendix B.2.1: a node is the sum of its two children; a draw walks from
    the root to a leaf."""

    def __init__(self, leaves):
        self.leaves = leaves  # a power of 2
        self.sums = np.zeros(2 * leaves)

    def set(self, place, priority):
        node = self.leaves + place
        change = priority - self.sums[node]
        while node > 0:
            self.sums[node] += change
            node //= 2

    def draw(self, point):
        node = 1
        while node < self.leaves:
            node *= 2
            if point >= self.sums[node]:
                point -= self.sums[node]
                node += 1
        return node - self.leaves


def test_like_a_binary_tree():
    """With the same random numbers: the same minibatches, while what was drawn gets new priorities.

    In place of torchrl's sampler: none of its releases is compiled for the torch of
    constraints.txt (0.13.3 needs an older one, 0.14.0 a newer one)."""
    rng = np.random.default_rng(1)
    size = 60
    alpha = 0.6
    priorities = rng.uniform(0.01, 4, size) ** alpha
    buffer = filled(priorities)
    tree = BinarySumTree(64)
    drawn = set()
    for place, priority in enumerate(priorities):
        tree.set(place, priority)
    for _ in range(300):
        state = torch.get_rng_state()
        draws = torch.rand(32, dtype=torch.float64)
        torch.set_rng_state(state)
        index = buffer.sample(32)[2]
        priorities = rng.uniform(0.01, 4, size) ** alpha
        places = []
        for k, draw in enumerate(draws.tolist()):
            point = (k + draw) / 32 * tree.sums[1]
            places.append(tree.draw(point))
        assert index.tolist() == places
        buffer.set_priorities(index, torch.from_numpy(priorities)[index])
        for place in places:
            tree.set(place, priorities[place])
        drawn.update(places)
    assert len(drawn) == size


# --- priorities


def test_new_transitions_get_the_largest_priority_so_far():
    """Also after that one was overwritten, or has got a smaller one. NaN is no priority."""
    buffer = ReplayBuffer(10, 2, SHAPES, CPU, 1)
    step = [np.zeros((2, *shape), dtype=np.float32) for shape in SHAPES]
    buffer.add(*step)
    assert buffer.tree.leaves[:4].tolist() == [1, 1, 0, 0]
    buffer.set_priorities(torch.tensor([0, 1]), torch.tensor([7.0, 0.5]))
    buffer.set_priorities(torch.tensor([0]), torch.tensor([0.25]))
    buffer.add(*step)
    assert buffer.tree.leaves[:6].tolist() == [0.25, 0.5, 7, 7, 0, 0]
    buffer.set_priorities(torch.tensor([2, 3]), torch.tensor([float("nan"), float("inf")]))
    for _ in range(7):
        buffer.add(*step)
    assert buffer.tree.leaves[:10].tolist() == [7] * 10
    assert buffer.tree.sums.sum() == 70
    assert buffer.max_priority == 7


def test_priorities_and_weights_of_a_run(monkeypatch, tmp_path):
    """What was drawn gets the priority of its divergence, all else keeps its own; beta rises."""
    seen = []
    betas = []

    def check(update, main, tensors):
        replay = main["replay"]
        index = tensors[2]
        before = replay.tree.leaves.clone()
        metrics = update(*tensors)
        after = replay.tree.leaves
        others = torch.ones(len(after), dtype=torch.bool)
        others[index] = False
        assert torch.equal(after[others], before[others])
        assert not torch.equal(after[index], before[index])
        assert replay.max_priority == max([1.0, *seen, after[index].max().item()])
        sums = after.view(-1, replay.tree.width).sum(1)
        torch.testing.assert_close(replay.tree.sums, sums)
        seen.append(after[index].max().item())
        betas.append(main["beta"].item())
        return metrics

    calls = helpers.spy_on_updates(monkeypatch, check)
    logged("rainbow", tmp_path, learning_rate=1e-2, train_frequency=2)
    assert len(calls) > 100
    # 130 is the first of 512 steps that learns, 510 the last
    assert betas[0] == pytest.approx(0.4 + 0.6 * 130 / 512)
    assert betas[-1] == pytest.approx(0.4 + 0.6 * 510 / 512)
    assert betas == sorted(betas)


# --- windows of n steps


class Journal:
    """Steps of episodes of 1 to 7 steps that end by termination or truncation, in a buffer and in
    a list for each environment: (obs, action, reward, next_obs, terminated, over)."""

    def __init__(self, num_envs, buffer_size, n_step, seed=1):
        self.rng = np.random.default_rng(seed)
        self.buffer = ReplayBuffer(buffer_size, num_envs, SHAPES, CPU, n_step)
        self.lists = [[] for _ in range(num_envs)]
        self.begin()

    def begin(self):
        """New episodes in all environments."""
        self.steps = np.zeros(len(self.lists), dtype=np.int64)
        self.obs = self.rng.normal(size=(len(self.lists), 2)).astype(np.float32)

    def step(self):
        num_envs = len(self.lists)
        actions = self.rng.integers(3, size=num_envs)
        rewards = self.rng.normal(size=num_envs).astype(np.float32)
        next_obs = self.rng.normal(size=(num_envs, 2)).astype(np.float32)
        terminated, truncated = self.rng.random((2, num_envs)) < 0.15
        self.buffer.add(self.obs, actions, rewards, next_obs, terminated, self.steps)
        parts = self.obs, actions, rewards, next_obs, terminated, terminated | truncated
        for env, row in zip(self.lists, zip(*parts, strict=True), strict=True):
            env.append(row)
        self.steps = (self.steps + 1) * ~(terminated | truncated)
        new = self.rng.normal(size=(num_envs, 2)).astype(np.float32)
        self.obs = np.where((terminated | truncated)[:, None], new, next_obs)

    def expected(self, place, gamma):
        """return, length, next_obs, terminated of the window that begins there, step by step."""
        num_envs = len(self.lists)
        env = self.lists[place % num_envs]
        slot = place // num_envs
        slots = self.buffer.capacity // num_envs
        # the last transition that was written to this slot
        first = max(t for t in range(len(env)) if t % slots == slot)
        total = 0.0
        length = 0
        for _, _, reward, next_obs, terminated, over in env[first:][: self.buffer.n_step]:
            total += gamma**length * float(reward)
            length += 1
            if over:
                break
        return env[first][:2], total, length, next_obs, terminated

    def check(self, gamma=0.9, draws=200):
        """Every window that can be drawn; returns their lengths."""
        rows, stored, index = self.buffer.sample(draws)
        obs, actions, rewards, next_obs, terminations, steps = self.buffer.unpack(rows)
        returns, lengths = rainbow.n_step_returns(rewards, steps, stored, gamma)
        for k, place in enumerate(index.tolist()):
            start, *expected = self.expected(place, gamma)
            last = lengths[k] - 1
            found = returns[k].item(), last + 1, next_obs[k, last], terminations[k, last]
            assert (obs[k, 0].numpy() == start[0]).all()
            assert actions[k, 0] == start[1]
            assert found[0] == pytest.approx(expected[0], rel=1e-4, abs=1e-5)
            assert found[1] == expected[1]
            assert (found[2].numpy() == expected[2]).all()
            assert found[3] == expected[3]
        assert set(index.tolist()) == set(range(self.buffer.filled))
        return lengths


@pytest.mark.parametrize("num_envs, buffer_size", [(1, 24), (3, 61), (2, 16)])
@pytest.mark.parametrize("n_step", [1, 3, 5])
def test_windows(n_step, num_envs, buffer_size):
    """At every fill, before and after the wrap-around: windows end with episodes and at the
    newest transition, and bootstrap from the last observation there with the right power of
    gamma."""
    journal = Journal(num_envs, buffer_size, n_step)
    lengths = set()
    for _ in range(5 * buffer_size // (2 * num_envs)):
        journal.step()
        lengths.update(journal.check().tolist())
    assert lengths == set(range(1, n_step + 1))


def test_a_window_that_straddles_the_write_position():
    """The trap: behind the newest transition of an endless episode lies its oldest, whose step may
    seem to go on."""
    buffer = ReplayBuffer(8, 2, SHAPES, CPU, 3)
    for t in range(6):
        obs = np.full((2, 2), t, dtype=np.float32)
        # after the fifth step a new episode: the fourth row, then the first, have steps 0, 1
        step = np.full(2, t if t < 5 else 0)
        buffer.add(obs, np.zeros(2), np.ones(2), obs + 1, np.zeros(2), step)
    # places 2, 3 hold the newest transitions, of step 0; behind them those of step 2
    buffer.rows[4:6, -1] = 1
    rows, stored, index = buffer.sample(64)
    steps = buffer.unpack(rows)[-1]
    _, lengths = rainbow.n_step_returns(steps * 0 + 1, steps, stored, 0.9)
    assert set(lengths[(index == 2) | (index == 3)].tolist()) == {1}
    assert {2, 3} <= set(index.tolist())


def test_n_step_returns_of_an_endless_episode():
    """The sums of the definition, of whole windows."""
    rewards = torch.tensor([[1.0, 2, 4], [3, 0, 5]])
    steps = torch.tensor([[7.0, 8, 9], [0, 1, 2]])
    stored = torch.ones(2, 3, dtype=torch.bool)
    returns, lengths = rainbow.n_step_returns(rewards, steps, stored, 0.5)
    assert returns.tolist() == [1 + 1 + 1, 3 + 0 + 1.25]
    assert lengths.tolist() == [3, 3]


@pytest.mark.parametrize("pickles", [True, False])
def test_windows_across_a_resume(pickles, monkeypatch, tmp_path):
    """Where the environments go on in their episodes, windows do too; where these begin anew, their
    steps do, and so no window leads into them."""
    # gymnasium's own environments are saved with a checkpoint, those of the tests are not
    env_id = "CartPole-v1" if pickles else probe("Scripted", "rainbow")
    flags = {
        "env_id": env_id,
        "num_envs": 2,
        "buffer_size": 1000,
        "seed": 3,
    }
    flags["total_timesteps"] = 400
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="143"):
        helpers.stop_at(200, patch)
        helpers.train("rainbow", tmp_path, **flags)
    run_dir = helpers.only_run(tmp_path)
    before = helpers.load(run_dir)
    assert bool(before["envs"]) == pickles
    going = before["values"]["steps"]
    assert len(going) == 2
    assert min(going) > 0
    helpers.next_second()
    helpers.train("rainbow", tmp_path, **flags, resume=str(run_dir))
    rows = helpers.load(run_dir)["replay"]["rows"]
    assert rows[198:200, -1].tolist() == [step - 1 for step in going]
    assert rows[200:202, -1].tolist() == (going if pickles else [0, 0])


def test_saved_and_loaded(tmp_path):
    """Rows, priorities and position come back exactly, and go on as they would have."""
    journal = Journal(2, 21, 3)
    for _ in range(15):
        journal.step()
        index = journal.buffer.sample(4)[2]
        journal.buffer.set_priorities(index, torch.rand(4) * 3)
    torch.save(journal.buffer.state_dict(), tmp_path / "replay.pt")
    new = ReplayBuffer(21, 2, SHAPES, CPU, 3)
    new.load_state_dict(torch.load(tmp_path / "replay.pt", weights_only=True))
    for _ in range(12):
        for name in ("rows", "end", "max_priority"):
            assert torch.equal(getattr(new, name), getattr(journal.buffer, name)), name
        assert torch.equal(new.tree.leaves, journal.buffer.tree.leaves)
        assert torch.equal(new.tree.sums, journal.buffer.tree.sums)
        step = [np.ones((2, *shape), dtype=np.float32) for shape in SHAPES]
        journal.buffer.add(*step)
        new.add(*step)


# --- windows of frames


class Games(test_replay.Journal):
    """Steps of games, in a buffer of frames and in a list."""

    def window(self, number, gamma):
        """return, length and last transition of the window that begins there, step by step."""
        total = 0.0
        length = 0
        env = self.list[number].env
        num_envs = self.games.num_envs
        for stepped in self.list[number::num_envs][: self.buffer.n_step]:
            if length and not 0 <= stepped.slot < self.slots[env] - 1:
                break  # its last frame has not come, or never will
            total += gamma**length * float(stepped.reward)
            length += 1
            last = stepped
            if stepped.terminated or stepped.truncated:
                break
        return total, length, last

    def check(self, draws_each=10):
        """Every draw is a window of the list, and every transition that can be drawn is."""
        possible, spared = self.drawable()
        # the first slots are given up a little early, once
        early = [self.slots[s.env] + 2 - self.buffer.length >= s.slot for s in self.list]
        spared |= set(np.flatnonzero(early).tolist())
        drawn = set()
        lengths = set()
        for _ in range(1 + draws_each * len(possible) // 500):
            packed, rows, stored, index = self.buffer.sample(500)
            frames, actions, rewards, terminations, ages = self.buffer.unpack(packed, rows)
            returns, ends = rainbow_atari.n_step_returns(rewards, terminations, ages, stored, 0.9)
            for k, number in enumerate(actions.int().tolist()):
                total, length, last = self.window(number, 0.9)
                assert number in possible
                assert returns[k].item() == pytest.approx(total, abs=1e-5)
                assert ends[k] == length
                assert (frames[k, :4].numpy() == self.list[number].obs).all()
                assert terminations[k, length - 1] == last.terminated
                if last.next_obs is not None:
                    assert (frames[k, length : length + 4].numpy() == last.next_obs).all()
            drawn.update(actions.int().tolist())
            lengths.update(ends.tolist())
            self.buffer.set_priorities(index, torch.rand(500) + 0.5)
        assert drawn >= possible - spared
        return lengths


@pytest.fixture
def frame_buffers(request, monkeypatch):
    """test_replay's games are stored in rainbow_atari's buffers."""
    buffer = functools.partial(rainbow_atari.FrameReplayBuffer, n_step=request.param)
    monkeypatch.setattr(test_replay, "FrameReplayBuffer", buffer)


@pytest.mark.parametrize("buffer_size, num_envs", [(40, 1), (61, 3), (8, 1)])
@pytest.mark.parametrize("frame_buffers", [1, 3], indirect=True)
def test_windows_of_frames(frame_buffers, buffer_size, num_envs):
    """Before and after the wrap-around: they end with lives, with games, and at the newest frame;
    no stack has a frame of another game, or one that was overwritten."""
    games = Games(test_replay.ScriptedGames(num_envs), buffer_size)
    lengths = set()
    games.step(2)
    for _ in range(40):
        lengths |= games.check()
        games.step(1)
    assert lengths == set(range(1, games.buffer.n_step + 1))
    assert games.slots.min() > games.buffer.length / 2


@pytest.mark.parametrize("num_envs, steps", [(1, 5), (3, 17), (3, 61)])
@pytest.mark.parametrize("frame_buffers", [3], indirect=True)
def test_windows_of_frames_across_a_resume(frame_buffers, num_envs, steps, tmp_path):
    """A resumed run begins new games: no window leads into them."""
    games = Games(test_replay.ScriptedGames(num_envs, 1), 20 * num_envs)
    games.step(steps)
    for _ in range(2):  # a run may be resumed again
        test_replay.resume(games, tmp_path / "checkpoint.pt")
        games.check()  # the first training of the resumed run comes before its first step
        for _ in range(5):
            games.step(1)
            games.check()


def test_rainbow_atari_has_rainbows_parts():
    """Its parent is c51_atari: these come from rainbow."""
    names = ["NoisyLinear", "SumTree", "first_beyond", "Agent.logits", "Agent.draw_noise"]
    names += ["NoisyLinear.__init__", "NoisyLinear.forward"]
    names += ["SumTree.__init__", "SumTree.set", "SumTree.draw"]
    mine = definitions("rainbow_atari")
    theirs = definitions("rainbow")
    assert [name for name in names if mine[name] != theirs[name]] == []
    one = "FrameReplayBuffer.set_priorities"
    other = "ReplayBuffer.set_priorities"
    assert mine[one] == theirs[other]
    stages = [
        helpers.TEXT[name].partition("        # act\n")[2].partition("        # learn")[0]
        for name in ("rainbow", "rainbow_atari")
    ]
    assert stages[0] == stages[1] != ""
    # the update except for its first lines, which unpack
    assert mine["update"].partition("discounts = ")[2] == theirs["update"].partition(
        "discounts = "
    )[2].replace("obs[:, 0], noise", "frames[:, :4], noise").replace(
        "actions[:, 0].long", "actions.long"
    )


# --- noise


def squash(noise):
    return torch.sign(noise) * torch.sqrt(torch.abs(noise))


def test_noisy_layer():
    """The definition, element by element; each row has weights of its own where it has noise of
    its own."""
    layer = NoisyLinear(3, 2, True, 0.5)
    assert torch.equal(layer.weight_sigma, torch.full((2, 3), 0.5 / 3**0.5))
    assert torch.equal(layer.bias_sigma, torch.full((2,), 0.5 / 3**0.5))
    torch.nn.init.normal_(layer.weight_sigma)
    torch.nn.init.normal_(layer.bias_sigma)
    x = torch.randn(4, 3)
    noise = torch.randn(4, 5)
    for rows, each in ((noise, noise), (noise[0], noise[:1].expand(4, -1))):
        for row, one, found in zip(x, squash(each), layer(x, rows), strict=True):
            weight = layer.weight + layer.weight_sigma * torch.outer(one[3:], one[:3])
            bias = layer.bias + layer.bias_sigma * one[3:]
            torch.testing.assert_close(found, weight @ row + bias)
    assert torch.equal(layer(x, None), torch.nn.functional.linear(x, layer.weight, layer.bias))


def agent(**flags):
    sizes = {
        "obs_dim": 3,
        "num_actions": 2,
        "n_atoms": 5,
        "v_min": -1.0,
        "v_max": 1.0,
    }
    parts = {"dueling": True, "noisy": True, "noisy_sigma": 0.5}
    return rainbow.Agent(**{**sizes, **parts, **flags})


def test_noise_and_evaluations():
    """Another noise, other logits, in every layer but the first; without, always the same: those of
    the mean weights."""
    noisy = agent()
    obs = torch.randn(6, 3)
    one, other = noisy.draw_noise(2)
    assert one.shape == (2 * (120 + 84) + 84 + 10 + 84 + 5,)
    network = noisy.q_network
    assert not torch.equal(network(obs, one), network(obs, other))
    assert torch.equal(network(obs, one), network(obs, one))
    start = 0
    for size in network.noise_sizes:  # each layer has its part
        changed = one.clone()
        changed[start : start + size] = other[start : start + size]
        assert not torch.equal(network(obs, changed), network(obs, one))
        start += size
    assert start == len(one)
    with torch.no_grad():
        for name, param in network.named_parameters():
            if "sigma" in name:
                param.zero_()
    torch.testing.assert_close(network(obs, one), network(obs))
    loud = agent(noisy_sigma=30.0)
    many = torch.randn(500, 3)
    greedy = (loud.q_network(many).softmax(2) * loud.atoms).sum(2).argmax(1)
    assert all(torch.equal(loud.act(many), greedy) for _ in range(3))
    assert not torch.equal(loud.act(many, loud.draw_noise(1)[0]), greedy)
    quiet = agent(noisy=False)
    assert quiet.draw_noise(3).shape == (3, 0)
    assert torch.equal(quiet.q_network(obs, quiet.draw_noise(1)[0]), quiet.q_network(obs))
    assert not any("sigma" in name for name in quiet.state_dict())


def test_dueling():
    """Equation 9: the advantages' mean is taken away, for each atom; the value is the same for
    all actions."""
    network = agent().q_network
    obs = torch.randn(6, 3)
    logits = network(obs)
    torch.nn.init.zeros_(network.fc3.weight)
    network.fc3.bias.data = torch.arange(10.0)
    x = network.fc1(obs).relu()
    values = network.value_fc3(network.value_fc2(x, None).relu(), None)
    torch.testing.assert_close(logits.mean(1), values)
    advantages = torch.tensor([[-2.5] * 5, [2.5] * 5])
    torch.testing.assert_close(network(obs), values[:, None] + advantages)


def test_noise_is_drawn_for_each_step_environment_and_update(monkeypatch, tmp_path):
    """And in an update for each of its three networks; epsilon is 0."""
    acted = []
    learned = []
    act = rainbow.Agent.act

    def spy(agent, obs, noise=None):
        acted.append(noise)
        return act(agent, obs, noise)

    def check(update, main, tensors):
        learned.append(tensors[3])
        return update(*tensors)

    monkeypatch.setattr(rainbow.Agent, "act", spy)
    helpers.spy_on_updates(monkeypatch, check)
    flags = dict(num_envs=3, total_timesteps=300, train_frequency=2)
    run_dir, _ = helpers.train("rainbow", tmp_path, **flags)
    training = [noise for noise in acted if noise is not None]
    # the evaluation has none
    assert len(training) == 100
    assert len(acted) > 100
    assert all(noise is None for noise in acted[100:])
    rows = torch.cat([*training, *learned])
    assert len(learned) > 50
    assert len(rows) == 300 + 3 * len(learned)
    assert len(torch.unique(rows[:, 0])) == len(rows)
    assert abs(rows.mean()) < 5 / rows.numel() ** 0.5
    assert abs(rows.std() - 1) < 0.01
    assert {value for _, value in helpers.scalars(run_dir)["charts/epsilon"]} == {0}


# --- the update


def logits_by_hand(network, obs, noise, args):
    """The network's logits with weights written out, layer by layer."""
    start = 0

    def layer(name, x):
        nonlocal start
        linear = network.get_submodule(name)
        weight = linear.weight
        bias = linear.bias
        if args.noisy:
            inputs = weight.shape[1]
            outputs = weight.shape[0]
            part = squash(noise[start : start + inputs + outputs])
            start += inputs + outputs
            weight = weight + linear.weight_sigma * torch.outer(part[inputs:], part[:inputs])
            bias = bias + linear.bias_sigma * part[inputs:]
        return x @ weight.T + bias

    if hasattr(network, "network"):  # of games
        x = network.network(obs / 255)
        first = "fc1"
        last = "fc2"
    else:
        x = torch.relu(obs @ network.fc1.weight.T + network.fc1.bias)
        first = "fc2"
        last = "fc3"
    advantages = layer(last, torch.relu(layer(first, x)))
    advantages = advantages.reshape(len(obs), -1, args.n_atoms)
    if not args.dueling:
        return advantages
    values = layer(f"value_{last}", torch.relu(layer(f"value_{first}", x)))
    return values[:, None, :] + advantages - advantages.mean(dim=1, keepdim=True)


def windows_by_hand(replay, gamma, rows, stored):
    """obs, action, return, discount, last next_obs, terminated of each window, one by one."""
    for row, is_stored in zip(rows, stored, strict=True):
        parts = [replay.unpack(row[None])[k][0] for k in range(6)]
        total = 0.0
        length = 0
        for k in range(replay.n_step):
            if k and not (is_stored[k] and parts[5][k] == parts[5][0] + k):
                break
            total += gamma**k * parts[2][k].item()
            length += 1
        last = length - 1
        yield parts[0][0], parts[1][0], total, gamma**length, parts[3][last], parts[4][last]


def windows_of_frames_by_hand(replay, gamma, frames, rows, stored):
    for stack, row, is_stored in zip(frames, rows, stored, strict=True):
        blank = torch.tensor([3 - k >= row[0, 3] for k in range(len(stack))])
        stack = torch.where(blank[:, None, None], 0, stack)
        total = 0.0
        length = 0
        for k in range(replay.n_step):
            # behind a lost life, before the last frame of a game that was cut off
            if k and (not is_stored[k] or row[k - 1, 2] or row[k, 3] == 0):
                break
            total += gamma**k * row[k, 1].item()
            length += 1
        next_obs = stack[length : length + 4]
        yield stack[:4], row[0, 0], total, gamma**length, next_obs, row[length - 1, 2]


@pytest.mark.parametrize(
    "script, off",
    [("rainbow", None)]
    + [("rainbow", name) for name in OFF]
    + [pytest.param("rainbow_atari", None, marks=pytest.mark.slow)],
)
def test_update(script, off, monkeypatch, tmp_path):
    """Every minibatch's metrics, the parameters after it and the new priorities, by hand with
    torch.optim.Adam; with each of the five parts turned off."""
    state = {}
    terminated = []

    def check(update, main, tensors):
        agent = main["agent"]
        args = main["args"]
        replay = main["replay"]
        if not state:
            state["reference"] = copy.deepcopy(agent)
            params = state["reference"].q_network.parameters()
            eps = 0.01 / args.batch_size
            state["optimizer"] = torch.optim.Adam(params, lr=args.learning_rate, eps=eps)
        reference = state["reference"]
        before = copy.deepcopy(agent.state_dict())
        reference.load_state_dict(before)  # equal before each step: errors do not add up
        *packed, index, noise = tensors
        by_hand = windows_by_hand if script == "rainbow" else windows_of_frames_by_hand
        windows = list(by_hand(replay, args.gamma, *packed))
        obs, actions, returns, discounts, next_obs, terminations = zip(*windows, strict=True)
        obs = torch.stack(obs)
        next_obs = torch.stack(next_obs)
        batch = range(len(windows))
        atoms = np.linspace(args.v_min, args.v_max, args.n_atoms)
        with torch.no_grad():
            target = logits_by_hand(reference.target_network, next_obs, noise[1], args)
            next_probs = target.softmax(2).numpy()
            chooser = next_probs
            if args.double:
                chooser = logits_by_hand(reference.q_network, next_obs, noise[2], args)
                chooser = chooser.softmax(2).numpy()
        chosen = next_probs[batch, (chooser * atoms).sum(2).argmax(1)]
        projected = np.concatenate(
            [
                project_by_hand(chosen[k : k + 1], [returns[k]], [bool(end)], discounts[k], atoms)
                for k, end in enumerate(terminations)
            ]
        )
        drawn = replay.tree.leaves[index].numpy()
        # (N P)^-beta over its largest, section 3.4
        total = replay.tree.leaves.sum().item()
        weights = (len(replay.rows) * drawn / total) ** -main["beta"].item()
        weights /= weights.max()
        logits = logits_by_hand(reference.q_network, obs, noise[0], args)
        log_probs = logits[batch, torch.stack(actions).long()].log_softmax(1)
        losses = -(torch.tensor(projected) * log_probs).sum(1)
        loss = (torch.tensor(weights) * losses).mean()
        q_values = (log_probs.exp() * torch.tensor(atoms)).sum(1).mean()
        state["optimizer"].zero_grad()
        loss.backward()
        state["optimizer"].step()
        metrics = update(*tensors)
        assert_metrics(metrics, {"loss": loss, "q_values": q_values})
        helpers.assert_stepped(agent, reference, args.learning_rate, ["q_network"])
        assert_unchanged(agent, before, ["target_network"])
        ratios = np.log(np.where(projected > 0, projected, 1)) - log_probs.detach().numpy()
        divergence = np.where(projected > 0, projected * ratios, 0).sum(1)
        expected = (np.maximum(divergence, 0) + 1e-6) ** args.priority_alpha
        found = replay.tree.leaves[index].numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=3e-3)
        terminated.append(sum(terminations))
        return metrics

    calls = helpers.spy_on_updates(monkeypatch, check)
    flags = {
        "v_min": -3.0,
        "v_max": 7.0,
        "n_atoms": 11,
        "total_timesteps": 256,
    }
    flags |= {off: OFF[off]} if off else {}
    if script == "rainbow_atari":
        flags |= {"total_timesteps": 500, "learning_starts": 400, "buffer_size": 600}
    logged(script, tmp_path, gamma=0.9, learning_rate=3e-3, **flags)
    assert len(calls) >= 12
    assert sum(terminated) > 0


def test_without_the_five_parts_it_is_c51(monkeypatch, tmp_path):
    """Bit for bit, once c51 draws one transition from each part of its buffer too."""

    def stratified(replay, batch_size):
        draws = torch.rand(batch_size, dtype=torch.float64)
        parts = (torch.arange(batch_size) + draws) / batch_size
        return replay.rows.index_select(0, (parts * replay.size).long())

    monkeypatch.setattr(c51.ReplayBuffer, "sample", stratified)
    flags = {
        "learning_rate": 1e-2,
        "v_min": 0.0,
        "v_max": 30.0,
        "n_atoms": 31,
    }
    mine, _ = helpers.train("rainbow", tmp_path, **flags, **OFF)
    theirs, _ = helpers.train("c51", tmp_path, **flags)
    ours = helpers.load(mine)
    others = helpers.load(theirs)
    assert len(ours["agent"]) == len(others["agent"]) == 12
    for one, other in zip(ours["agent"].values(), others["agent"].values(), strict=True):
        assert torch.equal(one, other)
    scalars = [helpers.scalars(run_dir) for run_dir in (mine, theirs)]
    for tag in helpers.tags("c51") - helpers.UNSEEDED | {"charts/episodic_return"}:
        assert scalars[0][tag] == scalars[1][tag], tag
