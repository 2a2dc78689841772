"""ppo_godot.py: what games are told and what is learned from their answers; games that are wrong,
end, or hang.

Fast tests play tests/like_godot.py, slow ones tests/godot_game in Godot itself, where
godot3-server is installed.
"""

import json
import re
import shutil
import signal
import sys

import numpy as np
import psutil
import pytest
import torch

from cleanrl_lite import ppo_godot, utils
from tests import helpers

pytestmark = pytest.mark.skipif(not helpers.GODOT, reason="godot-rl is not installed")
ENGINE = pytest.mark.skipif(
    not shutil.which("godot3-server"), reason="godot3-server is not installed"
)
GAME = str(helpers.ROOT / "tests/godot_game/reach.x86_64")
KINDS = ["continuous", "discrete", "mixed"]


def asked(**options):
    return dict(env_kwargs=json.dumps(options))


def games_in(log):
    """What each game got and sent, in the order of their starts."""
    games = {}
    for line in map(json.loads, log.read_text().splitlines()):
        games.setdefault(line.pop("pid"), []).append(line)
    return [*games.values()]


def messages(game, direction, kind):
    return [
        line[direction] for line in game if direction in line and line[direction]["type"] == kind
    ]


def flat(message):
    """The observations of a message as the agent sees them: `last` is one of two."""
    rows = [[1 - obs["last"], obs["last"], *obs["obs"]] for obs in message["obs"]]
    return np.array(rows, np.float32)


# --- what is learned


@pytest.mark.parametrize("actions", KINDS)
def test_steps_of_games(actions, tmp_path):
    """Two games of two agents each: numbers are clipped to their bounds, choices the largest of
    their columns, each agent's its own. Observations are flattened; all ends are terminations;
    returns and lengths are those of each agent's episodes."""
    log = tmp_path / "log"
    args = helpers.small_args("ppo_godot", "unused", **asked(log=str(log), actions=actions))
    games = ppo_godot.Games(args)
    envs = utils.Envs(args, games)
    rng = np.random.default_rng(0)
    width = dict(continuous=1, discrete=6, mixed=4)[actions]
    assert envs.single_action_space.shape == (width,)
    played, expected_episodes, episodes = [], [], []
    for t in range(30):
        given = rng.normal(size=(4, width)).astype(np.float32)
        obs = envs.obs.copy()
        next_obs, rewards, terminations, truncations, infos = envs.step(given)
        played.append((given, obs, rewards, terminations, envs.obs.copy()))
        assert not truncations.any()
        episodes += [(t, n, *info["episode"].values()) for n, info in enumerate(infos) if info]
        np.testing.assert_array_equal(next_obs[~terminations], envs.obs[~terminations])
    envs.close()
    found = games_in(log)
    assert len(found) == 2
    seeds = [word for game in found for word in game[0]["start"] if word.startswith("--env_seed")]
    assert len({*seeds}) == 2
    assert f"--env_seed={args.seed}" in seeds
    told = [messages(game, "got", "action") for game in found]
    answers = [messages(game, "sent", "step") for game in found]
    firsts = [messages(game, "sent", "reset")[0] for game in found]
    seen = np.concatenate([flat(message) for message in firsts])
    totals, lengths = np.zeros(4), np.zeros(4)
    for t, (given, obs, rewards, terminations, after) in enumerate(played):
        np.testing.assert_allclose(obs, seen, rtol=1e-6)
        got = [action for game in told for action in game[t]["action"]]
        for row, action in zip(given, got, strict=True):
            if "number" in action:
                assert action["number"] == pytest.approx([np.clip(row[-1], -1, 1)])
            if "side" in action:
                assert action["side"] == row[:3].argmax()
            if "again" in action:
                assert action["again"] == row[3:].argmax()
        assert rewards.tolist() == [x for game in answers for x in game[t]["reward"]]
        assert terminations.tolist() == [x for game in answers for x in game[t]["done"]]
        seen = np.concatenate([flat(game[t]) for game in answers])
        np.testing.assert_allclose(after, seen, rtol=1e-6)
        totals += rewards
        lengths += 1
        for n in np.flatnonzero(terminations):
            expected_episodes.append((t, n, pytest.approx(totals[n]), lengths[n]))
            totals[n] = lengths[n] = 0
    assert episodes == expected_episodes
    assert len(episodes) > 10


def test_a_resumed_run_plays_other_games(tmp_path):
    """A game takes its seed when it starts: those of another seed are started, these are ended."""
    log = tmp_path / "log"
    args = helpers.small_args("ppo_godot", "unused", **asked(log=str(log)))
    envs = utils.Envs(args, ppo_godot.Games(args))
    envs.begin(128)
    processes = [game.proc for game in envs.env.games]
    assert all(process.poll() is None for process in processes)
    envs.close()
    assert all(process.wait(5) is not None for process in processes)
    games = games_in(log)
    assert len({word for g in games for word in g[0]["start"] if word.startswith("--env_s")}) >= 3
    assert all(messages(game, "got", "close") for game in games)


def test_an_evaluation_is_of_the_first_agent(tmp_path):
    """The others play on, and do not count."""
    log = tmp_path / "log"
    args = helpers.small_args("ppo_godot", "unused", **asked(log=str(log), actions="mixed"))
    env = ppo_godot.make_env(args)
    agent = ppo_godot.Agent(args, env.observation_space, env.action_space)
    obs, _ = env.reset()
    total = []
    while len(total) < 20:
        obs, reward, over, cut, _ = env.step(agent.act(torch.from_numpy(obs)).detach().numpy())
        total.append((reward, over))
        assert not cut
    env.close()
    (game,) = games_in(log)
    answers = messages(game, "sent", "step")
    assert total == [(message["reward"][0], message["done"][0]) for message in answers]


# --- what can be wrong
WRONG = {
    "no such file": (dict(env_path="/no/game"), r"--env-path /no/game .*no such game"),
    "in the options": (dict(env_path=None) | asked(env_path="/no/game"), "multiple values"),
    "never connects": (asked(fault="silent"), "the game does not connect"),
    "too few environments": (
        dict(num_envs=2) | asked(agents=4),
        "--num-envs 2 must be a multiple of the game's 4 agents",
    ),
    "images": (asked(fault="image"), "with images, are not supported"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_games(name, monkeypatch, capfd, tmp_path):
    flags, line = WRONG[name]
    if name == "never connects":
        monkeypatch.setattr(ppo_godot.GodotEnv, "DEFAULT_TIMEOUT", 0.5)
    monkeypatch.chdir(tmp_path)
    words = helpers.small_flags("ppo_godot", tmp_path / "runs", **flags)
    assert helpers.command_line("ppo_godot", words) == 1
    error = capfd.readouterr().err.splitlines()
    assert len(error) == 1
    assert error[0].startswith("error: ")
    assert re.search(line, error[0]), error[0]
    assert not (tmp_path / "runs").exists()


def test_a_checkpoint_starts_no_game(capfd, tmp_path):
    """But the one that the command names."""
    run_dir, _ = helpers.train("ppo_godot", tmp_path)
    game = helpers.SMALL["ppo_godot"]["env_path"]
    for flag in ("--evaluate", "--resume"):
        assert helpers.command_line("ppo_godot", [flag, run_dir]) == 1
        assert f"starts a program. To allow it: --env-path {game}" in capfd.readouterr().err
    assert helpers.command_line("ppo_godot", ["--evaluate", run_dir, "--env-path", game]) == 0


@pytest.mark.slow
def test_a_game_that_ends(capfd, tmp_path):
    """godot-rl itself would read from the closed connection for ever. The run can be resumed."""
    flags = dict(save_every=64, **asked(fault="dies"))
    words = helpers.small_flags("ppo_godot", tmp_path / "runs", **flags)
    assert helpers.command_line("ppo_godot", words) == 1
    assert "ConnectionError: the game has ended" in capfd.readouterr().err.splitlines()
    run_dir = helpers.only_run(tmp_path / "runs")
    assert helpers.load(run_dir)["global_step"] == 128
    helpers.next_second()
    flags = dict(resume=str(run_dir), total_timesteps=640)
    helpers.train("ppo_godot", tmp_path / "runs", **flags)
    assert helpers.load(run_dir)["global_step"] == 640


# --- processes, and Godot itself


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["silent", "hangs"])
def test_no_game_is_left_behind(fault, tmp_path):
    """Neither one that never connects nor one that does not end when it is asked to."""
    log, runs = tmp_path / "log", tmp_path / "runs"
    flags = dict(total_timesteps=10**7, **asked(fault=fault, log=str(log)))
    words = helpers.small_flags("ppo_godot", runs, **flags)
    command = [sys.executable, "-m", "cleanrl_lite.ppo_godot", *map(str, words)]
    process = helpers.in_background(command, helpers.ROOT)
    helpers.wait_for(lambda: log.exists() and '"start"' in log.read_text())
    if fault == "hangs":  # once it has trained for a while
        helpers.wait_for(lambda: any(x.stat().st_size > 5_000 for x in runs.glob("*/events*")))
    games = psutil.Process(process.pid).children(recursive=True)
    assert games
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode
    assert psutil.wait_procs(games, 5)[1] == []


@ENGINE
@pytest.mark.slow
def test_godot_learns(tmp_path):
    """By chance an episode returns 0.2, or -1.0 where it may grab; at best 1 and the way to the
    target: 2.0."""
    flags = dict(env_id="Reach-v0", env_path=GAME, speedup=1000, num_envs=16, num_steps=128)
    flags |= dict(num_minibatches=32, total_timesteps=30_720, update_epochs=10, eval_episodes=30)
    flags |= asked(actions="mixed")
    run_dir, returns = helpers.train("ppo_godot", tmp_path, **flags)
    trained = [value for _, value in helpers.scalars(run_dir)["charts/episodic_return"]]
    assert np.mean(trained[:50]) < 0.5
    assert np.mean(trained[-100:]) > 1.6
    assert np.mean(returns) > 1.6
