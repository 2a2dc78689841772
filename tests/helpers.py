"""What several test files share: where the scripts are, running them, and reading back what they
wrote."""

import ast
import copy
import importlib
import importlib.util
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cleanrl_lite import utils

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "cleanrl_lite"
TEXT = {path.stem: path.read_text() for path in sorted(SOURCE.glob("*.py"))}


# --- the scripts, and what each of them is: read from their own text, so that a new one needs no
# entry here
def module(script):
    return importlib.import_module(f"cleanrl_lite.{script}")


def import_file(path):
    """A copy of a script, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def parent_of(script):
    """The script that it is a variant of, which the first paragraph of its docstring names."""
    docstring = ast.get_docstring(ast.parse(TEXT[script]))
    found = re.findall(r"a variant of (\w+)\.py", " ".join(docstring.partition("\n\n")[0].split()))
    return found[0] if found else None


SCRIPTS = [name for name, text in TEXT.items() if "class Args:" in text]
PARENT = {name: parent_of(name) for name in SCRIPTS if parent_of(name)}


def lineage(script):
    """The script, its parent, and so on up to the root."""
    return [script, *(lineage(PARENT[script]) if script in PARENT else [])]


def family(script):
    """The script that it descends from: ppo, dqn or ddpg."""
    return lineage(script)[-1]


def default(script, flag):
    """The default of a flag as the text has it, without importing the script."""
    found = re.search(rf"^    {flag}: .+? = (.+?)(?:  #.*)?$", TEXT[script], re.M)
    return found and ast.literal_eval(found[1])


FAMILIES = {
    root: [name for name in SCRIPTS if family(name) == root] for root in map(family, SCRIPTS)
}
# What must be installed besides this package's extras, or is not in everyone's: their tests are
# skipped without it.
JAVA_SCRIPTS = [name for name in SCRIPTS if "import jpype" in TEXT[name]]
GODOT_SCRIPTS = [name for name in SCRIPTS if "godot_rl" in TEXT[name]]
MJX_SCRIPTS = [name for name in SCRIPTS if re.search("^ *(import|from) brax", TEXT[name], re.M)]
ENVPOOL_SCRIPTS = [name for name in SCRIPTS if name.endswith("_envpool")]
GODOT = importlib.util.find_spec("godot_rl") is not None
BRAX = importlib.util.find_spec("brax") is not None
JAVA = all(map(importlib.util.find_spec, ["jpype", "gym_microrts"]))
JAVA = JAVA and shutil.which("java") is not None
# They take any environment of gymnasium with vectors as observations.
MLP_SCRIPTS = [
    name
    for name in SCRIPTS
    if "utils.make_envs(" in TEXT[name]
    and "utils.flatten(" in TEXT[name]
    and ":" not in default(name, "env_id")
]
# They train as their parents: test_visual.py has what they add, test_envpool.py what others do.
VISUAL_SCRIPTS = [name for name in SCRIPTS if name.endswith("_visual")]
TRAINING_SCRIPTS = [name for name in SCRIPTS if name not in VISUAL_SCRIPTS + ENVPOOL_SCRIPTS]
ATARI_SCRIPTS = [name for name in SCRIPTS if "NoFrameskip" in default(name, "env_id")]
# The first tier trains ppo_atari and dqn_atari; these share their games, and their updates are those
# of scripts for vectors, which it trains too.
GAME_VARIANTS = [
    name for name in ATARI_SCRIPTS if name not in ("ppo_atari", "dqn_atari", *VISUAL_SCRIPTS)
]
IMAGE_SCRIPTS = [name for name in SCRIPTS if name.endswith("_image")]
GOAL_SCRIPTS = [name for name in SCRIPTS if "compute_reward" in TEXT[name]]
LSTM_SCRIPTS = [name for name in SCRIPTS if name.endswith("_lstm")]
CONTINUOUS_SCRIPTS = [name for name in MLP_SCRIPTS if default(name, "env_id") == "Hopper-v4"]
# Simpler than PPO, and never compiled: test_simple.py has their updates.
PLAIN_SCRIPTS = [name for name in SCRIPTS if "ppo_simple" in lineage(name)]
# From rollouts, but without a policy of its own: test_pqn.py has their updates.
Q_SCRIPTS = [name for name in SCRIPTS if default(name, "q_lambda") is not None]
# They learn from rollouts, the others from a replay buffer.
ROLLOUT_SCRIPTS = [
    name
    for name in FAMILIES["ppo"]
    if name not in ENVPOOL_SCRIPTS + PLAIN_SCRIPTS + VISUAL_SCRIPTS + Q_SCRIPTS
]
OFF_POLICY_SCRIPTS = [
    name for name in FAMILIES["dqn"] + FAMILIES["ddpg"] if name not in GOAL_SCRIPTS + VISUAL_SCRIPTS
]


MEMORYLESS_SCRIPTS = [name for name in MLP_SCRIPTS if name not in LSTM_SCRIPTS]


def others_slow(scripts, fast):
    """For parametrize: the first tier has these few scripts, the second has the others."""
    assert {*fast} <= {*scripts}
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[] if name in fast else slow) for name in scripts]


# --- small runs: a few rollouts, seconds. A test overrides what it is about.
ROLLOUT = dict(num_envs=4, num_steps=32, num_minibatches=4, update_epochs=4, total_timesteps=512)
REPLAY = dict(num_envs=2, buffer_size=300, learning_starts=128, train_frequency=4, batch_size=16)
REPLAY |= dict(target_network_frequency=50, n_atoms=11, total_timesteps=512)
REPLAY |= dict(n_critics=3, n_quantiles=7, renorm_warmup=60)
GAMES = dict(num_envs=2, num_steps=8, num_minibatches=2, total_timesteps=64, threads=1)
FRAMES = dict(GAMES, buffer_size=100, learning_starts=16, train_frequency=8, batch_size=8)
FRAMES |= dict(target_network_frequency=40, total_timesteps=128)
SHORT_GAMES = '{"max_num_frames_per_episode": 160}'  # 40 steps, evaluations too
PROBES = "tests.probe_envs:Probe"
DRAWN = f"{PROBES}Drawn-v0"  # CartPole-v1, or another environment, drawn
ENV_IDS = {"Hopper-v4": "InvertedPendulum-v4", "CarRacing-v3": DRAWN}
# Only what the environments need that these scripts are for.
OTHERS = dict(
    a2c=dict(num_steps=8),
    a2c_continuous=dict(num_steps=8),
    ppo_masked=dict(max_episode_steps=50),
    ppo_hybrid=dict(env_id=f"{PROBES}Mixed-v0"),
    ppo_continuous_asymmetric=dict(env_id=f"{PROBES}Privileged-v0"),
    ppo_multiagent=dict(env_id=f"{PROBES}Team-v0"),
    ppo_selfplay=dict(env_id=f"{PROBES}Nim-v0"),
    sac_her=dict(env_id=f"{PROBES}Reach-v0"),
    ppo_image=dict(
        num_envs=2, num_steps=16, total_timesteps=256, image_size=36, stack_size=2, threads=1
    ),
    ppo_lstm=dict(seq_len=8),
    ppo_continuous_lstm=dict(seq_len=8),
    ppo_atari_lstm=dict(seq_len=4),
    ppo_godot=dict(env_id="Answer", env_path=str(ROOT / "tests/like_godot.x86_64")),
    ppo_continuous_mjx=dict(env_id="inverted_pendulum"),
    fast_td3_mjx=dict(env_id="inverted_pendulum", v_min=0.0, v_max=100.0),
    ppo_microrts=dict(
        opponents="passiveAI", num_envs=2, num_steps=16, total_timesteps=256, max_episode_steps=40
    ),
)


def small(script):
    """The flags of a small run, of those that the script has."""
    replays = default(script, "buffer_size") is not None
    if script in ATARI_SCRIPTS:
        sizes = FRAMES if replays else GAMES
    else:
        sizes = REPLAY if replays else ROLLOUT
    env_id = default(script, "env_id")
    sizes = {**sizes, "env_kwargs": SHORT_GAMES} if script in ATARI_SCRIPTS else sizes
    flags = {name: size for name, size in sizes.items() if default(script, name) is not None}
    return {"env_id": ENV_IDS.get(env_id, env_id), **flags, **OTHERS.get(script, {})}


SMALL = {script: small(script) for script in SCRIPTS}


def tags(script):
    """The tags that the script writes at every log, apart from those of episodes and
    evaluations."""
    found = set(re.findall(r'"((?:losses|charts)/\w+)"', TEXT[script]))
    return found - {f"charts/{name}" for name in EPISODES} | {"charts/SPS"}


EPISODES = "episodic_return", "episodic_length", "success_rate"


def adams(state):
    """{name: Adam's state} of a checkpoint, where the script has its Adam written out."""
    names = [name for name in state if name.endswith("adam")]
    assert names, state.keys()
    return {name: state[name] for name in names}


def rollout_only(script, **flags):
    """These flags where the script has them: sizes of a rollout."""
    return {
        name: size
        for name, size in flags.items()
        if hasattr(module(script).Args, name) and family(script) == "ppo"
    }


def eager(script):
    """The flag that keeps a script from compiling its update, if it would."""
    return {"compile": False} if default(script, "compile") is not None else {}


def small_args(script, runs_dir, **overrides):
    """Args of a small eager run below runs_dir."""
    quick = dict(**eager(script), cuda=False, eval_episodes=1, runs_dir=str(runs_dir))
    return module(script).Args(**{**SMALL[script], **quick, **overrides})


def as_flags(**values):
    """Keyword arguments as words of a command line."""
    words = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words += [f"--{flag}" if value else f"--no-{flag}"]
        else:
            words += [f"--{flag}", str(value)]
    return words


def small_flags(script, runs_dir, **overrides):
    quick = dict(**eager(script), eval_episodes=1, runs_dir=runs_dir)
    return as_flags(**{**SMALL[script], **quick, **overrides})


def main(script, args):
    """main(args) of the script in this process."""
    return module(script).main(args)


# --- agents and batches, as any user makes them
def agent_of(script, **flags):
    """(args, agent) of a small run, without one; the weights are random, targets' too."""
    args = small_args(script, "unused", **flags)
    env = module(script).make_env(args)
    agent = module(script).Agent(args, env.observation_space, env.action_space)
    env.close()
    with torch.no_grad():
        for param in agent.parameters():
            param.add_(0.1 * torch.randn_like(param))
    return args, agent


def random_rows(space, rows):
    """Observations or actions of a space, a tensor (rows, ...)."""
    if isinstance(space, Box) and space.dtype.kind == "f":
        low, high = space.low.clip(-2, 2), space.high.clip(-2, 2)
        draws = np.random.uniform(low, high, (rows, *space.shape)).astype(space.dtype)
    else:
        draws = np.stack([space.sample() for _ in range(rows)])
    return torch.from_numpy(draws)


def random_batch(script, args, agent, rows=64, **given):
    """A Batch of the script with random parts, but for the `given` ones. Half of `terminations` are
    1, and `logprobs` are near those of the agent's policy."""
    env = module(script).make_env(args)
    env.observation_space.seed(0)
    env.action_space.seed(0)
    batch = dict(given)
    for name in module(script).Batch._fields:
        if name in given:
            continue
        if name in ("obs", "next_obs"):
            batch[name] = random_rows(env.observation_space, rows)
            if batch[name].dtype != torch.uint8:
                batch[name] = batch[name].float()
        elif name == "actions":
            batch[name] = random_rows(env.action_space, rows)
        elif name == "terminations":
            batch[name] = (torch.arange(rows) % 2).float()
        elif name == "logprobs":
            with torch.no_grad():
                logprobs = agent(batch["obs"])[0].log_prob(batch["actions"])
            batch[name] = logprobs + 0.2 * torch.randn(rows)
        else:
            batch[name] = torch.randn(rows)
    env.close()
    return module(script).Batch(**batch)


def train(script, runs_dir, **overrides):
    """A small run in this process; returns its directory and the returns of the final
    evaluation."""
    record = main(script, small_args(script, runs_dir, **overrides))
    return record["dir"], record["returns"]


def command_line(script, words):
    """The script as __main__ with these words, in this process: what the shell does, without the
    seconds of imports.

    Returns the exit status, and prints what the interpreter would print at the end.
    """
    name = f"cleanrl_lite.{script}"
    imported = sys.modules.pop(name, None)  # runpy warns of a module that is imported already
    try:
        with mock.patch.object(sys, "argv", [f"{script}.py", *map(str, words)]):
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        # not the whole of sys.modules: importing ale_py a second time aborts the process
        if imported:
            sys.modules[name] = imported
    return 0


def train_defaults(script, runs_dir, **overrides):
    """An eager run in this process with the script's own defaults; returns its directory."""
    flags = {**eager(script), "cuda": False, "runs_dir": str(runs_dir), **overrides}
    return main(script, module(script).Args(**flags))["dir"]


def environment(**extra):
    """Environment of a subprocess: tests/ importable (for probe environments), narrow help texts
    avoided."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "OMP_NUM_THREADS": "1", **extra}


def run(command, cwd, timeout=180, input="", **extra):
    words, environ = [str(word) for word in command], environment(**extra)
    return subprocess.run(
        words, cwd=cwd, env=environ, capture_output=True, text=True, timeout=timeout, input=input
    )


BACKGROUND = []  # processes that conftest.py kills at the end of a test, if need be


def in_background(command, cwd):
    """A command in a process group of its own; what it prints can be read."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background jobs, and so their children, ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    BACKGROUND.append(process)
    return process


def wait_for(condition, seconds=120):
    """Until condition() is true; fails after so many seconds."""
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline, f"waited {seconds} s"
        time.sleep(0.2)


def next_second():
    """TensorBoard orders a run's event files by the second of their creation: a resumed run has
    to come in a later one, as every real one does (it takes longer to start)."""
    time.sleep(1.1)


def only_run(runs_dir):
    (run_dir,) = [path for path in Path(runs_dir).iterdir() if path.is_dir()]
    return run_dir


def scalars(run_dir):
    """{tag: [(step, value), ...]} of everything that a run logged, in the order of writing."""
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def means20(run_dir):
    """The mean of every 20 episodes in a row."""
    returns = [value for _, value in scalars(run_dir)["charts/episodic_return"]]
    return np.convolve(returns, np.full(20, 1 / 20), "valid")


def load(run_dir):
    """The checkpoint of a run, as a plain dict."""
    return torch.load(Path(run_dir) / "checkpoint.pt", weights_only=True)


def read_json(path):
    return json.loads(Path(path).read_text())


UNSEEDED = {"charts/SPS"}  # differs between two equal runs


def assert_same_state(mine, theirs, where="checkpoint"):
    """Equal to the last bit: networks, optimisers, statistics, the replay buffer."""
    assert type(mine) is type(theirs), where
    if isinstance(mine, dict):
        assert mine.keys() == theirs.keys(), where
        for name in mine:
            assert_same_state(mine[name], theirs[name], f"{where}: {name}")
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(theirs), where
        for one, other in zip(mine, theirs, strict=True):
            assert_same_state(one, other, where)
    elif torch.is_tensor(mine):
        assert torch.equal(mine, theirs), where
    elif isinstance(mine, np.ndarray):
        np.testing.assert_array_equal(mine, theirs, where)
    else:
        assert mine == theirs, where


def assert_same_run(one, other, without=UNSEEDED):
    """Equal scalars, bit for bit, and equal checkpoints. `without`: tags."""
    mine, theirs = (
        {tag: points for tag, points in scalars(run).items() if tag not in without}
        for run in (one, other)
    )
    assert mine == theirs
    differs = ("args", "id")
    states = [
        {name: x for name, x in load(run).items() if name not in differs} for run in (one, other)
    ]
    assert tags(read_json(one / "args.json")["script"]) <= set(mine) | UNSEEDED
    assert_same_state(*states)


def stop_at(step, monkeypatch):
    """From here on runs stop, as after a signal, at the first turn that has reached this step."""

    class Stopped(utils.Run):
        def checkpoint(self, writer):
            if self.step >= step:
                utils.received.append(signal.SIGTERM)
            super().checkpoint(writer)

    monkeypatch.setattr(utils, "Run", Stopped)


def stopped(script, runs_dir, step, monkeypatch, **flags):
    """The directory of a small run that a signal stops there."""
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="143"):
        stop_at(step, patch)
        train(script, runs_dir, **flags)
    utils.received.clear()
    next_second()
    return max(Path(runs_dir).glob("*/checkpoint.pt"), key=os.path.getmtime).parent


def spy_on_calls(monkeypatch, script, name="compute_gae"):
    """A list that gets a copy of the arguments of each call of this function of the script."""
    calls = []
    function = getattr(module(script), name)

    def spy(*args):
        calls.append(copy.deepcopy(args))
        return function(*args)

    monkeypatch.setattr(module(script), name, spy)
    return calls


def spy_on_agents(monkeypatch, script):
    """A list that gets the agents that main() makes."""
    agents, Agent = [], module(script).Agent

    class SpiedAgent(Agent):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            agents.append(self)

    monkeypatch.setattr(module(script), "Agent", SpiedAgent)
    return agents
