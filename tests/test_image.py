"""ppo_image.py: what becomes of images, both kinds of actions, reward scaling, and what is
learned from pixels."""

import json

import cv2
import numpy as np
import pytest
import torch

from cleanrl_lite import ppo_image
from tests import helpers, probe_envs
from tests.helpers import DRAWN

LAYOUTS = dict(hwc=3, chw=3, hw=1, dict=3, two_in_one=6)  # channels


def env_of(image_size=36, stack_size=2, **kwargs):
    sizes = dict(image_size=image_size, stack_size=stack_size)
    return ppo_image.make_env(ppo_image.Args(env_id=DRAWN, env_kwargs=json.dumps(kwargs), **sizes))


def picture(env):
    """What the drawn environment shows now, (36, 36, 3), before ppo_image does anything about
    it."""
    image = probe_envs.Drawn.draw(np.array(env.unwrapped.state))
    image = cv2.resize(image, (36, 36), interpolation=cv2.INTER_AREA)
    return np.dstack((image, image))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images(layout):
    """Channels first, resized, the oldest frame first; at the start, the first frame is
    repeated."""
    env = env_of(layout=layout, stack_size=3)
    obs, _ = env.reset(seed=1)
    frames = [picture(env)] * 3
    for t in range(5):
        assert obs.dtype == np.uint8
        assert env.observation_space.contains(obs)
        expected = np.stack(frames[-3:]).transpose(0, 3, 1, 2)[:, : LAYOUTS[layout]]
        assert obs.shape == (3, LAYOUTS[layout], 36, 36)
        np.testing.assert_array_equal(obs, expected)
        assert len(np.unique(obs)) > 1
        assert (obs[-1] != obs[0]).any() == (t > 0)
        obs, *_ = env.step(1)
        frames.append(picture(env))


def test_box_actions_reach_the_environment_in_its_own_bounds(monkeypatch, tmp_path):
    """-1 and 1 are the bounds of every dimension, and samples beyond them are clipped: the probe
    checks the bounds."""
    env = env_of(env_id="tests.probe_envs:ProbeCorner-v0")
    upper = probe_envs.Corner.target == probe_envs.Corner.high
    corner = np.where(upper, 1, -1).astype(np.float32)
    for action, reward in [(corner, 1.0), (5 * corner, 1.0), (-corner, 0.0), (0 * corner, 0.5)]:
        env.reset()
        assert env.step(action)[1] == pytest.approx(reward)


def trained(env_id, monkeypatch, tmp_path, **flags):
    """The agent after a short run on a drawn probe, and the scale of its rewards."""
    flags = (
        dict(num_envs=4, num_steps=32, num_minibatches=2, clip_vloss=False, ent_coef=0.0, gamma=0.9)
        | flags
    )
    flags |= dict(
        stack_size=1, env_kwargs=json.dumps(dict(env_id=f"tests.probe_envs:Probe{env_id}-v0"))
    )
    agents = helpers.spy_on_agents(monkeypatch, "ppo_image")
    helpers.train("ppo_image", tmp_path, learning_rate=1e-3, **flags)
    return agents[0], (agents[0].return_stats.var + 1e-8).sqrt().item()


def images(*numbers):
    """Observations of a drawn probe that shows one number."""
    drawn = [
        cv2.resize(probe_envs.Drawn.draw(np.array([n])), (36, 36), interpolation=cv2.INTER_AREA)
        for n in numbers
    ]
    return torch.from_numpy(np.stack(drawn).transpose(0, 3, 1, 2))[:, None]


def test_right_action(monkeypatch, tmp_path):
    agent, _ = trained("RightActionDiscrete", monkeypatch, tmp_path, total_timesteps=1_024)
    assert agent.act(images(-1, 1)).tolist() == [0, 1]
    assert agent(images(-1, 1))[0].probs.max(-1).values.min() > 0.9


@pytest.mark.parametrize(
    "kind, expected, error",
    [
        ("Truncated", [10, -1], 1.5),
        pytest.param("Terminated", [1.82, -8.36], 0.6, marks=pytest.mark.slow),
    ],
)
def test_truncation_bootstraps_and_termination_does_not(
    kind, expected, error, monkeypatch, tmp_path
):
    """The values are those of tests/probe_envs.py, in units of the scaled reward."""
    agent, scale = trained(f"{kind}Discrete", monkeypatch, tmp_path, total_timesteps=3_072)
    with torch.no_grad():
        _, values = agent(images(1, 0))
    assert (values * scale).tolist() == pytest.approx(expected, abs=error)
