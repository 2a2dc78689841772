"""ppo_continuous_mjx.py and fast_td3_mjx.py: what is learned from a batch of tensors, of a stand-in
for the simulator."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cleanrl_lite import fast_td3_mjx, ppo_continuous, ppo_continuous_mjx
from tests import helpers
from tests.test_off_policy import learns_as_often_after_a_resume

SCRIPT = "ppo_continuous_mjx"
LOGGED = dict(
    num_envs=3,
    num_steps=40,
    num_minibatches=2,
    update_epochs=2,
    total_timesteps=360,
    max_episode_steps=9,
)


# --- without JAX
def stand_in(steps):
    """ppo_continuous_mjx.simulator for environments of torch: points that walk at random and are
    lost beyond 2.

    A batch is (state, returns, lengths, generators' numbers); `steps` gets what each step was
    given and answered.
    """

    def draw(numbers, low, high):
        """Another number between low and high for each, and the numbers that come after."""
        numbers = (numbers * 1_103_515_245 + 12_345) % 2**31
        return low + (high - low) * numbers.float() / 2**31, numbers

    def start(numbers):
        position, numbers = draw(numbers, -1, 1)
        zeros = torch.zeros_like(position)
        return [SimpleNamespace(obs=torch.stack([position, zeros], 1)), zeros, zeros, numbers]

    def simulator(env_id, backend, env_kwargs, max_episode_steps, cuda):
        def step(batch, actions):
            state, totals, lengths, numbers = batch
            push, numbers = draw(numbers, -1, 1)
            position = state.obs[:, 0] + push + 0.1 * torch.as_tensor(actions)[:, 0]
            rewards = 1 - position.abs()
            lengths = lengths + 1
            totals = totals + rewards
            obs = torch.stack([position, lengths / 10], 1)
            terminated = position.abs() > 2
            done = terminated | (lengths >= max_episode_steps)
            ended = [SimpleNamespace(obs=obs), totals, lengths, numbers]
            pairs = zip(leaves(start(numbers)), leaves(ended), strict=True)
            parts = [
                torch.where(done.reshape(-1, *[1] * (new.dim() - 1)), new, old)
                for new, old in pairs
            ]
            batch = unflatten(None, parts)
            results = batch[0].obs, rewards, terminated, done, obs, totals, lengths
            # in evaluations, and in the step that compiles, they are numpy's
            if torch.is_tensor(actions):
                steps.append([state.obs.numpy(), *(result.numpy() for result in results)])
            return batch, results

        def leaves(batch):
            return [batch[0].obs, *batch[1:]]

        def unflatten(_, leaves):
            return [SimpleNamespace(obs=leaves[0]), *leaves[1:]]

        tree = SimpleNamespace(leaves=leaves, structure=lambda batch: None, unflatten=unflatten)

        def put(arrays, device):
            return [torch.from_numpy(array) for array in arrays]

        jax = SimpleNamespace(tree=tree, device_put=put, devices=lambda: [None])
        env = SimpleNamespace(observation_size=2, action_size=1, dt=0.05)
        return jax, env, lambda seeds: start(torch.as_tensor(seeds)), step

    return simulator


@pytest.fixture
def steps(monkeypatch):
    """(observation before, and the results of Brax.step) of every step of training."""
    steps = []
    for script in ppo_continuous_mjx, fast_td3_mjx:
        monkeypatch.setattr(script, "simulator", stand_in(steps))
    return steps


def played(steps, part=slice(None)):
    """Arrays (steps, environments): observations, rewards, terminated, done, next observations,
    returns, lengths."""
    obs, _, *results = map(np.stack, zip(*steps[part]))
    return obs, *results


def test_advantages_are_the_parents():
    random = np.random.default_rng(0)
    rewards, values, next_values = random.normal(size=(3, 20, 5))
    dones = random.random((20, 5)) < 0.3
    rollout = rewards, values, next_values, dones & (random.random((20, 5)) < 0.5), dones
    expected = ppo_continuous.compute_gae(*rollout, 0.99, 0.95)
    actual = ppo_continuous_mjx.compute_gae(*map(torch.from_numpy, rollout), 0.99, 0.95)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_a_batch_is_what_was_played(monkeypatch, tmp_path, steps):
    """Normalised observations, and returns that bootstrap where an episode was cut, from its own
    last observation."""
    first = []

    def check(update, main, tensors):
        # the networks and the statistics of the observations are those of the rollout
        if not first:
            obs, rewards, terminated, done, next_obs, _, _ = played(steps)
            assert done.sum() > terminated.sum() > 3
            # mean 0 and variance 1 as yet
            np.testing.assert_allclose(main["b_obs"], obs.reshape(-1, 2), rtol=1e-6)
            with torch.no_grad():
                values = [
                    main["agent"].critic(torch.from_numpy(x)).squeeze(-1).numpy()
                    for x in (obs, next_obs)
                ]
            under_way = np.ones(3)
            running = np.zeros(3)
            discounted = []
            for reward, over in zip(rewards, done):
                running = reward + 0.99 * under_way * running
                under_way = ~over
                discounted.append(running)
            scaled = rewards / np.sqrt(np.var(discounted) + 1e-8)
            advantages = ppo_continuous.compute_gae(scaled, *values, terminated, done, 0.99, 0.95)
            np.testing.assert_allclose(main["b_advantages"], advantages.flatten(), atol=1e-4)
            np.testing.assert_allclose(
                main["b_returns"], (advantages + values[0]).flatten(), atol=1e-4
            )
            first.append(True)
        return update(*tensors)

    helpers.spy_on_updates(monkeypatch, check)
    run_dir, _ = helpers.train(SCRIPT, tmp_path, **LOGGED)
    assert first
    agent = helpers.load(run_dir)["agent"]
    obs, *_ = played(steps)
    assert agent["obs_stats.count"] == agent["return_stats.count"] == 360
    np.testing.assert_allclose(agent["obs_stats.mean"], obs.mean((0, 1)), atol=1e-5)
    np.testing.assert_allclose(agent["obs_stats.var"], obs.var((0, 1)), rtol=1e-4)


# --- fast_td3_mjx without JAX
FAST = dict(
    num_envs=3,
    train_frequency=3,
    batch_size=8,
    buffer_size=300,
    learning_starts=60,
    total_timesteps=240,
    max_episode_steps=9,
    v_min=-10.0,
    v_max=10.0,
)


def test_the_buffer_holds_what_was_played(tmp_path, steps):
    """Each transition leads to its episode's own last observation; only what terminated is
    marked."""
    run_dir, _ = helpers.train("fast_td3_mjx", tmp_path, **FAST)
    obs, rewards, terminated, done, next_obs, _, lengths = played(steps)
    assert done.sum() > terminated.sum() > 3
    rows = helpers.load(run_dir)["replay"]["rows"].reshape(-1, 3, 8)
    np.testing.assert_array_equal(rows[..., 0:2], obs)
    assert rows[..., 2].abs().max() <= 1
    np.testing.assert_array_equal(rows[..., 3], rewards)
    np.testing.assert_array_equal(rows[..., 4:6], next_obs)
    np.testing.assert_array_equal(rows[..., 6], terminated)
    np.testing.assert_array_equal(rows[..., 7], lengths)


def test_a_resumed_actor_learns_as_often(monkeypatch, tmp_path, steps):
    flags = dict(v_min=-10.0, v_max=10.0, max_episode_steps=9)
    learns_as_often_after_a_resume("fast_td3_mjx", monkeypatch, tmp_path, **flags)
