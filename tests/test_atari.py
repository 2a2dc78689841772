"""Games, the C++ environments of training, against gymnasium's, those of evaluation and video.

The text of Games, PressFire and make_env is the same in every Atari script (test_consistency): what is slow is checked
in ppo_atari alone.
"""

import copy

import ale_py
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from cleanrl_lite import buffers, ppo_atari
from tests import helpers

gym.register_envs(ale_py)


def games(num_envs=1, env_id="BreakoutNoFrameskip-v4", script=ppo_atari, **settings):
    return script.Games(num_envs, **{**script.game_settings(env_id), "num_threads": 1, **settings})


def bare_games(monkeypatch, **settings):
    """Games without no-ops and without FIRE at the start, the two things that are random or wrapped differently."""
    original = ale_py.vector_env.AtariVectorEnv

    def make(**kwargs):
        return original(**{**kwargs, "noop_max": 0, "use_fire_reset": False})

    with monkeypatch.context() as patch:
        patch.setattr(ale_py.vector_env, "AtariVectorEnv", make)
        return games(**settings)


def bare_evaluation_env(monkeypatch, env_id, script=ppo_atari):
    original = gym.wrappers.AtariPreprocessing
    with monkeypatch.context() as patch:
        patch.setattr(gym.wrappers, "AtariPreprocessing", lambda env, noop_max: original(env, noop_max=0))
        patch.setattr(script, "PressFire", without_press_at_the_start(script.PressFire))
        return script.make_env(helpers.small_args("ppo_atari", "unused", env_id=env_id))


def without_press_at_the_start(PressFire):
    class LostLifeFire(PressFire):
        def reset(self, **kwargs):
            obs, info = gym.Wrapper.reset(self, **kwargs)
            self.lives, self.lost_life = info["lives"], False
            return obs, info

    return LostLifeFire


ALL_GAMES = [("ppo_atari", game) for game in ("Breakout", "Pong", "SpaceInvaders", "Freeway")]


@pytest.mark.parametrize("script, game", [*ALL_GAMES, ("dqn_atari", "Breakout"), ("c51_atari", "Breakout")])
def test_same_observations(script, game, monkeypatch):
    """Training's and evaluation's environment: the same observations, rewards and lost lives for the same actions."""
    env_id, script = f"{game}NoFrameskip-v4", helpers.module(script)
    trains = bare_games(monkeypatch, env_id=env_id, script=script)
    evaluates = bare_evaluation_env(monkeypatch, env_id, script)
    assert trains.single_action_space == evaluates.action_space
    assert trains.single_observation_space.shape == evaluates.observation_space.shape == (4, 84, 84)
    assert evaluates.observation_space.dtype == np.uint8
    obs, _ = trains.reset(seed=1)
    expected, info = evaluates.reset(seed=1)
    lives, rewards, lost, rng = info["lives"], 0.0, 0, np.random.default_rng(1)
    for t in range(400):
        difference = np.abs(obs[0].astype(int) - np.asarray(expected).astype(int))
        assert difference.max() == 0, (
            f"step {t}: {(difference > 0).mean():.1%} of the pixels differ by up to {difference.max()}"
        )
        action = rng.integers(trains.single_action_space.n)
        obs, reward, terminated, truncated, infos = trains.step(np.array([action]))
        expected, expected_reward, over, _, info = evaluates.step(action)
        assert reward[0] == expected_reward and infos["lives"][0] == info["lives"] or over
        assert terminated[0] == (over or info["lives"] < lives) and not truncated[0]
        lives, rewards, lost = info["lives"], rewards + expected_reward, lost + terminated[0]
        if over:
            break
    assert t > 100
    assert game not in ("Breakout", "SpaceInvaders") or lost > 0


def test_a_lost_life_ends_the_episode_but_not_the_game():
    """Breakout has five lives: five terminations, one game in final_info, with all of its frames and rewards."""
    envs = games(2)
    envs.reset(seed=1)
    rng, rewards, terminations = np.random.default_rng(0), [], []
    for _ in range(4000):
        _, reward, terminated, truncated, infos = envs.step(rng.integers(4, size=2))
        rewards.append(reward.copy())
        terminations.append(terminated.copy())
        assert not truncated.any()
        if "final_info" in infos and infos["_final_info"][0]:
            break
        assert infos["lives"][0] == 5 - sum(t[0] for t in terminations)
    assert sum(t[0] for t in terminations) == 5 and terminations[-1][0]
    episode = infos["final_info"]["episode"]
    assert episode["r"][0] == sum(r[0] for r in rewards)
    assert episode["l"][0] == len(rewards)
    assert infos["lives"][0] == 5  # a new game has begun
    _, _, _, _, infos = envs.step(np.zeros(2, dtype=np.int64))
    assert envs.lengths[0] == 1


def test_life_loss_goes_on_with_the_same_game():
    """After a life is lost the stack of frames goes on; after the last one it starts anew."""
    envs = games(1)
    obs, _ = envs.reset(seed=1)
    lost = 0
    for _ in range(2000):
        before = obs.copy()
        obs, _, terminated, _, infos = envs.step(np.zeros(1, dtype=np.int64))
        goes_on = np.array_equal(obs[0, :3], before[0, 1:])
        if terminated[0]:
            lost += 1
            assert goes_on == (lost < 5)
            if lost == 5:
                return
        else:
            assert goes_on
    pytest.fail("nothing was lost")


def test_rewards_are_unclipped_in_the_log_and_clipped_for_learning(monkeypatch, tmp_path):
    seen, rollouts = [], []
    step, gae = ppo_atari.Games.step, ppo_atari.compute_gae

    def spy_step(self, actions):
        result = step(self, actions)
        seen.append(result[1].copy())
        return result

    def spy_gae(*rollout):
        rollouts.append(copy.deepcopy(rollout))
        return gae(*rollout)

    monkeypatch.setattr(ppo_atari.Games, "step", spy_step)
    monkeypatch.setattr(ppo_atari, "compute_gae", spy_gae)
    sizes = dict(env_id="SpaceInvadersNoFrameskip-v4", num_steps=64, total_timesteps=128, update_epochs=1)
    helpers.train("ppo_atari", tmp_path, **sizes)
    assert np.max(seen) > 1
    np.testing.assert_array_equal(rollouts[0][0], np.sign(seen))


def test_whole_games_are_logged(atari_script, monkeypatch, tmp_path):
    """charts/episodic_return is the sum of the raw rewards of a whole game, at the step at which it ended."""
    Games = helpers.module(atari_script).Games
    seen, step = [], Games.step

    def spy_step(self, actions):
        result = step(self, actions)
        seen.append((result[1].copy(), result[4].get("_final_info", np.zeros(2, dtype=bool)).copy()))
        return result

    monkeypatch.setattr(Games, "step", spy_step)
    shorten(monkeypatch, frames=120, script=helpers.module(atari_script))
    sizes = helpers.rollout_only(atari_script, num_steps=64, update_epochs=1)
    run_dir, _ = helpers.train(atari_script, tmp_path, total_timesteps=256, **sizes)
    expected, running = [], np.zeros(2)
    for t, (rewards, over) in enumerate(seen, 1):
        running += rewards
        expected += [(2 * t, running[n]) for n in np.flatnonzero(over)]
        running[over] = 0
    assert helpers.scalars(run_dir)["charts/episodic_return"] == expected and len(expected) >= 4


@pytest.mark.parametrize("env_id", ["BreakoutNoFrameskip-v4", "SpaceInvadersNoFrameskip-v4"])
def test_fire_after_a_lost_life(env_id, monkeypatch):
    """The action after a lost life is FIRE, whatever the policy wants, in training and in evaluation."""
    envs, sent = games(2, env_id), []
    monkeypatch.setattr(envs.env, "step", lambda actions: (sent.append(np.array(actions)), step(actions))[1])
    step = type(envs.env).step.__get__(envs.env)
    envs.reset(seed=1)
    lost, forced = np.zeros(2, dtype=bool), 0
    for _ in range(1500):
        _, _, terminated, _, infos = envs.step(np.full(2, 3))
        for n in range(2):
            assert sent[-1][n] == (1 if lost[n] else 3)
        forced += lost.sum()
        lost = terminated & ~infos.get("_final_info", np.zeros(2, dtype=bool))
    assert forced > 2
    assert envs.env.ale.get_action_set()[1] == ale_py.Action.FIRE


def test_no_fire_button():
    """Freeway has none: no action is ever replaced, not even when a life is reported as lost."""
    envs, sent = games(1, "FreewayNoFrameskip-v4"), []
    assert envs.fire == 0
    envs.reset(seed=1)
    step = envs.env.step
    envs.env.step = lambda actions: (sent.append(int(actions[0])), step(actions))[1]
    for _ in range(20):
        envs.step(np.full(1, 1, dtype=np.int64))
        assert not envs.lost_life.any()
    assert sent == [1] * 20


@pytest.mark.parametrize(
    "env_id, sticky, actions",
    [("BreakoutNoFrameskip-v4", 0.0, 4), ("ALE/Breakout-v5", 0.25, 4), ("ALE/Pong-v5", 0.25, 6)],
)
def test_ids_mean_what_they_mean(atari_script, env_id, sticky, actions):
    script = helpers.module(atari_script)
    settings = script.game_settings(env_id)
    assert settings["repeat_action_probability"] == sticky
    env = script.make_env(helpers.small_args(atari_script, "unused", env_id=env_id))
    assert env.unwrapped.ale.getFloat("repeat_action_probability") == pytest.approx(sticky)
    assert env.action_space.n == games(1, env_id, script).single_action_space.n == actions


def test_sticky_actions_are_random_per_environment():
    """Two environments with the same actions: the same game without sticky actions and no-ops, different ones with."""
    for env_id, same in (("BreakoutNoFrameskip-v4", True), ("ALE/Breakout-v5", False)):
        settings = {**ppo_atari.game_settings(env_id), "use_fire_reset": True}
        options = dict(num_envs=2, noop_max=0, autoreset_mode=AutoresetMode.SAME_STEP, num_threads=1)
        envs = ale_py.vector_env.AtariVectorEnv(**options, **settings)
        envs.reset(seed=1)
        for t in range(60):
            obs, *_ = envs.step(np.full(2, 2 + t % 2))
        assert np.array_equal(obs[0], obs[1]) == same


def shorten(monkeypatch, frames, script=ppo_atari):
    """Games of at most so many frames."""
    settings = script.game_settings
    monkeypatch.setattr(script, "game_settings", lambda i: settings(i) | dict(max_num_frames_per_episode=frames))


@pytest.mark.parametrize("script", ["dqn_atari", "c51_atari"])
def test_what_the_replay_buffer_gets(script, monkeypatch, tmp_path):
    """What the agent saw and did, the sign of the reward, lost lives as terminations, and where a new game begins."""
    steps, adds = [], []
    Games, step, add = helpers.module(script).Games, helpers.module(script).Games.step, buffers.FrameReplayBuffer.add

    def spy_step(self, actions):
        seen = self.env_obs.copy() if hasattr(self, "env_obs") else None
        result = step(self, actions)
        self.env_obs = result[0]
        steps.append(copy.deepcopy((seen, actions, *result)))
        return result

    def spy_add(self, *parts):
        adds.append(copy.deepcopy(parts))
        add(self, *parts)

    monkeypatch.setattr(Games, "step", spy_step)
    monkeypatch.setattr(buffers.FrameReplayBuffer, "add", spy_add)
    shorten(monkeypatch, frames=1400, script=helpers.module(script))
    flags = dict(env_id="SpaceInvadersNoFrameskip-v4", total_timesteps=1600, learning_starts=1598, end_e=1.0)
    helpers.train(script, tmp_path, **flags)
    raw = np.array([rewards for _, _, _, rewards, *_ in steps])
    assert raw.max() > 1 and len(adds) == len(steps) == 800
    ends = truncated = lost = 0
    for (seen, actions, _, rewards, terminations, truncations, infos), stored in zip(steps, adds):
        obs, stored_actions, stored_rewards, stored_terminations, stored_truncations, new_games, final_obs = stored
        assert seen is None or np.array_equal(obs, seen)
        np.testing.assert_array_equal(stored_actions, actions)
        np.testing.assert_array_equal(stored_rewards, np.sign(rewards))
        np.testing.assert_array_equal(stored_terminations, terminations)
        np.testing.assert_array_equal(stored_truncations, truncations)
        np.testing.assert_array_equal(new_games, infos.get("_final_info", np.zeros(2, dtype=bool)))
        for n in np.flatnonzero(truncations):
            np.testing.assert_array_equal(final_obs[n], infos["final_obs"][n])
        ends, truncated = ends + new_games.sum(), truncated + truncations.sum()
        lost += (terminations & ~new_games).sum()
    assert ends >= truncated >= 4 and lost >= 1


def test_final_observation_of_a_truncated_game(monkeypatch):
    """final_obs is what a game without the limit shows after the same step; obs is the next game's first one.

    ale-py pools the very last frame with one that is too old by one step: an object that moved leaves a few pixels.
    """
    short, long = (bare_games(monkeypatch, max_num_frames_per_episode=n) for n in (200, 100_000))
    for envs in (short, long):
        envs.reset(seed=1)
    for t in range(1, 51):
        actions = np.array([2 + t // 5 % 2])
        obs, _, terminated, truncated, infos = short.step(actions)
        expected, *_ = long.step(actions)
        assert truncated[0] == (t == 50)
    np.testing.assert_array_equal(infos["final_obs"][0, :3], expected[0, :3])
    assert (infos["final_obs"][0, 3] != expected[0, 3]).mean() < 0.005 < (obs[0, 2] != expected[0, 2]).mean()
    assert infos["_final_info"][0] and infos["final_info"]["episode"]["l"][0] == 50
    assert (obs[0] != expected[0]).any() and (obs[0, :3] == 0).all()


def test_truncated_games_bootstrap_from_their_last_observation(monkeypatch, tmp_path):
    """next_values at a truncation is the value of final_obs, elsewhere the value of the next stored observation."""
    finals, rollouts, agents, lasts = {}, [], [], []
    step, gae, Agent = ppo_atari.Games.step, ppo_atari.compute_gae, ppo_atari.Agent

    def spy_step(self, actions):
        result = step(self, actions)
        self.count = getattr(self, "count", -1) + 1
        for n in np.flatnonzero(result[3]):
            finals[self.count, n] = torch.from_numpy(result[4]["final_obs"][n].copy())
        if self.count == 63:  # what the rollout's last step has led to
            with torch.no_grad():
                lasts.append(agents[0](torch.from_numpy(result[0]))[1].numpy())
        return result

    def spy_gae(*rollout):
        rollouts.append(copy.deepcopy(rollout))
        if len(rollouts) == 1:  # the networks of the rollout, before the update
            with torch.no_grad():
                finals.update({where: agents[0](obs[None])[1].item() for where, obs in finals.items()})
        return gae(*rollout)

    class SpiedAgent(Agent):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            agents.append(self)

    monkeypatch.setattr(ppo_atari.Games, "step", spy_step)
    monkeypatch.setattr(ppo_atari, "compute_gae", spy_gae)
    monkeypatch.setattr(ppo_atari, "Agent", SpiedAgent)
    shorten(monkeypatch, frames=160)
    helpers.train("ppo_atari", tmp_path, num_steps=64, total_timesteps=128, update_epochs=1)
    _, values, next_values, terminations, dones = rollouts[0][:5]
    assert len(finals) >= 2
    for (t, n), value in finals.items():
        assert dones[t, n] and not terminations[t, n]
        assert next_values[t, n] == pytest.approx(value, rel=1e-4, abs=1e-5)
    inner = ~dones[:-1]
    np.testing.assert_allclose(next_values[:-1][inner], values[1:][inner], rtol=1e-4, atol=1e-5)
    assert not dones[-1].all()
    np.testing.assert_allclose(next_values[-1][~dones[-1]], lasts[0][~dones[-1]], rtol=1e-4, atol=1e-5)


def test_ppo_atari_samples_in_training_and_not_in_evaluation(monkeypatch, tmp_path):
    logits, actions, step, Agent = torch.tensor([1.0, 0.0, 0.3, -1.0]), [], ppo_atari.Games.step, ppo_atari.Agent

    class BiasedAgent(Agent):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            torch.nn.init.zeros_(self.actor.weight)
            self.actor.bias.data.copy_(logits)

    monkeypatch.setattr(ppo_atari, "Agent", BiasedAgent)
    monkeypatch.setattr(ppo_atari.Games, "step", lambda self, a: actions.extend(a.tolist()) or step(self, a))
    helpers.train("ppo_atari", tmp_path, num_steps=250, total_timesteps=500, learning_rate=1e-20, update_epochs=1)
    probs, found = logits.softmax(0).numpy(), np.bincount(actions, minlength=4) / len(actions)
    assert len(actions) == 500 and (np.abs(found - probs) < 4.5 * (probs * (1 - probs) / 500) ** 0.5).all()
    assert BiasedAgent(4).act(torch.zeros((1, 4, 84, 84), dtype=torch.uint8)) == 0


def test_idle_frames_at_a_games_start(atari_script, monkeypatch):
    """Up to 30, in training and in evaluation: without them the greedy policy's games would all be the same."""
    script, found, original = helpers.module(atari_script), {}, ale_py.vector_env.AtariVectorEnv
    monkeypatch.setattr(
        ale_py.vector_env, "AtariVectorEnv", lambda **kwargs: found.update(kwargs) or original(**kwargs)
    )
    games(script=script).close()
    env = script.make_env(script.Args())
    assert found["noop_max"] == env.get_wrapper_attr("noop_max") == 30


def test_resumed_games_are_new_ones(monkeypatch, tmp_path):
    run_dir, _ = helpers.train("dqn_atari", tmp_path, total_timesteps=96)
    script, seeds = helpers.module("dqn_atari"), []
    reset = script.Games.reset
    monkeypatch.setattr(script.Games, "reset", lambda self, seed: seeds.append(seed) or reset(self, seed=seed))
    helpers.main("dqn_atari", helpers.small_args("dqn_atari", tmp_path, resume=str(run_dir)))
    assert seeds == [1 + 96]


def test_rollouts_are_stored_as_bytes(monkeypatch, tmp_path):
    """84 x 84 x 4 bytes an observation: float32 would take four times the memory."""
    shapes = []
    zeros, torch_zeros = np.zeros, torch.zeros

    def spy(original):
        def call(*args, **kwargs):
            array = original(*args, **kwargs)
            if tuple(array.shape[-3:]) == (4, 84, 84):
                shapes.append(array.dtype)
            return array

        return call

    with monkeypatch.context() as patch:
        patch.setattr(np, "zeros", spy(zeros))
        patch.setattr(torch, "zeros", spy(torch_zeros))
        helpers.train("ppo_atari", tmp_path)
    assert {np.dtype("uint8"), torch.uint8} >= set(shapes) and shapes


def test_bfloat16_is_close(tmp_path):
    agent = ppo_atari.Agent(4)
    rough = ppo_atari.Agent(4, bf16=True)
    rough.load_state_dict(agent.state_dict())
    obs = torch.randint(256, (8, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        (dist, value), (rough_dist, rough_value) = agent(obs), rough(obs)
    assert rough_value.dtype == rough_dist.logits.dtype == torch.float32
    torch.testing.assert_close(rough_value, value, rtol=0.05, atol=0.05)
    torch.testing.assert_close(rough_dist.logits, dist.logits, rtol=0.05, atol=0.01)
    assert not torch.equal(rough_value, value)
    with torch.no_grad():  # the input's scale, by hand
        torch.testing.assert_close(
            value, agent.critic(agent.network(obs.float() / 255)).squeeze(-1), rtol=1e-4, atol=1e-5
        )
    run_dir, _ = helpers.train("ppo_atari", tmp_path, bf16=True)
    assert all(tensor.dtype == torch.float32 for tensor in helpers.load(run_dir)["agent"].values())


@pytest.mark.parametrize("script", ["dqn_atari", "c51_atari"])
def test_bfloat16_is_close_off_policy(script, tmp_path):
    network, rough = (helpers.module(script).QNetwork(5, bf16) for bf16 in (False, True))
    rough.load_state_dict(network.state_dict())
    obs = torch.randint(256, (8, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        exact, close = network(obs), rough(obs)
    assert close.dtype == torch.float32 and not torch.equal(exact, close)
    torch.testing.assert_close(close, exact, rtol=0.05, atol=0.01)
    run_dir, _ = helpers.train(script, tmp_path, bf16=True)
    assert all(tensor.dtype == torch.float32 for tensor in helpers.load(run_dir)["agent"].values())


@pytest.mark.parametrize("script", helpers.ATARI_SCRIPTS)
def test_networks_compute_in_channels_last(script, monkeypatch, tmp_path):
    """The form in which the convolutions are fastest, after a resumed run's load too."""
    agents, Agent = [], helpers.module(script).Agent

    class SpiedAgent(Agent):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            agents.append(self)

    monkeypatch.setattr(helpers.module(script), "Agent", SpiedAgent)
    run_dir, _ = helpers.train(script, tmp_path)
    helpers.main(script, helpers.small_args(script, tmp_path, resume=str(run_dir)))
    for agent in agents:
        weights = [param for param in agent.parameters() if param.dim() == 4]
        assert weights and all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
