"""utils.py by itself: acting in numpy, compiled updates, what main() leaves behind."""

import multiprocessing
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

from cleanrl_lite import utils
from tests import helpers
from tests.probe_envs import probe

CPU = torch.device("cpu")


# --- acting in numpy


class Residual(nn.Sequential):
    def forward(self, x):
        return x[:, :3] + super().forward(x)


def mlp(kind=nn.Sequential, **options):
    network = kind(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3, **options))
    for param in network.parameters():
        nn.init.normal_(param)
    return network


def with_hook(register, hook):
    network = mlp()
    getattr(network[0], register)(hook)
    return network


def weight_normed(weight_norm):
    network = mlp()
    weight_norm(network[0])
    return network


# What it takes over, and what it must leave to torch.
KNOWN = dict(
    tanh=mlp,
    relu=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)),
    linear=lambda: nn.Sequential(nn.Linear(4, 2)),
    layer_norm=lambda: layer_normed(),
    without_bias=lambda: mlp(bias=False),
    layer_norm_without_bias=lambda: layer_normed(bias=False),
    layer_norm_without_weights=lambda: layer_normed(elementwise_affine=False),
)
FOREIGN = dict(
    a_layer_alone=lambda: nn.Linear(4, 2),
    forward_of_its_own=lambda: mlp(Residual),
    forward_hook=lambda: with_hook("register_forward_hook", lambda *x: x[-1] * 2),
    pre_hook=lambda: with_hook("register_forward_pre_hook", lambda layer, x: (x[0] * 2,)),
    hook_on_the_whole=lambda: hooked_whole(mlp()),
    weight_norm=lambda: weight_normed(nn.utils.parametrizations.weight_norm),
    other_layers=lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU()),
    nested=lambda: nn.Sequential(mlp(), nn.ReLU()),
    subclass=lambda: nn.Sequential(Doubling(4, 3), nn.Tanh()),
)


class Doubling(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def layer_normed(**options):
    network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, eps=0.1, **options), nn.ReLU())
    for param in network.parameters():
        nn.init.normal_(param)
    return network


def hooked_whole(network):
    network.register_forward_hook(lambda module, x, y: y + 1)
    return network


def assert_acts_as_torch(acting, network):
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    result = acting(x)
    assert isinstance(result, np.ndarray) and result.dtype == np.float32
    expected = network(torch.from_numpy(x)).detach()
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("name", [*KNOWN, *FOREIGN])
def test_acting_in_numpy_is_acting_in_torch(name, live, capsys):
    """What it does not know it leaves to torch, and says so once."""
    network = {**KNOWN, **FOREIGN}[name]()
    utils.say_once.cache_clear()
    for _ in range(2):  # as for two rollouts
        acting = utils.numpy_forward(network, CPU, live)
        for _ in range(120):
            acting(np.zeros((1, 4), dtype=np.float32))
        assert_acts_as_torch(acting, network)
    in_torch = capsys.readouterr().out.count("acts in torch: numpy")
    assert in_torch == (name in FOREIGN)


@pytest.mark.parametrize("name", ["tanh", "relu", "linear", "layer_norm", "weight_norm"])
def test_acting_in_numpy_with_weights_that_change(name):
    """The networks of dqn and c51 learn while they act."""
    network = {**KNOWN, **FOREIGN}[name]()
    acting = utils.numpy_forward(network, CPU, live=True)
    for _ in range(5):
        with torch.no_grad():
            for param in network.parameters():
                param.add_(torch.randn_like(param))
        assert_acts_as_torch(acting, network)


def test_check_actions():
    """Some ties may fall otherwise; another policy is refused."""
    taken = torch.arange(3000) % 4
    expected = taken.clone()
    expected[:4] += 1
    utils.check_actions(taken, expected)
    utils.check_actions(taken / 3, taken / 3 + 1e-5)
    utils.check_actions(taken, expected[None, :])
    utils.check_actions(taken, expected[:, None])  # not 3000 x 3000 comparisons
    expected[:5] = taken[:5] + 1
    for actions, wrong in ((taken, expected), (taken / 3, taken / 2.9)):
        with pytest.raises(SystemExit, match=r"the policy that acts is not the one that learns"):
            utils.check_actions(actions, wrong)


ACTING_IN_NUMPY = [
    name
    for name in helpers.SCRIPTS
    if "numpy_forward(" in helpers.TEXT[name]
    and "check_actions(" in helpers.TEXT[name]
    and name not in helpers.JAVA_SCRIPTS + helpers.MJX_SCRIPTS + helpers.ENVPOOL_SCRIPTS
]


@pytest.mark.parametrize("script", helpers.others_slow(ACTING_IN_NUMPY, ["ppo", "ppo_continuous"]))
def test_a_rollout_of_another_policy_is_refused(script, monkeypatch, tmp_path):
    """One that acts with weights that are not the agent's."""

    numpy_forward = utils.numpy_forward

    def shifted(module, device, live=False):
        forward = numpy_forward(module, device, live)

        def shifted_forward(x):
            output = forward(x)
            # not the same for all choices, which would change no policy
            return output + np.linspace(5, 0.5, output.shape[-1], dtype=np.float32)

        return shifted_forward

    monkeypatch.setattr(utils, "numpy_forward", shifted)
    with pytest.raises(SystemExit, match=r"the policy that acts is not the one that learns"):
        helpers.train(script, tmp_path)


# --- compiled updates


def run_of(compile=True, cuda_graph=False):
    run = object.__new__(utils.Run)
    run.args = SimpleNamespace(compile=compile, cuda_graph=cuda_graph)
    return run


def compiled(weight, bias):
    """An update of its own, and a function that gives it another bias."""

    def update(x):
        return {"y": x * weight["is"] + bias}

    def rebind(value):
        nonlocal bias
        bias = value

    return run_of().compile(update), rebind


def test_traced_updates_notice_what_changes(traced):
    notice_what_changes()


def notice_what_changes():
    """Other tensors, shapes, dtypes and closures, at once. Runs in one process share no graph."""
    torch._dynamo.reset()
    weight = {"is": torch.tensor(2.0)}
    one, rebind = compiled(weight, torch.tensor(1.0))
    other, _ = compiled(weight, torch.tensor(5.0))
    for _ in range(2):
        assert one(torch.ones(3))["y"].tolist() == [3] * 3
        assert other(torch.ones(3))["y"].tolist() == [7] * 3
        assert one(torch.ones(5))["y"].tolist() == [3] * 5
        assert one(torch.ones(3, dtype=torch.int64))["y"].tolist() == [3] * 3
    rebind(torch.tensor(2.0))
    assert one(torch.ones(3))["y"].tolist() == [4] * 3
    weight["is"] = torch.tensor(4.0)
    assert one(torch.ones(3))["y"].tolist() == [6] * 3
    assert other(torch.ones(3))["y"].tolist() == [9] * 3


@pytest.mark.slow
def test_a_number_that_changes_ends_in_eager_mode(capfd):
    """Right at every call, whatever torch recompiles; and one line with the cause."""
    torch._dynamo.reset()
    one, rebind = compiled({"is": 2.0}, 1.0)
    for bias in range(30):
        rebind(float(bias))
        assert one(torch.ones(3))["y"].tolist() == [2 + bias] * 3
    lines = [line for line in capfd.readouterr().err.splitlines() if "eager" in line]
    assert len(lines) == 1 and lines[0].startswith(
        "continuing in eager mode: update reads a Python number that changes"
    )


def test_an_update_that_cannot_be_compiled_loses_no_call(capfd):
    """It is eager from its first call on."""
    torch._dynamo.reset()
    count = torch.zeros(())

    def update(x):
        count.add_(1)
        return {"y": x * float(np.random.default_rng().random() < 2), "z": torch.tensor(x.tolist())}

    call = run_of().compile(update)
    for calls in (1, 2, 3):
        assert call(torch.ones(2))["z"].tolist() == [1, 1] and count == calls
    assert capfd.readouterr().err.count("continuing in eager mode: ") == 1


# --- what main() leaves behind in its process


def process_state():
    handlers = [signal.getsignal(number) for number in utils.SIGNALS]
    pools = [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()]
    hooks = sys.excepthook, getattr(torch._dynamo.config, "trace_autograd_ops", None)
    modes = torch.is_grad_enabled(), torch.get_num_threads()
    return hooks, handlers, modes, pools


@pytest.fixture
def three_threads():
    """Other numbers of threads than a run has."""
    np.ones((9, 9)) @ np.ones((9, 9))
    with threadpool_limits(3):
        torch.set_num_threads(3)
        yield process_state()
    torch.set_num_threads(1)


def note_threads(monkeypatch):
    """A list of the threads of torch and BLAS at each evaluation."""
    threads, evaluate = [], utils.Run.evaluate

    def spied(run):
        pools = {pool["num_threads"] for pool in threadpool_info()}
        threads.append((torch.get_num_threads(), pools))
        return evaluate(run)

    monkeypatch.setattr(utils.Run, "evaluate", spied)
    return threads


@pytest.mark.parametrize("threads, within", [(1, 1), (2, 2), (0, 3)])
def test_a_run_that_ends_leaves_no_trace(threads, within, three_threads, monkeypatch, tmp_path):
    """--threads holds within the run, for numpy's BLAS too; afterwards everything is as before."""
    noted = note_threads(monkeypatch)
    monkeypatch.setattr(utils.Run, "compile", lambda run, update: update)
    run_dir, returns = helpers.train("ppo", tmp_path, threads=threads, compile=True)
    assert process_state() == three_threads
    assert noted == [(within, {within})]
    evaluated = helpers.main("ppo", helpers.small_args("ppo", tmp_path, evaluate=str(run_dir)))
    assert process_state() == three_threads
    assert evaluated["returns"] == returns
    assert evaluated["dir"] == run_dir == helpers.only_run(tmp_path)


@pytest.mark.parametrize("async_envs", [False, True])
def test_a_run_that_fails_leaves_no_trace(async_envs, three_threads, monkeypatch, tmp_path):
    """Nor a lock or a process: it can be resumed in the same process."""
    monkeypatch.setenv("FAULT", "raises")
    monkeypatch.setenv("FAULT_STEP", "131")
    flags = dict(env_id=probe("Faulty", "ppo"), num_envs=1, async_envs=async_envs)
    with pytest.raises(ValueError, match="the simulator says no"):
        helpers.train("ppo", tmp_path, **flags, total_timesteps=256)
    assert process_state() == three_threads
    assert not [p for p in multiprocessing.active_children() if "AsyncVector" in p.name]
    monkeypatch.setenv("FAULT_STEP", "100000")
    run_dir = helpers.only_run(tmp_path)
    helpers.train("ppo", tmp_path, **flags, resume=str(run_dir), total_timesteps=256)
    assert helpers.load(run_dir)["global_step"] == 256
