"""Training on environments whose right values and actions are known (tests/probe_envs.py).

What each script learns from is tested by direct calls; that it learns, on one of each kind.
"""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_lite import utils
from tests import helpers
from tests.probe_envs import Signs, probe

PPO = dict(
    num_envs=4,
    num_steps=32,
    num_minibatches=2,
    update_epochs=4,
    total_timesteps=6_016,
    learning_rate=1e-2,
    clip_vloss=False,
    ent_coef=0.0,
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
DDPG = dict(**REPLAY, tau=0.1, exploration_noise=0.3, learning_rate=3e-3)
FLAGS = dict(
    ppo=PPO,
    ppo_continuous=PPO,
    dqn=dict(**REPLAY, target_network_frequency=40, start_e=1.0, end_e=0.5, learning_rate=2e-3),
    ddpg=DDPG,
    td3=dict(**DDPG, policy_noise=0.05, noise_clip=0.1),
    sac=dict(**REPLAY, tau=0.1, autotune=False, alpha=0.01, policy_lr=3e-3, q_lr=3e-3),
)
ONE_STEP = dict(total_timesteps=1_000)  # of an episode: nothing has to travel backwards


class SmallMLP(nn.Sequential):
    """What the scripts have, but narrower, and half as slow: these tests are about what is
    learned."""

    def __init__(self, inputs, outputs, bf16):
        layers = nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
        super().__init__(*layers, nn.Linear(64, outputs))


def trained(script, env_id, tmp_path, **flags):
    """The agent after a short run."""
    with pytest.MonkeyPatch.context() as patch:
        if helpers.family(script) == "ddpg":
            patch.setattr(helpers.module(script), "MLP", SmallMLP)
        agents = helpers.spy_on_agents(patch, script)
        flags = {**FLAGS[script], **flags}
        helpers.train(script, tmp_path, env_id=env_id, gamma=0.9, **flags)
    return agents[0]


@torch.no_grad()
def values(agent, *observations):
    """ppo's and dqn's."""
    obs = torch.tensor(np.array(observations), dtype=torch.float32)
    return (agent(obs)[1] if hasattr(agent, "critic") else agent(obs).amax(1)).numpy()


@pytest.mark.parametrize("script", helpers.others_slow([*FLAGS], ["ppo", "ddpg"]))
def test_right_action(script, tmp_path):
    flags = {} if "ppo" in script else ONE_STEP
    agent = trained(script, probe("RightAction", script), tmp_path, **flags)
    obs = torch.tensor([[-1.0], [1.0]])
    actions = agent.act(obs).detach().squeeze().numpy()
    if script in helpers.CONTINUOUS_SCRIPTS:
        assert actions == pytest.approx([-0.5, 0.5], abs=0.15)
    else:
        assert actions.tolist() == [0, 1]
    if script == "ppo":
        assert agent(obs)[0].probs.max(-1).values.min() > 0.9


@pytest.mark.parametrize("script", helpers.others_slow(["ppo", "dqn"], ["ppo"]))
def test_truncation_bootstraps(script, tmp_path):
    """The value depends on the observation, is discounted, and goes on behind a time limit."""
    flags = dict(total_timesteps=10_240) if script == "ppo" else {}
    agent = trained(script, probe("Truncated", script), tmp_path, **flags)
    assert values(agent, [1.0], [0.0]) == pytest.approx([10, -1], abs=1)


# --- frames
FRAMES = dict(
    num_envs=4,
    buffer_size=1_000,
    learning_starts=200,
    train_frequency=4,
    batch_size=8,
    target_network_frequency=40,
    total_timesteps=1_200,
)
ATOMS = dict(n_atoms=31, v_min=0.0, v_max=6.0, learning_rate=1e-3)
RATES = dict(policy_lr=1e-3, q_lr=1e-3, autotune=False, alpha=0.2)
GAMES = dict(
    c51_atari=dict(**FRAMES, **ATOMS, end_e=0.1, exploration_fraction=0.3),
    rainbow_atari={**FRAMES, **ATOMS, "total_timesteps": 800},  # its updates are slow
    sac_atari=dict(**FRAMES, **RATES),
    pqn_atari=dict(
        num_envs=8,
        num_steps=32,
        num_minibatches=4,
        update_epochs=2,
        total_timesteps=6_144,
        learning_rate=1e-3,
        exploration_fraction=0.5,
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("script", GAMES)
def test_learns_from_frames(script, monkeypatch, tmp_path):
    """With its own network and replay buffer or rollouts, on frames whose values are known: see
    Signs. The older frames of a stack do not matter."""

    def make_env(args, render_mode=None):
        return gym.wrappers.FrameStackObservation(Signs(), 4, padding_type="zero")

    module = helpers.module(script)
    monkeypatch.setattr(module, "make_env", make_env)
    monkeypatch.setattr(module, "Games", lambda args: utils.make_envs(args, make_env).env)
    agents = helpers.spy_on_agents(monkeypatch, script)
    helpers.train(script, tmp_path, env_kwargs="{}", gamma=0.8, threads=1, **GAMES[script])
    rng = np.random.default_rng(0)
    newest = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], 8, axis=0)  # sign, was right
    stacks = [[Signs.draw(*x) for x in (*rng.integers(2, size=(3, 2)), last)] for last in newest]
    obs = torch.tensor(np.array(stacks))
    values = getattr(agents[0], "qf1", agents[0])(obs).detach().numpy()
    sign, was_right = newest.T
    assert agents[0].act(obs).tolist() == sign.tolist()
    assert values[range(32), sign] == pytest.approx(was_right + 4, abs=1)
