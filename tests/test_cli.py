"""The scripts as commands: the ways to start one, what a run leaves behind, signals, and every bad input."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cleanrl_lite import checkpoints, utils
from tests import helpers
from tests.probe_envs import probe

OTHER = dict(ppo="ppo_continuous", ppo_continuous="ppo", ppo_atari="ppo", dqn="c51", c51="dqn", dqn_atari="dqn")
OTHER |= dict(c51_atari="c51", ddpg="td3", td3="ddpg", sac="td3")
LOGGED = "charts/SPS"  # with every log of losses


def check_run_dir(run_dir, script):
    names = {path.name for path in run_dir.iterdir()}
    assert {"args.json", f"{script}.py", "checkpoint.pt", "eval.json"} < names
    assert len([name for name in names if name.startswith("events.out.tfevents")]) == 1
    assert not [name for name in names if name.endswith(".tmp")]
    record = helpers.read_json(run_dir / "eval.json")
    assert {"env_id", "mean", "std", "episodes", "returns", "date", "commit", "args"} <= set(record)
    logged = helpers.scalars(run_dir)
    episodes = {"charts/episodic_return", "charts/episodic_length"}  # where one has ended
    assert set(logged) - episodes == helpers.tags(script) | {"eval/episodic_return", "eval/episodic_length"}
    return helpers.load(run_dir)["global_step"]


def test_help(script, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert helpers.command_line(script, ["--help"]) == 0
    text = capsys.readouterr().out
    for name, value in vars(helpers.module(script).Args()).items():
        flag = "--" + name.replace("_", "-")
        assert re.search(rf"{flag}\b", text), flag
        assert not isinstance(value, bool) or re.search(rf"--no-{name.replace('_', '-')}\b", text)


@pytest.mark.parametrize("way", ["module", "folder", "copy"])
def test_ways_to_start(script, way, tmp_path):
    """python -m, python script.py from its own folder, and a copy of the script anywhere."""
    folder, command = tmp_path, [sys.executable, f"{script}.py"]
    if way == "module":
        command = [sys.executable, "-m", f"cleanrl_lite.{script}"]
    elif way == "folder":
        folder = helpers.SOURCE
    else:
        (tmp_path / "copies").mkdir()
        shutil.copy(helpers.SOURCE / f"{script}.py", tmp_path / "copies")
        folder = tmp_path / "copies"
    done = helpers.run([*command, *helpers.small_flags(script, tmp_path / "runs")], cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert lines[-1].startswith("the run is in ") and any(line.startswith("evaluation at step") for line in lines)
    run_dir = helpers.only_run(tmp_path / "runs")
    assert check_run_dir(run_dir, script) == helpers.SMALL[script]["total_timesteps"]
    pattern = rf"{helpers.SMALL[script]['env_id']}__{script}__1__\d{{10}}"
    assert re.fullmatch(pattern, run_dir.name)


@pytest.mark.parametrize(
    "script, env_id",
    [
        ("ppo", "CartPole-v1"),  # terminates
        ("ppo", "MountainCar-v0"),  # truncates
        ("ppo", "FrozenLake-v1"),  # Discrete observations
        ("ppo", "Blackjack-v1"),  # Tuple observations
        ("ppo_continuous", "Hopper-v4"),  # float64 observations; terminates
        ("ppo_continuous", "Pendulum-v1"),  # truncates
        ("ppo_continuous", "MountainCarContinuous-v0"),
        ("ppo_atari", "PongNoFrameskip-v4"),
        ("ppo_atari", "ALE/Breakout-v5"),
        ("dqn", "CartPole-v1"),
        ("dqn", "MountainCar-v0"),
        ("dqn", "FrozenLake-v1"),
        ("c51", "CartPole-v1"),
        ("c51", "MountainCar-v0"),
        ("c51", "FrozenLake-v1"),
        ("ddpg", "Pendulum-v1"),
        ("ddpg", "Hopper-v4"),
        ("td3", "Pendulum-v1"),
        ("td3", "Hopper-v4"),
        ("sac", "Pendulum-v1"),
        ("sac", "Hopper-v4"),
        ("dqn_atari", "PongNoFrameskip-v4"),
        ("dqn_atari", "ALE/Breakout-v5"),
        ("c51_atari", "PongNoFrameskip-v4"),
        ("c51_atari", "ALE/Breakout-v5"),
    ],
)
def test_environments(script, env_id, tmp_path):
    flags = dict(env_id=env_id)
    if script in helpers.MLP_SCRIPTS:
        flags |= dict(num_envs=2, total_timesteps=2048 if script in helpers.ROLLOUT_SCRIPTS else 512)
    assert helpers.command_line(script, helpers.small_flags(script, tmp_path, **flags)) == 0
    run_dir = helpers.only_run(tmp_path)
    assert run_dir.name.startswith(env_id.replace("/", "-"))
    assert check_run_dir(run_dir, script) > 0
    assert script in helpers.ATARI_SCRIPTS or len(helpers.scalars(run_dir)["charts/episodic_return"]) > 0


@pytest.mark.parametrize("kind", ["Dict", "Tuple", "Discrete", "Bytes"])
def test_structured_observations(mlp_script, kind, tmp_path):
    flags = helpers.small_flags(mlp_script, tmp_path, env_id=probe(f"{kind}Obs", mlp_script))
    assert helpers.command_line(mlp_script, flags) == 0


def test_environment_without_render_mode(tmp_path):
    """A researcher's first environment has an __init__ without arguments."""
    flags = helpers.small_flags("ppo", tmp_path, env_id="tests.probe_envs:ProbePlain-v0")
    assert helpers.command_line("ppo", flags) == 0


def test_async_envs(mlp_script, tmp_path):
    sizes = dict(num_envs=3, total_timesteps=600) | helpers.rollout_only(mlp_script, num_minibatches=2)
    flags = helpers.small_flags(mlp_script, tmp_path, async_envs=True, **sizes)
    done = helpers.run([sys.executable, "-m", f"cleanrl_lite.{mlp_script}", *flags], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert check_run_dir(helpers.only_run(tmp_path), mlp_script) == 600


def test_evaluate(script, capsys, tmp_path):
    """--evaluate plays, writes its own file, and takes the run's environment and arguments from the checkpoint."""
    env_id = "ALE/Breakout-v5" if script in helpers.ATARI_SCRIPTS else "Acrobot-v1"
    env_id = "Pendulum-v1" if script in helpers.CONTINUOUS_SCRIPTS else env_id
    run_dir, _ = helpers.train(script, tmp_path, env_id=env_id)
    before = {path.name for path in run_dir.iterdir()}
    capsys.readouterr()
    assert helpers.command_line(script, ["--evaluate", run_dir, "--eval-episodes", "2"]) == 0
    assert re.match(r"evaluation at step [\d,]+: mean return \S+ \+- \S+ over 2 episodes\n", capsys.readouterr().out)
    (new,) = {path.name for path in run_dir.iterdir()} - before
    record = helpers.read_json(run_dir / new)
    assert re.fullmatch(r"eval_\d+\.json", new) and record["episodes"] == 2 and record["env_id"] == env_id


def test_evaluate_needs_no_replay_buffer(trained, capsys, tmp_path):
    """A run with a buffer that filled its machine's memory can be evaluated on a smaller one."""
    copy = shutil.copytree(trained("dqn"), tmp_path / "copy")
    assert helpers.command_line("dqn", ["--evaluate", copy, "--buffer-size", 10**12]) == 0
    assert "evaluation at step 512" in capsys.readouterr().out


@pytest.mark.parametrize("script", helpers.FAMILIES["ddpg"])
def test_actions_in_double_precision(script, tmp_path):
    flags = helpers.small_flags(script, tmp_path, env_id="tests.probe_envs:ProbeDouble-v0")
    assert helpers.command_line(script, flags) == 0


def can_render(script):
    from cleanrl_lite import utils

    return utils.can_record(helpers.module(script).make_env, helpers.small_args(script, "unused"))


def test_capture_video(script, capfd, tmp_path):
    """A film of the last evaluation; where the machine cannot render, one line that says so, and the run goes on."""
    possible = can_render(script)
    capfd.readouterr()
    assert helpers.command_line(script, helpers.small_flags(script, tmp_path, capture_video=True)) == 0
    films = list(helpers.only_run(tmp_path).rglob("*.mp4"))
    if possible:
        assert len(films) == 1 and films[0].stat().st_size > 1000
    else:
        assert capfd.readouterr().err.count("no video") == 1 and not films
    assert script != "ppo" or possible, "classic control needs no system package"


def start(script, tmp_path, **overrides):
    """A long run in a process of its own that has saved at least once."""
    flags = helpers.small_flags(script, tmp_path / "runs", **{**dict(total_timesteps=50_000_000), **overrides})
    command = [sys.executable, "-m", f"cleanrl_lite.{script}", *flags, "--save-every", "1"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(command, cwd=tmp_path, env=helpers.environment(), start_new_session=True, **pipes)
    deadline = time.time() + 120
    while not list((tmp_path / "runs").glob("*/checkpoint.pt")):
        assert time.time() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.1)
    helpers.next_second()
    return process, helpers.only_run(tmp_path / "runs")


@pytest.mark.parametrize(
    "script, number, status",
    [
        ("ppo", signal.SIGTERM, 143),
        ("ppo", signal.SIGINT, 130),
        ("ppo_continuous", signal.SIGTERM, 143),
        ("ppo_atari", signal.SIGINT, 130),
        ("dqn", signal.SIGTERM, 143),
        ("c51", signal.SIGINT, 130),
        ("ddpg", signal.SIGTERM, 143),
        ("sac", signal.SIGINT, 130),
        ("dqn_atari", signal.SIGTERM, 143),
    ],
)
def test_signals_save_and_end(script, number, status, tmp_path):
    process, run_dir = start(script, tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    state = helpers.load(run_dir)
    logged = helpers.scalars(run_dir).get(LOGGED, [(0, 0)])
    assert 0 <= state["global_step"] - logged[-1][0] < one_log(script)  # nothing was lost
    assert not (run_dir / "eval.json").exists()
    total = state["global_step"] + one_log(script)
    assert helpers.command_line(script, ["--resume", run_dir, "--total-timesteps", total]) == 0
    assert check_events(run_dir, total)


def one_log(script):
    """The environment steps of a rollout, or from one log to the next."""
    args = helpers.small_args(script, "unused")
    return args.num_envs * args.num_steps if script in helpers.ROLLOUT_SCRIPTS else 100


def check_events(run_dir, total):
    steps = [step for step, _ in helpers.scalars(run_dir)[LOGGED]]
    return steps == sorted(set(steps)) and steps[-1] == total == helpers.load(run_dir)["global_step"]


def test_ctrl_c_with_worker_processes(tmp_path):
    """A terminal sends Ctrl-C to the workers too: they must not take the run down before it has saved."""
    process, run_dir = start("ppo", tmp_path, async_envs=True)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert helpers.load(run_dir)["global_step"] == helpers.scalars(run_dir)[LOGGED][-1][0]


@pytest.mark.parametrize("script", ["ppo", "dqn", "td3"])
def test_killed_run_resumes(script, tmp_path):
    """SIGKILL at any moment: the checkpoint is whole, and the x axis has no step twice after resuming."""
    process, run_dir = start(script, tmp_path)
    process.kill()
    process.communicate()
    total = helpers.load(run_dir)["global_step"] + one_log(script)
    assert helpers.command_line(script, ["--resume", run_dir, "--total-timesteps", total]) == 0
    assert check_events(run_dir, total)


# --- bad input: (script, flags, what the line says)
BAD = {
    "unknown id": ("ppo", dict(env_id="CartPole-v7"), r"CartPole-v7.*v1"),
    "misspelt id": ("ppo", dict(env_id="CartPol-v1"), r"CartPol.*Did you mean: `CartPole`"),
    "misspelt id, continuous": ("ppo_continuous", dict(env_id="Hoper-v4"), r"Hoper.*Did you mean: `Hopper`"),
    "unknown game": ("ppo_atari", dict(env_id="BreakoutNoFramskip-v4"), r"BreakoutNoFramskip"),
    "malformed id": ("ppo", dict(env_id="what is this"), r"what is this"),
    "empty id": ("ppo", dict(env_id=""), r"--env-id"),
    "no such module": ("ppo", dict(env_id="no_such_module:Env-v0"), r"no_such_module"),
    "no such module, atari": ("ppo_atari", dict(env_id="no_such_module:Env-v0"), r"no_such_module"),
    "no such environment in a module": ("ppo", dict(env_id="tests.probe_envs:Nothing-v0"), r"Nothing"),
    "continuous actions": ("ppo", dict(env_id="Pendulum-v1"), r"Pendulum-v1.*ppo_continuous\.py"),
    "discrete actions": ("ppo_continuous", dict(env_id="CartPole-v1"), r"CartPole-v1.*ppo\.py"),
    "images": ("ppo", dict(env_id="tests.probe_envs:ProbeImageObsDiscrete-v0"), r"observations"),
    "images, continuous": ("ppo_continuous", dict(env_id="tests.probe_envs:ProbeImageObsBox-v0"), r"observations"),
    "sequences": ("ppo", dict(env_id="tests.probe_envs:ProbeSequenceObsDiscrete-v0"), r"observations"),
    "no Atari game": ("ppo_atari", dict(env_id="CartPole-v1"), r"CartPole-v1.*ppo\.py"),
    "Atari in ppo": ("ppo", dict(env_id="BreakoutNoFrameskip-v4"), r"atari"),
    "indivisible": ("ppo", dict(num_envs=3, num_minibatches=5, total_timesteps=960), r"multiple of --num-minibatches"),
    "indivisible, atari": ("ppo_atari", dict(num_minibatches=3), r"multiple of --num-minibatches"),
    "too few steps": ("ppo", dict(total_timesteps=100), r"--total-timesteps is less than .* 128"),
    "odd total": ("ppo", dict(total_timesteps=1001), r"--total-timesteps must be a multiple of --num-envs"),
    "minibatch of one": ("ppo", dict(num_minibatches=128), r"--no-norm-adv"),
    "no environments": ("ppo", dict(num_envs=0), r"positive"),
    "negative sizes": ("ppo", dict(num_envs=-4, num_steps=-32, total_timesteps=512), r"positive"),
    "no epochs": ("ppo_continuous", dict(update_epochs=0), r"positive"),
    "no evaluation": ("ppo", dict(eval_episodes=0), r"positive"),
    "negative seed": ("ppo", dict(seed=-1), r"seed"),
    "negative threads": ("ppo", dict(threads=-1), r"threads"),
    "resume and evaluate": ("ppo", dict(resume="auto", evaluate="somewhere"), r"either --resume or --evaluate"),
    "no checkpoint": ("ppo", dict(resume="/nowhere/at/all"), r"no checkpoint at /nowhere/at/all"),
    "nothing to evaluate": ("ppo_atari", dict(evaluate="/nowhere/at/all"), r"no checkpoint at /nowhere/at/all"),
}
for name in ("dqn", "c51"):
    image = "tests.probe_envs:ProbeImageObsDiscrete-v0"
    BAD |= {
        f"continuous actions, {name}": (name, dict(env_id="Pendulum-v1"), r"Pendulum-v1.*ddpg\.py"),
        f"images, {name}": (name, dict(env_id=image), rf"observations.*{name}_atari\.py"),
    }
for name in helpers.FAMILIES["ddpg"]:
    box = "tests.probe_envs:Probe{}Box-v0"
    BAD |= {
        f"discrete actions, {name}": (name, dict(env_id="CartPole-v1"), r"CartPole-v1.*dqn\.py"),
        f"images, {name}": (name, dict(env_id=box.format("ImageObs")), rf"observations.*{name}\.py takes vectors"),
        f"sequences, {name}": (name, dict(env_id=box.format("SequenceObs")), r"observations"),
        f"unbounded actions, {name}": (
            name,
            dict(env_id="tests.probe_envs:ProbeUnbounded-v0"),
            r"unbounded.*ppo_continuous\.py",
        ),
        f"all but unbounded actions, {name}": (
            name,
            dict(env_id="tests.probe_envs:ProbeHuge-v0"),
            r"unbounded.*ppo_continuous\.py",
        ),
        f"no gradient step of the actor, {name}": (name, dict(policy_frequency=0), r"positive: .*policy_frequency"),
    }
for name in ("dqn_atari", "c51_atari"):
    vectors = name.removesuffix("_atari")
    BAD |= {
        f"no Atari game, {name}": (name, dict(env_id="CartPole-v1"), rf"CartPole-v1.*\b{vectors}\.py"),
        f"unknown game, {name}": (name, dict(env_id="BreakoutNoFramskip-v4"), r"BreakoutNoFramskip"),
        f"nothing to learn from, {name}": (name, dict(learning_starts=0), r"--learning-starts.*--num-envs"),
        f"one transition, {name}": (
            name,
            dict(learning_starts=3),
            r"--learning-starts must be at least twice --num-envs",
        ),
        f"Atari in {vectors}": (vectors, dict(env_id="BreakoutNoFrameskip-v4"), r"atari"),
    }
for name in helpers.OFF_POLICY_SCRIPTS:
    BAD |= {
        f"frozen target networks, {name}": (name, dict(tau=0.0), r"0 < --tau <= 1"),
        f"diverging target networks, {name}": (name, dict(tau=1.5), r"0 < --tau <= 1"),
        f"no buffer, {name}": (name, dict(buffer_size=0), r"--buffer-size"),
        f"negative buffer, {name}": (name, dict(buffer_size=-1), r"--buffer-size"),
        f"endless buffer, {name}": (
            name,
            dict(buffer_size=10**12),
            r"--buffer-size 10+ .* \d{4,} transitions would fit",
        ),
        f"never learns, {name}": (name, dict(learning_starts=512), r"--learning-starts.*--total-timesteps"),
        f"learns too early, {name}": (name, dict(learning_starts=-1), r"0 <= --learning-starts"),
        f"never trains, {name}": (name, dict(train_frequency=0), r"positive: .*train_frequency"),
        f"no gradient steps, {name}": (name, dict(gradient_steps=0), r"positive: .*gradient_steps"),
        f"empty minibatch, {name}": (name, dict(batch_size=0), r"positive: .*batch_size"),
        f"odd total, {name}": (name, dict(total_timesteps=511), r"--total-timesteps must be a multiple of --num-envs"),
        f"no environments, {name}": (name, dict(num_envs=0), r"positive: .*num_envs"),
    }
for name in helpers.FAMILIES["dqn"]:
    BAD |= {
        f"rising epsilon, {name}": (name, dict(start_e=0.1, end_e=0.2), r"--end-e <= --start-e"),
        f"epsilon above 1, {name}": (name, dict(start_e=1.5), r"--start-e <= 1"),
        f"negative epsilon, {name}": (name, dict(end_e=-0.1), r"0 <= --end-e"),
        f"no time to explore, {name}": (name, dict(exploration_fraction=0), r"--exploration-fraction"),
        f"frozen target, {name}": (name, dict(target_network_frequency=0), r"positive: .*target_network_frequency"),
    }
for name in ("c51", "c51_atari"):
    BAD |= {
        f"one atom, {name}": (name, dict(n_atoms=1), r"--n-atoms"),
        f"no support, {name}": (name, dict(v_min=3.0, v_max=3.0), r"--v-min"),
        f"support upside down, {name}": (name, dict(v_min=3.0, v_max=-3.0), r"--v-min"),
    }
for name, flag in (
    ("ddpg", "exploration_noise"),
    ("td3", "exploration_noise"),
    ("td3", "policy_noise"),
    ("td3", "noise_clip"),
):
    BAD[f"negative {flag}, {name}"] = (name, {flag: -0.1}, "--" + flag.replace("_", "-") + ".* negative")
BAD["negative alpha"] = ("sac", dict(alpha=-0.2), r"not negative: .*alpha")
BAD["a fixed action"] = ("sac", dict(env_id="tests.probe_envs:ProbeFixed-v0"), r"low < high must hold")
for name in helpers.CONTINUOUS_SCRIPTS:
    whole = dict(env_id="tests.probe_envs:ProbeWhole-v0")
    BAD[f"whole numbers as actions, {name}"] = (name, whole, r"actions Box\(0, 5, .*int64\), not vectors of real num")
for name in ("ppo", "dqn", "c51"):
    counted = dict(env_id="tests.probe_envs:ProbeCounted-v0")
    BAD[f"actions counted from 1, {name}"] = (name, counted, r"counts its actions from 1, not from 0")
BAD["no learning rate"] = ("sac", dict(q_lr=0.0), r"positive: .*q_lr")
RATES = dict(sac="q_lr")
for name in helpers.SCRIPTS:
    rate = RATES.get(name, "learning_rate")
    BAD |= {
        f"seed too large, {name}": (name, dict(seed=2**31), r"--seed"),
        f"gamma above 1, {name}": (name, dict(gamma=1.01), r"between 0 and 1: gamma"),
        f"gamma not a number, {name}": (name, dict(gamma="nan"), r"no numbers to work with: gamma"),
        f"endless rate, {name}": (name, {rate: "inf"}, rf"no numbers to work with: {rate}"),
        f"negative rate, {name}": (name, {rate: -1e-3}, rf"positive: .*{rate}"),
        f"saves every -1 steps, {name}": (name, dict(save_every=-1), r"not negative: save_every$"),
        f"evaluates every -1 steps, {name}": (name, dict(eval_every=-1), r"not negative: eval_every$"),
        f"no episodes to evaluate, {name}": (name, dict(eval_episodes=0), r"positive: .*eval_episodes"),
        f"misspelt environment, {name}": (name, dict(env_id="Brekout-v0"), r"Brekout"),
    }
for name in helpers.ROLLOUT_SCRIPTS:
    BAD |= {
        f"lambda above 1, {name}": (name, dict(gae_lambda=1.5), r"between 0 and 1: gae_lambda"),
        f"no clipping, {name}": (name, dict(clip_coef=0.0), r"positive: .*clip_coef"),
        f"negative coefficient, {name}": (name, dict(vf_coef=-0.5), r"not negative: .*vf_coef"),
        f"negative divergence, {name}": (name, dict(target_kl=-0.1), r"not negative: .*target_kl"),
        f"empty rollout, {name}": (name, dict(num_steps=0), r"positive: .*num_steps"),
        f"no minibatches, {name}": (name, dict(num_minibatches=0), r"positive: .*num_minibatches"),
        f"below one batch, {name}": (name, dict(total_timesteps=8), r"--total-timesteps is less than"),
    }
for name in helpers.OFF_POLICY_SCRIPTS:
    BAD[f"minibatch above buffer, {name}"] = (name, dict(batch_size=10**6), r"--batch-size must be at most")
if not torch.cuda.is_available():
    BAD["no GPU"] = ("ppo", dict(cuda_graph=True), r"--cuda-graph needs a GPU")


def assert_one_line(err, pattern):
    lines = [line for line in err.splitlines() if "Warn" not in line and "WARN" not in line and line.strip()]
    lines = [line for line in lines if not line.lstrip().startswith(("gym.logger", "logger.", "A.L.E", "["))]
    assert len(lines) == 1 and lines[0].startswith("error: "), err
    assert re.search(pattern, lines[0]), err


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, capfd, monkeypatch, tmp_path):
    """One line, exit status 1, no traceback, and nothing is created."""
    script, flags, pattern = BAD[case]
    monkeypatch.chdir(tmp_path)
    assert helpers.command_line(script, helpers.small_flags(script, "runs", **flags)) == 1
    assert_one_line(capfd.readouterr().err, pattern)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--no-such-flag"], ["--num-envs", "many"], ["--seed"]])
def test_bad_flags(script, words, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert helpers.command_line(script, words) == 2
    streams = capfd.readouterr()
    assert words[0] in streams.out + streams.err and "Traceback" not in streams.err
    assert not list(tmp_path.iterdir())


def test_bad_input_in_a_real_process(tmp_path):
    done = helpers.run([sys.executable, "-m", "cleanrl_lite.ppo", "--env-id", "CartPol-v1"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert_one_line(done.stderr, "CartPole")
    assert not list(tmp_path.iterdir())


MISSING = """
import sys
sys.modules["{module}"] = None  # as if it were not installed
from tests import helpers
raise SystemExit(helpers.command_line("{script}", sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "script, module, words, told",
    [
        ("ppo_continuous", "mujoco", ["--env-id", "Hopper-v5"], r"pip install"),
        ("ppo", "Box2D", ["--env-id", "LunarLander-v3"], r"pip install"),
        ("dqn_atari", "ale_py", [], r"ale_py is not installed: pip install 'cleanrl_lite\[atari\]'"),
        ("sac", "wandb", ["--track"], r"--track needs wandb: pip install wandb"),
    ],
)
def test_missing_extra(script, module, words, told, tmp_path):
    code = MISSING.format(script=script, module=module)
    done = helpers.run([sys.executable, "-c", code, *words], cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert_one_line(done.stderr, told)
    assert not list(tmp_path.iterdir())


def test_runs_dir_is_a_file(script, capfd, tmp_path):
    (tmp_path / "runs").write_text("not a directory")
    assert helpers.command_line(script, helpers.small_flags(script, tmp_path / "runs")) == 1
    assert_one_line(capfd.readouterr().err, "cannot create the run directory")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_runs_dir_is_a_dangling_link(tmp_path):
    """runs/ as a link to a disk that is not there: an error, not an endless search for a free name."""
    (tmp_path / "runs").symlink_to(tmp_path / "not mounted")
    flags = helpers.small_flags("ppo", tmp_path / "runs")
    try:
        done = helpers.run([sys.executable, "-m", "cleanrl_lite.ppo", *flags], cwd=tmp_path, timeout=30)
    except subprocess.TimeoutExpired:
        pytest.fail("hangs")
    assert done.returncode == 1
    assert_one_line(done.stderr, "cannot create the run directory")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """{script: directory of a small run}, each made when it is first asked for; not to be written to."""
    runs = {}

    def get(script):
        if script not in runs:
            runs[script], _ = helpers.train(script, tmp_path_factory.mktemp(script))
        return runs[script]

    return get


def damaged(run_dir, folder, damage):
    """A copy of the run with another checkpoint.pt."""
    copy = Path(shutil.copytree(run_dir, folder / "copy"))
    path, state = copy / "checkpoint.pt", helpers.load(run_dir)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("this is no checkpoint")
    elif damage == "foreign":
        torch.save(dict(weights=torch.zeros(3)), path)
    elif damage == "no dict":
        torch.save(torch.zeros(3), path)
    elif damage == "no agent":
        torch.save({name: value for name, value in state.items() if name != "agent"}, path)
    elif damage == "network":
        state["agent"][next(name for name in state["agent"] if name.endswith("weight"))] = torch.zeros(7, 64)
        torch.save(state, path)
    return copy


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "foreign", "no dict", "no agent", "network"])
def test_bad_checkpoint(script, damage, flag, trained, capfd, tmp_path):
    copy = damaged(trained(script), tmp_path, damage)
    before = {path: path.read_bytes() for path in copy.iterdir()}
    capfd.readouterr()
    assert helpers.command_line(script, [flag, copy, "--no-compile", "--total-timesteps", "2048"]) == 1
    assert_one_line(capfd.readouterr().err, r"checkpoint\.pt")
    assert {path: path.read_bytes() for path in copy.iterdir()} == before


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_checkpoint_of_another_script(script, flag, trained, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run_dir = trained(OTHER[script])
    before = {path: path.read_bytes() for path in run_dir.iterdir()}
    capfd.readouterr()
    assert helpers.command_line(script, [flag, run_dir]) == 1
    assert_one_line(capfd.readouterr().err, rf"{OTHER[script]}\b")
    assert {path: path.read_bytes() for path in run_dir.iterdir()} == before and not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", ["--resume", "--evaluate"])
def test_checkpoint_of_another_environment(script, flag, trained, capfd):
    run_dir, env_id = trained(script), helpers.SMALL[script]["env_id"]
    other = "Pendulum-v1" if script in helpers.CONTINUOUS_SCRIPTS else "Acrobot-v1"
    other = "PongNoFrameskip-v4" if script in helpers.ATARI_SCRIPTS else other
    capfd.readouterr()
    assert helpers.command_line(script, [flag, run_dir, "--env-id", other]) == 1
    assert_one_line(capfd.readouterr().err, f"{env_id}, not of {script} on {other}")


def test_resume_with_another_number_of_environments(trained, capfd, tmp_path):
    copy = Path(shutil.copytree(trained("ppo"), tmp_path / "copy"))
    before = {path: path.read_bytes() for path in copy.iterdir()}
    words = ["--resume", copy, "--num-envs", "3", "--total-timesteps", "999", "--num-minibatches", "2"]
    capfd.readouterr()
    assert helpers.command_line("ppo", [*words, "--no-compile"]) == 1
    assert_one_line(capfd.readouterr().err, "a resumed run keeps its --num-envs")
    assert {path: path.read_bytes() for path in copy.iterdir()} == before


@pytest.mark.parametrize("flags", [dict(buffer_size=160), dict(num_envs=4), dict(num_envs=4, buffer_size=160)])
def test_resume_with_another_replay_buffer(off_policy_script, flags, trained, capfd, tmp_path):
    copy = shutil.copytree(trained(off_policy_script), tmp_path / "copy")
    before = {path: path.read_bytes() for path in copy.iterdir()}
    words = ["--resume", copy, "--no-compile", "--total-timesteps", 2048, *helpers.as_flags(**flags)]
    capfd.readouterr()
    assert helpers.command_line(off_policy_script, words) == 1
    assert_one_line(capfd.readouterr().err, "a resumed run keeps its --buffer-size and --num-envs")
    assert {path: path.read_bytes() for path in copy.iterdir()} == before


class Malicious:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_malicious_checkpoint_is_not_executed(script, trained, capfd, tmp_path):
    trap = tmp_path / "executed"
    copy = Path(shutil.copytree(trained(script), tmp_path / "copy"))
    torch.save({**helpers.load(trained(script)), "extra": Malicious(trap)}, copy / "checkpoint.pt")
    capfd.readouterr()
    for flag in ("--resume", "--evaluate"):
        assert helpers.command_line(script, [flag, copy]) == 1
        assert_one_line(capfd.readouterr().err, "damaged or not a checkpoint")
    assert not trap.exists()
    torch.load(copy / "checkpoint.pt", weights_only=False)["extra"].close()
    assert trap.exists()  # the trap works


def test_no_compiler(tmp_path):
    """Without a C++ compiler: one line, and the run goes on in eager mode."""
    (tmp_path / "bin").mkdir()
    flags = helpers.small_flags("ppo", tmp_path / "runs", compile=True)
    extra = dict(PATH=str(tmp_path / "bin"), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"), CXX="")
    done = helpers.run([sys.executable, "-m", "cleanrl_lite.ppo", *flags], cwd=tmp_path, **extra)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("not compiled, goes on in eager mode: "), done.stderr
    check_run_dir(helpers.only_run(tmp_path / "runs"), "ppo")


@pytest.mark.slow
def test_track_offline(tmp_path):
    flags = helpers.small_flags("ppo", tmp_path / "runs", track=True, capture_video=True)
    extra = dict(WANDB_MODE="offline", WANDB_SILENT="true", HOME=str(tmp_path))
    done = helpers.run([sys.executable, "-m", "cleanrl_lite.ppo", *flags], cwd=tmp_path, **extra)
    assert done.returncode == 0, done.stderr
    (offline,) = tmp_path.glob("runs/**/wandb/offline-run-*")
    assert list(offline.glob("*.wandb"))[0].stat().st_size > 1000
    (run_dir,) = (path.parent for path in (tmp_path / "runs").glob("*/checkpoint.pt"))
    check_run_dir(run_dir, "ppo")
    assert run_dir.name in offline.name


@pytest.mark.parametrize("script", ["ppo", "dqn", "ddpg"])
def test_a_checkpoint_of_a_gpu(script, tmp_path):
    """A run with --cuda-graph can be evaluated anywhere; to go on without a GPU, it says what it needs."""
    run_dir, returns = helpers.train(script, tmp_path)
    state = helpers.load(run_dir)
    state["args"]["cuda_graph"] = True
    torch.save(state, run_dir / "checkpoint.pt")
    args = helpers.small_args(script, tmp_path, cuda_graph=True)
    assert helpers.main(script, replace(args, evaluate=str(run_dir))) == returns
    with pytest.raises(SystemExit, match="--cuda-graph needs a GPU, or --no-cuda-graph"):
        helpers.main(script, replace(args, resume=str(run_dir)))


@pytest.mark.parametrize("script", ["ppo", "sac"])
def test_networks_only(script, tmp_path):
    """Such as `benchmark.hub export` writes: to be evaluated, and no more."""
    run_dir, returns = helpers.train(script, tmp_path)
    kept = "script", "args", "global_step", "agent", "last_eval"
    torch.save({name: helpers.load(run_dir)[name] for name in kept}, run_dir / "checkpoint.pt")
    assert helpers.main(script, helpers.small_args(script, tmp_path, evaluate=str(run_dir))) == returns
    args = helpers.small_args(script, tmp_path, resume=str(run_dir), total_timesteps=1024)
    with pytest.raises(SystemExit, match="has the networks only: it can be evaluated, not resumed"):
        helpers.main(script, args)


@pytest.mark.parametrize("words", [["--evaluate", "PATH"], ["--evaluate=PATH"]])
def test_a_path_with_an_equals_sign(words, monkeypatch, tmp_path):
    run_dir, _ = helpers.train("ppo", tmp_path, exp_name="lr=0.1", learning_rate=0.1)
    monkeypatch.setattr(sys, "argv", ["ppo.py", *(word.replace("PATH", str(run_dir)) for word in words)])
    assert checkpoints.saved_args(helpers.module("ppo").Args).learning_rate == 0.1


def test_no_video_where_the_environment_cannot_be_made(capfd):
    """What fails is only the renderer: training goes on without the film."""
    assert not utils.can_record(lambda args, render_mode: utils.check(False, "no such renderer"), None)
    assert "no video: " in capfd.readouterr().err


def test_progress_on_a_terminal_is_one_line(tmp_path):
    """On a terminal the progress rewrites one line; elsewhere there are plain lines without control characters."""
    import pty

    command = [sys.executable, "-m", "cleanrl_lite.ppo", *helpers.small_flags("ppo", tmp_path, eval_every=256)]
    main, terminal = pty.openpty()
    process = subprocess.Popen(command, cwd=tmp_path, env=helpers.environment(), stdout=terminal, stderr=terminal)
    os.close(terminal)
    output = b""
    while True:
        try:
            chunk = os.read(main, 1024)
        except OSError:
            break
        if not chunk:
            break
        output += chunk
    assert process.wait() == 0
    assert b"\rstep 512 of 512 | " in output and b"\033[K\r\n" in output
    for line in (b"evaluation at step 256: ", b"evaluation at step 512: ", b"the run is in "):
        assert b"\r\033[K" + line in output  # in the place of the progress


def test_without_the_system_packages_for_rendering(tmp_path):
    """MuJoCo trains all the same, without the video, and the line says which packages are missing."""
    code = f"""
import ctypes.util
ctypes.util.find_library = lambda name: None  # a machine without libEGL, libGL and libglib
from cleanrl_lite import ppo_continuous
small = dict(num_steps=64, num_minibatches=4, update_epochs=1, total_timesteps=128, eval_episodes=1, compile=False)
ppo_continuous.main(ppo_continuous.Args(capture_video=True, runs_dir={str(tmp_path)!r}, **small))
"""
    environ = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "DISPLAY")}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert run.returncode == 0, run.stderr
    assert "no video: install the system packages libegl1 libgl1 libglib2.0-0" in run.stderr
    assert "evaluation at step 128" in run.stdout and not list(tmp_path.rglob("*.mp4"))
