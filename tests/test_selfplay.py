"""ppo_selfplay.py: games against an opponent, who the opponent is, random openings, what it learns
by playing against itself. test_rollouts.py has what a rollout holds: next values and advantages
change sides."""

import numpy as np
import pytest
import torch

from cleanrl_lite import ppo_selfplay
from tests import helpers


def args_of(**flags):
    return helpers.small_args("ppo_selfplay", "unused", **flags)


def position(left):
    """What the agent sees with this many left: one-hot, and the mask."""
    return torch.cat([torch.eye(11)[left], (torch.arange(1, 4) <= left).float()])[None]


def left_in(obs):
    return int(obs[:11].argmax())


def test_a_reward_is_the_opponents_loss():
    """From the view of one player: 1 after its own last move, -1 after the other's; it begins
    every second game. An episode that the player ends has no answer."""

    def three(obs):
        return np.array([min(3, left_in(obs)) - 1])

    env = ppo_selfplay.Against(ppo_selfplay.make_game(args_of(random_moves=0)), three)
    seen = []
    for _ in range(4):
        obs, _ = env.reset()
        left = [left_in(obs)]
        total = 0.0
        over = False
        while not over:
            obs, reward, over, _, _ = env.step(np.array([1 if left[-1] == 2 else 0]))
            left.append(left_in(obs))
            total += reward
        seen.append((left, total))
    assert seen == [([10, 6, 2, 0], 1.0), ([7, 3, 0], -1.0)] * 2


def moves_of(opponent, left, runs=2000, **flags):
    """How often make_env's opponent takes one, two and three."""
    env = ppo_selfplay.make_env(args_of(opponent=opponent, **flags))
    obs = position(left)[0].numpy()
    return np.bincount([env.opponent(obs).item() for _ in range(runs)], minlength=3) / runs


def test_opponents(tmp_path):
    """Random ones play what is valid, builtin ones as the environment says, checkpoints draw from
    their policy; none of them draws from the random numbers of training."""
    args, agent = helpers.agent_of("ppo_selfplay")
    torch.nn.init.normal_(agent.actor[-1].weight)
    torch.save(dict(agent=agent.state_dict(), args=vars(args)), tmp_path / "checkpoint.pt")
    with torch.no_grad():
        dist, _ = agent(position(7))
        probs = dist.base_dist.probs[0, 0].numpy()
    assert probs.max() < 0.99
    draws = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    np.testing.assert_allclose(moves_of("random", 2), [0.5, 0.5, 0], atol=0.05)
    np.testing.assert_allclose(moves_of("random", 7), [1 / 3] * 3, atol=0.05)
    assert moves_of("builtin", 7).tolist() == [1, 0, 0]
    assert draws == (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    found = moves_of(str(tmp_path), 7)  # making an agent draws weights
    np.testing.assert_allclose(found, probs, atol=0.05)
    assert moves_of(str(tmp_path), 2)[2] == 0
    with pytest.raises(SystemExit, match="has no builtin opponent"):
        ppo_selfplay.make_env(args_of(opponent="builtin", env_id="CartPole-v1"))
    with pytest.raises(SystemExit, match="cannot load"):
        ppo_selfplay.make_env(args_of(opponent=str(tmp_path / "none")))


def test_evaluations_are_against_the_opponent(tmp_path):
    """The builtin one takes one each time; the policy takes what it is told."""
    args, agent = helpers.agent_of("ppo_selfplay", opponent="builtin")
    for param in agent.parameters():
        param.data.zero_()
    agent.actor[-1].bias.data[:] = torch.tensor([0.0, 0.0, 5.0])
    saved = dict(agent=agent.state_dict(), args=vars(args), global_step=0)
    torch.save(saved, tmp_path / "checkpoint.pt")
    args.evaluate, args.eval_episodes = str(tmp_path), 4
    record = helpers.main("ppo_selfplay", args)
    # 10 7 6 3 2, and two are not enough for three: it takes what is valid, one, and loses
    assert record["returns"] == [-1.0, 1.0] * 2


def test_random_openings():
    """Up to this many valid moves, each as likely as the others; a game that they end begins
    again."""
    env = ppo_selfplay.make_game(args_of(random_moves=6))
    np.random.seed(0)
    left = [left_in(env.reset()[0]) for _ in range(2000)]
    assert set(left) == set(range(1, 11))
    assert 2000 / 7 < left.count(10) < 2000 / 7 * 1.6
    moves = [ppo_selfplay.random_move(position(2)[0].numpy(), (1, 3)).item() for _ in range(2000)]
    assert set(moves) == {0, 1}
    assert 900 < sum(moves) < 1100
