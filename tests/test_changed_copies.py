"""Copies of scripts with a researcher's small change: right, or stopped with a line that says why.

The changes are the files changed_copies/*.diff, which docs/guides/change_a_script.md shows. All run
in eager mode. Some are traced in the fast tier (torch.compile without its code generation), and the
slow tier compiles those that change what is compiled.
"""

import copy
import functools
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from cleanrl_lite import utils
from tests import helpers, probe_envs

EDITS = helpers.ROOT / "tests/changed_copies"

# Small runs: 30 to 70 updates.
OFF_POLICY = {"num_envs": 2, "buffer_size": 300, "batch_size": 16, "total_timesteps": 240}
DISCRETE = {**OFF_POLICY, "learning_starts": 64, "train_frequency": 4}
CONTINUOUS = {**OFF_POLICY, "env_id": "InvertedPendulum-v4"}
CONTINUOUS |= {"learning_starts": 120, "train_frequency": 4}
SIZES = {
    "ppo": {"num_envs": 4, "num_steps": 32, "total_timesteps": 512},
    "ppo_continuous": {
        "env_id": "InvertedPendulum-v4",
        "num_envs": 2,
        "num_steps": 64,
        "num_minibatches": 4,
        "update_epochs": 4,
        "total_timesteps": 512,
    },
    "pqn": {"num_envs": 4, "num_steps": 32, "total_timesteps": 512},
    "dqn": {**DISCRETE, "learning_rate": 1e-3},
    **dict.fromkeys(["c51", "rainbow", "sac_discrete"], DISCRETE),
    **dict.fromkeys(["td3", "sac", "crossq", "fast_td3"], CONTINUOUS),
}

MINATAR = ["minatar", "minatar_pqn", "minatar_ppo", "minatar_rainbow"]

# Where the default learning rate needs longer runs to show something, an environment needs to be one
# that gives something, or an update takes long. Minibatch statistics multiply differences: few
# updates of xqc.
FLAGS = {
    **{name: {"env_id": "tests.probe_envs:ProbeGrid-v0"} for name in MINATAR},
    "clip_cosine": {"learning_rate": 1e-3},
    "clip_number": {"learning_rate": 1e-3},
    "log_distance": {"env_id": "tests.probe_envs:ProbeDistance-v0"},
    "sac_simba": {"train_frequency": 16, "policy_lr": 0.03},
    "xqc": {"total_timesteps": 156, "policy_frequency": 1},
}

# What stops a run, and its message.
STOPS = {
    "std_in_one_place": "error: sampler(), which acts, is not the policy of forward()",
    "act_in_one_place": "error: act(), which is evaluated, is not the policy of forward()",
    "encoder_untrained": "no optimizer has encoder.weight, so it would never learn",
}
NO_EFFECT = {"log_distance"}  # on what a run computes
# The first tier traces these (torch.compile without its code generation); the second compiles the
# others that change what is compiled.
TRACED = ["clip_number", "rmsprop", "squashed"]
NOT_COMPILED = {*STOPS, "clip_number", "torch_optim", "bigger_network", "log_distance"}
NOT_COMPILED |= {"shaped_rewards", "n_step", "minatar_pqn"}


def read(name):
    """(scripts, hunks) of an edit; a hunk is (section, old text, new text)."""
    head, *parts = re.split(r"^@@ (.+)\n", (EDITS / f"{name}.diff").read_text(), flags=re.M)
    scripts = re.findall(r"(\w+)\.py", head.splitlines()[0])
    hunks = []
    for section, body in zip(parts[::2], parts[1::2], strict=True):
        lines = body.splitlines(keepends=True)
        old = "".join(line[1:] or "\n" for line in lines if line[0] != "+")
        new = "".join(line[1:] or "\n" for line in lines if line[0] != "-")
        hunks.append((section, old, new))
    return scripts, hunks


def changed(name, script):
    """The text of a script after an edit, which must fit it in one place exactly."""
    source = helpers.TEXT[script]
    for section, old, new in read(name)[1]:
        assert f"\n{source}".count(f"\n{old}") == 1, f"{name}: not once in {script}.py:\n{old}"
        before, after = f"\n{source}".split(f"\n{old}")
        banners = re.findall(r"^ *# === (.+)", before + f"\n{old}", re.M)
        assert section == (banners[-1] if banners else "imports"), name
        source = f"{before}\n{new}{after}"[1:]
    return source


def copied(name, script, folder):
    """A script after an edit, or without one as it is, as a module."""
    path = folder / f"{name or script}.py"
    path.write_text(changed(name, script) if name else helpers.TEXT[script])
    return helpers.import_file(path)


NAMES = sorted(path.stem for path in EDITS.glob("*.diff"))
PAIRS = [(name, script) for name in NAMES for script in read(name)[0]]
# The first tier runs each edit in the first of its scripts, but for two slow ones.
FIRST = {(name, read(name)[0][0]) for name in set(NAMES) - {"sac_simba", "minatar_ppo"}}
EAGER = [pytest.param(*p, marks=[] if p in FIRST else pytest.mark.slow) for p in PAIRS]


class Outcome:
    """What a run of a copy did; `stopped` is what it raised, if anything."""

    def __init__(self, name, script, folder, mode, **overrides):
        folder.mkdir(exist_ok=True)
        self.module = copied(name, script, folder)
        flags = {
            **SIZES[script],
            "compile": mode != "eager",
            "cuda": False,
            "eval_episodes": 1,
            "runs_dir": str(folder / "runs"),
            **overrides,
        }
        self.stopped = None
        try:
            record = self.module.main(self.module.Args(**flags))
        except (SystemExit, Exception) as error:
            self.stopped = error
            return
        self.returns = record["returns"]
        self.dir = record["dir"]
        saved = helpers.load(self.dir)
        self.learning_rate = saved["args"].get("learning_rate") or saved["args"]["q_lr"]
        self.weights = {name: x for name, x in saved["agent"].items() if x.is_floating_point()}
        self.saved = saved
        self.scalars = helpers.scalars(self.dir)
        del self.scalars["charts/SPS"]

    def distance(self, other):
        """The mean difference of the weights, in learning rates; infinite for other networks."""
        if self.shapes() != other.shapes():
            return math.inf
        pairs = [(weight, other.weights[name]) for name, weight in self.weights.items()]
        differences = torch.cat([(one - two).flatten().abs() for one, two in pairs])
        return float(differences.mean()) / self.learning_rate

    def shapes(self):
        return {name: weight.shape for name, weight in self.weights.items()}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """original(name, script): the outcome of the script itself, with the flags of an edit."""

    @functools.cache
    def run(script, **flags):
        return Outcome(None, script, tmp_path_factory.mktemp(script), "eager", **flags)

    return lambda name, script: run(script, **FLAGS.get(name, {}))


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    """eager(name, script): the outcome of an edit in eager mode."""

    @functools.cache
    def run(name, script):
        folder = tmp_path_factory.mktemp(name)
        return Outcome(name, script, folder, "eager", **FLAGS.get(name, {}))

    return run


def assert_same(one, other):
    """Weights and everything that was logged are close; counts are equal."""
    assert one.shapes() == other.shapes()
    assert one.distance(other) < 0.001  # 1e-5 is usual
    assert one.scalars.keys() == other.scalars.keys()
    for tag, points in one.scalars.items():
        steps, values = zip(*points, strict=True)
        theirs, their_values = zip(*other.scalars[tag], strict=True)
        assert steps == theirs, tag
        exact = "updates" in tag or "episodic" in tag
        tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 0.02, "atol": 1e-3}
        np.testing.assert_allclose(values, their_values, **tolerance, err_msg=tag)


def assert_as_expected(name, script, outcome, printed, warned, mode, reference=None):
    """It stopped or said a line where it should; `reference` is the outcome in eager mode."""
    lines = [*printed.err.splitlines(), *{str(warning.message) for warning in warned}]
    if name in STOPS:
        assert isinstance(outcome.stopped, SystemExit), repr(outcome.stopped)
        assert STOPS[name] in str(outcome.stopped)
        return
    if outcome.stopped:
        raise outcome.stopped
    in_torch = name == "residual" or (name in MINATAR and script in ("ppo", "dqn", "c51"))
    expected = ["acts in torch: numpy"] if in_torch else []
    if name == "clip_number" and mode != "eager":
        expected = ["continuing in eager mode: "]
    said = [line for line in lines if "in torch: " in line or "in eager mode: " in line]
    assert len(said) == len(expected), lines
    assert all(any(words in line for words in expected) for line in said), said
    if reference:
        assert_same(outcome, reference)


@pytest.mark.filterwarnings("always:a network acts in torch")
@pytest.mark.parametrize("name, script", EAGER)
def test_eager(name, script, eager, original, capfd, recwarn):
    """The change has an effect, on whatever network or number it changes."""
    outcome = eager(name, script)
    assert_as_expected(name, script, outcome, capfd.readouterr(), recwarn, "eager")
    if name in STOPS:
        return
    distance = outcome.distance(original(name, script))
    assert distance == 0 if name in NO_EFFECT else distance > 0.01


@pytest.fixture
def compiled_soon(monkeypatch):
    """After five calls; and torch gives up after three recompilations, which saves minutes."""
    monkeypatch.setattr(utils, "EAGER_CALLS", 5)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=3):
        yield


def check_compiled(name, script, mode, eager, folder, capfd, recwarn):
    reference = eager(name, script)
    capfd.readouterr()
    recwarn.clear()
    outcome = Outcome(name, script, folder, mode, **FLAGS.get(name, {}))
    assert_as_expected(name, script, outcome, capfd.readouterr(), recwarn, mode, reference)


@pytest.mark.parametrize("name", TRACED)
def test_traced(name, eager, traced, compiled_soon, tmp_path, capfd, recwarn):
    check_compiled(name, read(name)[0][0], "traced", eager, tmp_path, capfd, recwarn)


@pytest.mark.slow
@pytest.mark.filterwarnings("always:a network acts in torch")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_COMPILED])
def test_compiled(name, eager, compiled_soon, tmp_path, capfd, recwarn):
    check_compiled(name, read(name)[0][-1], "compiled", eager, tmp_path, capfd, recwarn)


@pytest.mark.parametrize("name", MINATAR)
def test_the_images_of_minatar(name, tmp_path):
    """In the order of a convolution, after gymnasium has flattened them."""
    images = np.random.default_rng(0).random((5, 10, 10, 4)) < 0.5
    flat = torch.tensor(images.reshape(5, -1))
    found = copied(name, read(name)[0][0], tmp_path).Images()(flat)
    np.testing.assert_array_equal(found, images.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("script, num_envs", [("dqn", 1), ("sac", 3)])
def test_n_step_transitions(script, num_envs, tmp_path):
    """Those of the environments, summed by hand: an end of an episode cuts the window; after a
    truncation the true last observation has the discount of the steps up to there, after a
    termination 0. The environments write all observations to the same array."""
    probe_envs.TRANSITIONS.clear()
    flags = {"env_id": probe_envs.probe("Logged", script), "num_envs": num_envs}
    flags |= {"n_steps": 4, "learning_starts": 10_000}
    outcome = Outcome("n_step", script, tmp_path, "eager", **flags)
    steps = [parts for _, *parts in probe_envs.TRANSITIONS[:240]]
    expected = []
    truncated = 0
    for i in range(240 - 3 * num_envs):
        total, discount = 0.0, 1.0
        for k in range(4):
            _, _, reward, last_obs, terminated = steps[i + k * num_envs]
            total += 0.99**k * reward
            discount = 0.0 if terminated else 0.99 ** (k + 1)
            if last_obs[1] == np.rint(last_obs[0] * 10) % 7 + 1:  # the episode's last
                truncated += k < 3 and not terminated
                break
        obs, action, *_ = steps[i]
        expected.append(np.hstack([obs, action, total, last_obs, discount]))
    rows = outcome.saved["replay"]["rows"].numpy()
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)
    assert truncated > 20 and (rows[:, -1] == 0).sum() > 20


@pytest.mark.parametrize(
    "name, script, parts",
    [
        ("prioritised", "dqn", 3),
        ("second_optimizer", "ppo", 3),
        ("torch_optim", "ppo", 2),
        ("fast_sac", "fast_td3", 5),
        pytest.param("sac_simba", "sac", 5, marks=pytest.mark.slow),  # large networks
        ("xqc", "crossq", 5),
    ],
)
def test_a_copy_resumes_with_the_state_that_it_adds(name, script, parts, eager, tmp_path):
    """A resume without a step more saves what it has read."""
    whole = eager(name, script)
    run_dir = Path(shutil.copytree(whole.dir, tmp_path / "run"))
    args = whole.module.Args(**{**whole.saved["args"], "resume": str(run_dir)})
    resumed = {}

    class Resumed(utils.Run):
        def __init__(self, *args, **parts):
            super().__init__(*args, **parts)
            resumed.update({name: part.state_dict() for name, part in self.parts.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "Run", Resumed)
        assert whole.module.main(args)["returns"] == whole.returns
    assert len(resumed) == parts
    helpers.assert_same_state(resumed, {part: whole.saved[part] for part in resumed})


def test_an_optimizer_is_torchs(eager):
    """With the same gradients and a learning rate that anneals."""
    network = torch.nn.Linear(7, 5).double()
    copied = copy.deepcopy(network)
    mine = eager("rmsprop", "ppo").module.RMSprop(network.parameters(), 0.1, eps=1e-5)
    torchs = torch.optim.RMSprop(copied.parameters(), eps=1e-5, alpha=0.99)
    for step in range(50):
        rate = 0.1 * (1 - step / 50)
        mine.learning_rate.fill_(rate)
        torchs.param_groups[0]["lr"] = rate
        x = torch.randn(9, 7).double()
        mine.minimize(network(x).square().mean())
        torchs.zero_grad()
        copied(x).square().mean().backward()
        torchs.step()
    for ours, theirs in zip(network.parameters(), copied.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_value_of_the_environments_infos(eager):
    """At every step."""
    points = eager("log_distance", "ppo").scalars["charts/distance"]
    assert [step for step, _ in points] == [*range(1, 513)]
    expected = [5 / (n // 4 % 10 + 1) for n in range(512)]
    np.testing.assert_allclose([value for _, value in points], expected, rtol=1e-6)


def test_shaped_returns(eager):
    """CartPole's reward is 1; a pole that starts near 0 has little to lose by the shaping; an
    evaluation has none of it."""
    outcome = eager("shaped_rewards", "ppo")
    shaped = outcome.scalars["charts/episodic_return"]
    lengths = outcome.scalars["charts/episodic_length"]
    losses = [length - mine for (_, mine), (_, length) in zip(shaped, lengths, strict=True)]
    assert len(losses) > 10 and all(0 < loss < 10 for loss in losses)
    record = helpers.read_json(outcome.dir / "eval.json")
    assert record["returns"] == record["lengths"]


def test_a_copy_plays_and_resumes_runs_of_its_origin(original, tmp_path):
    origin = original("", "ppo")
    path = shutil.copy(helpers.SOURCE / "ppo.py", tmp_path / "my_idea.py")
    my_idea = helpers.import_file(path)
    args = {**origin.saved["args"], "exp_name": "my_idea"}
    record = my_idea.main(my_idea.Args(**{**args, "evaluate": str(origin.dir)}))
    assert record["returns"] == origin.returns
    longer = {"resume": str(origin.dir), "total_timesteps": 640}
    assert my_idea.main(my_idea.Args(**{**args, **longer}))["dir"] == origin.dir
