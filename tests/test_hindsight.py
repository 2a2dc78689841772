"""sac_her.py: relabelled transitions against a list of what was stepped, in the middle of runs
too; and what they are good for."""

import itertools
from collections import defaultdict

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

from cleanrl_lite import sac_her
from cleanrl_lite.sac_her import HindsightBuffer
from tests import helpers
from tests.probe_envs import Numbered, Reach, probe

CPU = torch.device("cpu")
SHAPES = (8,), (1,), (), (8,), ()  # an observation: achieved (3), desired (3), observation (2)


def hindsight_buffer(buffer_size, num_envs, n_sampled_goals=4):
    return HindsightBuffer(buffer_size, num_envs, SHAPES, CPU, Numbered(1), n_sampled_goals)


def recorded(buffer_size, num_envs, steps, n_sampled_goals=4):
    """A buffer after some steps of episodes of random lengths; of each environment, the
    episodes' transitions."""
    rng = np.random.default_rng(1)
    buffer = hindsight_buffer(buffer_size, num_envs, n_sampled_goals)
    episodes = [[[]] for _ in range(num_envs)]
    for _ in range(steps):
        step = [np.zeros((num_envs, *shape), dtype=np.float32) for shape in SHAPES]
        obs, actions, _, next_obs, terminations = step
        actions[:] = rng.normal(size=(num_envs, 1))
        terminations[:] = rng.random(num_envs) < 0.1
        for n, of_env in enumerate(episodes):
            t = len(of_env[-1])
            no_goal = -1, -1, -1
            obs[n] = n, len(of_env), t, *no_goal, *rng.normal(size=2)
            next_obs[n] = n, len(of_env), t + 1, *no_goal, *rng.normal(size=2)
            row = [np.ravel(part[n]) for part in step]
            of_env[-1].append(np.concatenate(row))
        dones = rng.random(num_envs) < 0.15
        for n, of_env in enumerate(episodes):
            dones[n] |= len(of_env[-1]) == 9
            if dones[n]:
                of_env.append([])
        buffer.add(*step, dones=dones)
    return buffer, episodes


def expected_goals(buffer, episodes):
    """{a stored transition: goals that it may get}, one by one: what was achieved from it on in
    its episode."""
    found = {}
    slots = buffer.capacity // buffer.num_envs
    for of_env in episodes:
        stored = [row for episode in of_env for row in episode][-slots:]
        for episode in of_env:
            for t, row in enumerate(episode):
                if any(row is kept for kept in stored):
                    found[tuple(row)] = {tuple(later[10:13]) for later in episode[t:]}
    return found


@pytest.mark.parametrize(
    "buffer_size, num_envs, steps",
    [(40, 1, 25), (40, 1, 95), (74, 3, 17), (74, 3, 100), (5, 1, 36)],
)
def test_every_goal_was_achieved_later_in_the_same_episode(buffer_size, num_envs, steps, tmp_path):
    """And each of those is drawn; before and after the wrap-around, episodes longer than the
    buffer, one that still runs; all the same after saving and loading."""
    buffer, episodes = recorded(buffer_size, num_envs, steps)
    torch.save(buffer.state_dict(), tmp_path / "state.pt")
    loaded = hindsight_buffer(buffer_size, num_envs)
    loaded.load_state_dict(torch.load(tmp_path / "state.pt"))
    for replay in (buffer, loaded):
        found = defaultdict(set)
        expected = expected_goals(buffer, episodes)
        rows = replay.sample(50_000)
        for row in np.unique(rows[:40_000].numpy(), axis=0):
            goal = row[3:6].copy()
            achieved = row[10:13]
            assert (row[13:16] == goal).all()
            assert row[9] == achieved[2] - 10 * goal[2]
            row[3:6] = row[13:16] = -1
            without_reward = (*row[:9], 0, *row[10:])
            found[without_reward].add(tuple(goal))
        assert found == expected
        assert {tuple(row) for row in rows[40_000:].tolist()} == set(expected)  # as stored


def test_later_steps_are_equally_likely():
    """Of an episode of eight steps, the first transition gets each of the eight goals as often."""
    buffer = hindsight_buffer(100, 1)
    zeros = np.zeros((1, 1)), np.zeros(1), np.zeros(1)
    for t in range(8):
        obs, next_obs = np.zeros((2, 1, 8))
        obs[:, 2] = t
        next_obs[:, 2] = t + 1
        action, reward, terminated = zeros
        dones = np.array([t == 7])
        buffer.add(obs, action, reward, next_obs, terminated, dones=dones)
    obs, *_ = buffer.unpack(buffer.sample(100_000)[:80_000])
    first = obs[obs[:, 2] == 0]
    counts = first[:, 5].int().bincount(minlength=9)
    assert counts[0] == 0
    assert (counts[1:] - 1250).abs().max() < 5 * 1250**0.5


def test_relabelled_minibatches_of_a_run(monkeypatch, tmp_path):
    """With two environments that terminate and truncate, a buffer that wraps around, two resumes:
    no goal of a new episode gets into one that was given up."""
    seen = set()
    sample = HindsightBuffer.sample

    def checked(replay, batch_size):
        rows = sample(replay, batch_size)
        obs, _, rewards, next_obs, *_ = replay.unpack(rows)
        achieved = next_obs[:, :3]
        goals = next_obs[:, 3:6]
        relabelled = round(0.8 * batch_size)
        assert replay.num_envs == 2
        assert (obs[:, 3:6] == goals).all()
        assert (goals[relabelled:] == -1).all()
        achieved = achieved[:relabelled]
        goals = goals[:relabelled]
        assert (achieved[:, :2] == goals[:, :2]).all()
        assert (goals[:, 2] >= achieved[:, 2]).all()
        assert (goals[:, 2] <= goals[:, 1] % 7 + 1).all()  # the episode's length
        expected = achieved[:, 2] - 10 * goals[:, 2]
        assert torch.equal(rewards[:relabelled], expected)
        seen.update((goals[:, 2] - achieved[:, 2]).tolist())
        return rows

    monkeypatch.setattr(HindsightBuffer, "sample", checked)
    flags = dict(env_id=probe("Numbered", "sac_her"), buffer_size=101)
    run_dir, _ = helpers.train("sac_her", tmp_path, total_timesteps=194, **flags)
    for total in (394, 600):
        helpers.train("sac_her", tmp_path, total_timesteps=total, resume=str(run_dir), **flags)
    assert seen == set(range(7))


def test_without_hindsight_it_is_sac(tmp_path):
    """Bit for bit, with a buffer that wraps around, and a resume between two updates of the
    delayed actor."""
    flags = helpers.SMALL["sac_her"] | dict(buffer_size=99, gamma=0.9, policy_frequency=3)
    found = []
    for script, extra in (("sac", {}), ("sac_her", dict(n_sampled_goals=0))):
        run_dir, _ = helpers.train(script, tmp_path, **{**flags, **extra, "total_timesteps": 160})
        _, returns = helpers.train(script, tmp_path, resume=str(run_dir), **flags, **extra)
        points = {
            tag: points
            for tag, points in helpers.scalars(run_dir).items()
            if tag in helpers.tags(script)
        }
        seeded = {tag: points[tag] for tag in points.keys() - helpers.UNSEEDED}
        found.append((returns, seeded))
    assert found[0] == found[1]
    assert len(found[0][1]) == len(helpers.tags("sac")) - 1


class Clocked(Reach):
    """Its observation has another part, before the goals; its own goal is out of reach."""

    observation_space = Dict(a_clock=Box(-9, 9, (4,)), **Reach.observation_space)

    def first(self):
        self.goal = np.full(2, 4.0)
        self.point = np.zeros(2)
        return self.obs()

    def obs(self):
        return dict(a_clock=np.arange(4, dtype=np.float32), **super().obs())


def test_goals_are_where_the_environment_has_them(monkeypatch, tmp_path):
    """Behind the other part."""
    gym.register("Clocked-v0", lambda **_: Clocked())
    batches = []
    sample = HindsightBuffer.sample

    def kept(replay, batch_size):
        rows = sample(replay, batch_size)
        batches.append([part.clone() for part in replay.unpack(rows)])
        return rows

    monkeypatch.setattr(HindsightBuffer, "sample", kept)
    helpers.train("sac_her", tmp_path, env_id="Clocked-v0", total_timesteps=200)
    assert batches
    for obs, _, _, next_obs, *_ in batches:
        goals = obs[:, 6:8]
        relabelled = round(0.8 * len(obs))
        assert torch.equal(goals, next_obs[:, 6:8])
        assert (goals[relabelled:] == 4).all()
        assert (goals[:relabelled] != 4).all()
        assert (obs[:, :4] == torch.arange(4)).all()


def test_rewards_that_are_not_compute_rewards(tmp_path):
    """Relabelled rewards would be others than the agent's: one line."""

    def make(**_):
        return gym.wrappers.TransformReward(Reach(), lambda reward: 3 * reward)

    gym.register("Tripled-v0", make)
    with pytest.raises(SystemExit, match="compute_reward in the same wrapper"):
        helpers.train("sac_her", tmp_path, env_id="Tripled-v0")
    assert sac_her.find_goal_env(gym.make("CartPole-v1")) is None


def test_success_that_is_not_always_known(monkeypatch, tmp_path):
    """Its curve ends at the first episode that does not tell: the others would show another rate."""
    step, ends = Reach.step, []

    def step_and_tell(self, action):
        *results, info = step(self, action)
        info["is_success"] = True if self.np_random.random() < 0.8 else None
        if results[-1]:
            ends.append(info["is_success"])
        return *results, info

    monkeypatch.setattr(Reach, "step", step_and_tell)
    run_dir, _ = helpers.train("sac_her", tmp_path)
    expected = [1.0] * len([*itertools.takewhile(bool, ends)])
    points = helpers.scalars(run_dir).get("charts/success_rate", [])
    assert [value for _, value in points] == expected and len(expected) < ends.count(True)
