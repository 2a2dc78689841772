"""class EnvPool of ppo_envpool.py, ppo_continuous_envpool.py and fast_td3.py: its steps are those of
utils.make_envs, and so a run is the parent's; what differs in envpool is refused. They step
tests/like_envpool.py."""

import numpy as np
import pytest

from cleanrl_lite import utils
from tests import helpers, like_envpool


def args_of(script, env_id, **flags):
    env_id = f"envpool/{env_id}" if script == "fast_td3" else env_id
    return helpers.small_args(script, "unused", env_id=env_id, num_envs=3, **flags)


STEPPED = [
    ("ppo_envpool", "CartPole-v1", 15),
    ("ppo_continuous_envpool", "Hopper-v4", 30),
    ("fast_td3", "Hopper-v4", 30),
    ("fast_td3", "MountainCarContinuous-v0", 12),
]


@pytest.mark.parametrize("script, env_id, limit", STEPPED)
def test_it_steps_as_a_vector_environment(script, env_id, limit, fake_envpool):
    """The same seeds, observations, rewards and ends: the true last observation of an episode, its
    return and length, and the first observation of the next one after the same step."""
    module, args = helpers.module(script), args_of(script, env_id, max_episode_steps=limit)
    mine = utils.Envs(args, module.EnvPool(args))
    theirs = utils.make_envs(args, module.make_env)
    assert mine.single_observation_space == theirs.single_observation_space
    assert mine.single_action_space == theirs.single_action_space
    assert mine.action_space.shape == theirs.action_space.shape
    ends = 0
    for step in 0, 480:  # a resumed run's are others
        for envs in mine, theirs:
            envs.begin(step)
        for _ in range(60):
            np.testing.assert_array_equal(mine.obs, theirs.obs)
            actions = theirs.action_space.sample()
            *found, infos = mine.step(actions)
            *expected, same = theirs.step(actions)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, np.asarray(other, one.dtype))
            for info, other in zip(infos, same, strict=True):
                assert ("episode" in info) == ("episode" in other)
                if info:
                    assert info["episode"] == pytest.approx(other["episode"], rel=1e-5)
                    ends += 1
    assert ends > 12
    mine.close()
    assert mine.env.pool is None


def test_a_run_is_the_parents(fake_envpool, tmp_path):
    """The same environments and random numbers: the same run, to the bit, and after a resume."""
    runs, returns = [], []
    for script in "ppo_continuous", "ppo_continuous_envpool":
        flags = dict(env_id="InvertedPendulum-v4", num_envs=3, num_steps=64, num_minibatches=4)
        flags |= dict(max_episode_steps=20, learning_rate=1e-3)
        run, _ = helpers.train(script, tmp_path / script, **flags, total_timesteps=384)
        helpers.next_second()
        flags |= dict(total_timesteps=576, resume=str(run))
        returns.append(helpers.train(script, tmp_path / script, **flags)[1])
        curves, state = helpers.scalars(run), helpers.load(run)
        del curves["charts/SPS"]
        runs.append((curves, state["agent"], state["adam"]))
    assert returns[0] == returns[1]
    assert runs[0][0] == runs[1][0]
    helpers.assert_same_state(runs[0][1:], runs[1][1:])
    assert len(runs[0][0]["charts/episodic_return"]) > 20


def test_envpool_is_given_the_flags(fake_envpool):
    """A seed for each environment, the time limit, threads, and Humanoid's contact forces, which
    it leaves out of v4 by itself."""
    for script in "ppo_continuous_envpool", "fast_td3":
        args = args_of(script, "Humanoid-v4", env_threads=2)
        utils.Envs(args, helpers.module(script).EnvPool(args))
        pool = like_envpool.MADE[-1]
        assert pool.post_constraint is True
        assert pool.num_threads == 2
        assert pool.envs.envs[0].spec.max_episode_steps == 1000
        assert len({*pool.seed}) == 3
        assert pool.seed[0] == args.seed
        args = args_of(script, "Hopper-v4", env_kwargs='{"healthy_z_range": [0.5, 2.0]}')
        utils.Envs(args, helpers.module(script).EnvPool(args))
        pool = like_envpool.MADE[-1]
        assert pool.post_constraint is None
        assert pool.envs.envs[0].unwrapped._healthy_z_range == [0.5, 2.0]


REFUSED = [
    ("Pendulum-v1", "Pendulum-v1 differs in envpool"),
    ("Walker2d-v4", "Walker2d-v4.* is not in envpool. envpool and gymnasium have: Hopper-v4, Pend"),
]


@pytest.mark.parametrize("env_id, told", REFUSED)
@pytest.mark.parametrize("script", ["ppo_continuous_envpool", "fast_td3"])
def test_what_is_refused(script, env_id, told, fake_envpool, monkeypatch):
    monkeypatch.setattr(like_envpool, "list_all_envs", lambda: ["Hopper-v4", "Pendulum-v1"])
    with pytest.raises(SystemExit, match=told):
        helpers.module(script).EnvPool(args_of(script, env_id))
