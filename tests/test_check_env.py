"""check_env finds each fault, and nothing in environments that are right or only nearly odd."""

import json
import re
import shlex
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
import tyro
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from cleanrl_lite.tools import check_env
from tests import helpers

BYTES = Box(0, 255, (3,), np.uint8)
IMAGE = Box(0, 255, (40, 40, 3), np.uint8)
ROBOT = Box(-1, 1, (2,))
SHARED = {}
FAULTS = []  # (environment, findings)
RIGHT = []  # (environment, the script that fits)


class Task(gym.Env):
    """Nothing is wrong with it: it fails at random, and has a time limit of 40 steps."""

    observation_space = Box(-1, 1, (3,))
    action_space = Discrete(2)
    registered = 40

    def draw(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def info(self):
        return {}

    def reward(self, action):
        return float(self.np_random.random())

    def ends(self):
        """terminated, truncated"""
        return bool(self.np_random.random() < 0.1), False

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.draw(), self.info()

    def step(self, action):
        reward = self.reward(action)
        self.steps += 1
        return self.draw(), reward, *self.ends(), self.info()


def task(name, base=Task, **members):
    """Registers CheckedNAME-v0, a kind of Task; a function draws (or rewards ...) instead."""
    cls = type(name, (base,), members)
    globals()[name] = cls
    gym.register(
        f"Checked{name}-v0", cls, max_episode_steps=cls.registered, disable_env_checker=True
    )
    return name


def fault(name, expected, **members):
    FAULTS.append((task(name, **members), expected))


def right(name, script, **members):
    RIGHT.append((task(name, **members), script))


def draw(self):
    return Task.draw(self)


def times(factor):
    return lambda self: (draw(self) * factor).astype(np.float32)


def reseeding(numbers):
    """A reset that seeds the generator itself, with what numbers(self, seed) gives."""

    def reset(self, seed=None, options=None):
        Task.reset(self, seed=seed)
        self._np_random = np.random.default_rng(numbers(self, seed))
        return self.draw(), self.info()

    return reset


def remember(self, seed):
    self.seed = self.seed if seed is None else seed
    return self.seed


def global_reset(self, seed=None, options=None):
    if seed is not None:
        np.random.seed(seed)
    return Task.reset(self, seed=seed)


def shared_draw(self):
    if self.steps == 0:
        SHARED["x"] = draw(self)
    SHARED["x"] = 0.9 * SHARED["x"] + 0.1 * draw(self)
    return SHARED["x"]


def only_one(self):
    if SHARED.setdefault("alive", 0):
        raise RuntimeError("the robot is in use")
    SHARED["alive"] = 1


def no_licence(self):
    SHARED["made"] = SHARED.get("made", 0) + 1
    if SHARED["made"] > 1:
        raise RuntimeError("no licence left")


at20 = dict(ends=lambda self: (self.steps == 20, False))
globally = dict(draw=lambda self: np.random.uniform(-1, 1, 3).astype(np.float32))
picture = dict(
    observation_space=IMAGE,
    draw=lambda self: self.np_random.integers(1, 255, (40, 40, 3), np.uint8),
    ends=lambda self: (self.steps == 80, False),
    registered=None,
)


def beginning(self):
    """Another picture at the beginning, as where a weapon is drawn; then nothing tells the time."""
    return picture["draw"](self) * np.uint8(self.steps > 0)


def clocked(self):
    image = picture["draw"](self)
    image[0, 0] = self.steps
    return image


def success(self):
    won = bool(self.np_random.random() < 0.5)
    return {"is_success": True} if won else {}


late = "terminated in .* after exactly 20 steps: probably"
# seeds and random numbers
fault(
    "Unseeded",
    "WRONG seeds: other episodes the second time",
    reset=reseeding(lambda self, seed: None),
)
fault(
    "OneSeed",
    "WRONG seeds: each reset.. without a seed begins the same",
    reset=reseeding(lambda self, seed: remember(self, seed)),
)
fault(
    "DefaultSeed",
    "WRONG seeds: each reset.. without a seed begins the same",
    reset=lambda self, seed=0, options=None: Task.reset(self, seed=0 if seed is None else seed),
)
fault(
    "SameGames",
    "WRONG seeds: seeds 1, 2 and 3 gave the same",
    reset=lambda self, seed=None, options=None: Task.reset(
        self, 0 if self._np_random is None else None
    ),
)
fault("GlobalNumpy", "note seeds: it draws from random, np.random or torch", **globally)
fault(
    "Reseeds",
    "WRONG seeds: seeds np.random|WRONG instances: differs",
    reset=global_reset,
    **globally,
)
# instances
fault("Shared", "WRONG instances: differs while a second instance", draw=shared_draw)
fault(
    "Single",
    "note instances: play_two fails .*the robot is in use",
    __init__=only_one,
    close=lambda self: SHARED.update(alive=0),
)
fault(
    "OnlyOnce",
    "WRONG instances: repeat fails .*no licence left|note instances: play_two",
    __init__=no_licence,
)
# the time limit
fault("Late", f"WRONG time limit: {late}", **at20)
fault(
    "LongAndLate",
    "WRONG time limit: in 3 of 3 episodes, after exactly 300",
    ends=lambda self: (self.steps == 300, False),
    registered=None,
)
fault(
    "LateOrFailed",
    f"WRONG time limit: {late}",
    ends=lambda self: (self.np_random.random() < 0.03 or self.steps == 20, False),
)
fault(
    "Both",
    "WRONG time limit: terminated and truncated in .* 20 steps",
    ends=lambda self: (self.steps == 20, self.steps == 20),
)
fault(
    "Endless",
    "note time limit: no episode ended",
    ends=lambda self: (False, False),
    registered=None,
)
fault("NoClockInImage", "WRONG time limit: terminated in .* 80 steps", **picture)
fault(
    "BeginningInImage",
    "WRONG time limit: terminated in .* 80 steps",
    **{**picture, "draw": beginning},
)
fault(
    "BlackAtTheLimit",
    "WRONG time limit: only zeros at all .* time limits",
    draw=lambda self: draw(self) * (self.steps < 20),
    ends=lambda self: (False, self.steps == 20),
)
# observations
fault(
    "TooFar",
    "note observations: leaves its space by",
    draw=lambda self: draw(self) + np.float32([2, 0, 0]),
)
fault(
    "WrongChoice",
    "WRONG observations: obs leaves Discrete.3.: 0.0 to 4.0",
    observation_space=Discrete(3),
    draw=lambda self: int(self.np_random.integers(5)),
)
fault(
    "Blind",
    "WRONG observations: all 3 numbers are the same",
    draw=lambda self: np.full(3, 0.5, np.float32),
)
fault(
    "Clock",
    "WRONG observations: vary little|note observations: up to 1.7e.09",
    observation_space=Box(-np.inf, np.inf, (3,), np.float64),
    draw=lambda self: 1.7e9 + draw(self).astype(float),
)
fault("Tiny", "note observations: up to 0.0001 in size", draw=times(1e-4))
fault(
    "Large",
    "note observations: up to 1e.04 in size",
    observation_space=Box(-np.inf, np.inf, (3,)),
    draw=times(1e4),
)
fault(
    "NotFinite",
    "WRONG observations: not finite",
    draw=lambda self: draw(self) * np.float32(np.nan if self.steps == 20 else 1),
)
fault(
    "Fractions",
    "WRONG observations: declared is uint8",
    observation_space=BYTES,
    draw=lambda self: 10 + draw(self),
)
fault(
    "Wraps",
    r"WRONG observations: \[300  -1 .* declared is uint8",
    observation_space=BYTES,
    draw=lambda self: np.array([300, -1, self.np_random.integers(9)]),
)
fault(
    "NanInInts",
    "WRONG observations: not finite|WRONG observations: nan .* declared is int64",
    observation_space=Box(-9, 9, (3,), np.int64),
    draw=lambda self: np.array([np.nan, 1, 2]),
)
fault(
    "Overflow",
    "WRONG observations: declared is float16",
    observation_space=Box(-np.inf, np.inf, (3,), np.float16),
    draw=lambda self: draw(self) + 1e6,
)
fault(
    "NoNumbers",
    "WRONG observations: declared is float32",
    draw=lambda self: np.array(["a", "b", "c"]),
)
fault(
    "Shorter",
    r"WRONG observations: shapes \[\(2,\)\], declared is \(3,\)",
    draw=lambda self: draw(self)[:2],
)
# rewards, infos, actions
fault(
    "NanReward",
    "WRONG rewards: NaN",
    reward=lambda self, action: float("nan") if self.steps == 20 else 1.0,
)
fault(
    "Objectives", "note rewards: they are arrays", reward=lambda self, action: np.array([1.0, 0.5])
)
fault("LargeReward", "note rewards: up to 5e.03", reward=lambda self, action: 5000.0 * action)
fault("NoReward", "note rewards: all are 0", reward=lambda self, action: 0.0)
fault("OnlyWhenTrue", "note infos: is_success is unknown", info=success)
fault("NoneSuccess", "note infos: is_success is unknown", info=lambda self: {"is_success": None})
fault("Unbounded", "note actions: bounds are -inf to inf", action_space=Box(-np.inf, np.inf, (2,)))
fault("Wide", "note actions: bounds are -1000.0 to 1000.0", action_space=Box(-1000, 1000, (2,)))
fault("Aside", "note actions: bounds are 10.0 to 20.0", action_space=Box(10, 20, (2,)))
# spaces
fault(
    "Camera",
    r"note script: ppo_image sees the image only, not obs\['place'\]",
    observation_space=Dict(view=IMAGE, place=Box(-1, 1, (3,))),
    draw=lambda self: {"view": picture["draw"](self), "place": draw(self)},
)
fault(
    "Words",
    "WRONG script: not a few numbers",
    observation_space=Dict(x=Box(-1, 1, (3,)), said=Text(5)),
    draw=lambda self: {"x": draw(self), "said": "go"},
)
fault(
    "Maps",
    "WRONG script: nor one image",
    observation_space=Dict({name: Box(0, 255, (50, 50), np.float32) for name in "ab"}),
    draw=lambda self: {name: np.full((50, 50), self.steps, np.float32) for name in "ab"},
)
fault("Sentences", "WRONG script: Text", action_space=Text(5))
fault(
    "SeveralAgents",
    "WRONG script: a team",
    observation_space=Tuple([ROBOT, ROBOT]),
    action_space=Tuple([Discrete(2)] * 2),
    draw=lambda self: (draw(self)[:2], draw(self)[:2]),
)


def counted(self):
    """A clock among many numbers."""
    others = self.np_random.uniform(-1, 1, 1199).astype(np.float32)
    return np.append(np.float32(self.steps / 20), others)


def masked(self):
    self.valid = np.int8(self.np_random.permutation([1, 1, 0, 0]))
    return {"action_mask": self.valid}


def mask_of_parts(self):
    return np.int8([1, 0, 0, 1, 1])


def goals(*names):
    spaces = {name: Box(-1, 1, (3,)) for name in names}
    return dict(
        observation_space=Dict(spaces), draw=lambda self: {name: draw(self) for name in names}
    )


def unlike(self, seed):
    """reset(seed=...) may be called a second time, and goes on from there."""
    return seed if seed is not None else int(self.np_random.integers(2**31))


RIGHT.append(("Task", "ppo"))
right("Robot", "ppo_continuous", action_space=ROBOT)
right("OwnSeeds", "ppo", reset=reseeding(unlike))
right(
    "Deterministic",
    "ppo",
    draw=lambda self: np.float32([self.steps / 40, 0.5, 1]),
    reward=lambda self, action: 1.0,
    ends=lambda self: (False, False),
)
right(
    "TwoStarts",
    "ppo",
    draw=lambda self: np.float32(
        [
            setattr(self, "start", self.np_random.integers(2)) or 0
            if not self.steps
            else self.start,
            self.steps / 40,
            1,
        ]
    ),
    reward=lambda self, action: 1.0,
    ends=lambda self: (False, False),
)
right("BadClose", "ppo", close=lambda self: 1 / 0)
right("Limited", "ppo", ends=lambda self: (False, self.steps == 20))
right(
    "ClockInObs",
    "ppo",
    draw=lambda self: np.append(draw(self)[:2], np.float32(self.steps / 20)),
    **at20,
)
right(
    "RingClock",
    "ppo",
    draw=lambda self: np.float32([np.sin(self.steps / 3), np.cos(self.steps / 3), draw(self)[0]]),
    **at20,
)
right("ClockAmongMany", "ppo", observation_space=Box(-1, 1, (1200,)), draw=counted, **at20)
right("ClockInImage", "ppo_image", **{**picture, "draw": clocked})
right(
    "OftenInTheLastStep",
    "ppo",
    ends=lambda self: (self.np_random.random() < 0.1 * (self.steps == 20), self.steps == 20),
)
right(
    "Rounds",
    "ppo",
    ends=lambda self: (
        self.steps == 20 or (self.steps % 5 == 0 and self.np_random.random() < 0.4),
        False,
    ),
)
right("Bandit", "ppo", ends=lambda self: (True, False))
right("Rounded", "ppo", draw=times(1.001))
right("Double", "ppo", draw=lambda self: draw(self).astype(float))
right("Longs", "ppo", observation_space=BYTES, draw=lambda self: self.np_random.integers(0, 256, 3))
right(
    "SmallOffset",
    "ppo",
    observation_space=Box(-np.inf, np.inf, (3,)),
    draw=lambda self: 500 + draw(self),
)
right(
    "LargeButNormalized",
    "ppo_continuous",
    observation_space=Box(-np.inf, np.inf, (3,)),
    draw=times(1e4),
    action_space=ROBOT,
)
right("Success", "ppo", info=lambda self: {"is_success": bool(self.np_random.random() < 0.5)})
right(
    "Masked",
    "ppo_masked",
    action_space=Discrete(4, start=1),
    info=masked,
    reward=lambda self, action: float(1 / self.valid[action - 1]),
)
right("FromOne", "ppo_masked", action_space=Discrete(3, start=1))
right(
    "Parts",
    "ppo_masked",
    action_space=MultiDiscrete([2, 3]),
    action_masks=mask_of_parts,
    reward=lambda self, action: 1 / (action[0] == 0 < action[1]),
)
right("Switches", "ppo_masked", action_space=MultiBinary(3))
right(
    "Nested",
    "ppo",
    observation_space=Dict(x=Box(-1, 1, (3,)), at=Tuple((Discrete(2), MultiBinary(2)))),
    draw=lambda self: {"x": draw(self), "at": (1, np.ones(2, np.int8))},
)
right(
    "Board",
    "ppo",
    observation_space=Box(0, 255, (8, 8, 3), np.uint8),
    draw=lambda self: self.np_random.integers(0, 255, (8, 8, 3), np.uint8),
)
right(
    "Goals",
    "sac_her",
    action_space=ROBOT,
    compute_reward=lambda self, achieved, desired, info: np.ones(len(achieved)),
    **goals("achieved_goal", "desired_goal"),
)
right(
    "Critics", "ppo_continuous_asymmetric", action_space=ROBOT, **goals("state", "privileged_state")
)
right(
    "Team",
    "ppo_multiagent",
    action_space=MultiDiscrete([2, 3]),
    observation_space=Dict(agents=Box(-1, 1, (2, 3)), state=Box(-1, 1, (3,))),
    draw=lambda self: {"agents": np.stack([draw(self)] * 2), "state": draw(self)},
)
right("Mixed", "ppo_hybrid", action_space=Tuple((Discrete(2), ROBOT)))
RIGHT.append(("CartPole-v1", "ppo"))
RIGHT.append(("FrozenLake-v1", "ppo"))
RIGHT.append(pytest.param("Hopper-v4", "ppo_continuous", marks=pytest.mark.slow))
RIGHT.append(pytest.param("LunarLander-v3", "ppo", marks=pytest.mark.slow))
RIGHT.append(pytest.param("ALE/Breakout-v5", "ppo_atari", marks=pytest.mark.slow))
gym.register("CheckedTask-v0", Task, max_episode_steps=40, disable_env_checker=True)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Few steps, which count as fast ones on a busy machine too."""
    SHARED.clear()
    monkeypatch.setattr(check_env, "MOST_STEPS", 1_000)
    monkeypatch.setattr(check_env, "ENOUGH_STEPS", 900)
    monkeypatch.setattr(check_env, "SLOW", 0)


def check(name, **flags):
    env_id = name if "-v" in name else f"tests.test_check_env:Checked{name}-v0"
    return check_env.main(check_env.Args(env_id, seconds=8, **flags))


def findings(record):
    marked = [line for line in record["lines"] if line["mark"]]
    assert all(line["do"] for line in marked)
    return [f"{line['mark']} {line['topic']}: {line['seen']}" for line in marked]


@pytest.mark.parametrize("name, expected", FAULTS)
def test_a_fault_is_found(name, expected, capsys):
    """With what to do; and nothing else is, but that an action space has no script."""
    record = check(name)
    found = findings(record)
    patterns = [
        pattern.replace(": ", ": .*", 1) for pattern in re.split(r"\|(?=note|WRONG)", expected)
    ]
    for pattern in patterns:
        assert any(re.match(pattern, line) for line in found), found
    assert len(found) == len(patterns), found
    assert record["wrong"] == expected.count("WRONG")
    said = capsys.readouterr().out
    assert all(line.split(": ")[0].split()[0] in said for line in found)
    assert max(map(len, said.splitlines()[2:-1])) <= 100


@pytest.mark.parametrize("name, script", RIGHT)
def test_no_false_alarm_and_the_script_that_fits(name, script):
    """It takes the environment, with the flags that are shown."""
    record = check(name)
    assert findings(record) == []
    assert record["script"] == script
    words = shlex.split(record["command"])
    assert words[:3] == ["python", "-m", f"cleanrl_lite.{script}"]
    args = tyro.cli(helpers.module(script).Args, args=words[3:])
    check_env.close(helpers.module(script).make_env(args))


def test_slow_environments_get_scripts_that_learn_from_fewer_steps(monkeypatch):
    monkeypatch.setattr(check_env, "SLOW", 10**9)
    assert check("Task")["script"] == "sac_discrete"
    assert check("Robot")["script"] == "sac"
    assert check("Unbounded")["script"] == "ppo_continuous"


def test_flags_of_the_command():
    assert check("Endless")["command"].endswith("--max-episode-steps 1000")
    assert check("Single")["command"].endswith("--async-envs")
    assert check("Shared")["command"].endswith("--async-envs")
    command = check("FrozenLake-v1", env_kwargs='{"is_slippery": false}', max_episode_steps=50)
    flags = """--env-kwargs '{"is_slippery": false}' --max-episode-steps 50"""
    assert command["command"].endswith(flags)


task("ManyMasked", action_space=Discrete(8000), info=lambda self: {"action_mask": [1] * 8000})
task(
    "SlowReset",
    reset=lambda self, seed=None, options=None: time.sleep(0.3) or Task.reset(self, seed),
)


@pytest.mark.parametrize("name", ["ManyMasked", "SlowReset"])
def test_the_seconds_are_kept(name, monkeypatch):
    monkeypatch.setattr(check_env, "MOST_STEPS", 100_000)
    make = lambda: gym.make(f"Checked{name}-v0")  # noqa: E731
    begin = time.perf_counter()
    check_env.watch(make, 1.5)
    assert time.perf_counter() - begin < 6


def test_a_slow_environment_is_played_too():
    """As few rows as a play may have."""
    make = lambda: gym.make("CheckedTask-v0")  # noqa: E731
    seen = check_env.watch(make, 0.2)
    check_env.repeat(make, seen, 8)
    check_env.play_two(make, seen, 8)
    assert seen.plays["first"] == seen.plays["again"] == seen.plays["beside another"]
    assert len(seen.plays["first"]) == 8


def test_one_line_for_bad_input():
    with pytest.raises(SystemExit, match="error: --env-id Nothing-v0"):
        check("Nothing-v0")
    with pytest.raises(SystemExit, match="error: --seconds must be positive"):
        check_env.main(check_env.Args("CartPole-v1", seconds=0))


def test_from_any_folder(tmp_path):
    """The exit status says whether something is wrong; --json has all of it."""
    (tmp_path / "mine.py").write_text("import tests.test_check_env\n")
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
    assert [line["topic"] for line in record["lines"] if line["mark"]] == ["time limit"]
