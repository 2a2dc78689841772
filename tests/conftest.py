import random
import signal

import numpy as np
import pytest
import torch

from tests import helpers


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes more than 20 s; deselect with -m 'not slow'")


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
