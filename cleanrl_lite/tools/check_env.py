"""Plays an environment with random actions and says what would spoil training.

    python -m cleanrl_lite.tools.check_env CartPole-v1
    python -m cleanrl_lite.tools.check_env my_env:Line-v0 --seconds 60 --json found.json

Lines without a mark are facts. "note" marks what to know, "WRONG" what makes results wrong; then
the exit status is 1. The last lines name the script that fits. Guide: docs/guides/check_env.md.
"""

import copy
import importlib
import itertools
import json
import shlex
import textwrap
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path

import gymnasium as gym
import numpy as np
import tyro
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from cleanrl_lite import utils

MOST_STEPS = 100_000  # of the long play
MOST_BYTES = 5e8  # of the observations that are kept
ENOUGH_STEPS = 20_000  # what did not happen in so many is told
LIMIT = 1_000  # the time limit that is proposed where there is none
SLOW = 1_000  # steps a second, below which a script is chosen that learns from fewer
SCALING = "ppo_continuous", "ppo_atari"  # observations and rewards
UNSCALED = "the script that fits does not scale that: use Scaled-v0 of docs/guides/scaled.py"
NOTE, WRONG = "note", "WRONG"


@dataclass
class Args:
    env_id: tyro.conf.Positional[str]  # environment, or module:environment
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    seconds: float = 20.0  # how long to play
    json: Path | None = None  # also write what was found to this file


# === what is seen
@dataclass
class Seen:
    """What random actions met; nothing here is a judgement."""

    obs_space: gym.Space
    action_space: gym.Space
    spec: object  # its max_episode_steps is the limit as registered, or as asked for
    steps: int = 0
    seconds: float = 0.0  # of the long play
    reset_seconds: list = field(default_factory=list)
    episodes: list = field(default_factory=list)  # (length, terminated, truncated)
    obs: dict = field(default_factory=dict)  # {part: [(space, step, array)]}
    rewards: list = field(default_factory=list)
    has_mask: bool = False
    plays: dict = field(default_factory=dict)  # {which: rows}
    failed: dict = field(default_factory=dict)  # {experiment: error, or that there was no time}
    refused: str = ""  # what the script that fits says against it


def is_image(space):
    """Not a board or a map: those have fewer than 32 rows, or other numbers than 0 to 255."""
    in_bytes = isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)
    return in_bytes and sorted(space.shape)[-2] >= 32 and space.high.max() == 255


def parts_of(space, value, name="obs"):
    """(name, space, value) of each part of an observation."""
    if isinstance(space, Dict | Tuple):
        for key, part in space.items() if isinstance(space, Dict) else enumerate(space):
            yield from parts_of(part, value[key], f"{name}[{key!r}]")
    else:
        yield name, space, value


def content(space, obs):
    """An observation, to compare it."""
    return [p.tobytes() if isinstance(p, np.ndarray) else repr(p) for *_, p in parts_of(space, obs)]


def find_mask(env, obs, info):
    """Which actions are valid, where ppo_masked.py would find it; None where nothing says so."""
    if "action_mask" in info:
        return info["action_mask"]
    if env.has_wrapper_attr("action_masks"):
        return env.get_wrapper_attr("action_masks")()
    return obs.get("action_mask") if isinstance(obs, dict) else None


def sample_action(space, mask):
    """A random action; a valid one where there is a mask."""
    if mask is None or not isinstance(space, Discrete | MultiDiscrete):
        return space.sample()
    flat = np.concatenate([np.ravel(part) for part in mask]) if np.ndim(mask[0]) else mask
    sizes = [space.n] if isinstance(space, Discrete) else space.nvec.ravel()
    parts = np.split(np.asarray(flat), np.cumsum(sizes)[:-1])
    chosen = [space.np_random.choice(np.flatnonzero(part)) for part in parts]
    return np.reshape(chosen, space.shape).astype(space.dtype)[()] + space.start


def close(env):
    with suppress(Exception):  # a run does not end by it
        env.close()


def watch(make, seconds):
    """Plays the environments that `make` gives, for about so long, and returns what was Seen."""
    begin = time.perf_counter()
    env = make()
    seen = Seen(*copy.deepcopy((env.observation_space, env.action_space)), env.spec)
    play(env, seen, seconds / 2)  # an error in it ends all
    close(env)
    resets = np.mean(seen.reset_seconds)
    steps = int(np.clip((seconds / 20 - 8 * resets) * seen.steps / seen.seconds, 8, 400))
    for experiment in (repeat, play_two):
        try:
            soon = time.perf_counter() + 25 * resets < begin + 2 * seconds
            utils.check(soon, "no time left, give it more --seconds")
            experiment(make, seen, steps)
        except (Exception, SystemExit) as error:
            seen.failed[experiment.__name__] = f"{error!r:.200}"
    return seen


def play(env, seen, seconds):
    """The long play. Of images, some are kept; of other observations all."""
    begin = time.perf_counter()
    seen.action_space.seed(0)
    kept, over = 0, True
    while seen.steps < MOST_STEPS and kept < MOST_BYTES and seen.seconds < seconds:
        if over:
            start = time.perf_counter()
            obs, info = env.reset(seed=None if seen.steps else 0)
            seen.reset_seconds.append(time.perf_counter() - start)
            length, over = 0, False
        else:
            mask = find_mask(env, obs, info)
            seen.has_mask |= mask is not None
            obs, reward, *ends, info = env.step(sample_action(seen.action_space, mask))
            seen.steps += 1
            seen.rewards.append(copy.copy(reward))
            length, over = length + 1, any(map(bool, ends))
        for name, space, value in parts_of(seen.obs_space, obs):
            numeric = isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary)  # not Text
            if numeric and (over or not is_image(space) or length < 96 or length % 32 == 0):
                seen.obs.setdefault(name, []).append((space, length, np.array(value)))
                kept += np.asarray(value).nbytes + 200
        if over:
            seen.episodes.append((length, *map(bool, ends)))
        seen.seconds = time.perf_counter() - begin


# === experiments
def rows(env, seed, steps):
    """What resets and steps return, to compare: several episodes with the same actions."""
    space = copy.deepcopy(env.action_space)
    over = True
    for step in range(steps):
        if over or step % max(steps // 4, 1) == 0:
            obs, info = env.reset(seed=None if step else seed)  # the first one is seeded
            space.seed(0)
            over = False
            yield content(env.observation_space, obs), None
        else:
            action = sample_action(space, find_mask(env, obs, info))
            obs, reward, terminated, truncated, info = env.step(action)
            over = bool(terminated or truncated)
            yield content(env.observation_space, obs), repr((reward, terminated, truncated))


def repeat(make, seen, steps):
    """Plays of these seeds, and of the generators that all code of a process shares."""
    plays = {"first": (1, 1), "again": (1, 2), "alike": (1, 1), "two": (2, 1), "three": (3, 1)}
    for name, (seed, shared) in plays.items():
        utils.seed_all(shared)
        env = make()
        seen.plays[name] = list(rows(env, seed, steps))
        close(env)


def play_two(make, seen, steps):
    """The first play again, while a second instance plays, too."""
    utils.seed_all(1)
    env, second = make(), make()
    pairs = zip(rows(env, 1, steps), rows(second, 2, steps), strict=True)
    seen.plays["beside another"] = [row for row, _ in pairs]
    close(env)
    close(second)


# === checks: of what was Seen, each yields (mark, what was seen, what to do); facts have no mark
def check_time_limit(seen):
    limit = seen.spec.max_episode_steps
    count, lengths = len(seen.episodes), [length for length, *_ in seen.episodes] or [0]
    if not seen.episodes and not limit and seen.steps >= ENOUGH_STEPS:
        advice = f"no return is logged, evaluations take long: --max-episode-steps {LIMIT}"
        yield NOTE, f"no episode ended in {seen.steps:,} steps, there is no time limit", advice
    longest = max(lengths)
    last = [terminated for length, terminated, _ in seen.episodes if length == longest]
    # by chance few episodes have the largest length, and nearly as many the next smaller one
    shorter = max((length for length in lengths if length < longest), default=0)
    enough = 3 if shorter == 0 and longest >= 20 else 5
    piled = longest >= 5 and sum(last) >= max(enough, 5 * lengths.count(shorter) + 1)
    if piled and sum(last) > len(last) / 2 and not tells_time(seen, longest):
        text = f"terminated in {len(last)} of {count} episodes, after exactly {longest} steps"
        advice = "learners take the value of what follows as 0: at a time limit, truncate only"
        yield WRONG, text + ": probably a time limit reported as the task's end", advice
    yield "", f"{count:,} episodes of {min(lengths):,} to {longest:,} steps; limit: {limit}", ""


def tells_time(seen, length):
    """Do numbers that are the same in all episodes change again and again, to the end?"""
    for records in seen.obs.values():
        moments = {}
        for space, step, array in records:
            if step < length and array.shape == space.shape:
                moments.setdefault(step, []).append(array.ravel())
        same = np.all([np.all(np.equal(found, found[0]), 0) for found in moments.values()], 0)
        looks = [moments[step][0][same].tobytes() for step in sorted(moments)]
        if len(set(looks)) >= 5 and len(set(looks[3 * len(looks) // 4 :])) > 1:
            return True
    return False


def holds(dtype, array):
    """Can this type have these numbers? Rounding of floats does not count."""
    if array.dtype == dtype or array.dtype.kind not in "biuf":
        return array.dtype == dtype
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        return np.array_equal(cast, array) or (dtype.kind == "f" and np.isfinite(cast).all())


def check_observations(seen):
    numbers = constant = 0
    scales = str(choose_script(seen)[0]).startswith(SCALING)
    for name, records in seen.obs.items():
        space = records[0][0]
        arrays = [array for *_, array in records]
        shapes = sorted({array.shape for array in arrays})
        misfits = [str(array) for array in arrays if not holds(space.dtype, array)]
        finite = [array for array in arrays if array.dtype.kind != "f" or np.isfinite(array).all()]
        advice = "a run stops, or sees other numbers: declare what is returned"
        if len(finite) < len(arrays):
            yield WRONG, f"{name} is not finite somewhere", "a run stops: mend the environment"
        if misfits:
            yield WRONG, f"{name} is {misfits[0]:.60}, declared is {space.dtype}", advice
        elif shapes != [space.shape]:
            yield WRONG, f"{name} has shapes {shapes}, declared is {space.shape}", advice
        elif finite and finite[0].size:
            low, high = (1.0 * reduce(best, finite) for best in (np.minimum, np.maximum))
            numbers += low.size
            constant += np.sum(low == high)
            yield from check_numbers(name, space, low, high, scales)
    if numbers and constant == numbers:
        yield WRONG, f"all {numbers} numbers are the same in all steps", "the agent sees nothing"
    yield "", f"{numbers:,} numbers, of which {constant:,} never change", ""


def check_numbers(name, space, low, high, scales):
    if not isinstance(space, Box):
        if not all(space.contains(array.astype(space.dtype)) for array in (low, high)):
            yield WRONG, f"{name} leaves {space}: {low} to {high}", "declare what occurs"
        return
    span = np.subtract(space.high, space.low, dtype=float)
    span = np.where(np.isfinite(span) & (span > 0), span, 1.0)
    beyond = 100 * np.max(np.maximum(space.low - low, high - space.high) / span)
    if beyond > 1:
        yield NOTE, f"{name} leaves its space by {beyond:.1f} %", "declare wider bounds"
    size = np.maximum(abs(low), abs(high))
    if not scales and not is_image(space) and not 1e-3 <= size.max() <= 1000 and size.any():
        yield NOTE, f"{name} is up to {size.max():.3g} in size", UNSCALED


def check_rewards(seen):
    arrays = [np.asarray(reward) for reward in seen.rewards]
    rewards = np.array([a.sum() if a.dtype.kind in "biuf" else np.nan for a in arrays], float)
    bad = np.sum(~np.isfinite(rewards))
    if bad:
        yield WRONG, f"{bad:,} of {seen.steps:,} are NaN, infinite or no numbers", "a run stops"
        return
    largest = np.abs(rewards).max()
    scales = str(choose_script(seen)[0]).startswith(SCALING)
    if not scales and (largest > 1000 or 0 < largest < 1e-3):
        yield NOTE, f"they are up to {largest:.3g} in size", UNSCALED
    if largest == 0 and seen.steps >= ENOUGH_STEPS:
        advice = "nothing is learned: reward parts of the task, or begin near the goal"
        yield NOTE, f"all are 0 in {seen.steps:,} random steps", advice
    yield "", f"{rewards.min():.4g} to {rewards.max():.4g}, mean {rewards.mean():.4g}", ""


def check_actions(seen):
    space = seen.action_space
    if isinstance(space, Box):
        width = space.high - 1.0 * space.low
        if width.max() > 100 or width.min() < 0.02 or np.any((space.low > 0) | (space.high < 0)):
            advice = "ppo_continuous.py begins with mean 0 and std 1: wrap it in RescaleAction"
            yield NOTE, f"bounds are {space.low.min()} to {space.high.max()}", advice


def check_seeds(seen):
    if "three" not in seen.plays:
        return
    first, second, third = (seen.plays[name] for name in ("first", "two", "three"))
    found = [episodes_of(play) for play in (first, second, third)]
    if seen.plays["again"] != first and seen.plays["alike"] == first:
        advice = "runs and evaluations disturb each other: use self.np_random"
        yield NOTE, "it draws from random, np.random or torch, which all code shares", advice
    elif seen.plays["again"] != first:
        advice = "no run can be repeated: draw from self.np_random, which reset seeds"
        yield WRONG, "seed 1 gave other episodes the second time", advice
    elif alike([*itertools.chain(*found)]):
        yield "", "the same actions give the same episode, whatever the seed", ""
    elif first == second == third:
        advice = "all runs are one run: pass the seed on, super().reset(seed=seed)"
        yield WRONG, "seeds 1, 2 and 3 gave the same episodes", advice
    elif all(alike(episodes[1:]) for episodes in found):
        advice = "runs learn one episode: do not seed again in reset"
        yield WRONG, "each reset() without a seed begins the same episode again", advice


def episodes_of(play):
    starts = [n for n, row in enumerate(play) if row[1] is None]
    return [play[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def alike(episodes):
    """Are they equal, as long as they last?"""
    found = itertools.zip_longest(*episodes)
    return all(len({str(row) for row in rows if row}) == 1 for rows in found)


def check_instances(seen):
    for name, error in seen.failed.items():
        mark = "" if "no time" in error else NOTE if name == "play_two" else WRONG
        advice = "--async-envs (each in a process of its own), or --num-envs 1"
        yield mark, f"{name} fails when the environment is made once more: {error}", advice
    first, again, beside = map(seen.plays.get, ("first", "again", "beside another"))
    if first == again and beside not in (None, first):
        yield WRONG, "an episode differs while a second instance plays", "use --async-envs"


# === the script that fits
def choose_script(seen):
    """(script, why), as the README's "Which script for my problem?"; script None: none fits."""
    space, actions = seen.obs_space, seen.action_space
    names = set(space) if isinstance(space, Dict) else set()
    image = any(map(is_image, space.values() if names else [space]))
    discrete = isinstance(actions, Discrete)
    plain = discrete and actions.start == 0 and not seen.has_mask
    several = isinstance(actions, MultiDiscrete | MultiBinary)
    vector = isinstance(actions, Box) and actions.dtype.kind == "f" and len(actions.shape) == 1
    critic = names == {"state", "privileged_state"}
    team = isinstance(space, Tuple) and isinstance(actions, Tuple)
    bounded = vector and actions.is_bounded() and (actions.low < actions.high).all()
    slow = seen.steps < SLOW * seen.seconds
    rules = [
        (image and seen.spec.entry_point == "ale_py.env:AtariEnv", "ppo_atari", "an Atari game"),
        ({"agents", "state"} <= names and several, "ppo_multiagent", "a team"),
        ({"achieved_goal", "desired_goal"} <= names and bounded, "sac_her", "goals"),
        (critic and vector, "ppo_continuous_asymmetric", "a state that only the critic may see"),
        (image and (plain or vector or several), "ppo_image", "images"),
        (team, None, "a team: wrap it as Team-v0 of docs/guides/my_envs.py (ppo_multiagent)"),
        (several, "ppo_masked", "several choices at once"),
        (discrete and not plain, "ppo_masked", "a mask, or actions that do not begin at 0"),
        (discrete, "sac_discrete" if slow else "ppo", "Discrete actions"),
        (vector, "sac" if slow and bounded else "ppo_continuous", "Box actions"),
        (isinstance(actions, Tuple | Dict), "ppo_hybrid", "choices and numbers in one action"),
        (True, None, f"no script has actions like {actions}"),
    ]
    return next((script, why) for fits, script, why in rules if fits)


def check_script(seen):
    script, why = choose_script(seen)
    if script is None:
        yield WRONG, why, "no script takes it as it is, wrap it: docs/guides/environments.md"
    if seen.refused:
        yield WRONG, f"{script}: {seen.refused}", "wrap it: docs/guides/environments.md"
    numbers = [name for name in seen.obs if not is_image(seen.obs[name][0][0])]
    if script == "ppo_image" and numbers:
        advice = "leave them out, or let the CNN of a copy take them too (change_a_script.md)"
        yield NOTE, f"ppo_image sees the image only, not {', '.join(numbers)}", advice
    yield "", f"{script}, for {why} and {seen.steps / seen.seconds:,.0f} steps a second", ""


def refusal(args, script):
    """What a script says against the environment; nothing if it takes it."""
    module = importlib.import_module(f"cleanrl_lite.{script}")
    flags = module.Args(env_id=args.env_id, env_kwargs=args.env_kwargs)
    try:
        env = module.make_env(flags)
        module.Agent(flags, env.observation_space, env.action_space)
        close(env)
    except SystemExit as error:
        return str(error).removeprefix("error: ")
    except Exception:  # of an environment that cannot be made once more
        return ""


def command_for(args, seen):
    """The script with the flags that fit, to paste into a shell."""
    script, _ = choose_script(seen)
    words = ["python", "-m", f"cleanrl_lite.{script}", "--env-id", args.env_id]
    if args.env_kwargs != "{}":
        words += ["--env-kwargs", args.env_kwargs]
    endless = not seen.episodes and any(mark for mark, *_ in check_time_limit(seen))
    limit = args.max_episode_steps or (endless and LIMIT)
    if limit and script != "ppo_atari":
        words += ["--max-episode-steps", str(limit)]
    if any(mark for mark, *_ in check_instances(seen)):
        words += ["--async-envs"]
    return shlex.join(words) if script and not seen.refused else None


def main(args: Args):
    """Prints the lines; returns what --json writes."""
    utils.check(args.seconds > 0, f"--seconds must be positive, got {args.seconds}")
    with suppress(ImportError):
        import ale_py  # noqa: F401
    make = partial(utils.make, args, disable_env_checker=True)
    seen = watch(make, args.seconds)
    script, _ = choose_script(seen)
    seen.refused = refusal(args, script) if script else ""
    print(f"{args.env_id}: {' '.join(f'{seen.obs_space}, {seen.action_space}'.split())[:400]}\n")
    lines = []
    for check in (
        check_time_limit,
        check_observations,
        check_rewards,
        check_actions,
        check_seeds,
        check_instances,
        check_script,
    ):
        topic = check.__name__.removeprefix("check_").replace("_", " ")
        for mark, text, advice in check(seen):
            lines.append({"mark": mark, "topic": topic, "seen": text, "do": advice * bool(mark)})
            words = " ".join(f"{text}; {advice}".split()) if mark else text
            head = f"{mark:6} {topic:13} "
            print(textwrap.fill(words, 100, initial_indent=head, subsequent_indent=" " * 21))
    wrong, notes = (sum(line["mark"] == mark for line in lines) for mark in (WRONG, NOTE))
    record = {**vars(args), "wrong": wrong, "notes": notes, "lines": lines}
    record |= {"script": choose_script(seen)[0], "command": command_for(args, seen)}
    print(f"\n{wrong} wrong, {notes} to note in {seen.steps:,} steps.\n{record['command'] or ''}")
    if args.json:
        args.json.write_text(json.dumps(record, indent=2, default=str))
    return record


if __name__ == "__main__":
    raise SystemExit(bool(main(tyro.cli(Args, description=__doc__))["wrong"]))
