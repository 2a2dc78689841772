"""Environments that users bring: keyword arguments, time limits, observations, modules,
statistics of their own."""

import json
import re
import sys
from ctypes.util import find_library

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from gymnasium.utils.env_checker import check_env
from moviepy import VideoFileClip

from cleanrl_lite import utils
from tests import helpers

OWN = """
import gymnasium as gym
import numpy as np


class Endless(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (4, 3)), gym.spaces.Discrete(2)

    def __init__(self, reward, render_mode=None):
        self.reward, self.render_mode = np.float32(reward), render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((4, 3), dtype=np.float32), {}

    def step(self, action):
        obs = np.zeros((4, 3), dtype=np.float32)
        return obs, self.reward, False, False, dict(episode="of its own")


def fails():
    assert False


gym.register("Endless-v0", Endless)
gym.register("Fails-v0", fails)
"""


def assert_one_line(err, pattern):
    lines = err.strip().splitlines()
    assert len(lines) == 1 and re.match(f"error: .*{pattern}", lines[0]), err


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """my_envs.py in the current directory, which sys.path holds as "" as it does in a script."""
    (tmp_path / "my_envs.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_envs", None)


@pytest.mark.parametrize("async_envs", [False, True])
def test_keywords_and_limits(async_envs, own_module):
    """In training and evaluation, worker processes too; kept by the checkpoint. The
    environment's own statistics do no harm, and (4, 3) numbers are a vector. An evaluation imports
    the module only if it is named again."""
    flags = dict(env_id="my_envs:Endless-v0", env_kwargs='{"reward": 2.5}', max_episode_steps=10)
    run_dir, returns = helpers.train("ppo", own_module / "runs", **flags, async_envs=async_envs)
    assert returns == [25.0] and {
        value for _, value in helpers.scalars(run_dir)["charts/episodic_return"]
    } == {25.0}
    assert helpers.command_line("ppo", ["--evaluate", run_dir]) == 1
    assert helpers.command_line("ppo", ["--evaluate", run_dir, "--env-id", flags["env_id"]]) == 0
    assert len(list(run_dir.glob("eval_*.json"))) == 1


def test_a_script_finds_modules_in_the_current_directory(own_module):
    flags = dict(env_id="my_envs:Endless-v0", env_kwargs='{"reward": 1}', max_episode_steps=10)
    words = helpers.small_flags("ppo", own_module / "runs", **flags)
    assert (
        helpers.run([sys.executable, helpers.SOURCE / "ppo.py", *words], cwd=own_module).returncode
        == 0
    )


@pytest.mark.slow
def test_an_evaluation_has_a_limit(own_module):
    flags = dict(env_id="my_envs:Endless-v0", env_kwargs='{"reward": 1}')
    _, returns = helpers.train("ppo", own_module, **flags)
    assert returns == [100_000.0]


@pytest.mark.parametrize(
    "env_id, kwargs, told",
    [
        ("my_envs:Endless-v0", '{"no_such": 1}', "TypeError: .*no_such"),
        ("my_envs:Endless-v0", "{}", "TypeError: .*reward"),
        ("my_envs:Fails-v0", "{}", "AssertionError"),
    ],
)
def test_errors_of_an_environment_keep_their_traceback(env_id, kwargs, told, own_module, capfd):
    """Keywords that it does not know or lacks; an error of its own."""
    words = helpers.small_flags("ppo", "runs", env_id=env_id, env_kwargs=kwargs)
    assert helpers.command_line("ppo", words) == 1
    lines = capfd.readouterr().err.splitlines()
    assert "Traceback (most recent call last):" in lines and re.match(told, lines[-1])
    assert not (own_module / "runs").exists()


def test_keywords_that_are_no_json(own_module, capfd):
    flags = dict(env_id="my_envs:Endless-v0", env_kwargs="{reward: 1}")
    assert helpers.command_line("ppo", helpers.small_flags("ppo", "runs", **flags)) == 1
    assert_one_line(capfd.readouterr().err, "--env-kwargs {reward: 1}: Expecting property")


@pytest.mark.parametrize(
    "env_id, told",
    [
        ("my_envs.py:Endless-v0", "No module named 'my_envs.py'"),
        ("Endless-v1", "Environment version `v1` for environment `Endless` doesn't exist"),
    ],
)
def test_modules_without_an_environment(env_id, told, own_module, capfd):
    assert helpers.command_line("ppo", helpers.small_flags("ppo", "runs", env_id=env_id)) == 1
    assert_one_line(capfd.readouterr().err, f"--env-id {env_id} .*{told}")


def test_keywords_of_a_game(tmp_path):
    run_dir, _ = helpers.train(
        "ppo_atari", tmp_path, env_kwargs='{"max_num_frames_per_episode": 40}'
    )
    assert {value for _, value in helpers.scalars(run_dir)["charts/episodic_length"]} == {10}


# --- pictures


EGL = pytest.mark.skipif(not (find_library("EGL") and find_library("GL")), reason="needs EGL")


@pytest.mark.parametrize(
    "script, env_id",
    [
        ("ppo", "CartPole-v1"),
        pytest.param("ppo_continuous", "Hopper-v4", marks=[EGL, pytest.mark.slow]),
    ],
)
def test_a_video_shows_something(script, env_id, tmp_path):
    """Where there is no display: SDL's driver "dummy" makes some environments' frames black."""
    flags = dict(env_id=env_id, max_episode_steps=5)
    run_dir, _ = helpers.train(script, tmp_path, capture_video=True, **flags)
    (path,) = run_dir.rglob("*.mp4")
    with VideoFileClip(str(path)) as video:
        for moment in (0, video.duration / 2):
            pixels = video.get_frame(moment).reshape(-1, 3)
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
        (Box(0, 1, (4, 3)), 12),
        (Box(0, 255, (7, 7, 3), np.uint8), 147),  # MiniGrid's
        (Box(0, 1, ()), 1),
        (Box(0, 1, (5000,)), 5000),  # a vector already
        (Discrete(500), 500),
        (Dict(goal=SMALL, inner=Dict(a=SMALL, b=Discrete(3))), 7),
        (Tuple([SMALL, Discrete(3)]), 5),
    ],
)
def test_observations_that_become_vectors(space, size):
    env = utils.flatten(Shows(space))
    assert env.observation_space.shape == (size,) == env.reset()[0].shape


class Mission(gym.Space):
    """Of one's own, like MiniGrid's."""

    def __repr__(self):
        return "MissionSpace(words, None)"


@pytest.mark.parametrize("space", [Box(0, 255, (96, 96, 3), np.uint8), Text(20), Mission()])
@pytest.mark.parametrize("key", ["space", "camera"])
def test_observations_that_do_not(space, key):
    """By themselves, and in a Dict whose other parts would do."""
    whole = space if key == "space" else Dict({"position": SMALL, key: space})
    with pytest.raises(
        SystemExit, match=r"observations are .*not a few numbers.*convert them.*ppo_image\.py"
    ):
        utils.flatten(Shows(whole))


# --- scaled.py, and other packages


@pytest.fixture
def scaled(monkeypatch):
    """docs/guides/scaled.py, which has measured nothing yet."""
    monkeypatch.syspath_prepend(helpers.ROOT / "docs/guides")
    import scaled

    scaled.measure.cache_clear()
    scaled.print_once.cache_clear()
    return scaled


@pytest.mark.slow
def test_the_environment_of_the_guide(tmp_path, monkeypatch):
    """docs/guides/my_env.py: gymnasium's checker accepts it, a run learns to walk right, and
    --env-kwargs changes the stride."""
    monkeypatch.syspath_prepend(helpers.ROOT / "docs/guides")
    env = gym.make("my_env:Line-v0", stride=0.5)
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=1)
    before = env.unwrapped.place
    assert env.step(1)[0] == pytest.approx([before + 0.5])
    _, returns = helpers.train("ppo", tmp_path, env_id="my_env:Line-v0", total_timesteps=8192)
    assert np.mean(returns) > 0.7  # 20 steps at most


LARGE = dict(env_id="tests.probe_envs:Large-v0", observations=1e6, rewards=-1e3)


def test_scaled_observations_and_rewards(scaled):
    """Of seeds that were not measured: mean 0 and variance 1, rewards of size 1; the ordinary
    ones are 1e6 and 1e3."""
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


def test_a_scaled_run_resumes_and_evaluates(scaled, tmp_path):
    script = "sac"
    flags = dict(env_id="scaled:Scaled-v0", env_kwargs=json.dumps(LARGE))
    run_dir, returns = helpers.train(script, tmp_path, **flags)
    scaled.measure.cache_clear()  # as in a process of its own
    named = ["--env-id", flags["env_id"]]
    assert helpers.command_line(script, ["--evaluate", run_dir, *named]) == 0
    assert helpers.read_json(next(run_dir.glob("eval_*.json")))["returns"] == pytest.approx(returns)
    more = ["--resume", run_dir, *named, "--total-timesteps", "1024"]
    assert helpers.command_line(script, more) == 0
    assert helpers.load(run_dir)["global_step"] == 1024
