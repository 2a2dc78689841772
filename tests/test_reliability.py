"""What a run survives: stops, kills, faulty environments, full disks; and that it continues from
what it had."""

import errno
import itertools
import os
import random
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tyro
from filelock import FileLock
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from benchmark.measure import cuda_check, same_runs, torture
from cleanrl_lite import utils
from tests import helpers
from tests.probe_envs import probe

# --- a stop and a resume
# What belongs to the episodes under way, or is set at every turn.
ANEW = re.compile(r"learning_rate|training|memory|requires_grad")

# Atari: games restart, and their newest frame begins no transition; sac_her: episodes under way.
BY_DECISION = ["rows", "written", "lengths", "age", "newest_age"]


def anatomy(thing, path="", seen=None):
    """{path: value} of all numbers that a part has, saved or not."""
    seen = {} if seen is None else seen
    if id(thing) in seen or ANEW.search(path):
        return {}
    seen[id(thing)] = thing
    if torch.is_tensor(thing):
        return {path: thing.detach().clone()}
    if isinstance(thing, np.ndarray):
        return {path: thing.copy()}
    if isinstance(thing, int | float | str | np.generic):
        return {path: thing}
    if isinstance(thing, torch.optim.Optimizer):
        thing = thing.state_dict()["state"]
    if isinstance(thing, dict):
        items = thing.items()
    elif isinstance(thing, list | tuple):
        items = enumerate(thing)
    elif isinstance(thing, nn.Module) or type(thing).__module__.startswith("cleanrl_lite."):
        items = vars(thing).items()
    else:
        return {}
    found = {}
    for name, part in items:
        found.update(anatomy(part, f"{path}.{name}", seen))
    return found


def note_parts(monkeypatch):
    """What the parts of runs are like: lists of those when a signal stops one, and right after one
    is made."""
    stopped, made = [], []

    class Noted(utils.Run):
        def __init__(self, *args, **parts):
            super().__init__(*args, **parts)
            made.append({**anatomy(self.parts), "step": self.step})

        def checkpoint(self, writer):
            if utils.received:
                stopped.append({**anatomy(self.parts), "step": self.step})
            super().checkpoint(writer)

    monkeypatch.setattr(utils, "Run", Noted)
    return stopped, made


def steps_of(run_dir, script):
    """{tag: steps} of what is logged at every turn."""
    logged = helpers.scalars(run_dir)
    return {tag: [step for step, _ in logged[tag]] for tag in helpers.tags(script)}


def updates_of(run_dir):
    """The number of steps of each optimizer."""
    state = helpers.load(run_dir)
    return {
        name: int(part["step"] if "step" in part else part["state"][0]["step"])
        for name, part in state.items()
        if isinstance(part, dict) and {"step", "param_groups"} & part.keys()
    }


def stop_flags(script):
    """Of a run of which a stop falls between two updates of a delayed actor."""
    if helpers.default(script, "policy_frequency") is None:
        return {}
    return {"policy_frequency": 3, "train_frequency": 2, "total_timesteps": 304}


STOPPED = [
    name for name in helpers.SCRIPTS if name not in (*helpers.ENVPOOL_SCRIPTS, "ppo_atari_multigpu")
]


@pytest.mark.parametrize(
    "script", helpers.others_slow(STOPPED, ["ppo_continuous", "dqn", "td3", "sac"])
)
def test_a_resumed_run_has_all_that_it_had(script, monkeypatch, tmp_path):
    """All parts to the bit, right after the restore; the right steps, numbers of updates, learning
    rates and schedules; curves with every step once. The same resume twice is the same run."""
    flags = stop_flags(script)
    whole, _ = helpers.train(script, tmp_path / "whole", **flags)
    total = helpers.load(whole)["global_step"]
    logged = helpers.scalars(whole)
    half = total // 2 + (0 if "num_steps" in helpers.SMALL[script] else 12)
    stopped, made = note_parts(monkeypatch)
    run_dir = helpers.stopped(script, tmp_path / "parts", half, monkeypatch, **flags)
    between = helpers.load(run_dir)
    assert half <= between["global_step"] < total
    again = shutil.copytree(run_dir, tmp_path / "again/run")
    for folder in (run_dir, again):
        helpers.train(script, folder.parent, **flags, resume=str(folder))
        if script in (*helpers.ATARI_SCRIPTS, "sac_her"):
            for name, state in itertools.product(BY_DECISION, (made[-1], stopped[0])):
                state.pop(f".replay.{name}", None)
        helpers.assert_same_state(made[-1], stopped[0])
    assert helpers.load(run_dir)["global_step"] == total
    assert steps_of(run_dir, script) == steps_of(whole, script)
    assert updates_of(run_dir) == updates_of(whole)
    if flags:
        assert updates_of(run_dir).get("actor_adam", 1) > 0
        # a rhythm that starts anew at the resume would give another number
        assert updates_of(run_dir)["critic_adam"] % 3 < int(between["critic_adam"]["step"]) % 3
    rest = helpers.scalars(run_dir)
    for tag in {"charts/learning_rate", "charts/epsilon", "charts/beta"} & rest.keys():
        if script != "ppo_continuous_adaptive":  # where it is found by the policy
            np.testing.assert_allclose(rest[tag], logged[tag], rtol=1e-6, err_msg=tag)
    if helpers.default(script, "anneal_lr") and script != "ppo_continuous_adaptive":
        rate = helpers.default(script, "learning_rate")
        every = logged["charts/SPS"][0][0]
        expected = [(step, rate * (1 - (step - every) / total)) for step, _ in logged["charts/SPS"]]
        np.testing.assert_allclose(rest["charts/learning_rate"], expected, rtol=1e-5)
    helpers.assert_same_run(run_dir, again)


def test_new_episodes_after_a_resume(monkeypatch, tmp_path):
    """With other seeds than the first ones: not the same episodes again."""
    flags = dict(env_id=probe("Scripted", "ppo"))
    draws = []

    class Noted(utils.Run):
        def __init__(self, *args, **parts):
            super().__init__(*args, **parts)
            with utils.keep_random_states():
                draws.append([random.random(), np.random.random(), torch.rand(()).item()])

    monkeypatch.setattr(utils, "Run", Noted)
    run_dir = helpers.stopped("ppo", tmp_path, 128, monkeypatch, **flags)
    helpers.train("ppo", tmp_path, **flags, resume=str(run_dir), total_timesteps=256)
    episodes = helpers.scalars(run_dir)["charts/episodic_return"]
    first = [value for step, value in episodes if step <= 128]
    second = [value for step, value in episodes if step > 128]
    assert min(len(first), len(second)) > 10
    assert not {*first} & {*second}
    assert not {*draws[0]} & {*draws[1]}


def test_points_after_the_checkpoint_are_dropped(tmp_path):
    """A killed run has logged more than it has saved: after resuming, curves have every step
    once."""
    run_dir, _ = helpers.train("ppo", tmp_path, anneal_lr=False)
    helpers.next_second()
    with SummaryWriter(run_dir) as writer:
        for step in (640, 700, 768):
            writer.add_scalar("charts/SPS", -1.0, step)
    helpers.next_second()
    flags = dict(anneal_lr=False, resume=str(run_dir), total_timesteps=1024)
    helpers.train("ppo", tmp_path, **flags)
    points = helpers.scalars(run_dir)["charts/SPS"]
    assert [step for step, _ in points] == list(range(128, 1025, 128))
    assert all(value > 0 for _, value in points)


def test_every_script_is_checked():
    """Each of these knows every script, and the script knows the flags."""
    lists = torture.RUNS, same_runs.RUNS, cuda_check.CHECK
    assert [set(helpers.SCRIPTS) ^ set(runs) for runs in lists] == [set()] * 3
    for script in helpers.SCRIPTS:
        tyro.cli(helpers.module(script).Args, args=" ".join(runs[script] for runs in lists).split())


# --- which run is continued
def test_resume_auto(monkeypatch, tmp_path, capsys):
    """Nothing there: a new run. There: that run, finished or not, however --runs-dir is spelt and
    wherever the folder is now; folders of something else are left alone. Other flags: another
    run."""
    monkeypatch.chdir(tmp_path)
    for number, text in enumerate(("[1]", "{", '{"script": "dqn"}')):
        folder = Path(f"runs/other{number}")
        folder.mkdir(parents=True)
        (folder / "args.json").write_text(text)
        (folder / "checkpoint.pt").touch()
    _, returns = helpers.train("dqn", "runs", resume="auto")
    (run_dir,) = Path("runs").glob("CartPole*")
    saved = helpers.load(run_dir)
    Path("moved").mkdir()
    for spelling in ("./runs/", tmp_path / "runs", "moved"):
        if spelling == "moved":
            run_dir = run_dir.rename("moved/renamed")
        record = helpers.main("dqn", helpers.small_args("dqn", spelling, resume="auto"))
        assert record["dir"].resolve() == run_dir.resolve()
        assert record["returns"] == returns
        helpers.assert_same_state(helpers.load(run_dir)["agent"], saved["agent"])
        assert helpers.load(run_dir)["id"] == saved["id"]  # W&B's, whatever the folder's name
        assert capsys.readouterr().out.splitlines()[-1] == f"finished: {record['dir']}"
    other, _ = helpers.train("dqn", "moved", resume="auto", learning_rate=1e-3)
    assert other.name not in ("renamed", run_dir.name)
    newest, _ = helpers.train("dqn", "moved", resume="auto", learning_rate=1e-3)
    assert newest == other.resolve()


def test_one_process_a_run(tmp_path):
    """The lock belongs to the process at work: one line for the other one, and nothing changes."""
    run_dir, returns = helpers.train("ppo", tmp_path)
    files = {path: path.read_bytes() for path in run_dir.iterdir()}
    with FileLock(run_dir / "lock"):
        for resume in (str(run_dir), "auto"):
            with pytest.raises(SystemExit, match=r"^error: another process trains in [^\n]+$"):
                helpers.train("ppo", tmp_path, resume=resume)
    assert {path: path.read_bytes() for path in run_dir.iterdir()} == files
    interrupted = new_run(tmp_path, resume=str(run_dir))  # a notebook keeps such a run
    assert helpers.train("ppo", tmp_path, resume="auto")[1] == returns
    assert not interrupted.lock.is_locked


def new_run(runs_dir, **flags):
    """A run of ppo without training."""
    _, trained = helpers.agent_of("ppo")
    args = helpers.small_args("ppo", runs_dir, **flags)
    envs = SimpleNamespace(returns=[], close=lambda: None, begin=lambda step: None)
    adam = utils.Adam(trained.parameters(), 0.1)
    return utils.Run(args, helpers.module("ppo").__file__, None, envs, trained, adam=adam)


def test_two_runs_in_one_second(tmp_path):
    """Have directories of their own; names are such that W&B takes them as ids."""
    runs = []
    for _ in range(3):
        runs.append(new_run(tmp_path, exp_name="run#2 / a?%:b" + 300 * "x"))
        time.sleep(0.02)
    assert len({run.dir for run in runs}) == 3
    assert all(re.fullmatch(r"[\w.+=-]{1,128}", run.dir.name) for run in runs)


# --- signals
@pytest.mark.parametrize(
    "script, number, group",
    [
        ("ppo", signal.SIGINT, False),
        pytest.param("dqn", signal.SIGUSR1, False, marks=pytest.mark.slow),
        pytest.param("sac", signal.SIGTERM, True, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_ends(script, number, group, tmp_path):
    """The exit status says which; nothing was lost; the last line says how to continue. Terminals
    and clusters send it to all processes: workers must not take the run down before it has saved.
    """
    flags = dict(total_timesteps=50_000_000, save_every=1, async_envs=group)
    words = helpers.small_flags(script, tmp_path / "runs", **flags)
    process = helpers.in_background(
        [sys.executable, "-m", f"cleanrl_lite.{script}", *words], tmp_path
    )
    helpers.wait_for(lambda: process.poll() or list((tmp_path / "runs").glob("*/checkpoint.pt")))
    if group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    run_dir = helpers.only_run(tmp_path / "runs")
    assert process.returncode == 128 + number and "Traceback" not in errors, errors
    state = helpers.load(run_dir)
    told = f"stopped. Resume at step {state['global_step']:,} with --resume {run_dir}"
    assert output.splitlines()[-1] == told
    logged = helpers.scalars(run_dir).get("charts/SPS", [(0, 0)])
    args = state["args"]
    each = args["num_envs"] * args["num_steps"] if helpers.family(script) == "ppo" else 100
    assert 0 <= state["global_step"] - logged[-1][0] < each
    assert not (run_dir / "eval.json").exists()
    helpers.wait_for(lambda: torture.group_is_gone(process.pid), 10)


# --- environments and networks that fail
FAULTS = dict(nan_reward="rewards .*nan", nan_obs="nan", raises="the simulator says no")


@pytest.mark.parametrize(
    "script, fault, async_envs",
    [("ppo", fault, False) for fault in FAULTS]
    + [("td3", "nan_obs", False), ("ppo", "nan_obs", True)],
)
def test_a_faulty_environment(script, fault, async_envs, monkeypatch, capfd, tmp_path):
    """A line with what was wrong; the last checkpoint is the last good one, in which everything is
    finite. An exception of the environment's own keeps its traceback."""
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setenv("FAULT_STEP", "131")
    sizes = helpers.rollout_only(script, num_steps=50, num_minibatches=5)
    flags = dict(env_id=probe("Faulty", script), num_envs=1, save_every=50, total_timesteps=1000)
    flags = helpers.small_flags(script, tmp_path, **flags, **sizes, async_envs=async_envs)
    assert helpers.command_line(script, flags) == 1
    lines = capfd.readouterr().err.strip().splitlines()
    start = "ValueError: " if fault == "raises" else "error: "
    (line,) = [line for line in lines if line.startswith(start)]
    assert re.search(FAULTS[fault], line)
    assert any("Traceback" in line for line in lines) == (fault == "raises")
    state = helpers.load(helpers.only_run(tmp_path))
    assert state["global_step"] == 100
    tensors = [*state["agent"].values(), *([state["replay"]["rows"]] if "replay" in state else [])]
    assert all(tensor.isfinite().all() for tensor in tensors)


@pytest.mark.parametrize("script", ["ppo_continuous", "sac"])
def test_a_diverging_run_stops(script, capfd, tmp_path):
    """A learning rate far too large: one line names the loss or the weight; what was saved is
    finite."""
    rate = dict(q_lr=1e15, policy_lr=1e15) if "sac" in script else dict(learning_rate=1e15)
    rate |= helpers.rollout_only(script, anneal_lr=False)
    words = helpers.small_flags(script, tmp_path, save_every=64, **rate)
    assert helpers.command_line(script, words) == 1
    lines = capfd.readouterr().err.splitlines()
    (line,) = [line for line in lines if line.startswith("error: ")]
    found = r"\S+ is (nan|-?inf)\. The run directory is .*|\S+ is not finite"
    assert re.match(rf"error: ({found}|the agent's actions are .*)", line)
    for path in tmp_path.glob("*/checkpoint.pt"):
        state = helpers.load(path.parent)
        assert all(tensor.isfinite().all() for tensor in state["agent"].values())


def test_nan_never_replaces_a_good_checkpoint(tmp_path):
    """Of any parameter or buffer of the agent."""
    run = new_run(tmp_path)
    run.save()
    before = (run.dir / "checkpoint.pt").read_bytes()
    for tensor in run.agent.state_dict().values():
        kept = tensor.clone()
        tensor.view(-1)[-1] = np.nan
        with pytest.raises(SystemExit, match=r"error: \S+ is not finite$"):
            run.save()
        assert (run.dir / "checkpoint.pt").read_bytes() == before
        tensor.copy_(kept)
    with pytest.raises(SystemExit, match="losses/mine is nan"):
        run.log(SummaryWriter(run.dir), {"losses/mine": np.nan})


def test_a_full_disk_leaves_the_checkpoint(monkeypatch, tmp_path):
    """And nothing half written."""
    run = new_run(tmp_path)
    run.save()
    before = (run.dir / "checkpoint.pt").read_bytes()

    def full(state, path):
        Path(path).write_bytes(b"half of a checkpoint")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    run.step = 64
    with pytest.raises(OSError, match="No space left on device"):
        run.save()
    assert (run.dir / "checkpoint.pt").read_bytes() == before
    assert not list(run.dir.glob("*.tmp"))


def test_a_parameter_that_no_optimizer_has(tmp_path):
    """Would never learn: one line at the start, before a directory is made; a frozen one may."""
    _, agent = helpers.agent_of("ppo")
    adam = utils.Adam(agent.critic.parameters(), 0.1)
    args = helpers.small_args("ppo", tmp_path / "runs")
    envs = SimpleNamespace(returns=[])
    script = helpers.module("ppo").__file__
    with pytest.raises(SystemExit, match=r"error: no optimizer has actor\.0\.weight"):
        utils.Run(args, script, None, envs, agent, adam=adam)
    assert not (tmp_path / "runs").exists()
    agent.actor.requires_grad_(False)
    utils.Run(args, script, None, envs, agent, adam=adam)


def test_no_video_where_it_cannot_be_made(capfd, tmp_path):
    """As the environment says when one is due. Only the video is missing: one line says so."""
    env_id = f"{helpers.PROBES}Blind-v0"
    run_dir, returns = helpers.train("ppo", tmp_path, env_id=env_id, capture_video=True)
    said = "".join(capfd.readouterr())
    assert len(re.findall("^no video: .*no pictures", said, re.M)) == said.count("no video") == 1
    assert not list(run_dir.rglob("*.mp4"))
    assert helpers.read_json(run_dir / "eval.json")["returns"] == returns


def test_a_video_of_every_evaluation(tmp_path):
    """Each of the first episode, and evaluations count the same with them."""
    _, plain = helpers.train("ppo", tmp_path / "plain", eval_episodes=2)
    flags = dict(eval_every=256, capture_video=True, eval_episodes=2)
    run_dir, returns = helpers.train("ppo", tmp_path, **flags)
    found = sorted(str(path.relative_to(run_dir)) for path in run_dir.rglob("*.mp4"))
    assert [re.search(r"videos/eval-(\d+)/", path)[1] for path in found] == ["256", "512"]
    assert returns == plain
