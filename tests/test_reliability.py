"""What a run survives: kills, signals, full disks, faulty environments, W&B; and that it goes on as if nothing was."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from functools import partial
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch.utils.tensorboard import SummaryWriter

from cleanrl_lite import checkpoints, environments, tracking, utils
from tests import helpers
from tests.probe_envs import probe
from tests.test_training import UNSEEDED, assert_same_run, assert_same_state

SAME_STEP = AutoresetMode.SAME_STEP
VECTORS = dict(sync=environments.VectorEnv, workers=environments.AsyncVectorEnv)


# --- where an environment stands


def guarded(env_id):
    def make():
        env = gym.make(env_id)
        flat = isinstance(env.observation_space, gym.spaces.Box)
        env = env if flat else gym.wrappers.FlattenObservation(env)
        return gym.wrappers.RecordEpisodeStatistics(env)

    return environments.Guarded(make, os.getpid())


SAVABLE = ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1", "Blackjack-v1"]
SAVABLE += ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v3", "tests.probe_envs:ProbeSavedDiscrete-v0"]
MUJOCO = "Hopper HalfCheetah Walker2d Ant Humanoid HumanoidStandup Swimmer Reacher Pusher InvertedPendulum"
SAVABLE += [f"{name}-v5" for name in f"{MUJOCO} InvertedDoublePendulum".split()] + [
    "Hopper-v4",
    "Ant-v4",
    "Humanoid-v4",
]


@pytest.mark.parametrize("env_id", SAVABLE)
def test_an_environment_goes_on_from_its_snapshot(env_id, tmp_path):
    """Another one that gets the snapshot, by way of a file, does the same for ever: rewards, ends, resets included."""
    env_id = env_id if env_id in gym.registry or ":" in env_id else env_id.replace("-v3", "-v4")
    one, other = guarded(env_id), guarded(env_id)
    one.reset(seed=3)
    one.action_space.seed(1)
    for _ in range(17):
        _, _, terminated, truncated, _ = one.step(one.action_space.sample())
        if terminated or truncated:
            one.reset()
    torch.save(environments.portable([[one.snapshot], {}, np.zeros(1)]), tmp_path / "state.pt")
    (states, *_) = environments.decode(torch.load(tmp_path / "state.pt", weights_only=True))
    other.reset(seed=99)
    other.snapshot = environments.pickle.dumps(states[0])
    for _ in range(200):
        action = one.action_space.sample()
        (obs, *rest, info), (obs_2, *rest_2, info_2) = one.step(action), other.step(action)
        np.testing.assert_array_equal(obs, obs_2)
        assert rest == rest_2
        if rest[1] or rest[2]:
            assert [info["episode"][key] for key in "rl"] == [info_2["episode"][key] for key in "rl"]
            np.testing.assert_array_equal(one.reset()[0], other.reset()[0])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: gym.wrappers.FrameStackObservation(env, 3),  # whose state is a deque
        lambda env: gym.wrappers.DelayObservation(env, 2),
        lambda env: type("Mine", (gym.Wrapper,), {})(env),
    ],
)
def test_a_wrapper_that_cannot_be_saved(wrap):
    env = environments.Guarded(lambda: wrap(gym.make("CartPole-v1")), os.getpid())
    env.reset(seed=1)
    assert environments.portable([[env.snapshot], {}, np.zeros(1)]) is None


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "BipedalWalker-v3", "tests.probe_envs:ProbeScriptedDiscrete-v0"])
def test_an_environment_that_cannot_be_saved(env_id):
    """A simulator's objects, and an environment that does not say what its state is."""
    env = guarded(env_id)
    env.reset(seed=1)
    assert environments.portable([[env.snapshot], {}, np.zeros(1)]) is None


@pytest.mark.parametrize(
    "value",
    [1, 2**127, 1.5, True, None, "a", [1, (2, None)], {"a": {1: [2.0]}}, {}, (), np.float32(3), np.int64(4),
     np.str_("b"), np.array([b"S", b"F"]), np.zeros((0, 2)), np.arange(6, dtype=np.uint8).reshape(2, 3)],
)  # fmt: skip
def test_plain_data_survive(value, tmp_path):
    torch.save(environments.encode(value), tmp_path / "value.pt")
    again = environments.decode(torch.load(tmp_path / "value.pt", weights_only=True))
    assert type(again) is type(value)
    if isinstance(value, np.ndarray):
        assert again.dtype == value.dtype and again.flags.writeable
    np.testing.assert_equal(again, value)


@pytest.mark.parametrize("value", [object(), b"a", [1, object()], {"a": {"b": {1, 2}}}, np.array([object()])])
def test_other_data_are_not_plain(value):
    assert environments.encode(value) is None


# --- a run that is stopped and resumed is the run that was not


def stopped_and_resumed(script, folder, steps, monkeypatch, **flags):
    """The directory of a run that SIGTERM stops during these steps of the environments, and that is resumed by its own
    command; and how often that was."""
    cls = helpers.module(script).Games if script in helpers.ATARI_SCRIPTS else VECTORS[
        "workers" if flags.get("async_envs") else "sync"
    ]  # fmt: skip
    original, count, args = cls.step, 0, helpers.small_args(script, folder, resume="auto", **flags)

    def step(self, actions):
        nonlocal count
        count += 1
        if count in steps:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, actions)

    with monkeypatch.context() as patch:
        patch.setattr(cls, "step", step)
        for stops in range(100):
            try:
                helpers.main(script, args)
                return helpers.only_run(folder), stops
            except SystemExit as end:
                assert end.code == 143
                helpers.next_second()


def flags_for(script, **flags):
    sizes = helpers.rollout_only(script, num_steps=40, num_minibatches=5)
    return dict(total_timesteps=720, eval_every=250) | sizes | flags


@pytest.mark.parametrize("kind", ["one", "workers"])
def test_a_resumed_run_is_the_run(mlp_script, kind, monkeypatch, tmp_path):
    """Bit for bit: every scalar, the networks, the optimiser, the replay buffer, the random generators."""
    kinds = dict(one=dict(num_envs=1), workers=dict(num_envs=3, async_envs=True))
    flags = flags_for(mlp_script, **kinds[kind])
    whole, returns = helpers.train(mlp_script, tmp_path / "whole", **flags)
    parts, stops = stopped_and_resumed(mlp_script, tmp_path / "parts", (33, 101), monkeypatch, **flags)
    assert stops == 2
    assert_same_run(whole, parts)
    assert helpers.read_json(parts / "eval.json")["returns"] == returns


@pytest.mark.parametrize(
    "script, env_id", [("ppo", "Acrobot-v1"), ("sac", "Pendulum-v1"), ("ppo_continuous", "Ant-v4")]
)
def test_a_resumed_run_is_the_run_elsewhere(script, env_id, monkeypatch, tmp_path):
    flags = flags_for(script, num_envs=4, env_id=env_id)
    whole, _ = helpers.train(script, tmp_path / "whole", **flags)
    parts, stops = stopped_and_resumed(script, tmp_path / "parts", (50,), monkeypatch, **flags)
    assert stops == 1
    assert_same_run(whole, parts)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["ppo_continuous", "dqn", "sac"])
def test_a_resumed_compiled_run_is_the_run(script, monkeypatch, tmp_path):
    flags = flags_for(script, compile=True)
    whole, _ = helpers.train(script, tmp_path / "whole", **flags)
    parts, stops = stopped_and_resumed(script, tmp_path / "parts", (150,), monkeypatch, **flags)
    assert stops == 1
    assert_same_run(whole, parts)


def resumable(run_dir):
    """A finished run as it was before its last evaluation, with half of its steps still to go."""
    state = helpers.load(run_dir)
    torch.save(state | dict(last_eval=dict(global_step=0, returns=None)), run_dir / "checkpoint.pt")
    (run_dir / "last_eval.json").unlink()
    return 2 * state["global_step"]


TWICE = [(script, None) for script in helpers.SCRIPTS] + [(script, "LunarLander") for script in helpers.MLP_SCRIPTS]


@pytest.mark.parametrize("script, env_id", TWICE)
def test_two_resumes_are_the_same(script, env_id, tmp_path):
    """Where the environments cannot be saved, too: they restart with the same episodes."""
    continuous = script in helpers.CONTINUOUS_SCRIPTS
    flags = dict(env_id="LunarLanderContinuous-v3" if continuous else "LunarLander-v3") if env_id else {}
    run_dir, _ = helpers.train(script, tmp_path / "runs", **flags)
    total = resumable(run_dir)
    copies = [Path(shutil.copytree(run_dir, tmp_path / name / "run")) for name in "ab"]
    helpers.next_second()
    for copy in copies:
        helpers.main(
            script, helpers.small_args(script, copy.parent, resume=str(copy), **{**flags, "total_timesteps": total})
        )
    assert_same_run(*copies)


@pytest.mark.parametrize("when", ["during training", "at the end"])
def test_a_signal_during_an_evaluation(script, when, monkeypatch, tmp_path):
    """It breaks the evaluation off; the resumed run plays it again, and no evaluation is logged twice."""
    flags = dict(eval_every=128 if when == "during training" and script in helpers.MLP_SCRIPTS else 0, save_every=128)
    whole, _ = helpers.train(script, tmp_path / "whole", **flags)
    original, calls = utils.evaluate, 0

    def evaluate(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    monkeypatch.setattr(utils, "evaluate", evaluate)
    args = helpers.small_args(script, tmp_path / "parts", resume="auto", **flags)
    with pytest.raises(SystemExit) as end:
        helpers.main(script, args)
    assert end.value.code == 143
    parts = helpers.only_run(tmp_path / "parts")
    assert not (parts / "eval.json").exists()
    helpers.next_second()
    helpers.main(script, args)
    evaluations = [helpers.scalars(run)["eval/episodic_return"] for run in (whole, parts)]
    if script in helpers.MLP_SCRIPTS:
        assert evaluations[0] == evaluations[1]
        assert_same_run(whole, parts)
    assert [step for step, _ in evaluations[1]] == [step for step, _ in evaluations[0]]


def test_a_signal_while_an_evaluation_is_filmed(monkeypatch, tmp_path):
    """The film is closed, so that it can be seen, and the resumed run films the whole."""
    play, steps = gym.wrappers.RecordVideo.step, []

    def step(self, action):
        steps.append(action)
        if len(steps) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return play(self, action)

    monkeypatch.setattr(gym.wrappers.RecordVideo, "step", step)
    args = helpers.small_args("ppo", tmp_path, resume="auto", capture_video=True)
    with pytest.raises(SystemExit) as end:
        helpers.main("ppo", args)
    assert end.value.code == 143
    (film,) = helpers.only_run(tmp_path).rglob("*.mp4")
    assert frames(film) == 6  # those of five steps, and the first
    helpers.next_second()
    (length,) = [len(steps) for _ in [helpers.main("ppo", args)]]
    assert frames(film) == length - 5 + 1


def frames(film):
    from moviepy.video.io.ffmpeg_reader import ffmpeg_parse_infos

    return ffmpeg_parse_infos(str(film))["video_n_frames"]


# --- kills

KILLED = """
import os, signal, sys, torch
from cleanrl_lite import checkpoints
from tests import helpers
script, folder, place, number = sys.argv[1:]
calls, torch_save, replace = [0], torch.save, os.replace

def die(now, *places):
    if place in places and calls[0] == int(number):
        os.kill(os.getpid(), signal.SIGKILL)

def save(state, file):
    calls[0] += 1
    if place == "half" and calls[0] == int(number):
        file.write(b"half of a checkpoint")
        file.flush()
    die(0, "before", "half")
    torch_save(state, file)

def replace_(*names):
    checkpoint = str(names[1]).endswith("checkpoint.pt")
    die(0, *(["written"] if checkpoint else []))
    replace(*names)
    die(0, *(["renamed"] if checkpoint else []))

torch.save, os.replace = save, replace_
helpers.main(script, helpers.small_args(script, folder, resume="auto", save_every=100, eval_every=200))
"""


@pytest.mark.parametrize("place", ["before", "half", "written", "renamed"])
@pytest.mark.parametrize("script", ["ppo", "sac"])
def test_killed_while_a_checkpoint_is_written(script, place, tmp_path):
    """There is a whole checkpoint, the old or the new one, and the run that it leads to is the one without a kill."""
    command = [sys.executable, "-c", KILLED, script, tmp_path / "parts", place]
    for number in (3, 2):
        done = helpers.run([*command, number], cwd=tmp_path)
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert helpers.load(helpers.only_run(tmp_path / "parts"))["global_step"] > 0
    done = helpers.run([*command, 0], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole, _ = helpers.train(script, tmp_path / "whole", save_every=100, eval_every=200)
    assert_same_run(whole, helpers.only_run(tmp_path / "parts"))


def test_events_after_the_checkpoint_are_dropped(tmp_path):
    """What readers of the files see, not only those that understand a restart; a record that the kill tore, too."""
    writer = SummaryWriter(tmp_path)
    for step in range(0, 101, 10):
        writer.add_scalar("charts/SPS", step, step)
        if step % 50 == 0:
            writer.add_scalar("eval/episodic_return", step, step)
    writer.close()
    (path,) = tmp_path.glob("events*")
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    state = dict(args=dict(num_envs=1), global_step=50, last_eval=dict(global_step=0))
    checkpoints.reopen(tmp_path, state, 1)
    scalars = helpers.scalars(tmp_path)
    assert [step for step, _ in scalars["charts/SPS"]] == [0, 10, 20, 30, 40, 50]
    assert [step for step, _ in scalars["eval/episodic_return"]] == [0]
    assert whole.startswith(path.read_bytes()[:-80])
    path.write_bytes(whole)
    checkpoints.reopen(tmp_path, state | dict(last_eval=dict(global_step=50)), 1)
    assert [step for step, _ in helpers.scalars(tmp_path)["eval/episodic_return"]] == [0, 50]
    assert [path.name.split(".")[0] for path in sorted(tmp_path.iterdir())] == ["events"]


# --- --resume auto


def test_resume_auto(tmp_path, capsys):
    """Nothing there: a new run. Unfinished: that run. Finished: a line. Other arguments: another run."""
    args = helpers.small_args("dqn", tmp_path, resume="auto")
    first = helpers.main("dqn", args)
    run_dir = helpers.only_run(tmp_path)
    before = {path: path.read_bytes() for path in run_dir.iterdir()}
    capsys.readouterr()
    assert helpers.main("dqn", args) == first
    assert capsys.readouterr().out == f"the run in {run_dir} is finished\n"
    assert {path: path.read_bytes() for path in run_dir.iterdir()} == before
    helpers.main("dqn", helpers.small_args("dqn", tmp_path, resume="auto", seed=2))
    helpers.main("dqn", helpers.small_args("dqn", tmp_path, resume="auto", learning_rate=1e-3))
    helpers.main("c51", helpers.small_args("c51", tmp_path, resume="auto", exp_name="dqn", n_atoms=11))
    assert len(list(tmp_path.iterdir())) == 4
    resumable(run_dir)
    helpers.next_second()
    assert helpers.main("dqn", args) == first and len(list(tmp_path.iterdir())) == 4


def test_resume_auto_takes_the_newest_run(tmp_path):
    args = helpers.small_args("ppo", tmp_path)
    runs = [helpers.train("ppo", tmp_path)[0] for _ in range(2)]
    for newest, other in (runs, reversed(runs)):
        os.utime(newest / "checkpoint.pt", (2e9, 2e9))
        os.utime(other / "checkpoint.pt", (1e9, 1e9))
        found = checkpoints.find_run(types.SimpleNamespace(**vars(args) | dict(resume="auto")), "ppo")
        checkpoints.LOCKS.pop(found.resolve()).close()
        assert found == newest


def test_the_last_evaluation_that_a_checkpoint_knows(tmp_path):
    """A later one, of which last_eval.json tells, is not yet there at the checkpoint's step."""
    run_dir, returns = helpers.train("ppo", tmp_path)
    assert checkpoints.load(run_dir, "ppo")["last_eval"] == dict(global_step=512, returns=returns)
    torch.save(helpers.load(run_dir) | dict(global_step=256), run_dir / "checkpoint.pt")
    assert checkpoints.load(run_dir, "ppo")["last_eval"] == dict(global_step=0, returns=None)


def test_a_run_under_way_is_locked(capfd, tmp_path):
    process = start("ppo", tmp_path)
    run_dir = helpers.only_run(tmp_path / "runs")
    try:
        words = ["--resume", run_dir, "--no-compile", "--total-timesteps", 10_000]
        assert helpers.command_line("ppo", words) == 1
        assert f"error: another process is at work in {run_dir}" in capfd.readouterr().err
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("script", ["dqn", "ppo_continuous"])
def test_new_episodes_of_a_resumed_run(script, monkeypatch, tmp_path):
    """Where the environments cannot be saved: seeds of their own, and no return that has begun before."""
    env_id = "LunarLanderContinuous-v3" if script == "ppo_continuous" else "LunarLander-v3"
    run_dir, _ = helpers.train(script, tmp_path, env_id=env_id, total_timesteps=256)
    seeds, initials, reset = [], [], environments.VectorEnv.reset
    monkeypatch.setattr(
        environments.VectorEnv, "reset", lambda self, seed: seeds.append(seed) or reset(self, seed=seed), raising=False
    )
    if script == "ppo_continuous":
        assert any(helpers.load(run_dir)["return_so_far"])
        recurrence = helpers.module(script).linear_recurrence
        spy = lambda *args: initials.append(args[2].copy()) or recurrence(*args)  # noqa: E731
        monkeypatch.setattr(helpers.module(script), "linear_recurrence", spy)
    helpers.main(script, helpers.small_args(script, tmp_path, env_id=env_id, resume=str(run_dir)))
    assert seeds[0] == 1 + 256
    assert script == "dqn" or not initials[0].any()


def test_the_first_observation_is_checked():
    env = environments.Guarded(lambda: gym.make("CartPole-v1"), os.getpid())
    env.reset(seed=1)
    env.env.unwrapped.reset = lambda **kwargs: (np.full(4, np.nan, dtype=np.float32), {})
    with pytest.raises(environments.Fault, match="an observation whose number 0 is nan"):
        env.reset()


def test_losses_are_checked_when_they_are_logged():
    checkpoints.check_finite(dict(a=1.0), 1, None)
    with pytest.raises(SystemExit, match="^error: a is nan at step 1$"):
        checkpoints.check_finite(dict(a=float("nan")), 1, None)


def test_resume_auto_on_the_command_line(tmp_path):
    words = helpers.small_flags("ppo", tmp_path, resume="auto")
    assert [helpers.command_line("ppo", words) for _ in range(3)] == [0, 0, 0]
    helpers.only_run(tmp_path)
    assert helpers.command_line("ppo", [*words, "--total-timesteps", "1024"]) == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_one_process_a_run(capfd, tmp_path):
    """A second process that is told to go on with a run that is under way says so."""
    run_dir, _ = helpers.train("ppo", tmp_path)
    resumable(run_dir)
    code = f"import time, pathlib; from cleanrl_lite import checkpoints as c; c.lock(pathlib.Path({str(run_dir)!r}))"
    code += "; print('locked', flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=helpers.environment())
    try:
        # The other process has to get the lock first.
        assert other.stdout.readline() == "locked\n"
        before = (run_dir / "checkpoint.pt").read_bytes()
        assert helpers.command_line("ppo", ["--resume", run_dir, "--no-compile", "--total-timesteps", 1024]) == 1
        assert capfd.readouterr().err.splitlines()[-1] == f"error: another process is at work in {run_dir}"
        assert (run_dir / "checkpoint.pt").read_bytes() == before
    finally:
        other.kill()
        other.wait()
    assert helpers.command_line("ppo", ["--resume", run_dir, "--no-compile", "--total-timesteps", 1024]) == 0


# --- signals


def start(script, folder, *words, env=None, **flags):
    """A long run in a process group of its own; returns when it has saved for the first time."""
    flags = helpers.small_flags(script, folder / "runs", **{**dict(total_timesteps=5_000_000), **flags})
    command = [sys.executable, "-m", f"cleanrl_lite.{script}", *flags, *words]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    environ = helpers.environment(**(env or {}))
    process = subprocess.Popen(command, cwd=folder, env=environ, start_new_session=True, **pipes)
    deadline = time.time() + 120
    while not list((folder / "runs").glob("*/checkpoint.pt")):
        assert time.time() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


def ended(process, group, seconds):
    """Its exit status and what it said, within so many seconds; and nothing is left of its process group."""
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(group, signal.SIGKILL)
        pytest.fail(f"it did not end in {seconds} s: {process.communicate()}")
    deadline = time.time() + 5
    while [p for p in psutil.process_iter() if alive_in(p, group)]:
        assert time.time() < deadline, "processes are left"
        time.sleep(0.1)
    return process.returncode, errors


def alive_in(process, group):
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE


SLOW = dict(FAULT="slow", FAULT_STEP="1")


@pytest.mark.parametrize("script", ["ppo", "ppo_continuous", "sac"])
def test_a_signal_ends_a_slow_rollout(script, tmp_path):
    """Twenty steps a second, rollouts of minutes: PPO breaks the rollout off and goes on from its start."""
    flags = dict(env_id=probe("Faulty", script), num_envs=1) | helpers.rollout_only(script, num_steps=4096)
    process = start(script, tmp_path, env=SLOW, **flags)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    status, errors = ended(process, process.pid, 10)
    assert status == 143 and "Traceback" not in errors, errors
    assert helpers.load(helpers.only_run(tmp_path / "runs"))["global_step"] == 0 or script == "sac"


@pytest.mark.parametrize("script", ["ppo", "td3"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes(script, number, tmp_path):
    """As clusters and terminals send it, to the workers too."""
    process = start(script, tmp_path, async_envs=True)
    os.killpg(process.pid, number)
    status, errors = ended(process, process.pid, 10)
    assert status == 128 + number and "Traceback" not in errors, errors


@pytest.mark.parametrize("script", ["ppo", "dqn"])
def test_no_worker_outlives_a_killed_run(script, tmp_path):
    """Not even one that hangs, which does not see that its pipe is closed."""
    hangs = dict(FAULT="hangs", FAULT_STEP="40")
    process = start(script, tmp_path, env=hangs, env_id=probe("Faulty", script), async_envs=True)
    assert len(psutil.Process(process.pid).children(recursive=True)) >= 2
    time.sleep(1)
    process.kill()
    assert ended(process, process.pid, 10)[0] == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("script", ["ppo", "td3"])
def test_a_signal_while_the_update_is_compiled(script, tmp_path):
    """That takes half a minute with an empty cache, in which the loop cannot react: the last checkpoint stands."""
    cache = dict(TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    process = start(script, tmp_path, "--compile", env=cache, learning_starts=64) if script == "td3" else start(
        script, tmp_path, "--compile", env=cache
    )  # fmt: skip
    time.sleep(4)
    process.send_signal(signal.SIGTERM)
    status, errors = ended(process, process.pid, 10)
    assert status == 143 and "Traceback" not in errors, errors
    assert helpers.load(helpers.only_run(tmp_path / "runs"))["global_step"] == 0


COMPILES = """
import atexit, signal, subprocess, sys, time, types, weakref
from cleanrl_lite import tracking, utils

sys.modules["wandb"] = types.SimpleNamespace(run=True, finish=lambda status: print("finished", status, file=sys.stderr))
atexit.register(tracking.finish, types.SimpleNamespace(track=True))
atexit.register(print, "closed", file=sys.stderr)
utils.stop_signals()
compiler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("not flushed yet")
tracking.BUSY.append(True)
graph = type("Graph", (), {})()
watched = weakref.ref(graph, lambda _: signal.raise_signal(signal.SIGTERM))
del graph
time.sleep(600)
"""


def test_a_signal_where_python_ignores_exceptions(tmp_path):
    """In a weak reference's callback, of which compilers have many: SystemExit got lost there now and then."""
    out, command = tmp_path / "out", [sys.executable, "-c", COMPILES]
    with out.open("w") as stdout:
        pipes = dict(stdout=stdout, stderr=subprocess.PIPE, text=True, start_new_session=True)
        process = subprocess.Popen(command, env=helpers.environment(), **pipes)
    status, errors = ended(process, process.pid, 20)
    assert status == 143 and errors == "closed\nfinished 1\n", errors
    assert out.read_text() == "not flushed yet\n"


def test_an_exit_that_hangs(tmp_path):
    """What the exit's hooks may take has an end."""
    hangs = COMPILES.replace('print, "closed", file=sys.stderr', "time.sleep, 600")
    hangs = hangs.replace('time.sleep(600)"])', 'pass"])')  # the child is not killed then
    command = [sys.executable, "-c", hangs]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    process = subprocess.Popen(command, env=helpers.environment(), **pipes)
    assert ended(process, process.pid, 20)[0] == 143


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    """The first one waits for the environment's step, which here does not end."""
    process = start("ppo", tmp_path, env=dict(FAULT="hangs", FAULT_STEP="40"), env_id=probe("Faulty", "ppo"))
    time.sleep(1)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    assert ended(process, process.pid, 3)[0] == -signal.SIGINT


# --- environments that fail

TOLD = dict(
    nan_reward="a reward that is nan",
    huge_reward="a reward that is 1e+39",
    nan_obs="an observation whose number 0 is nan",
    inf_obs="an observation whose number 0 is inf",
    huge_obs="an observation whose number 0 is -1e+39",
    wrong_shape="an observation of shape (3,), not (1,)",
    broadcasts="an observation of shape (), not (1,)",
    no_number="TypeError: ",
    raises="ValueError: the simulator says no",
)


# The vector environments are the same for all scripts: with worker processes, two of them are enough.
FAULTY = [(script, "sync", fault) for script in helpers.MLP_SCRIPTS for fault in TOLD]
FAULTY += [(script, "workers", fault) for script in ("ppo", "sac") for fault in TOLD]


@pytest.mark.parametrize("mlp_script, vector, fault", FAULTY)
def test_a_faulty_environment(mlp_script, vector, fault, monkeypatch, capfd, tmp_path):
    """The last line names the environment, the step, what was wrong and the last good checkpoint; nothing not finite
    is in it, and no process is left."""
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setenv("FAULT_STEP", "131")
    sizes = helpers.rollout_only(mlp_script, num_steps=50, num_minibatches=5)
    env_id = probe("Faulty", mlp_script)
    with pytest.raises(SystemExit) as end:
        helpers.train(
            mlp_script, tmp_path, env_id=env_id, num_envs=1, save_every=50, async_envs=vector == "workers", **sizes
        )
    run_dir = helpers.only_run(tmp_path)
    told = f"error: {env_id} failed at step 131: {TOLD[fault]}"
    where = f"; the last good checkpoint is of step 100, to go on with --resume {run_dir}"
    assert end.value.code.startswith(told) and end.value.code.endswith(where)
    assert ("Traceback" in capfd.readouterr().err) == (fault in ("raises", "no_number"))
    state = helpers.load(run_dir)
    for _, tensor in checkpoints.tensors(dict(agent=state["agent"], replay=rows(state))):
        assert torch.isfinite(tensor).all()
    assert not psutil.Process().children()


def rows(state):
    return dict(rows=state["replay"]["rows"]) if "replay" in state else {}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_wrong_number_among_many_is_told_in_one_line(dtype, value):
    """Of an observation as long as Humanoid's."""
    env = gym.make("CartPole-v1")
    env.unwrapped.observation_space = gym.spaces.Box(-np.inf, np.inf, (400,), dtype)
    env = environments.Guarded(lambda: env, os.getpid())
    obs = np.linspace(-6e4, 6e4, 400).astype(dtype)
    env.check(obs, 1.0)
    obs[123] = value
    with pytest.raises(environments.Fault, match=f"^an observation whose number 123 is {value}$"):
        env.check(obs, 1.0)


@pytest.mark.parametrize("fault, text", [("hangs", "no answer from its process for 2 s"), ("dies", "its process died")])
def test_a_worker_that_hangs_or_dies(fault, text, monkeypatch, capfd, tmp_path):
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setenv("FAULT_STEP", "40")
    monkeypatch.setattr(environments.AsyncVectorEnv, "timeout", 2)
    with pytest.raises(SystemExit) as end:
        helpers.train("ppo", tmp_path, env_id=probe("Faulty", "ppo"), async_envs=True)
    assert f"ProbeFaultyDiscrete-v0 failed at step 160: {text}; the last good" in end.value.code
    assert not psutil.Process().children()


def test_a_worker_that_dies_while_the_script_learns(monkeypatch, capfd, tmp_path):
    """The next thing that is asked of it is where it stands, for the checkpoint."""
    envs = environments.AsyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2, autoreset_mode=SAME_STEP)
    obs, _ = envs.reset(seed=1)
    envs.processes[1].kill()
    envs.processes[1].join()
    with pytest.raises(SystemExit, match="its process died"):
        envs.snapshot(obs)
    assert not psutil.Process().children()


class Reuses(gym.Env):
    """Returns the same array each time, as some simulators do, and infos of any type. Episodes have three steps."""

    observation_space, action_space = gym.spaces.Box(0, 9, (1,)), gym.spaces.Discrete(2)

    def __init__(self, mark):
        self.mark, self.obs = mark, np.zeros(1, dtype=np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.obs[:] = 0
        return self.obs, dict(mark=self.mark)

    def step(self, action):
        self.obs += 1
        return self.obs, 1.0, False, bool(self.obs[0] == 3), dict(mark=self.mark)


@pytest.mark.parametrize("vector", VECTORS)
def test_an_environment_that_returns_the_same_array(vector):
    """The last observation of an episode is not overwritten by the first one of the next."""
    makers = [partial(lambda mark: gym.wrappers.RecordEpisodeStatistics(Reuses(mark)), mark) for mark in (1, "one")]
    envs = VECTORS[vector](makers, autoreset_mode=SAME_STEP)
    envs.reset(seed=1)
    for step in (1, 2, 3, 1, 2, 3):
        obs, _, _, truncated, infos = envs.step(np.zeros(2, dtype=np.int64))
        assert truncated.all() == (step == 3) and (obs == step % 3).all()
    assert [last.tolist() for last in infos["final_obs"]] == [[3.0]] * 2
    assert environments.finished_episodes(infos) == [(0, 3.0, 3), (1, 3.0, 3)]
    envs.close()


def test_a_worker_that_hangs_at_the_first_reset(monkeypatch, tmp_path):
    monkeypatch.setenv("FAULT", "hangs")
    monkeypatch.setenv("FAULT_STEP", "0")
    monkeypatch.setattr(environments.AsyncVectorEnv, "timeout", 2)
    with pytest.raises(SystemExit, match="failed at step 0: no answer from its process"):
        helpers.train("dqn", tmp_path, env_id=probe("Faulty", "dqn"), async_envs=True)
    assert not psutil.Process().children()


@pytest.mark.parametrize("script", sorted({*helpers.SCRIPTS} - {"ppo"}))
def test_a_diverging_run_stops(script, tmp_path):
    """A learning rate far too large: the message names the loss or the weight; what is saved is finite."""
    rate = dict(q_lr=1e15, policy_lr=1e15) if script == "sac" else dict(learning_rate=1e15)
    rate |= helpers.rollout_only(script, anneal_lr=False)
    with pytest.raises(
        SystemExit, match=r"^error: \S+ is (nan|-?inf|not finite) at step [\d,]+; the last good [^\n]*$"
    ):
        helpers.train(script, tmp_path, save_every=64, **rate)
    state = helpers.load(helpers.only_run(tmp_path))
    for _, tensor in checkpoints.tensors(dict(agent=state["agent"], adam=helpers.adams(state))):
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("script", ["ppo", "dqn"])
def test_a_failure_in_the_last_evaluation_costs_no_training(script, monkeypatch, capfd, tmp_path):
    """The message says where it failed; the training is saved; the resumed run evaluates, and has one evaluation."""
    monkeypatch.setenv("FAULT", "raises")
    monkeypatch.setenv("FAULT_STEP", "10000")
    env_id = probe("Faulty", script)
    args = helpers.small_args(script, tmp_path, env_id=env_id, save_every=0, resume="auto")
    original = utils.evaluate

    def evaluate(*args, **kwargs):
        monkeypatch.setenv("FAULT_STEP", "1")
        return original(*args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(utils, "evaluate", evaluate)
        helpers.main(script, args)
    total = args.total_timesteps
    told = (
        f"error: {env_id} failed in the evaluation at step {total}: ValueError('the simulator says no'); the last good"
    )
    assert end.value.code.startswith(f"{told} checkpoint is of step {total}, to go on with --resume ")
    assert "Traceback" in capfd.readouterr().err
    monkeypatch.setenv("FAULT_STEP", "10000")
    helpers.next_second()
    checkpoints.LOCKS.popitem()[1].close()
    assert helpers.main(script, args) == [1.0]
    assert helpers.scalars(helpers.only_run(tmp_path))["eval/episodic_return"] == [(total, 1.0)]


@pytest.mark.parametrize(
    "error, told", [(MemoryError(), "MemoryError"), (OSError(28, "No space left"), "No space left")]
)
def test_what_the_machine_runs_out_of_is_told_in_a_line(error, told):
    with pytest.raises(SystemExit, match=f"^error: .*{told}[^\n]*$"), utils.short_errors():
        raise error


@pytest.mark.parametrize(
    "error", [FileNotFoundError("mine"), RecursionError("a bug"), RuntimeError("shapes"), ValueError()]
)
def test_a_bug_keeps_its_traceback(error):
    with pytest.raises(type(error)), utils.short_errors():
        raise error


# --- the disk


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB; for root on Linux."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder, leave):
    free = shutil.disk_usage(folder).free
    (folder / "filler").write_bytes(bytes(max(free - leave, 0)))


@pytest.mark.parametrize("script, leave", [("ppo", 40_000), ("ppo", 250_000), ("dqn", 100_000)])
def test_disk_full(script, leave, small_disk):
    """While it logs or saves: one line, status 1, and the checkpoint before is whole."""
    done = subprocess.Popen(
        [sys.executable, "-m", f"cleanrl_lite.{script}", *helpers.small_flags(script, small_disk / "runs",
         total_timesteps=2_000_000, save_every=2_000)],
        env=helpers.environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=small_disk.parent,
    )  # fmt: skip
    deadline = time.time() + 60
    while not list(small_disk.glob("runs/*/checkpoint.pt")):
        assert time.time() < deadline and done.poll() is None, done.communicate()
        time.sleep(0.05)
    with contextlib.suppress(OSError):
        fill(small_disk, leave)
    _, errors = done.communicate(timeout=120)
    lines = [line for line in errors.splitlines() if "Warn" not in line and "logger." not in line and line.strip()]
    assert done.returncode == 1 and len(lines) == 1, errors
    assert lines[0].startswith("error: ") and "No space left on device" in lines[0], errors
    run_dir = helpers.only_run(small_disk / "runs")
    checkpoints.load(run_dir, script)
    assert not list(run_dir.glob("*.tmp"))
    (small_disk / "filler").unlink()
    total = helpers.load(run_dir)["global_step"] + 200
    words = ["--resume", run_dir, "--save-every", 0, "--total-timesteps", total // 16 * 16]
    assert helpers.command_line(script, words) == 0


def test_read_only_run_directory(small_disk, capfd):
    """Refused before anything happens, for a new run and for one to go on with."""
    run_dir, _ = helpers.train("ppo", small_disk / "runs")
    resumable(run_dir)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    capfd.readouterr()
    for words in (["--resume", run_dir, "--total-timesteps", 1024], helpers.small_flags("ppo", small_disk / "new")):
        assert helpers.command_line("ppo", words) == 1
        streams = capfd.readouterr()
        assert "Read-only file system" in streams.err and len(streams.err.strip().splitlines()) == 1
        assert "step" not in streams.out


# --- W&B


class FailingWandb(types.SimpleNamespace):
    """Weights & Biases on a bad day: `fails` names what raises."""

    def __init__(self, *fails):
        super().__init__(calls=[], fails=fails, Settings=dict, Video=lambda *args, **kwargs: None)

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, kwargs.get("mode")))
            if name in self.fails and kwargs.get("mode") != "offline":
                raise ConnectionError("no route to the server")

        return call


@pytest.mark.parametrize("fails", [(), ("init",), ("log",), ("finish",), ("init", "log", "finish")])
def test_wandb_on_a_bad_day(fails, monkeypatch, capfd, tmp_path):
    """Training goes on, TensorBoard has everything, and what could not be done is told in a line."""
    whole, _ = helpers.train("ppo", tmp_path / "whole", eval_every=256)
    wandb = FailingWandb(*fails)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    wandb.__spec__ = mock.Mock()
    run_dir, _ = helpers.train("ppo", tmp_path / "tracked", track=True, capture_video=True, eval_every=256)
    assert_same_run(whole, run_dir)
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("W&B: ")]
    assert len(told) == 2 * ("init" in fails) + 2 * ("log" in fails) + ("finish" in fails)
    assert (("init", "offline") in wandb.calls) == ("init" in fails)
    assert [name for name, _ in wandb.calls].count("finish") == 1


def test_wandb_that_does_not_end(monkeypatch, tmp_path):
    """An upload that hangs does not keep the run from its end."""
    wandb = FailingWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(wandb, "finish", lambda status: time.sleep(1000), raising=False)
    began, stop = time.time(), []
    threading.Timer(1, stop.append, [signal.SIGTERM]).start()
    tracking.finish(types.SimpleNamespace(track=True), 0, stop)  # the signal comes while it waits
    assert 5.5 < time.time() - began < 9


def test_wandb_knows_how_a_run_has_ended(monkeypatch):
    statuses, args = [], types.SimpleNamespace(track=True)
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=True, finish=statuses.append))
    utils.end_run(args, [])
    with pytest.raises(SystemExit):
        utils.end_run(args, [signal.SIGTERM])
    tracking.finish(args)  # as at exit, after an error
    assert statuses == [0, 143, 1]


@pytest.mark.slow
def test_wandb_without_a_key(tmp_path):
    """Real W&B: it logs offline, and the run of the resumed process has the same id."""
    flags = helpers.small_flags("ppo", tmp_path / "runs", track=True, resume="auto")
    extra = dict(HOME=str(tmp_path), WANDB_SILENT="true", NETRC=str(tmp_path / "netrc"), WANDB_API_KEY="")
    done = helpers.run([sys.executable, "-m", "cleanrl_lite.ppo", *flags], cwd=tmp_path, **extra)
    assert done.returncode == 0, done.stderr
    assert "W&B: No API key configured" in done.stderr and "W&B: it logs offline" in done.stderr
    (run_dir,) = (path.parent for path in (tmp_path / "runs").glob("*/checkpoint.pt"))
    (offline,) = (tmp_path / "runs").glob("wandb/offline-run-*")
    assert offline.name.endswith(run_dir.name)


# --- nothing grows


def test_nothing_leaks(tmp_path):
    """Memory and open files of a run of some seconds, after its start; `make torture` watches for longer."""
    process = start("ppo", tmp_path, num_envs=4, num_steps=128, total_timesteps=10_000_000)
    try:
        watched, samples = psutil.Process(process.pid), []
        for _ in range(2):
            time.sleep(4)
            files = min(watched.num_fds() for _ in range(20) if not time.sleep(0.01))  # not those of a moment's saving
            samples.append((watched.memory_info().rss, files))
        (first, fds), (last, fds_later) = samples
        assert last - first < 3e6 and fds_later <= fds
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_args_json_is_what_resume_auto_compares(tmp_path):
    """A flag that a newer version has added makes another run, not a wrong one."""
    run_dir, _ = helpers.train("ppo", tmp_path)
    found = checkpoints.find_run(helpers.small_args("ppo", tmp_path, resume="auto"), "ppo")
    assert found == run_dir
    args = helpers.read_json(run_dir / "args.json")
    del args["gamma"]
    (run_dir / "args.json").write_text(json.dumps(args))
    assert checkpoints.find_run(helpers.small_args("ppo", tmp_path, resume="auto"), "ppo") is None


def test_states_differ_where_they_should(tmp_path):
    """The comparison that these tests hang on sees a difference."""
    (one, _), (other, _) = (helpers.train("ppo", tmp_path / str(seed), seed=seed) for seed in (1, 2))
    with pytest.raises(AssertionError):
        assert_same_run(one, other, UNSEEDED)
    with pytest.raises(AssertionError):
        assert_same_state(dict(a=torch.zeros(2)), dict(a=torch.ones(2)))
