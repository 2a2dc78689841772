"""The scripts as commands: ways to start one, what a run leaves behind, and bad input."""

import re
import shutil
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests import helpers
from tests.probe_envs import probe


def check_run_dir(run_dir, script):
    """A finished run's files and tags; returns its last step."""
    names = {path.name for path in run_dir.iterdir()}
    assert {"args.json", f"{script}.py", "checkpoint.pt", "eval.json"} < names
    assert not [name for name in names if name.endswith(".tmp")]
    logged = helpers.scalars(run_dir)
    # if one has ended
    episodes = {f"charts/{name}" for name in ("episodic_return", "episodic_length", "success_rate")}
    evaluated = {"eval/episodic_return", "eval/episodic_length"}
    assert set(logged) - episodes == helpers.tags(script) | evaluated
    for tag in helpers.tags(script):
        steps = [step for step, _ in logged[tag]]
        assert steps == sorted(set(steps)), tag
    return helpers.load(run_dir)["global_step"]


def unchanged(run_dir):
    files = [path for path in run_dir.rglob("*") if path.is_file() and path.name != "lock"]
    return {path: path.read_bytes() for path in files}


# --- right input
def test_help(script, capsys, monkeypatch):
    """Every flag, what the script is, and what --resume takes."""
    monkeypatch.setenv("COLUMNS", "200")
    assert helpers.command_line(script, ["--help"]) == 0
    text = capsys.readouterr().out
    first_line = helpers.module(script).__doc__.splitlines()[0]
    assert " ".join(first_line.split()[:5]) in text and "auto: " in text
    for name, value in vars(helpers.module(script).Args()).items():
        flag = name.replace("_", "-")
        assert re.search(rf"--{flag}\b", text), flag
        assert not isinstance(value, bool) or re.search(rf"--no-{flag}\b", text), flag


@pytest.mark.parametrize("script", helpers.others_slow(["ppo", "dqn"], ["dqn"]))
def test_a_command(script, tmp_path):
    """python -m, or a copy of the script anywhere."""
    words = ["-m", "cleanrl_lite.ppo"] if script == "ppo" else ["dqn.py"]
    shutil.copy(helpers.SOURCE / f"{script}.py", tmp_path)
    words = [sys.executable, *words, *helpers.small_flags(script, tmp_path / "runs")]
    done = helpers.run(words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run_dir, total = helpers.only_run(tmp_path / "runs"), helpers.SMALL[script]["total_timesteps"]
    assert re.fullmatch(rf"CartPole-v1__{script}__1__\d{{10}}\.\d\d", run_dir.name)
    assert check_run_dir(run_dir, script) == total
    first, evaluation, last = done.stdout.splitlines()
    assert first == f"run directory: {run_dir} (cpu)" and last == f"finished: {run_dir}"
    assert evaluation.startswith(f"evaluation at step {total:,}: mean return ")


@pytest.mark.parametrize(
    "script, env_id",
    [
        ("ppo", "FrozenLake-v1"),  # Discrete observations
        ("ppo", probe("DictObs", "ppo")),
        # a researcher's first: no render_mode, no metadata
        ("ppo", "tests.probe_envs:ProbePlain-v0"),
        ("ppo_continuous", "Hopper-v5"),  # float64 observations; terminates
        ("dqn", "Blackjack-v1"),  # Tuple observations
        ("td3", "Pendulum-v1"),  # truncates
        # actions in double precision, and means out of bounds
        ("ppo_continuous", "tests.probe_envs:ProbeDouble-v0"),
        ("sac", probe("BytesObs", "sac")),
    ],
)
def test_environments(script, env_id, tmp_path):
    """Other kinds of episodes, observations and actions than those of the small runs."""
    run_dir, _ = helpers.train(script, tmp_path, env_id=env_id)
    assert run_dir.name.startswith(re.sub("[/:]", "-", env_id))
    assert check_run_dir(run_dir, script) == helpers.SMALL[script]["total_timesteps"]


@pytest.mark.slow
def test_a_users_own_modules(tmp_path):
    """utils.py of the current folder is the user's; a checkpoint imports a module only where the
    command names it."""
    (tmp_path / "utils.py").write_text("LENGTH = 7\n")
    (tmp_path / "mine.py").write_text(
        "import gymnasium as gym, utils\n"
        "gym.register('Mine-v0', lambda render_mode=None: "
        "gym.make('CartPole-v1', max_episode_steps=utils.LENGTH))\n"
    )
    flags = helpers.small_flags("dqn", "runs", env_id="mine:Mine-v0", total_timesteps=150)
    words = [sys.executable, helpers.SOURCE / "dqn.py"]
    done = helpers.run([*words, *flags], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mean return 7.00" in done.stdout
    done = helpers.run([*words, "--evaluate", helpers.only_run(tmp_path / "runs")], cwd=tmp_path)
    assert done.returncode == 1
    assert_one_line(done.stderr, r"imports a module\. To allow it: --env-id mine:Mine-v0")


# --- bad input: (script, flags, what the line says)
def bad(script, told, **flags):
    words = " ".join(f"{name}={value}" for name, value in flags.items())
    return pytest.param(script, flags, told, id=f"{script} {words}".replace(PROBES, ""))


PROBES = "tests.probe_envs:Probe"
IMAGE, MASKED = (f"{PROBES}{kind}-v0" for kind in ("ImageObsDiscrete", "Masked"))
BAD = [
    # ids and paths
    bad("ppo", r"--env-id CartPole-v7 .*v1", env_id="CartPole-v7"),
    bad("dqn_atari", r"BreakoutNoFramskip", env_id="BreakoutNoFramskip-v4"),
    bad("ppo", r"no_such_module", env_id="no_such_module:Env-v0"),
    bad("ppo", r"ppo_atari\.py", env_id="ale_py:ALE/Pong-v5"),
    bad("c51_atari", r"must be an Atari game.*ppo_image", env_id="CartPole-v1", env_kwargs="{}"),
    bad("ppo_atari", r"frameskip is always 4", env_kwargs='{"frameskip": 2}'),
    bad("ppo", r"cannot load /nowhere/at/all: FileNotFound", resume="/nowhere/at/all"),
    bad("ppo", r"--env-kwargs \{a: 1\}: ", env_kwargs="{a: 1}"),
    # sizes
    bad("ppo", r"--num-envs must be positive", num_envs=0),
    bad("ppo", r"--num-minibatches must divide", num_envs=3, num_minibatches=5),
    bad("rainbow", r"--buffer-size must be at least 1200", n_step=600),
    bad("dqn_atari", r"--learning-starts .* --num-envs", learning_starts=3),
    bad("sac", r"--buffer-size must", batch_size=10**6),
    bad("dqn", "--exploration-fraction must be positive", exploration_fraction=0),
    bad("dqn", "--eval-episodes must be positive", eval_episodes=0),  # not after hours
    bad("rainbow", "--priority-beta must be from 0 to 1", priority_beta=-0.4),
    bad("rainbow_atari", "--priority-alpha must be from 0 to 1", priority_alpha=1.5),
    bad("tqc", "--top-quantiles-to-drop must be >= 0", top_quantiles_to_drop=-1),
    bad("sac_her", "--n-sampled-goals must not be negative", n_sampled_goals=-3),
    # spaces: what the script takes, and a script for the others
    bad("sac", "no bounds", env_id=f"{PROBES}Fixed-v0"),
    bad("td3", r"no bounds.*ppo_continuous\.py", env_id=f"{PROBES}Unbounded-v0"),
    bad("dqn", r"must be Discrete, .* MultiDiscrete.*\bppo_masked\.py", env_id=MASKED),
    bad("dqn", r"observations are Box.*64, 3.*\bppo_image\.py", env_id=IMAGE),
]
for name, other in (("ppo", "ppo_continuous"), ("dqn", "sac")):
    BAD.append(bad(name, rf"must be Discrete, .* Box.*\b{other}\.py", env_id="Pendulum-v1"))
BAD += [bad(f"ppo_{kind}", "finite", env_id=f"{PROBES}Huge-v0") for kind in ("hybrid", "image")]
if not torch.cuda.is_available():
    BAD.append(bad("ppo", r"--cuda-graph needs a GPU", cuda_graph=True))


def assert_one_line(err, pattern):
    noise = r"\s*$|.*(Warn|WARN|it/s)|\s*(gym\.logger|logger\.|A\.L\.E|\[)"
    lines = [line for line in err.splitlines() if not re.match(noise, line)]
    assert len(lines) == 1 and lines[0].startswith("error: "), err
    assert re.search(pattern, lines[0]), err


@pytest.mark.parametrize("script, flags, told", BAD)
def test_bad_input(script, flags, told, capfd, monkeypatch, tmp_path):
    """One line, exit status 1, and nothing is created."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "offscreen")  # as without a display
    assert helpers.command_line(script, helpers.small_flags(script, "runs", **flags)) == 1
    assert_one_line(capfd.readouterr().err, told)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--no-such-flag"], ["--num-envs", "1.5"]])
def test_bad_flags(words, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert helpers.command_line("ppo", words) == 2
    streams = capfd.readouterr()
    assert words[0] in streams.out + streams.err and "Traceback" not in streams.err
    assert not list(tmp_path.iterdir())


# --- bad checkpoints
@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small run of ppo, not to be written to."""
    return helpers.train("ppo", tmp_path_factory.mktemp("trained"))[0]


def damage(path, how):
    if how == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "foreign":
        torch.save(dict(weights=torch.zeros(3)), path)
    else:
        state = torch.load(path, weights_only=True)
        state["agent"]["actor.0.weight"] = torch.zeros(7, 64)
        torch.save(state, path)


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
@pytest.mark.parametrize("how", ["truncated", "foreign", "another network"])
def test_a_bad_checkpoint(how, flag, trained, capfd, tmp_path):
    """One line, and it stays as it is; test_utils.py has those that would execute something."""
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    damage(copy / "checkpoint.pt", how)
    before = unchanged(copy)
    assert helpers.command_line("ppo", [flag, copy, "--total-timesteps", "1024"]) == 1
    assert_one_line(capfd.readouterr().err, r"checkpoint\.pt")
    assert unchanged(copy) == before


@pytest.mark.parametrize(
    "script, words, told",
    [
        ("dqn", [], r"cannot load .*checkpoint\.pt: .*loading state_dict"),
        ("ppo", ["--env-id", "Acrobot-v1"], r"cannot load .*size mismatch"),
        ("ppo", ["--num-envs", "2"], r"--resume needs --num-envs 4"),
    ],
)
def test_a_checkpoint_of_another_run(script, words, told, trained, capfd):
    """Refused, and left as it is; its args.json too."""
    before = unchanged(trained)
    words = ["--resume", trained, "--total-timesteps", "1024", *words]
    assert helpers.command_line(script, words) == 1
    assert_one_line(capfd.readouterr().err, told)
    assert unchanged(trained) == before


def test_another_replay_buffer(tmp_path, capfd):
    """Its rings would be mixed up, without a word."""
    run_dir, _ = helpers.train("dqn", tmp_path)
    assert helpers.command_line("dqn", ["--resume", run_dir, "--buffer-size", "9999"]) == 1
    assert_one_line(capfd.readouterr().err, "--resume needs --buffer-size")


@pytest.mark.parametrize("script", ["ppo_continuous", "ppo_image", "td3", "sac", "crossq"])
def test_actions_of_whole_numbers(script):
    """A policy of floats would be cut to whole numbers, without a word."""
    obs_space, whole = gym.spaces.Box(0, 1, (3, 1, 36, 36)), gym.spaces.Box(0, 5, (2,), np.int64)
    args = helpers.module(script).Args()
    with pytest.raises(SystemExit, match="must be .*a 1-D float Box"):
        helpers.module(script).Agent(args, obs_space, whole)
    helpers.module(script).Agent(args, obs_space, gym.spaces.Box(0, 5, (2,)))


# --- what the machine lacks
@pytest.mark.slow
def test_no_compiler(tmp_path):
    """Without a C++ compiler: one line, and training goes on in eager mode."""
    (tmp_path / "bin").mkdir()
    flags = helpers.small_flags("ppo", tmp_path / "runs", compile=True)
    extra = dict(
        PATH=str(tmp_path / "bin"), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"), CXX=""
    )
    soon = "import runpy; from cleanrl_lite import utils; utils.EAGER_CALLS = 5; "
    soon += "runpy.run_module('cleanrl_lite.ppo', run_name='__main__')"
    done = helpers.run([sys.executable, "-c", soon, *flags], cwd=tmp_path, **extra)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("continuing in eager mode: ") == 1, done.stderr
    assert "Traceback" not in done.stderr
    check_run_dir(helpers.only_run(tmp_path / "runs"), "ppo")
