"""ppo_envpool.py and ppo_continuous_envpool.py: the steps that only reset are learned from
nowhere; the pool's seeds, episodes and faults. fast_td3.py, which resets at once: its steps are
those of utils.vector_env. Fast tests step tests/like_envpool.py, slow ones envpool itself."""

import functools
import json
import os
import signal
import sys
from types import SimpleNamespace
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest

from benchmark.measure import engines
from cleanrl_lite import fast_td3, utils
from tests import helpers, like_envpool
from tests.probe_envs import probe
from tests.test_probe import trained, values

LOGGED = dict(
    num_envs=3,
    num_steps=40,
    num_minibatches=2,
    update_epochs=2,
    total_timesteps=360,
)


@pytest.fixture(params=helpers.ENVPOOL_SCRIPTS)
def envpool_script(request):
    return request.param


def played(pool):
    """(steps, environments) of a pool's run: acted on, reward, episode ended, only reset."""
    observations, rewards, ended, ignored = map(np.stack, zip(*pool.steps))
    return np.concatenate([pool.first[None], observations[:-1]]), rewards, ended, ignored


def test_the_pages_say_what_a_failure_at_the_time_limit_is(envpool_script):
    """envpool calls it a truncation only; nothing in the script can tell."""
    page = (helpers.ROOT / f"docs/{envpool_script}.md").read_text()
    limits = " ".join(page.partition("## Limits")[2].split())
    assert "a failure on the last step that the time limit allows" in limits.lower()
    assert "truncation only" in limits


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


def test_statistics_without_the_steps_that_only_reset(tmp_path):
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


def test_a_rollout_in_which_all_only_reset(envpool_script, tmp_path):
    """There is nothing to learn from; the run goes on. Here that is every second step."""
    flags = dict(
        env_id=probe("FromObservation", envpool_script),
        num_envs=2,
        num_steps=1,
        num_minibatches=1,
    )
    run_dir, _ = helpers.train(
        envpool_script, tmp_path, **flags, update_epochs=1, total_timesteps=20
    )
    assert [step for step, _ in helpers.scalars(run_dir)["losses/value_loss"]] == [2, 6, 10, 14, 18]
    assert helpers.load(run_dir)["global_step"] == 20


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
def test_values(script, name, tmp_path):
    """A truncation bootstraps from the last observation, a termination does not; see
    tests/test_probe.py."""
    expected, abs = VALUES[name]
    agent = trained(script, probe(name, script), tmp_path, dict(total_timesteps=10_240))
    assert values(agent, [1.0], [0.0]) == pytest.approx(expected, abs=abs)


@pytest.mark.parametrize(
    "parent, flags", [("ppo", {}), ("ppo_continuous", dict(max_episode_steps=200))]
)
def test_without_resets_it_is_the_parent(parent, flags, tmp_path):
    """The same environments and random numbers, and no episode that ends: the same run."""
    flags |= dict(
        env_id="MountainCar-v0" if parent == "ppo" else "MountainCarContinuous-v0",
        num_envs=3,
        num_steps=64,
    )
    flags |= dict(
        num_minibatches=4,
        update_epochs=2,
        total_timesteps=576,
        learning_rate=1e-3,
    )
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
    flags = dict(
        num_envs=4,
        num_steps=32,
        num_minibatches=4,
        total_timesteps=256,
    )
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


@pytest.mark.parametrize("what, told", [(0, "observation [nan "), (1, "reward inf")])
def test_nothing_is_learned_from_nan(what, told, envpool_script, monkeypatch, capfd, tmp_path):
    step = like_envpool.make_gymnasium.step

    def broken(pool, actions):
        result = step(pool, actions)
        if len(pool.steps) == 70:
            result[what][1] = np.inf if what else np.nan
        return result

    monkeypatch.setattr(like_envpool.make_gymnasium, "step", broken)
    words = helpers.small_flags(
        envpool_script,
        tmp_path,
        num_envs=2,
        num_steps=32,
        save_every=64,
    )
    assert helpers.command_line(envpool_script, words) == 1
    line = capfd.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("FloatingPointError: environment 1: observation [")
    assert told in line
    assert helpers.load(helpers.only_run(tmp_path))["global_step"] == 128


V4_HUMANOIDS = ["Humanoid-v4", "HumanoidStandup-v4"]


@pytest.mark.parametrize("env_id", [*V4_HUMANOIDS, "Humanoid-v5", "Ant-v4", "Hopper-v4"])
def test_humanoids_of_v4_have_contact_forces(env_id, envpool_script):
    """envpool leaves these 84 observations at 0, unless it is asked for them."""
    module = helpers.module(envpool_script)
    pool = module.EnvPool(module.Args(env_id=env_id, num_envs=2))
    pool.reset([1, 2])
    assert pool.pool.post_constraint == (True if env_id in V4_HUMANOIDS else None)


def test_env_kwargs_go_before_the_scripts_own_options(envpool_script, monkeypatch):
    module = helpers.module(envpool_script)
    env = gym.make("Humanoid-v4")  # which does not know this argument
    monkeypatch.setattr(module, "make_env", lambda args: env)
    kwargs = json.dumps(dict(post_constraint=False))
    pool = module.EnvPool(
        module.Args(
            env_id="Humanoid-v4",
            num_envs=2,
            env_kwargs=kwargs,
        )
    )
    assert pool.make.keywords["post_constraint"] is False


def test_the_table_of_engines_is_what_the_file_gives():
    rows = helpers.read_json(engines.PATH)
    assert engines.PATH.with_suffix(".md").read_text() == engines.table(rows)


def test_the_engines_that_the_scripts_train_in_are_gymnasiums():
    """In the table, only what is measured without a script's own option differs."""
    rows = [row for row in helpers.read_json(engines.PATH) if "refused" not in row]
    assert len(rows) > 25
    assert {*V4_HUMANOIDS} <= {row["env_id"] for row in rows}
    for row in rows:
        assert bool(engines.differences(row)) == row["without_options"], row["env_id"]


def test_threads(envpool_script, tmp_path):
    helpers.train(envpool_script, tmp_path, env_threads=2)
    assert like_envpool.MADE[-1].num_threads == 2


BAD = {
    "an unknown id": (
        {},
        dict(env_id="Nope-v0"),
        r"--env-id Nope-v0 is not in envpool.*Acrobot-v1, .*Walker2d-v5",
    ),
    "not the same in both": (
        {},
        dict(env_id="Pendulum-v1"),
        r"--env-id Pendulum-v1 differs in envpool: use ppo_continuous\.py",
    ),
    "not in gymnasium": (
        {},
        dict(env_id="tests.probe_envs:Nope-v0"),
        r"Environment `Nope` doesn't exist",
    ),
    "unknown to envpool": (
        dict(make_spec=TypeError("unexpected keyword argument 'reward'")),
        {},
        r"--env-kwargs {}: unexpected keyword .*'reward'",
    ),
    "other observations": (
        dict(make_spec=[7]),
        {},
        r"observations \(7,\) in envpool are not the vectors of gymnasium",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, envpool_script, monkeypatch, capfd, tmp_path):
    """One line, and no run directory."""
    patch, flags, told = BAD[case]
    if patch:
        shape = patch["make_spec"]
        spec = SimpleNamespace(state_array_spec=dict(obs=SimpleNamespace(shape=shape)))
        failing = shape if isinstance(shape, Exception) else None
        made = mock.Mock(return_value=spec, side_effect=failing)
        monkeypatch.setattr(like_envpool, "make_spec", made)
    assert (
        helpers.command_line(envpool_script, helpers.small_flags(envpool_script, tmp_path, **flags))
        == 1
    )
    from tests.test_cli import assert_one_line

    assert_one_line(capfd.readouterr().err, told)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "script, env_id, told",
    [
        ("ppo_envpool", "Hopper-v4", "must be Discrete, .*Box: ppo_continuous_envpool.py"),
        (
            "ppo_continuous_envpool",
            "CartPole-v1",
            "must be a 1-D Box of floats, .*Discrete: ppo_envpool.py",
        ),
    ],
)
def test_the_script_that_fits(script, env_id, told, tmp_path):
    with pytest.raises(SystemExit, match=told):
        helpers.train(script, tmp_path, env_id=env_id, max_episode_steps=None)


def test_envpool_is_missing(envpool_script, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(
        SystemExit, match=r"^error: envpool is missing: pip install 'cleanrl_lite\[envpool\]'"
    ):
        helpers.train(envpool_script, tmp_path)


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
def test_fast_td3_steps_as_with_a_vector_environment(env_id, limit):
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


def test_fast_td3_learns_from_whole_episodes(tmp_path):
    """Of every environment: a transition begins where the last one led to, or anew at an end."""
    flags = dict(env_id="envpool/Hopper-v4", num_envs=2, total_timesteps=600, buffer_size=600)
    run_dir, _ = helpers.train("fast_td3", tmp_path, **flags)
    rows = helpers.load(run_dir)["replay"]["rows"].numpy()
    obs, next_obs = rows[:, :11], rows[:, 15:26]
    steps = rows[:, -1]
    begins = 0
    for n in range(2):
        for t in range(n + 2, len(rows), 2):
            goes_on = steps[t] == steps[t - 2] + 1
            assert goes_on or steps[t] == 0
            assert np.array_equal(obs[t], next_obs[t - 2]) == goes_on
            begins += not goes_on
    assert begins > 5
    lengths = helpers.scalars(run_dir)["charts/episodic_length"]
    assert len(lengths) == begins or len(lengths) == begins + 1


def test_fast_td3_resumes_in_envpool(tmp_path):
    """With new episodes, of other seeds."""
    flags = dict(env_id="envpool/Hopper-v4", num_envs=2, total_timesteps=200)
    run_dir, _ = helpers.train("fast_td3", tmp_path, **flags)
    helpers.next_second()
    flags |= dict(resume=str(run_dir), total_timesteps=300)
    helpers.main("fast_td3", helpers.small_args("fast_td3", tmp_path, **flags))
    assert helpers.load(run_dir)["global_step"] == 300
    first, second = [pool for pool in like_envpool.MADE if pool.seed]
    assert first.seed[0] == 1
    assert not set(first.seed) & set(second.seed)


@pytest.mark.parametrize(
    "env_id, told",
    [
        ("Nope-v0", r"--env-id envpool/Nope-v0 is not in envpool\..* Walker2d-v5"),
        ("Pendulum-v1", "envpool/Pendulum-v1 differs in envpool: use --env-id Pendulum-v1"),
        ("CartPole-v1", "must be a 1-D Box of floats"),
    ],
)
def test_fast_td3_refuses(env_id, told, tmp_path):
    with pytest.raises(SystemExit, match=told):
        helpers.train("fast_td3", tmp_path, env_id=f"envpool/{env_id}")
    with pytest.raises(SystemExit, match="--async-envs is not for envpool"):
        helpers.train("fast_td3", tmp_path, env_id="envpool/Hopper-v4", async_envs=True)
    assert not list(tmp_path.iterdir())


def test_fast_td3_stops_at_nan_of_envpool(monkeypatch):
    pool = fast_td3.EnvPool(fast_args("Hopper-v4"))
    pool.reset([1, 2, 3])
    step = like_envpool.make_gymnasium.step

    def broken(*args):
        obs, rewards, *others = step(*args)
        rewards[1] = np.nan
        return obs, rewards, *others

    monkeypatch.setattr(like_envpool.make_gymnasium, "step", broken)
    with pytest.raises(FloatingPointError, match="(?s)environment 1: .* reward nan"):
        pool.step(np.zeros((3, 3), dtype=np.float32))


@pytest.mark.parametrize("env_id", [*V4_HUMANOIDS, "Humanoid-v5"])
def test_fast_td3_has_the_contact_forces_of_v4s_humanoids(env_id):
    pool = fast_td3.EnvPool(fast_args(env_id, num_envs=1))
    assert pool.options.get("post_constraint", False) == (env_id in V4_HUMANOIDS)


def test_fast_td3_without_envpool(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(SystemExit, match="error: envpool is missing"):
        fast_td3.EnvPool(fast_args("Hopper-v4"))


# --- envpool itself
def test_a_reset_of_some_environments(real_envpool):
    """What fast_td3.py relies on: they begin anew at once, the others go on; the order is kept."""
    args = fast_args("Hopper-v4", num_envs=4, max_episode_steps=25)
    envs = fast_td3.EnvPool(args)
    assert envs.make is real_envpool.make_gymnasium
    obs, _ = envs.reset([1, 2, 3, 4])
    space = envs.action_space
    space.seed(1)
    together = 0
    lengths = np.zeros(4, dtype=int)
    for _ in range(200):
        last = obs.copy()
        obs, rewards, terminations, truncations, infos = envs.step(space.sample())
        ended = terminations | truncations
        lengths += 1
        assert (rewards != 0).all()  # every step is one of an episode
        assert list(infos.get("final_info", {})) == np.flatnonzero(ended).tolist()
        for n in np.flatnonzero(ended):
            assert infos["final_info"][n]["statistics"][1] == lengths[n]
            assert abs(obs[n, 1:]).max() < 0.01  # a start
            assert abs(infos["final_obs"][n] - last[n]).max() < 10
            assert abs(infos["final_obs"][n, 1:]).max() > 0.01
        together += ended.sum() > 1
        lengths[ended] = 0
    assert together > 1


CLASSIC = ["CartPole-v1", "MountainCar-v0", "Acrobot-v1", "MountainCarContinuous-v0"]
MUJOCO = [
    "Hopper-v4",
    "Hopper-v5",
    "Walker2d-v4",
    "Swimmer-v4",
    "InvertedPendulum-v4",
    "HalfCheetah-v4",
]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", CLASSIC + MUJOCO)
def test_envpool_is_gymnasium(env_id, real_envpool):
    """From the same state with the same actions: observations, rewards, ends, time limits. And what
    the scripts rely on: the step after an end takes no action, has reward 0, and leads to a new
    start.

    Float32 at the start makes a chaotic HalfCheetah another one after a while: 50
    steps, then again.
    """
    envs = [gym.make(env_id, max_episode_steps=120) for _ in range(4)]
    limits = dict(seed=[1, 2, 3, 4], max_episode_steps=120)
    make = functools.partial(real_envpool.make_gymnasium, env_id, num_envs=4, **limits)
    pool = make()
    twin = make()
    ends = set()
    space = envs[0].action_space
    obs, _ = pool.reset()
    same, _ = twin.reset()
    assert np.array_equal(obs, same)
    assert len(np.unique(obs, axis=0)) == 4
    space.seed(1)
    for env, own in zip(envs, obs):
        env.reset(seed=0)
        engines.moved_to(env, own)
    ended = np.zeros(4, dtype=bool)
    steps, exact = np.zeros((2, 4), dtype=int)
    for _ in range(400):
        actions = np.array([space.sample() for _ in range(4)])
        obs, rewards, terminations, truncations, info = pool.step(actions)
        others = np.where(
            ended.reshape(-1, *[1] * (actions.ndim - 1)), np.zeros_like(actions), actions
        )
        assert np.array_equal(twin.step(others)[0], obs)  # no action where an episode has ended
        for i, env in enumerate(envs):
            if ended[i]:
                assert rewards[i] == 0
                assert info["elapsed_step"][i] == 0
                assert not terminations[i]
                assert not truncations[i]
                env.reset(seed=0)
                engines.moved_to(env, obs[i])
                steps[i] = exact[i] = 0
                continue
            theirs, reward, terminated, truncated, _ = env.step(actions[i])
            steps[i] += 1
            exact[i] += 1
            np.testing.assert_allclose(obs[i], theirs, rtol=1e-4, atol=1e-4)
            assert rewards[i] == pytest.approx(reward, rel=1e-4, abs=1e-4)
            assert (terminations[i], truncations[i]) == (terminated, truncated)
            assert info["elapsed_step"][i] == steps[i]
            if exact[i] == 50 and not truncated | terminated:
                engines.moved_to(env, obs[i])
                exact[i] = 0
            ends |= {("terminated", terminated), ("truncated", truncated)}
        ended = terminations | truncations
    assert ("terminated", True) in ends or ("truncated", True) in ends


def test_no_observation_is_0_in_envpool_alone(real_envpool):
    """Humanoid-v4's contact forces were."""
    _, env, pool = engines.make_both("Humanoid-v4")
    own = engines.play_gymnasium(env, 64)
    other = engines.play_envpool(pool, 64)
    found = engines.compare_episodes(own, other)
    assert found["always_0_in_envpool_only"] == 0
    assert found["along_episodes"] < engines.MOST_ERRORS


def test_pendulum_is_refused_because_it_differs(real_envpool):
    """Where gymnasium limits the speed and then turns, envpool turns and then limits: if this
    fails, the scripts may take Pendulum-v1 again."""
    pool = real_envpool.make_gymnasium("Pendulum-v1", num_envs=1, seed=1)
    (obs,), _ = pool.reset()
    env = gym.make("Pendulum-v1")
    env.reset(seed=0)
    differences = []
    fast = []
    for _ in range(150):
        engines.moved_to(env, obs)
        action = np.full(1, 2 if obs[2] > 0 else -2, dtype=np.float32)  # faster and faster
        (obs,), *_ = pool.step(action[None])
        own, *_ = env.step(action)
        differences.append(np.abs(own - obs).max())
        fast.append(abs(own[2]) == 8)
    assert max(differences) > 0.03
    assert max(np.array(differences)[~np.array(fast)]) < 1e-5


@pytest.mark.parametrize("env_id", ["Blackjack-v1", "CliffWalking-v1", "FrozenLake-v1"])
def test_other_observations_are_refused(env_id, real_envpool):
    """Also of ids without a time limit, which envpool takes as a number only."""
    with pytest.raises(SystemExit, match=r"observations \(.*\) in envpool are not the vectors of"):
        engines.make_both(env_id)


@pytest.mark.slow
def test_spaces_are_gymnasiums(real_envpool):
    """Of every id that the scripts take: the shape of observations and the time limit."""
    fit = 0
    for env_id in sorted(gym.registry.keys() & real_envpool.list_all_envs()):
        try:
            _, env, _ = engines.make_both(env_id)
        except SystemExit:
            continue
        spec = real_envpool.make_spec(env_id)
        assert tuple(spec.state_array_spec["obs"].shape) == env.observation_space.shape, env_id
        assert spec.config.max_episode_steps == env.spec.max_episode_steps, env_id
        fit += 1
        env.close()
    assert fit >= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, env_id",
    [("ppo_envpool", "LunarLander-v3"), *((name, None) for name in helpers.ENVPOOL_SCRIPTS)],
)
def test_a_run_with_envpool(script, env_id, real_envpool, tmp_path):
    """Trains, resumes, evaluates; the same seed is the same run, also with two threads."""
    flags = dict(env_id=env_id, max_episode_steps=None) if env_id else {}
    one, returns = helpers.train(script, tmp_path / "one", **flags)
    other, same = helpers.train(script, tmp_path / "other", **flags, env_threads=2)
    assert returns == same
    helpers.assert_same_run(one, other)
    helpers.next_second()
    again = dict(resume=str(one), total_timesteps=1024)
    record = helpers.main(script, helpers.small_args(script, tmp_path, **flags, **again))
    again = dict(evaluate=str(one))
    played = helpers.main(script, helpers.small_args(script, tmp_path, **flags, **again))
    assert played["returns"] == record["returns"]
    assert helpers.scalars(one)["losses/value_loss"][-1][0] == 1024


@pytest.mark.slow
def test_a_signal_with_envpool(envpool_script, real_envpool, tmp_path):
    """In a process of its own, with envpool's threads: it saves, ends, and goes on."""
    words = [sys.executable, "-m", f"cleanrl_lite.{envpool_script}"]
    flags = dict(
        total_timesteps=4_000_000,
        save_every=0,
        max_episode_steps=20,
        env_threads=2,
    )
    words += helpers.small_flags(envpool_script, tmp_path, **flags)
    process = helpers.subprocess.Popen(words, env=helpers.environment(), cwd=tmp_path)
    helpers.wait_for(lambda: list(tmp_path.glob("*/checkpoint.pt")))
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 143
    state = helpers.load(helpers.only_run(tmp_path))
    assert 0 < state["global_step"] < 4_000_000
    assert "envs" not in state
    total = state["global_step"] + helpers.SMALL[envpool_script]["num_envs"] * 64
    done = helpers.run(
        [*words, "--resume", helpers.only_run(tmp_path), "--total-timesteps", total], cwd=tmp_path
    )
    assert done.returncode == 0 and f"evaluation at step {total:,}" in done.stdout, done.stderr


@pytest.mark.slow
def test_learns_cartpole(real_envpool, tmp_path):
    """With the defaults, and half of their steps."""
    run_dir = helpers.train_defaults("ppo_envpool", tmp_path, total_timesteps=512_000, seed=4)
    returns = [value for _, value in helpers.scalars(run_dir)["charts/episodic_return"]]
    assert np.mean(returns[-100:]) >= 400


@pytest.mark.slow
def test_learns_inverted_pendulum(real_envpool, tmp_path):
    flags = dict(env_id="InvertedPendulum-v4", total_timesteps=150_000)
    run_dir = helpers.train_defaults("ppo_continuous_envpool", tmp_path, **flags)
    returns = [value for _, value in helpers.scalars(run_dir)["charts/episodic_return"]]
    assert max(np.convolve(returns, np.full(20, 1 / 20), "valid")) >= 900
