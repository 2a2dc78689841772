"""The scripts as commands: ways to start one, what a run leaves behind, resuming, evaluating,
and every bad input."""

import contextlib
import os
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from cleanrl_lite import utils
from tests import helpers
from tests.probe_envs import probe

RATE = dict.fromkeys(helpers.SCRIPTS, "learning_rate") | dict(sac="q_lr")


def check_run_dir(run_dir, script):
    """A finished run's files and tags; returns its last step."""
    names = {path.name for path in run_dir.iterdir()}
    assert {"args.json", f"{script}.py", "checkpoint.pt", "eval.json"} < names
    assert not [name for name in names if name.endswith(".tmp")]
    logged = helpers.scalars(run_dir)
    # if one has ended
    episodes = {f"charts/{name}" for name in ("episodic_return", "episodic_length", "success_rate")}
    assert set(logged) - episodes == helpers.tags(script) | {
        "eval/episodic_return",
        "eval/episodic_length",
    }
    for tag in helpers.tags(script):
        steps = [step for step, _ in logged[tag]]
        assert steps == sorted(set(steps)), tag
    return helpers.load(run_dir)["global_step"]


def unchanged(run_dir):
    return {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}


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


@pytest.mark.parametrize(
    "script, way",
    [
        ("ppo", "module"),
        ("dqn", "copy"),
        pytest.param("sac", "folder", marks=pytest.mark.slow),
        pytest.param("ppo_continuous", "checkout", marks=pytest.mark.slow),
    ],
)
def test_ways_to_start(script, way, tmp_path):
    """python -m, `python script.py` in its folder, a copy anywhere, and python
    cleanrl_lite/script.py."""
    folder, words = tmp_path, [f"{script}.py"]
    if way == "module":
        words = ["-m", f"cleanrl_lite.{script}"]
    elif way == "folder":
        folder = helpers.SOURCE
    elif way == "checkout":
        folder, words = helpers.ROOT, [f"cleanrl_lite/{script}.py"]
    else:
        shutil.copy(helpers.SOURCE / f"{script}.py", tmp_path)
    done = helpers.run(
        [sys.executable, *words, *helpers.small_flags(script, tmp_path / "runs")], cwd=folder
    )
    assert done.returncode == 0, done.stderr
    run_dir, total = helpers.only_run(tmp_path / "runs"), helpers.SMALL[script]["total_timesteps"]
    assert re.fullmatch(rf"{helpers.SMALL[script]['env_id']}__{script}__1__\d{{10}}", run_dir.name)
    assert check_run_dir(run_dir, script) == total
    first, *_, step, evaluation, last = done.stdout.splitlines()
    assert first == f"run directory: {run_dir} (cpu)" and last == f"finished: {run_dir}"
    assert step.startswith(f"step {total} of {total} | ")
    assert evaluation.startswith(f"evaluation at step {total}: mean return ")
    assert "out of date" not in done.stderr


def parse(script, words):
    argv = mock.patch.object(sys, "argv", [f"{script}.py", *map(str, words)])
    module = helpers.module(script)
    docstring = mock.patch.object(sys.modules["__main__"], "__doc__", module.__doc__)
    with argv, docstring:
        return utils.parse(module.Args)


def short_games(script, words):
    """A command line in this process, with Atari's evaluations cut short."""
    helpers.main(script, parse(script, words))
    return 0


@pytest.mark.parametrize("script", helpers.others_slow(helpers.TRAINING_SCRIPTS, ["ppo", "ddpg"]))
def test_a_run_resumed_and_evaluated(script, capsys, tmp_path):
    """The whole life of a run: trained, trained for longer, evaluated; with a video of each
    final evaluation."""
    possible = (
        helpers.module(script)
        .make_env(helpers.small_args(script, tmp_path), "rgb_array")
        .render_mode
    )
    total, play = helpers.SMALL[script]["total_timesteps"], helpers.command_line
    if script in helpers.ATARI_SCRIPTS:
        play = short_games
    assert play(script, helpers.small_flags(script, tmp_path, capture_video=True)) == 0
    run_dir = helpers.only_run(tmp_path)
    assert check_run_dir(run_dir, script) == total
    helpers.next_second()
    assert play(script, ["--resume", run_dir, "--total-timesteps", 2 * total]) == 0
    assert helpers.only_run(tmp_path) == run_dir and check_run_dir(run_dir, script) == 2 * total
    videos = sorted(path.parent.name for path in run_dir.rglob("*.mp4"))
    assert videos == (
        [f"step-{n}" for n in sorted([total, 2 * total], key=str)] if possible else []
    )
    before = unchanged(run_dir)
    capsys.readouterr()
    flags = ["--eval-episodes", "2", "--no-capture-video"]
    assert play(script, ["--evaluate", run_dir, *flags]) == 0
    said = capsys.readouterr().out
    played = rf"evaluation at step {2 * total:,}: mean return \S+ \+- \S+ over 2 episodes"
    assert re.match(rf"{played}\n", said)
    (new,) = unchanged(run_dir).keys() - before.keys()  # and no video
    assert {path: text for path, text in unchanged(run_dir).items() if path != new} == before
    record, final = helpers.read_json(new), helpers.read_json(run_dir / "eval.json")
    assert re.fullmatch(r"eval_\d+\.json", new.name)
    assert len(record["returns"]) == len(record["lengths"]) == 2
    assert record["cut"] == 0 and record["versions"]["torch"] == torch.__version__
    assert record["returns"][:1] == final["returns"]  # the same policy, the same seeds
    same = {name: record[name] for name in ("env_id", "global_step", "commit")}
    assert (
        same == {name: final[name] for name in same}
        and record["args"]["seed"] == 1
        and record["date"]
    )


def test_videos_of_an_evaluation_have_a_folder_of_their_own(tmp_path, capfd):
    """Classic control needs no system package for it."""
    run_dir, _ = helpers.train("ppo", tmp_path, capture_video=True)
    (first,) = run_dir.rglob("*.mp4")
    before = first.read_bytes()
    assert helpers.command_line("ppo", ["--evaluate", run_dir, "--capture-video"]) == 0
    videos = {path.parent.name: path for path in run_dir.rglob("*.mp4")}
    assert len(videos) == 2 and first.read_bytes() == before and videos["step-512"] == first
    said = capfd.readouterr().out
    assert all(f"video: {path.parent} (at most" in said for path in videos.values())


@pytest.mark.parametrize(
    "kind, reason",
    [
        ("Plain", "render_mode"),  # which it does not take
        ("Hidden", "Render mode is None"),  # although it takes one
        ("Blind", "no pictures"),  # as it says when one is due
    ],
)
def test_no_video_where_it_cannot_be_made(kind, reason, capfd, tmp_path):
    """Only the video is missing: one line says so at each evaluation."""
    env_id = f"{PROBES}{kind}-v0"
    run_dir, returns = helpers.train("ppo", tmp_path, env_id=env_id, capture_video=True)
    plain = helpers.small_args("ppo", tmp_path, env_id=env_id, evaluate=str(run_dir))
    said = capfd.readouterr().out
    assert len(re.findall(f"^no video: .*{reason}", said, re.M)) == said.count("no video") == 1
    assert not list(run_dir.rglob("*.mp4"))
    assert helpers.main("ppo", plain)["returns"] == returns


@pytest.mark.parametrize(
    "script, env_id",
    [
        ("ppo", "MountainCar-v0"),  # truncates
        ("ppo", "FrozenLake-v1"),  # Discrete observations
        ("ppo", probe("DictObs", "ppo")),
        ("ppo", "tests.probe_envs:ProbeShows-v0"),  # must not be recorded
        # a researcher's first: no render_mode, no metadata
        ("ppo", "tests.probe_envs:ProbePlain-v0"),
        ("ppo_continuous", "Hopper-v5"),  # float64 observations; terminates
        ("ppo_continuous", probe("TupleObs", "ppo_continuous")),
        ("ppo_atari", "ALE/Breakout-v5"),
        ("dqn", "Blackjack-v1"),  # Tuple observations
        ("dqn", "MountainCar-v0"),
        ("c51", "MountainCar-v0"),
        pytest.param("dqn_atari", "PongNoFrameskip-v4", marks=pytest.mark.slow),
        ("c51_atari", "ALE/Pong-v5"),
        ("ddpg", "Pendulum-v1"),  # truncates
        ("td3", "Pendulum-v1"),
        ("td3", "tests.probe_envs:ProbeDouble-v0"),  # actions in double precision
        ("sac", "Pendulum-v1"),
        ("sac", probe("BytesObs", "sac")),
    ],
)
def test_environments(script, env_id, tmp_path):
    """Other kinds of episodes, observations and actions than those of the small runs."""
    run_dir, _ = helpers.train(script, tmp_path, env_id=env_id)
    assert run_dir.name.startswith(re.sub("[/:]", "-", env_id))
    assert check_run_dir(run_dir, script) == helpers.SMALL[script]["total_timesteps"]


@pytest.mark.parametrize("words", [["--total-timesteps", "1e6"], ["--total-timesteps=1.5e3"]])
def test_whole_numbers_with_an_exponent(words):
    assert parse("ppo", words).total_timesteps == float(words[-1].split("=")[-1])


@pytest.mark.parametrize(
    "words, name, runs_dir",
    [
        (["--exp-name=lr=1e3", "--runs-dir", "runs/lr=1e5"], "lr=1e3", "runs/lr=1e5"),
        (["--exp-name", "1e5", "--runs-dir=1e4"], "1e5", "1e4"),
    ],
)
def test_an_exponent_in_a_name(words, name, runs_dir):
    args = parse("ppo", words)
    assert (args.exp_name, args.runs_dir) == (name, runs_dir)


@pytest.mark.parametrize("words", [["--evaluate", "PATH"], ["--evaluate=PATH"]])
def test_arguments_of_a_saved_run(words, tmp_path):
    """They are the defaults, and an equals sign in the path does no harm."""
    run_dir, _ = helpers.train("ppo", tmp_path, exp_name="lr=0.1", learning_rate=0.1)
    args = parse("ppo", [word.replace("PATH", str(run_dir)) for word in words])
    assert args.learning_rate == 0.1 and args.evaluate == str(run_dir) and args.resume is None


@pytest.mark.parametrize("script", helpers.others_slow(["sac", "dqn_atari"], ["sac"]))
def test_evaluating_needs_no_replay_buffer(script, capsys, tmp_path):
    """Nor a GPU: a run can be evaluated on a smaller machine."""
    run_dir, returns = helpers.train(script, tmp_path)
    args = helpers.small_args(
        script, tmp_path, evaluate=str(run_dir), buffer_size=10**13, cuda_graph=True
    )
    assert helpers.main(script, args)["returns"] == returns


def test_networks_only(tmp_path):
    """Such as `cleanrl_lite.tools.hub export` writes: enough for --evaluate, not for --resume."""
    run_dir, returns = helpers.train("sac", tmp_path)
    kept = "script", "args", "global_step", "agent"
    torch.save({name: helpers.load(run_dir)[name] for name in kept}, run_dir / "checkpoint.pt")
    args = helpers.small_args("sac", tmp_path, evaluate=str(run_dir))
    assert helpers.main("sac", args)["returns"] == returns
    args = helpers.small_args("sac", tmp_path, resume=str(run_dir), total_timesteps=1024)
    with pytest.raises(SystemExit, match="--resume needs this version's checkpoint"):
        helpers.main("sac", args)


def test_progress_on_a_terminal(tmp_path):
    """One line that is written over; evaluations and the end have lines of their own."""
    import fcntl
    import pty
    import struct
    import termios

    command = [
        sys.executable,
        "-m",
        "cleanrl_lite.ppo",
        *helpers.small_flags("ppo", tmp_path, eval_every=256),
    ]
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen(
        command, cwd=tmp_path, env=helpers.environment(), stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    output = b""
    with contextlib.suppress(OSError):  # it has ended
        while select.select([main], [], [], 120)[0]:
            output += os.read(main, 1024)
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
    lines = output.decode().split("\r\n")
    for start in ("evaluation at step 256: ", "evaluation at step 512: ", "finished: "):
        assert any(line.split("\r")[-1].startswith(start) for line in lines), (start, lines)
    assert "512/512" in output.decode() and "return " in output.decode()


# --- bad input: (script, flags, what the line says)
def bad(script, told, **flags):
    words = " ".join(f"{name}={value}" for name, value in flags.items())
    return pytest.param(script, flags, told, id=f"{script} {words}".replace(PROBES, ""))


PROBES = "tests.probe_envs:Probe"
IMAGE, MASKED, COUNTED = (
    f"{PROBES}{kind}-v0" for kind in ("ImageObsDiscrete", "Masked", "Counted")
)
IDS = [
    bad("ppo", r"--env-id CartPole-v7 .*v1", env_id="CartPole-v7"),
    bad("ppo", r"CartPol.*Did you mean: `CartPole`", env_id="CartPol-v1"),
    bad("dqn_atari", r"BreakoutNoFramskip", env_id="BreakoutNoFramskip-v4"),
    bad("ppo", r"what is this", env_id="what is this"),
    bad("ppo", r"--env-id", env_id=""),
    bad("ppo", r"no_such_module", env_id="no_such_module:Env-v0"),
    bad("ppo_atari", r"no_such_module", env_id="no_such_module:Env-v0"),
    bad("ppo", r"Nothing", env_id="tests.probe_envs:Nothing-v0"),
    bad("ppo", r"ppo_atari\.py", env_id="ALE/Pong-v5"),
    bad("ppo", r"Namespace foo .*see docs/guides/environments\.md", env_id="foo/Bar-v0"),
    bad("sac", r"--render needs a display; --capture-video does not", render=True),
    bad("ppo", r"Breakout-v5.*see docs/guides/environments\.md", env_id="Breakout-v5"),
    bad("ppo_continuous", r"Hopper-v2.*gymnasium-robotics", env_id="Hopper-v2"),
    bad("ppo_atari", r"CartPole-v1 is not an Atari game.*ppo_image\.py", env_id="CartPole-v1"),
    bad("c51_atari", r"CartPole-v1 is not an Atari game.*ppo_image\.py", env_id="CartPole-v1"),
]
RUNS = [
    bad("ppo", r"cannot load /nowhere/at/all: FileNotFound", resume="/nowhere/at/all"),
    bad("ppo_atari", r"cannot load /nowhere/at/all: FileNotFound", evaluate="/nowhere/at/all"),
    bad(
        "ppo",
        r"cannot load auto: FileNotFound.*\(wanted: a run directory of this script\)",
        evaluate="auto",
    ),
]
SIZES = [
    bad("ppo", r"multiple of --num-minibatches", num_envs=3, num_minibatches=5),
    bad("ppo_atari", r"multiple of --num-minibatches", num_minibatches=3),
    bad("ppo", r"--no-norm-adv", num_minibatches=128),
    bad("c51", r"--n-atoms", n_atoms=1),
    bad("rainbow", r"--n-step must be > 0, got 0", n_step=0),
    bad("rainbow", r"--buffer-size must be at least 1200", n_step=600),
    bad("rainbow", r"--priority-alpha must be <= 1, got 1.5", priority_alpha=1.5),
    bad("rainbow", r"--priority-beta must be <= 1, got 2.0", priority_beta=2.0),
    bad("c51_atari", r"--v-min", v_min=3.0, v_max=2.0),
    bad("dqn_atari", r"--learning-starts .* --num-envs", learning_starts=3),
    bad("sac", r"--buffer-size must", batch_size=10**6),
    bad("sac_discrete", r"--target-entropy-scale must be .* 1, got 1\.1", target_entropy_scale=1.1),
    bad("sac", r"--buffer-size 10{13} does not fit into memory", buffer_size=10**13),
    bad("dqn_atari", r"--buffer-size 10{11} does not fit into memory", buffer_size=10**11),
    bad("ppo_image", r"--image-size must be at least 36.*, got 35", image_size=35),
]
# checked for all scripts by utils
NUMBERS = [
    ("ppo", "learning_rate", "nan"),
    ("ppo", "gamma", "nan"),
    ("ppo", "learning_rate", "inf"),
    ("ppo", "learning_rate", -1e-3),
    ("ppo", "target_kl", -0.1),
    ("td3", "policy_noise", -0.1),
    ("c51", "v_min", "-inf"),  # whose default is negative
]
for name in ("seed", "threads", "save_every", "eval_every"):
    NUMBERS.append(("ppo", name, -1))
for number, (script, name, value) in enumerate(NUMBERS):
    told = rf"--{name.replace('_', '-')} must be finite and not negative, got {value}"
    NUMBERS[number] = bad(script, told, **{name: value})
NUMBERS.append(bad("dqn", "--eval-episodes must be > 0", eval_episodes=0))  # not after hours
# spaces: each script has its own checks and hints
SPACES = [
    bad("ppo_masked", r"must be discrete, not Box.*\bppo_cont", env_id="Pendulum-v1"),
    bad("ppo_masked", r"Box.*64, 3.*\bppo_image\.py", env_id=IMAGE),
    bad("ppo_image", r"one uint8 image, .* not Box.*\bppo\.py", env_id="CartPole-v1"),
    bad("ppo_image", r"one uint8 image, .*, float32\)\.", env_id="BipedalWalker-v3"),
    bad("ppo_image", r"not Dict\('camera': .*'other'", env_kwargs='{"layout": "two"}'),
    bad("ppo_multiagent", r"must be Dict\(agents=.*, not Discrete", env_id="Taxi-v4"),
    bad("ppo_multiagent", r"must be Dict\(agents=Box of .*, not", env_kwargs='{"layout": "dict"}'),
    bad("ppo_multiagent", r"must be Dict\(agents=Box of", env_kwargs='{"layout": "numbers"}'),
    bad("ppo_multiagent", r"each of 3 agents, not of 2", env_kwargs='{"layout": "few"}'),
    bad("sac", r"low < high must hold", env_id=f"{PROBES}Fixed-v0"),
]
for kind, told in dict(
    Unbounded="need finite bounds",
    Counted="Discrete, from 0",
    Whole=r"not Box\(0, 5, .*int64",
    Masked=r"not MultiDiscrete.*\bppo_masked\.py",
).items():
    SPACES.append(bad("ppo_image", told, env_kwargs=f'{{"env_id": "{PROBES}{kind}-v0"}}'))
for kind in ("unbounded", "whole", "binary"):
    told = "must be Discrete or Box, with finite bounds, not Tuple.*MultiDiscrete: ppo_masked.py"
    SPACES.append(bad("ppo_hybrid", told, env_kwargs=f'{{"kind": "{kind}"}}'))
for layout in ("vector", "matrix", "numbers", "other name"):
    told = r"must be Dict\(state=Box, privileged_state=Box\).*ppo_continuous\.py"
    kwargs = f'{{"layout": "{layout}"}}'
    SPACES.append(bad("ppo_continuous_asymmetric", told, env_kwargs=kwargs))
for name in ("ppo", "pqn", "dqn", "c51", "sac_discrete"):
    other = "ppo_continuous" if name in helpers.FAMILIES["ppo"] else "sac"
    from_zero = "must be Discrete, from 0, not"
    SPACES += [
        bad(name, rf"{from_zero} Box.*\b{other}\.py", env_id="Pendulum-v1"),
        bad(name, rf"{from_zero} Discrete\(2, start=1\)", env_id=COUNTED),
        bad(name, rf"{from_zero} MultiDiscrete.*\bppo_masked\.py", env_id=MASKED),
        bad(name, r"observation space is Box.*64, 3.*\bppo_image\.py", env_id=IMAGE),
    ]
for name in helpers.CONTINUOUS_SCRIPTS:
    other = "ppo" if name in helpers.FAMILIES["ppo"] else "dqn"
    like_parent = name in helpers.LSTM_SCRIPTS + helpers.PLAIN_SCRIPTS
    other = helpers.PARENT[name] if like_parent else other
    real = "must be a 1-D Box of floats, not"
    SPACES += [
        bad(name, rf"{real} Disc.*\b{other}\.py", env_id="CartPole-v1"),
        bad(name, rf"{real} Box\(0, 5, .*int64\)", env_id=f"{PROBES}Whole-v0"),
        bad(name, r"space is Box.*\bppo_image\.py", env_id=probe("ImageObs", name)),
    ]
    if name in helpers.FAMILIES["ddpg"]:
        unbounded = r"unbounded.*ppo_continuous\.py"
        SPACES += [bad(name, unbounded, env_id=f"{PROBES}{k}-v0") for k in ("Unbounded", "Huge")]
SPACES.append(bad("sac", r"space is Sequence.*not a few", env_id=probe("SequenceObs", "sac")))
BAD = IDS + RUNS + SIZES + NUMBERS + SPACES
if not torch.cuda.is_available():
    BAD.append(bad("ppo", r"--cuda-graph needs a GPU", cuda_graph=True))


def assert_one_line(err, pattern):
    lines = [
        line
        for line in err.splitlines()
        if "Warn" not in line and "WARN" not in line and line.strip()
    ]
    lines = [
        line
        for line in lines
        if not line.lstrip().startswith(("gym.logger", "logger.", "A.L.E", "["))
    ]
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


@pytest.mark.parametrize(
    "words", [["--no-such-flag"], ["--num-envs", "many"], ["--num-envs", "1.5"], ["--seed"]]
)
def test_bad_flags(words, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert helpers.command_line("ppo", words) == 2
    streams = capfd.readouterr()
    assert words[0] in streams.out + streams.err and "Traceback" not in streams.err
    assert not list(tmp_path.iterdir())


def test_another_version_of_the_environment(tmp_path):
    """CartPole-v0's agent plays in CartPole-v1."""
    run_dir, _ = helpers.train("ppo", tmp_path, env_id="CartPole-v0")
    args = helpers.small_args("ppo", tmp_path, env_id="CartPole-v1", evaluate=str(run_dir))
    record = helpers.main("ppo", args)
    assert len(record["returns"]) == args.eval_episodes and record["env_id"] == "CartPole-v1"


def test_nothing_is_left_to_train(trained, capfd, tmp_path):
    trained = shutil.copytree(trained, tmp_path / "run")
    args = helpers.load(trained)["args"]
    words = ["--resume", trained, "--total-timesteps", args["total_timesteps"] // 2]
    assert helpers.command_line("ppo", words) == 0
    step = helpers.load(trained)["global_step"]
    assert step == args["total_timesteps"]
    assert f"evaluation at step {step}: mean return" in capfd.readouterr().out


def test_bad_input_in_a_real_process(tmp_path):
    """An Atari game, which gymnasium does not know before ale_py is imported."""
    done = helpers.run(
        [sys.executable, "-m", "cleanrl_lite.dqn", "--env-id", "PongNoFrameskip-v4"], cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert_one_line(done.stderr, r"PongNoFrameskip-v4.*see docs/guides/environments\.md")
    assert not list(tmp_path.iterdir())


MISSING = """
import sys
sys.modules["{module}"] = None  # as if it were not installed
from tests import helpers
raise SystemExit(helpers.command_line("{script}", sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, module, package",
    [
        ("ppo_continuous", "mujoco", r"\[mujoco\]"),
        ("dqn_atari", "ale_py", r"\[atari\]"),
        ("sac_her", "panda_gym", r"\[panda\]"),
        ("ppo_hybrid", "gym_platform", "hybrid-platform"),
        ("ppo_selfplay", "envpool", r"\[envpool\]"),
        ("ppo_multiagent", "envpool", r"\[multiagent\]"),
        ("ppo_continuous_asymmetric", "envpool", r"\[envpool\]"),
    ]
    + [(script, "cv2", r"\[atari\]") for script in ["ppo_image", *helpers.VISUAL_SCRIPTS]],
)
def test_missing_package(script, module, package, tmp_path):
    """The message, or the line of the script that it shows, says how to install it."""
    done = helpers.run(
        [sys.executable, "-c", MISSING.format(script=script, module=module)], cwd=tmp_path
    )
    found = re.search(rf"pip install .*{package}", done.stderr)
    assert done.returncode == 1 and found, done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_a_runs_dir_that_cannot_be(kind, capfd, tmp_path):
    runs = tmp_path / "runs"
    if kind == "file":
        runs.write_text("not a folder")
    else:
        runs.symlink_to(tmp_path / "not mounted")
    assert helpers.command_line("ppo", helpers.small_flags("ppo", runs)) == 1
    last_line = capfd.readouterr().err.splitlines()[-1]
    assert re.match(f"FileExistsError: .*{runs}", last_line)


# --- bad checkpoints
@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small run of ppo, not to be written to."""
    return helpers.train("ppo", tmp_path_factory.mktemp("trained"))[0]


class Malicious:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def damage(path, how):
    state = torch.load(path, weights_only=True)
    if how == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "text":
        path.write_text("this is no checkpoint")
    elif how == "foreign":
        torch.save(dict(weights=torch.zeros(3)), path)
    elif how == "another network":
        state["agent"][next(name for name in state["agent"] if name.endswith("weight"))] = (
            torch.zeros(7, 64)
        )
        torch.save(state, path)
    elif how == "malicious":
        torch.save(state | dict(extra=Malicious(path.with_name("executed"))), path)


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
@pytest.mark.parametrize("how", ["truncated", "text", "foreign", "another network", "malicious"])
def test_a_bad_checkpoint(how, flag, trained, capfd, tmp_path):
    """One line, and nothing in it is executed."""
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    damage(copy / "checkpoint.pt", how)
    before = unchanged(copy)
    assert helpers.command_line("ppo", [flag, copy, "--total-timesteps", "1024"]) == 1
    assert_one_line(capfd.readouterr().err, r"checkpoint\.pt")
    assert unchanged(copy) == before
    if how == "malicious":
        torch.load(copy / "checkpoint.pt", weights_only=False)["extra"].close()
        assert (copy / "executed").exists()  # the trap works


@pytest.mark.parametrize(
    "script, words, told",
    [
        (
            "dqn",
            [],
            r"cannot load .*checkpoint\.pt: RuntimeError\W+Error\(s\) in loading state_dict",
        ),
        ("ppo", ["--env-id", "Acrobot-v1"], r"cannot load .*size mismatch"),
        ("ppo", ["--num-envs", "2"], r"--resume needs this version's checkpoint, --num-envs"),
    ],
)
def test_a_checkpoint_of_another_run(script, words, told, trained, capfd):
    """Refused, and left as it is; its args.json too."""
    before = {path: text for path, text in unchanged(trained).items() if path.name != "lock"}
    words = ["--total-timesteps", "1024", *words]
    assert helpers.command_line(script, ["--resume", trained, *words]) == 1
    assert_one_line(capfd.readouterr().err, told)
    assert {
        path: text for path, text in unchanged(trained).items() if path.name != "lock"
    } == before


# --- what the machine lacks
@pytest.mark.slow
def test_no_compiler(tmp_path):
    """Without a C++ compiler: one line, and training goes on in eager mode."""
    (tmp_path / "bin").mkdir()
    flags = helpers.small_flags("ppo", tmp_path / "runs", compile=True)
    extra = dict(
        PATH=str(tmp_path / "bin"), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"), CXX=""
    )
    done = helpers.run([sys.executable, "-m", "cleanrl_lite.ppo", *flags], cwd=tmp_path, **extra)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("continuing in eager mode: "), done.stderr
    check_run_dir(helpers.only_run(tmp_path / "runs"), "ppo")


@pytest.mark.slow
def test_without_the_system_packages_for_rendering(tmp_path):
    """MuJoCo trains without the video, and a line says why there is none."""
    code = f"""
import ctypes.util
ctypes.util.find_library = lambda name: None  # a machine without libEGL, libGL and libglib
from cleanrl_lite import ppo_continuous
small = dict(num_steps=64, num_minibatches=4, update_epochs=1, total_timesteps=128)
small |= dict(eval_episodes=1, compile=False)
ppo_continuous.main(ppo_continuous.Args(capture_video=True, runs_dir={str(tmp_path)!r}, **small))
"""
    environ = {
        name: value
        for name, value in helpers.environment().items()
        if name not in ("MUJOCO_GL", "DISPLAY")
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no video: ") == 1, done.stdout
    assert "evaluation at step 128" in done.stdout and not list(tmp_path.rglob("*.mp4"))


@pytest.mark.slow
def test_an_installed_package(tmp_path):
    """A wheel, without the checkout, from any folder."""
    source = tmp_path / "source"
    shutil.copytree(helpers.ROOT / "cleanrl_lite", source / "cleanrl_lite")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(helpers.ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "-q"]
    made = helpers.run(
        [*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", tmp_path, source], cwd=tmp_path
    )
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    done = helpers.run([*pip, "install", "--no-deps", "--target", site, wheel], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = [sys.executable, "-m", "cleanrl_lite.ppo", *helpers.small_flags("ppo", "runs")]
    environ = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        list(map(str, words)), cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    run_dir = helpers.only_run(tmp_path / "runs")
    assert (run_dir / "ppo.py").read_text() == (site / "cleanrl_lite" / "ppo.py").read_text()
