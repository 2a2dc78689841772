"""The *_visual scripts: their videos show what the agent makes of each frame, and all else is
their parents'."""

import gymnasium as gym
import imageio.v3 as imageio
import numpy as np
import pytest
import torch

from tests import helpers


@pytest.fixture(params=helpers.VISUAL_SCRIPTS)
def script(request):
    return request.param


@pytest.fixture
def env(script, monkeypatch):
    """Breakout as evaluations see it, watched by an agent that has learnt nothing."""
    module = helpers.module(script)
    sizes = (51, -10.0, 10.0) if script.startswith("c51") else ()
    agent = module.Agent(4, *sizes)
    monkeypatch.setattr(module.WatchedFrames, "agent", agent, raising=False)
    env = module.make_env(helpers.small_args(script, "unused"), "rgb_array")
    env.reset(seed=1)
    yield env
    env.close()


def test_numbers_belong_to_the_frame(script, env, tmp_path):
    """What RecordVideo gets after each reset and step was computed from the observation that
    they returned."""
    seen = []
    network = getattr(env.agent, "q_network", env.agent)

    def note(network, inputs, output):
        seen.append(inputs[0].clone())

    network.register_forward_hook(note)
    folder = str(tmp_path / "videos")
    video = gym.wrappers.RecordVideo(env, folder, lambda episode: True)
    with torch.no_grad():
        obs, _ = video.reset(seed=2)
        for t in range(12):
            assert len(seen) == t + 1
            np.testing.assert_array_equal(seen[-1][0], obs)
            left_or_right = 2 + t % 2
            obs, *_ = video.step(left_or_right)
    assert not torch.equal(seen[0], seen[-1])
    frames = np.array(video.recorded_frames)
    assert (frames[1:] != frames[:-1]).any()
    video.close()


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
    theirs, returns = helpers.train(
        parent,
        tmp_path / "parent",
        eval_every=every,
    )
    ours, ours_returns = helpers.train(
        script,
        tmp_path / "visual",
        eval_every=every,
        capture_video=True,
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
