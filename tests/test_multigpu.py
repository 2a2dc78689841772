"""ppo_atari_multigpu.py: two processes are one, in what they learn, log and save; how groups
stop and go on."""

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from cleanrl_lite import ppo_atari_multigpu, utils
from tests import helpers
from tests.test_slurm import cluster, free_port  # noqa: F401

SCRIPT, ENVS = "ppo_atari_multigpu", 4
FLAGS = dict(num_envs=ENVS, num_steps=8, total_timesteps=96, num_minibatches=2, update_epochs=2)
GAMES = json.dumps(dict(max_num_frames_per_episode=40))  # truncated after ten steps
FLAGS |= dict(env_id="CarnivalNoFrameskip-v4", env_kwargs=GAMES)  # they bring rewards early
RANK = int(os.environ.get("RANK", 0))


class Pair:
    """Two processes that run jobs, functions of this module, as torchrun's processes would."""

    def __init__(self):
        names = dict(
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(free_port()),
            OMP_NUM_THREADS="1",
        )
        spawn = multiprocessing.get_context("spawn")
        self.pools = []
        for rank in "01":
            with mock.patch.dict(os.environ, **names, RANK=rank, LOCAL_RANK=rank):
                self.pools.append(ProcessPoolExecutor(1, spawn))
                self.pools[-1].submit(int)  # the process starts with this environment

    def __call__(self, job, *args, **kwargs):
        """What the job returns in each; raises what one of them raised, the first one's first."""
        futures = self.submit(job, *args, **kwargs)
        errors = [future.exception(400) for future in futures]
        for error in filter(None, errors):
            raise error
        return [future.result() for future in futures]

    def errors(self, job, *args, **kwargs):
        """What the job raises in each."""
        return [future.exception(400) for future in self.submit(job, *args, **kwargs)]

    def submit(self, job, *args, **kwargs):
        return [pool.submit(job, *args, **kwargs) for pool in self.pools]

    def end(self):
        for pool in self.pools:
            for process in pool._processes.values():
                process.kill()  # one may wait for the other


@pytest.fixture(scope="module")
def pair():
    pair = Pair()
    yield pair
    pair.end()


def train(runs_dir, *patches, **flags):
    """A small run; its directory, in the first process."""
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch())
        if RANK > 0:
            # it never evaluates
            stack.enter_context(mock.patch.object(ppo_atari_multigpu, "make_env", None))
        elif "resume" not in flags:
            return helpers.train(SCRIPT, runs_dir, **FLAGS | flags)[0]
        helpers.main(SCRIPT, helpers.small_args(SCRIPT, runs_dir, **FLAGS | flags))


@contextlib.contextmanager
def same_numbers():
    """Actions, and the order of samples, are drawn such that one process has the minibatches
    that two have together."""
    draws, world = itertools.count(), int(os.environ.get("WORLD_SIZE", 1))

    def sample(dist):
        noise = np.random.default_rng(next(draws)).random(ENVS)
        mine = torch.from_numpy(np.split(noise, world)[RANK])
        return (dist.probs.cumsum(-1)[:, :-1] < mine[:, None]).sum(-1)

    def permutation(size):
        draw = next(draws)
        orders = [
            np.random.default_rng([draw, rank]).permutation(size * world // 2) for rank in range(2)
        ]
        # of each one's two environments
        steps, envs = zip(*(np.divmod(order, ENVS // 2) for order in orders))
        both = [
            step * ENVS + env + rank * ENVS // 2
            for rank, (step, env) in enumerate(zip(steps, envs))
        ]
        return orders[RANK] if world == 2 else np.stack(both, 1).ravel()

    with (
        mock.patch.object(Categorical, "sample", sample),
        mock.patch.object(np.random, "permutation", permutation),
    ):
        yield


@pytest.mark.slow
def test_two_processes_are_one(pair, tmp_path):
    """All that is logged and saved, to rounding: losses, episodes, schedule, steps, weights,
    Adam. The first one evaluates, and the only files are its own."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    flags = dict(learning_rate=1e-3, eval_every=32)
    both, none = pair(train_below, tmp_path / "two", tmp, same_numbers, **flags)
    one = train(tmp_path / "one", same_numbers, **flags)
    assert (
        none is None and both == helpers.only_run(tmp_path / "two") and not list(tmp.glob("tmp*"))
    )
    mine, theirs = helpers.scalars(one), helpers.scalars(both)
    assert (
        mine.keys() == theirs.keys()
        and [step for step, _ in mine["charts/episodic_length"]] == [40] * 4 + [80] * 4
    )
    assert len({value for _, value in mine["charts/episodic_return"]}) > 2
    assert [step for step, _ in mine["charts/learning_rate"]] == [32, 64, 96]
    assert [step for step, _ in mine["eval/episodic_return"]] == [32, 64, 96]
    for tag in mine.keys() - helpers.UNSEEDED:
        np.testing.assert_allclose(theirs[tag], mine[tag], rtol=1e-3, atol=1e-5, err_msg=tag)
    one, both = helpers.load(one), helpers.load(both)
    assert one["global_step"] == both["global_step"] == 96
    assert one["adam"]["step"] == both["adam"]["step"] == 12
    for name, weight in one["agent"].items():
        assert (weight - both["agent"][name]).abs().max() < 0.05 * 1e-3, name  # of a step of Adam
    torch.testing.assert_close(
        one["adam"]["exp_avg"], both["adam"]["exp_avg"], rtol=1e-3, atol=1e-6
    )


def train_below(runs_dir, folder, *patches, **flags):
    with mock.patch.object(tempfile, "tempdir", str(folder)):
        return train(runs_dir, *patches, **flags)


def gradient_of(rank):
    return torch.randn(12, generator=torch.Generator().manual_seed(rank))


@torch.no_grad()
def step_of_adam():
    ppo_atari_multigpu.join_processes(torch.device("cpu"))
    params = [torch.nn.Parameter(torch.zeros(size)) for size in ((2, 2), (8,))]
    adam = ppo_atari_multigpu.Adam(params)
    norm = adam.update(gradient_of(RANK).split([4, 8]), torch.tensor(0.1), 0.5)
    return norm.item(), adam.exp_avg.tolist()


def test_averaged_gradients_by_hand(pair):
    """The mean of both; it is clipped, not each of them."""
    mean = (gradient_of(0) + gradient_of(1)) / 2
    assert mean.norm() > 0.5
    for norm, exp_avg in pair(step_of_adam):
        assert norm == pytest.approx(mean.norm().item(), rel=1e-5)
        assert exp_avg == pytest.approx((0.1 * 0.5 * mean / mean.norm()).tolist(), rel=1e-4)


@pytest.mark.slow
def test_a_process_alone_is_ppo_atari(tmp_path):
    """The same random numbers, so the same run: curves, networks, random generators."""
    alone, plain = (
        helpers.train(script, tmp_path / script, **FLAGS)[0] for script in (SCRIPT, "ppo_atari")
    )
    mine, theirs = helpers.scalars(alone), helpers.scalars(plain)
    assert mine.keys() == theirs.keys()
    for tag in mine.keys() - helpers.UNSEEDED:
        np.testing.assert_allclose(mine[tag], theirs[tag], rtol=1e-3, atol=1e-5, err_msg=tag)
    alone, plain = helpers.load(alone), helpers.load(plain)
    helpers.assert_same_state(alone["rng"], plain["rng"])
    for name, weight in alone["agent"].items():
        torch.testing.assert_close(weight, plain["agent"][name], rtol=1e-3, atol=2e-5)


def look(runs_dir, *patches, **flags):
    """What this process had: seeds of its environments, their actions, the weights and Adam's
    steps of each update."""
    seeds, actions, states, make = [], [], [], ppo_atari_multigpu.ale_py.vector_env.AtariVectorEnv

    class Spied(make):
        def reset(self, *, seed):
            seeds.extend(seed.tolist())
            return super().reset(seed=seed)

        def step(self, moves):
            actions.append(moves.tolist())
            if len(actions) == flags.get("signal_at") and RANK == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().step(moves)

    def compile(run, update):
        def spied(inds):
            weights = [*run.agent.parameters(), run.parts["adam"].step]
            states.append([weight.sum().item() for weight in weights])
            return update(inds)

        return spied

    spies = (
        lambda: mock.patch("ale_py.vector_env.AtariVectorEnv", Spied),
        lambda: mock.patch.object(utils.Run, "compile", compile),
    )
    status = 0
    try:
        train(
            runs_dir, *spies, **{name: flag for name, flag in flags.items() if name != "signal_at"}
        )
    except SystemExit as end:
        status = end.code
    return status, seeds, actions, states


@pytest.mark.slow
def test_a_group_stops_and_goes_on(pair, tmp_path):
    """The second process alone gets a SIGTERM, in the second rollout: both leave in that iteration,
    and it is saved.

    Together they have the environments that one process has, also where the run is resumed; each
    draws its own actions.
    """
    first, second = pair(look, tmp_path, signal_at=12)
    code, one, acts, _ = first
    other_code, other, other_acts, _ = second
    assert code == other_code == 143
    run_dir = helpers.only_run(tmp_path)
    saved = helpers.load(run_dir)
    assert saved["global_step"] == 64 and not (run_dir / "eval.json").exists()
    assert one + other == [1, *np.random.SeedSequence([1, 0]).generate_state(ENVS)[1:] >> 1]
    assert len(acts) == len(other_acts) == 16
    assert np.mean(np.array(acts) == np.array(other_acts)) < 0.5
    helpers.next_second()
    (code, one, more, states), (other_code, other, other_more, others) = pair(
        look, tmp_path, resume="auto"
    )
    assert code == other_code == 0 and helpers.only_run(tmp_path) == run_dir
    assert one + other == [*np.random.SeedSequence([1, 64]).generate_state(ENVS) >> 1]
    assert (
        len(more) == len(other_more) == 8
        and more != other_more
        and more != acts[:8]
        and other_more != other_acts[:8]
    )
    weights = [weight.sum().item() for weight in [*saved["agent"].values(), saved["adam"]["step"]]]
    assert states == others and states[0] == pytest.approx(weights, rel=1e-4, abs=1e-4)
    assert [step for step, _ in helpers.scalars(run_dir)["charts/learning_rate"]] == [32, 64, 96]
    assert helpers.load(run_dir)["adam"]["step"] == 12


def updates_with(runs_dir, **flags):
    """How many updates there were where the first one's divergence is 1 and the other's 0."""
    updates = []

    def compile(run, update):
        def spied(inds):
            updates.append(inds)
            return update(inds) | {"losses/approx_kl": torch.tensor(1.0 - RANK)}

        return spied

    train(runs_dir, lambda: mock.patch.object(utils.Run, "compile", compile), **flags)
    return len(updates)


@pytest.mark.slow
@pytest.mark.parametrize("bound, updates", [(0.4, 2), (0.6, 4)])
def test_target_kl_is_decided_together(bound, updates, pair, tmp_path):
    assert pair(updates_with, tmp_path, target_kl=bound, total_timesteps=32) == [updates, updates]


# --- torchrun


def torchrun(tmp_path, *words, **flags):
    """Two processes, in the background; their output goes to tmp_path/log."""
    flags = (
        dict(num_envs=4, num_steps=16, num_minibatches=2, resume="auto", save_every=64, threads=1)
        | flags
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        *words,
    ]
    command += [
        helpers.SOURCE / f"{SCRIPT}.py",
        *helpers.small_flags(SCRIPT, tmp_path / "runs", **flags),
    ]
    with open(tmp_path / "log", "a") as log:
        return subprocess.Popen(
            list(map(str, command)),
            env=helpers.environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def saved_step(tmp_path):
    found = [helpers.load(path.parent) for path in (tmp_path / "runs").glob("*/checkpoint.pt")]
    return max((state["global_step"] for state in found), default=0)


def workers(torchrun):
    """The processes that torchrun has started."""
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    return [int(pid) for pid in children if SCRIPT in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_torchrun(number, tmp_path):
    """The group saves and ends within torchrun's 30 s; the same command goes on, in the same run
    directory."""
    process = torchrun(tmp_path, total_timesteps=1_000_000)
    helpers.wait_for(lambda: saved_step(tmp_path) > 0)
    process.send_signal(number)
    assert process.wait(40) != 0
    run_dir, stopped = helpers.only_run(tmp_path / "runs"), saved_step(tmp_path)
    assert f"with --resume {run_dir}" in (tmp_path / "log").read_text()
    flags = dict(total_timesteps=stopped + 128, resume=run_dir)
    assert torchrun(tmp_path, **flags).wait(120) == 0
    assert helpers.only_run(tmp_path / "runs") == run_dir and saved_step(tmp_path) == stopped + 128
    steps = [step for step, _ in helpers.scalars(run_dir)["charts/learning_rate"]]
    assert steps == [*range(64, stopped + 129, 64)]
