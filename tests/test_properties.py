"""Numbers from a hat: whatever the numeric flags are, a run is refused in one line, or stops
with one, or finishes. Sizes of 0 are not drawn, nor seeds that no generator takes."""

import contextlib
import math
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests import helpers

SIZES = st.integers(-2, 40).filter(bool)  # of everything that costs time or memory
MAY_BE_0 = {"learning_starts", "eval_every", "save_every"}
NUMBERS = st.one_of(
    st.floats(-0.5, 1.5),
    st.floats(width=32),  # NaN, infinities, the smallest and the largest
    st.sampled_from([0.0, 1.0, 1e-8, 1e3, 1e12]),
)
COUNTS = "num_envs num_steps num_minibatches update_epochs batch_size train_frequency "
COUNTS += "gradient_steps policy_frequency target_network_frequency eval_episodes n_atoms "
COUNTS += "n_quantiles top_quantiles_to_drop n_step image_size stack_size "
COUNTS += "learning_starts eval_every save_every"
FIXED = {"threads", "cuda", "compile"}
FEW = st.integers(-2, 6).filter(bool)  # each may cost a gradient step, or an episode
FEW_OF = ["gradient_steps", "policy_frequency", "n_critics", "eval_episodes"]
OTHERS = dict.fromkeys(FEW_OF, FEW)
OTHERS |= dict.fromkeys(MAY_BE_0, st.integers(-2, 40))
OTHERS["seed"] = st.integers(0, 2**31 - 1)


def strategies(script):
    """A strategy for each numeric flag of the script."""
    for name, value in vars(helpers.small_args(script, "unused")).items():
        if type(value) is int and name not in FIXED:
            any_size = st.integers(-(2**70), 2**70).filter(bool)
            yield name, OTHERS.get(name, SIZES if name in COUNTS.split() else any_size)
        elif name == "exploration_fraction":
            yield name, NUMBERS.filter(bool)
        elif type(value) is float or name == "target_kl":
            yield name, NUMBERS


def flags(script):
    """Some of the flags, the others as in the small run: with all of them wrong, only the first
    check is tried."""
    drawn = dict(strategies(script)) | dict(
        total_timesteps=st.integers(-10, 300).filter(bool), buffer_size=st.integers(-5, 500)
    )
    names = st.lists(st.sampled_from(sorted(drawn)), min_size=1, max_size=4, unique=True)
    known = set(vars(helpers.small_args(script, "unused")))
    return names.flatmap(
        lambda some: st.fixed_dictionaries({n: drawn[n] for n in some if n in known})
    )


@contextlib.contextmanager
def no_hang(seconds):
    def late(*_):
        raise AssertionError(f"not ended after {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def attempt(script, drawn):
    """Runs it; returns the line with which it was refused or stopped, if it was."""
    folder = Path(tempfile.mkdtemp())
    try:
        with no_hang(300):  # seconds; a busy machine takes ten times as long as an idle one
            record = helpers.main(script, helpers.small_args(script, folder / "runs", **drawn))
        run_dir = helpers.only_run(folder / "runs")
        assert all(math.isfinite(value) for value in record["returns"])
        for tag, points in helpers.scalars(run_dir).items():
            # of returns that are all the same, it is no number of meaning
            if tag != "losses/explained_variance":
                assert all(math.isfinite(value) for _, value in points), tag
    except SystemExit as end:
        told = end.code.strip()  # after the bar, on a line of its own
        assert told.startswith("error: ") and "\n" not in told
        began = (folder / "runs").exists()
        assert not began or "must" not in told  # flags are refused before anything is created
        for path in folder.rglob("checkpoint.pt"):
            helpers.load(path.parent)
        return end.code
    finally:
        shutil.rmtree(folder)


def of_images(script):
    return script in helpers.ATARI_SCRIPTS + helpers.IMAGE_SCRIPTS


EXAMPLES = [(name, 6 if of_images(name) else 20) for name in helpers.TRAINING_SCRIPTS]


@pytest.mark.slow
@pytest.mark.parametrize("script, examples", EXAMPLES)
def test_any_numbers(script, examples):
    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        deadline=None,
        derandomize=True,
        suppress_health_check=[*HealthCheck],
    )
    @given(flags(script))
    def check(drawn):
        outcomes.append(attempt(script, drawn))

    outcomes = []
    check()
    assert None in outcomes and any(outcomes), "some are refused, some run"
