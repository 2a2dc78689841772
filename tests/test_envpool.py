"""ppo_envpool.py and ppo_continuous_envpool.py: the steps that only reset are learned from
nowhere; the pool's seeds and episodes. fast_td3.py, which resets at once: its steps are
those of utils.vector_env. They step tests/like_envpool.py."""

import numpy as np
import pytest

from cleanrl_lite import fast_td3, utils
from tests import helpers, like_envpool
from tests.probe_envs import probe
from tests.test_probe import trained, values

LOGGED = dict(num_envs=3, num_steps=40, num_minibatches=2, update_epochs=2, total_timesteps=360)


@pytest.fixture(params=helpers.ENVPOOL_SCRIPTS)
def envpool_script(request, fake_envpool):
    return request.param


def played(pool):
    """(steps, environments) of a pool's run: acted on, reward, episode ended, only reset."""
    observations, rewards, ended, ignored = map(np.stack, zip(*pool.steps))
    return np.concatenate([pool.first[None], observations[:-1]]), rewards, ended, ignored


# --- what is learned from
def test_no_minibatch_has_a_step_that_only_resets(envpool_script, monkeypatch, tmp_path):
    """Every other one is in every epoch; the explained variance is theirs too."""
    used = []
    explained = []

    def check(update, main, tensors):
        if len(used) % 4 == 0:
            _, _, _, ignored = played(like_envpool.MADE[-1])
            kept.append(~ignored[-40:].flatten())
            returns, baseline = (main[name].numpy()[kept[-1]] for name in ("b_returns", "b_values"))
            explained.append(1 - (returns - baseline).var() / returns.var())
        used.append(tensors[0].tolist())
        return update(*tensors)

    kept = []
    helpers.spy_on_updates(monkeypatch, check)
    run_dir, _ = helpers.train(
        envpool_script, tmp_path, env_id=probe("Logged", envpool_script), **LOGGED
    )
    assert len(kept) == 3
    assert all(20 < (~rows).sum() < 40 for rows in kept)
    for epoch in range(6):
        samples = used[2 * epoch] + used[2 * epoch + 1]
        assert set(samples) == set(np.flatnonzero(kept[epoch // 2]))
        assert len(samples) == 120
    logged = [value for _, value in helpers.scalars(run_dir)["losses/explained_variance"]]
    assert logged == pytest.approx(explained, rel=1e-3, abs=1e-4)


def test_statistics_without_the_steps_that_only_reset(fake_envpool, tmp_path):
    """Of observations, and of the discounted returns, each episode's on its own."""
    script = "ppo_continuous_envpool"
    run_dir, _ = helpers.train(script, tmp_path, env_id=probe("Logged", script), **LOGGED)
    seen, rewards, ended, ignored = played(like_envpool.MADE[-1])
    agent = helpers.load(run_dir)["agent"]
    seen = seen[~ignored]
    running = np.zeros(3)
    discounted = []
    for reward, over in zip(rewards, ended):
        running = 0.99 * running + reward
        discounted.append(running)
        running = running * ~over
    discounted = np.array(discounted)[~ignored]
    assert agent["obs_stats.count"] == agent["return_stats.count"] == len(seen) < 360
    np.testing.assert_allclose(agent["obs_stats.mean"], seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(agent["obs_stats.var"], seen.var(0), rtol=1e-5)
    np.testing.assert_allclose(agent["return_stats.mean"], discounted.mean(), rtol=1e-4)
    np.testing.assert_allclose(agent["return_stats.var"], discounted.var(), rtol=1e-4)


VALUES = dict(Truncated=([10, -1], 1), Terminated=([1.82, -8.36], 0.4))


@pytest.mark.parametrize(
    "script, name",
    [
        ("ppo_envpool", "Truncated"),
        pytest.param("ppo_envpool", "Terminated", marks=pytest.mark.slow),
        pytest.param("ppo_continuous_envpool", "Truncated", marks=pytest.mark.slow),
        pytest.param("ppo_continuous_envpool", "Terminated", marks=pytest.mark.slow),
    ],
)
def test_values(script, name, fake_envpool, tmp_path):
    """A truncation bootstraps from the last observation, a termination does not; see
    tests/test_probe.py."""
    expected, abs = VALUES[name]
    agent = trained(script, probe(name, script), tmp_path, dict(total_timesteps=10_240))
    assert values(agent, [1.0], [0.0]) == pytest.approx(expected, abs=abs)


@pytest.mark.parametrize(
    "parent, flags", [("ppo", {}), ("ppo_continuous", dict(max_episode_steps=200))]
)
def test_without_resets_it_is_the_parent(parent, flags, fake_envpool, tmp_path):
    """The same environments and random numbers, and no episode that ends: the same run."""
    flags |= dict(
        env_id="MountainCar-v0" if parent == "ppo" else "MountainCarContinuous-v0",
        num_envs=3,
        num_steps=64,
    )
    flags |= dict(num_minibatches=4, update_epochs=2, total_timesteps=576, learning_rate=1e-3)
    (mine, returns), (theirs, same) = (
        helpers.train(name, tmp_path / name, **flags) for name in (f"{parent}_envpool", parent)
    )
    assert returns == same
    mine, theirs = ((helpers.scalars(run), helpers.load(run)) for run in (mine, theirs))
    assert {tag: mine[0][tag] for tag in mine[0].keys() - helpers.UNSEEDED} == {
        tag: theirs[0][tag] for tag in theirs[0].keys() - helpers.UNSEEDED
    }
    for part in ("agent", "adam", "rng"):
        helpers.assert_same_state(mine[1][part], theirs[1][part])


# --- the pool
def test_every_episode_is_logged(envpool_script, tmp_path):
    """Return and length of each, at the step of all environments at which it ended."""
    run_dir, _ = helpers.train(
        envpool_script, tmp_path, env_id=probe("Logged", envpool_script), **LOGGED
    )
    _, rewards, ended, ignored = played(like_envpool.MADE[-1])
    expected = []
    total = np.zeros(3)
    length = np.zeros(3)
    for t in range(len(rewards)):
        total = np.where(ignored[t], 0, total + rewards[t])
        length = np.where(ignored[t], 0, length + 1)
        expected += [(3 * (t + 1), total[n], length[n]) for n in np.flatnonzero(ended[t])]
    logged = helpers.scalars(run_dir)
    assert logged["charts/episodic_length"] == [(step, length) for step, _, length in expected]
    assert logged["charts/episodic_return"] == [
        (step, pytest.approx(total, abs=1e-5)) for step, total, _ in expected
    ]


def test_a_resumed_run_plays_other_episodes(envpool_script, tmp_path):
    """envpool takes seeds only when it makes environments: a resumed run makes others, with
    seeds of that step."""
    flags = dict(num_envs=4, num_steps=32, num_minibatches=4, total_timesteps=256)
    run_dir, _ = helpers.train(envpool_script, tmp_path, **flags)
    helpers.next_second()
    flags |= dict(resume=str(run_dir), total_timesteps=512)
    helpers.main(envpool_script, helpers.small_args(envpool_script, tmp_path, **flags))
    streams = [np.random.SeedSequence([1, step]).generate_state(4) >> 1 for step in (0, 256)]
    pools = [pool for pool in like_envpool.MADE if pool.seed]
    assert [pool.seed for pool in pools] == [[1, *streams[0][1:]], [*streams[1]]]
    assert not np.isin(pools[0].first, pools[1].first).any()
    losses = helpers.scalars(run_dir)["losses/value_loss"]
    assert [step for step, _ in losses] == [128, 256, 384, 512]


# --- fast_td3.py
def fast_args(env_id, num_envs=3, **others):
    return fast_td3.Args(env_id=f"envpool/{env_id}", num_envs=num_envs, **others)


def steps_of(envs, actions):
    """A reset and steps, as lists: infos of environments that ended only."""
    first, _ = envs.reset(seed=[5, 6, 7])
    steps = [first.tolist()]
    for action in actions:
        obs, rewards, terminations, truncations, infos = envs.step(action)
        ended = {}
        for n, info in infos.get("final_info", {}).items():
            ended[int(n)] = infos["final_obs"][n].tolist(), *info["statistics"]
        steps += [obs.tolist(), np.float32(rewards).tolist(), ended]
        steps += [terminations.tolist(), truncations.tolist()]
    return steps


@pytest.mark.parametrize("env_id, limit", [("Hopper-v4", 30), ("MountainCarContinuous-v0", 12)])
def test_fast_td3_steps_as_with_a_vector_environment(env_id, limit, fake_envpool):
    """In the same environments: the true last observation of an episode, its return and length,
    and the first observation of the next one in the same step."""
    args = fast_args(env_id, max_episode_steps=limit)
    theirs = utils.vector_env([lambda: fast_td3.make_env(args)] * 3, async_envs=False)
    space = theirs.single_action_space
    actions = np.random.default_rng(1).uniform(space.low, space.high, (80, 3, *space.shape))
    actions = actions.astype(np.float32)
    mine = steps_of(fast_td3.EnvPool(args), actions)
    expected = steps_of(theirs, actions)
    assert sum(bool(ended) for ended in expected[3::5]) > 3
    for one, other in zip(mine, expected, strict=True):
        if isinstance(one, dict):
            assert one.keys() == other.keys()
            for n in one:
                assert one[n][0] == other[n][0]
                assert one[n][1:] == pytest.approx(other[n][1:], rel=1e-5)
        else:
            assert one == other
