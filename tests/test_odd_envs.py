"""Environments as packages bring them: infos of any kind, one instance only, frames that no video
can be made of, arrays where numbers are meant, bugs; in this process and in workers."""

import json
import os
import re
import signal

import numpy as np
import pytest

from cleanrl_lite import utils
from tests import helpers, odd_envs

WORKERS = pytest.mark.parametrize("async_envs", [False, True], ids=["sync", "workers"])


def odd(kind, **flags):
    kwargs = json.dumps({"kind": kind})
    sizes = dict(
        num_envs=2,
        num_steps=32,
        total_timesteps=256,
        eval_episodes=4,
    )
    return {
        "env_id": "tests.odd_envs:Odd-v0",
        "env_kwargs": kwargs,
        **sizes,
        **flags,
    }


@pytest.fixture(autouse=True)
def nothing_is_alive():
    odd_envs.Odd.alive = 0


@WORKERS
@pytest.mark.parametrize(
    "kind",
    ["ragged_infos", "same_infos", "our_infos", "arrays", "tensors", "objectives", "key"],
)
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


@pytest.mark.parametrize("script, async_envs", [("ppo", False), ("ppo", True), ("dqn", False)])
def test_success(script, async_envs, tmp_path):
    """Of the end of each episode: 10 % 4 > 0."""
    flags = odd("", async_envs=async_envs)
    if script == "dqn":
        del flags["num_steps"]
    run_dir, _ = helpers.train(script, tmp_path, **flags)
    points = helpers.scalars(run_dir)
    assert len(points["charts/success_rate"]) == len(points["charts/episodic_return"])
    assert {value for _, value in points["charts/success_rate"]} == {1.0}
    assert helpers.read_json(run_dir / "eval.json")["success_rate"] == 1.0


def test_the_only_instance_is_evaluated(tmp_path):
    run_dir, returns = helpers.train("ppo", tmp_path, **odd("single", num_envs=1))
    assert len(returns) == 4
    assert (run_dir / "eval.json").exists()


def test_one_instance_a_process(tmp_path, capfd):
    """The message names what works, and that does, with evaluations on the way."""
    assert helpers.command_line("ppo", helpers.small_flags("ppo", tmp_path, **odd("single"))) == 1
    said = "".join(capfd.readouterr())
    assert "the robot is in use" in said
    assert "--async-envs" in said
    assert not list(tmp_path.iterdir())
    odd_envs.Odd.alive = 0
    helpers.train("ppo", tmp_path, **odd("single", async_envs=True, eval_every=128))
    assert len(helpers.scalars(helpers.only_run(tmp_path))["eval/episodic_return"]) == 2


def test_evaluations_on_the_way_need_another_instance(tmp_path):
    with pytest.raises(
        SystemExit, match="--eval-every needs a second environment.*robot is in use"
    ):
        helpers.train("ppo", tmp_path, **odd("single", num_envs=1, eval_every=128))
    assert not list(tmp_path.iterdir())


@WORKERS
def test_what_is_not_finite(async_envs, tmp_path):
    """One line, however large the observation is."""
    with pytest.raises(FloatingPointError) as error:
        helpers.train("ppo", tmp_path, **odd("nan", async_envs=async_envs))
    assert re.search(r"reward nan", str(error.value))
    assert "\n" not in str(error.value)


def test_a_bug_has_its_traceback(tmp_path, capfd):
    assert helpers.command_line("ppo", helpers.small_flags("ppo", tmp_path, **odd("bug"))) == 1
    said = "".join(capfd.readouterr())
    assert "odd_envs.py" in said
    assert "self.speed = self.velocity" in said


@pytest.mark.parametrize("env", ["Odd", "Old", "NoSeed"])
def test_one_line_before_anything_is_created(env, tmp_path):
    flags = odd("empty") if env == "Odd" else {"env_id": f"tests.odd_envs:{env}-v0"}
    told = "not a few numbers" if env == "Odd" else f"{env}-v0: reset takes no seed"
    with pytest.raises(SystemExit, match=f"^error: .*{told}"):
        helpers.train("ppo", tmp_path, **flags)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "kind", ["gray_frames", "no_frames", "growing_frames", "no_fps", "bad_close"]
)
def test_frames_that_no_video_is_made_of(kind, tmp_path, capfd):
    """The evaluation counts all the same, and it says so."""
    _, returns = helpers.train("ppo", tmp_path / "plain", **odd(""))
    run_dir, again = helpers.train("ppo", tmp_path, **odd(kind, capture_video=True))
    assert again == returns
    assert helpers.read_json(run_dir / "eval.json")["returns"] == returns
    said = capfd.readouterr().out
    assert "no video: " in said or "does not close" in said


def test_a_video_has_a_limit(tmp_path, monkeypatch):
    """Its frames are in memory until it is written."""
    monkeypatch.setattr(utils, "LONGEST_EPISODE", 1500)
    rendered = []
    render = odd_envs.Odd.render
    monkeypatch.setattr(odd_envs.Odd, "render", lambda env: rendered.append(1) or render(env))
    flags = odd("endless", capture_video=True, eval_episodes=1)
    run_dir, _ = helpers.train("ppo", tmp_path, **flags)
    assert 900 <= len(rendered) <= 1100
    assert list(run_dir.rglob("*.mp4"))


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


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_other_signals_save_too(number, tmp_path, monkeypatch):
    """A closed terminal's, and Slurm's before a time limit."""
    goes_on = utils.Run.goes_on

    def spied(run, step, *rest, **values):
        if step >= 128:
            os.kill(os.getpid(), number)
        return goes_on(run, step, *rest, **values)

    monkeypatch.setattr(utils.Run, "goes_on", spied)
    before = signal.signal(number, signal.SIG_DFL)  # as in a run that nohup did not start
    with pytest.raises(SystemExit, match=str(128 + number)):
        helpers.train("ppo", tmp_path, **odd(""))
    signal.signal(number, before)
    assert helpers.load(helpers.only_run(tmp_path))["global_step"] == 128


def test_nohup_is_respected(tmp_path):
    """What is ignored when a run starts stays ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        helpers.train("ppo", tmp_path, **odd(""))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_foreign_args_json(tmp_path):
    """A folder of something else does not stop --resume auto."""
    for number, text in enumerate(("", "[1]", "3", "{")):
        folder = tmp_path / f"other{number}"
        folder.mkdir()
        (folder / "args.json").write_text(text)
        (folder / "checkpoint.pt").touch()
    run_dir, _ = helpers.train("ppo", tmp_path, resume="auto")
    assert (run_dir / "eval.json").exists()
