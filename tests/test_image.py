"""ppo_image.py: what becomes of images, both kinds of actions.
test_rollouts.py has what a rollout holds."""

import json

import cv2
import gymnasium as gym
import numpy as np
import pytest
import torch

from cleanrl_lite import ppo_image, utils
from tests import helpers, probe_envs
from tests.helpers import PROBES

LAYOUTS = dict(hwc=3, chw=3, hw=1, dict=3, two_in_one=6)  # channels


def args_of(image_size=36, stack_size=2, num_envs=1, limit=None, **kwargs):
    sizes = dict(image_size=image_size, stack_size=stack_size, num_envs=num_envs)
    flags = dict(env_kwargs=json.dumps(kwargs), max_episode_steps=limit)
    return helpers.small_args("ppo_image", "unused", **sizes, **flags)


def picture(env, size=36):
    """What the drawn environment shows now, (size, size, 3), before ppo_image does anything about
    it."""
    image = probe_envs.Drawn.draw(np.array(env.unwrapped.state))
    return cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images(layout):
    """Channels first, resized, the oldest frame first; at the start, the first frame is
    repeated."""
    env = ppo_image.make_env(args_of(layout=layout, stack_size=3))
    obs, _ = env.reset(seed=1)
    frames = [picture(env)] * 3
    for t in range(5):
        assert env.observation_space.contains(obs)
        expected = np.concatenate([np.stack(frames[-3:])] * 2, -1).transpose(0, 3, 1, 2)
        assert obs.shape == (3, LAYOUTS[layout], 36, 36)
        np.testing.assert_array_equal(obs, expected[:, : LAYOUTS[layout]])
        assert len(np.unique(obs)) > 1
        assert (obs[-1] != obs[0]).any() == (t > 0)
        obs, *_ = env.step(1)
        frames.append(picture(env))


def test_a_stack_is_of_one_episode():
    """The last observation of what was cut has the frames of its episode; the next one begins with
    four times its own first frame. Each environment has its own."""
    args = args_of(stack_size=4, num_envs=2, limit=6)
    envs = utils.make_envs(args, ppo_image.make_env)
    stacks = []
    for t in range(1, 13):
        before = envs.obs.copy()
        next_obs, _, terminations, truncations, _ = envs.step(np.array([1, 0]))
        assert truncations.all() == (t % 6 == 0)
        assert not terminations.any()
        np.testing.assert_array_equal(next_obs[:, :3], before[:, 1:])
        newest = [picture(env).transpose(2, 0, 1) for env in envs.env.envs]
        np.testing.assert_array_equal(envs.obs[:, 3], newest)
        if t % 6 == 0:
            np.testing.assert_array_equal(envs.obs, envs.obs[:, 3:].repeat(4, 1))
            assert (next_obs[:, 3] != envs.obs[:, 3]).any((1, 2, 3)).all()
        else:
            np.testing.assert_array_equal(envs.obs, next_obs)
        stacks.append(envs.obs.copy())
    assert all((stack[0] != stack[1]).any() for stack in stacks)


def test_box_actions_reach_the_environment_in_its_own_bounds():
    """-1 and 1 are the bounds of every dimension, and samples beyond them are clipped: the probe
    checks the bounds."""
    env = ppo_image.make_env(args_of(env_id=f"{PROBES}Corner-v0"))
    upper = probe_envs.Corner.target == probe_envs.Corner.high
    corner = np.where(upper, 1, -1).astype(np.float32)
    for action, reward in [(corner, 1.0), (5 * corner, 1.0), (-corner, 0.0), (0 * corner, 0.5)]:
        env.reset()
        assert env.step(action)[1] == pytest.approx(reward)


@torch.no_grad()
def test_an_agent_of_pixels():
    """It sees all frames and channels, in units of 255; act() is greedy."""
    for env_id in "CartPole-v1", f"{PROBES}Corner-v0":
        _, agent = helpers.agent_of("ppo_image", env_kwargs=json.dumps(dict(env_id=env_id)))
        obs = torch.randint(256, (5, 2, 3, 36, 36), dtype=torch.uint8)
        dist, values = agent(obs)
        x = agent.network((obs / 255.0).reshape(5, 6, 36, 36))
        torch.testing.assert_close(values, agent.critic(x)[:, 0])
        outputs = agent.actor(x)
        if env_id == "CartPole-v1":
            torch.testing.assert_close(dist.probs, outputs.softmax(1))
            assert torch.equal(agent.act(obs), outputs.argmax(1))
        else:
            torch.testing.assert_close(agent.act(obs), outputs)
            expected = torch.distributions.Normal(outputs, agent.actor_logstd.exp())
            actions = dist.sample()
            logprobs = expected.log_prob(actions).sum(1)
            torch.testing.assert_close(dist.log_prob(actions), logprobs)


class Rewriting(gym.Env):
    """It writes each image into the same array, of the right size."""

    observation_space = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)
    image = np.zeros((36, 36, 3), np.uint8)

    def reset(self, seed=None, options=None):
        self.image[:] = 0
        return self.image, {}

    def step(self, action):
        self.image += 1
        return self.image, 0.0, False, False, {}


def test_frames_are_copies():
    env = gym.wrappers.FrameStackObservation(ppo_image.Image(Rewriting(), 36), 3)
    env.reset()
    for _ in range(4):
        obs, *_ = env.step(0)
    assert obs[:, 0, 0, 0].tolist() == [2, 3, 4]
