"""Environments as packages bring them: infos of any kind, one instance only, frames that no video
can be made of, arrays where numbers are meant, bugs; in this process and in workers."""

import json

import numpy as np
import pytest

from tests import helpers, odd_envs

WORKERS = pytest.mark.parametrize("async_envs", [False, True], ids=["sync", "workers"])


def odd(kind, **flags):
    kwargs = json.dumps({"kind": kind})
    sizes = dict(num_envs=2, num_steps=32, total_timesteps=256, eval_episodes=4)
    return {"env_id": "tests.odd_envs:Odd-v0", "env_kwargs": kwargs, **sizes, **flags}


@pytest.fixture(autouse=True)
def nothing_is_alive():
    odd_envs.Odd.alive = 0


@WORKERS
@pytest.mark.parametrize("kind", ["ragged_infos", "same_infos", "our_infos", "tensors", "key"])
def test_it_trains(kind, async_envs, tmp_path):
    """The right returns: nobody looks at infos, and nothing of ours is in the environment's."""
    run_dir, returns = helpers.train("ppo", tmp_path, **odd(kind, async_envs=async_envs))
    points = helpers.scalars(run_dir)
    assert {length for _, length in points["charts/episodic_length"]} == {10}
    assert all(0 <= value <= 10 for _, value in points["charts/episodic_return"])
    assert len(points["charts/episodic_return"]) == 2 * (128 // 10)
    assert len(returns) == 4
    assert max(returns) <= 10
    assert odd_envs.Odd.same_info == {"is_success": True}


def test_success_of_an_evaluation(tmp_path):
    """Of the end of each episode: 10 % 4 > 0."""
    run_dir, _ = helpers.train("ppo", tmp_path, **odd(""))
    assert helpers.read_json(run_dir / "eval.json")["success_rate"] == 1.0


def test_the_only_instance_is_evaluated(tmp_path):
    """At the end, when the one of training is closed."""
    run_dir, returns = helpers.train("ppo", tmp_path, **odd("single", num_envs=1))
    assert len(returns) == 4
    assert (run_dir / "eval.json").exists()


def test_a_bug_has_its_traceback(tmp_path, capfd):
    assert helpers.command_line("ppo", helpers.small_flags("ppo", tmp_path, **odd("bug"))) == 1
    said = "".join(capfd.readouterr())
    assert "odd_envs.py" in said
    assert "self.speed = self.velocity" in said


@pytest.mark.parametrize("kind", ["gray_frames", "no_frames", "growing_frames", "no_fps"])
def test_frames_that_no_video_is_made_of(kind, tmp_path, capfd):
    """The evaluation counts all the same, and it says so."""
    _, returns = helpers.train("ppo", tmp_path / "plain", **odd(""))
    run_dir, again = helpers.train("ppo", tmp_path, **odd(kind, capture_video=True))
    assert again == returns
    assert helpers.read_json(run_dir / "eval.json")["returns"] == returns
    assert "no video: " in "".join(capfd.readouterr())


@pytest.mark.slow
def test_a_large_constant(tmp_path):
    """ppo_continuous normalises in float64: in float32 the sign would be lost."""
    flags = dict(
        env_id="tests.odd_envs:Seconds-v0",
        num_steps=256,
        total_timesteps=8192,
        learning_rate=3e-3,
        update_epochs=10,
        eval_episodes=5,
        env_kwargs="{}",
    )
    _, returns = helpers.train("ppo_continuous", tmp_path, **flags)
    assert np.mean(returns) > 9
