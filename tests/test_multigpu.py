"""ppo_atari_multigpu.py: two processes are one, in what they learn, log and save."""

import contextlib
import itertools
import json
import multiprocessing
import os
import socket
import tempfile
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from cleanrl_lite import ppo_atari_multigpu
from tests import helpers

SCRIPT, ENVS = "ppo_atari_multigpu", 4
FLAGS = dict(num_envs=ENVS, num_steps=8, total_timesteps=96, num_minibatches=2, update_epochs=2)
GAMES = json.dumps(dict(max_num_frames_per_episode=40))  # truncated after ten steps
FLAGS |= dict(env_id="CarnivalNoFrameskip-v4", env_kwargs=GAMES)  # they bring rewards early
RANK = int(os.environ.get("RANK", 0))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
