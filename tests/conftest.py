import os
import random
import signal

import numpy as np
import pytest
import torch

from tests import helpers


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes more than 20 s; deselect with -m 'not slow'")
    config.addinivalue_line("markers", "full: takes minutes, not part of `make test`; select with -m full")
    config.addinivalue_line("markers", "xdist_group(name): on one worker, one after the other (pytest-xdist's)")


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is no such hook
def pytest_xdist_auto_num_workers(config):
    """One worker more than cores: some minutes go by in waiting for Slurm, servers and the ends of processes."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(autouse=True)
def untouched_process():
    """main() sets signal handlers, seeds and thread counts: none of it may leak from one test into the next."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    torch.set_num_threads(1)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(params=helpers.SCRIPTS)
def script(request):
    """The name of each script in turn."""
    return request.param


@pytest.fixture(params=helpers.MLP_SCRIPTS)
def mlp_script(request):
    """The name of each script that takes vector observations."""
    return request.param


@pytest.fixture(params=helpers.ROLLOUT_SCRIPTS)
def rollout_script(request):
    """The name of each script that learns from rollouts."""
    return request.param


@pytest.fixture(params=[name for name in helpers.ROLLOUT_SCRIPTS if name in helpers.MLP_SCRIPTS])
def rollout_mlp_script(request):
    """The name of each of these that takes vector observations."""
    return request.param


@pytest.fixture(params=helpers.OFF_POLICY_SCRIPTS)
def off_policy_script(request):
    """The name of each script that learns from a replay buffer."""
    return request.param


@pytest.fixture(params=[name for name in helpers.OFF_POLICY_SCRIPTS if name in helpers.MLP_SCRIPTS])
def off_policy_mlp_script(request):
    """The name of each of these that takes vector observations."""
    return request.param


@pytest.fixture(params=helpers.ATARI_SCRIPTS)
def atari_script(request):
    """The name of each script for Atari games."""
    return request.param
