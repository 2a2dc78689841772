"""utils.VectorEnv and its like in processes of their own: what they hand out, what they refuse,
whose numbers they draw."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from cleanrl_lite import utils
from tests import helpers


class Careless(gym.Env):
    """Changes the action that it gets, returns the same array again and again; what it draws is
    the observation."""

    observation_space = Box(-1e9, 1e9, (2,))
    action_space = Box(-1, 1, (1,))
    end = 3

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.obs = np.zeros(2, dtype=np.float32)
        return self.obs, {}

    def step(self, action):
        action *= 10
        self.steps += 1
        self.obs[:] = np.random.random(), self.np_random.random()
        return self.obs, 1.0, self.steps == self.end, False, {}


class AfterReset(Careless):
    """The first observation of its second episode is `broken`."""

    def __init__(self, broken):
        self.broken, self.episodes = broken, 0

    def reset(self, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self.episodes += 1
        return (self.broken if self.episodes == 2 else obs), info


def test_arrays_belong_to_the_caller():
    """Nobody who keeps what was passed or returned sees it change."""
    envs = utils.vector_env([Careless, Careless], False)
    first, _ = envs.reset(seed=[1, 2])
    actions = np.full((2, 1), 0.5, dtype=np.float32)
    kept = [first, *envs.step(actions)[:4]]
    copies = [array.copy() for array in kept]
    for _ in range(4):
        envs.step(actions)
    assert (actions == 0.5).all()
    for array, copied in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copied)


@pytest.mark.parametrize("broken", [np.full(2, np.nan, np.float32), np.zeros(1, np.float32)])
def test_the_observation_of_an_automatic_reset_is_checked(broken):
    envs = utils.vector_env([lambda: AfterReset(broken)], False)
    envs.reset(seed=[1])
    with pytest.raises(
        FloatingPointError, match=r"not finite, or not of shape \(2,\): reward 0.0, obs"
    ):
        for _ in range(Careless.end):
            envs.step(np.zeros((1, 1), np.float32))


class Ends(gym.Env):
    """One step long; its observations are `obs`, whatever the space."""

    action_space = Discrete(2)

    def __init__(self, space, obs):
        self.observation_space, self.obs = space, obs

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.obs, 1.0, True, False, {}


def test_a_last_observation_of_another_shape():
    envs = utils.vector_env([lambda: Ends(Box(-1, 1, (2,)), np.zeros(3, np.float32))], False)
    envs.reset(seed=[1])
    with pytest.raises(FloatingPointError, match=r"not of shape \(2,\)"):
        envs.step(np.zeros(1, int))


def test_an_action_that_is_not_finite_is_the_agents():
    envs = utils.vector_env([Careless], False)
    envs.reset(seed=[1])
    with pytest.raises(FloatingPointError, match="the agent's actions"):
        envs.step(np.full((1, 1), np.nan, np.float32))


def test_what_is_infinite_in_float32():
    """A float64 number beyond its range would be stored as infinity."""
    envs = utils.vector_env([lambda: AfterReset(np.array([-1e39, 0]))], False)
    envs.reset(seed=[1])
    with (
        pytest.raises(
            FloatingPointError, match=r"not finite, or not of shape \(2,\): reward 0.0, obs"
        ),
        np.errstate(over="ignore"),
    ):
        for _ in range(Careless.end):
            envs.step(np.zeros((1, 1), np.float32))


class Guess(gym.Env):
    """The reward is minus the distance between the action and a number that the environment
    draws."""

    observation_space, action_space = Box(0, 1, (1,)), Box(-1, 1, (1,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        target = self.np_random.uniform(-1, 1)
        GUESSES.append(-abs(target - float(action[0])))
        return np.zeros(1, dtype=np.float32), GUESSES[-1], False, len(GUESSES) % 50 == 0, {}


GUESSES = []
gym.register("Guess-v0", Guess)


@pytest.mark.parametrize("script", ["ddpg", "td3", "sac"])
def test_random_exploration_has_its_own_stream(script, tmp_path):
    """Two uniform numbers in [-1, 1] are 2/3 apart on average; with one stream for both they
    would be equal."""
    GUESSES.clear()
    helpers.train(
        script, tmp_path, env_id="Guess-v0", num_envs=1, learning_starts=500, total_timesteps=501
    )
    assert -0.75 < np.mean(GUESSES[:500]) < -0.58
