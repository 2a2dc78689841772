"""Games, the C++ environments of training, against gymnasium's, those of evaluation and video.

The text of game_settings, Games, PressFire and make_env is the same in every Atari script
(test_consistency).
"""

import copy

import ale_py
import gymnasium as gym
import numpy as np
import pytest
import torch

from cleanrl_lite import ppo_atari
from tests import helpers

gym.register_envs(ale_py)


def game_settings(env_id):
    return ppo_atari.game_settings(ppo_atari.Args(env_id=env_id))


def games(num_envs=1, env_id="BreakoutNoFrameskip-v4", **settings):
    return ppo_atari.Games(num_envs, **{**game_settings(env_id), "num_threads": 1, **settings})


def bare_games(monkeypatch, **settings):
    """Games without no-ops and without FIRE at the start, the two things that are random or
    wrapped differently."""
    original = ale_py.vector_env.AtariVectorEnv

    def make(**kwargs):
        return original(**{**kwargs, "noop_max": 0, "use_fire_reset": False})

    with monkeypatch.context() as patch:
        patch.setattr(ale_py.vector_env, "AtariVectorEnv", make)
        return games(**settings)


def bare_evaluation_env(monkeypatch, env_id):
    original = gym.wrappers.AtariPreprocessing
    with monkeypatch.context() as patch:
        patch.setattr(
            gym.wrappers, "AtariPreprocessing", lambda env, noop_max: original(env, noop_max=0)
        )
        patch.setattr(ppo_atari, "PressFire", LostLifeFire)
        return ppo_atari.make_env(helpers.small_args("ppo_atari", "unused", env_id=env_id))


class LostLifeFire(ppo_atari.PressFire):
    """Without the press at the start."""

    def reset(self, **kwargs):
        obs, info = gym.Wrapper.reset(self, **kwargs)
        self.lives = info["lives"]
        self.lost_life = False
        return obs, info


@pytest.mark.parametrize(
    "game",
    ["Breakout", *(pytest.param(g, marks=pytest.mark.slow) for g in ("SpaceInvaders", "Freeway"))],
)
def test_same_observations(game, monkeypatch):
    """Training's and evaluation's environment: the same observations, rewards and lost lives for
    the same actions."""
    env_id = f"{game}NoFrameskip-v4"
    trains = bare_games(monkeypatch, env_id=env_id)
    evaluates = bare_evaluation_env(monkeypatch, env_id)
    assert trains.single_action_space == evaluates.action_space
    assert trains.single_observation_space.shape == evaluates.observation_space.shape == (4, 84, 84)
    assert evaluates.observation_space.dtype == np.uint8
    obs, _ = trains.reset(seed=[1])
    expected, info = evaluates.reset(seed=1)
    lives = info["lives"]
    rewards = 0.0
    lost = 0
    rng = np.random.default_rng(1)
    for t in range(400):
        difference = np.abs(obs[0].astype(int) - np.asarray(expected).astype(int))
        assert difference.max() == 0, (
            f"step {t}: {(difference > 0).mean():.1%} of the pixels differ, by {difference.max()}"
        )
        action = rng.integers(trains.single_action_space.n)
        obs, reward, terminated, truncated, infos = trains.step(np.array([action]))
        expected, expected_reward, over, _, info = evaluates.step(action)
        assert (reward[0] == expected_reward and infos["lives"][0] == info["lives"]) or over
        assert terminated[0] == (over or info["lives"] < lives)
        assert not truncated[0]
        lives = info["lives"]
        rewards = rewards + expected_reward
        lost = lost + terminated[0]
        if over:
            break
    assert t > 100
    assert game not in ("Breakout", "SpaceInvaders") or lost > 0


def test_a_lost_life_ends_the_episode_but_not_the_game():
    """Breakout has five lives: five terminations, one game in infos["episodes"], with all of its
    steps and rewards."""
    envs = games(2)
    envs.reset(seed=[1, 2])
    rng = np.random.default_rng(0)
    rewards = []
    terminations = []
    for _ in range(4000):
        _, reward, terminated, truncated, infos = envs.step(rng.integers(4, size=2))
        rewards.append(reward.copy())
        terminations.append(terminated.copy())
        assert not truncated.any()
        if infos["_final_info"][0]:
            break
        assert infos["lives"][0] == 5 - sum(t[0] for t in terminations)
    assert sum(t[0] for t in terminations) == 5
    assert terminations[-1][0]
    assert infos["episodes"][0] == (0, sum(r[0] for r in rewards), len(rewards))
    assert infos["lives"][0] == 5  # a new game has begun
    _, _, _, _, infos = envs.step(np.zeros(2, dtype=np.int64))
    assert envs.lengths[0] == 1


def shorten(monkeypatch, script, frames):
    """Games of at most so many frames."""
    settings = helpers.module(script).game_settings

    def spy(args):
        return settings(args) | dict(max_num_frames_per_episode=frames)

    monkeypatch.setattr(helpers.module(script), "game_settings", spy)


def rollouts_of(monkeypatch, tmp_path, note, **flags):
    """What compute_gae is given in a run of ppo_atari; note(envs, actions, result) is called
    after each step."""
    rollouts = helpers.spy_on_calls(monkeypatch, "ppo_atari")
    helpers.spy_on_steps(monkeypatch, "ppo_atari", note)
    helpers.train(
        "ppo_atari", tmp_path, num_steps=64, total_timesteps=128, update_epochs=1, **flags
    )
    return rollouts


REPLAY_SCRIPTS = [name for name in helpers.ATARI_SCRIPTS if name in helpers.OFF_POLICY_SCRIPTS]


@pytest.mark.parametrize("script", REPLAY_SCRIPTS)
def test_stored_rewards_are_clipped(script, monkeypatch, tmp_path):
    seen = []
    helpers.spy_on_steps(monkeypatch, script, lambda envs, actions, result: seen.append(result[1]))
    flags = dict(env_id="CarnivalNoFrameskip-v4", learning_starts=190, buffer_size=400)
    run_dir, _ = helpers.train(script, tmp_path, **flags)
    rewards = helpers.load(run_dir)["replay"]["rows"][:, 1].numpy()
    assert np.max(seen) > 1
    assert sorted({*rewards}) == [0, 1]


@pytest.mark.parametrize("script", helpers.others_slow(["ppo_atari", "dqn_atari"], ["dqn_atari"]))
def test_whole_games_are_logged(script, monkeypatch, tmp_path):
    """charts/episodic_return is the sum of the raw rewards of a whole game, at the step at which
    it ended."""
    seen = []
    expected = []
    running = np.zeros(2)

    def note(envs, actions, result):
        return seen.append(copy.deepcopy((result[1], result[4])))

    helpers.spy_on_steps(monkeypatch, script, note)
    shorten(monkeypatch, script, frames=120)
    sizes = helpers.rollout_only(script, num_steps=64, update_epochs=1)
    run_dir, _ = helpers.train(script, tmp_path, total_timesteps=256, **sizes)
    for t, (rewards, infos) in enumerate(seen, 1):
        running += rewards
        over = np.flatnonzero(infos.get("_final_info", np.zeros(2)))
        expected += [(2 * t, running[n]) for n in over]
        running[over] = 0
    assert helpers.scalars(run_dir)["charts/episodic_return"] == expected
    assert len(expected) >= 4


def test_fire_after_a_lost_life(monkeypatch):
    """The action after a lost life is FIRE, whatever the policy wants."""
    envs = games(2)
    sent = []
    monkeypatch.setattr(
        envs.env, "step", lambda actions: (sent.append(np.array(actions)), step(actions))[1]
    )
    step = type(envs.env).step.__get__(envs.env)
    envs.reset(seed=[1, 2])
    lost = np.zeros(2, dtype=bool)
    forced = 0
    for _ in range(1500):
        _, _, terminated, _, infos = envs.step(np.full(2, 3))
        for n in range(2):
            assert sent[-1][n] == (1 if lost[n] else 3)
        forced += lost.sum()
        lost = terminated & ~infos.get("_final_info", np.zeros(2, dtype=bool))
    assert forced > 2
    assert envs.env.ale.get_action_set()[1] == ale_py.Action.FIRE


def test_final_observation_of_a_truncated_game(monkeypatch):
    """final_obs is what a game without the limit shows after the same step; obs is the next game's
    first one.

    ale-py pools the very last frame with one that is too old by one step: an object that moved
    leaves a few pixels.
    """
    short, long = (bare_games(monkeypatch, max_num_frames_per_episode=n) for n in (200, 100_000))
    for envs in (short, long):
        envs.reset(seed=[1])
    for t in range(1, 51):
        actions = np.array([2 + t // 5 % 2])
        obs, _, _, truncated, infos = short.step(actions)
        expected, *_ = long.step(actions)
        assert truncated[0] == (t == 50)
    np.testing.assert_array_equal(infos["final_obs"][0, :3], expected[0, :3])
    assert (
        (infos["final_obs"][0, 3] != expected[0, 3]).mean()
        < 0.005
        < (obs[0, 2] != expected[0, 2]).mean()
    )
    assert infos["_final_info"][0]
    assert infos["episodes"][0][2] == 50
    assert (obs[0] != expected[0]).any()
    assert (obs[0, :3] == 0).all()


def test_truncated_games_bootstrap_from_their_last_observation(monkeypatch, tmp_path):
    """next_values at a truncation is the value of final_obs, elsewhere the value of the next
    stored observation."""
    agents = helpers.spy_on_agents(monkeypatch, "ppo_atari")
    finals = {}
    last = []
    steps = []

    def value(obs):  # by the networks that play the first rollout
        with torch.no_grad():
            return agents[0](torch.from_numpy(obs))[1].numpy()

    def note(envs, actions, result):
        obs, _, _, truncations, infos = result
        if len(steps) < 64:
            finals.update(
                {(len(steps), n): value(infos["final_obs"])[n] for n in np.flatnonzero(truncations)}
            )
            last[:] = value(obs)
        steps.append(1)

    shorten(monkeypatch, "ppo_atari", frames=160)
    _, values, next_values, terminations, dones = rollouts_of(monkeypatch, tmp_path, note)[0][:5]
    assert len(finals) >= 2
    assert not dones[-1].all()
    for (t, n), expected in finals.items():
        assert dones[t, n]
        assert not terminations[t, n]
        assert next_values[t, n] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    after = np.concatenate([values[1:], [last]])
    np.testing.assert_allclose(next_values[~dones], after[~dones], rtol=1e-4, atol=1e-5)
