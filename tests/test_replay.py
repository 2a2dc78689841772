"""ReplayBuffer and FrameReplayBuffer, the same text in all scripts, against plain lists of steps."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from cleanrl_lite import rainbow_atari
from cleanrl_lite.dqn_atari import FrameReplayBuffer
from cleanrl_lite.sac import ReplayBuffer

CPU = torch.device("cpu")
OBS = (3,)
ACTION = (2,)
SHAPES = OBS, ACTION, (), OBS, ()


def vectors(buffer_size, num_envs):
    return ReplayBuffer(buffer_size, num_envs, SHAPES, CPU)


def random_step(rng, num_envs):
    """obs, actions, rewards, next_obs, terminations of one step, with the types that
    environments return."""
    both = rng.normal(size=(2, num_envs, *OBS))
    obs, next_obs = np.float32(both)
    actions = np.float32(rng.normal(size=(num_envs, *ACTION)))
    rewards = rng.normal(size=num_envs)
    terminations = rng.random(num_envs) < 0.3
    return obs, actions, rewards, next_obs, terminations


def saved_and_loaded(buffer, new, path):
    """`new` with the state of `buffer`, by way of a checkpoint file."""
    torch.save(dict(replay=buffer.state_dict()), path)
    new.load_state_dict(torch.load(path, weights_only=True)["replay"])
    return new


@pytest.mark.parametrize("buffer_size, num_envs", [(17, 1), (24, 3), (26, 3)])
def test_the_last_transitions(buffer_size, num_envs, tmp_path):
    """Before and after the wrap-around, the buffer holds the last transitions and nothing else;
    also one that is saved and loaded before each third step."""
    rng = np.random.default_rng(1)
    buffer = vectors(buffer_size, num_envs)
    stepped = []
    capacity = buffer_size // num_envs * num_envs
    for t in range(3 * buffer_size // num_envs):
        if t % 3 == 2:
            new = vectors(buffer_size, num_envs)
            buffer = saved_and_loaded(buffer, new, tmp_path / "checkpoint.pt")
        step = random_step(rng, num_envs)
        buffer.add(*step)
        for n in range(num_envs):
            parts = [np.ravel(part[n]) for part in step]
            row = np.concatenate(parts)
            stepped.append(tuple(np.float32(row).tolist()))
        for part in step:
            part[...] = 0  # the environments write into the same arrays again
        assert buffer.size == min(len(stepped), capacity)
        rows = buffer.rows[: buffer.size].tolist()
        newest = stepped[-capacity:]
        assert set(map(tuple, rows)) == set(newest)


@pytest.mark.parametrize("num_envs, added", [(1, 20), (1, 70), (3, 30), (3, 96)])
def test_sampling_is_uniform(num_envs, added):
    """Exactly the filled part, each transition as often as any other, and the parts of a sample
    belong together."""
    buffer = vectors(50, num_envs)
    draws = 40_000
    for start in range(1, added + 1, num_envs):  # every part of the k-th transition is k
        numbers = np.arange(start, start + num_envs, dtype=np.float32)
        parts = []
        for shape in SHAPES:
            part = np.empty((num_envs, *shape), dtype=np.float32)
            part.T[...] = numbers
            parts.append(part)
        buffer.add(*parts)
    rows = buffer.sample(draws)
    assert (rows == rows[:, :1]).all()
    size = min(added, buffer.capacity)
    counts = Counter(rows[:, 0].int().tolist())
    newest = range(added - size + 1, added + 1)
    assert set(counts) == set(newest)
    expected = draws / size
    errors = [count - expected for count in counts.values()]
    chi_square = sum(error**2 for error in errors) / expected
    freedom = size - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5
    assert not torch.equal(rows, buffer.sample(draws))


# --- frames


@dataclass
class Stepped:
    """A transition as the agent saw it; `slot`: how many frames of this environment the buffer
    held before it."""

    env: int
    slot: int
    obs: np.ndarray
    reward: float
    terminated: bool
    next_obs: np.ndarray | None  # None: of no meaning, the game is over
    age: int  # frames of `obs` that belong to this game, at most 4
    truncated: bool


class ScriptedGames:
    """Games of 1 to 9 steps that end by game over or truncation, with lost lives in between; every
    frame is unique.

    Like the real ones, it writes observations into the same arrays again and resets in the same
    step.
    """

    def __init__(self, num_envs, seed=1, shape=(3, 3)):
        self.rng = np.random.default_rng(seed)
        self.num_envs = num_envs
        self.shape = shape
        self.obs = np.zeros((num_envs, 4, *shape), dtype=np.uint8)
        self.final_obs = np.zeros_like(self.obs)
        self.frames = np.zeros(num_envs, dtype=np.int64)
        self.left = np.zeros(num_envs, dtype=np.int64)
        self.ages = np.zeros(num_envs, dtype=np.int64)

    def frame(self, n):
        self.frames[n] += 1
        number = self.frames[n]
        frame = np.full(self.shape, 1 + n, dtype=np.uint8)
        digits = number % 250, number // 250 % 250, number // 62_500
        frame.flat[:3] = 1 + np.array(digits)
        return frame

    def start(self, n):
        self.obs[n] = 0
        self.obs[n, -1] = self.frame(n)
        self.left[n] = self.rng.integers(1, 10)
        self.ages[n] = 1

    def reset(self):
        for n in range(self.num_envs):
            self.start(n)
        return self.obs

    def step(self):
        signs = self.rng.integers(-1, 2, self.num_envs)
        rewards = signs.astype(np.float64)
        terminations, truncations, new_games = np.zeros((3, self.num_envs), dtype=bool)
        self.final_obs[:] = 255  # of no meaning, unless a game ends
        for n in range(self.num_envs):
            before = self.obs[n].copy()
            self.obs[n, :3] = before[1:]
            self.obs[n, 3] = self.frame(n)
            self.left[n] -= 1
            self.ages[n] += 1
            terminations[n] = self.rng.random() < 0.2  # a lost life
            if self.left[n] == 0:
                new_games[n] = True
                end = self.rng.integers(4)
                terminations[n] = end in (0, 3)
                truncations[n] = end in (1, 2, 3)
                self.final_obs[n] = self.obs[n]
                self.start(n)
        return self.obs, rewards, terminations, truncations, new_games, self.final_obs


class Journal:
    """Steps an environment, adds what comes of it to the buffer, and keeps a list of it; the
    action is the number of a transition in the list."""

    def __init__(self, games, buffer_size, n_step=0):
        self.games = games
        self.list = []
        self.slots = np.zeros(games.num_envs, dtype=np.int64)
        self.n_step = n_step  # 0: the buffer knows of none
        sizes = buffer_size, games.num_envs, (3, 3), CPU
        if n_step:
            self.make = lambda: rainbow_atari.FrameReplayBuffer(*sizes, n_step)
        else:
            self.make = lambda: FrameReplayBuffer(*sizes)
        self.buffer = self.make()
        # slots overwritten before a checkpoint
        self.lost = np.zeros(games.num_envs, dtype=np.int64)
        self.begin()

    def begin(self):
        self.obs = self.games.reset().copy()
        self.ages = np.ones(self.games.num_envs, dtype=int)

    def step(self, count):
        for _ in range(count):
            obs, rewards, terminations, truncations, new_games, final_obs = self.games.step()
            actions = len(self.list) + np.arange(self.games.num_envs)
            true_obs = np.where(new_games[:, None, None, None], final_obs, obs)
            self.buffer.add(
                self.obs, actions, rewards, true_obs, terminations, truncations, new_games
            )
            for n in range(self.games.num_envs):
                next_obs = obs[n].copy()
                if new_games[n]:
                    next_obs = final_obs[n].copy() if truncations[n] else None
                stepped = Stepped(
                    n,
                    self.slots[n],
                    self.obs[n].copy(),
                    rewards[n],
                    terminations[n],
                    next_obs,
                    self.ages[n],
                    truncations[n],
                )
                self.list.append(stepped)
                self.slots[n] += 1 + truncations[n]
            older = np.minimum(self.ages + 1, 4)
            self.ages = np.where(new_games, 1, older)
            self.obs = obs.copy()

    def drawable(self):
        """(numbers of the transitions whose frames are all in the buffer, those that sampling
        may leave out)."""
        possible = set()
        spared = set()
        for number, stepped in enumerate(self.list):
            written = self.slots[stepped.env]
            length = self.buffer.length
            oldest = max(written - length, self.lost[stepped.env])
            needed = stepped.slot - min(stepped.age, 4) + 1
            # its last frame has come
            complete = stepped.slot + 1 < written or stepped.next_obs is None
            if needed >= oldest and complete:
                possible.add(number)
                overwritten = oldest > 0 and stepped.slot < oldest + 4
                if overwritten or stepped.slot + 1 == written:
                    spared.add(number)
        return possible, spared

    def window(self, first):
        """The transitions of the window of n steps that begins with this one: it ends with its life
        or game, or with what is known."""
        mine = [stepped for stepped in self.list if stepped.env == first.env]
        found, k = [first], mine.index(first)
        for stepped in mine[k + 1 : k + (self.n_step or 1)]:
            last = found[-1]
            newest = stepped.slot + 1 >= self.buffer.written[first.env]
            given_up = stepped.slot != last.slot + 1  # at a resume
            if last.terminated or last.truncated or newest or given_up:
                break
            found.append(stepped)
        return found

    def check(self, gamma=0.9):
        """Every sample is a transition, or window, of the list, and nothing that can be drawn is
        left out; returns the windows' lengths."""
        possible, spared = self.drawable()
        if self.n_step:
            *packed, _ = self.buffer.sample(30 * len(possible))
            batch = self.buffer.unpack(*packed, gamma)
            # a slot that lacks a frame soon is given up one step early
            early = self.buffer.written - self.buffer.length + 4
            spared |= {k for k in possible if self.list[k].slot < early[self.list[k].env]}
        else:
            packed = self.buffer.sample(30 * len(possible))
            batch = *self.buffer.unpack(*packed), torch.full((30 * len(possible),), gamma)
        obs, actions, rewards, next_obs, terminations, discounts = batch
        assert obs.dtype == next_obs.dtype == torch.uint8
        assert rewards.dtype == terminations.dtype == torch.float32
        drawn, rows = np.unique(actions.numpy().astype(int), return_index=True)
        wrong = {*drawn} - possible
        assert not wrong, f"{sorted(wrong)} are not whole any more, or not yet"
        missing = possible - spared - {*drawn}
        assert not missing, f"never drawn: {sorted(missing)}"
        lengths = set()
        for number, k in zip(drawn, rows, strict=True):
            window = self.window(self.list[number])
            first, last = window[0], window[-1]
            total = sum(gamma**n * stepped.reward for n, stepped in enumerate(window))
            assert (obs[k].numpy() == first.obs).all(), f"obs of {first}"
            assert rewards[k] == pytest.approx(total, abs=1e-5)
            assert terminations[k] == last.terminated
            assert discounts[k] == pytest.approx(gamma ** len(window))
            if last.next_obs is not None:
                assert (next_obs[k].numpy() == last.next_obs).all(), f"next_obs of {first}"
            lengths.add(len(window))
        return lengths


@pytest.mark.parametrize("buffer_size, num_envs", [(61, 3), (24, 3), (8, 1)])
def test_frames(buffer_size, num_envs):
    """Every sample is a transition that was really stepped, before and after several
    wrap-arounds."""
    journal = Journal(ScriptedGames(num_envs), buffer_size)
    journal.step(2)
    for _ in range(60):
        journal.check()
        journal.step(1 + 4 * buffer_size // num_envs // 60)
    journal.check()
    ends = [(s.terminated, s.next_obs is None) for s in journal.list]
    assert {(True, True), (True, False), (False, False)} == set(ends)
    assert journal.slots.min() > 3 * journal.buffer.length


@pytest.mark.parametrize("num_envs, steps", [(1, 3), (3, 5), (3, 17), (1, 61)])
def test_frames_saved_and_loaded(num_envs, steps, tmp_path):
    """A resumed run begins new games; what was stepped before it is drawn as before, and nothing
    that never was."""
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
    """A new buffer with the saved state; the games in progress are given up, and with them their
    last transitions, unless what came after these is known."""
    before = journal.buffer.written.copy()
    journal.buffer = saved_and_loaded(journal.buffer, journal.make(), path)
    for n in range(journal.games.num_envs):
        mine = [stepped for stepped in journal.list if stepped.env == n]
        last = max(mine, key=lambda stepped: stepped.slot)
        if last.slot + 1 == before[n]:  # it waits for a frame that will never come
            last.slot = -(10**9)
        too_old = before[n] - journal.buffer.length
        journal.lost[n] = max(too_old, 0)
        journal.slots[n] = journal.buffer.written[n]  # one less where the last frame is of no use
    journal.begin()


@pytest.mark.parametrize("num_envs, n_step", [(1, 3), (3, 3), (2, 1)])
def test_windows_of_frames(num_envs, n_step, tmp_path):
    """rainbow_atari's, before and after the wrap-around and a resume."""
    journal = Journal(ScriptedGames(num_envs), 24 * num_envs, n_step)
    journal.step(3)
    lengths = set()
    for t in range(60):
        lengths |= journal.check()
        if t == 40:
            resume(journal, tmp_path / "checkpoint.pt")
            journal.check()
        journal.step(1)
    assert lengths == set(range(1, n_step + 1))
