"""The *_visual scripts: they have videos, and all else is their parents'."""

import imageio.v3 as imageio
import pytest

from tests import helpers


@pytest.fixture(params=helpers.VISUAL_SCRIPTS)
def script(request):
    return request.param


def curves_of(run):
    curves = helpers.scalars(run)
    for tag in helpers.UNSEEDED:
        del curves[tag]
    return curves


def state_of(run):
    state = helpers.load(run)
    for name in ("script", "setting", "args"):
        del state[name]
    return state


@pytest.mark.slow
def test_a_run_is_its_parents(script, tmp_path):
    """Every scalar and the checkpoint to the last bit, evaluations in mid-training included; and
    its video."""
    parent = helpers.PARENT[script]
    every = helpers.SMALL[script]["total_timesteps"] // 2
    theirs, returns = helpers.train(parent, tmp_path / "parent", eval_every=every)
    ours, ours_returns = helpers.train(
        script, tmp_path / "visual", eval_every=every, capture_video=True
    )
    assert ours_returns == returns
    curves = curves_of(ours)
    assert curves == curves_of(theirs)
    assert len(curves["eval/episodic_return"]) == 2
    helpers.assert_same_state(state_of(ours), state_of(theirs))
    videos = sorted((ours / "videos").glob("*/*.mp4"))
    assert len(videos) == 2
    frames = imageio.imread(videos[-1])
    # evaluations of tests are cut after 40 steps
    assert len(frames) >= 40
    assert frames.shape[1:] == (420, 640, 3)
    beside = frames[:, :, 320:]
    assert beside.max((1, 2, 3)).min() > 80
