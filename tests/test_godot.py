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

from cleanrl_lite import ppo_godot
from tests import helpers

pytestmark = pytest.mark.skipif(not helpers.GODOT, reason="godot-rl is not installed")
ENGINE = pytest.mark.skipif(
    not shutil.which("godot3-server"), reason="godot3-server is not installed"
)
GAME = str(helpers.ROOT / "tests/godot_game/reach.x86_64")
KINDS = ["continuous", "discrete", "mixed"]


def asked(**options):
    return dict(env_kwargs=json.dumps(options))


def train(folder, *, overrides=(), **options):
    """A small run of the game with these options; its directory, returns, and what each game was
    started with, got and sent: of training's two games, then of the evaluation's."""
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    run_dir, returns = helpers.train(
        "ppo_godot", folder / "runs", **asked(log=str(log), **options), **dict(overrides)
    )
    games = {}
    for line in map(json.loads, log.read_text().splitlines()):
        games.setdefault(line.pop("pid"), []).append(line)
    return run_dir, returns, [*games.values()]


def messages(game, direction, kind):
    return [
        line[direction] for line in game if direction in line and line[direction]["type"] == kind
    ]


# --- what is learned


@pytest.mark.parametrize("actions", KINDS)
def test_what_the_games_are_told(actions, tmp_path):
    """Numbers within their bounds, which noise exceeds, and as choices all of their options, for
    each agent its own."""
    _, _, games = train(tmp_path, actions=actions)
    assert len(games) == 3
    for game in games[:2]:
        sent = [
            action for message in messages(game, "got", "action") for action in message["action"]
        ]
        assert len(sent) == 512 / 2
        numbers = np.array([action["number"] for action in sent if "number" in action])
        if actions != "discrete":
            assert numbers.shape == (256, 1)
            assert numbers.max() == 1
            assert numbers.min() == -1
            assert len(np.unique(numbers)) > 100
        for name in dict(continuous=[], discrete=["side", "again"], mixed=["side"])[actions]:
            assert {action[name] for action in sent} == {0, 1, 2}
    if actions == "discrete":
        assert any(action["side"] != action["again"] for action in sent)


def test_every_answer_is_stored(monkeypatch, tmp_path):
    """Observations, flattened, rewards and ends of all agents of both games; an end is a
    termination."""
    batches = []
    rollouts = helpers.spy_on_calls(monkeypatch, "ppo_godot")

    def check(update, main, tensors):
        batches.append(main["b_obs"].reshape(32, 4, 4).clone())
        return update(*tensors)

    helpers.spy_on_updates(monkeypatch, check)
    run_dir, _, games = train(
        tmp_path, overrides=dict(total_timesteps=128, num_minibatches=1, update_epochs=1)
    )
    answers = [messages(game, "sent", "step") for game in games[:2]]
    rewards, dones = (
        np.hstack([[a[name] for a in answer] for answer in answers]) for name in ("reward", "done")
    )
    scaled, _, _, terminations, ends, *_ = rollouts[0]
    (obs,) = batches
    assert rewards.shape == (32, 4)
    assert dones.any()
    assert not dones.all()
    assert (terminations == dones).all()
    assert (ends == dones).all()
    np.testing.assert_allclose(scaled / scaled[0, 0], rewards / rewards[0, 0], rtol=1e-5)
    seen = [messages(game, "sent", "reset") + answer[:-1] for game, answer in zip(games, answers)]
    seen = [[[o["obs"] + [o["last"]] for o in message["obs"]] for message in game] for game in seen]
    seen = np.concatenate(seen, 1)  # (steps, agents, 3)
    # `last` is one of two
    flat = np.concatenate([1 - seen[..., 2:], seen[..., 2:], seen[..., :2]], -1)
    np.testing.assert_allclose(obs, flat, rtol=1e-6)  # the first rollout's statistics are 0 and 1
    agent = helpers.load(run_dir)["agent"]
    np.testing.assert_allclose(agent["obs_stats.mean"], flat.mean((0, 1)), rtol=1e-5)


# --- what can be wrong
WRONG = {
    "no such file": (
        dict(env_path="/no/game.x86_64"),
        r"--env-path /no/game.x86_64 .*no such game",
    ),
    "no JSON": (dict(env_kwargs="{x"), r"--env-kwargs \{x: Expecting"),
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
    assert (
        helpers.command_line(
            "ppo_godot", helpers.small_flags("ppo_godot", tmp_path / "runs", **flags)
        )
        == 1
    )
    error = capfd.readouterr().err.splitlines()
    assert len(error) == 1
    assert error[0].startswith("error: ")
    assert re.search(line, error[0]), error[0]
    assert not (tmp_path / "runs").exists()


def test_a_game_that_ends(capfd, tmp_path):
    """godot-rl itself would read from the closed connection for ever. The run can be resumed."""
    words = helpers.small_flags(
        "ppo_godot", tmp_path / "runs", save_every=64, **asked(fault="dies")
    )
    assert helpers.command_line("ppo_godot", words) == 1
    said = capfd.readouterr()
    assert said.err.splitlines()[-1] == "ConnectionError: the game has ended"
    assert "stopped. Resume at step 128 with --resume " in said.out.splitlines()[-1]
    helpers.next_second()
    flags = dict(resume=str(helpers.only_run(tmp_path / "runs")), total_timesteps=640)
    helpers.main("ppo_godot", helpers.small_args("ppo_godot", tmp_path / "runs", **flags))
    assert helpers.load(flags["resume"])["global_step"] == 640


# --- processes, and Godot itself
def children(process):
    """The games of a script that runs in a process of its own."""
    return psutil.Process(process.pid).children(recursive=True)


def start(folder, **flags):
    words = helpers.small_flags("ppo_godot", folder, total_timesteps=10**7, **flags)
    command = [sys.executable, "-m", "cleanrl_lite.ppo_godot", *map(str, words)]
    return helpers.in_background(command, helpers.ROOT)


def under_way(folder):
    """Until it has trained for a while."""
    helpers.wait_for(lambda: any(path.stat().st_size > 5_000 for path in folder.glob("*/events*")))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["silent", "hangs"])
def test_no_game_is_left_behind(fault, tmp_path):
    """Neither one that never connects nor one that does not end when it is asked to."""
    flags = asked(fault=fault, log=str(tmp_path / "log"))
    log = tmp_path / "log"
    process = start(tmp_path / "runs", **flags)
    helpers.wait_for(lambda: log.exists() and '"start"' in log.read_text())
    if fault == "hangs":
        under_way(tmp_path / "runs")
    games = children(process)
    assert games
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode
    assert psutil.wait_procs(games, 5)[1] == []


@ENGINE
@pytest.mark.slow
@pytest.mark.parametrize("actions", KINDS)
def test_godot_learns(actions, tmp_path):
    """By chance an episode returns 0.2, or -1.0 where it may grab; at best 1 and the way to the
    target: 2.0."""
    flags = dict(env_id="Reach-v0", env_path=GAME, speedup=1000, num_envs=16, num_steps=128)
    flags |= dict(num_minibatches=32, total_timesteps=30_720, update_epochs=10, eval_episodes=30)
    flags |= asked(actions=actions)
    run_dir, returns = helpers.train("ppo_godot", tmp_path, **flags)
    trained = [value for _, value in helpers.scalars(run_dir)["charts/episodic_return"]]
    assert np.mean(trained[:50]) < 0.5
    assert np.mean(trained[-100:]) > 1.6
    assert np.mean(returns) > 1.6
