"""vpg.py, a2c.py, ppo_simple.py and their variants for Box actions: their returns, advantages,
policies and updates, against the definitions and torch.optim."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_lite import a2c, a2c_continuous, vpg
from tests import helpers, probe_envs
from tests.probe_envs import probe

OPTIMIZERS = dict(
    ppo_simple=lambda params, rate: torch.optim.Adam(params, lr=rate),
    vpg=lambda params, rate: torch.optim.Adam(params, lr=rate),
    a2c=lambda params, rate: torch.optim.RMSprop(params, lr=rate, alpha=0.99, eps=1e-5),
)
OPTIMIZERS["ppo_simple_continuous"] = OPTIMIZERS["ppo_simple"]
OPTIMIZERS["a2c_continuous"] = OPTIMIZERS["a2c"]
PPO = "ppo_simple", "ppo_simple_continuous"
A2C = "a2c", "a2c_continuous"
CONTINUOUS = "a2c_continuous", "ppo_simple_continuous"


def rollout(steps=40, envs=3):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(3, steps, envs))
    rewards, values, next_values = np.float32(numbers)
    terminations, truncations = rng.random((2, steps, envs)) < 0.1
    return rewards, values, next_values, terminations, terminations | truncations


def tensors(arrays):
    return [torch.from_numpy(array) for array in arrays]


@pytest.mark.parametrize("module", [vpg, a2c, a2c_continuous])
def test_returns(module):
    """The sum from each step to the end of its episode: a termination ends it, all other ends
    add a value."""
    rewards, _, next_values, terminations, dones = rollout()
    arrays = rewards, next_values, terminations, dones
    returns = module.compute_returns(*tensors(arrays), 0.9)
    for n in range(3):
        for t in range(40):
            expected = 0.0
            discount = 1.0
            k = t
            while True:
                expected = expected + discount * rewards[k, n]
                discount = discount * 0.9
                if dones[k, n] or k == 39:
                    break
                k += 1
            if not terminations[k, n]:
                expected += discount * next_values[k, n]
            found = returns[t, n].item()
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("script", OPTIMIZERS)
def test_plain_updates(script, monkeypatch, tmp_path):
    """Each step's metrics, and the parameters after it, against the losses' definitions and an
    optimizer of the test's own."""
    state = {}

    def check(update, main, tensors):
        agent = main["agent"]
        args = main["args"]
        obs, actions, *rest, returns = tensors
        if not state:
            state["agent"] = copy.deepcopy(agent)
            params = state["agent"].parameters()
            state["optimizer"] = OPTIMIZERS[script](params, args.learning_rate)
        reference = state["agent"]
        optimizer = state["optimizer"]
        reference.load_state_dict(agent.state_dict())
        dist, value = reference(obs)
        logprob = dist.log_prob(actions)
        assert logprob.shape == value.shape == returns.shape
        expected = dict(
            value_loss=((value - returns) ** 2).mean() / 2, entropy=dist.entropy().mean()
        )
        if script in PPO:
            old_logprobs, advantages = rest
            ratio = (logprob - old_logprobs).exp()
            clipped = torch.clamp(
                ratio,
                min=1 - args.clip_coef,
                max=1 + args.clip_coef,
            )
            expected["policy_loss"] = -torch.minimum(
                ratio * advantages, clipped * advantages
            ).mean()
            expected["approx_kl"] = (ratio - 1 - ratio.log()).mean()
        else:
            advantages = returns - value.detach()
            expected["policy_loss"] = -(logprob * advantages).mean()
            residuals = (returns - value).detach().numpy()
            targets = returns.numpy()
            unexplained = np.var(residuals) / (np.var(targets) + 1e-8)
            explained = 1 - unexplained
            expected["explained_variance"] = torch.tensor(explained)
        loss = expected["policy_loss"] + args.vf_coef * expected["value_loss"]
        optimizer.zero_grad()
        loss = loss - getattr(args, "ent_coef", 0) * expected["entropy"]
        loss.backward()
        if script in A2C:
            expected["grad_norm"] = nn.utils.clip_grad_norm_(
                reference.parameters(), args.max_grad_norm
            )
        optimizer.step()
        metrics = update(*tensors)
        assert set(metrics) == {f"losses/{name}" for name in expected}
        for name, value in expected.items():
            wanted = pytest.approx(value.item(), 1e-3, 1e-5)
            assert metrics[f"losses/{name}"] == wanted, name
        helpers.assert_stepped(agent, reference, args.learning_rate)
        return metrics

    calls = helpers.spy_on_plain_updates(monkeypatch, script, check)
    flags = dict(clip_coef=0.02) if script in PPO else dict(vf_coef=2.0)
    helpers.train(script, tmp_path, learning_rate=3e-3, **flags)
    updates = 4
    if script in PPO:
        updates = 64
    elif script in A2C:
        updates = 16
    assert len(calls) == updates


@pytest.mark.parametrize("script", helpers.others_slow(OPTIMIZERS, ["ppo_simple"]))
def test_a_resumed_run_takes_a_new_learning_rate(script, tmp_path):
    """The optimizer's state has the old one."""
    run_dir, _ = helpers.train(script, tmp_path, learning_rate=1e-3)
    helpers.next_second()
    helpers.train(
        script,
        tmp_path,
        resume=str(run_dir),
        learning_rate=5e-4,
        total_timesteps=1024,
    )
    (group,) = helpers.load(run_dir)["optimizer"]["param_groups"]
    assert group["lr"] == 5e-4


@pytest.mark.slow
@pytest.mark.parametrize("script", ["vpg", "a2c", "ppo_simple"])
def test_learns_cartpole(script, tmp_path):
    """The best mean of 20 training episodes: seeds 1 to 6 get 277 or more, a random policy 22.
    Not the last agent's greedy return, which for vpg is as low as 52 (seed 5)."""
    flags = dict(
        ppo_simple=dict(num_envs=4, num_steps=128, learning_rate=2.5e-4),
        vpg=dict(num_envs=8, num_steps=64, learning_rate=1e-2),
        a2c=dict(num_envs=16, num_steps=5, learning_rate=3e-3),
    )
    run_dir, _ = helpers.train(
        script,
        tmp_path,
        **flags[script],
        total_timesteps=60_000,
    )
    assert helpers.means20(run_dir).max() >= 200


class Rollout:
    """What the environments were given and gave in some steps, and what should be learned of it."""

    def __init__(self, script, steps, agent, args):
        before, *steps = steps  # the step before has the first observations
        columns = [np.stack(column) for column in zip(*steps, strict=True)]
        obs, actions, next_obs, rewards, terminations, dones = columns
        first_obs = before[0]
        obs = np.float32([first_obs, *obs[:-1]])
        rewards = torch.from_numpy(np.float32(rewards))
        terminations = torch.from_numpy(terminations)
        dones = torch.from_numpy(dones)
        with torch.no_grad():
            _, values = agent(torch.from_numpy(obs))
            next_obs = torch.from_numpy(np.float32(next_obs))
            _, next_values = agent(next_obs)
        common = next_values, terminations, dones, args.gamma
        if script in PPO:
            compute_gae = helpers.module(script).compute_gae
            advantages = compute_gae(rewards, values, *common, args.gae_lambda)
            returns = advantages + values
        else:
            returns = helpers.module(script).compute_returns(rewards, *common)
            advantages = returns - values
        self.columns = (
            obs,
            actions,
            advantages.numpy(),
            returns.numpy(),
        )


def sorted_rows(obs, *others):
    """Samples in the order of their observations and their last column, the returns."""
    keys = (others[-1], *obs.T)
    order = np.lexsort(keys)
    return [column[order] for column in (obs, *others)]


@pytest.mark.parametrize(
    "script", helpers.others_slow(OPTIMIZERS, ["vpg", "a2c_continuous", "ppo_simple_continuous"])
)
def test_what_they_learn_from(script, monkeypatch, tmp_path):
    """The observations and rewards of the environment as they are, each of the rollout's samples
    once an epoch, with log-probabilities of the policy that acted. Real numbers as actions are the
    samples before they are clipped; the environment gets the clipped ones."""
    low = probe_envs.Corner.low
    high = probe_envs.Corner.high
    epoch = dict(batches=1, epochs=1)
    if script in PPO:
        epoch = dict(batches=4, epochs=4)
    steps = []
    seen = []
    firsts = []
    looked = []
    state = {}

    def note(envs, actions, result):
        obs, rewards, terminations, truncations, infos = result
        next_obs = obs.copy()
        dones = terminations | truncations
        for n in np.flatnonzero(dones):
            next_obs[n] = infos["final_obs"][n]
        steps.append((obs, actions, next_obs, rewards, terminations, dones))

    def check(update, main, tensors):
        if state.get("steps") != len(steps):  # the first update of this rollout
            state["steps"] = len(steps)
            state["agent"] = copy.deepcopy(main["agent"])
        # (num_steps, num_envs, ...) or (minibatch, ...)
        columns = []
        for x, space in shapes(tensors):
            flat = x.flatten(0, -len(space))
            columns.append(flat.numpy())
        seen.append(columns)
        if len(seen) == epoch["batches"]:
            firsts.append(seen[0][-1])
            columns = zip(*seen, strict=True)
            samples = [np.concatenate(column) for column in columns]
            seen.clear()
            look(sorted_rows(*samples), main["args"])
        return update(*tensors)

    def shapes(tensors):
        obs, actions, *others = tensors
        yield obs, "ab"
        yield actions, "ab" if script in CONTINUOUS else "a"
        for x in others:
            yield x, "a"

    def look(samples, args):
        if len(steps) == args.num_steps:
            return  # of the first rollout: the first observations were not noted
        last = steps[-args.num_steps - 1 :]
        rollout = Rollout(script, last, state["agent"], args)
        columns = [np.concatenate(column) for column in rollout.columns]
        expected = sorted_rows(*columns)
        obs, actions, *rest, returns = samples
        np.testing.assert_array_equal(obs, expected[0])
        taken = actions
        if script in CONTINUOUS:
            taken = actions.clip(low, high)
            assert (taken != actions).any()
        np.testing.assert_allclose(taken, expected[1], rtol=1e-6)
        np.testing.assert_allclose(returns, expected[3], rtol=1e-4, atol=1e-4)
        if script in PPO:
            logprobs, advantages = rest
            np.testing.assert_allclose(advantages, expected[2], rtol=1e-4, atol=1e-4)
            with torch.no_grad():
                dist, _ = state["agent"](torch.from_numpy(obs))
                wanted = dist.log_prob(torch.from_numpy(actions))
            np.testing.assert_allclose(logprobs, wanted, rtol=1e-4, atol=1e-5)
        looked.append(len(steps))

    helpers.spy_on_plain_updates(monkeypatch, script, check)
    helpers.spy_on_steps(monkeypatch, script, note)
    helpers.train(script, tmp_path, env_id=probe("Logged", script), learning_rate=1e-3)
    rollouts = 16 if script in A2C else 4
    assert len(looked) == (rollouts - 1) * epoch["epochs"]
    if script in PPO:  # each epoch shuffles: the first minibatches of two hold other samples
        assert not np.array_equal(*firsts[:2])
