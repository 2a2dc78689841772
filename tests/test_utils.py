"""utils.py by itself: set-up, acting in numpy, the check of the policy, compiled updates, Adam,
random states, checkpoints that execute nothing."""

import copy
import json
import random
import shutil
import signal
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from cleanrl_lite import utils
from tests import helpers


# --- acting in numpy
class Residual(nn.Sequential):
    def forward(self, x):
        return x[:, :3] + super().forward(x)


def mlp(kind=nn.Sequential):
    return kind(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def hooked():
    network = mlp()
    network[0].register_forward_hook(lambda *x: x[-1] * 2)
    return network


# What it takes over, and what it must leave to torch.
KNOWN = dict(
    tanh=mlp,
    relu=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)),
    linear=lambda: nn.Sequential(nn.Linear(4, 2)),
    a_layer_alone=lambda: nn.Linear(4, 2),
)
FOREIGN = dict(
    forward_of_its_own=lambda: mlp(Residual),
    hook=hooked,
    other_layers=lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU()),
)


def assert_acts_as_torch(acting, network):
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    result = acting(x)
    assert isinstance(result, np.ndarray) and result.dtype == np.float32
    expected = network(torch.from_numpy(x)).detach()
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("name", [*KNOWN, *FOREIGN])
def test_acting_in_numpy_is_acting_in_torch(name, live):
    """What it does not know it leaves to torch, and says so; with `live` it sees weights that
    change, as those of dqn and c51 do while they act."""
    network = {**KNOWN, **FOREIGN}[name]()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        acting = utils.in_numpy(network, live)
    told = ["acts in torch: numpy" in str(line.message) for line in said]
    assert told == [True] * (name in FOREIGN)
    assert_acts_as_torch(acting, network)
    if live:
        with torch.no_grad():
            for param in network.parameters():
                param.add_(torch.randn_like(param))
        assert_acts_as_torch(acting, network)


# --- the policy that acts is the one that learns
class Gaussian(nn.Module):
    """A policy with a standard deviation that depends on the observation."""

    def __init__(self):
        super().__init__()
        self.actor = nn.Linear(4, 6)

    def forward(self, obs):
        mean, log_std = self.actor(obs).chunk(2, dim=-1)
        std = 0.1 + log_std.sigmoid()
        return Independent(Normal(mean, std), 1), mean.sum(-1)

    def sampler(self):
        actor = utils.in_numpy(self.actor)

        def sample(obs):
            mean, log_std = np.split(actor(obs), 2, axis=-1)
            std = 0.1 + 1 / (1 + np.exp(-log_std))
            return mean + std * np.random.standard_normal(mean.shape).astype(np.float32)

        return sample

    def act(self, obs):
        return self(obs)[0].mean


class Softmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Linear(4, 5)

    def forward(self, obs):
        return Categorical(logits=self.actor(obs)), obs.sum(-1)

    def sampler(self):
        actor = utils.in_numpy(self.actor)
        return lambda obs: (actor(obs) + np.random.gumbel(size=(len(obs), 5))).argmax(-1)

    def act(self, obs):
        return self.actor(obs).argmax(-1)


class Values(Softmax):
    """As DQN: the policy is the greedy one."""

    def forward(self, obs):
        return self.actor(obs)

    def sampler(self):
        actor = utils.in_numpy(self.actor, live=True)
        return lambda obs: actor(obs).argmax(-1)


class NearlyEqual(Values):
    """As a trained C51: in many observations all actions have the same value, but for rounding."""

    def forward(self, obs):
        rounding = 1e-6 * torch.arange(5)
        return 1_000 * (self.actor(obs) * (obs[:, :1] > 0) + rounding)


def checked(Agent, **methods):
    """Whether check_policy lets an agent pass, one of whose methods is another."""
    kind = type("Changed", (Agent,), methods)
    agent = kind()
    before = copy.deepcopy(agent.state_dict())
    states = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    try:
        utils.check_policy(agent, np.zeros((3, 4), np.float32))
    except SystemExit as end:
        assert str(end).startswith("error: ") and "\n" not in str(end)
        return str(end)
    assert states == (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    helpers.assert_same_state(agent.state_dict(), before)
    return ""


@pytest.mark.parametrize("Agent", [Gaussian, Softmax, Values, NearlyEqual])
def test_right_policies_pass(Agent):
    """Whatever the seed, and neither weights nor random states change."""
    for seed in range(20):
        np.random.seed(seed)
        torch.manual_seed(seed)
        assert not checked(Agent)


def scaled(by):
    return lambda self: lambda obs: by * Gaussian.sampler(self)(obs)


def greedy(self):
    actor = utils.in_numpy(self.actor)
    return lambda obs: actor(obs).argmax(-1)


def second_best(self):
    return lambda obs: self.actor(torch.from_numpy(obs)).argsort(-1)[:, -2].numpy()


def flatter(self, obs):
    return Categorical(logits=self.actor(obs).tanh()), obs.sum(-1)


def bounded_act(self, obs):
    return Softmax.act(self, obs.tanh())


WRONG = [
    (Softmax, dict(act=bounded_act), "act()"),
    (Gaussian, dict(sampler=scaled(1.2)), "sampler()"),
    (Gaussian, dict(act=lambda self, obs: self(obs)[0].mean + 1), "act()"),
    (Softmax, dict(sampler=greedy), "sampler()"),
    (Softmax, dict(forward=flatter), "sampler()"),
    (Values, dict(sampler=second_best), "sampler()"),
    (Values, dict(forward=lambda self, obs: -self.actor(obs)), "sampler()"),
    (Values, dict(act=lambda self, obs: self.actor(obs).argmin(-1)), "act()"),
]


@pytest.mark.parametrize("Agent, methods, told", WRONG)
def test_wrong_policies_are_refused(Agent, methods, told):
    """One of the three changed alone: one line names it."""
    for seed in range(5):
        np.random.seed(seed)
        torch.manual_seed(seed)
        assert checked(Agent, **methods).startswith(f"error: {told}")


# --- compiled updates
ARGS = SimpleNamespace(compile=True, cuda_graph=False)


@pytest.fixture
def eager_calls(monkeypatch):
    """Three calls in eager mode."""
    torch._dynamo.reset()
    monkeypatch.setattr(utils, "EAGER_CALLS", 3)


def scaled_sum(weight, bias, calls):
    """An update of its own, and a function that gives it another bias; `calls` gets the names of
    those that call it as it is written."""

    def update(x):
        if not torch.compiler.is_compiling():
            calls.append("eager")
        return {"y": x * weight["is"] + bias}

    def rebind(value):
        nonlocal bias
        bias = value

    return utils.compiled(ARGS, update), rebind


def test_eager_then_compiled(eager_calls, traced, monkeypatch):
    """The first EAGER_CALLS calls run as they are written; only then torch's compiler is imported."""
    calls = []
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **x: calls.append("import") or real(f, **x))
    one, _ = scaled_sum({"is": torch.tensor(2.0)}, torch.tensor(1.0), calls)
    for _ in range(10):
        assert one(torch.ones(3))["y"].tolist() == [3] * 3
    assert calls == ["eager"] * 3 + ["import"]


def test_compiled_updates_notice_what_changes(eager_calls, traced):
    """Other tensors, shapes, dtypes and closures, at once. Runs in one process share no graph."""
    weight = {"is": torch.tensor(2.0)}
    one, rebind = scaled_sum(weight, torch.tensor(1.0), [])
    other, _ = scaled_sum(weight, torch.tensor(5.0), [])
    for _ in range(5):
        assert one(torch.ones(3))["y"].tolist() == [3] * 3
        assert other(torch.ones(3))["y"].tolist() == [7] * 3
    assert one(torch.ones(5))["y"].tolist() == [3] * 5
    assert one(torch.ones(3, dtype=torch.int64))["y"].tolist() == [3] * 3
    rebind(torch.tensor(2.0))
    assert one(torch.ones(3))["y"].tolist() == [4] * 3
    weight["is"] = torch.tensor(4.0)
    assert one(torch.ones(3))["y"].tolist() == [6] * 3
    assert other(torch.ones(3))["y"].tolist() == [9] * 3


def test_a_number_that_changes_ends_in_eager_mode(eager_calls, traced, capfd):
    """Right at every call; and one line says what to do. Gradients stay on."""
    one, rebind = scaled_sum({"is": 2.0}, 1.0, [])
    for bias in range(20):
        rebind(float(bias))
        assert one(torch.ones(3))["y"].tolist() == [2 + bias] * 3
        assert torch.is_grad_enabled()
    said = "".join(capfd.readouterr())
    assert said.count("continuing in eager mode: ") == 1
    assert "A number that changes must be a tensor: docs/guides/change_a_script.md" in said


def test_an_update_that_cannot_be_compiled_loses_no_call(eager_calls, traced, capfd):
    """And gradients are on after it, if it fails where they are off."""
    count = torch.zeros(())

    def update(x):
        with torch.no_grad():
            count.add_(1)
            return {"z": torch.tensor(x.tolist())}

    call = utils.compiled(ARGS, update)
    for calls in range(1, 8):
        assert call(torch.ones(2))["z"].tolist() == [1, 1] and count == calls
        assert torch.is_grad_enabled()
    assert capfd.readouterr().err.count("continuing in eager mode: ") == 1


def test_an_error_in_an_edit_is_pythons_own(eager_calls):
    """At the first call, with the line of the edit."""

    def update(x):
        return x @ torch.ones(7)  # a mistake

    with pytest.raises(RuntimeError, match="size|shape") as error:
        utils.compiled(ARGS, update)(torch.ones(3))
    frames = [(frame.path.name, frame.name) for frame in error.traceback]
    assert frames[-1] == ("test_utils.py", "update")
    assert not any("_dynamo" in str(frame.path) for frame in error.traceback)


# --- Adam
@pytest.mark.parametrize("max_grad_norm, beta1, eps", [(np.inf, 0.9, 1e-8), (0.5, 0.5, 1e-5)])
def test_adam_is_torchs(max_grad_norm, beta1, eps, eager_calls, traced):
    """Eager, then traced; with a learning rate that changes, clipping that bites at some steps only,
    and a parameter that is frozen. The norm is that before it is clipped."""
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Linear(2, 1))
    network[2].bias.requires_grad_(False)
    network.double()
    reference = copy.deepcopy(network)
    learning = [param for param in reference.parameters() if param.requires_grad]
    adam = utils.Adam(network.parameters(), 0.1, max_grad_norm, beta1, eps)
    update = utils.compiled(ARGS, lambda x, k: adam.minimize(k * network(x).square().mean()))
    torchs = torch.optim.Adam(learning, lr=0.1, betas=(beta1, 0.999), eps=eps)
    clipped = 0
    for step in range(30):
        rate = 0.1 * (1 - step / 30)
        adam.learning_rate.fill_(rate)
        torchs.param_groups[0]["lr"] = rate
        x = torch.randn(8, 3).double()
        norm = update(x, torch.tensor(step % 3))
        torchs.zero_grad()
        ((step % 3) * reference(x).square().mean()).backward()
        expected = nn.utils.clip_grad_norm_(learning, max_grad_norm)
        torchs.step()
        torch.testing.assert_close(norm, expected)
        clipped += bool(expected > max_grad_norm)
    assert adam.step == 30
    assert (0 < clipped < 30) == (max_grad_norm == 0.5)
    for mine, theirs in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_adams_state():
    """All but the learning rate, which a resumed run may have another one of."""
    param = nn.Parameter(torch.ones(3))
    adam = utils.Adam([param], 0.1)
    for _ in range(3):
        adam.minimize((param**2).sum())
    again = utils.Adam([param], 0.7)
    again.load_state_dict(adam.state_dict())
    assert again.learning_rate == torch.tensor(0.7)
    assert adam.state_dict().keys() == {"step", "exp_avg", "exp_avg_sq"}
    helpers.assert_same_state(again.state_dict(), adam.state_dict())


# --- random states, threads, flags
def draw():
    return random.random(), np.random.random(), torch.rand(()).item()


@pytest.mark.parametrize("function", [lambda: None, lambda: utils.seed_all(7), draw])
def test_keep_random_states(function):
    utils.seed_all(3)
    expected = draw()
    utils.seed_all(3)
    with utils.keep_random_states():
        function()
    assert draw() == expected
    utils.seed_all(3)
    assert draw() == expected  # all three are seeded


def test_evaluations_leave_training_alone(monkeypatch, tmp_path):
    """Whatever a policy or an environment draws in them: the agent, in eval mode, is a copy."""
    ppo = helpers.module("ppo")

    class Agent(ppo.Agent):
        def act(self, obs):
            if len(obs) == 1:  # not in the check of the policy
                draw()
                assert not self.training
                with torch.no_grad():
                    self.actor[0].weight.zero_()
            return super().act(obs)

    monkeypatch.setattr(ppo, "Agent", Agent)
    runs = [helpers.train("ppo", tmp_path / str(every), eval_every=every)[0] for every in (0, 128)]
    evaluations = {"eval/episodic_return", "eval/episodic_length"}
    assert len(helpers.scalars(runs[1])["eval/episodic_return"]) == 4
    helpers.assert_same_run(*runs, helpers.UNSEEDED | evaluations)


def test_threads():
    """Of torch and of numpy's BLAS."""
    np.ones((9, 9)) @ np.ones((9, 9))
    for threads in (2, 1):
        utils.setup(helpers.small_args("ppo", "unused", threads=threads))
        assert {pool["num_threads"] for pool in threadpool_info()} == {threads}


def test_signals_that_nohup_ignores_stay_ignored(monkeypatch):
    """The others ask the run to save."""
    monkeypatch.setattr(sys, "argv", ["ppo.py"])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where pytest was started with &
    utils.parse(helpers.module("ppo").Args)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.raise_signal(number)
        assert utils.received.pop() == number
    utils.received.append(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # a second Ctrl-C


# --- checkpoints execute nothing
class Payload:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def places(state, path=()):
    """Each place of a nested dict or list: (keys that lead there)."""
    yield path
    if isinstance(state, dict | list):
        for key in state if isinstance(state, dict) else range(len(state)):
            yield from places(state[key], (*path, key))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return helpers.train("dqn", tmp_path_factory.mktemp("trained"))[0]


def test_a_payload_in_every_place(trained, tmp_path):
    """Instead of any part of a checkpoint: refused in one line, and never executed."""
    state = helpers.load(trained)
    _, agent = helpers.agent_of("dqn")
    path, executed = tmp_path / "checkpoint.pt", tmp_path / "executed"
    paths = [place for place in places(state) if place[:1] != ("args",)]
    assert len(paths) > 20
    for place in [*paths, ("args", "env_id"), ("more",)]:
        changed = copy.deepcopy(state)
        if place:
            parent = changed
            for key in place[:-1]:
                parent = parent[key]
            parent[place[-1]] = Payload(executed)
        else:
            changed = Payload(executed)
        torch.save(changed, path)
        with pytest.raises(SystemExit, match=r"^error: cannot load [^\n]*checkpoint\.pt"):
            utils.load(path, agent=agent)
        assert not executed.exists(), place
    torch.load(path, weights_only=False)["more"].close()
    assert executed.exists()  # the trap works


@pytest.mark.parametrize("flag", ["evaluate", "resume"])
def test_a_payload_is_not_executed(flag, trained, tmp_path):
    path, executed = tmp_path / "checkpoint.pt", tmp_path / "executed"
    torch.save({**helpers.load(trained), "more": Payload(executed)}, path)
    with pytest.raises(SystemExit, match="^error: cannot load "):
        helpers.train("dqn", tmp_path / "runs", **{flag: str(tmp_path)})
    assert not executed.exists()
    assert not (tmp_path / "runs").exists()


def test_another_script_trained_the_agent(trained, tmp_path, capsys):
    """A copy under the same name; that its weights fit does not make it the same agent."""
    run_dir = shutil.copytree(trained, tmp_path / "run")
    flags = helpers.small_flags("dqn", tmp_path, evaluate=run_dir)
    assert helpers.command_line("dqn", flags) == 0
    assert "trained" not in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # ends it: it has nothing to save
    with (run_dir / "dqn.py").open("a") as script:
        script.write("# a change\n")
    assert helpers.command_line("dqn", flags) == 0
    assert f"is not the script that trained this agent, {run_dir}" in capsys.readouterr().out


def test_numbers_of_a_program(tmp_path):
    """numpy's, paths and dicts: what is saved is plain, and the run can be resumed."""
    numbers = dict(total_timesteps=np.int64(512), gamma=np.float64(0.9), seed=np.int32(3))
    numbers |= dict(env_id=np.str_("CartPole-v1"), env_kwargs={"sutton_barto_reward": True})
    numbers["learning_rate"] = np.float32(0.5)
    run_dir, _ = helpers.train("ppo", tmp_path, **numbers)
    assert json.loads((run_dir / "args.json").read_text())["gamma"] == 0.9
    saved = helpers.load(run_dir)["args"]
    assert saved["env_kwargs"] == '{"sutton_barto_reward": true}'
    assert [type(saved[name]) for name in ("seed", "learning_rate", "env_id")] == [int, float, str]
    more = dict(numbers, resume=run_dir, total_timesteps=np.int64(640))
    assert helpers.train("ppo", tmp_path, **more)[0] == run_dir
    assert helpers.load(run_dir)["global_step"] == 640
