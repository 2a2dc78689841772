"""ppo_selfplay.py: what it learns by playing against itself, random openings."""

import numpy as np
import pytest
import torch

from cleanrl_lite import ppo_selfplay
from tests import helpers

NIM = "tests.probe_envs:ProbeNim-v0"
FLAGS = dict(env_id=NIM, num_envs=16, num_steps=32, learning_rate=5e-3, random_moves=2)


def position(left):
    """What the agent sees with this many left: one-hot, and the mask."""
    return torch.cat([torch.eye(11)[left], (torch.arange(1, 4) <= left).float()])[None]


@pytest.fixture(scope="module")
def nim(tmp_path_factory):
    """A trained agent and its run directory."""
    with pytest.MonkeyPatch.context() as patch:
        agents = helpers.spy_on_agents(patch, "ppo_selfplay")
        run_dir, returns = helpers.train(
            "ppo_selfplay",
            tmp_path_factory.mktemp("nim"),
            **FLAGS,
            total_timesteps=12_000,
            eval_episodes=20,
        )
    return agents[0], run_dir, returns


@pytest.mark.slow
def test_learns_the_perfect_play_of_nim(nim):
    """Whoever leaves a multiple of four wins: the right move, and the sign of the value of every
    position."""
    agent, _, returns = nim
    for left in range(1, 11):
        move = agent.act(position(left)).item() + 1
        value = agent(position(left))[1].item()
        assert move == left % 4 or left % 4 == 0, (left, move)
        assert value > 0.5 if left % 4 else value < -0.5, (left, value)
    assert np.mean(returns[::2]) == 1  # the games in which it begins, against random moves


@pytest.mark.slow
def test_the_opponent_of_evaluations_does_not_change_training(nim, tmp_path):
    _, run_dir, _ = nim
    runs = []
    for opponent in (helpers.module("ppo_selfplay").Args.opponent, str(run_dir)):
        folder = tmp_path / str(len(runs))
        runs += helpers.train("ppo_selfplay", folder, env_id=NIM, opponent=opponent)[:1]
    helpers.assert_same_state(*[helpers.load(run)["agent"] for run in runs])


def test_a_reward_is_the_opponents_loss():
    """From the view of one player: 1 after its own last move, -1 after the other's; it begins
    every second game."""

    def three(obs):
        return np.array([min(3, obs[:11].argmax()) - 1])

    env = ppo_selfplay.Against(
        ppo_selfplay.make_game(ppo_selfplay.Args(env_id=NIM, random_moves=0)), three
    )
    seen = []
    for _ in range(4):
        obs, _ = env.reset()
        left = [int(obs[:11].argmax())]
        total = 0.0
        over = False
        while not over:
            obs, reward, over, _, _ = env.step(np.array([1 if left[-1] == 2 else 0]))
            left = [*left, int(obs[:11].argmax())]
            total = total + reward
        seen.append((left, total))
    assert seen == [([10, 6, 2, 0], 1.0), ([7, 3, 0], -1.0)] * 2


def test_advantages_change_sides(monkeypatch, tmp_path):
    """Next values and what flows back of the next advantage are the other player's: negated, in
    each rollout."""
    calls = helpers.spy_on_calls(monkeypatch, "ppo_selfplay")
    helpers.train("ppo_selfplay", tmp_path, **FLAGS, total_timesteps=512)
    (rewards, values, next_values, terminations, dones, gamma, gae_lambda) = calls[0]
    going_on = ~dones[:-1]
    np.testing.assert_allclose(
        next_values[:-1][going_on], -values[1:][going_on], rtol=1e-4, atol=1e-6
    )
    advantages = ppo_selfplay.compute_gae(
        rewards, values, next_values, terminations, dones, gamma, gae_lambda
    )
    expected = np.zeros_like(values[0])
    for t in reversed(range(len(values))):  # by hand
        delta = rewards[t] + gamma * next_values[t] * ~terminations[t] - values[t]
        expected = delta - gamma * ppo_selfplay.Args().gae_lambda * ~dones[t] * expected
        np.testing.assert_allclose(advantages[t], expected, rtol=1e-4, atol=1e-5)


def test_random_openings():
    """Up to this many valid moves, each as likely as the others; a game that they end begins
    again."""
    env = ppo_selfplay.make_game(ppo_selfplay.Args(env_id=NIM, random_moves=6))
    np.random.seed(0)
    left = [int(env.reset()[0][:11].argmax()) for _ in range(2000)]
    assert set(left) == set(range(1, 11))
    assert 2000 / 7 < left.count(10) < 2000 / 7 * 1.6
    moves = [ppo_selfplay.random_move(position(2)[0].numpy(), (1, 3)).item() for _ in range(2000)]
    assert set(moves) == {0, 1}
    assert 900 < sum(moves) < 1100
