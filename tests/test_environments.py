"""Environments that users bring, as packages have them: keyword arguments, time limits, spaces,
infos of any kind, one instance only, frames that no video can be made of, arrays for numbers."""

import json
import re
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, OneOf, Text, Tuple
from moviepy import VideoFileClip

from cleanrl_lite import utils
from tests import helpers, odd_envs

ODD = "tests.odd_envs:Odd-v0"
SIZES = dict(num_envs=2, num_steps=32, total_timesteps=256, eval_episodes=4)


@pytest.fixture(autouse=True)
def nothing_is_alive():
    odd_envs.Odd.alive = 0


def train_odd(runs_dir, env_id=ODD, script="ppo", kwargs=None, **flags):
    given = {"env_id": env_id, "env_kwargs": json.dumps(kwargs or {})}
    return helpers.train(script, runs_dir, **given, **SIZES | flags)


@pytest.mark.parametrize("async_envs", [False, True])
def test_keywords_and_limits(async_envs, monkeypatch, tmp_path):
    """In training and evaluation, worker processes too; kept by the checkpoint. An evaluation
    imports the module only if it is named again."""
    kwargs = dict(reward=2.5)
    flags = dict(kwargs=kwargs, max_episode_steps=7, async_envs=async_envs)
    run_dir, returns = train_odd(tmp_path, **flags)
    points = helpers.scalars(run_dir)
    assert {length for _, length in points["charts/episodic_length"]} == {7}
    seen = [*returns, *(value for _, value in points["charts/episodic_return"])]
    assert all(value % 2.5 == 0 and value <= 17.5 for value in seen)
    assert max(seen) > 7
    assert helpers.command_line("ppo", ["--evaluate", run_dir]) == 1
    words = ["--evaluate", run_dir, "--env-id", ODD, "--eval-episodes", 4]
    monkeypatch.setattr(time, "time", lambda: 1.0)  # both at once: none replaces the other
    assert [helpers.command_line("ppo", words) for _ in range(2)] == [0, 0]
    evaluations = [helpers.read_json(path) for path in run_dir.glob("eval_*.json")]
    assert [record["returns"] for record in evaluations] == [returns] * 2


KINDS = ["ragged_infos", "our_infos", "arrays", "tensors", "objectives", "key"]
ODD_RUNS = [(kind, False) for kind in KINDS] + [("ragged_infos", True), ("arrays", True)]


@pytest.mark.parametrize("kind, async_envs", ODD_RUNS)
def test_it_trains(kind, async_envs, tmp_path):
    """With the right returns."""
    run_dir, returns = train_odd(tmp_path, kwargs={"kind": kind}, async_envs=async_envs)
    points = helpers.scalars(run_dir)
    assert {length for _, length in points["charts/episodic_length"]} == {10}
    assert all(0 <= value <= 10 for _, value in points["charts/episodic_return"])
    assert len(points["charts/episodic_return"]) == 2 * (128 // 10)
    assert len(returns) == 4
    assert max(returns) <= 10


def test_the_only_instance_is_evaluated(tmp_path):
    """At the end, when the one of training is closed; success is that of each episode's end."""
    run_dir, returns = train_odd(tmp_path, kwargs={"kind": "single"}, num_envs=1)
    assert len(returns) == 4
    assert helpers.read_json(run_dir / "eval.json")["success_rate"] == 1.0  # 10 % 4 > 0


@pytest.mark.parametrize("kind", ["won_only", "words"])
def test_success_that_is_not_always_known(kind, tmp_path):
    """Has no rate: that of the episodes that tell would be another."""
    run_dir, _ = train_odd(tmp_path, kwargs={"kind": kind})
    assert "success_rate" not in helpers.read_json(run_dir / "eval.json")


@pytest.mark.parametrize(
    "kwargs, told",
    [({"kind": "bug"}, "self.speed = self.velocity"), ({"no_such": 1}, "TypeError: .*no_such")],
)
def test_errors_of_an_environment_keep_their_traceback(kwargs, told, tmp_path, capfd):
    words = helpers.small_flags("ppo", tmp_path / "runs", env_id=ODD, env_kwargs=json.dumps(kwargs))
    assert helpers.command_line("ppo", words) == 1
    said = "".join(capfd.readouterr())
    assert "Traceback (most recent call last):" in said
    assert re.search(told, said)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kind", ["no_frames", "growing_frames"])
def test_frames_that_no_video_is_made_of(kind, tmp_path, capfd):
    """The evaluation counts all the same, and it says so."""
    _, returns = train_odd(tmp_path / "plain")
    run_dir, again = train_odd(tmp_path, kwargs={"kind": kind}, capture_video=True)
    assert again == returns
    assert helpers.read_json(run_dir / "eval.json")["returns"] == returns
    assert "no video: " in "".join(capfd.readouterr())


def test_a_video_shows_something(tmp_path):
    """Where there is no display: SDL's driver "dummy" makes some environments' frames black."""
    run_dir, _ = helpers.train("ppo", tmp_path, capture_video=True, max_episode_steps=5)
    (path,) = run_dir.rglob("*.mp4")
    with VideoFileClip(str(path)) as video:
        pixels = video.get_frame(video.duration / 2).reshape(-1, 3)
        assert len(np.unique(pixels[::10], axis=0)) > 2


# --- observations
class Shows(gym.Env):
    action_space = Discrete(2)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, seed=None, options=None):
        return self.observation_space.sample(), {}


SMALL = Box(0, 1, (2,))


@pytest.mark.parametrize(
    "space, size",
    [
        (Box(0, 255, (7, 7, 3), np.uint8), 147),  # MiniGrid's
        (Box(0, 1, ()), 1),
        (Box(0, 1, (5000,)), 5000),  # a vector already
        (Discrete(500), 500),
        (OneOf([Discrete(2), SMALL]), 3),
        (Dict(goal=SMALL, inner=Tuple([SMALL, Discrete(3)])), 7),
    ],
)
def test_observations_that_become_vectors(space, size):
    env = utils.flatten(Shows(space))
    assert env.observation_space.shape == (size,) == env.reset()[0].shape


BYTES = Box(0, 255, (2,), np.uint8)
PARTS = [(BYTES, [300, -1]), (Box(0, 9, (1,), np.int64), np.array([np.nan])), (Discrete(3), -1)]
PARTS += [(Discrete(3), 3), (MultiBinary(2), np.array([256, 0])), (Discrete(3, start=5), 2)]


@pytest.mark.filterwarnings("ignore:.*invalid value")
@pytest.mark.parametrize("part, value", PARTS)
def test_parts_that_the_type_cannot_hold(part, value):
    """Refused where they become a vector; a type that holds them does not matter."""
    env = utils.flatten(Shows(Dict(at=SMALL, whole=Tuple([part]), bytes=BYTES)))
    good = {**env.unwrapped.observation_space.sample(), "bytes": [7.0, 255.0], "at": [0.5, 9.0]}
    assert {7, 255, 0.5, 9} <= {*env.observation(good).tolist()}
    with pytest.raises(SystemExit, match=r"^error: observation [^\n]* is not in"):
        env.observation({**good, "whole": (value,)})


@pytest.mark.parametrize("space", [Box(0, 255, (96, 96, 3), np.uint8), Text(20)])
def test_observations_that_do_not(space):
    """By themselves, and in a Dict whose other parts would do."""
    for whole in (space, Dict({"position": SMALL, "camera": space})):
        with pytest.raises(SystemExit, match=r"not a few numbers.*convert them.*ppo_image\.py"):
            utils.flatten(Shows(whole))


# --- scaling, and the guide
@pytest.mark.slow
def test_a_large_constant(tmp_path):
    """ppo_continuous normalises in float64: in float32 the sign would be lost."""
    flags = dict(num_steps=256, total_timesteps=8192, learning_rate=3e-3, update_epochs=10)
    _, returns = train_odd(tmp_path, "tests.odd_envs:Seconds-v0", "ppo_continuous", **flags)
    assert np.mean(returns) > 9


LARGE = dict(env_id="tests.probe_envs:Large-v0", observations=1e6, rewards=-1e3)


def test_scaled_observations_and_rewards(monkeypatch):
    """Of seeds that were not measured: mean 0 and variance 1, rewards of size 1; the ordinary
    ones are 1e6 and 1e3."""
    monkeypatch.syspath_prepend(helpers.ROOT / "docs/guides")
    env, observations, rewards = gym.make("scaled:Scaled-v0", **LARGE), [], []
    env.action_space.seed(5)
    for seed in range(20):
        env.reset(seed=seed + 100)
        for _ in range(200):
            obs, reward, *_ = env.step(env.action_space.sample())
            observations.append(obs)
            rewards.append(reward)
    assert obs.dtype == np.float32
    assert np.abs(np.mean(observations, 0)).max() < 0.3
    assert np.abs(np.std(observations, 0) - 1).max() < 0.3
    assert abs(np.sqrt(np.mean(np.square(rewards))) - 1) < 0.3
