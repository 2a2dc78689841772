"""What a run survives: stops, kills, faulty environments, full disks; and that it goes on as if
nothing was."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import tyro
from filelock import FileLock, Timeout
from torch.utils.tensorboard import SummaryWriter

from benchmark.measure import cuda_check, same_runs, torture
from cleanrl_lite import utils
from tests import helpers
from tests.probe_envs import probe


# --- a run that is stopped and resumed is the run that was not
def interrupted(script, folder, steps, monkeypatch, **flags):
    """The directory of a run that gets SIGTERM at these steps, each time resumed by the same
    command."""
    goes_on, left, args = (
        utils.Run.goes_on,
        list(steps),
        helpers.small_args(script, folder, resume="auto", **flags),
    )

    def spied(run, global_step, *rest, **values):
        if left and global_step >= left[0]:
            left.pop(0)
            os.kill(os.getpid(), signal.SIGTERM)
        return goes_on(run, global_step, *rest, **values)

    with monkeypatch.context() as patch:
        patch.setattr(utils.Run, "goes_on", spied)
        while left:
            with pytest.raises(SystemExit, match="143"):
                helpers.main(script, args)
            assert not (helpers.only_run(folder) / "eval.json").exists() or flags.get("eval_every")
            helpers.next_second()
        helpers.main(script, args)
    return helpers.only_run(folder)


def stopped(script, folder, step, monkeypatch, **flags):
    """The directory of a run that gets SIGTERM at this step."""
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="143"):
        helpers.stop_at(step, patch)
        helpers.train(script, folder, **flags)
    return helpers.only_run(folder)


def in_mid_episode(script, **flags):
    """A run of some episodes that is stopped in the middle of some, and not where it saves
    anyway."""
    sizes = helpers.rollout_only(script, num_steps=40, num_minibatches=5)
    return dict(num_envs=2, total_timesteps=720, eval_every=250) | sizes | flags


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "script, flags",
    [
        pytest.param(*script.values, {}, marks=script.marks)
        for script in helpers.others_slow(
            helpers.MLP_SCRIPTS + helpers.IMAGE_SCRIPTS,
            ["ppo_continuous", "dqn", "td3", "fast_td3"],
        )
    ]
    + [
        pytest.param("ppo_multiagent", dict(env_id=f"{helpers.PROBES}Alone-v0"), marks=slow),
        pytest.param("ppo_continuous", dict(env_id="Hopper-v5"), marks=slow),
    ],
)
def test_a_resumed_run_is_the_run(script, flags, monkeypatch, tmp_path):
    """Bit for bit: every scalar, the networks, the optimizer, the replay buffer, the random
    generators."""
    flags = in_mid_episode(script, **flags)
    whole, returns = helpers.train(script, tmp_path / "whole", **flags)
    parts = interrupted(script, tmp_path / "parts", (130, 410), monkeypatch, **flags)
    helpers.assert_same_run(whole, parts)
    assert helpers.read_json(parts / "eval.json")["returns"] == returns


@pytest.mark.parametrize("script, tag", [("ppo", "learning_rate"), ("dqn", "epsilon")])
def test_a_resumed_schedule(script, tag, monkeypatch, tmp_path):
    """It goes on where it was, not from its beginning."""
    whole, _ = helpers.train(script, tmp_path / "whole")
    run_dir = stopped(script, tmp_path / "parts", 256, monkeypatch)
    helpers.next_second()
    helpers.train(script, tmp_path / "parts", resume=str(run_dir))
    values = helpers.scalars(whole)[f"charts/{tag}"]
    assert len({value for _, value in values}) > 2
    assert helpers.scalars(run_dir)[f"charts/{tag}"] == values


GAMES = ["ppo_atari", "dqn_atari", "sac_atari", "ppo_microrts", "ppo_godot"]


@pytest.mark.slow
@pytest.mark.parametrize("script", GAMES)
def test_a_resumed_game(script, monkeypatch, tmp_path):
    """Games start again, but no step is logged twice or missing, and no update."""
    whole, _ = helpers.train(script, tmp_path / "whole")
    parts = interrupted(script, tmp_path / "parts", (32,), monkeypatch)
    steps = []
    for run in (whole, parts):
        logged = helpers.scalars(run)
        steps.append({tag: [step for step, _ in logged[tag]] for tag in helpers.tags(script)})
    assert steps[0] == steps[1]
    updates = [
        [adam["step"] for adam in helpers.adams(helpers.load(run)).values()]
        for run in (whole, parts)
    ]
    assert updates[0] == updates[1]


def test_points_after_the_checkpoint_are_dropped(tmp_path):
    """A killed run has logged more than it has saved: after resuming, curves have every step
    once."""
    run_dir, _ = helpers.train("ppo", tmp_path, anneal_lr=False)
    (run_dir / "eval.json").unlink()
    helpers.next_second()
    with SummaryWriter(run_dir) as writer:
        for step in (640, 700, 768):
            writer.add_scalar("charts/SPS", -1.0, step)
    helpers.next_second()
    helpers.main(
        "ppo",
        helpers.small_args(
            "ppo", tmp_path, anneal_lr=False, resume=str(run_dir), total_timesteps=1024
        ),
    )
    points = helpers.scalars(run_dir)["charts/SPS"]
    assert [step for step, _ in points] == list(range(128, 1025, 128)) and all(
        value > 0 for _, value in points
    )


# --- --resume auto
def test_resume_auto(tmp_path, capsys):
    """Nothing there: a new run. There: that run, finished or not. Other arguments: another run."""
    args = helpers.small_args("dqn", tmp_path, resume="auto")
    returns = helpers.main("dqn", args)["returns"]
    run_dir = helpers.only_run(tmp_path)
    before = helpers.load(run_dir)
    (run_dir / "eval.json").unlink()
    capsys.readouterr()
    record = helpers.main("dqn", args)
    assert record["returns"] == returns and record["dir"] == helpers.only_run(tmp_path) == run_dir
    assert (
        capsys.readouterr().out.endswith(f"\nfinished: {run_dir}\n")
        and (run_dir / "eval.json").exists()
    )
    helpers.assert_same_state(helpers.load(run_dir)["agent"], before["agent"])
    helpers.next_second()  # the name of another run
    helpers.main("dqn", helpers.small_args("dqn", tmp_path, resume="auto", learning_rate=1e-3))
    assert len(list(tmp_path.iterdir())) == 2
    (run_dir / "eval.json").unlink()
    helpers.next_second()
    assert helpers.main("dqn", args)["returns"] == returns and len(list(tmp_path.iterdir())) == 2


def test_one_process_a_run(tmp_path):
    """The lock belongs to the process at work, whatever the other one is told."""
    run_dir, returns = helpers.train("ppo", tmp_path)
    (run_dir / "eval.json").unlink()
    before = (run_dir / "checkpoint.pt").read_bytes()
    with FileLock(run_dir / "lock"):
        for resume in (str(run_dir), "auto"):
            with pytest.raises(Timeout, match=f"file lock '{run_dir}/lock' could not be acquired"):
                helpers.main("ppo", helpers.small_args("ppo", tmp_path, resume=resume))
    assert (run_dir / "checkpoint.pt").read_bytes() == before
    _, again = helpers.train("ppo", tmp_path, resume="auto")
    assert again == returns


# --- signals
def start(script, folder, *words, **flags):
    """A long run in a process group of its own; returns when it has saved at least once."""
    flags = helpers.small_flags(
        script, folder / "runs", **{**dict(total_timesteps=50_000_000, save_every=1), **flags}
    )
    command = [sys.executable, "-m", f"cleanrl_lite.{script}", *flags, *words]
    process = helpers.in_background(command, folder)
    helpers.wait_for(
        lambda: process.poll() is not None or list((folder / "runs").glob("*/checkpoint.pt"))
    )
    assert process.poll() is None, process.communicate()
    return process


@pytest.mark.parametrize(
    "script, number",
    [
        ("ppo", signal.SIGINT),
        pytest.param("dqn_atari", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("td3", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("ppo", signal.SIGHUP, marks=pytest.mark.slow),
        ("dqn", signal.SIGUSR1),
    ],
)
def test_a_signal_saves_and_ends(script, number, tmp_path):
    """The exit status says which; nothing was lost; the last line says how to go on."""
    process = start(script, tmp_path)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    run_dir = helpers.only_run(tmp_path / "runs")
    assert process.returncode == 128 + number and "Traceback" not in errors, errors
    state, logged = helpers.load(run_dir), helpers.scalars(run_dir).get("charts/SPS", [(0, 0)])
    told = f"stopped. Resume at step {state['global_step']:,} with --resume {run_dir}"
    assert output.splitlines()[-1] == told
    args = state["args"]
    each = args["num_envs"] * args["num_steps"] if helpers.family(script) == "ppo" else 100
    assert 0 <= state["global_step"] - logged[-1][0] < each and not (run_dir / "eval.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("script, number", [("ppo", signal.SIGINT), ("sac", signal.SIGTERM)])
def test_a_signal_to_all_processes(script, number, tmp_path):
    """As terminals and clusters send it: the workers must not take the run down before it has
    saved."""
    process = start(script, tmp_path, async_envs=True)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "Traceback" not in errors, errors
    assert torture.group_is_gone(process.pid)
    assert helpers.load(helpers.only_run(tmp_path / "runs"))["global_step"] > 0


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(monkeypatch, tmp_path):
    """The first one waits for the environment's step, which here does not end."""
    monkeypatch.setenv("FAULT", "hangs")
    monkeypatch.setenv("FAULT_STEP", "40")
    process = start("ppo", tmp_path, env_id=probe("Faulty", "ppo"))
    helpers.wait_for((tmp_path / "hangs").exists)
    process.send_signal(signal.SIGINT)
    status = Path(f"/proc/{process.pid}/status")
    caught = "ShdPnd:\t0000000000000000"  # no signal waits any more
    helpers.wait_for(lambda: caught in status.read_text())
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT


# --- kills
KILLED = """
import os, signal, sys, torch
from pathlib import Path
from tests import helpers
script, folder, place, number = sys.argv[1:]
calls, save, replace = 0, torch.save, Path.replace

def die(where):
    if (where, calls) == (place, int(number)):
        os.kill(os.getpid(), signal.SIGKILL)

def killed_save(state, file, **options):
    global calls
    if options:  # within pickle
        return save(state, file, **options)
    calls += 1
    if (place, calls) == ("half", int(number)):
        file.write(b"half of a checkpoint")
        file.flush()
    die("half")
    save(state, file)

def killed_replace(source, target):
    checkpoint = str(target).endswith("checkpoint.pt")
    die("written" if checkpoint else "")
    replace(source, target)
    die("renamed" if checkpoint else "")

torch.save, Path.replace = killed_save, killed_replace
flags = dict(resume="auto", save_every=100, eval_every=200)
helpers.main(script, helpers.small_args(script, folder, **flags))
"""


@pytest.mark.slow
@pytest.mark.parametrize("script, place", [("ppo", "half"), ("ppo", "renamed"), ("sac", "written")])
def test_killed_while_it_saves(script, place, tmp_path):
    """There is a whole checkpoint, the old or the new one, and the run that it leads to is the
    one without a kill."""
    command = [sys.executable, "-c", KILLED, script, tmp_path / "parts", place]
    for number in (3, 2):
        done = helpers.run([*command, number], cwd=tmp_path)
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert helpers.load(helpers.only_run(tmp_path / "parts"))["global_step"] > 0
    done = helpers.run([*command, 0], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole, _ = helpers.train(script, tmp_path / "whole", save_every=100, eval_every=200)
    helpers.assert_same_run(whole, helpers.only_run(tmp_path / "parts"))


def test_every_script_is_checked():
    """Each of these knows every script, and the script knows the flags."""
    lists = torture.RUNS, same_runs.RUNS, cuda_check.CHECK
    assert [set(helpers.SCRIPTS) ^ set(runs) for runs in lists] == [set()] * 3
    for script in helpers.SCRIPTS:
        tyro.cli(helpers.module(script).Args, args=" ".join(runs[script] for runs in lists).split())


# --- environments and networks that fail
FAULTS = dict(
    nan_reward="nan",
    huge_reward="reward 1e+39",
    nan_obs="nan",
    inf_obs="inf",
    huge_obs="[-1.e+39]",
    wrong_shape="shape",
    broadcasts="shape",
    raises="the simulator says no",
)


@pytest.mark.parametrize(
    "script, fault",
    [("ppo", fault) for fault in FAULTS] + [("td3", "nan_obs"), ("td3", "huge_obs")],
)
def test_a_faulty_environment(script, fault, monkeypatch, capfd, tmp_path):
    """A line with what was wrong, the step, and the last good checkpoint, in which everything is
    finite. An exception of the environment's own keeps its traceback."""
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setenv("FAULT_STEP", "131")
    sizes = helpers.rollout_only(script, num_steps=50, num_minibatches=5)
    flags = (
        dict(env_id=probe("Faulty", script), num_envs=1, save_every=50, total_timesteps=1000)
        | sizes
    )
    assert helpers.command_line(script, helpers.small_flags(script, tmp_path, **flags)) == 1
    run_dir, said = helpers.only_run(tmp_path), capfd.readouterr()
    lines = said.err.strip().splitlines()
    start = "ValueError: " if fault == "raises" else "error: not finite, or not of shape ("
    assert lines[-1].startswith(start) and FAULTS[fault] in lines[-1], lines
    assert said.out.splitlines()[-1] == f"stopped. Resume at step 100 with --resume {run_dir}"
    assert ("Traceback (most recent call last):" in lines) == (fault == "raises")
    state = helpers.load(run_dir)
    assert state["global_step"] == 100
    tensors = [*state["agent"].values(), *([state["replay"]["rows"]] if "replay" in state else [])]
    assert all(tensor.isfinite().all() for tensor in tensors)


class Reuses(gym.Env):
    """Returns the same array each time, as some simulators do. Episodes have three steps."""

    observation_space, action_space = gym.spaces.Box(0, 9, (1,)), gym.spaces.Discrete(2)

    def __init__(self):
        self.obs = np.zeros(1, dtype=np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.obs[:] = 0
        return self.obs, {}

    def step(self, action):
        self.obs += 1
        return self.obs, 1.0, False, bool(self.obs[0] == 3), {}


@pytest.mark.parametrize("async_envs", [False, True])
def test_an_environment_that_returns_the_same_array(async_envs):
    """The last observation of an episode is not overwritten by the first one of the next."""
    envs = utils.vector_env([Reuses] * 2, async_envs)
    envs.reset(seed=[1, 2])
    for step in (1, 2, 3, 1, 2, 3):
        obs, _, _, truncated, infos = envs.step(np.zeros(2, dtype=np.int64))
        assert truncated.all() == (step == 3) and (obs == step % 3).all()
    assert {n: last.tolist() for n, last in infos["final_obs"].items()} == {0: [3.0], 1: [3.0]}
    assert [infos["final_info"][n]["statistics"][1] for n in range(2)] == [3, 3]
    envs.close()


@pytest.mark.parametrize("script", ["ppo_continuous", "c51", "sac", "sac_discrete"])
def test_a_diverging_run_stops(script, capfd, tmp_path):
    """A learning rate far too large: one line names the loss or the weight; what was saved is
    finite."""
    rate = dict(q_lr=1e15, policy_lr=1e15) if "sac" in script else dict(learning_rate=1e15)
    rate |= helpers.rollout_only(script, anneal_lr=False)
    assert (
        helpers.command_line(script, helpers.small_flags(script, tmp_path, save_every=64, **rate))
        == 1
    )
    said = capfd.readouterr()
    *before, line = said.err.splitlines()
    found = r"\S+ is (nan|-?inf|not finite)$|the agent's actions are not finite: "
    assert re.match(rf"error: ({found})", line)
    assert "Traceback" not in "".join(before)
    # "losses/" where they are logged before the next checkpoint is due
    assert "losses/" in line or script != "ppo_continuous"
    assert re.match(r"stopped\. Resume at step \d+ with --resume ", said.out.splitlines()[-1])
    state = helpers.load(helpers.only_run(tmp_path))
    tensors = [
        *state["agent"].values(),
        *(x for adam in helpers.adams(state).values() for x in adam.values()),
    ]
    assert all(tensor.isfinite().all() for tensor in tensors)


def test_a_failure_in_the_last_evaluation_costs_no_training(monkeypatch, capfd, tmp_path):
    """The resumed run evaluates, and has one evaluation."""
    words = helpers.small_flags("dqn", tmp_path, save_every=0, resume="auto")
    with monkeypatch.context() as patch:
        fails = mock.Mock(side_effect=ValueError("the simulator says no"))
        patch.setattr(utils.Run, "evaluate", fails)
        assert helpers.command_line("dqn", words) == 1
    run_dir, said = helpers.only_run(tmp_path), capfd.readouterr()
    assert "Traceback" in said.err and "the simulator says no" in said.err
    assert f"Resume at step 512 with --resume {run_dir}" in said.out
    helpers.next_second()
    assert helpers.command_line("dqn", words) == 0
    assert [step for step, _ in helpers.scalars(run_dir)["eval/episodic_return"]] == [512]


# --- the disk
@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB; for root on Linux."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True
    ).returncode:
        pytest.skip("cannot mount a file system here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("script, leave", [("ppo", 40_000), ("dqn", 100_000)])
def test_disk_full(script, leave, small_disk):
    """While it logs or saves: status 1, and the checkpoint before is whole."""
    process = start(script, small_disk, total_timesteps=2_000_000, save_every=2_000)
    free = shutil.disk_usage(small_disk).free
    with contextlib.suppress(OSError):
        (small_disk / "filler").write_bytes(bytes(max(free - leave, 0)))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1 and "No space left on device" in errors, errors
    run_dir = helpers.only_run(small_disk / "runs")
    (small_disk / "filler").unlink()
    total = (helpers.load(run_dir)["global_step"] + 400) // 256 * 256
    words = ["--resume", run_dir, "--save-every", 0, "--total-timesteps", total]
    assert helpers.command_line(script, words) == 0


# --- W&B


def test_evaluations_are_without_dropout(monkeypatch, tmp_path):
    """Greedy evaluations, of one observation each, are in eval mode; training is in train mode."""
    script, modes = helpers.module("ppo"), set()

    class Agent(script.Agent):
        def forward(self, obs):
            modes.add(("train" if self.training else "eval", "batch" if len(obs) > 1 else "row"))
            return super().forward(obs)

    monkeypatch.setattr(script, "Agent", Agent)
    helpers.train("ppo", tmp_path, eval_every=128)
    assert modes == {("train", "batch"), ("eval", "row")}
