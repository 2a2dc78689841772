"""No tests: what test_multigpu.py and test_godot.py still import from here. Goes with that."""

import socket

import pytest

cluster = None
pytestmark = [pytest.mark.slow, pytest.mark.skip(reason="the test on a real Slurm is gone")]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
