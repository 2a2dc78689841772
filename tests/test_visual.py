"""The *_visual scripts: they have videos, and all else is their parents'."""

import imageio.v3 as imageio
import pytest

from tests import helpers


@pytest.mark.slow
@pytest.mark.parametrize("script", helpers.VISUAL_SCRIPTS)
def test_a_run_is_its_parents(script, tmp_path):
    """Every scalar and the checkpoint to the last bit, evaluations in mid-training included; and
    its video shows what the agent thinks beside the game."""
    every = helpers.SMALL[script]["total_timesteps"] // 2
    runs = []
    for name, video in (helpers.PARENT[script], False), (script, True):
        run, returns = helpers.train(name, tmp_path / name, eval_every=every, capture_video=video)
        curves, state = helpers.scalars(run), helpers.load(run)
        for tag in helpers.UNSEEDED:
            del curves[tag]
        for part in ("script", "args", "id"):
            del state[part]
        runs.append((returns, curves, state))
    (returns, curves, state), (same, ours, ours_state) = runs
    assert returns == same
    assert curves == ours
    assert len(curves["eval/episodic_return"]) == 2
    helpers.assert_same_state(ours_state, state)
    videos = sorted((run / "videos").glob("*/*.mp4"))
    assert len(videos) == 2
    frames = imageio.imread(videos[-1])
    assert len(frames) > 30  # games of tests are cut after 40 steps, no-ops included
    assert frames.shape[1:] == (420, 640, 3)
    assert frames[:, :, 320:].max((1, 2, 3)).min() > 80
