"""check_env finds each fault, and nothing in environments that are right or only nearly odd."""

import re
import shlex
import sys

import gymnasium as gym
import numpy as np
import pytest
import tyro
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text, Tuple

from cleanrl_lite.tools import check_env
from tests import helpers

BYTES = Box(0, 255, (3,), np.uint8)
IMAGE = Box(0, 255, (40, 40, 3), np.uint8)
REALS = Box(-np.inf, np.inf, (3,))
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


def task(name, members):
    """Registers CheckedNAME-v0, a Task but for these members."""
    cls = type(name, (Task,), members)
    limit = cls.registered
    gym.register(f"Checked{name}-v0", cls, max_episode_steps=limit, disable_env_checker=True)
    return name


def fault(name, expected, **members):
    FAULTS.append((task(name, members), expected))


def right(name, script, **members):
    RIGHT.append((task(name, members), script))


def draw(self):
    return Task.draw(self)


def shows(function):
    """A draw that makes something of three numbers between -1 and 1."""
    return lambda self: function(draw(self))


def clocked(function):
    """The same, of the numbers and the step."""
    return lambda self: function(draw(self), self.steps)


def reseeding(seed_of):
    """A reset that seeds the generator itself, with seed_of(self, seed)."""

    def reset(self, seed=None, options=None):
        Task.reset(self, seed=seed)
        self._np_random = np.random.default_rng(seed_of(self, seed))
        return self.draw(), self.info()

    return reset


def remembered(self, seed):
    self.seed = self.seed if seed is None else seed
    return self.seed


def first_only(self, seed=None, options=None):
    return Task.reset(self, 0 if self._np_random is None else None)


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


def free(self):
    SHARED["alive"] = 0


def picture(self):
    return self.np_random.integers(1, 255, (40, 40, 3), np.uint8)


def beginning(self):
    """Another picture at the beginning, as where a weapon is drawn; then nothing tells the time."""
    return picture(self) * np.uint8(self.steps > 0)


def clock_in_picture(self):
    image = picture(self)
    image[0, 0] = self.steps
    return image


def after(steps):
    return dict(ends=lambda self: (self.steps == steps, False))


def rounds(self):
    return self.steps == 20 or (self.steps % 5 == 0 and self.np_random.random() < 0.4), False


def masked(self):
    self.valid = np.int8(self.np_random.permutation([1, 1, 0, 0]))
    return {"action_mask": self.valid}


def parts(**spaces):
    """An observation of these Boxes."""

    def shown(self):
        return {key: self.np_random.random(box.shape, np.float32) for key, box in spaces.items()}

    return dict(observation_space=Dict(spaces), draw=shown)


THREE = Box(-1, 1, (3,))
images = dict(observation_space=IMAGE, registered=None, **after(80))
late = "WRONG time limit: terminated in .* after exactly 20 steps: probably"
globally = dict(draw=lambda self: np.random.uniform(-1, 1, 3).astype(np.float32))
endless = dict(ends=lambda self: (False, False))
# seeds and random numbers
fault("Unseeded", "WRONG seeds: other episodes", reset=reseeding(lambda self, seed: None))
fault("OneSeed", "WRONG seeds: each reset.. without a seed begins", reset=reseeding(remembered))
fault("SameGames", "WRONG seeds: seeds 1, 2 and 3 gave the same", reset=first_only)
fault("GlobalNumpy", "note seeds: it draws from random, np.random or torch", **globally)
fault("Reseeds", "WRONG instances: differs", reset=global_reset, **globally)
# instances
fault("Shared", "WRONG instances: differs while a second instance", draw=shared_draw)
fault("Single", "note instances: .*the robot is in use", __init__=only_one, close=free)
# the time limit
fault("Late", late, **after(20))
fault("Both", late, ends=lambda self: (self.steps == 20,) * 2)
fault("Endless", "note time limit: no episode ended", registered=None, **endless)
fault("InImages", "WRONG time limit: terminated in .* 80 steps", draw=beginning, **images)
# observations
too_far = shows(lambda obs: obs + np.float32([2, 0, 0]))
fault("TooFar", "note observations: leaves its space by", draw=too_far)
choice = dict(observation_space=Discrete(3), draw=lambda self: int(self.np_random.integers(5)))
fault("WrongChoice", "WRONG observations: obs leaves Discrete.3.: 0.0 to 4.0", **choice)
blind = shows(lambda obs: 0 * obs + np.float32(0.5))
fault("Blind", "WRONG observations: all 3 numbers are the same", draw=blind)
seconds = dict(observation_space=REALS, draw=shows(lambda obs: 1e4 + 1e-3 * obs))
fault("Clock", "note observations: up to 1e.04", **seconds)
not_finite = clocked(lambda obs, steps: obs * np.float32(np.nan if steps == 20 else 1))
fault("NotFinite", "WRONG observations: not finite", draw=not_finite)
fractions = dict(observation_space=BYTES, draw=shows(lambda obs: 10 + obs))
fault("Fractions", "WRONG observations: declared is uint8", **fractions)
shorter = r"WRONG observations: shapes \[\(2,\)\], declared is \(3,\)"
fault("Shorter", shorter, draw=shows(lambda obs: obs[:2]))
# rewards, infos, actions
fault("NanReward", "WRONG rewards: NaN", reward=lambda self, action: np.nan)
fault("LargeReward", "note rewards: up to 5e.03", reward=lambda self, action: 5000.0 * action)
fault("NoReward", "note rewards: all are 0", reward=lambda self, action: 0.0)
unbounded = dict(action_space=Box(-np.inf, np.inf, (2,)))
fault("Unbounded", "note actions: bounds are -inf to inf", **unbounded)
fault("Fixed", "note actions: bounds are -1.0 to 1.0", action_space=Box(np.float32([-1, 1]), 1))
fault("Aside", "note actions: bounds are 10.0 to 20.0", action_space=Box(10, 20, (2,)))
# spaces
camera = dict(draw=lambda self: {"view": picture(self), "place": draw(self)})
camera["observation_space"] = Dict(view=IMAGE, place=THREE)
fault("Camera", r"note script: ppo_image sees the image only, not obs\['place'\]", **camera)
two = dict(draw=lambda self: {"left": picture(self), "right": picture(self)})
two["observation_space"] = Dict(left=IMAGE, right=IMAGE)
fault("TwoCameras", "WRONG script: ppo_image: .* must be one uint8 image", **two)
endless_arm = dict(observation_space=IMAGE, draw=picture, action_space=unbounded["action_space"])
bounds = "note actions: bounds are -inf|WRONG script: ppo_image: .* finite bounds"
fault("UnboundedInImages", bounds, **endless_arm)
choices = Tuple((Discrete(2), MultiDiscrete([2, 3])))
fault("MixedChoices", "WRONG script: ppo_hybrid: .* must be Discrete or Box", action_space=choices)
words = dict(observation_space=Dict(x=THREE, said=Text(5)))
words["draw"] = shows(lambda obs: {"x": obs, "said": "go"})
fault("Words", "WRONG script: not a few numbers", **words)
several = dict(observation_space=Tuple([ROBOT] * 2), action_space=Tuple([Discrete(2)] * 2))
several["draw"] = shows(lambda obs: (obs[:2], obs[:2]))
fault("SeveralAgents", "WRONG script: a team", **several)

right("Plain", "ppo")
right("Robot", "ppo_continuous", action_space=ROBOT)
deterministic = dict(reward=lambda self, action: 1.0, **endless)
right("Repeats", "ppo", draw=clocked(lambda _, t: np.float32([t / 40, 0.5, 1])), **deterministic)
right("Limited", "ppo", ends=lambda self: (False, self.steps == 20))
clock = clocked(lambda obs, t: np.append(obs[:2], np.float32(t / 20)))
right("ClockInObs", "ppo", draw=clock, **after(20))
ring = clocked(lambda obs, t: np.float32([np.sin(t / 3), np.cos(t / 3), obs[0]]))
right("RingClock", "ppo", draw=ring, **after(20))
right("ClockInImage", "ppo_image", draw=clock_in_picture, **images)
right("Rounds", "ppo", ends=rounds)
right("Bandit", "ppo", ends=lambda self: (True, False))
right("Longs", "ppo", observation_space=BYTES, draw=lambda self: self.np_random.integers(0, 256, 3))
large = dict(observation_space=REALS, draw=shows(lambda obs: 1e4 * obs))
right("LargeButNormalized", "ppo_continuous", action_space=ROBOT, **large)
valid_only = dict(info=masked, reward=lambda self, action: float(1 / self.valid[action - 1]))
right("Masked", "ppo_masked", action_space=Discrete(4, start=1), **valid_only)
masks = dict(action_masks=lambda self: np.int8([1, 0, 0, 1, 1]))
masks["reward"] = lambda self, action: 1 / (action[0] == 0 < action[1])
right("Parts", "ppo_masked", action_space=MultiDiscrete([2, 3]), **masks)
nested = dict(observation_space=Dict(x=THREE, at=Tuple((Discrete(2), Discrete(2)))))
nested["draw"] = shows(lambda obs: {"x": obs, "at": (1, 0)})
right("Nested", "ppo", **nested)
goals = parts(achieved_goal=THREE, desired_goal=THREE)
goals["compute_reward"] = lambda self, achieved, desired, info: np.ones(len(achieved))
right("Goals", "sac_her", action_space=ROBOT, **goals)
critic = parts(state=THREE, privileged_state=THREE)
right("Critic", "ppo_continuous_asymmetric", action_space=ROBOT, **critic)
team = parts(agents=Box(-1, 1, (2, 3)), state=THREE)
right("Team", "ppo_multiagent", action_space=MultiDiscrete([2, 3]), **team)
right("Mixed", "ppo_hybrid", action_space=Tuple((Discrete(2), ROBOT)))
RIGHT.append(("FrozenLake-v1", "ppo"))
RIGHT.append(pytest.param("Hopper-v4", "ppo_continuous", marks=pytest.mark.slow))
RIGHT.append(pytest.param("ALE/Breakout-v5", "ppo_atari", marks=pytest.mark.slow))


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
def test_a_fault_is_found(name, expected):
    """With what to do; and nothing else is."""
    record = check(name)
    found = findings(record)
    patterns = re.split(r"\|(?=note|WRONG)", expected)
    for pattern in patterns:
        pattern = pattern.replace(": ", ": .*", 1)
        assert any(re.match(pattern, line) for line in found), found
    assert len(found) == len(patterns), found
    assert record["wrong"] == expected.count("WRONG")


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
    assert check("Plain")["script"] == "sac_discrete"
    assert check("Robot")["script"] == "sac"
    assert check("Fixed")["script"] == "ppo_continuous"  # sac refuses it


def test_flags_of_the_command():
    assert check("Endless")["command"].endswith("--max-episode-steps 1000")
    assert check("Single")["command"].endswith("--async-envs")
    command = check("FrozenLake-v1", env_kwargs='{"is_slippery": false}', max_episode_steps=50)
    flags = """--env-kwargs '{"is_slippery": false}' --max-episode-steps 50"""
    assert command["command"].endswith(flags)


@pytest.mark.slow
def test_from_any_folder(tmp_path):
    """The exit status says whether something is wrong; --json has all of it."""
    (tmp_path / "mine.py").write_text("import tests.test_check_env\n")
    words = ["mine:CheckedLate-v0", "--seconds", "0.5", "--json", "found.json"]
    done = helpers.run([sys.executable, "-m", "cleanrl_lite.tools.check_env", *words], cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    record = helpers.read_json(tmp_path / "found.json")
    assert record["wrong"] == 1
    assert [line["topic"] for line in record["lines"] if line["mark"]] == ["time limit"]
