"""The replay buffers against a plain list of what was stepped, and against Stable-Baselines3's."""

import math
import os
import re
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from stable_baselines3.common.buffers import ReplayBuffer as TheirBuffer

from cleanrl_lite import buffers, dqn_atari
from tests import helpers

CPU = torch.device("cpu")
OBS, ACTION = (3,), (2,)
SHAPES = OBS, ACTION, (), OBS, ()


def vectors(buffer_size, num_envs):
    return buffers.ReplayBuffer(buffer_size, num_envs, SHAPES, CPU)


def random_step(rng, num_envs):
    """obs, actions, rewards, next_obs, terminations of one step, with the types that environments return."""
    obs, next_obs = rng.normal(size=(2, num_envs, *OBS)).astype(np.float32)
    actions = rng.normal(size=(num_envs, *ACTION)).astype(np.float32)
    return obs, actions, rng.normal(size=num_envs), next_obs, rng.random(num_envs) < 0.3


def flat(step, n):
    """The transition of environment n as one vector."""
    return np.concatenate([np.ravel(part[n]) for part in step]).astype(np.float32)


def contents(buffer):
    return {tuple(row) for row in buffer.rows[: buffer.filled].tolist()}


def saved_and_loaded(buffer, new, path):
    """`new` with the state of `buffer`, by way of a checkpoint file."""
    torch.save(dict(replay=buffer.state_dict()), path)
    new.load_state_dict(torch.load(path, map_location="cpu", weights_only=True, mmap=True)["replay"])
    return new


@pytest.mark.parametrize("buffer_size, num_envs", [(16, 1), (17, 1), (24, 3), (25, 3), (26, 3)])
def test_the_last_transitions(buffer_size, num_envs):
    """Before and after the wrap-around, the buffer holds the last transitions and nothing else."""
    rng, buffer, stepped = np.random.default_rng(1), vectors(buffer_size, num_envs), []
    capacity = buffer_size // num_envs * num_envs
    assert buffer.filled == 0
    for _ in range(3 * buffer_size // num_envs):
        step = random_step(rng, num_envs)
        buffer.add(*step)
        stepped += [flat(step, n) for n in range(num_envs)]
        for part in step:
            part[...] = 0  # the environments write into the same arrays again
        assert buffer.filled == buffer.size == min(len(stepped), capacity)
        assert contents(buffer) == {tuple(row.tolist()) for row in stepped[-capacity:]}


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("steps", [5, 30])  # with and without wrap-around
def test_like_stable_baselines3(num_envs, steps):
    spaces = Box(-9, 9, OBS, np.float32), Box(-9, 9, ACTION, np.float32)
    buffer_size, rng = 8 * num_envs + (num_envs > 1), np.random.default_rng(1)
    ours, theirs = vectors(buffer_size, num_envs), TheirBuffer(buffer_size, *spaces, "cpu", n_envs=num_envs)
    for _ in range(steps):
        obs, actions, rewards, next_obs, terminations = random_step(rng, num_envs)
        truncations = rng.random(num_envs) < 0.3
        infos = [{"TimeLimit.truncated": bool(t and not end)} for t, end in zip(truncations, terminations)]
        theirs.add(obs, next_obs, actions, rewards, terminations | truncations, infos)
        ours.add(obs, actions, rewards, next_obs, terminations)
    assert ours.position == theirs.pos * num_envs and (ours.filled == len(ours.rows)) == theirs.full
    for row in range(ours.filled):
        slot, n = divmod(row, num_envs)
        obs, actions, rewards, next_obs, terminations = ours.unpack(ours.rows[row : row + 1])
        np.testing.assert_array_equal(obs[0], theirs.observations[slot, n])
        np.testing.assert_array_equal(actions[0], theirs.actions[slot, n])
        np.testing.assert_array_equal(next_obs[0], theirs.next_observations[slot, n])
        assert rewards[0] == theirs.rewards[slot, n]
        assert terminations[0] == theirs.dones[slot, n] * (1 - theirs.timeouts[slot, n])


def test_unpack():
    """Shapes and types of a minibatch, for vectors, numbers and an action of no dimensions."""
    buffer = buffers.ReplayBuffer(16, 2, ((3,), (), (), (3,), ()), CPU)
    obs = np.arange(6).reshape(2, 3)
    buffer.add(obs, np.array([5, 7]), np.array([0.5, -0.5]), 10.0 * obs, np.array([True, False]))
    parts = buffer.unpack(*buffer.sample(64))
    assert [tuple(part.shape) for part in parts] == [(64, 3), (64,), (64,), (64, 3), (64,)]
    assert {part.dtype for part in parts} == {torch.float32}
    first = parts[1] == 5
    assert 10 < first.sum() < 54
    expected = torch.tensor([[0.0, 1, 2, 5, 0.5, 0, 10, 20, 1], [3, 4, 5, 7, -0.5, 30, 40, 50, 0]])
    together = torch.cat([part.reshape(64, -1) for part in parts], dim=1)
    assert torch.equal(together, expected[(~first).long()])  # also: the parts of a sample belong together


def numbered(buffer_size, num_envs, added):
    """A buffer in which every part of the k-th transition is k + 1, after `added` transitions."""
    buffer = vectors(buffer_size, num_envs)
    for start in range(1, added + 1, num_envs):
        numbers = np.arange(start, start + num_envs, dtype=np.float32)
        buffer.add(*(np.broadcast_to(numbers.reshape(-1, *(1 for _ in s)), (num_envs, *s)) for s in SHAPES))
    return buffer


@pytest.mark.parametrize(
    "buffer_size, num_envs, added", [(50, 1, 20), (50, 1, 50), (50, 1, 70), (50, 3, 30), (50, 3, 96)]
)
def test_sampling_is_uniform(buffer_size, num_envs, added):
    """Exactly the filled part, each transition as often as any other, and the parts of a sample belong together."""
    buffer, draws = numbered(buffer_size, num_envs, added), 40_000
    (rows,) = buffer.sample(draws)
    assert (rows == rows[:, :1]).all()
    capacity = buffer_size // num_envs * num_envs
    counts = Counter(rows[:, 0].int().tolist())
    size = min(added, capacity)
    assert set(counts) == set(range(added - size + 1, added + 1))
    expected = draws / size
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert abs(chi_square - (size - 1)) < 5 * (2 * (size - 1)) ** 0.5
    (again,) = buffer.sample(draws)
    assert not torch.equal(rows, again)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("steps", [5, 8, 21])
def test_saving_and_loading(num_envs, steps, tmp_path):
    """Contents and position come back exactly, and what is added then goes where it would have gone."""
    rng, buffer = np.random.default_rng(1), vectors(9 * num_envs - 1, num_envs)
    for _ in range(steps):
        buffer.add(*random_step(rng, num_envs))
    new = saved_and_loaded(buffer, vectors(9 * num_envs - 1, num_envs), tmp_path / "checkpoint.pt")
    assert torch.equal(new.rows, buffer.rows)
    assert (new.position, new.filled, new.size.item()) == (buffer.position, buffer.filled, buffer.size.item())
    for _ in range(13):
        step = random_step(rng, num_envs)
        buffer.add(*step)
        new.add(*step)
        assert torch.equal(new.rows, buffer.rows) and new.size == buffer.size
        torch.manual_seed(1)
        (ours,) = new.sample(5)
        torch.manual_seed(1)
        assert torch.equal(ours, buffer.sample(5)[0])
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["replay"]["rows"]
    assert not torch.equal(saved, buffer.rows[: len(saved)])  # the mapped file itself is not written to


@pytest.mark.parametrize("kind", ["vectors", "frames"])
def test_another_size_is_refused(kind):
    make = dict(vectors=vectors, frames=lambda size, num_envs: buffers.FrameReplayBuffer(size, num_envs, (3, 3), CPU))[
        kind
    ]
    state = make(32, 2).state_dict()
    for size, num_envs in ((34, 2), (32, 1), (32, 4), (16, 2), (64, 4)):
        with pytest.raises(SystemExit, match="^error: .*--buffer-size and --num-envs") as end:
            make(size, num_envs).load_state_dict(state)
        assert "\n" not in end.value.code
    make(32, 2).load_state_dict(state)
    make(33, 2).load_state_dict(state)  # rounded down to 32


@pytest.mark.parametrize("num_envs", [1, 4])
def test_only_the_filled_part_is_written(num_envs, tmp_path):
    """A checkpoint at the start of a run is small, whatever --buffer-size says."""
    rng, path = np.random.default_rng(1), tmp_path / "checkpoint.pt"
    buffer, frames = vectors(500_000, num_envs), buffers.FrameReplayBuffer(50_000, num_envs, (84, 84), CPU)
    for _ in range(20 // num_envs):
        buffer.add(*random_step(rng, num_envs))
        stack = rng.integers(1, 256, (num_envs, 4, 84, 84)).astype(np.uint8)
        frames.add(stack, *np.zeros((2, num_envs)), *np.zeros((3, num_envs), dtype=bool), None)
    torch.save(dict(replay=buffer.state_dict()), path)
    assert 20 * 10 * 4 < os.path.getsize(path) < 20_000
    torch.save(dict(replay=frames.state_dict()), path)
    assert 20 * 84 * 84 < os.path.getsize(path) < 20 * 84 * 84 + 20_000


@pytest.mark.parametrize("available", [23_456_789, 40 * 10**6, 10**8])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_buffer_that_does_not_fit(available, num_envs, monkeypatch):
    """One line with the largest size that would fit, and that size is accepted."""
    monkeypatch.setattr(buffers.psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    for make, bytes_each in ((vectors, 4 * 10), (lambda *s: buffers.FrameReplayBuffer(*s, (84, 84), CPU), 84 * 84)):
        with pytest.raises(SystemExit) as end:
            make(10**8, num_envs)
        line = end.value.code
        assert line.startswith("error: --buffer-size 100000000 takes ") and "\n" not in line
        assert f" {10**8 * bytes_each / 1e9:,.1f} GB" in line
        largest = int(re.search(r"(\d+) transitions would fit", line)[1])
        assert 0.8 * available < largest * bytes_each <= available
        make(largest, num_envs)
        with pytest.raises(SystemExit):
            make(largest + num_envs, num_envs)


def test_a_tiny_buffer_is_refused():
    for make in (vectors, lambda *sizes: buffers.FrameReplayBuffer(*sizes, (3, 3), CPU)):
        make(24, 3)
        with pytest.raises(SystemExit, match="^error: --buffer-size must be at least 8 times --num-envs$"):
            make(23, 3)


MILLION = """
import sys, numpy as np, torch
from cleanrl_lite import buffers
buffer = buffers.ReplayBuffer(1_000_000, 1, ((11,), (3,), (), (11,), ()), torch.device("cpu"))
for start in range(0, 1_000_000, 10_000):
    buffer.rows[start : start + 10_000] = torch.randn(10_000, 27)
buffer.position, buffer.filled = 0, 1_000_000
buffer.size.fill_(1_000_000)
for _ in range(100):
    buffer.unpack(*buffer.sample(256))
torch.save(dict(replay=buffer.state_dict()), sys.argv[1])
new = buffers.ReplayBuffer(1_000_000, 1, buffer.shapes, torch.device("cpu"))
new.load_state_dict(torch.load(sys.argv[1], weights_only=True, mmap=True)["replay"])
assert torch.equal(new.rows, buffer.rows)
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])  # kB, of this process
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="asks Linux for the memory")
def test_memory_of_a_million_transitions(tmp_path):
    """Hopper: the filled buffer (108 MB), saving it and a second one that is loaded take less than 1 GB in all."""
    result = helpers.run([os.sys.executable, "-c", MILLION, tmp_path / "checkpoint.pt"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert 216e3 < int(result.stdout) < 1e6
    assert os.path.getsize(tmp_path / "checkpoint.pt") < 108e6 + 10_000


# --- frames


@dataclass
class Stepped:
    """A transition as the agent saw it; `slot`: how many frames of this environment the buffer held before it."""

    env: int
    slot: int
    obs: np.ndarray
    reward: float
    terminated: bool
    next_obs: np.ndarray | None  # None: of no meaning, the game is over
    age: int  # frames of `obs` that belong to this game, at most 4
    truncated: bool


class ScriptedGames:
    """Games of 1 to 9 steps that end by game over or truncation, with lost lives in between; every frame is unique.

    Like the real ones, it writes observations into the same arrays again and resets in the same step.
    """

    def __init__(self, num_envs, seed=1, shape=(3, 3)):
        self.rng, self.num_envs, self.shape = np.random.default_rng(seed), num_envs, shape
        self.obs = np.zeros((num_envs, 4, *shape), dtype=np.uint8)
        self.final_obs = np.zeros_like(self.obs)
        self.frames = np.zeros(num_envs, dtype=np.int64)
        self.left, self.ages = np.zeros((2, num_envs), dtype=np.int64)

    def frame(self, n):
        self.frames[n] += 1
        number = self.frames[n]
        frame = np.full(self.shape, 1 + n, dtype=np.uint8)
        frame.flat[:3] = 1 + number % 250, 1 + number // 250 % 250, 1 + number // 62_500
        return frame

    def start(self, n):
        self.obs[n] = 0
        self.obs[n, -1] = self.frame(n)
        self.left[n], self.ages[n] = self.rng.integers(1, 10), 1

    def reset(self):
        for n in range(self.num_envs):
            self.start(n)
        return self.obs

    def step(self):
        rewards = self.rng.integers(-1, 2, self.num_envs).astype(np.float64)
        terminations, truncations, new_games = np.zeros((3, self.num_envs), dtype=bool)
        self.final_obs[:] = 255  # of no meaning, unless a game ends
        for n in range(self.num_envs):
            self.obs[n, :3] = self.obs[n, 1:]
            self.obs[n, 3] = self.frame(n)
            self.left[n] -= 1
            self.ages[n] += 1
            terminations[n] = self.rng.random() < 0.2  # a lost life
            if self.left[n] == 0:
                new_games[n] = True
                end = self.rng.integers(4)
                terminations[n], truncations[n] = end in (0, 3), end in (1, 2, 3)
                self.final_obs[n] = self.obs[n]
                self.start(n)
        return self.obs, rewards, terminations, truncations, new_games, self.final_obs


class Journal:
    """Steps an environment, adds what comes of it to the buffer, and keeps a list of it; the action is the number of a
    transition in the list."""

    def __init__(self, games, buffer_size, shape=(3, 3)):
        self.games, self.list, self.slots = games, [], np.zeros(games.num_envs, dtype=np.int64)
        self.buffer = buffers.FrameReplayBuffer(buffer_size, games.num_envs, shape, CPU)
        self.lost = np.zeros(games.num_envs, dtype=np.int64)  # slots overwritten before a checkpoint
        self.begin()

    def begin(self):
        self.obs, self.ages = self.games.reset().copy(), np.ones(self.games.num_envs, dtype=int)

    def step(self, count):
        for _ in range(count):
            obs, rewards, terminations, truncations, new_games, final_obs = self.games.step()
            actions = len(self.list) + np.arange(self.games.num_envs)
            given = None if final_obs is None else final_obs
            self.buffer.add(self.obs, actions, rewards, terminations, truncations, new_games, given)
            for n in range(self.games.num_envs):
                next_obs = obs[n].copy()
                if new_games[n]:
                    next_obs = final_obs[n].copy() if truncations[n] else None
                seen = self.slots[n], self.obs[n].copy(), rewards[n], terminations[n], next_obs
                self.list.append(Stepped(n, *seen, self.ages[n], truncations[n]))
                self.slots[n] += 1 + truncations[n]
            self.ages = np.where(new_games, 1, np.minimum(self.ages + 1, 4))
            self.obs = obs.copy()

    def drawable(self):
        """(numbers of the transitions whose frames are all in the buffer, those that sampling may leave out)."""
        possible, spared = set(), set()
        for number, stepped in enumerate(self.list):
            written, length = self.slots[stepped.env], self.buffer.length
            oldest = max(written - length, self.lost[stepped.env])
            needed = stepped.slot - min(stepped.age, 4) + 1
            complete = stepped.slot + 1 < written or stepped.next_obs is None  # its last frame has come
            if needed >= oldest and complete:
                possible.add(number)
                overwritten = oldest > 0 and stepped.slot < oldest + 4
                if overwritten or stepped.slot + 1 == written:
                    spared.add(number)
        return possible, spared

    def check(self, draws_each=30):
        """Every sample is a transition of the list, and nothing that can be drawn is left out."""
        possible, spared = self.drawable()
        drawn, chunks = Counter(), math.ceil(draws_each * len(possible) / 1000)
        for _ in range(chunks):
            packed = self.buffer.sample(1000)
            obs, actions, rewards, next_obs, terminations = (part.numpy() for part in self.buffer.unpack(*packed))
            assert obs.dtype == next_obs.dtype == np.uint8 and rewards.dtype == terminations.dtype == np.float32
            numbers, inverse = np.unique(actions.astype(int), return_inverse=True)
            assert set(numbers) <= possible, f"{sorted(set(numbers) - possible)} are not whole any more, or not yet"
            drawn.update(actions.astype(int).tolist())
            expected = [self.list[number] for number in numbers]
            np.testing.assert_array_equal(rewards, np.array([s.reward for s in expected])[inverse])
            np.testing.assert_array_equal(terminations, np.array([s.terminated for s in expected])[inverse])
            for k, stepped in enumerate(expected):
                assert (obs[inverse == k] == stepped.obs).all(), f"obs of {stepped}"
                if stepped.next_obs is not None:
                    assert (next_obs[inverse == k] == stepped.next_obs).all(), f"next_obs of {stepped}"
                else:
                    assert stepped.terminated
        assert set(drawn) >= possible - spared, f"never drawn: {sorted(possible - spared - set(drawn))}"
        return drawn


@pytest.mark.parametrize("buffer_size, num_envs", [(60, 1), (61, 3), (24, 3), (8, 1)])
def test_frames(buffer_size, num_envs):
    """Every sample is a transition that was really stepped, before and after several wrap-arounds."""
    journal = Journal(ScriptedGames(num_envs), buffer_size)
    journal.step(2)
    for _ in range(60):
        journal.check()
        journal.step(1 + 4 * buffer_size // num_envs // 60)
    journal.check()
    ends = [(s.terminated, s.next_obs is None) for s in journal.list]
    assert {(True, True), (True, False), (False, False)} == set(ends)
    assert journal.slots.min() > 3 * journal.buffer.length


def test_frames_at_every_fill():
    """Step by step through the first wrap-around, for several sequences of games."""
    for seed in range(4):
        journal = Journal(ScriptedGames(2, seed), 24)
        journal.step(2)
        for _ in range(30):
            journal.check()
            journal.step(1)


def test_frames_are_drawn_uniformly():
    """Each transition as often as any other; but those that end in a truncation, having two slots, twice as often."""
    journal = Journal(ScriptedGames(2), 200)
    journal.step(250)
    drawn = journal.check(draws_each=300)
    counts = np.array([*drawn.values()])
    twice = np.array([journal.list[number].truncated for number in drawn])
    expected = counts.sum() / (len(counts) + twice.sum()) * (1 + twice)
    assert twice.sum() > 10
    assert (np.abs(counts - expected) < 6 * expected**0.5).all()


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("steps", [3, 4, 5, 6, 7, 12, 17, 30, 61])
def test_frames_saved_and_loaded(num_envs, steps, tmp_path):
    """A resumed run begins new games; what was stepped before it is drawn as before, and nothing that never was."""
    for seed in range(3):
        journal = Journal(ScriptedGames(num_envs, seed), 20 * num_envs)
        journal.step(steps)
        for _ in range(2):  # a run may be resumed again
            resume(journal, tmp_path / "checkpoint.pt")
            journal.check()  # the first training of the resumed run comes before its first step
            for _ in range(7):
                journal.step(1)
                journal.check()
        journal.step(40)
        journal.check()


def resume(journal, path):
    """A new buffer with the saved state; the games in progress are given up, and with them their last transitions,
    unless what came after these is known."""
    sizes = journal.buffer.num_envs * journal.buffer.length, journal.games.num_envs, journal.buffer.frames.shape[1:]
    before = journal.buffer.written.copy()
    journal.buffer = saved_and_loaded(journal.buffer, buffers.FrameReplayBuffer(*sizes, CPU), path)
    for n in range(journal.games.num_envs):
        last = max((s for s in journal.list if s.env == n), key=lambda s: s.slot)
        if last.slot + 1 == before[n]:  # it waits for a frame that will never come
            last.slot = -(10**9)
        journal.lost[n] = max(before[n] - journal.buffer.length, 0)
        journal.slots[n] = journal.buffer.written[n]  # one less where the last frame is of no use
    journal.begin()


def test_memory_of_frames():
    """7,072 bytes a transition, not the 56,448 of two stacks."""
    buffer = buffers.FrameReplayBuffer(1_000, 4, (84, 84), CPU)
    assert buffer.frames.nbytes + buffer.rows.nbytes == 7_072 * 1_000


def test_real_games():
    """Breakout and its lost lives, game overs and truncations: the stacks of the buffer are those that Games gave."""
    settings = dqn_atari.game_settings("BreakoutNoFrameskip-v4") | dict(max_num_frames_per_episode=700)
    envs, rng = dqn_atari.Games(2, num_threads=1, **settings), np.random.default_rng(1)

    class RandomPlay:
        num_envs = 2

        def reset(self):
            return envs.reset(seed=1)[0]

        def step(self):
            obs, rewards, terminations, truncations, infos = envs.step(rng.integers(4, size=2))
            ended = infos.get("_final_info", np.zeros(2, dtype=bool))
            return obs, np.sign(rewards), terminations, truncations, ended, infos.get("final_obs")

    journal = Journal(RandomPlay(), 600, (84, 84))
    for _ in range(4):
        journal.step(220)
        journal.check()
    lost = [s for s in journal.list if s.terminated and s.next_obs is not None]
    over = [s for s in journal.list if s.next_obs is None]
    truncated = [s for s in journal.list if s.truncated]
    assert len(lost) >= 8 and len(over) >= 1 and len(truncated) >= 1
