"""Games, in C++, against gymnasium's environments, those of evaluation. All scripts have its text."""

import json
from types import SimpleNamespace

import ale_py
import gymnasium as gym
import numpy as np
import pytest

from cleanrl_lite import ppo_atari, utils
from tests import helpers

gym.register_envs(ale_py)
REPLAY_SCRIPTS = [name for name in helpers.ATARI_SCRIPTS if name in helpers.OFF_POLICY_SCRIPTS]


def args_of(game="Breakout", num_envs=1, **settings):
    flags = dict(num_envs=num_envs, env_kwargs=json.dumps(settings))
    return helpers.small_args("ppo_atari", "unused", env_id=f"{game}NoFrameskip-v4", **flags)


def games(*args, **settings):
    args = args_of(*args, **settings)
    return utils.Envs(args, ppo_atari.Games(args))


def bare(monkeypatch, make, *args):
    """make() without no-ops and without FIRE at the start, the two things that are random or
    wrapped differently."""
    vector, wrapper = ale_py.vector_env.AtariVectorEnv, gym.wrappers.AtariPreprocessing

    def without(**kwargs):
        return vector(**{**kwargs, "noop_max": 0, "use_fire_reset": False})

    class LostLifeFire(ppo_atari.PressFire):
        def reset(self, **kwargs):
            obs, info = gym.Wrapper.reset(self, **kwargs)
            self.lives, self.lost_life = info["lives"], False
            return obs, info

    with monkeypatch.context() as patch:
        patch.setattr(ale_py.vector_env, "AtariVectorEnv", without)
        patch.setattr(gym.wrappers, "AtariPreprocessing", lambda env, noop_max: wrapper(env, 0))
        patch.setattr(ppo_atari, "PressFire", LostLifeFire)
        return make(*args)


def test_same_observations(monkeypatch):
    """Training's and evaluation's environment: the same observations, rewards and lost lives for
    the same actions."""
    args = args_of()
    trains = bare(monkeypatch, ppo_atari.Games, args)
    evaluates = bare(monkeypatch, ppo_atari.make_env, args)
    assert trains.single_action_space == evaluates.action_space
    assert trains.single_observation_space.shape == evaluates.observation_space.shape == (4, 84, 84)
    assert evaluates.observation_space.dtype == np.uint8
    obs, _ = trains.reset(seed=[1])
    expected, info = evaluates.reset(seed=1)
    lives = info["lives"]
    lost = 0
    rng = np.random.default_rng(1)
    for t in range(400):
        np.testing.assert_array_equal(obs[0], expected)
        action = rng.integers(trains.single_action_space.n)
        obs, reward, terminated, truncated, ended = trains.step(np.array([action]))
        expected, expected_reward, over, _, info = evaluates.step(action)
        assert reward[0] == expected_reward
        assert terminated[0] == (over or info["lives"] < lives)
        assert not truncated[0]
        assert bool(ended) == over
        lost += lives - info["lives"]
        lives = info["lives"]
        if over:
            break
    assert t > 100
    assert lost > 0


def test_a_lost_life_ends_the_episode_but_not_the_game():
    """Breakout has five lives: five terminations, one game, with all of its steps and rewards; the
    stack has no frame of the game before. The action after a lost life is FIRE, whatever the
    policy wants, but not in the next game, which has begun by itself."""
    envs = games("Breakout", 2)
    sent = []
    ale, step = envs.env.env, envs.env.env.step

    def spy(actions):
        sent.append(actions[0])
        return step(actions)

    ale.step = spy
    rng = np.random.default_rng(0)
    rewards, terminations, lost = [], [], False
    for t in range(4000):
        obs = envs.obs.copy()
        action = 2 + t // 5 % 2
        results = envs.step(np.array([action, rng.integers(4)]))
        next_obs, reward, terminated, truncated, infos = results
        assert sent[-1] == (1 if lost else action)
        np.testing.assert_array_equal(next_obs[0, :3], obs[0, 1:])
        rewards.append(reward[0])
        terminations.append(lost := terminated[0])
        assert not truncated.any()
        if infos[0]:
            break
    assert sum(terminations) == 5
    assert terminations[-1]
    assert infos[0]["episode"] == dict(r=sum(rewards), l=len(rewards))
    assert not envs.obs[0, :3].any()
    assert (next_obs[0, 3] != envs.obs[0, 3]).any()
    assert sent.count(1) == 4
    envs.step(np.array([3, 0]))
    assert sent[-1] == 3
    assert ale.ale.get_action_set()[1] == ale_py.Action.FIRE
    assert envs.env.lengths[0] == 1


def test_fire_in_evaluations():
    """At the start of a game and after each lost life."""

    class Lives(gym.Env):
        lives = [3, 3, 3, 2, 2, 1]

        def reset(self, **kwargs):
            self.t, self.sent = 0, []
            self.ale = SimpleNamespace(lives=lambda: self.lives[self.t])
            return 0, dict(lives=3)

        def step(self, action):
            self.sent.append(action)
            self.t += 1
            return 0, 0.0, False, False, dict(lives=self.lives[self.t])

    env = ppo_atari.PressFire(Lives())
    for _ in range(2):
        env.reset()
        for _ in range(4):
            env.step(3)
        assert env.unwrapped.sent == [1, 3, 3, 1, 3]


def test_each_game_has_a_seed_of_its_own():
    """It decides on the number of no-ops at the start; other ones come after a resume."""
    envs = games("Breakout", 4)
    no_ops = []
    for step in 0, 0, 800:
        envs.begin(step)
        no_ops.append(envs.env.frames.tolist())
    assert no_ops[0] == no_ops[1]
    assert len({*no_ops[0]}) == 4
    assert no_ops[0] != no_ops[2]


def test_final_observation_of_a_truncated_game(monkeypatch):
    """next_obs is what a game without the limit shows after the same step; obs is the next game's
    first one.

    ale-py pools the very last frame with one that is too old by one step: an object that moved
    leaves a few pixels.
    """
    short, long = (
        utils.Envs(args, bare(monkeypatch, ppo_atari.Games, args))
        for args in (args_of(max_num_frames_per_episode=n) for n in (200, 100_000))
    )
    for t in range(1, 51):
        actions = np.array([2 + t // 5 % 2])
        found, _, terminated, truncated, infos = short.step(actions)
        expected, *_ = long.step(actions)
        assert truncated[0] == (t == 50)
    np.testing.assert_array_equal(found[0, :3], expected[0, :3])
    different = (found[0, 3] != expected[0, 3]).mean(), (short.obs[0, 2] != expected[0, 2]).mean()
    assert different[0] < 0.005 < different[1]
    assert infos[0]["episode"]["l"] == 50
    assert (short.obs[0, :3] == 0).all()


@pytest.mark.parametrize("script", helpers.others_slow(REPLAY_SCRIPTS, ["dqn_atari"]))
def test_what_is_stored_of_games(script, tmp_path):
    """Rewards are clipped, in evaluations and curves they are not. A truncated game has one slot
    more, for its last frame, and is not marked as terminated; the next game's first stack has the
    age 1."""
    flags = dict(env_id="CarnivalNoFrameskip-v4", learning_starts=230, buffer_size=400)
    kwargs = dict(max_num_frames_per_episode=400)
    run_dir, _ = helpers.train(
        script, tmp_path, **flags, env_kwargs=json.dumps(kwargs), total_timesteps=240
    )
    slots = helpers.load(run_dir)["replay"]["rows"].unflatten(0, (-1, 2))
    assert set(slots[..., 1].unique().tolist()) == {0, 1}
    assert not slots[:121, :, 2].any()
    ages = slots[:121, 0, -1].tolist()
    assert ages[:101] == [1, 2, 3] + [4] * 97 + [0]
    assert ages[101:105] == [1, 2, 3, 4]
    logged = helpers.scalars(run_dir)
    assert [step for step, _ in logged["charts/episodic_length"]] == [199, 200]
    assert max(value for _, value in logged["charts/episodic_return"]) >= 20
