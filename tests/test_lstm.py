"""ppo_lstm.py, ppo_continuous_lstm.py and ppo_atari_lstm.py: the LSTM against torch's, where
memory begins and ends, what sequences hold."""

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_lite import ppo_atari_lstm, ppo_continuous, ppo_continuous_lstm, ppo_lstm
from tests import helpers
from tests.probe_envs import probe

# With vectors. Their class LSTM is one text: test_consistency.py sees to it.
VECTORS = ["ppo_lstm", "ppo_continuous_lstm"]
each = pytest.mark.parametrize("script", VECTORS)


def reference(network):
    """torch's LSTM with these weights; its gates are in the order i, f, g, o."""
    lstm = nn.LSTM(64, 64)
    order = torch.arange(4 * 64).view(4, 64)[[0, 1, 3, 2]].flatten()
    state = {
        "weight_ih_l0": network.inputs.weight[order],
        "weight_hh_l0": network.recurrent.weight[order],
        "bias_ih_l0": network.inputs.bias[order],
        "bias_hh_l0": network.recurrent.bias[order],
    }
    lstm.load_state_dict(state)
    return lstm


def random_network(inputs=3, outputs=2):
    network = ppo_lstm.LSTM(inputs, outputs, last_gain=1.0)
    for layer in network.children():
        nn.init.normal_(layer.bias)
    return network


def sequence(steps=12, batch=5):
    """Observations that end with the flag, 0, and a state before them."""
    obs = torch.randn(steps, batch, 3)
    obs[..., -1] = 0
    return obs, torch.randn(batch, 2, 64)


@torch.no_grad()
def test_the_lstm_is_torchs():
    """In sequences, and step by step in numpy."""
    network = random_network()
    obs, state = sequence()
    h, c = (part[None].contiguous() for part in state.unbind(1))
    lstm = reference(network)
    encoded = network.encoder(obs).tanh()
    hidden, (h, c) = lstm(encoded, (h, c))
    expected = network.output(hidden)
    expected_state = torch.stack((h[0], c[0]), 1)
    outputs, after = network(obs, state)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after, expected_state, rtol=1e-4, atol=1e-5)
    step = network.in_numpy()
    state = state.numpy()
    for t in range(12):
        output, state = step(obs[t].numpy(), state)
        np.testing.assert_allclose(output, expected[t], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state, expected_state, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_flag_forgets():
    """It is as if a sequence began there with zeros, for that row only; in numpy too."""
    network = random_network()
    obs, state = sequence()
    whole, _ = network(obs, state)
    obs[7, 2, -1] = 1
    cut, _ = network(obs, state)
    others = [0, 1, 3, 4]
    torch.testing.assert_close(cut[:, others], whole[:, others])
    torch.testing.assert_close(cut[:7], whole[:7])
    rest, _ = network(obs[7:, 2:3], torch.zeros(1, 2, 64))
    torch.testing.assert_close(cut[7:, 2:3], rest)
    differences = (cut[7:, 2] - whole[7:, 2]).abs()
    assert differences.min(0).values.max() > 1e-3
    step = network.in_numpy()
    state = state.numpy()
    for t in range(12):
        output, state = step(obs[t].numpy(), state)
        np.testing.assert_allclose(output, cut[t], rtol=1e-4, atol=1e-5)


def rollout_of(script, monkeypatch, tmp_path, **flags):
    """The variables of main() at the first update of each rollout, copied; and the agent, which
    does not learn."""
    found = []

    def check(update, main, tensors):
        if not found or not torch.equal(found[-1]["b_states"], main["b_states"]):
            copied = dict(main)
            for name, x in main.items():
                if torch.is_tensor(x):
                    copied[name] = x.clone()
            found.append(copied)
        return update(*tensors)

    helpers.spy_on_updates(monkeypatch, check)
    with torch.enable_grad():
        helpers.train(script, tmp_path, learning_rate=1e-20, **flags)
    return found


@torch.no_grad()
@pytest.mark.parametrize(
    "script, env_id",
    [
        ("ppo_lstm", "CartPole-v1"),
        ("ppo_continuous_lstm", "InvertedPendulum-v4"),
        *[(script, probe("Scripted", script)) for script in VECTORS],
    ],
)
def test_states_of_the_rollout(script, env_id, monkeypatch, tmp_path):
    """Each stored state is what torch's LSTM has after all observations of the episode so far,
    across rollouts; those of ppo_continuous_lstm are normalised, and the flag is not."""
    rollouts = rollout_of(script, monkeypatch, tmp_path, env_id=env_id, total_timesteps=384)
    assert len(rollouts) == 3
    agent = rollouts[0]["agent"]
    steps = 32
    obs = torch.cat([main["b_obs"].view(steps, 4, -1) for main in rollouts])
    states = torch.cat([main["b_states"].view(steps, 4, 4, 64) for main in rollouts])
    begins = obs[..., -1] == 1
    assert set(obs[..., -1].flatten().tolist()) == {0, 1}
    assert 4 < begins.sum() < begins.numel()
    assert states[~begins].abs().amax((1, 2)).min() > 0
    for k, network in enumerate((agent.actor, agent.critic)):
        lstm = reference(network)
        for n in range(4):
            for t in range(96):
                first = 2 * k
                stored = states[t, n, first : first + 2]
                if begins[t, n]:  # the network takes zeros, whatever is stored
                    hidden = torch.zeros(2, 1, 64)
                else:
                    torch.testing.assert_close(stored, hidden[:, 0], rtol=1e-3, atol=1e-5)
                encoded = network.encoder(obs[t, n][None]).tanh()
                _, hidden = lstm(encoded, hidden.unbind())
                hidden = torch.stack(hidden)


@torch.no_grad()
@each
def test_next_values_know_what_happened(script, monkeypatch, tmp_path):
    """next_values[t] is the critic's after step t: the next step's value inside of an episode,
    and at its end the value of the last observation with the memory of that episode, though the
    next one has begun."""
    rollouts = helpers.spy_on_calls(monkeypatch, script)
    seen = []

    def note(envs, actions, result):
        obs, *_, infos = result
        obs = obs.copy()
        for n, last_obs in infos.get("final_obs", {}).items():
            obs[n] = last_obs
        seen.append(obs)

    sizes = dict(
        env_id=probe("Scripted", script),
        num_envs=1,
        num_steps=64,
        total_timesteps=128,  # the second rollout is normalised
        num_minibatches=1,
    )
    helpers.spy_on_steps(monkeypatch, script, note)
    agents = helpers.spy_on_agents(monkeypatch, script)
    batch = []

    def check(update, main, tensors):
        batch.append(main["b_obs"].clone())
        return update(*tensors)

    helpers.spy_on_updates(monkeypatch, check)
    with torch.enable_grad():
        helpers.train(script, tmp_path, learning_rate=1e-20, update_epochs=1, **sizes)
    assert len(rollouts) == 2
    for rollout in reversed(rollouts):
        _, values, next_values, terminations, dones = (x[:, 0] for x in rollout[:5])
        assert 0 < terminations.sum() < dones.sum()
        inner = ~dones[:-1]
        np.testing.assert_allclose(next_values[:-1][inner], values[1:][inner], rtol=1e-4, atol=1e-5)
    start = 0
    obs = batch[0]
    for end in np.flatnonzero(dones):
        last_obs = torch.as_tensor(np.float32(seen[end]))
        episode = torch.cat([obs[start : end + 1], last_obs])
        nothing = torch.zeros(1, 2, 64)
        value, _ = agents[0].critic(episode[:, None], nothing)
        np.testing.assert_allclose(next_values[end], value[-1, 0, 0], rtol=1e-4, atol=1e-5)
        start = end + 1


@torch.no_grad()
def test_act_normalises_and_remembers():
    """ppo_continuous_lstm's act() takes raw observations: it gives the mean for the normalised
    ones, and the next episode does not know of it. The flag is never normalised."""
    agent = ppo_continuous_lstm.Agent(3, 2)
    agent.obs_stats.mean[:2] = torch.tensor([5.0, -1.0])
    agent.obs_stats.var[:2] = torch.tensor([4.0, 0.25])
    nn.init.normal_(agent.actor.output.weight)
    raw = torch.randn(40, 3, dtype=torch.float64) + 5
    raw[:, -1] = (torch.arange(40) % 20 == 0).double()
    raw[20:] = raw[:20]
    plain = ppo_continuous.Agent(2, 2)
    stats = agent.obs_stats.state_dict()
    for name in ("mean", "var"):
        stats[name] = stats[name][:2]
    plain.obs_stats.load_state_dict(stats)
    numbers = plain.normalize(raw[:, :2].float())
    flag = raw[:, 2:].float()
    obs = torch.cat([numbers, flag], 1)
    torch.testing.assert_close(agent.normalize(raw.float()), obs, rtol=0, atol=0)
    dist, _ = agent(obs[:20, None], torch.zeros(1, 4, 64))
    actions = torch.cat([agent.act(row[None]) for row in raw])
    for episode in (actions[:20], actions[20:]):
        torch.testing.assert_close(episode, dist.mean[:, 0])
    assert (actions[1:20] - actions[:19]).abs().min() > 0


FLAGS = dict(
    num_envs=8,
    num_steps=32,
    num_minibatches=2,
    learning_rate=1e-2,
    gamma=0.9,
    clip_vloss=False,
    ent_coef=0.0,
    total_timesteps=6_016,
)
LSTM = dict(seq_len=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, without", [("ppo_lstm", "ppo"), ("ppo_continuous_lstm", "ppo_continuous")]
)
def test_recalls_what_was_seen_first(script, without, tmp_path):
    """The first observation says which action is right three steps later. Without memory half of
    the episodes fail."""
    flags = dict(env_id=probe("Recall", script), **FLAGS, eval_episodes=50)
    _, returns = helpers.train(script, tmp_path, **LSTM, **flags)
    assert set(returns) == {1.0}
    _, returns = helpers.train(without, tmp_path, **flags)
    assert 0.2 < np.mean(returns) < 0.8


# --- Atari


def test_games_that_are_cut(monkeypatch, tmp_path):
    """In rollouts with several games: stored values are those of each game from its beginning,
    and a truncated one bootstraps from its last observation, with its memory."""
    kinds = ppo_atari_lstm
    rollouts = helpers.spy_on_calls(monkeypatch, "ppo_atari_lstm")
    finals = {}
    batch = {}
    settings = kinds.game_settings

    def short(args):
        return settings(args) | dict(max_num_frames_per_episode=160)

    monkeypatch.setattr(kinds, "game_settings", short)

    steps = []

    def note(envs, actions, result):
        _, _, _, truncations, infos = result
        for n in np.flatnonzero(truncations):
            last_obs = infos["final_obs"][n].copy()
            finals[len(steps), n] = torch.from_numpy(last_obs)
        steps.append(1)

    def check(update, main, tensors):
        batch.setdefault("b_obs", main["b_obs"].clone())
        return update(*tensors)

    agents = helpers.spy_on_agents(monkeypatch, "ppo_atari_lstm")
    helpers.spy_on_steps(monkeypatch, "ppo_atari_lstm", note)
    helpers.spy_on_updates(monkeypatch, check)
    flags = dict(num_steps=96, total_timesteps=192, learning_rate=1e-20, update_epochs=1)
    helpers.train("ppo_atari_lstm", tmp_path, **flags)
    _, values, next_values, terminations, dones = rollouts[0][:5]
    frames = batch["b_obs"].view(96, 2, 85, 84)
    cuts = [at for at in finals if at[0] < 96]
    assert len(cuts) == 4  # two games in each environment
    for end, n in cuts:
        *_, begin = (t for t in range(end + 1) if frames[t, n, -1, 0])
        no_flag = torch.zeros(1, 84, dtype=torch.uint8)
        last = torch.cat([finals[end, n][0], no_flag])
        steps = slice(begin, end + 1)
        game = torch.cat([frames[steps, n], last[None]])
        with torch.no_grad():
            _, value, _ = agents[0](game[:, None], torch.zeros(1, 2, 128))
        expected = value[:, 0].numpy()
        np.testing.assert_allclose(values[steps, n], expected[:-1], rtol=1e-3, atol=1e-5)
        assert next_values[end, n] == pytest.approx(expected[-1], rel=1e-3, abs=1e-5)
        assert dones[end, n]
        assert not terminations[end, n]
