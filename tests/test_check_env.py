"""check_env finds each fault, and nothing in environments that are right or only nearly odd."""

import json
import mmap
import random
import re
import shlex
import subprocess
import sys
import threading

import gymnasium as gym
import numpy as np
import pytest
import tyro
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from cleanrl_lite.tools import check_env
from tests import helpers

FAULTS = []  # (environment, flags, [(state, topic, words)])
FINE = []  # (environment, words of a fact)


def wanted(*findings, **flags):
    """Declares what is to be found in an environment."""

    def register(cls):
        FAULTS.append((cls.__name__, flags, findings))
        return cls

    return register


def fine(words):
    def register(cls):
        FINE.append((cls.__name__, words))
        return cls

    return register


@fine("3 numbers")
class Task(gym.Env):
    """Nothing is wrong with it: it fails at random, and has a time limit of 40 steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = Box(-1, 1, (3,))
    action_space = Discrete(2)
    registered = 40

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def draw(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def info(self):
        return {"distance": float(self.np_random.random())}

    def reward(self, action):
        return float(self.obs[0] > 0)

    def ends(self):
        """terminated, truncated"""
        return bool(self.np_random.random() < 0.1), False

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.obs = self.draw()
        return self.obs, self.info()

    def step(self, action):
        reward = self.reward(action)
        self.steps += 1
        self.obs = self.draw()
        terminated, truncated = self.ends()
        return self.obs, reward, terminated, truncated, self.info()

    def render(self):
        return np.full((16, 16, 3), self.steps, np.uint8)


# --- seeds and random numbers


@wanted(("WRONG", "seeds", "another episode the second time"))
class Unseeded(Task):
    def reset(self, seed=None, options=None):
        return super().reset()


@wanted(("WRONG", "seeds", "same first episode"))
class LaterUnseeded(Task):
    def reset(self, seed=None, options=None):
        self._np_random = None
        return super().reset(seed=seed)


@wanted(("WRONG", "seeds", "new instances with seeds"), ("note", "seeds", "what was played before"))
class SameGames(Task):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        super().reset(seed=0)

    def reset(self, seed=None, options=None):
        return super().reset()


@wanted(("note", "seeds", "depending on what was played before"))
class Remembers(Task):
    total = 0

    def draw(self):
        self.total += 1
        return super().draw() * np.float32(1 - 1 / (1 + self.total))


@wanted(("note", "random", "np.random"), ("note", "seeds", "unless np.random"))
class GlobalNumpy(Task):
    def draw(self):
        return np.random.uniform(-1, 1, 3).astype(np.float32)


@wanted(("note", "random", "from random"), ("note", "seeds", "unless random"))
class GlobalPython(Task):
    def draw(self):
        return np.float32([random.uniform(-1, 1) for _ in range(3)])


@wanted(
    ("WRONG", "random", "seeds np.random"),
    ("WRONG", "instances", "goes on otherwise"),
)
class Reseeds(GlobalNumpy):
    def reset(self, seed=None, options=None):
        if seed is not None:
            np.random.seed(seed)
        return super().reset(seed=seed)


@fine("all episodes are alike")
class Deterministic(Task):
    def draw(self):
        return np.float32([self.steps / 40, 1 - self.steps / 80, 0.5])

    def info(self):
        return {}

    def ends(self):
        return False, False


# --- instances


@wanted(("WRONG", "instances", "goes on otherwise while a second instance"))
class Shared(Task):
    simulator = {}

    def draw(self):
        if self.steps == 0:
            self.simulator["x"] = super().draw()
        self.simulator["x"] = 0.9 * self.simulator["x"] + 0.1 * super().draw()
        return self.simulator["x"].copy()


@wanted(("note", "instances", "the robot is in use"))
class Single(Task):
    alive = 0

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        if Single.alive:
            raise RuntimeError("the robot is in use")
        Single.alive = 1

    def close(self):
        Single.alive = 0


@wanted(
    ("WRONG", "again", "check_seeds ends with .*licence"),
    ("note", "video", "licence"),
)
class OnlyOnce(Task):
    """Cannot be made again, even after close()."""

    made = 0

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        OnlyOnce.made += 1
        if OnlyOnce.made > 1:
            raise RuntimeError("there is no licence left")


@wanted(("note", "close", r"close\(\) ends the program"))
class Quits(Task):
    """As gym-sailing: close() calls quit() where something was drawn."""

    drawn = False

    def render(self):
        self.drawn = True
        return np.zeros((32, 32, 3), np.uint8)

    def close(self):
        if self.drawn:
            raise SystemExit


@wanted(("note", "close", "nothing to close"))
class BadClose(Task):
    def close(self):
        raise RuntimeError("there is nothing to close")


# --- the time limit


@wanted(("WRONG", "time limit", "after exactly 20 steps: probably"))
class Late(Task):
    def ends(self):
        return self.steps == 20, False


@wanted(("WRONG", "time limit", "in 3 of 3 episodes, after exactly 300 steps: probably"))
class LongAndLate(Task):
    registered = None

    def ends(self):
        return self.steps == 300, False


@wanted(("WRONG", "time limit", "after exactly 20 steps: probably"))
class LateOrFailed(Task):
    def ends(self):
        failed, _ = super().ends()
        return failed or self.steps == 20, False


@wanted(("WRONG", "time limit", "both true in .* after exactly 20 steps"))
class Both(Task):
    def ends(self):
        return self.steps == 20, self.steps == 20


@wanted(("note", "time limit", "no episode ended"))
class Endless(Task):
    registered = None

    def ends(self):
        return False, False


@wanted(
    ("note", "time limit", "cut after 20 steps, not after --max-episode-steps 30"),
    max_episode_steps=30,
)
@fine("limit: 40; that of 20 is inside")
class Inside(Task):
    def ends(self):
        return False, self.steps == 20


@fine("limit: 40; that of 40 is inside")
class InsideToo(Task):
    def ends(self):
        return False, self.steps == 40


@fine("of 40 to 40 steps; limit: 40$")
class Outside(Task):
    def ends(self):
        return False, False


@fine("20 to 20 steps; .*ended after exactly 20, and the observation tells the time")
class ClockInObs(Task):
    def draw(self):
        return np.append(super().draw()[:2], np.float32(self.steps / 20))

    def ends(self):
        return self.steps == 20, False


@fine("ended after exactly 20, and the observation tells the time")
class ClockAmongMany(ClockInObs):
    """Too many numbers for a fit of all of them."""

    observation_space = Box(-1, 1, (1200,))

    def draw(self):
        others = self.np_random.uniform(-1, 1, 1199).astype(np.float32)
        return np.append(np.float32(self.steps / 20), others)


@fine("ended after exactly 20, and the observation tells the time")
class ClockAtBoth(ClockInObs):
    def ends(self):
        return self.steps == 20, self.steps == 20


@fine("ended after exactly 80, and the observation tells the time")
class ClockInImage(Task):
    observation_space = Box(0, 255, (40, 40, 3), np.uint8)
    registered = None

    def draw(self):
        image = self.np_random.integers(0, 255, (40, 40, 3), np.uint8)
        image[0, 0] = self.steps
        return image

    def reward(self, action):
        return 1.0

    def ends(self):
        return self.steps == 80, False


@wanted(("WRONG", "time limit", "after exactly 80 steps: probably"))
class BeginningInImage(ClockInImage):
    """The first picture is another one, as where a weapon is drawn; then nothing tells the time."""

    def draw(self):
        image = super().draw()
        image[0, 0] = self.steps == 0
        return image


@wanted(("WRONG", "time limit", "after exactly 80 steps: probably"))
class NoClockInImage(ClockInImage):
    def draw(self):
        return self.np_random.integers(0, 255, (40, 40, 3), np.uint8)


@fine("of 5 to 20 steps")
class Rounds(Task):
    """Ends after a round of five steps: often after 20, and more often after 15."""

    def ends(self):
        return self.steps == 20 or (self.steps % 5 == 0 and self.np_random.random() < 0.4), False


@fine("of 1 to 1 steps")
class Bandit(Task):
    def ends(self):
        return True, False


# --- observations


@wanted(("note", "observations", "leaves its space by 25.0 %"))
class TooFar(Task):
    def draw(self):
        obs = super().draw()
        obs[0] = 1.5
        return obs


@fine("up to|3 numbers")
class Rounded(Task):
    def draw(self):
        return super().draw() * np.float32(1.001)


@wanted(("WRONG", "observations", "leaves its space"))
class WrongChoice(Task):
    observation_space = Discrete(3)

    def draw(self):
        return int(self.np_random.integers(5))

    def reward(self, action):
        return 1.0


@wanted(("note", "observations", "2 of 3 numbers never change"))
class Constants(Task):
    def draw(self):
        return super().draw() * np.float32([1, 0, 0])


@wanted(("WRONG", "observations", "all 3 numbers are the same"))
class Blind(Task):
    def draw(self):
        return np.full(3, 0.5, np.float32)


@wanted(
    ("WRONG", "observations", "3 numbers are large and vary little"),
    ("note", "observations", "up to 1.7e.09 in size"),
)
class Clock(Task):
    observation_space = Box(-np.inf, np.inf, (3,), np.float64)

    def draw(self):
        return 1.7e9 + super().draw().astype(np.float64)


@fine("double|3 numbers")
class SmallOffset(Clock):
    def draw(self):
        return 500 + Task.draw(self).astype(np.float64)


@wanted(("note", "observations", "up to 1e.04 in size"))
class Large(Clock):
    def draw(self):
        return 1e4 * Task.draw(self).astype(np.float64)


@fine("3 numbers, -")
class LargeButNormalized(Large):
    """ppo_continuous.py scales observations itself."""

    action_space = Box(-1, 1, (2,))


@wanted(("note", "observations", "up to 0.0001 in size"))
class Tiny(Task):
    def draw(self):
        return super().draw() * np.float32(1e-4)


@wanted(("WRONG", "observations", "not finite"))
class NotFinite(Task):
    def draw(self):
        return super().draw() * np.float32(np.nan if self.steps == 20 else 1)


@wanted(("note", "observations", "float64, declared is float32"))
class Double(Task):
    def draw(self):
        return super().draw().astype(np.float64)


@wanted(("WRONG", "observations", "float32, declared is uint8"))
class Fractions(Task):
    observation_space = Box(0, 255, (3,), np.uint8)

    def draw(self):
        return 10 + super().draw()


@wanted(("WRONG", "observations", r"shapes \[\(2,\)\], declared is \(3,\)"))
class Shorter(Task):
    def draw(self):
        return super().draw()[:2]


@wanted(("note", "observations", r"\['scale'\] has shapes \[\(\)\], declared is \(1,\)"))
class ScalarInside(Task):
    """Of a Dict, which the scripts flatten: carl-bench's contexts are such numbers."""

    observation_space = Dict(state=Box(-1, 1, (3,)), scale=Box(-1, 1, (1,)))

    def draw(self):
        return {"state": super().draw(), "scale": np.float32(self.np_random.uniform(-1, 1))}

    def reward(self, action):
        return float(self.obs["scale"] > 0)


@wanted(("note", "observations", "the same arrays are returned again"))
class SameArray(Task):
    array = None

    def draw(self):
        if self.array is None:
            self.array = np.zeros(3, np.float32)
        self.array[:] = super().draw()
        return self.array


@wanted(("WRONG", "last obs", "only zeros"))
class BlackAtTheLimit(Task):
    def draw(self):
        return super().draw() * np.float32(self.steps < 20)

    def ends(self):
        return False, self.steps == 20


@wanted(("note", "last obs", "only zeros"))
class BlackAtTheEnd(Task):
    over = False

    def reset(self, seed=None, options=None):
        self.over = False
        return super().reset(seed=seed)

    def draw(self):
        obs = super().draw()
        self.over = self.steps > 0 and obs[0] > 0.8
        return obs * np.float32(not self.over)

    def ends(self):
        return bool(self.over), False


# --- rewards, infos, actions


@wanted(("WRONG", "rewards", "NaN, infinite or no numbers"))
class NanReward(Task):
    def reward(self, action):
        return float("nan") if self.steps == 20 else 1.0


@wanted(("WRONG", "rewards", "no numbers"))
class NoneReward(Task):
    def reward(self, action):
        return None


@wanted(("note", "rewards", r"arrays: ndarray\(2,\)"))
class Objectives(Task):
    def reward(self, action):
        return np.array([1.0, 0.5])


@wanted(("note", "rewards", "up to 5e.03 in size"))
class LargeReward(Task):
    def reward(self, action):
        return 5000.0 * action


@wanted(("note", "rewards", "up to 0.0001 in size"))
class TinyReward(Task):
    def reward(self, action):
        return 1e-4 * action


@wanted(("note", "rewards", "all are 0"))
class NoReward(Task):
    def reward(self, action):
        return 0.0


@wanted(("note", "infos", "moves: the shape changes"))
class Ragged(Task):
    def info(self):
        return {"moves": np.arange(self.np_random.integers(1, 9))}


@wanted(("note", "infos", "the same dict"))
class SameInfo(Task):
    shared = {}

    def info(self):
        return self.shared


@wanted(("note", "infos", "statistics"))
class OurInfo(Task):
    def info(self):
        return {"statistics": 3.0}


@fine(r"1 keys: is_success \(is_success is logged")
class Success(Task):
    def info(self):
        return {"is_success": bool(self.np_random.random() < 0.5)}


class Robot(Task):
    action_space = Box(-1, 1, (2,))


FINE.append(("Robot", "Box"))


@wanted(("note", "actions", "step wrote into .* actions"))
class InPlace(Robot):
    def reward(self, action):
        action *= 0.5
        return 1.0


@wanted(("note", "actions", "bounds are infinite"))
class Unbounded(Robot):
    action_space = Box(-np.inf, np.inf, (2,))


@wanted(("note", "actions", "ranges are 2,000 to 2,000 wide"))
class Wide(Robot):
    action_space = Box(-1000, 1000, (2,))


@wanted(("note", "actions", "ranges are 0.002 to 0.002 wide"))
class Narrow(Robot):
    action_space = Box(-0.001, 0.001, (2,))


@wanted(("note", "actions", "from 10 to 20"))
class Aside(Robot):
    action_space = Box(10, 20, (2,))


@wanted(("WRONG", "actions", "reset changes action_space"))
class Replaced(Robot):
    def reset(self, seed=None, options=None):
        self.action_space = Box(-2, 2, (2,))
        return super().reset(seed=seed)


@fine("Box")
class ReplacedByItsLike(Robot):
    def reset(self, seed=None, options=None):
        self.action_space = Box(-1, 1, (2,))
        return super().reset(seed=seed)


# --- memory, pickles, video


@wanted(("note", "memory", "the process grew"))
class Leak(Task):
    """Takes new pages: arrays may get memory that an earlier test has freed."""

    memory = mmap.mmap(-1, 2**30)

    def info(self):
        self.memory.write(bytes(2**16))
        return {}


@fine("2,000 numbers")
class ManyNumbers(Task):
    """What the check itself keeps is no growth of the environment."""

    observation_space = Box(-1, 1, (2000,))

    def draw(self):
        return self.np_random.uniform(-1, 1, 2000).astype(np.float32)


@fine("cannot be pickled .*begins new episodes")
class Unpicklable(Task):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.lock = threading.Lock()


@fine("the copy goes on otherwise: a resumed run begins new episodes")
class HalfPickled(Task):
    """Its simulator knows the instance by an address."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.address = id(self)

    def draw(self):
        return super().draw() * np.float32(self.address == id(self))


@wanted(("note", "video", r"\(16, 16\), uint8"))
class Gray(Task):
    def render(self):
        return super().render()[..., 0]


@wanted(("note", "video", r"\(16, 16, 3\), \(17, 17, 3\)"))
class Growing(Deterministic):
    def render(self):
        return np.zeros((16 + self.steps, 16 + self.steps, 3), np.uint8)


@wanted(("note", "video", "frame 3 fails"))
class NoFrame(Deterministic):
    def render(self):
        assert self.steps < 2
        return super().render()


@fine("--capture-video has nothing")
class NoVideo(Task):
    metadata = {"render_modes": ["human"]}


# --- gymnasium's checker


@wanted(("note", "checker", "default seed argument"))
class DefaultSeed(Task):
    def reset(self, seed=0, options=None):
        return super().reset(seed=seed)


# --- spaces


@fine("a mask|Discrete")
class Masked(Task):
    """Raises at what its mask says is invalid."""

    action_space = Discrete(4, start=1)

    def info(self):
        self.valid = np.int8(self.np_random.permutation([1, 1, 0, 0]))
        return {"action_mask": self.valid}

    def reward(self, action):
        assert self.valid[action - 1]
        return 1.0


class Parts(Task):
    action_space = MultiDiscrete([2, 3])

    def action_masks(self):
        return np.int8([1, 0, 0, 1, 1])

    def reward(self, action):
        assert action[0] == 0 and action[1] > 0
        return 1.0


class Switches(Task):
    action_space = MultiBinary(3)


class Words(Task):
    """A Dict with what is no number."""

    observation_space = Dict(x=Box(-1, 1, (3,)), said=Text(5))

    def draw(self):
        return {"x": super().draw(), "said": "go"}

    def reward(self, action):
        return 1.0


class OwnSpace(gym.Space):
    """That gymnasium cannot flatten, as MiniGrid's missions."""

    def contains(self, x):
        return x == "go"

    def __eq__(self, other):
        return isinstance(other, OwnSpace)


class Missions(Words):
    observation_space = Dict(x=Box(-1, 1, (3,)), said=OwnSpace())


class SpaceWithoutEquality(OwnSpace):
    __eq__ = object.__eq__


class OtherMissions(Words):
    observation_space = Dict(x=Box(-1, 1, (3,)), said=SpaceWithoutEquality())


class Missing(Words):
    def draw(self):
        return {"said": "go"}


class Nested(Words):
    observation_space = Dict(x=Box(-1, 1, (3,)), at=Tuple((Discrete(2), MultiBinary(2))))

    def draw(self):
        return {"x": Task.draw(self), "at": (1, np.ones(2, np.int8))}


class Board(Words):
    """In bytes, but no image."""

    observation_space = Box(0, 255, (8, 8, 3), np.uint8)

    def draw(self):
        return self.np_random.integers(0, 255, (8, 8, 3), np.uint8)


class Maps(Words):
    """Several parts in bytes: ppo_image.py would not know which is the image."""

    observation_space = Dict({name: Box(0, 255, (40, 40), np.uint8) for name in ("at", "near")})

    def draw(self):
        return {name: np.full((40, 40), self.steps, np.uint8) for name in ("at", "near")}


class Pictures(ClockInImage):
    action_space = Box(-1, 1, (2,))
    ends = Task.ends


class Goals(Robot):
    observation_space = Dict({name: Box(-1, 1, (3,)) for name in ("achieved_goal", "desired_goal")})

    def draw(self):
        return {name: Task.draw(self) for name in self.observation_space}

    def reward(self, action):
        return 1.0

    def compute_reward(self, achieved, desired, info):
        return np.ones(len(achieved))


class Critics(Goals):
    observation_space = Dict({name: Box(-1, 1, (3,)) for name in ("state", "privileged_state")})


class Team(Parts):
    observation_space = Dict(agents=Box(-1, 1, (2, 3)), state=Box(-1, 1, (3,)))

    def draw(self):
        obs = Task.draw(self)
        return {"agents": np.stack([obs, -obs]), "state": obs}


class Mixed(Task):
    action_space = Tuple((Discrete(2), Box(-1, 1, (2,))))


class Sentences(Task):
    action_space = Text(5)


def classes(cls):
    return [cls, *(each for child in cls.__subclasses__() for each in classes(child))]


for cls in classes(Task):
    gym.register(
        f"Checked{cls.__name__}-v0", cls, max_episode_steps=cls.registered, disable_env_checker=True
    )


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(check_env, "MOST_STEPS", 1_000)
    monkeypatch.setattr(check_env, "ENOUGH_STEPS", 900)


def check(name, **flags):
    env_id = name if "-v" in name else f"tests.test_check_env:Checked{name}-v0"
    return check_env.main(check_env.Args(env_id, seconds=8, **flags))


def findings(record):
    return [line for line in record["lines"] if line["state"]]


@pytest.mark.parametrize("name, flags, expected", FAULTS, ids=lambda value: str(value)[:20])
def test_a_fault_is_found(name, flags, expected, capsys):
    """With what it means and what to do; and nothing else is."""
    record = check(name, **flags)
    of_checker = any(topic == "checker" for _, topic, _ in expected)
    found = [line for line in findings(record) if of_checker or line["topic"] != "checker"]
    topics = {(line["state"], line["topic"]) for line in found}
    assert topics == {(state, topic) for state, topic, _ in expected}
    for state, topic, words in expected:
        lines = [line for line in found if (line["state"], line["topic"]) == (state, topic)]
        assert any(re.search(words, line["seen"]) for line in lines), lines
    assert all(line["means"] and line["advice"] for line in found)
    said = capsys.readouterr().out
    assert said.count(" means: ") == said.count(" do: ") == len(findings(record))
    assert (record["wrong"] > 0) == any(state == "WRONG" for state, _, _ in expected)


@pytest.mark.parametrize("name, words", FINE)
def test_no_false_alarm(name, words, capsys):
    record = check(name)
    assert findings(record) == []
    assert any(re.search(words, line["seen"]) for line in record["lines"]), record["lines"]
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 24 and max(map(len, said.splitlines())) <= 100


@pytest.mark.parametrize(
    "name",
    [
        "CartPole-v1",
        "FrozenLake-v1",
        pytest.param("Hopper-v4", marks=pytest.mark.slow),
        pytest.param("LunarLander-v3", marks=pytest.mark.slow),
        pytest.param("ALE/Breakout-v5", marks=pytest.mark.slow),
    ],
)
def test_environments_that_everyone_knows(name):
    record = check(name)
    assert findings(record) == [] and record["command"].endswith(f"--env-id {name}")
    resume = [line["seen"] for line in record["lines"] if line["topic"] == "resume"]
    pickles = name not in ("LunarLander-v3", "ALE/Breakout-v5")
    assert ("goes on in mid-episode" in resume[0]) == pickles


SCRIPTS = {
    "Task": "ppo",
    "Robot": "ppo_continuous",
    "Unbounded": "ppo_continuous",
    "Masked": "ppo_masked",
    "Parts": "ppo_masked",
    "Switches": "ppo_masked",
    "Nested": "ppo",
    "Board": "ppo",
    "Pictures": "ppo_image",
    "ClockInImage": "ppo_image",
    "Goals": "sac_her",
    "Critics": "ppo_continuous_asymmetric",
    "Team": "ppo_multiagent",
    "Mixed": "ppo_hybrid",
}


GAME = pytest.param("ALE/Breakout-v5", "ppo_atari", marks=pytest.mark.slow)


@pytest.mark.parametrize("name, script", [*SCRIPTS.items(), GAME])
def test_the_script_that_fits(name, script):
    """It takes the environment, with the flags that are shown."""
    record = check(name)
    assert record["script"] == script and record["wrong"] == 0
    words = shlex.split(record["command"])
    assert words[:3] == ["python", "-m", f"cleanrl_lite.{script}"]
    args = tyro.cli(helpers.module(script).Args, args=words[3:])
    helpers.module(script).make_env(args).close()


def test_slow_environments_get_scripts_that_learn_from_fewer_steps(monkeypatch):
    monkeypatch.setattr(check_env.Play, "steps_per_second", lambda play: 300.0)
    assert check("Task")["script"] == "sac_discrete"
    assert check("Robot")["script"] == "sac"
    assert check("Unbounded")["script"] == "ppo_continuous"


@pytest.mark.parametrize(
    "name, words",
    [
        ("Words", "not a few"),
        ("Missions", "not a few"),
        ("OtherMissions", "not a few"),
        ("Maps", "nor one image"),
        ("Sentences", "Text"),
    ],
)
def test_no_script_fits(name, words):
    record = check(name)
    assert record["script"] is None and record["wrong"] == 1
    (line,) = [line for line in record["lines"] if line["topic"] == "script"]
    assert words in line["seen"]


def test_flags_of_the_command():
    assert check("Endless")["command"].endswith("--max-episode-steps 1000")
    assert check("Single")["command"].endswith("--async-envs")
    assert check("Shared")["command"].endswith("--async-envs")
    command = check("FrozenLake-v1", env_kwargs='{"is_slippery": false}', max_episode_steps=50)
    assert command["command"].endswith(
        """--env-kwargs '{"is_slippery": false}' --max-episode-steps 50"""
    )


def test_one_line_for_bad_input():
    with pytest.raises(SystemExit, match="error: --env-id Nothing-v0"):
        check("Nothing-v0")
    with pytest.raises(SystemExit, match="error: --seconds must be positive"):
        check_env.main(check_env.Args("CartPole-v1", seconds=0))
    with pytest.raises(SystemExit, match="error: the observation .* has no 'x'"):
        check("Missing")


def test_from_any_folder(tmp_path):
    """The exit status says whether something is wrong; --json has all of it."""
    (tmp_path / "mine.py").write_text("from tests.test_check_env import Late\n")
    words = ["mine:CheckedLate-v0", "--seconds", "0.5", "--json", "found.json"]
    done = subprocess.run(
        [sys.executable, "-m", "cleanrl_lite.tools.check_env", *words],
        cwd=tmp_path,
        env={"PYTHONPATH": str(helpers.ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1, done.stderr
    record = json.loads((tmp_path / "found.json").read_text())
    assert record["wrong"] == 1 and "1 wrong, 0 to note" in done.stdout
    for line in record["lines"]:
        assert line["seen"].split()[0] in done.stdout


def test_it_is_installed():
    packages = re.search(r"^packages = (.*)", (helpers.ROOT / "pyproject.toml").read_text(), re.M)
    folders = {path.parent.name for path in helpers.SOURCE.glob("*/__init__.py")}
    assert {f"cleanrl_lite.{name}" for name in folders} <= set(json.loads(packages[1]))
