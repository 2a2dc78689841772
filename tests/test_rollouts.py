"""What main() of PPO's scripts learns from: the same actions are given to the script's engine and
the same observations to its agent, outside of main(), and all that a rollout holds has to follow."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_lite import utils
from tests import helpers
from tests.helpers import PROBES
from tests.probe_envs import probe
from tests.test_microrts import March

FROZEN = dict(learning_rate=1e-20, num_minibatches=1, update_epochs=1)
CARTPOLE = dict(env_id="CartPole-v1", num_envs=3, max_episode_steps=25)


def game(name):
    """A game that is cut after 20 steps."""
    kwargs = json.dumps(dict(max_num_frames_per_episode=80))
    flags = dict(env_id=f"{name}NoFrameskip-v4", env_kwargs=kwargs)
    return dict(num_envs=2, num_steps=32, total_timesteps=128, **flags)


def drawn(name):
    kwargs = json.dumps(dict(env_id=name))
    return dict(env_id=helpers.DRAWN, env_kwargs=kwargs, num_envs=3, total_timesteps=96)


TEAM = dict(env_id=f"{PROBES}Team-v0", env_kwargs='{"length": 3}', num_envs=3, num_steps=8)
TEAM |= dict(total_timesteps=48)
MEMORY = dict(num_envs=3, num_steps=24, total_timesteps=216)
PLAIN = dict(num_envs=3, num_steps=40, total_timesteps=360)
CASES = dict(
    plain=("ppo", dict(env_id=probe("Logged", "ppo"), **PLAIN)),
    # its observations differ in digits that float32 does not have; statistics are of training alone
    continuous=("ppo_continuous", dict(env_id=f"{PROBES}Steady-v0", eval_every=120, **PLAIN)),
    atari=("ppo_atari", game("Carnival")),  # its rewards are larger than 1
    atari_lstm=("ppo_atari_lstm", game("Breakout")),
    godot=("ppo_godot", dict(env_kwargs='{"actions": "mixed"}')),
    image=("ppo_image", {**drawn("CartPole-v1"), "max_episode_steps": 18, "total_timesteps": 192}),
    image_box=("ppo_image", drawn(f"{PROBES}LoggedBox-v0")),
    lstm=("ppo_lstm", dict(env_id=probe("Logged", "ppo_lstm"), **MEMORY)),
    lstm_box=("ppo_continuous_lstm", dict(env_id=f"{PROBES}LoggedBox-v0", **MEMORY)),
    masked=("ppo_masked", CARTPOLE),
    masked_parts=("ppo_masked", dict(env_id=f"{PROBES}Masked-v0")),
    hybrid=("ppo_hybrid", {}),
    central=("ppo_multiagent", TEAM),
    local=("ppo_multiagent", {**TEAM, "central_critic": False}),
    selfplay=("ppo_selfplay", dict(random_moves=0, num_envs=3, num_steps=32, total_timesteps=192)),
    microrts=(
        "ppo_microrts",
        dict(max_episode_steps=3, reward_weights="2,0.5,9,9,9,9", total_timesteps=64),
    ),
)
NEVER_CUT = "masked_parts", "hybrid", "selfplay", "godot"
NEVER_TERMINATED = "central", "local", "microrts", "atari"


def rollouts(script, monkeypatch, runs_dir, **flags):
    """Of a run that learns nothing: its Args, its directory, and of each rollout the agent and the
    batch, whose parts are (num_steps, num_envs, ...), in the order of time."""
    with monkeypatch.context() as patch:
        patch.setattr(np.random, "permutation", lambda x: np.arange(x) if np.isscalar(x) else x)
        losses = helpers.spy_on_calls(patch, script, "ppo_loss")
        run_dir, _ = helpers.train(script, runs_dir, **FROZEN | flags)
    args = losses[0][0]
    found = []
    for _, agent, batch in losses:
        parts = []
        for part in batch:
            if hasattr(args, "seq_len"):  # (seq_len, sequences, ...): each env has its sequences
                part = part.unflatten(1, (-1, args.num_envs)).transpose(0, 1).flatten(0, 1)
            else:
                part = part.unflatten(0, (args.num_steps, args.num_envs))
            parts.append(part)
        found.append((agent, type(batch)(*parts)))
    return args, run_dir, found


def play(script, args, actions):
    """What the script's engine answers: arrays (steps, num_envs, ...), and the infos."""
    module = helpers.module(script)
    if hasattr(module, "Games"):
        envs = utils.Envs(args, module.Games(args))
    else:
        envs = utils.make_envs(args, getattr(module, "make_game", module.make_env))
    steps = []
    for action in actions:
        obs = envs.obs.copy()
        steps.append((obs, *envs.step(action)))
    envs.close()
    *arrays, infos = zip(*steps, strict=True)
    return *map(np.stack, arrays), infos


# --- values and distributions of a rollout
class Memoryless:
    """state is what a rollout's batch has to hold before each step: nothing."""

    def __init__(self, script, num_envs):
        pass

    def __call__(self, agent, obs, next_obs, begins):
        """The policy's distribution for obs (steps, num_envs, ...), and the values of both."""
        dist, values = agent(obs.flatten(0, 1))
        _, after = agent(next_obs.flatten(0, 1))
        return dist, values.reshape(*obs.shape[:2], -1), after.reshape(*obs.shape[:2], -1), None


def torchs(network):
    """torch's LSTM with the weights of ppo_lstm's; its gates are in the order i, f, g, o."""
    lstm = nn.LSTMCell(64, 64)
    order = torch.arange(4 * 64).view(4, 64)[[0, 1, 3, 2]].flatten()
    for ours, theirs in (network.inputs, "ih"), (network.recurrent, "hh"):
        getattr(lstm, f"weight_{theirs}").copy_(ours.weight[order])
        getattr(lstm, f"bias_{theirs}").copy_(ours.bias[order])
    return lstm


class Remembering(Memoryless):
    """An agent with LSTMs: what they know of each environment's episode so far, of all rollouts."""

    def __init__(self, script, num_envs):
        self.atari = script == "ppo_atari_lstm"
        shape = (1, 2, num_envs, 128) if self.atari else (2, 2, num_envs, 64)
        self.state = torch.zeros(shape)  # of each LSTM: h and c

    def step(self, agent, obs):
        """The outputs of each LSTM and its state after one step; self.state stays."""
        if self.atari:
            features = agent.network(obs[:, None, :-1] / 255.0)
            h, c = agent.lstm(features, self.state[0].unbind())
            return agent.actor(h), agent.critic(h), torch.stack([h, c])[None]
        obs = agent.normalize(obs) if hasattr(agent, "normalize") else obs
        outputs, states = [], []
        for network, state in zip((agent.actor, agent.critic), self.state, strict=True):
            h, c = torchs(network)(network.encoder(obs).tanh(), state.unbind())
            outputs.append(network.output(h))
            states.append(torch.stack([h, c]))
        return *outputs, torch.stack(states)

    def __call__(self, agent, obs, next_obs, begins):
        results = []
        for t in range(len(obs)):
            self.state = self.state * ~torch.from_numpy(begins[t])[:, None]
            state = self.state.permute(2, 0, 1, 3).flatten(1, 2)  # as a batch has it
            outputs, values, self.state = self.step(agent, obs[t])
            _, after, _ = self.step(agent, next_obs[t])
            results.append((outputs, values, after, state))
        outputs, values, after, states = map(torch.stack, zip(*results, strict=True))
        if hasattr(agent, "actor_logstd"):
            normal = torch.distributions.Normal(outputs.flatten(0, 1), agent.actor_logstd.exp())
            dist = torch.distributions.Independent(normal, 1)
        else:
            dist = torch.distributions.Categorical(logits=outputs.flatten(0, 1))
        return dist, values, after, states


def scaled(rewards, dones, gamma):
    """Rewards divided by the deviation of all discounted returns so far."""
    running = np.zeros(rewards.shape[1])
    returns = []
    for reward, over in zip(rewards, dones, strict=True):
        running = reward + gamma * running
        returns.append(running)
        running = running * ~over
    return (rewards / np.sqrt(np.var(returns) + 1e-8)).clip(-10, 10)


@pytest.fixture
def march(monkeypatch):
    monkeypatch.setattr(helpers.module("ppo_microrts"), "MicroRTS", March)


@pytest.mark.parametrize("case", CASES)
def test_a_rollout_holds_what_was_played(case, march, monkeypatch, tmp_path):
    """Observations, log-probabilities, values, memories; rewards as they are learned from;
    advantages that bootstrap from the true last observation of what was cut, and nothing else
    beyond an episode's end. Each episode is logged at the step at which it ended."""
    script, flags = CASES[case]
    if script == "ppo_godot" and not helpers.GODOT:
        pytest.skip("godot-rl is not installed")
    args, run_dir, found = rollouts(script, monkeypatch, tmp_path, **flags)
    actions = torch.cat([batch.actions for _, batch in found]).numpy()
    obs, next_obs, rewards, terminations, truncations, infos = play(script, args, actions)
    dones = terminations | truncations
    assert truncations.any() == (case not in NEVER_CUT)
    assert terminations.any() == (case not in NEVER_TERMINATED)
    ended = np.array([["episode" in info for info in row] for row in infos])
    begins = np.concatenate([ended[:1] | True, ended[:-1]])

    if case == "continuous":
        assert np.abs(actions).max() > 1  # the environment's are clipped
    if "Carnival" in args.env_id:
        assert rewards.max() > 1
    if script in helpers.ATARI_SCRIPTS:
        rewards = np.sign(rewards)
    if script == "ppo_microrts":
        weights = [2, 0.5, 9, 9, 9, 9]
        rewards = np.array([[info["rewards"] @ weights for info in row] for row in infos])
        assert {*rewards.flat} >= {0.5}
    sign = -1 if script == "ppo_selfplay" else 1  # what follows is the other player's
    remember = Remembering if script in helpers.LSTM_SCRIPTS else Memoryless
    remember = remember(script, args.num_envs)
    for k, (agent, batch) in enumerate(found):
        so_far = (k + 1) * args.num_steps
        rows = slice(so_far - args.num_steps, so_far)
        with torch.no_grad():
            seen = torch.from_numpy(obs[rows]), torch.from_numpy(next_obs[rows])
            dist, values, after, states = remember(agent, *seen, begins[rows])
            logprobs = dist.log_prob(batch.actions.flatten(0, 1))
        assert torch.equal(batch.obs, seen[0])
        close = dict(rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(batch.logprobs, logprobs.view_as(batch.logprobs), **close)
        torch.testing.assert_close(batch.values, values.view_as(batch.values), **close)
        if states is not None:
            inner = ~begins[rows]  # at a beginning the network takes zeros, whatever is stored
            torch.testing.assert_close(batch.states[inner], states[inner], **close)
        if k and hasattr(agent, "obs_stats"):
            past = obs[: rows.start].reshape(-1, obs.shape[-1]).astype(float)
            numbers = slice(None, -1 if script in helpers.LSTM_SCRIPTS else None)
            np.testing.assert_allclose(agent.obs_stats.mean[numbers], past.mean(0)[numbers])
            np.testing.assert_allclose(agent.obs_stats.var[numbers], past.var(0)[numbers])

        gains = rewards[rows]
        if hasattr(agent, "return_stats"):
            gains = scaled(rewards[:so_far], dones[:so_far], args.gamma)[rows]
        values, after = values.double().numpy(), after.double().numpy()
        advantage, advantages = 0.0, []
        for t in reversed(range(args.num_steps)):
            bootstraps = args.gamma * sign * ~terminations[rows][t, :, None]
            delta = gains[t, :, None] + bootstraps * after[t] - values[t]
            flows = args.gamma * args.gae_lambda * sign * ~dones[rows][t, :, None]
            advantage = delta + flows * advantage
            advantages.append(advantage)
        advantages = np.array(advantages[::-1]).reshape(batch.advantages.shape)
        np.testing.assert_allclose(batch.advantages, advantages, **close)
        returns = advantages + values.reshape(advantages.shape)
        np.testing.assert_allclose(batch.returns, returns, **close)

    played = [
        (1 + n + t * args.num_envs, pytest.approx(infos[t][n]["episode"][key], rel=1e-5))
        for key in "rl"
        for t, n in np.argwhere(ended)
    ]
    logged = helpers.scalars(run_dir)
    tags = "charts/episodic_return", "charts/episodic_length"
    assert [point for tag in tags for point in logged[tag]] == played
    assert len(played) > 4
