"""ppo_lstm.py, ppo_continuous_lstm.py and ppo_atari_lstm.py: the LSTM against torch's, where
memory begins and ends, sequences. test_rollouts.py has what their rollouts hold."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from cleanrl_lite import ppo, ppo_atari_lstm, ppo_lstm, utils
from tests import helpers, probe_envs
from tests.probe_envs import probe
from tests.test_rollouts import torchs

# With vectors. Their class LSTM is one text: test_consistency.py sees to it.
VECTORS = ["ppo_lstm", "ppo_continuous_lstm"]


@torch.no_grad()
def test_the_lstm_is_torchs():
    """In sequences, and step by step in numpy. Where the flag is 1, it is as if a sequence began
    there with zeros, for that row only."""
    network = ppo_lstm.LSTM(3, 2, last_gain=1.0)
    for layer in network.children():
        nn.init.normal_(layer.bias)
    obs, state = torch.randn(12, 5, 3), torch.randn(5, 2, 64)
    obs[..., -1] = 0
    obs[7, 2, -1] = 1
    reference, hidden, expected = torchs(network), state.clone(), []
    for t in range(12):
        if t == 7:
            hidden[2] = 0
        h, c = reference(network.encoder(obs[t]).tanh(), hidden.unbind(1))
        hidden = torch.stack((h, c), 1)
        expected.append(network.output(h))
    expected = torch.stack(expected)
    outputs, after = network(obs, state)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after, hidden, rtol=1e-4, atol=1e-5)
    step, state = network.in_numpy(), state.numpy()
    for t in range(12):
        output, state = step(obs[t].numpy(), state)
        np.testing.assert_allclose(output, expected[t], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state, hidden, rtol=1e-4, atol=1e-5)
    whole, _ = network(obs * torch.tensor([1, 1, 0]), torch.from_numpy(state))
    assert (whole[7:, 2] - outputs[7:, 2]).abs().max() > 1e-3


def stepwise(agent, obs, state):
    """What agent(obs, state) should be, by its networks one step at a time."""
    outputs, values = [], []
    actor, critic = state[:, :2], state[:, 2:]
    for row in obs:
        row = agent.normalize(row) if hasattr(agent, "normalize") else row
        output, actor = agent.actor(row[None], actor)
        value, critic = agent.critic(row[None], critic)
        outputs.append(output[0])
        values.append(value[0, :, 0])
    outputs = torch.stack(outputs)
    if hasattr(agent, "actor_logstd"):
        dist = Independent(Normal(outputs, agent.actor_logstd.exp()), 1)
    else:
        dist = Categorical(logits=outputs)
    return dist, torch.stack(values)


@pytest.mark.parametrize("script", VECTORS)
def test_the_loss_of_sequences(script):
    """It is ppo.py's, of policies and values that know the sequence so far, from the state before
    it: of the states inside of it nothing is used, and gradients go back to its beginning."""
    args, agent = helpers.agent_of(script, env_id=probe("Logged", script))
    obs = torch.randn(6, 4, 3)
    obs[..., -1] = 0
    obs[3, 1, -1] = 1
    states = torch.randn(6, 4, 4, 64)
    if script == "ppo_lstm":
        actions = torch.randint(3, (6, 4))
    else:
        actions = torch.randn(6, 4, 3)
        agent.obs_stats.mean[:2] = 0.5
        agent.obs_stats.var[:2] = 4.0
    rest = torch.randn(4, 6, 4)
    with torch.no_grad():
        rest[0] = stepwise(agent, obs, states[0])[0].log_prob(actions) + 0.2 * torch.randn(6, 4)
    module = helpers.module(script)
    loss, metrics = module.ppo_loss(args, agent, module.Batch(obs, states, actions, *rest))
    batch = ppo.Batch(obs, actions, *rest)
    expected, same = ppo.ppo_loss(args, lambda x: stepwise(agent, x, states[0]), batch)
    torch.testing.assert_close(loss, expected)
    for tag, metric in metrics.items():
        torch.testing.assert_close(metric, same[tag], rtol=1e-4, atol=1e-5, msg=tag)
    params = [*agent.parameters()]
    grads = [torch.autograd.grad(x, params) for x in (loss, expected)]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("script", VECTORS)
def test_sequences_are_of_one_environment(script, monkeypatch, tmp_path):
    """Its steps follow each other, within an episode or into the next; each step is in one
    sequence of every epoch."""
    batches = helpers.spy_on_calls(monkeypatch, script, "ppo_loss")
    flags = dict(env_id=probe("Logged", script), num_envs=3, num_steps=24, num_minibatches=3)
    probe_envs.TRANSITIONS.clear()
    helpers.train(script, tmp_path, **flags, update_epochs=2, total_timesteps=72)
    expected = {}
    for env, obs, *_ in probe_envs.TRANSITIONS[:72]:
        expected.setdefault(env, []).append(obs.tolist())
    sequences = [steps[k : k + 8] for steps in expected.values() for k in (0, 8, 16)]
    assert len(batches) == 6
    orders = []
    for epoch in batches[:3], batches[3:]:
        obs = torch.cat([batch.obs for *_, batch in epoch], 1)[..., :2].swapaxes(0, 1)
        orders.append(obs.tolist())
        assert sorted(obs.tolist()) == sorted(sequences)
    assert orders[0] != orders[1]


@torch.no_grad()
@pytest.mark.parametrize("script", VECTORS)
def test_act_remembers(script):
    """act() takes raw observations, one by one: it is greedy in what it knows of the episode, and
    the next one does not know of it. The flag is never normalised. sampler() follows too."""
    args, agent = helpers.agent_of(script, env_id=probe("Logged", script))
    nn.init.normal_(agent.actor.output.weight)
    if script == "ppo_continuous_lstm":
        agent.obs_stats.mean[:2] = torch.tensor([5.0, -1.0])
        agent.obs_stats.var[:2] = torch.tensor([4.0, 0.25])
    raw = torch.randn(40, 1, 3)
    raw[..., -1] = (torch.arange(40) % 20 == 0)[:, None]
    raw[20:] = raw[:20]
    dist, _ = stepwise(agent, raw, torch.randn(1, 4, 64))
    best = dist.mean if script == "ppo_continuous_lstm" else dist.logits.argmax(-1)
    actions = torch.stack([agent.act(obs) for obs in raw])
    torch.testing.assert_close(actions, best)
    assert torch.equal(actions[:20], actions[20:])
    state = np.random.standard_normal((1, 4, 64)).astype(np.float32)
    sample, state = agent.sampler(), np.repeat(state, 4000, 0)
    for t in range(3):
        samples, state = sample(raw[t].numpy().repeat(4000, 0), state)
    if script == "ppo_lstm":
        frequencies = np.bincount(samples, minlength=3) / 4000
        np.testing.assert_allclose(frequencies, dist.probs[2, 0], atol=0.04)
    else:
        np.testing.assert_allclose(samples.mean(0), dist.mean[2, 0], atol=0.1)


# --- Atari


def test_games_begin_with_a_row_of_ones():
    """In training's environments and evaluation's; the last frame of a game has none."""
    kwargs = dict(env_kwargs='{"max_num_frames_per_episode": 40}')
    args = helpers.small_args("ppo_atari_lstm", "unused", num_envs=2, **kwargs)
    envs = utils.Envs(args, ppo_atari_lstm.Games(args))
    env = ppo_atari_lstm.make_env(args)
    assert envs.single_observation_space == env.observation_space
    rows = [envs.obs[:, -1]]
    for t in range(1, 12):
        next_obs, *_ = envs.step(np.ones(2, int))
        assert not next_obs[:, -1].any()
        rows.append(envs.obs[:, -1])
    assert [row.min() for row in rows] == [row.max() for row in rows] == [1] + 9 * [0] + [1, 0]
    assert env.reset(seed=1)[0][-1].all()
    assert not env.step(0)[0][-1].any()


@torch.no_grad()
def test_an_agent_of_games():
    """The convolutions do not see the row; where it is 1, the game before is forgotten, by act()
    too."""
    args, agent = helpers.agent_of("ppo_atari_lstm")
    frames = torch.randint(256, (3, 2, 85, 84), dtype=torch.uint8)
    frames[:, :, -1] = 0
    state = torch.randn(2, 2, 128)
    frames[1, 0, -1] = 1
    dist, values, after = agent(frames, state)
    for n in range(2):
        begin = 1 - n  # of what this environment remembers
        features = agent.network(frames[begin:, n : n + 1, :-1] / 255.0)
        h, c = torch.zeros(2, 1, 128) if n == 0 else agent.lstm(features[:1], state[1:].unbind(1))
        for x in features[n:]:
            h, c = agent.lstm(x[None], (h, c))
        torch.testing.assert_close(after[n], torch.cat([h, c]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(values[-1, n], agent.critic(h)[0, 0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            dist.logits[-1, n], Categorical(logits=agent.actor(h)).logits[0], rtol=1e-4, atol=1e-5
        )
    agent.memory = torch.randn(1, 2, 128)
    actions = [agent.act(obs[:1]) for obs in frames[1:]]
    assert torch.equal(torch.cat(actions), dist.logits[1:, 0].argmax(-1))
