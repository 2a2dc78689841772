"""utils.Envs: what it hands out, what it refuses, whose numbers it draws, and that a process for
each environment changes nothing."""

import multiprocessing
import random
import signal
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from cleanrl_lite import utils
from tests import helpers, probe_envs
from tests.probe_envs import probe

WORKERS = pytest.mark.parametrize("async_envs", [False, True], ids=["sync", "workers"])


def envs_of(kind, num_envs=2, async_envs=False, seed=1):
    args = SimpleNamespace(num_envs=num_envs, async_envs=async_envs, seed=seed)
    return utils.make_envs(args, lambda args: kind())


def zeros(envs):
    return np.zeros(envs.action_space.shape, envs.single_action_space.dtype)


# --- what a step gives
@WORKERS
def test_next_obs_is_where_the_action_led(async_envs):
    """At an episode's end its last observation, whose array the environment writes to again;
    envs.obs begins the next one."""
    envs = envs_of(lambda: probe_envs.Logged(), async_envs=async_envs)
    ends = {"terminated": 0, "truncated": 0}
    returns, lengths = np.zeros(2), np.zeros(2)
    before = envs.obs
    for _ in range(60):
        next_obs, rewards, terminations, truncations, infos = envs.step(np.zeros(2, np.int64))
        assert rewards.shape == terminations.shape == truncations.shape == (2,)
        returns += rewards
        lengths += 1
        for n in range(2):
            episode, t = before[n]
            assert next_obs[n].tolist() == [episode, t + 1]
            over = t + 1 == np.rint(episode * 10) % 7 + 1  # see Scripted
            assert over == (terminations[n] or truncations[n]) == ("episode" in infos[n])
            assert terminations[n] == (over and np.rint(episode * 10) % 2 == 0)
            if over:
                ends["terminated" if terminations[n] else "truncated"] += 1
                assert envs.obs[n].tolist() == [np.float32((np.rint(episode * 10) + 1) / 10), 0]
                assert infos[n]["episode"] == {"r": pytest.approx(returns[n]), "l": lengths[n]}
                assert envs.returns[-1] == pytest.approx(returns[n]) or n == 0
                returns[n] = lengths[n] = 0
            else:
                assert (envs.obs[n] == next_obs[n]).all()
        before = envs.obs
    assert min(ends.values()) > 5
    assert len(envs.returns) == 20  # of the last episodes
    envs.close()


@WORKERS
def test_infos_of_every_step(async_envs):
    """And of the last one, as the environment gave it."""
    envs = envs_of(lambda: probe_envs.Distance(), async_envs=async_envs)
    for step in range(12):
        *_, infos = envs.step(np.zeros(2, np.int64))
        assert [info["distance"] for info in infos] == [5 / (step % 10 + 1)] * 2
    envs.close()


class Careless(gym.Env):
    """Changes the action that it gets, returns the same array again and again; what it draws is
    the observation."""

    observation_space = Box(-1e9, 1e9, (2,))
    action_space = Box(-1, 1, (1,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.obs = np.zeros(2, dtype=np.float32)
        return self.obs, {}

    def step(self, action):
        action *= 10
        self.steps += 1
        self.obs[:] = np.random.random(), self.np_random.random()
        return self.obs, 1.0, self.steps == 3, False, {}


def test_arrays_belong_to_the_caller():
    """Nobody who keeps what was passed or returned sees it change."""
    envs = envs_of(Careless)
    actions = np.full((2, 1), 0.5, dtype=np.float32)
    kept = [envs.obs, *envs.step(actions)[:4], envs.obs]
    copies = [array.copy() for array in kept]
    for _ in range(4):
        envs.step(actions)
    assert (actions == 0.5).all()
    for array, copied in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copied)


class Keeps(gym.Env):
    """Keeps its actions; its observations are `obs`, whatever the space."""

    def __init__(self, action_space=None, space=None, obs=None, reward=0.0):
        self.action_space = action_space or Discrete(2)
        self.observation_space = space or Box(-1, 1, (2,))
        self.obs, self.reward, self.actions = obs, reward, []

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action):
        self.actions.append(action)
        obs = self.reset()[0] if self.obs is None else self.obs
        return obs, self.reward, True, False, {}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_are_clipped_to_their_bounds(dtype):
    """Of each dimension, in the type of the space."""
    env = Keeps(Box(np.array([-1, 2], dtype), np.array([0.1, np.inf], dtype), dtype=dtype))
    envs = envs_of(lambda: env, num_envs=1)
    envs.step(np.array([[5.0, -5.0]], np.float32))
    envs.step(np.array([[-5.0, 1e20]], np.float32))
    assert [action.dtype for action in env.actions] == [dtype] * 2
    assert env.actions[0].tolist() == [dtype(0.1), 2.0]
    assert env.actions[1].tolist() == [-1.0, np.float32(1e20)]
    assert all(env.action_space.contains(action) for action in env.actions)


# --- what it refuses, in one line
@WORKERS
def test_an_action_that_is_not_finite_is_the_agents(async_envs):
    envs = envs_of(Careless, async_envs=async_envs)
    with pytest.raises(SystemExit, match=r"^error: the agent's actions are \[\[nan\] \[ 0\.\]\]$"):
        envs.step(np.array([[np.nan], [0]], np.float32))
    envs.close()


INTEGERS = Box(0, 255, (2,), np.uint8)
REFUSED = {
    "nan": (None, np.float32([np.nan, 0]), 0.0, "the environments gave"),
    "infinite_in_float32": (None, np.array([1e39, 0]), 0.0, "the environments gave"),
    "reward": (None, None, np.nan, "rewards .*nan"),
    "shape": (None, np.zeros(3, np.float32), 0.0, "is not in Box"),
    "uint8": (INTEGERS, np.array([300, -1]), 0.0, r"\[300 -1\] is not in Box\(0, 255"),
    "fraction": (INTEGERS, np.array([0.5, 1.0]), 0.0, "is not in Box"),
}


@pytest.mark.filterwarnings("ignore:.*invalid value", "ignore:.*overflow")
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_type_cannot_hold(name):
    """Refused, not cast, at an episode's end too."""
    space, obs, reward, told = REFUSED[name]
    envs = envs_of(lambda: Keeps(space=space, obs=obs, reward=reward))
    with pytest.raises(SystemExit, match=f"^error: [^\n]*{told}"):
        envs.step(zeros(envs))


def test_what_fits_is_cast():
    """float64 into float32, whole numbers into integers."""
    for space, obs in (None, np.array([0.25, 1.0])), (INTEGERS, np.array([7.0, 255.0])):
        envs = envs_of(lambda space=space, obs=obs: Keeps(space=space, obs=obs))
        next_obs, *_ = envs.step(zeros(envs))
        assert next_obs.dtype == envs.single_observation_space.dtype
        assert next_obs.tolist() == [obs.tolist()] * 2


# --- random numbers
class Drawing(gym.Env):
    """Its observation is what it draws from the process' own random generators."""

    observation_space = Box(-np.inf, np.inf, (3,))
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        drawn = [random.random(), np.random.random(), torch.rand(()).item()]
        return np.array(drawn, dtype=np.float32), {}


def test_each_worker_draws_its_own_random_numbers():
    """A fork has the generators of the main process, and so would all workers; the same seeds give
    the same numbers, which are not the main process' own; nor are those of the largest seed."""
    envs = envs_of(Drawing, num_envs=3, async_envs=True, seed=2**32 - 1)
    drawn = envs.obs
    envs.begin()
    assert (drawn == envs.obs).all()
    envs.begin(step=100)
    envs.close()
    for column in np.vstack([drawn, envs.obs, drawn_by_a_run()[0]]).T:
        assert len(set(column.tolist())) == 7


def drawn_by_a_run():
    """By its one environment, and the signals that it blocks."""
    utils.seed_all(2**32 - 1)
    return envs_of(Drawing, num_envs=1).obs.tolist(), signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_program_may_run_a_script_in_a_process_of_its_own():
    """That is no worker."""
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()
    fork.Process(target=lambda: queue.put(drawn_by_a_run())).start()
    assert queue.get() == drawn_by_a_run()


class Seeded(Keeps):
    """Keeps the seeds of its resets."""

    def reset(self, seed=None, options=None):
        SEEDS.append(seed)
        return super().reset(seed=seed)


SEEDS = []


def test_seeds():
    """The first environment has the run's own, as published runs with one have; no two
    environments, of neighbouring seeds or after a resume, share one; nor does the action space."""
    found = []
    for seed in (1, 2, 3):
        envs = envs_of(lambda: Seeded(Discrete(10**6)), num_envs=4, seed=seed)
        given = []
        for step in (0, 0, 1000, 2000):
            SEEDS.clear()
            envs.begin(step)
            given.append([*SEEDS, envs.action_space.np_random.bit_generator.seed_seq.entropy])
        assert given[0] == given[1]
        assert given[0][0] == seed
        found += [*given[1], *given[2], *given[3]]
    assert len(set(found)) == len(found) == 45
    assert all(0 <= seed < 2**31 for seed in found)


# --- whole runs
@pytest.mark.parametrize("script", ["ppo_continuous", "dqn"])
def test_async_is_sync(script, tmp_path):
    """One process for each environment: the same run."""
    flags = dict(env_id=probe("Scripted", script), num_envs=3, total_timesteps=480)
    flags |= helpers.rollout_only(script, num_steps=40)
    one, _ = helpers.train(script, tmp_path / "one", **flags)
    other, _ = helpers.train(script, tmp_path / "other", async_envs=True, **flags)
    helpers.assert_same_run(one, other)
