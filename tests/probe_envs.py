"""Environments so small that the right values and actions are known. Use as --env-id
tests.probe_envs:ProbeCorner-v0.

Those that exist for both kinds of action take `continuous`; the ids end in Discrete-v0 and Box-v0.
"""

import os
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Tuple

ACTIONS = []  # what Probe environments of this process were given, where a test asks for it
TRANSITIONS = []  # the same for Logged


class Probe(gym.Env):
    """Base: one number as observation, one number (or one of two actions) as action."""

    observation_space = Box(-10.0, 10.0, (1,), np.float32)
    metadata = dict(render_modes=["rgb_array"])

    def __init__(self, continuous=False, render_mode=None):
        self.render_mode = render_mode
        self.action_space = Box(-1.0, 1.0, (1,), np.float32) if continuous else Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.first(), {}

    def first(self):
        return self.vector(0)

    def vector(self, *numbers):
        return np.array(numbers, dtype=np.float32)

    def render(self):
        return np.zeros((64, 64, 3), dtype=np.uint8)


class Constant(Probe):
    """One step, reward 1: the value is 1."""

    def step(self, action):
        ACTIONS.append(action)
        return self.vector(0), 1.0, True, False, {}


class RightAction(Probe):
    """One step; the observation is -1 or 1. Two actions: its sign says which one is right. Box:
    half of it is right."""

    def first(self):
        self.sign = self.np_random.choice([-1, 1])
        return self.vector(self.sign)

    def step(self, action):
        if isinstance(self.action_space, Box):
            reward = -float((action[0] - 0.5 * self.sign) ** 2)
        else:
            reward = float(action == (self.sign + 1) // 2)
        return self.vector(self.sign), reward, True, False, {}


class Grid(RightAction):
    """RightAction with small images, as MinAtar's: which of two pixels is on says it."""

    observation_space = Box(0, 1, (10, 10, 4), bool)

    def vector(self, sign):
        image = np.zeros((10, 10, 4), dtype=bool)
        image[2, 7 * (sign > 0), 1] = True
        return image


class Signs(Probe):
    """Frames of games: the one of now shows a sign, left or right, and below it whether the action
    before was the one that the last sign named. If so, this step pays 1. Time limits end games.

    With gamma = 0.8 each further step is worth 1, so the right action 0.8 / (1 - 0.8) = 4 and the
    other one 0.8 less.
    """

    observation_space = Box(0, 255, (84, 84), np.uint8)

    def first(self):
        self.was_right = 0
        return self.frame()

    def frame(self):
        self.sign = int(self.np_random.integers(2))
        return self.draw(self.sign, self.was_right)

    @staticmethod
    def draw(sign, was_right):
        frame = np.zeros((84, 84), np.uint8)
        frame[10:40, 42 * sign : 42 * sign + 42] = 255
        frame[50:80] = 255 * was_right
        return frame

    def step(self, action):
        reward, self.was_right = float(self.was_right), int(action == self.sign)
        return self.frame(), reward, False, bool(self.np_random.random() < 0.1), {}


class Truncated(Probe):
    """From the start (reward -10) into a state that pays 1 a step for ever; half of its steps hit
    the time limit.

    With gamma = 0.9 that state is worth 1 / (1 - 0.9) = 10 and the start -10 + 0.9 * 10 = -1.
    Taking the truncation as an end makes the former 1 / (1 - 0.9 / 2) = 1.8; bootstrapping from
    the next episode's start makes it less still.
    """

    def step(self, action):
        self.t += 1
        if self.t == 1:
            return self.vector(1), -10.0, False, False, {}
        return self.vector(1), 1.0, False, bool(self.np_random.random() < 0.5), {}


class Corner(Probe):
    """One step; the right action is the corner (high, low, high) of a box with uneven bounds."""

    low, high = np.array([[-1, -2, 0], [3, 1, 10]], dtype=np.float32)
    target = np.array([3, -2, 10], dtype=np.float32)

    def __init__(self, render_mode=None):
        self.action_space, self.render_mode = Box(self.low, self.high), render_mode

    def step(self, action):
        assert self.action_space.contains(action), f"{action} is out of bounds"
        distance = np.abs((action - self.target) / (self.high - self.low)).mean()
        return self.vector(0), 1.0 - float(distance), True, False, {}


class Structured(Probe):
    """One step; the observation is structured, and the reward is the number that its Discrete
    part holds."""

    def __init__(self, kind, continuous=False, render_mode=None):
        super().__init__(continuous, render_mode)
        self.kind, number, box = kind, Discrete(3), Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = dict(
            dict=Dict(mode=number, position=box),
            bytes=Box(0, 255, (1,), np.uint8),
            sequence=Sequence(number),
            image=Box(0, 255, (64, 64, 3), np.uint8),
        )[kind]

    def first(self):
        self.number = int(self.np_random.integers(3))
        position = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return dict(
            dict=dict(mode=self.number, position=position),
            bytes=np.array([self.number], dtype=np.uint8),
            sequence=(self.number,),
            image=np.zeros((64, 64, 3), dtype=np.uint8),
        )[self.kind]

    def step(self, action):
        reward = float(self.number)
        return self.first(), reward, True, False, {}


class Scripted(Probe):
    """Observation (episode, step); episodes last 1, 2, 3, ... 7, 1, ... steps and end by
    termination and truncation in turn. The reward is random. The first episode of a seed has a
    length that depends on the seed."""

    observation_space = Box(-1e9, 1e9, (2,), np.float32)
    episode = -1

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.episode = seed % 5
        return super().reset(seed=seed)

    def first(self):
        self.episode += 1
        return self.vector(self.episode / 10, 0)

    def step(self, action):
        self.t += 1
        over = self.t == self.episode % 7 + 1
        obs = self.vector(self.episode / 10, self.t)
        return (
            obs,
            float(self.np_random.normal()),
            over and self.episode % 2 == 0,
            over and self.episode % 2 == 1,
            {},
        )


class Distance(Probe):
    """Ten steps; each info has a distance, 0.5 at the last one."""

    def step(self, action):
        self.t += 1
        return self.vector(self.t), 1.0, self.t == 10, False, dict(distance=5 / self.t)


class Steady(Scripted):
    """Scripted, but what is seen is a feature that hardly varies, in float64 as MuJoCo's:
    float32 has 0.001 there. The end of one episode pays much."""

    observation_space = Box(-1e9, 1e9, (1,), np.float64)

    def __init__(self, render_mode=None):
        super().__init__(continuous=True, render_mode=render_mode)

    def vector(self, *numbers):
        return 12345.678 + 1e-3 * self.np_random.normal(size=1)

    def step(self, action):
        obs, reward, *ends, info = super().step(action)
        return obs, 1e4 if self.episode == 25 and any(ends) else reward, *ends, info


class Logged(Scripted):
    """Scripted, with actions of another kind: three, or a box with uneven bounds. Actions are
    kept in ACTIONS, whole transitions (environment, obs, action, reward, next_obs, terminated)
    in TRANSITIONS."""

    array = None

    def __init__(self, continuous=False, render_mode=None):
        self.render_mode = render_mode
        self.action_space = Box(Corner.low, Corner.high) if continuous else Discrete(3)

    def reset(self, seed=None, options=None):
        self.obs, info = super().reset(seed=seed)
        self.array = self.obs.copy() if self.array is None else self.array
        self.array[:] = self.obs
        return self.array, info

    def step(self, action):
        assert self.action_space.contains(action), f"{action} is out of bounds"
        obs, reward, terminated, truncated, info = super().step(action)
        ACTIONS.append(np.array(action))
        TRANSITIONS.append((self, self.obs, np.array(action), reward, obs, terminated))
        self.obs = obs
        self.array[:] = obs  # the same array each time, as some simulators have it
        return self.array, reward, terminated, truncated, info


class Faulty(Constant):
    """Fails at its step FAULT_STEP, counted over all episodes, in the way that FAULT says. `obs`
    and `reward` are given there instead of the right ones."""

    FAULTS = dict(
        nan_reward=dict(reward=float("nan")),
        huge_reward=dict(reward=1e39),
        nan_obs=dict(obs=np.float32([np.nan])),
        inf_obs=dict(obs=np.float32([np.inf])),
        huge_obs=dict(obs=np.array([-1e39])),  # infinite in float32
        wrong_shape=dict(obs=np.zeros(3, dtype=np.float32)),
        broadcasts=dict(obs=np.zeros((), dtype=np.float32)),
    )
    steps = 0

    def step(self, action):
        self.steps += 1
        obs, reward, *rest = super().step(action)
        fault = os.environ["FAULT"] if self.steps == int(os.environ["FAULT_STEP"]) else ""
        if fault == "raises":
            raise ValueError("the simulator says no")
        wrong = self.FAULTS.get(fault, {})
        return wrong.get("obs", obs), wrong.get("reward", reward), *rest

    def reset(self, seed=None, options=None):
        if os.environ["FAULT"] == "hangs" and self.steps == int(os.environ["FAULT_STEP"]):
            Path("hangs").touch()
            time.sleep(1000)
        return super().reset(seed=seed)


class Reach(Probe):
    """A goal environment, 20 steps: a point that starts in the middle of a square has to get
    near a random goal, and learns only whether it is there. Never terminates."""

    action_space = Box(-1.0, 1.0, (2,), np.float32)
    observation_space = Dict(
        {name: Box(-5, 5, (2,)) for name in ("observation", "achieved_goal", "desired_goal")}
    )

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def first(self):
        self.goal, self.point = self.np_random.uniform(-1, 1, 2), np.zeros(2)
        return self.obs()

    def obs(self):
        parts = dict(observation=self.point, achieved_goal=self.point, desired_goal=self.goal)
        return {name: part.astype(np.float32) for name, part in parts.items()}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.1).astype(np.float32)

    def step(self, action):
        self.t, self.point = self.t + 1, self.point + 0.2 * action
        reward = float(self.compute_reward(self.point, self.goal, {}))
        return self.obs(), reward, False, self.t == 20, dict(is_success=reward == 0)


class Recall(RightAction):
    """Four steps. The first observation is -1 or 1, the others are 0; the last action has to be
    the one it names. Box: to have its sign."""

    def step(self, action):
        self.t += 1
        named = (self.sign + 1) // 2
        if isinstance(self.action_space, Box):
            named = action[0] > 0
            action = self.sign > 0
        return self.vector(0), float(self.t == 4 and action == named), self.t == 4, False, {}


class Numbered(Scripted):
    """Scripted as a goal environment: what is achieved says when: (the environment's number,
    episode, step)."""

    observation_space = Dict(
        achieved_goal=Box(-1e9, 1e9, (3,)),
        desired_goal=Box(-1e9, 1e9, (3,)),
        observation=Box(-1e9, 1e9, (2,)),
    )

    def reset(self, seed=None, options=None):
        self.number = self.number if seed is None else seed % 2**20
        return super().reset(seed=seed)

    def vector(self, *numbers):
        achieved = np.array([self.number, self.episode, self.t], dtype=np.float32)
        observation = np.array(numbers, dtype=np.float32)
        return dict(
            achieved_goal=achieved, desired_goal=np.full(3, -1, np.float32), observation=observation
        )

    def compute_reward(self, achieved_goal, desired_goal, info):
        return achieved_goal[:, 2] - 10 * desired_goal[:, 2]

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(self.t + 10), *rest  # compute_reward's


class Masked(Probe):
    """One step; an action has two parts. In the first, choice 0 pays 1 but is valid in half of
    the episodes only, 1 pays 0.5, 2 nothing; in the second, choice 1 pays 1. So the value is
    0.75 + 1. `source` is where the mask is."""

    def __init__(self, source="info", render_mode=None):
        super().__init__(render_mode=render_mode)
        self.source, self.action_space = source, MultiDiscrete([3, 2])
        if source == "obs":
            self.observation_space = Dict(
                observation=self.observation_space, action_mask=MultiBinary(5)
            )
        if source == "method":
            self.action_masks = lambda: self.mask.astype(bool).tolist()

    def reset(self, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        return obs, self.info()

    def first(self):
        self.mask = np.array([self.np_random.integers(2), 1, 1, 1, 1], dtype=np.int8)
        return (
            dict(observation=self.vector(3), action_mask=self.mask)
            if self.source == "obs"
            else self.vector(3)
        )

    def info(self):
        infos = dict(
            info=dict(action_mask=self.mask), parts=dict(action_mask=(self.mask[:3], self.mask[3:]))
        )
        return (infos | dict(wrong=dict(action_mask=self.mask[:4]))).get(self.source, {})

    def step(self, action):
        ACTIONS.append(action)
        assert self.mask[action[0]] or self.source == "none", "an invalid action"
        reward = (1.0, 0.5, 0.0)[action[0]] + float(action[1])
        return self.first(), reward, True, False, self.info()


class Team(Probe):
    """Three agents, `length` steps. Each sees its own sign and has to choose 0 for -1, 1 for 1;
    a step pays the part of them that does, and a bonus of 0 or 1 that only the state shows. The
    third choice is never valid."""

    def __init__(self, length=1, render_mode=None):
        super().__init__(render_mode=render_mode)
        self.length, self.action_space = length, MultiDiscrete([3, 3, 3])
        agents, state = Box(-10.0, 10.0, (3, 1), np.float32), Box(-10.0, 10.0, (2,), np.float32)
        masks = MultiBinary((3, 3))
        self.observation_space = Dict(agents=agents, state=state, action_mask=masks)

    def first(self):
        self.signs, self.bonus = self.np_random.choice([-1.0, 1.0], 3), self.np_random.integers(2)
        mask = np.array([[1, 1, 0]] * 3, dtype=np.int8)
        return dict(
            agents=self.signs.astype(np.float32)[:, None],
            state=self.vector(self.bonus, self.t),
            action_mask=mask,
        )

    def step(self, action):
        ACTIONS.append(action)
        assert max(action) < 2, "an invalid action"
        self.t += 1
        reward = float(np.mean(action == (self.signs > 0)) + self.bonus)
        over = self.t == self.length
        return self.first(), reward, over and self.length == 1, over and self.length > 1, {}


class Privileged(Probe):
    """One step: the state shows a sign, the privileged state a bonus; the action that pays most
    is half the sign."""

    def __init__(self, render_mode=None):
        super().__init__(continuous=True, render_mode=render_mode)
        self.observation_space = Dict(
            state=Box(-10.0, 10.0, (1,), np.float32),
            privileged_state=Box(-10.0, 10.0, (2,), np.float32),
        )

    def first(self):
        self.sign = self.np_random.choice([-1.0, 1.0])
        self.bonus = float(self.np_random.integers(2))
        return dict(
            state=self.vector(self.sign), privileged_state=self.vector(self.sign, self.bonus)
        )

    def step(self, action):
        ACTIONS.append(action)
        reward = 1 + self.bonus - abs(float(action[0]) - self.sign / 2)
        return self.first(), reward, True, False, {}


class Mixed(Probe):
    """One step. The action that pays most, 3: the choice 3 of 2 to 4, the number 7 of 0 to 10,
    the observed sign."""

    def __init__(self, kind="right", render_mode=None):
        super().__init__(render_mode=render_mode)
        inner = Dict(number=Box(0.0, 10.0, (1,), np.float32), sign=Discrete(2))
        self.action_space = Tuple((Discrete(3, start=2), inner))
        if kind == "whole":
            self.action_space = Tuple((Discrete(3), Box(0, 5, (1,), np.int64)))

    def first(self):
        self.sign = int(self.np_random.integers(2))
        return self.vector(self.sign)

    def step(self, action):
        ACTIONS.append(action)
        assert self.action_space.contains(action), action
        choice, inner = action
        near = 1 - abs(float(inner["number"][0]) - 7) / 10
        # compiling changes rounding
        reward = float(choice == 3) + round(near, 1) + float(inner["sign"] == self.sign)
        return self.first(), reward, True, False, {}


class Alone(gym.Wrapper):
    """CartPole as a team of one, who sees the state."""

    def __init__(self, render_mode=None):
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        space = self.env.observation_space
        agents = Box(space.low[None], space.high[None])
        self.observation_space = Dict(agents=agents, state=space)
        self.action_space = MultiDiscrete([2])

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed)
        return dict(agents=obs[None], state=obs), info

    def step(self, action):
        obs, *rest = self.env.step(action[0])
        return dict(agents=obs[None], state=obs), *rest


class Spaced(Constant):
    """Another action space; refuses what is out of bounds."""

    def __init__(self, action_space, render_mode=None):
        self.action_space, self.render_mode = action_space, render_mode

    def step(self, action):
        assert self.action_space.contains(action), f"{action} is out of bounds"
        return super().step(action)


bounds = np.sort(np.random.default_rng(0).uniform(-1, 1, (1000, 2)).astype(np.float32))
middle, half = (bounds[:, 1] + bounds[:, 0]) / 2, (bounds[:, 1] - bounds[:, 0]) / 2
# half of the distance plus the middle is above the upper bound, by rounding
EDGE = Box(*bounds[middle + half > bounds[:, 1]][:3].T)
SPACES = dict(
    Counted=Discrete(2, start=1),
    Double=Box(np.array([-0.1, 0.2]), np.array([0.1, 0.7]), dtype=np.float64),
    Edge=EDGE,
    Fixed=Box(np.float32([-1.0, 0.5]), np.float32([1.0, 0.5])),  # one number cannot be chosen
    Huge=Box(-3e38, 3e38, (2,), np.float32),  # their distance is infinite in float32
    Unbounded=Box(-np.inf, np.inf, (2,), np.float32),
)


class Plain(Constant):
    """A researcher's first environment: no render_mode, no metadata."""

    metadata = {}

    def __init__(self):
        self.action_space = Discrete(2)


class Blind(Constant):
    """Says that it cannot render only when a picture is due."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode=render_mode)

    def render(self):
        raise NotImplementedError("no pictures")


class Shows(Constant):
    """Has a render mode that nobody asked for."""

    def __init__(self, render_mode="human"):
        super().__init__(render_mode=render_mode)


class Drawn(gym.ObservationWrapper):
    """An environment's vector as an image of 42 x 36 pixels: a bar for each number, the further
    right the larger.

    Layouts: hwc; chw; hw; two_in_one, of six channels; dict, with another part beside it; two,
    one image too many.
    """

    size = 42, 36

    def __init__(self, env_id="CartPole-v1", layout="hwc", render_mode=None, **kwargs):
        super().__init__(gym.make(env_id, render_mode=render_mode, **kwargs))
        shapes = dict(chw=(3, *self.size), hw=self.size, two_in_one=(*self.size, 6))
        self.layout, shape = layout, shapes.get(layout, (*self.size, 3))
        self.observation_space = image = Box(0, 255, shape, np.uint8)
        if layout in ("dict", "two"):
            other = image if layout == "two" else Box(-1, 1, (2,), np.float32)
            self.observation_space = Dict(camera=image, other=other)

    @classmethod
    def draw(cls, numbers):
        image = np.zeros((*cls.size, 3), dtype=np.uint8)
        for rows, number in zip(np.array_split(image, len(numbers)), numbers):
            middle = int(np.clip(18 + 10 * number, 4, 32))
            rows[:, middle - 4 : middle + 4] = (255, 128, 0)
        return image

    def observation(self, obs):
        image = self.draw(obs)
        if self.layout == "dict":
            return dict(camera=image, other=np.zeros(2, dtype=np.float32))
        layouts = dict(
            chw=image.transpose(2, 0, 1), hw=image[..., 0], two_in_one=np.dstack((image, image))
        )
        return layouts.get(self.layout, image)


class Nim(Probe):
    """Two players in turn take one, two or three of ten; who takes the last one wins. Leave
    multiples of four.

    The observation is what is left, one-hot; `builtin_action` takes one.
    """

    observation_space = Box(0.0, 1.0, (11,), np.float32)

    def __init__(self, render_mode=None):
        super().__init__(render_mode=render_mode)
        self.action_space = Discrete(3)

    def first(self):
        self.left = 10
        return self.seen()

    def seen(self):
        return np.eye(11, dtype=np.float32)[self.left]

    def reset(self, seed=None, options=None):
        return super().reset(seed=seed)[0], dict(action_mask=np.arange(1, 4) <= self.left)

    def step(self, action):
        self.left -= int(action) + 1
        assert self.left >= 0
        return (
            self.seen(),
            float(self.left == 0),
            self.left == 0,
            False,
            dict(action_mask=np.arange(1, 4) <= self.left),
        )

    def builtin_action(self, obs):
        return np.array([0])


BOTH = Constant, RightAction, Recall, Truncated, Scripted, Logged, Faulty, Numbered
ONE = Corner, Plain, Blind, Shows, Masked, Reach, Drawn, Distance, Mixed, Privileged, Team, Alone
ONE += Nim, Steady, Grid


def register(name, cls, **kwargs):
    if name not in gym.registry:
        gym.register(name, cls, kwargs=kwargs)


for cls in ONE:
    register(f"Probe{cls.__name__}-v0", cls)
for name, space in SPACES.items():
    register(f"Probe{name}-v0", Spaced, action_space=space)
for ending, continuous in ("Discrete", False), ("Box", True):
    for cls in BOTH:
        register(f"Probe{cls.__name__}{ending}-v0", cls, continuous=continuous)
    for kind in ("dict", "bytes", "sequence", "image"):
        name = f"Probe{kind.title()}Obs{ending}-v0"
        register(name, Structured, kind=kind, continuous=continuous)


BOX_SCRIPTS = "ddpg", "td3", "fast_td3", "sac", "sac_her", "tqc", "crossq"


def probe(name, script):
    """The id of a probe that exists for both kinds of action, as the script wants it."""
    continuous = "continuous" in script or script in BOX_SCRIPTS
    return f"tests.probe_envs:Probe{name}{'Box' if continuous else 'Discrete'}-v0"


def large(observations=1.0, rewards=1.0, render_mode=None):
    """Pendulum-v1 with observations and rewards multiplied by constants."""
    env = gym.make("Pendulum-v1", render_mode=render_mode)
    space = env.observation_space
    env = gym.wrappers.TransformObservation(
        env,
        lambda obs: (obs * observations).astype(np.float32),
        gym.spaces.Box(space.low * observations, space.high * observations),
    )
    return gym.wrappers.TransformReward(env, lambda reward: reward * rewards)


gym.register("Large-v0", large, max_episode_steps=200)
