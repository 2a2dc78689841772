"""ppo_continuous_mjx.py and fast_td3_mjx.py: what is learned from a batch of tensors, with a stand-in
for class Brax; and class Brax itself, where brax is installed."""

import numpy as np
import pytest
import torch

from cleanrl_lite import fast_td3_mjx, ppo_continuous, ppo_continuous_mjx, utils
from tests import helpers, probe_envs
from tests.shadow import Shadow, expected_events

SCRIPTS = ["ppo_continuous_mjx", "fast_td3_mjx"]


# --- without JAX
def make_env(args, render_mode=None):
    """Logged, in a box of -1 to 1 as brax has it: each transition is in TRANSITIONS."""
    env = probe_envs.Logged(True)
    env.action_space = ppo_continuous_mjx.Box(-1, 1, (3,))
    return env


class LikeBrax:
    """With its names: tensors, and the returns and lengths of the episodes so far."""

    def __init__(self, args):
        self.envs = utils.make_envs(args, make_env)
        self.single_observation_space = self.envs.single_observation_space
        self.single_action_space = self.envs.single_action_space
        self.begin()

    def begin(self, step=0):
        self.envs.begin(step)
        self.obs = torch.from_numpy(self.envs.obs)
        self.totals = np.zeros((2, len(self.obs)), np.float32)
        self.returns = []

    def step(self, actions):
        results = self.envs.step(actions.numpy())
        next_obs, rewards, terminations, truncations, _ = results
        rewards = rewards.astype(np.float32)
        self.obs = torch.from_numpy(self.envs.obs)
        self.totals += rewards, np.ones_like(rewards)
        dones = terminations | truncations
        found = next_obs, rewards, terminations, dones, *self.totals.copy()
        self.totals *= ~dones
        return [torch.from_numpy(x) for x in found]

    def close(self):
        self.envs.close()


@pytest.fixture
def like_brax(monkeypatch):
    for script in ppo_continuous_mjx, fast_td3_mjx:
        monkeypatch.setattr(script, "Brax", LikeBrax)
        monkeypatch.setattr(script, "make_env", make_env)
    probe_envs.TRANSITIONS.clear()


def played(steps, num_envs=3):
    """Arrays (steps, num_envs, ...): observations, actions, rewards, next observations, which were
    terminations, and which ended an episode."""
    rows = [row[1:] for row in probe_envs.TRANSITIONS[: steps * num_envs]]
    arrays = [np.array(x).reshape(steps, num_envs, -1) for x in zip(*rows)]
    obs, actions, rewards, next_obs, terminations = arrays
    after = np.concatenate([obs[1:], obs[-1:] * 0])
    ended = (after != next_obs).any(-1)
    ended[-1] = next_obs[-1, :, 1] == np.rint(next_obs[-1, :, 0] * 10) % 7 + 1
    return obs, actions, rewards[..., 0], next_obs, terminations[..., 0], ended


def test_advantages_are_the_parents():
    random = np.random.default_rng(0)
    rewards, values, next_values = random.normal(size=(3, 20, 5))
    dones = random.random((20, 5)) < 0.3
    rollout = rewards, values, next_values, dones & (random.random((20, 5)) < 0.5), dones
    expected = ppo_continuous.compute_gae(ppo_continuous.Args(), *rollout)
    tensors = map(torch.from_numpy, rollout)
    actual = ppo_continuous_mjx.compute_gae(ppo_continuous.Args(), *tensors)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_a_rollout_holds_what_was_played(like_brax, monkeypatch, tmp_path):
    """Observations, actions, log-probabilities; scaled rewards; advantages that bootstrap from the
    last observation of what was cut. The mean of a rollout's episodes is logged."""
    monkeypatch.setattr(np.random, "permutation", np.arange)
    losses = helpers.spy_on_calls(monkeypatch, "ppo_continuous_mjx", "ppo_loss")
    flags = dict(num_envs=3, num_steps=40, total_timesteps=240, learning_rate=1e-20)
    flags |= dict(num_minibatches=1, update_epochs=1)
    run_dir, _ = helpers.train("ppo_continuous_mjx", tmp_path, **flags)
    obs, actions, rewards, next_obs, terminations, ended = played(80)
    assert 3 < terminations.sum() < ended.sum()
    running, discounted = np.zeros(3), []
    for reward, over in zip(rewards, ended):
        running = reward + 0.99 * running
        discounted.append(running)
        running = running * ~over
    for k, (_, agent, batch) in enumerate(losses):
        rows = slice(40 * k, 40 * k + 40)
        np.testing.assert_array_equal(batch.obs, obs[rows].reshape(120, -1))
        np.testing.assert_allclose(batch.actions.clamp(-1, 1), actions[rows].reshape(120, -1))
        assert batch.actions.abs().max() > 1
        with torch.no_grad():
            dist, values = agent(batch.obs)
            _, after = agent(torch.from_numpy(next_obs[rows]))
        torch.testing.assert_close(batch.logprobs, dist.log_prob(batch.actions))
        torch.testing.assert_close(batch.values, values)
        scaled = (rewards / np.sqrt(np.var(discounted[: rows.stop]) + 1e-8)).clip(-10, 10)[rows]
        rollout = scaled, values.view(40, 3).numpy(), after.numpy(), terminations[rows], ended[rows]
        advantages = ppo_continuous.compute_gae(ppo_continuous.Args(), *rollout).flatten()
        np.testing.assert_allclose(batch.advantages, advantages, atol=1e-4)
        np.testing.assert_allclose(batch.returns, advantages + values.numpy(), atol=1e-4)
    agent = helpers.load(run_dir)["agent"]
    np.testing.assert_allclose(agent["obs_stats.mean"], obs.mean((0, 1)), atol=1e-5)
    np.testing.assert_allclose(agent["obs_stats.var"], obs.var((0, 1)), rtol=1e-4)
    logged = helpers.scalars(run_dir)
    lengths = [next_obs[k : k + 40][ended[k : k + 40]][:, 1].mean() for k in (0, 40)]
    assert [step for step, _ in logged["charts/episodic_return"]] == [120, 240]
    assert [value for _, value in logged["charts/episodic_length"]] == pytest.approx(lengths)


def test_the_buffer_holds_what_was_played(like_brax, tmp_path):
    """Each transition leads to its episode's own last observation; only what terminated is
    marked."""
    flags = dict(num_envs=3, train_frequency=3, batch_size=8, buffer_size=300, v_min=-10.0)
    flags |= dict(v_max=10.0, learning_starts=60, total_timesteps=240)
    run_dir, _ = helpers.train("fast_td3_mjx", tmp_path, **flags)
    obs, actions, rewards, next_obs, terminations, ended = played(80)
    assert 3 < terminations.sum() < ended.sum()
    rows = helpers.load(run_dir)["replay"]["rows"].reshape(-1, 3, 10)
    np.testing.assert_array_equal(rows[..., 0:2], obs)
    np.testing.assert_array_equal(rows[..., 2:5], actions)
    np.testing.assert_array_equal(rows[..., 5], np.float32(rewards))
    np.testing.assert_array_equal(rows[..., 6:8], next_obs)
    np.testing.assert_array_equal(rows[..., 8], terminations)
    np.testing.assert_array_equal(rows[..., 9], next_obs[..., 1])


def test_every_step_of_a_run(like_brax, monkeypatch, tmp_path):
    """Of fast_td3_mjx, whose losses and targets come when fast_td3's do."""
    shadow = Shadow(monkeypatch, "fast_td3_mjx")
    flags = dict(num_envs=3, train_frequency=3, gradient_steps=4, policy_frequency=3)
    flags |= dict(batch_size=8, buffer_size=300, learning_starts=60, total_timesteps=90)
    shadow.train(tmp_path, **flags)
    assert shadow.events == expected_events("fast_td3", shadow.args)
    assert len(shadow.events) > 100


# --- with brax
@pytest.mark.parametrize("script", SCRIPTS)
def test_steps_of_brax(script):
    """Each environment has a seed of its own, and each episode begins in a state of its own; the
    true last observation of what ends, by the limit or by itself; actions are clipped; other
    episodes after a resume. One environment for evaluations steps as its row does."""
    module = helpers.module(script)
    args = helpers.small_args(script, "unused", num_envs=3, max_episode_steps=6)
    envs = module.Brax(args)
    firsts = [envs.obs.clone()]
    one = module.make_env(args)
    obs, _ = one.reset(seed=args.seed)
    np.testing.assert_allclose(obs, envs.obs[0], atol=1e-6)
    lengths = torch.zeros(3)
    cut = 0
    for t in range(14):
        action = torch.tensor([3 * np.sin(t), 0.01, -0.02], dtype=torch.float32)[:, None]
        before = envs.obs.clone()
        next_obs, rewards, terminations, dones, returns, found = envs.step(action)
        lengths += 1
        assert torch.equal(found.float(), lengths)
        assert torch.equal(dones, terminations | (lengths == 6))
        cut += int((dones & ~terminations).sum())
        assert torch.equal(next_obs[~dones], envs.obs[~dones])
        assert (next_obs[dones] != envs.obs[dones]).any(-1).all()
        assert (next_obs - before).abs().max() < 3
        if not dones[0]:
            results = one.step(np.clip(action[0].numpy(), -1, 1))
            np.testing.assert_allclose(results[0], next_obs[0], atol=1e-4)
        else:
            *_, terminated, truncated, _ = one.step(np.clip(action[0].numpy(), -1, 1))
            assert (terminated, truncated) == (bool(terminations[0]), not terminations[0])
            obs, _ = one.reset()
            np.testing.assert_allclose(obs, envs.obs[0], atol=1e-4)
        if dones.any():
            firsts.append(envs.obs[dones].clone())
        lengths *= ~dones
    assert cut >= 3
    envs.begin(600)
    firsts = torch.cat([*firsts, envs.obs])
    assert len(firsts.unique(dim=0)) == len(firsts)
