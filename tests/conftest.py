import importlib
import importlib.util
import os
import random
import signal
import sys

import numpy as np
import pytest
import torch
from tqdm import tqdm

from cleanrl_lite import utils
from tests import helpers, like_envpool

# Compilers in processes of their own take longer to start than they save here.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# they only read the scripts
JAVA_FREE = {"tests.test_consistency", "tests.test_docs", "tests.test_results"}
# They compare with Stable-Baselines3, which nothing else needs.
collect_ignore = []
if importlib.util.find_spec("stable_baselines3") is None:
    collect_ignore += ["test_results.py"]
# Their tests share two processes, and runs of many copies.
TOGETHER = "test_multigpu.py", "test_changed_copies.py"


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "slow: the second tier; run it with `make test-slow` (pytest -m slow)"
    )
    # of Hopper-v4 and its like
    config.addinivalue_line("filterwarnings", "ignore:.*is out of date")


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is no such hook
def pytest_xdist_auto_num_workers(config):
    """One worker more than cores: some of the time goes by in waiting for other processes."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Each file of TOGETHER is for one worker, others for all. (pytest 9.2 does not see the groups of
    pytest-xdist 3.8, which are a part of the tests' names.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, _ = nodeid.partition("::")
            return file if file.endswith(TOGETHER) else nodeid

    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def untouched_process(monkeypatch):
    """main() sets seeds, thread counts, sys.path; parse() signal handlers; W&B an excepthook: none
    of it may leak into the next test."""
    handlers = {number: signal.getsignal(number) for number in utils.SIGNALS}
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "path", sys.path[:])
    torch.set_num_threads(1)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, utils.SIGNALS)  # make_envs failed
    utils.received.clear()
    tqdm._instances.clear()  # bars of runs that failed
    for number, handler in handlers.items():
        signal.signal(number, handler)
    while helpers.BACKGROUND:
        process = helpers.BACKGROUND.pop()
        if process.poll() is None:  # the test failed
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def fake_envpool(monkeypatch):
    """What the scripts import as envpool: gymnasium's environments that reset as envpool's do."""
    like_envpool.MADE.clear()
    monkeypatch.setitem(sys.modules, "envpool", like_envpool)


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items):
    """What trains on microRTS or brax is slow, and skipped where they are not installed; so is
    what needs godot-rl. Of the scripts for games, the first tier trains ppo_atari and dqn_atari."""
    lacks = [
        (helpers.JAVA_SCRIPTS, helpers.JAVA, "gym_microrts, JPype1 or Java"),
        (helpers.MJX_SCRIPTS, helpers.BRAX, "brax"),
        (helpers.GODOT_SCRIPTS, helpers.GODOT, "godot-rl"),
    ]
    for item in items:
        used = set(map(str, item.callspec.params.values())) if hasattr(item, "callspec") else set()
        if used & {*helpers.GAME_VARIANTS} and "tmp_path" in item.fixturenames:
            item.add_marker(pytest.mark.slow)
        for scripts, installed, what in lacks:
            if used & {*scripts} and item.module.__name__ not in JAVA_FREE:
                if what != "godot-rl":
                    item.add_marker(pytest.mark.slow)
                item.add_marker(
                    pytest.mark.skipif(not installed, reason=f"{what} is not installed")
                )


@pytest.fixture
def traced(monkeypatch):
    """torch.compile finds everything that it finds, but runs the traced functions as they are."""
    compile = torch.compile

    def without_code_generation(function, options, **kwargs):
        return compile(function, backend="eager", **kwargs)

    monkeypatch.setattr(torch, "compile", without_code_generation)


def each(scripts, explanation):
    """A fixture: the name of each of these scripts in turn."""

    def script(request):
        return request.param

    script.__doc__ = explanation
    return pytest.fixture(params=scripts)(script)


script = each(helpers.SCRIPTS, "Every script.")
rollout_script = each(helpers.ROLLOUT_SCRIPTS, "Every script that learns from rollouts.")
off_policy_script = each(
    helpers.OFF_POLICY_SCRIPTS, "Every script that learns from a replay buffer."
)
off_policy_mlp_script = each(
    [name for name in helpers.OFF_POLICY_SCRIPTS if name in helpers.MLP_SCRIPTS], "With vectors."
)
