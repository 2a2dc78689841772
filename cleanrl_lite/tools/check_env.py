"""Plays an environment with random actions and says what would spoil a training.

    python -m cleanrl_lite.tools.check_env CartPole-v1
    python -m cleanrl_lite.tools.check_env my_env:Line-v0 --seconds 60 --json found.json

Lines without a mark are facts. "note" marks what to know, "WRONG" what makes results wrong; then
the exit status is 1. The last lines name the script that fits. Guide: docs/guides/check_env.md.
"""

import copy
import itertools
import json
import os
import pickle
import random
import re
import shlex
import textwrap
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import cloudpickle
import gymnasium as gym
import numpy as np
import psutil
import torch
import tyro
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.utils import env_checker
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from cleanrl_lite import utils

MOST_STEPS = 100_000  # of the long play
ENOUGH_STEPS = 20_000  # what did not happen in so many is told
CAREFUL_STEPS = 2_000  # of it: those whose infos, actions and arrays are looked at
MOST_SAMPLES = 2_000  # observations that are kept
MOST_NUMBERS = 2_000  # in one of them; scripts do not take more either
MOST_PIXELS = 100_000  # of an image that are compared
LIMIT = 1_000  # the time limit that is proposed where there is none


# === arguments
@dataclass
class Args:
    env_id: tyro.conf.Positional[str]  # environment, or module:environment
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    seconds: float = 20.0  # how long to play
    json: Path | None = None  # also write what was found to this file


# === report
@dataclass
class Line:
    """What was seen; of a finding also what it means for training, and what to do."""

    state: str  # "", "note" or "WRONG"
    topic: str
    seen: str
    means: str = ""
    advice: str = ""

    def __str__(self):
        text = wrapped(f"{self.state:6} {self.topic:13} ", self.seen)
        if self.state:
            text += "\n" + wrapped(f"{'':21}means: ", self.means)
            text += "\n" + wrapped(f"{'':21}do: ", self.advice)
        return text


def wrapped(head, text):
    """`text` after `head`, in lines of 100 characters; the next ones are indented."""
    return textwrap.fill(
        text,
        width=100,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def fact(topic, seen):
    return Line("", topic, seen)


def note(topic, seen, means, advice):
    return Line("note", topic, seen, means, advice)


def wrong(topic, seen, means, advice):
    return Line("WRONG", topic, seen, means, advice)


def number(value):
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# === playing
class Game:
    """Makes the environment. One instance at a time, unless a check asks for a second one."""

    def __init__(self, args):
        self.args = args
        self.env = None
        self.reference = None  # what seed 1 gives, if it repeats
        self.needs_processes = False  # instances in one process disturb each other

    def make(self, render_mode=None, limit=None):
        return utils.make(
            self.args,
            render_mode,
            max_episode_steps=limit or self.args.max_episode_steps,
            disable_env_checker=True,
        )

    def fresh(self, **options):
        """A new instance; the last one is closed before."""
        self.close()
        self.env = self.make(**options)
        return self.env

    def close(self):
        if self.env is not None:
            with suppress(Exception, SystemExit):  # gym-sailing's close() calls quit()
                self.env.close()
        self.env = None


def parts_of(space, value, name=""):
    """(name, space, value) of each part of an observation that is no Dict or Tuple."""
    if isinstance(space, Dict):
        for key, part in space.items():
            if key not in value:
                utils.check(False, f"the observation {value} has no {key!r}")
            yield from parts_of(part, value[key], f"{name}[{key!r}]")
    elif isinstance(space, Tuple):
        for n, part in enumerate(space):
            yield from parts_of(part, value[n], f"{name}[{n}]")
    else:
        yield name, space, value


def bounds_of(space):
    """The least and the largest value of a space of numbers; None for others, such as Text."""
    if isinstance(space, Box):
        return space.low.astype(float), space.high.astype(float)
    if isinstance(space, Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, MultiDiscrete):
        start = getattr(space, "start", 0)
        return start, start + space.nvec - 1
    if isinstance(space, MultiBinary):
        return 0, 1
    return None


def is_image(space):
    """Not a board or a map: those have fewer than 32 rows, or other numbers than 0 to 255."""
    in_bytes = isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)
    return in_bytes and sorted(space.shape)[-2] >= 32 and space.high.max() == 255


def content(space, obs):
    """An observation as bytes, to compare it."""
    found = []
    for _, _, value in parts_of(space, obs):
        array = np.asarray(value)
        found.append(repr(value).encode() if array.dtype == object else array.tobytes())
    return b"|".join(found)


def find_mask(env, obs, info):
    """Which actions are valid, where ppo_masked.py would find it; None where nothing says so."""
    if "action_mask" in info:
        return info["action_mask"]
    if env.has_wrapper_attr("action_masks"):
        return env.get_wrapper_attr("action_masks")()
    if isinstance(obs, dict):
        return obs.get("action_mask")
    return None


def sample_action(space, mask):
    """A random action; a valid one where there is a mask."""
    if mask is None:
        return space.sample()
    flat = np.hstack([np.ravel(part) for part in mask]).astype(np.int8)
    if isinstance(space, Discrete):
        return space.sample(flat)
    if isinstance(space, MultiDiscrete) and len(space.shape) == 1:
        ends = np.cumsum(space.nvec)[:-1]
        return space.sample(tuple(np.split(flat, ends)))
    return space.sample()


def random_steps(env, obs, info, most):
    """Yields what steps return (without infos), up to an episode's end; from one seed."""
    space = copy.deepcopy(env.action_space)
    space.seed(0)
    for _ in range(most):
        action = sample_action(space, find_mask(env, obs, info))
        obs, reward, terminated, truncated, info = env.step(action)
        yield obs, reward, terminated, truncated
        if terminated or truncated:
            return


class Part:
    """What was seen of one part of the observations."""

    def __init__(self, name, space):
        self.name = f"obs{name}"
        self.space = space
        self.kinds = set()  # (shape, dtype)
        self.low = None  # the least and the largest numbers
        self.high = None

    def add(self, value):
        array = np.asarray(value)
        self.kinds.add((array.shape, array.dtype))
        if array.shape != self.space.shape:
            return
        if self.low is None:
            self.low = self.high = array.copy()
        self.low = np.minimum(self.low, array)
        self.high = np.maximum(self.high, array)

    def is_finite(self):
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def beyond(self):
        """By how much of its range the worst number leaves the space."""
        low, high = bounds_of(self.space)
        span = np.where(np.isfinite(high - low), high - low, np.maximum(1, np.abs(high)))
        span = np.where(np.isfinite(span) & (span > 0), span, 1.0)
        over = np.maximum(low - self.low, self.high - high)
        return float(np.max(over / span, initial=0.0))

    def largest(self):
        return float(np.max(np.maximum(np.abs(self.low), np.abs(self.high)), initial=0.0))


class Clock:
    """Are there pixels that tell the time, in the same way in every episode?"""

    def __init__(self, size):
        self.size = size
        count = min(size, MOST_PIXELS)
        self.columns = np.random.default_rng(0).permutation(size)[:count]
        self.first = {}  # {step: pixels in the first episode that came to this step}
        self.same = np.ones(count, bool)

    def add(self, step, image):
        often = step < 96 and step % 4 == 0
        if (often or step % 32 == 0) and step < 3200 and np.size(image) == self.size:
            pixels = np.ravel(image)[self.columns]
            self.same &= pixels == self.first.setdefault(step, pixels)

    def size_in_memory(self):
        return len(self.first) * len(self.columns)

    def is_seen(self, length):
        """Do these pixels change again and again until the end of episodes of this length?"""
        every = 4 if length < 96 else 32
        steps = [step for step in sorted(self.first) if step % every == 0 and step < length]
        moments = [self.first[step][self.same].tobytes() for step in steps]
        late = moments[3 * len(moments) // 4 :]
        return len(set(moments)) >= 5 and len(set(late)) > 1


@dataclass
class Episode:
    length: int
    terminated: bool
    truncated: bool
    zeros: bool  # the last observation has nothing but zeros


class Play:
    """Many random steps in one instance, and what was seen in them."""

    def __init__(self, env, seconds):
        self.env = env
        self.action_space = copy.deepcopy(env.action_space)
        self.obs_space = copy.deepcopy(env.observation_space)
        spaces = {"action_space": self.action_space, "observation_space": self.obs_space}
        # A space of one's own may lack ==: then no two are equal, and nobody can tell.
        self.spaces = {
            name: copied for name, copied in spaces.items() if getattr(env, name) == copied
        }
        self.limit = env.spec.max_episode_steps  # as registered, or as asked for
        self.action_space.seed(0)
        self.steps = 0
        self.step_time = 0.0
        self.reset_times = []
        self.episodes = []
        self.parts = {}
        self.clocks = {}
        self.samples = []  # (episode, step in it, numbers)
        self.every = 1  # steps between samples
        self.most_kept = 0  # bytes in samples
        self.rewards = []
        self.reward_kinds = set()  # (type, shape)
        self.info_shapes = {}  # {key: shapes}
        self.reused_infos = 0
        self.overwritten = 0  # observations that changed when the next one came
        self.changed_actions = 0
        self.replaced = set()  # names of spaces
        self.has_mask = False
        self.zero_obs = 0
        self.memory = []
        self.run(seconds)

    def run(self, seconds):
        process = psutil.Process()
        begin = time.perf_counter()
        over = True
        info = {}
        while self.steps < MOST_STEPS and self.share(begin, seconds) < 1:
            if over:
                obs, info = self.reset()
                length = 0
            mask = find_mask(self.env, obs, info)
            self.has_mask |= mask is not None
            action = sample_action(self.action_space, mask)
            before = self.look(obs, info, action)
            start = time.perf_counter()
            obs, reward, terminated, truncated, info = self.env.step(action)
            self.step_time += time.perf_counter() - start
            self.steps += 1
            length += 1
            over = bool(terminated or truncated)
            zeros = self.add(obs, length)
            self.add_reward(reward)
            if before:
                self.compare(before, obs, info, action)
            if over:
                episode = Episode(length, bool(terminated), bool(truncated), zeros)
                self.episodes.append(episode)
            if self.share(begin, seconds) > len(self.memory) / 8:
                kept = self.most_kept + sum(c.size_in_memory() for c in self.clocks.values())
                self.memory.append((self.steps, process.memory_info().rss - kept))

    def share(self, begin, seconds):
        """How much of the play is over."""
        return max(self.steps / MOST_STEPS, (time.perf_counter() - begin) / seconds)

    def reset(self):
        start = time.perf_counter()
        seed = 0 if self.steps == 0 else None
        obs, info = self.env.reset(seed=seed)
        self.reset_times.append(time.perf_counter() - start)
        for name, space in self.spaces.items():
            if getattr(self.env, name) != space:
                self.replaced.add(name)
        self.add(obs, 0)
        return obs, info

    def look(self, obs, info, action):
        """What compare() needs."""
        if self.steps >= CAREFUL_STEPS:
            return None
        return obs, content(self.obs_space, obs), info, content(self.action_space, action)

    def add(self, obs, length):
        """Takes an observation in; says whether it has only zeros."""
        vectors = []
        zeros = True
        for name, space, value in parts_of(self.obs_space, obs):
            if name not in self.parts and bounds_of(space) is not None:
                self.parts[name] = Part(name, space)
                if is_image(space):
                    self.clocks[name] = Clock(np.size(value))
            if name not in self.parts:  # Text and the like
                continue
            self.parts[name].add(value)
            zeros = zeros and not np.any(value)
            if name in self.clocks:
                self.clocks[name].add(length, value)
            else:
                vectors.append(np.ravel(value))
        self.zero_obs += zeros
        if self.steps % self.every == 0 and 0 < sum(map(len, vectors)) <= MOST_NUMBERS:
            vector = np.concatenate(vectors)
            self.samples.append((len(self.episodes), length, vector))
            self.most_kept = max(self.most_kept, len(self.samples) * vector.nbytes)
        if len(self.samples) == MOST_SAMPLES:
            self.samples = self.samples[::2]
            self.every *= 2
        return zeros

    def add_reward(self, reward):
        array = np.asarray(reward)
        self.reward_kinds.add((type(reward).__name__, array.shape))
        is_number = array.dtype.kind in "biuf"
        self.rewards.append(float(array.sum()) if is_number else np.nan)

    def compare(self, before, obs, info, action):
        """Was something written into, or handed out again?"""
        old_obs, old_content, old_info, old_action = before
        self.overwritten += content(self.obs_space, old_obs) != old_content
        self.changed_actions += content(self.action_space, action) != old_action
        self.reused_infos += info is old_info
        for key, value in info.items():
            try:
                shape = np.shape(value)
            except ValueError:  # lists of different lengths
                shape = None
            self.info_shapes.setdefault(key, set()).add(shape)

    def steps_per_second(self):
        return self.steps / max(self.step_time, 1e-9)


# === checks: each yields lines
OF_NO_MATTER = "value is -?infinity|symmetric and normalized|different from the unwrapped"


def check_with_gymnasium(game, play, seconds):
    """gymnasium's own checker; it resets about 15 times."""
    topic = "checker"
    if play.has_mask:
        yield fact(topic, "gymnasium's checker was not run: it takes actions that a mask forbids")
        return
    if 15 * np.mean(play.reset_times) > seconds:
        yield fact(topic, "gymnasium's checker was not run: resets take too long")
        return
    env = game.fresh()
    while isinstance(env, OrderEnforcing | TimeLimit):  # what gymnasium.make adds
        env = env.env
    error = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            env_checker.check_env(env, skip_render_check=True, skip_close_check=True)
        except Exception as found:
            error = str(found) or repr(found)
    said = [re.sub(r"\x1b\[\d*m|WARN: ", "", str(warning.message)) for warning in caught]
    said = [text for text in said if not re.search(OF_NO_MATTER, text)]
    texts = [f"{text:.300}" for text in dict.fromkeys([*said, error]) if text]
    if not texts:
        yield fact(topic, "gymnasium's own checker finds nothing")
        return
    means = "other libraries may refuse it; what spoils results has a line of its own"
    yield note(topic, " // ".join(texts), means, "mend it if it is yours")


def check_time_limit(game, play):
    topic = "time limit"
    limit = play.limit
    if not play.episodes:
        yield from check_endless(play, limit)
        return
    lengths = [episode.length for episode in play.episodes]
    longest = max(lengths)
    count = len(lengths)
    last = [episode for episode in play.episodes if episode.length == longest]
    both = [episode for episode in last if episode.terminated and episode.truncated]
    ended = [episode for episode in last if not episode.truncated]
    cut = [episode for episode in last if not episode.terminated]
    again = f"in {len(last)} of {count} episodes, after exactly {longest} steps"
    means = "learners take the value of what comes after as 0, and so learn wrong values"
    # by chance few episodes have the largest length, and nearly as many the next smaller one
    shorter = max((length for length in lengths if length < longest), default=0)
    enough = 3 if shorter == 0 and longest >= 20 else 5
    piled = longest >= 5 and len(ended) >= enough and len(ended) > 5 * lengths.count(shorter)
    suspicious = piled or len(both) >= 3
    told = suspicious and tells_time(play, longest)
    if len(both) >= 3 and not told:
        seen = f"terminated and truncated are both true {again}"
        yield wrong(topic, seen, means, "at a time limit, return terminated=False (a wrapper can)")
    elif piled and not told:
        seen = f"terminated {again}: probably a time limit reported as the end of the task"
        advice = "return truncated=True instead (a wrapper can), unless the task truly ends there"
        yield wrong(topic, seen, means, advice)
    asked = game.args.max_episode_steps
    inside = len(cut) >= 3 and is_inside(game, play, longest, limit)
    if inside and asked and asked > longest:
        seen = f"episodes are cut after {longest} steps, not after --max-episode-steps {asked}"
        means = "the environment has a limit inside, which that flag cannot lengthen"
        yield note(topic, seen, means, "set its own limit with --env-kwargs, or drop the flag")
    seen = f"{count:,} episodes of {min(lengths):,} to {longest:,} steps; "
    seen += f"limit: {number(limit) if limit else 'none registered'}"
    if told:
        seen += f"; {len(last)} ended after exactly {longest}, and the observation tells the time"
    if inside:
        seen += f"; that of {longest} is inside: --max-episode-steps can only shorten it"
    yield fact(topic, seen)


def check_endless(play, limit):
    seen = f"no episode ended in {play.steps:,} steps; "
    if limit or play.steps < ENOUGH_STEPS:
        longer = f"limit: {limit:,}" if limit else f"perhaps it needs --max-episode-steps {LIMIT}"
        yield fact("time limit", seen + longer)
        return
    yield note(
        "time limit",
        seen + "no time limit is registered",
        "episodes end late or never: no charts/episodic_return, and evaluations take long",
        f"set a limit, such as --max-episode-steps {LIMIT}",
    )


def is_inside(game, play, longest, limit):
    """Does the environment cut episodes itself, whatever gymnasium.make's limit is?"""
    if limit != longest:
        return True
    if 3 * limit / play.steps_per_second() > game.args.seconds / 5:
        return False  # it would take too long to know
    env = game.fresh(limit=2 * limit)
    for seed in range(3):
        steps = list(random_steps(env, *env.reset(seed=seed), limit))
        if len(steps) == limit:
            _, _, _, truncated = steps[-1]
            return bool(truncated)
    return False


def has_right_shapes(play):
    return all(len(part.kinds) == 1 for part in play.parts.values())


def tells_time(play, length):
    """Do the observations say how many steps are left? Then an end by the clock can be learned."""
    if any(clock.is_seen(length) for clock in play.clocks.values()):
        return True
    lengths = dict(enumerate(episode.length for episode in play.episodes))
    samples = [sample for sample in play.samples if lengths.get(sample[0]) == length]
    if len(samples) < 20 or not has_right_shapes(play):
        return False
    episodes, steps, vectors = (np.array(column) for column in zip(*samples, strict=True))
    apart = vectors - vectors.mean(axis=0)
    time_apart = steps - steps.mean()
    spread = np.linalg.norm(apart, axis=0) * np.linalg.norm(time_apart)
    if np.any(np.abs(time_apart @ apart) > 0.999 * np.maximum(spread, 1e-9)):
        return True  # one of the numbers is a clock; or else several together
    columns = np.random.default_rng(0).permutation(vectors.shape[1])[:500]
    inputs = np.column_stack([vectors[:, columns], np.ones(len(vectors))])
    known = episodes % 2 == 0
    weights = np.linalg.lstsq(inputs[known], steps[known], rcond=None)[0]
    errors = inputs[~known] @ weights - steps[~known]
    return bool(np.mean(errors**2) < 0.01 * np.var(steps))


def check_observations(play, normalizes):
    topic = "observations"
    for part in play.parts.values():
        yield from check_kinds(part)
        if part.low is None:
            continue
        if not part.is_finite():
            seen = f"{part.name} is not finite somewhere in {play.steps:,} steps"
            yield wrong(topic, seen, "a run stops at the first one", "mend the environment")
            continue
        beyond = part.beyond()
        seen = f"{part.name} leaves its space by {100 * beyond:.1f} % of its range"
        if beyond > 0.01 and isinstance(part.space, Box):
            means = "what scales or clips by the bounds loses it; the scripts for vectors do not"
            yield note(topic, seen, means, "declare wider bounds")
        elif beyond > 0 and not isinstance(part.space, Box):
            means = "one-hot vectors cannot show it: the run stops, or the agent is blind"
            yield wrong(topic, seen, means, "declare the numbers that occur")
    if not normalizes:
        yield from check_sizes(play)
    yield from check_precision(play)
    yield from check_ends(play)
    if play.overwritten:
        seen = f"{play.overwritten} of {min(play.steps, CAREFUL_STEPS):,} observations were "
        seen += "changed by the next step: the same arrays are returned again"
        means = "harmless here, as the scripts copy; lists of observations elsewhere are wrong"
        yield note(topic, seen, means, "return copies")
    yield from check_constants(play)


def check_sizes(play):
    """Numbers too large or too small for networks."""
    odd = []
    for part in play.parts.values():
        is_vector = isinstance(part.space, Box) and not is_image(part.space)
        if is_vector and part.low is not None and part.is_finite():
            largest = part.largest()
            if largest > 1000 or 0 < largest < 1e-3:
                odd.append(f"{part.name} is up to {largest:.3g} in size")
    if odd:
        means = "the script that fits does not scale them: learning fails without an error"
        advice = "use Scaled-v0 of docs/guides/scaled.py, or ppo_continuous.py for Box actions"
        yield note("observations", "; ".join(odd), means, advice)


def check_constants(play):
    topic = "observations"
    parts = [part for part in play.parts.values() if part.low is not None]
    total = sum(np.size(part.low) for part in parts)
    constant = sum(np.sum(part.low == part.high) for part in parts)
    numeric = [part for part in parts if not is_image(part.space) and np.size(part.low)]
    share = 100 * constant / max(total, 1)
    if total and constant == total:
        seen = f"all {total} numbers are the same in {play.steps:,} steps"
        yield wrong(topic, seen, "the agent sees nothing", "look at what reset and step return")
    elif len(numeric) == len(parts) and share >= 50 and total > 2:
        seen = f"{constant} of {total} numbers never change in {play.steps:,} steps"
        means = "they teach nothing; where they change later, normalised ones jump to -10 or 10"
        yield note(topic, seen, means, "leave them out (gymnasium.wrappers.FilterObservation)")
    seen = f"{total:,} numbers"
    if numeric:
        low = min(np.min(part.low) for part in numeric)
        high = max(np.max(part.high) for part in numeric)
        seen += f", {number(low)} to {number(high)}"
    yield fact(topic, f"{seen}; {share:.0f} % never change")


def check_kinds(part):
    """Shape and dtype as they are declared."""
    shapes = {shape for shape, _ in part.kinds}
    if shapes != {part.space.shape}:
        seen = f"{part.name} has shapes {sorted(shapes)}, declared is {part.space.shape}"
        advice = "declare what is returned"
        sizes = {int(np.prod(shape)) for shape in shapes}
        flattened = part.name != "obs" and sizes == {int(np.prod(part.space.shape))}
        if flattened:
            means = "harmless here, as the scripts flatten them; other libraries may stop"
            yield note("observations", seen, means, advice)
        else:
            yield wrong("observations", seen, "a run stops at the first one", advice)
    dtypes = {dtype for _, dtype in part.kinds}
    if not isinstance(part.space, Box) or dtypes == {part.space.dtype}:
        return
    names = ", ".join(sorted(str(dtype) for dtype in dtypes))
    seen = f"{part.name} is {names}, declared is {part.space.dtype}"
    truncates = part.space.dtype.kind in "iu" and any(dtype.kind == "f" for dtype in dtypes)
    if truncates:
        means = "the scripts store what is declared: fractions are cut off"
        yield wrong("observations", seen, means, "declare what is returned")
    else:
        means = "harmless here, as the scripts convert; other libraries may not"
        yield note("observations", seen, means, "return what is declared, with astype")


def check_precision(play):
    """Large constants, such as seconds since 1970: float32 rounds what varies away."""
    samples = [vector for _, _, vector in play.samples]
    if not samples or not has_right_shapes(play):
        return
    vectors = np.array(samples, np.float64)
    largest = np.abs(vectors).max(axis=0)
    spacing = np.spacing(largest.astype(np.float32)).astype(np.float64)
    spread = vectors.std(axis=0)
    lost = (largest > 100) & (spread > 0) & (spacing > 0.05 * spread)
    if lost.any():
        worst = np.argmax(np.where(lost, largest, 0))
        seen = f"{lost.sum()} numbers are large and vary little: one is about {largest[worst]:.6g},"
        seen += f" varies by {spread[worst]:.2g}, and float32 has steps of {spacing[worst]:.2g}"
        means = "most scripts store float32: they see noise (ppo_continuous.py subtracts the mean)"
        yield wrong("observations", seen, means, "subtract a constant in the environment")


def check_ends(play):
    """Last observations that have only zeros."""
    cut = [episode for episode in play.episodes if episode.truncated]
    ended = [episode for episode in play.episodes if not episode.truncated]
    zeros = sum(episode.zeros for episode in play.episodes)
    size = sum(gym.spaces.flatdim(part.space) for part in play.parts.values())
    often = play.zero_obs - zeros > play.steps / 10  # elsewhere too
    if often or size < 2:
        return
    advice = "return the true last observation"
    if len(cut) >= 3 and all(episode.zeros for episode in cut):
        seen = f"where a time limit cuts episodes, the last one has only zeros ({len(cut)} times)"
        means = "the value of what comes after is that of zeros, so learners learn wrong values"
        yield wrong("last obs", seen, means, advice)
    if len(ended) >= 3 and all(episode.zeros for episode in ended):
        seen = f"where episodes end, the last one has only zeros ({len(ended)} times)"
        yield note("last obs", seen, "harmless: no learner looks at it", advice)


def check_rewards(play, normalizes):
    topic = "rewards"
    rewards = np.array(play.rewards)
    kinds = sorted(f"{name}{shape or ''}" for name, shape in play.reward_kinds)
    finite = np.isfinite(rewards)
    if not finite.all():
        seen = f"{np.sum(~finite):,} of {play.steps:,} are NaN, infinite or no numbers"
        yield wrong(topic, seen, "a run stops at the first one", "mend the environment")
    if any(shape for _, shape in play.reward_kinds):
        seen = f"arrays: {', '.join(kinds)}"
        means = "the scripts add them up; other libraries stop"
        yield note(topic, seen, means, "return a float, with the weights that you want")
    rewards = rewards[finite]
    if not len(rewards):
        return
    largest = np.abs(rewards).max()
    zeros = np.mean(rewards == 0)
    if not normalizes and (largest > 1000 or 0 < largest < 1e-3):
        means = "the script that fits does not scale them: learning fails without an error"
        advice = "use Scaled-v0 of docs/guides/scaled.py"
        yield note(topic, f"they are up to {largest:.3g} in size", means, advice)
    if largest == 0 and play.steps >= ENOUGH_STEPS:
        seen = f"all are 0 in {play.steps:,} random steps"
        means = "exploration by noise meets no reward: nothing is learned"
        yield note(topic, seen, means, "reward parts of the task, or begin nearer to the goal")
    seen = f"{number(rewards.min())} to {number(rewards.max())} ({', '.join(kinds)})"
    yield fact(topic, f"{seen}; {100 * zeros:.0f} % are 0")


def check_infos(play):
    topic = "infos"
    ragged = sorted(str(key) for key, shapes in play.info_shapes.items() if len(shapes) > 1)
    if ragged:
        seen = f"{', '.join(ragged)}: the shape changes from step to step"
        means = "harmless here; vector environments of other libraries cannot stack them"
        yield note(topic, seen, means, "pad them, or leave them out")
    if play.reused_infos:
        seen = f"the same dict is returned again ({play.reused_infos:,} times)"
        means = "harmless here; what else keeps infos sees only the last one"
        yield note(topic, seen, means, "return a new dict")
    if "statistics" in play.info_shapes:
        means = "in the last info of an episode, a run puts its own there"
        yield note(topic, 'they have the key "statistics"', means, "give it another name")
    keys = sorted(map(str, play.info_shapes))
    seen = f"{len(keys)} keys: {', '.join(keys)}" if keys else "no keys"
    if "is_success" in keys:
        seen += " (is_success is logged as charts/success_rate)"
    yield fact(topic, f"{seen:.150}")


def check_actions(play):
    topic = "actions"
    if play.changed_actions:
        seen = f"step wrote into {play.changed_actions:,} of "
        seen += f"{min(play.steps, CAREFUL_STEPS):,} actions"
        means = "harmless here, as they are copies; elsewhere the agent learns from other actions"
        yield note(topic, seen, means, "copy the action in step")
    for name in sorted(play.replaced):
        means = "the networks fit the space from before reset: wrong actions, or an error"
        yield wrong(topic, f"reset changes {name}", means, "declare the final one in __init__")
    space = play.action_space
    if isinstance(space, Box):
        yield from check_bounds(space)
    yield fact(topic, " ".join(str(space).split())[:80])


def check_bounds(space):
    topic = "actions"
    if not space.is_bounded():
        seen = f"bounds are infinite: {' '.join(str(space).split())}"
        means = "ddpg, td3, sac, tqc and crossq refuse them; ppo_continuous.py explores with std 1"
        yield note(topic, seen, means, "declare finite bounds if you know them")
        return
    low, high = bounds_of(space)
    width = high - low
    outside = (low > 0) | (high < 0)
    if (width > 100).any() or (width < 0.02).any() or outside.any():
        seen = f"ranges are {number(width.min())} to {number(width.max())} wide, "
        seen += f"from {number(low.min())} to {number(high.max())}"
        means = "ppo_continuous.py begins with mean 0 and std 1: it tries a corner, or the ends"
        advice = "sac.py scales actions itself; else gymnasium.wrappers.RescaleAction(env, -1, 1)"
        yield note(topic, seen, means, advice)


def check_memory(play):
    steps, sizes = np.array(play.memory).T
    later = len(steps) // 2
    growth = np.diff(sizes[later:])
    grown = sizes[-1] - sizes[later]
    million = grown / max(steps[-1] - steps[later], 1) * 1e6
    steady = len(growth) >= 2 and np.mean(growth > 0) > 0.7 and grown > 4e6
    if steady and million > 2e9:
        seen = f"the process grew by {grown / 1e6:.0f} MB in {steps[-1] - steps[later]:,} steps"
        means = f"a run of a million steps would take {million / 1e9:.0f} GB and be killed"
        yield note("memory", seen, means, "find what keeps growing; --resume auto after a kill")
    yield fact("memory", f"{grown / 1e6:+.1f} MB in the last {steps[-1] - steps[later]:,} steps")


def check_speed(play):
    resets = 1000 * np.mean(play.reset_times)
    per_second = number(play.steps_per_second())
    yield fact("speed", f"{per_second} steps per second, {number(resets)} ms per reset")


def seed_everything(seed):
    """The generators that all code of a process shares."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def shared_generators():
    _, keys, position, *_ = np.random.get_state()
    return {
        "random": random.getstate(),
        "np.random": (keys.tobytes(), position),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def row_of(space, obs, *others):
    """What a step returned, as something to compare."""
    return content(space, obs), repr(others)


def rows(env, seed, steps):
    """Yields what resets (None) and steps return, `steps` of them, as things to compare.

    Every episode has the same actions. Half-way, and where one ends, there is a reset.
    """
    space = copy.deepcopy(env.action_space)
    over = True
    for step in range(steps):
        if over or step == steps // 2:
            obs, info = env.reset(seed=seed if step == 0 else None)
            space.seed(0)
            over = False
            yield content(env.observation_space, obs), None
        else:
            action = sample_action(space, find_mask(env, obs, info))
            obs, reward, terminated, truncated, info = env.step(action)
            over = bool(terminated or truncated)
            yield row_of(env.observation_space, obs, reward, terminated, truncated)


def first_difference(found, expected):
    """(step, episode) where two plays differ; None where they do not."""
    episode = -1
    for step, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        episode += theirs[1] is None
        if mine != theirs:
            return step, episode
    return None


def has_one_game(found):
    """Do all episodes go alike, as long as they last?"""
    episodes = []
    for row in found:
        if row[1] is None:
            episodes.append([])
        episodes[-1].append(row)
    first = episodes[0]
    for other in episodes[1:]:
        length = min(len(first), len(other))
        if first[:length] != other[:length]:
            return False
    return True


def check_seeds(game, steps, resets):
    """Same seed, same episodes; another seed, others; no generators that others use too."""
    seed_everything(1)
    before = shared_generators()
    first = list(rows(game.fresh(), 1, steps))
    after = shared_generators()
    seed_everything(2)
    second = list(rows(game.fresh(), 1, steps))
    again = shared_generators()
    third = list(rows(game.env, 1, steps))
    used = [name for name in before if before[name] != after[name]]
    reseeded = [name for name in used if after[name] == again[name]]
    yield from check_shared(used, reseeded)

    where = first_difference(second, first)
    if where is not None:
        seed_everything(1)
        repeats = list(rows(game.fresh(), 1, steps)) == first
        yield from check_repeats(where, repeats, used)
        return
    game.reference = first
    if first_difference(third, first) is not None or resets_remember(game.env, resets):
        seen = "reset(seed=...) gives other episodes, depending on what was played before it"
        means = "runs repeat, as they seed new instances once; reset(seed=...) later does not"
        yield note("seeds", seen, means, "make a new instance where a seed must repeat an episode")
    others = [list(rows(game.fresh(), seed, steps)) for seed in (2, 3)]
    seen = f"seed 1 gave the same {steps} steps twice"
    if any(other != first for other in others):
        yield fact("seeds", f"{seen}, seeds 2 and 3 gave others")
    elif has_one_game(first):
        yield fact("seeds", f"{seen}, and so did seeds 2 and 3: all episodes are alike")
    else:
        yield wrong(
            "seeds",
            f"new instances with seeds 1, 2 and 3 gave the same {steps} steps",
            "parallel environments play the same episodes, and a loop over seeds repeats one run",
            "pass the seed on to what draws random numbers: super().reset(seed=seed)",
        )


def resets_remember(env, count):
    """Are the first observations of some seeds others when the seeds come in another order?"""
    found = []
    seeds = list(range(count))
    for order in (seeds, seeds[::-1]):
        first = {}
        for seed in order:
            obs, info = env.reset(seed=seed)
            first[seed] = content(env.observation_space, obs)
            list(random_steps(env, obs, info, 5))
        found.append(first)
    return found[0] != found[1]


def check_shared(used, reseeded):
    """Generators that the scripts draw from too."""
    for name in used:
        seen = f"it draws from {name}, which all code shares"
        means = "its episodes hang on what else draws there, and evaluations on training"
        if name in reseeded:
            seen = f"reset(seed=...) seeds {name}, which all code shares"
            means = "the agent's exploration begins again with each reset: noise repeats itself"
        line = wrong if name in reseeded else note
        yield line("random", seen, means, "draw from self.np_random, which reset(seed=...) seeds")


def check_repeats(where, repeats, used):
    """What it is that seeds do not decide."""
    step, episode = where
    if repeats and used:
        yield note(
            "seeds",
            f"seed 1 gave other episodes from step {step} on, unless {used[0]} was seeded too",
            "runs repeat, as they seed that too; their evaluations and environments share it",
            "draw from self.np_random, which reset(seed=...) seeds",
        )
    elif episode == 0:
        yield wrong(
            "seeds",
            f"seed 1 gave another episode the second time, from step {step} on",
            "no run can be repeated, and --seed decides less than it seems to",
            "pass the seed on to what draws random numbers: super().reset(seed=seed)",
        )
    else:
        yield wrong(
            "seeds",
            f"seed 1 gave the same first episode twice, but other ones after it (step {step})",
            "no run can be repeated: reset() without a seed must go on with the seeded generator",
            "wrap it as Seeded-v0 of docs/guides/my_envs.py",
        )


def check_instances(game, steps):
    """Does a second instance disturb the first?"""
    topic = "instances"
    seed_everything(1)
    one = rows(game.fresh(), 1, steps)
    found = list(itertools.islice(one, steps // 3))
    try:
        other = game.make()
    except (Exception, SystemExit) as error:
        game.needs_processes = True
        seen = f"there can be only one in a process: {error!r:.200}"
        means = "several environments, and --eval-every, fail without processes of their own"
        yield note(topic, seen, means, "--async-envs, or --num-envs 1")
        return
    error = ""
    try:
        for row, _ in zip(itertools.islice(one, steps // 3), rows(other, 2, steps), strict=False):
            found.append(row)
        yield from check_close(other)
        found += one
    except Exception as raised:
        error = f": {raised!r:.200}"
    if game.reference is None:
        yield fact(topic, "not compared: episodes do not repeat")
    elif error or first_difference(found, game.reference) is not None:
        game.needs_processes = True
        seen = f"an episode goes on otherwise while a second instance is made and played{error}"
        means = "the environments of a run, and those of its evaluations, disturb each other"
        yield wrong(topic, seen, means, "--async-envs: each in a process of its own")
    else:
        yield fact(topic, "two instances do not disturb each other")


def check_close(env):
    try:
        env.close()
    except (Exception, SystemExit) as error:
        means = "a run says so and goes on; windows or processes may stay behind"
        yield note("close", f"close() fails: {error!r:.200}", means, "mend it if it is yours")


def check_pickle(game):
    """Can --resume go on in the middle of an episode?"""
    env = game.fresh()
    first = env.reset(seed=1)
    try:
        saved = cloudpickle.dumps((env, vars(env.unwrapped)))
        restored, attributes = pickle.loads(saved)
        vars(restored.unwrapped).update(attributes)
        space = env.observation_space
        steps = [row_of(space, *step) for step in random_steps(env, *first, 5)]
        copied = [row_of(space, *step) for step in random_steps(restored, *first, 5)]
    except Exception as error:
        why = f"cannot be pickled ({type(error).__name__})"
    else:
        why = "pickles" if copied == steps else "pickles, but the copy goes on otherwise"
    own = type(env.unwrapped).__module__.startswith("gymnasium.")
    if why == "pickles" and own:
        yield fact("resume", "pickles: a resumed run goes on in mid-episode")
        return
    if why == "pickles":
        why += ", but runs save only gymnasium's own"
    yield fact("resume", f"{why}: a resumed run begins new episodes")


def check_render(game, play):
    topic = "video"
    modes = play.env.metadata.get("render_modes", [])
    if "rgb_array" not in modes:
        yield fact(topic, f"no render mode rgb_array (but {modes}): --capture-video has nothing")
        return
    means = "--capture-video writes no video; training is the same"
    frames = []
    try:
        env = game.fresh(render_mode="rgb_array")
        steps = random_steps(env, *env.reset(seed=1), 10)
        begin = time.perf_counter()
        frames.append(env.render())
        for _ in steps:
            frames.append(env.render())
    except (Exception, SystemExit) as error:
        if os.environ.get("MUJOCO_GL") == "disabled":
            yield fact(topic, "not tried: no OpenGL here (apt-get install libegl1 libgl1)")
        else:
            seen = f"frame {len(frames) + 1} fails: {error!r:.200}"
            advice = "mend render (has it a display?), or leave --capture-video out"
            yield note(topic, seen, means, advice)
        return
    shapes = sorted({np.shape(frame) for frame in frames})
    dtypes = sorted({str(np.asarray(frame).dtype) for frame in frames})
    seen = f"frames of shape {', '.join(map(str, shapes))}, {', '.join(dtypes)}"
    colours = len(shapes) == 1 and len(shapes[0]) == 3 and shapes[0][2] == 3
    if not colours or dtypes != ["uint8"]:
        yield note(topic, seen, means, "return (height, width, 3) in uint8, always of one size")
    else:
        each = (time.perf_counter() - begin) / len(frames)
        yield fact(topic, f"{seen}, {number(1000 * each)} ms each")
    try:
        with suppress(Exception):  # check_close says so
            env.close()
    except SystemExit:
        means = "a program that closes it after rendering stops there, without a word"
        yield note("close", "close() ends the program", means, "take quit() out of close()")


# === the script that fits
def choose_script(env, play):
    """(script, why), as the README's "Which script for my problem?"; script None: none fits."""
    space = play.obs_space
    actions = play.action_space
    per_second = play.steps_per_second()
    speed = f"{number(per_second)} steps per second"
    slow = per_second < 1000
    names = set(space) if isinstance(space, Dict) else set()
    parts = space.values() if names else [space]
    in_bytes = [part for part in parts if part.dtype == np.uint8 and len(part.shape) in (2, 3)]
    has_image = len(in_bytes) == 1 and is_image(in_bytes[0])
    discrete = isinstance(actions, Discrete)
    vector = isinstance(actions, Box) and actions.dtype.kind == "f" and len(actions.shape) == 1
    if env.spec.entry_point == "ale_py.env:AtariEnv" and has_image:
        return "ppo_atari", "an Atari game"
    if {"agents", "state"} <= names and isinstance(actions, MultiDiscrete):
        return "ppo_multiagent", "a team"
    if {"achieved_goal", "desired_goal"} <= names and vector and actions.is_bounded():
        return "sac_her", "goals"
    if names == {"state", "privileged_state"} and vector:
        return "ppo_continuous_asymmetric", "a state that only the critic may see"
    if has_image and (discrete or vector or isinstance(actions, MultiDiscrete)):
        return "ppo_image", "images"
    if isinstance(space, Tuple) and isinstance(actions, Tuple):
        return None, "Tuples, as of a team: see Team-v0 in docs/guides/my_envs.py (ppo_multiagent)"
    try:
        utils.flatten(env)
    except SystemExit:
        return None, "the observations are not a few numbers (at most 2,000), nor one image"
    if isinstance(actions, MultiDiscrete | MultiBinary):
        return "ppo_masked", "several choices at once"
    if discrete and play.has_mask:
        return "ppo_masked", "a mask of valid actions"
    if discrete and slow:
        return "sac_discrete", f"Discrete actions, only {speed}"
    if discrete:
        return "ppo", f"Discrete actions, {speed}"
    if vector and slow and actions.is_bounded():
        return "sac", f"Box actions, only {speed}"
    if vector:
        return "ppo_continuous", f"Box actions, {speed}"
    if isinstance(actions, Tuple | Dict):
        return "ppo_hybrid", "choices and numbers in one action"
    return None, f"no script has actions like {' '.join(str(actions).split())}"


def command_for(game, script, play):
    """The script with the flags that fit, to paste into a shell."""
    args = game.args
    words = ["python", "-m", f"cleanrl_lite.{script}", "--env-id", args.env_id]
    if args.env_kwargs != "{}":
        words += ["--env-kwargs", args.env_kwargs]
    limit = args.max_episode_steps
    if not play.episodes and not play.limit and play.steps >= ENOUGH_STEPS:
        limit = limit or LIMIT
    if limit and script != "ppo_atari":
        words += ["--max-episode-steps", str(limit)]
    if game.needs_processes:
        words += ["--async-envs"]
    return shlex.join(words)


HINTS = {
    "ppo": "If the agent sees only a part of the state: ppo_lstm.",
    "sac_discrete": "If the agent sees only a part of the state: ppo_lstm.",
    "ppo_continuous": "If the agent sees only a part of the state: ppo_continuous_lstm.",
    "sac": "If the agent sees only a part of the state: ppo_continuous_lstm.",
    "ppo_atari": "If single frames must do: ppo_atari_lstm.",
    "ppo_masked": "If two players take turns: ppo_selfplay.",
}


def guarded(check):
    """The lines of a check. An error in it has its traceback, and the other checks go on."""
    try:
        yield from check
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        seen = f"{check.__name__} ends with {error!r:.200}"
        means = "the environment fails when it is made or played once more: so may a run"
        yield wrong("again", seen, means, "see the traceback")


def main(args: Args):
    """Prints the lines as they come; returns what --json writes."""
    utils.check(args.seconds > 0, f"--seconds must be positive, got {args.seconds}")
    with suppress(ImportError):
        import ale_py

        gym.register_envs(ale_py)
    game = Game(args)
    env = game.fresh()
    spaces = f"{env.observation_space}, {env.action_space}"
    print(f"{args.env_id}\n" + wrapped("  ", " ".join(spaces.split())[:400]) + "\n", flush=True)
    play = Play(env, args.seconds / 2)  # an error in it ends all, with its traceback
    script, why = choose_script(env, play)
    normalizes = str(script).startswith(("ppo_continuous", "ppo_atari"))
    # how much of the time each of the plays that are compared may take
    share = args.seconds / 40
    steps = int(np.clip(play.steps_per_second() * share, 6, 300))
    resets = int(np.clip(share / np.mean(play.reset_times), 2, 20))
    lines = []
    for check in (
        check_time_limit(game, play),
        check_observations(play, normalizes),
        check_rewards(play, normalizes),
        check_infos(play),
        check_actions(play),
        check_memory(play),
        check_speed(play),
        check_with_gymnasium(game, play, args.seconds),
        check_seeds(game, steps, resets),
        check_instances(game, steps),
        check_pickle(game),
        check_render(game, play),
    ):
        for line in guarded(check):
            print(line, flush=True)
            lines.append(line)
    if script is None:
        advice = "wrap it: docs/guides/environments.md"
        lines.append(wrong("script", why, "no script takes the environment as it is", advice))
        print(lines[-1])
    states = [line.state for line in lines]
    command = command_for(game, script, play) if script else None
    game.close()
    found = f"{states.count('WRONG')} wrong, {states.count('note')} to note"
    print(f"\n{found} in {play.steps:,} random steps.")
    if command:
        text = f"{script}, for {why}. {HINTS.get(script, '')}"
        print(wrapped("Script: ", text) + f"\n  {command}")
    record = {
        "env_id": args.env_id,
        "env_kwargs": args.env_kwargs,
        "wrong": states.count("WRONG"),
        "notes": states.count("note"),
        "lines": [asdict(line) for line in lines],
        "script": script,
        "command": command,
        "steps": play.steps,
        "steps_per_second": play.steps_per_second(),
        "reset_seconds": float(np.mean(play.reset_times)),
        "gymnasium": gym.__version__,
    }
    if args.json:
        args.json.write_text(json.dumps(record, indent=2))
    return record


if __name__ == "__main__":
    raise SystemExit(bool(main(tyro.cli(Args, description=__doc__))["wrong"]))
