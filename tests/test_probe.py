"""Training on environments whose right values and actions are known (tests/probe_envs.py)."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from tests import helpers
from tests.probe_envs import Corner, probe

PPO = dict(
    num_envs=4,
    num_steps=32,
    num_minibatches=2,
    update_epochs=4,
    total_timesteps=6_016,
    learning_rate=1e-2,
    gae_lambda=0.95,
    clip_vloss=False,
    ent_coef=0.0,
    end_e=0.5,
)
REPLAY = dict(
    num_envs=2,
    buffer_size=2_000,
    learning_starts=200,
    train_frequency=2,
    batch_size=32,
    total_timesteps=1_500,
    save_every=0,
)
DQN = dict(**REPLAY, target_network_frequency=40, start_e=1.0, end_e=0.5, learning_rate=2e-3)
DDPG = dict(**REPLAY, tau=0.1, exploration_noise=0.3, learning_rate=3e-3)
SUPPORT = dict(v_min=-20.0, v_max=20.0, n_atoms=81)
SAC = dict(**REPLAY, tau=0.1, autotune=False, alpha=0.01, policy_lr=3e-3, q_lr=3e-3)
FAST = dict(
    dqn=DQN,
    c51=dict(**DQN, **SUPPORT),
    rainbow=dict(**DQN, **SUPPORT),
    ddpg=DDPG,
    td3=dict(**DDPG, policy_noise=0.05, noise_clip=0.1),
    fast_td3=dict(**DDPG, **SUPPORT, policy_noise=0.05, noise_clip=0.1, gradient_steps=1),
    sac=SAC,
    tqc=dict(**SAC, n_critics=2, n_quantiles=5, top_quantiles_to_drop=1),
    crossq={**SAC, "renorm_warmup": 300, "train_frequency": 1, "policy_frequency": 1}
    | dict(policy_lr=3e-4, batch_size=64),
    sac_discrete=dict(**SAC, target_network_frequency=2),
)


ONE_STEP = dict(total_timesteps=1_000)  # of an episode: nothing has to travel backwards


class SmallMLP(nn.Sequential):
    """What the scripts have, but narrower, and half as slow: these tests are about what is
    learned."""

    def __init__(self, inputs, outputs, bf16):
        layers = nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
        super().__init__(*layers, nn.Linear(64, outputs))


def trained(script, env_id, tmp_path, ppo=(), replay=()):
    """The agent after a short run, with what a test overrides for PPO's scripts and for those
    with a replay buffer."""
    flags = (
        {**PPO, **dict(ppo)}
        if helpers.family(script) == "ppo"
        else {**FAST[script], **dict(replay)}
    )
    if script in ("vpg", "a2c", "a2c_continuous"):  # one update a rollout, not eight
        flags |= dict(num_steps=8, total_timesteps=3 * flags["total_timesteps"], learning_rate=3e-3)
    if script == "a2c_continuous":  # two of eight seeds leave the bounds, where no gradient is
        flags |= dict(seed=5)
    if script == "ppo_simple_continuous":  # neither gradients nor advantages have a scale
        flags |= dict(learning_rate=3e-3, total_timesteps=2 * flags["total_timesteps"])
    flags = {
        name: value for name, value in flags.items() if hasattr(helpers.module(script).Args, name)
    }
    with pytest.MonkeyPatch.context() as patch:
        if script == "crossq":
            for units in ("ACTOR_UNITS", "CRITIC_UNITS"):
                patch.setattr(helpers.module(script), units, 64)
        elif helpers.family(script) == "ddpg":
            patch.setattr(helpers.module(script), "MLP", SmallMLP)
        agents = helpers.spy_on_agents(patch, script)
        helpers.train(script, tmp_path, env_id=env_id, gamma=0.9, **flags)
    return agents[0]


def batch(agent, *observations):
    """Raw observations as the agent takes them; for ppo_masked with a mask behind them, in which
    all is valid."""
    obs = torch.tensor(np.array(observations), dtype=torch.float32)
    masked = hasattr(agent, "obs_dim")
    return torch.cat([obs, torch.ones(len(obs), math.prod(agent.shape))], 1) if masked else obs


@torch.no_grad()
def values(agent, *observations):
    """ppo's and dqn's."""
    obs = batch(agent, *observations)
    return (agent(obs)[1] if hasattr(agent, "critic") else agent(obs).amax(1)).numpy()


# the others are for the second tier: what they learn from is tested by direct calls
@pytest.mark.parametrize("script", helpers.others_slow(helpers.MEMORYLESS_SCRIPTS, ["ppo", "ddpg"]))
def test_right_action(script, tmp_path):
    agent = trained(script, probe("RightAction", script), tmp_path, replay=ONE_STEP)
    obs = batch(agent, [-1.0], [1.0])
    actions = agent.act(obs).detach().squeeze().numpy()
    if script in helpers.CONTINUOUS_SCRIPTS:
        assert actions == pytest.approx([-0.5, 0.5], abs=0.15)
        return
    assert actions.tolist() == [0, 1]
    if helpers.family(script) == "ppo" and script not in helpers.Q_SCRIPTS:
        dist = agent(obs)[0]
        assert getattr(dist, "base_dist", dist).probs.max(-1).values.min() > 0.9


@pytest.mark.parametrize("script", helpers.others_slow(["ppo", "dqn"], ["ppo"]))
@pytest.mark.parametrize("end", helpers.others_slow(["Truncated", "Terminated"], ["Truncated"]))
def test_only_a_termination_ends_the_return(end, script, tmp_path):
    """The value depends on the observation, is discounted, and goes on behind a time limit."""
    expected, near = dict(Truncated=([10, -1], 1), Terminated=([1.82, -8.36], 0.4))[end]
    agent = trained(script, probe(end, script), tmp_path, dict(total_timesteps=10_240))
    assert values(agent, [1.0], [0.0]) == pytest.approx(expected, abs=near)


@pytest.mark.parametrize("script", helpers.others_slow(helpers.CONTINUOUS_SCRIPTS, ["sac"]))
def test_action_at_the_edge_of_uneven_bounds(script, tmp_path):
    ppo = dict(total_timesteps=16_000, learning_rate=2e-2)
    if script in helpers.LSTM_SCRIPTS:  # they learn more slowly
        ppo = dict(total_timesteps=24_000, learning_rate=5e-2)
    # With half of the steps, one of four seeds is not there on every processor.
    replay = dict(total_timesteps=3_000) if script == "crossq" else {}
    agent = trained(script, "tests.probe_envs:ProbeCorner-v0", tmp_path, ppo, replay)
    obs = torch.zeros(1, 2 if script in helpers.LSTM_SCRIPTS else 1)  # a flag behind it
    action = agent.act(obs)[0].detach().numpy().clip(Corner.low, Corner.high)
    assert (np.abs(action - Corner.target) / (Corner.high - Corner.low)).max() < 0.1


@pytest.mark.parametrize("script", helpers.others_slow(["ppo", "dqn"], ["ppo"]))
def test_structured_observations(script, tmp_path):
    """They are flattened; the value is the number."""
    env_id = probe("DictObs", script)
    agent = trained(script, env_id, tmp_path, replay=ONE_STEP)
    space = gym.make(env_id).observation_space
    raw = [dict(mode=number, position=np.float32([0.3, -0.5])) for number in range(3)]
    flat = [gym.spaces.flatten(space, obs) for obs in raw]
    assert values(agent, *flat) == pytest.approx([0, 1, 2], abs=0.2)
