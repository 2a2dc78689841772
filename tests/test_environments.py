"""Environments that users bring: keyword arguments, time limits, observations, modules, statistics of their own."""

import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from moviepy import VideoFileClip

from cleanrl_lite import utils
from tests import helpers
from tests.test_cli import assert_one_line

OWN = """
import gymnasium as gym
import numpy as np


class Endless(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (4, 3)), gym.spaces.Discrete(2)

    def __init__(self, reward, render_mode=None):
        self.reward, self.render_mode = np.full(1, reward), render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((4, 3), dtype=np.float32), {}

    def step(self, action):
        return np.zeros((4, 3), dtype=np.float32), self.reward, False, False, dict(episode="of its own")


gym.register("Endless-v0", Endless)
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """my_envs.py in the current directory, which sys.path holds as "" as it does in a script."""
    (tmp_path / "my_envs.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_envs", None)


@pytest.mark.parametrize("async_envs", [False, True])
def test_keywords_and_limits(async_envs, own_module):
    """In training and evaluation, worker processes too; kept by the checkpoint. The environment's own statistics do no
    harm, a reward of shape (1,) is a number, and (4, 3) numbers are a vector."""
    flags = dict(env_id="my_envs:Endless-v0", env_kwargs='{"reward": 2.5}', max_episode_steps=10)
    run_dir, returns = helpers.train("ppo", own_module / "runs", **flags, async_envs=async_envs)
    assert returns == [25.0] and {value for _, value in helpers.scalars(run_dir)["charts/episodic_return"]} == {25.0}
    assert helpers.command_line("ppo", ["--evaluate", run_dir]) == 0
    assert len(list(run_dir.glob("eval_*.json"))) == 1


def test_a_script_finds_modules_in_the_current_directory(own_module):
    flags = dict(env_id="my_envs:Endless-v0", env_kwargs='{"reward": 1}', max_episode_steps=10)
    words = helpers.small_flags("ppo", own_module / "runs", **flags)
    assert helpers.run([sys.executable, helpers.SOURCE / "ppo.py", *words], cwd=own_module).returncode == 0


def test_an_evaluation_has_a_limit(own_module, capsys):
    """100,000 steps, and a line every 10,000."""
    run_dir, returns = helpers.train("ppo", own_module, env_id="my_envs:Endless-v0", env_kwargs='{"reward": 1}')
    assert returns == [100_000.0]
    said = capsys.readouterr().out
    assert "evaluation: step 10,000 of an episode; it is cut at 100,000 (--max-episode-steps)" in said


@pytest.mark.parametrize(
    "kwargs, told",
    [('{"no_such": 1}', "no_such"), ("{}", "reward"), ("{reward: 1}", "Expecting property.*--env-kwargs {reward: 1}")],
)
def test_wrong_keywords(kwargs, told, own_module, capfd):
    """Unknown, missing, no JSON."""
    words = helpers.small_flags("ppo", "runs", env_id="my_envs:Endless-v0", env_kwargs=kwargs)
    assert helpers.command_line("ppo", words) == 1
    assert_one_line(capfd.readouterr().err, told)


@pytest.mark.parametrize("env_id", ["./my_envs.py:Endless-v0", "my_envs.py:Endless-v0", "Endless-v1"])
def test_misspelt_modules(env_id, own_module, capfd):
    assert helpers.command_line("ppo", helpers.small_flags("ppo", "runs", env_id=env_id)) == 1
    assert_one_line(capfd.readouterr().err, "my_module:Env-v0")


def test_keywords_of_a_game(tmp_path):
    run_dir, _ = helpers.train("ppo_atari", tmp_path, env_kwargs='{"max_num_frames_per_episode": 40}')
    assert {value for _, value in helpers.scalars(run_dir)["charts/episodic_length"]} == {10}


# --- pictures


def test_a_video_shows_something(tmp_path):
    """Where there is no display: SDL's driver "dummy" makes some environments' frames black."""
    run_dir, _ = helpers.train("ppo", tmp_path, capture_video=True)
    (path,) = run_dir.rglob("*.mp4")
    with VideoFileClip(str(path)) as video:
        assert all(np.unique(frame.reshape(-1, 3), axis=0).shape[0] > 2 for frame in video.iter_frames())


@pytest.mark.slow
def test_evaluations_in_a_window(tmp_path):
    """Under Xvfb; the window's picture is not of one colour."""
    if not (shutil.which("Xvfb") and shutil.which("xwd")):
        pytest.skip("needs xvfb and x11-apps")
    run_dir, _ = helpers.train("ppo", tmp_path)
    server = subprocess.Popen(["Xvfb", ":97", "-screen", "0", "800x600x24"])
    try:
        helpers.wait_for(lambda: Path("/tmp/.X11-unix/X97").exists(), 20)
        command = [sys.executable, "-m", "cleanrl_lite.ppo", "--evaluate", run_dir, "--render", "--eval-episodes", "50"]
        environ = helpers.environment(DISPLAY=":97", SDL_VIDEODRIVER="x11")
        player = subprocess.Popen(list(map(str, command)), env=environ)
        shots = set()

        def shows():
            shot = subprocess.run(["xwd", "-root", "-silent", "-display", ":97"], capture_output=True).stdout[
                -(10**6) :
            ]
            shots.add(len(set(shot)))
            return max(shots) > 2

        helpers.wait_for(shows, 60)
        player.kill()
    finally:
        server.terminate()


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
    """By themselves, and in a Dict whose other parts would do: the line names the key."""
    whole = space if key == "space" else Dict({"position": SMALL, key: space})
    with pytest.raises(SystemExit, match=rf"observation {key} is .*not a few numbers.*wrapper"):
        utils.flatten(Shows(whole))


@pytest.mark.parametrize("script", ["ppo", "sac", "ppo_continuous"])
def test_a_warning_of_large_observations(script, tmp_path, capsys):
    """ppo_continuous normalises them itself."""
    flags = dict(env_id=f"tests.probe_envs:ProbeLarge{'Discrete' if script == 'ppo' else 'Box'}-v0")
    helpers.train(script, tmp_path, **flags)
    assert ("observations beyond 1,000" in capsys.readouterr().out) == (script != "ppo_continuous")
