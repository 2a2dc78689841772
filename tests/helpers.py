"""What several test files share: where the scripts are, running them, and reading back what they
wrote."""

import importlib
import importlib.util
import inspect
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import gymnasium as gym
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cleanrl_lite import utils

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "cleanrl_lite"
SCRIPTS = sorted(path.stem for path in SOURCE.glob("*.py") if "class Args:" in path.read_text())
PARENT = dict(
    ppo_continuous="ppo",
    ppo_masked="ppo",
    ppo_atari="ppo",
    dqn_atari="dqn",
    c51="dqn",
    c51_atari="c51",
)
PARENT |= dict(
    td3="ddpg", sac="td3", sac_her="sac", ppo_microrts="ppo_masked", ppo_image="ppo_atari"
)
PARENT |= dict(
    ppo_multiagent="ppo_masked", ppo_selfplay="ppo_masked", ppo_atari_multigpu="ppo_atari"
)
PARENT |= dict(ppo_continuous_adaptive="ppo_continuous", ppo_continuous_asymmetric="ppo_continuous")
PARENT |= dict(
    ppo_hybrid="ppo_continuous", ppo_godot="ppo_continuous", ppo_continuous_mjx="ppo_continuous"
)
PARENT |= dict(ppo_simple="ppo", vpg="ppo_simple", a2c="vpg")
PARENT |= dict(
    dqn_atari_visual="dqn_atari", c51_atari_visual="c51_atari", ppo_atari_visual="ppo_atari"
)
PARENT |= dict(
    ppo_envpool="ppo",
    ppo_continuous_envpool="ppo_continuous",
    ppo_lstm="ppo",
    ppo_atari_lstm="ppo_atari",
)
# In the lists below these are in FAMILIES only, and the plain ones in MLP_SCRIPTS:
GOAL_SCRIPTS = ["sac_her"]  # they need goal environments
ENVPOOL_SCRIPTS = ["ppo_envpool", "ppo_continuous_envpool"]  # their episodes end otherwise
IMAGE_SCRIPTS = ["ppo_image"]  # images of any environment
# they train as their parents: test_visual.py
VISUAL_SCRIPTS = [name for name in SCRIPTS if name.endswith("_visual")]
TRAINING_SCRIPTS = [name for name in SCRIPTS if name not in VISUAL_SCRIPTS]
PLAIN_SCRIPTS = ["ppo_simple", "vpg", "a2c"]  # simpler than PPO: test_simple.py has their updates
# what trains them is in the slow tier, and skipped without gym_microrts
JAVA_SCRIPTS = ["ppo_microrts"]
GODOT_SCRIPTS = ["ppo_godot"]  # skipped without godot-rl; tests/like_godot.py is their game
GODOT = importlib.util.find_spec("godot_rl") is not None
# test_mjx.py has them; what needs brax is slow, and skipped without it
MJX_SCRIPTS = ["ppo_continuous_mjx"]
BRAX = importlib.util.find_spec("brax") is not None
JAVA = (
    all(map(importlib.util.find_spec, ["jpype", "gym_microrts"]))
    and shutil.which("java") is not None
)


def family(script):
    """The script that it descends from: ppo, dqn or ddpg."""
    return family(PARENT[script]) if script in PARENT else script


FAMILIES = {
    root: [name for name in SCRIPTS if family(name) == root] for root in map(family, SCRIPTS)
}
# Not gymnasium's, or not vectors.
OTHER_ENVS = tuple(
    ["_her", "_envpool", "_microrts", "_selfplay", "_image", "_multiagent", "_asymmetric", "_hybrid", "_godot", "_mjx"]
)
MLP_SCRIPTS = [name for name in SCRIPTS if "_atari" not in name and not name.endswith(OTHER_ENVS)]
ATARI_SCRIPTS = [name for name in SCRIPTS if "_atari" in name]
# their agents take sequences and states
LSTM_SCRIPTS = [name for name in SCRIPTS if name.endswith("_lstm")]
CONTINUOUS_SCRIPTS = ["ppo_continuous", "ppo_continuous_adaptive", "ddpg", "td3", "sac"]
# They learn from rollouts, the others from a replay buffer.
ROLLOUT_SCRIPTS = [
    name for name in FAMILIES["ppo"] if name not in ENVPOOL_SCRIPTS + PLAIN_SCRIPTS + VISUAL_SCRIPTS
]
OFF_POLICY_SCRIPTS = [
    name for name in FAMILIES["dqn"] + FAMILIES["ddpg"] if name not in GOAL_SCRIPTS + VISUAL_SCRIPTS
]

# Small runs: a few rollouts, seconds. A test overrides what it is about.
DQN = dict(learning_starts=64, train_frequency=4, batch_size=16, target_network_frequency=50)
DDPG = dict(learning_starts=128, train_frequency=2, batch_size=16)
MLP = dict(num_envs=2, buffer_size=300, total_timesteps=512)
ATARI = dict(env_id="BreakoutNoFrameskip-v4", num_envs=2, threads=1)
FRAMES = dict(
    buffer_size=100,
    learning_starts=16,
    train_frequency=8,
    batch_size=8,
    target_network_frequency=40,
)
DRAWN = "tests.probe_envs:ProbeDrawn-v0"  # CartPole-v1, or another environment, drawn
SMALL = dict(
    ppo=dict(env_id="CartPole-v1", num_envs=4, num_steps=32, total_timesteps=512),
    ppo_simple=dict(env_id="CartPole-v1", num_envs=4, num_steps=32, total_timesteps=512),
    vpg=dict(env_id="CartPole-v1", num_envs=4, num_steps=32, total_timesteps=512),
    a2c=dict(env_id="CartPole-v1", num_envs=4, num_steps=8, total_timesteps=512),
    ppo_continuous=dict(
        env_id="InvertedPendulum-v4",
        num_envs=2,
        num_steps=64,
        total_timesteps=512,
        num_minibatches=4,
        update_epochs=2,
    ),
    ppo_continuous_adaptive=dict(
        env_id="InvertedPendulum-v4",
        num_envs=2,
        num_steps=64,
        total_timesteps=512,
        num_minibatches=4,
        update_epochs=4,
    ),
    ppo_hybrid=dict(
        env_id="tests.probe_envs:ProbeMixed-v0",
        num_envs=2,
        num_steps=64,
        total_timesteps=512,
        num_minibatches=4,
    ),
    ppo_continuous_asymmetric=dict(
        env_id="tests.probe_envs:ProbePrivileged-v0",
        num_envs=2,
        num_steps=64,
        total_timesteps=512,
        num_minibatches=4,
    ),
    ppo_envpool=dict(env_id="CartPole-v1", num_envs=4, num_steps=32, total_timesteps=512),
    ppo_continuous_envpool=dict(
        env_id="InvertedPendulum-v4",
        num_envs=2,
        num_steps=64,
        total_timesteps=512,
        num_minibatches=4,
        update_epochs=2,
    ),
    ppo_masked=dict(
        env_id="Taxi-v4", num_envs=4, num_steps=32, total_timesteps=512, max_episode_steps=50
    ),
    ppo_lstm=dict(env_id="CartPole-v1", num_envs=4, num_steps=32, total_timesteps=512, seq_len=8),
    ppo_image=dict(
        env_id=DRAWN,
        num_envs=2,
        num_steps=16,
        total_timesteps=256,
        image_size=36,
        stack_size=2,
        threads=1,
    ),
    ppo_multiagent=dict(
        env_id="tests.probe_envs:ProbeTeam-v0", num_envs=4, num_steps=32, total_timesteps=512
    ),
    ppo_selfplay=dict(
        env_id="tests.probe_envs:ProbeNim-v0", num_envs=4, num_steps=32, total_timesteps=512
    ),
    ppo_godot=dict(
        env_id="Answer", env_path=str(ROOT / "tests/like_godot.x86_64"), num_envs=4, num_steps=32
    )
    | dict(total_timesteps=512, num_minibatches=4, update_epochs=4),
    ppo_continuous_mjx=dict(
        env_id="inverted_pendulum",
        num_envs=4,
        num_steps=32,
        total_timesteps=512,
        num_minibatches=4,
        update_epochs=2,
    ),
    ppo_atari=dict(**ATARI, num_steps=8, total_timesteps=64, num_minibatches=2),
    ppo_atari_multigpu=dict(**ATARI, num_steps=8, total_timesteps=64, num_minibatches=2),
    ppo_atari_lstm=dict(**ATARI, num_steps=8, total_timesteps=64, num_minibatches=2, seq_len=4),
    dqn=dict(**MLP, **DQN, env_id="CartPole-v1"),
    c51=dict(**MLP, **DQN, env_id="CartPole-v1", n_atoms=11),
    dqn_atari=dict(**ATARI, **FRAMES, total_timesteps=192),
    c51_atari=dict(**ATARI, **FRAMES, total_timesteps=192),
    ddpg=dict(**MLP, **DDPG, env_id="InvertedPendulum-v4"),
    td3=dict(**MLP, **DDPG, env_id="InvertedPendulum-v4"),
    sac=dict(**MLP, **DDPG, env_id="InvertedPendulum-v4"),
    sac_her=dict(**MLP, **DDPG, env_id="tests.probe_envs:ProbeReach-v0"),
    ppo_microrts=dict(
        env_id="8x8/basesWorkers8x8",
        opponents="passiveAI",
        num_envs=2,
        num_steps=16,
        total_timesteps=256,
    )
    | dict(max_episode_steps=40),
)
SMALL |= {name: SMALL[PARENT[name]] for name in VISUAL_SCRIPTS}
LOSSES = dict(  # what each script logs of its updates
    ppo="policy_loss value_loss entropy approx_kl old_approx_kl clipfrac explained_variance grad_norm",
    dqn="td_loss q_values",
    c51="loss q_values",
    ddpg="qf1_loss qf1_values actor_loss",
    td3="qf1_loss qf1_values qf2_loss qf2_values qf_loss actor_loss",
    sac="qf1_loss qf1_values qf2_loss qf2_values qf_loss actor_loss alpha alpha_loss entropy",
)
LOSSES |= dict(ppo_simple="policy_loss value_loss entropy approx_kl explained_variance")
LOSSES |= dict(vpg="policy_loss value_loss entropy explained_variance")
# and those of its variants
LOSSES |= dict(a2c=LOSSES["vpg"] + " grad_norm", ppo_masked=LOSSES["ppo"])
LOSSES |= dict(ppo_continuous_adaptive=LOSSES["ppo"] + " bounds_loss")
CHARTS = dict(ppo="SPS learning_rate", dqn="SPS epsilon", ddpg="SPS")


def tags(script):
    """The tags that the script writes at every log, apart from those of episodes and
    evaluations."""
    while script not in LOSSES:
        script = PARENT[script]
    losses, charts = (
        LOSSES[script].split(),
        "SPS" if script in PLAIN_SCRIPTS else CHARTS[family(script)],
    )
    return {f"losses/{name}" for name in losses} | {f"charts/{name}" for name in charts.split()}


def adams(state):
    """{name: Adam's state} of a checkpoint; a2c has RMSprop, which does not count its steps."""
    if "square_avg" in state:
        return dict(
            all=dict(step=torch.tensor(state["global_step"]), square_avg=state["square_avg"])
        )
    return state.get("adams") or dict(all=state["adam"])


def rollout_only(script, **flags):
    """These flags where the script has them: sizes of a rollout."""
    return {
        name: size
        for name, size in flags.items()
        if hasattr(module(script).Args, name) and family(script) == "ppo"
    }


def module(script):
    return importlib.import_module(f"cleanrl_lite.{script}")


def small_args(script, runs_dir, **overrides):
    """Args of a small eager run below runs_dir."""
    quick = dict(compile=False, cuda=False, eval_episodes=1, runs_dir=str(runs_dir))
    return module(script).Args(**{**SMALL[script], **quick, **overrides})


def as_flags(**values):
    """Keyword arguments as words of a command line."""
    words = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        words += (
            [f"--{flag}" if value else f"--no-{flag}"]
            if isinstance(value, bool)
            else [f"--{flag}", str(value)]
        )
    return words


def small_flags(script, runs_dir, **overrides):
    quick = dict(compile=False, eval_episodes=1, runs_dir=runs_dir)
    return as_flags(**{**SMALL[script], **quick, **overrides})


def main(script, args):
    """main(args) of the script in this process; Atari's evaluations are cut short, they are not
    what costs here."""
    original = module(script).make_env

    def short_games(args, render_mode=None):
        return gym.wrappers.TimeLimit(original(args, render_mode), 40)

    with mock.patch.object(
        module(script), "make_env", short_games if script in ATARI_SCRIPTS else original
    ):
        return module(script).main(args)


def train(script, runs_dir, **overrides):
    """A small run in this process; returns its directory and the returns of the final
    evaluation."""
    before = set(Path(runs_dir).glob("*/"))
    returns = main(script, small_args(script, runs_dir, **overrides))
    (run_dir,) = set(Path(runs_dir).glob("*/")) - before
    return run_dir, returns


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
    args = module(script).Args(
        **{**dict(compile=False, cuda=False, runs_dir=str(runs_dir)), **overrides}
    )
    module(script).main(args)
    return only_run(runs_dir)


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


def load(run_dir):
    """The checkpoint of a run, as a plain dict."""
    return torch.load(Path(run_dir) / "checkpoint.pt", weights_only=True)


def read_json(path):
    return json.loads(Path(path).read_text())


UNSEEDED = {"charts/SPS"}  # differs between two equal runs


def assert_same_state(mine, theirs, where="checkpoint"):
    """Equal to the last bit: networks, optimisers, random generators, the replay buffer."""
    assert type(mine) is type(theirs), where
    if isinstance(mine, dict):
        assert mine.keys() == theirs.keys(), where
        for name in mine:
            assert_same_state(mine[name], theirs[name], f"{where}: {name}")
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(theirs), where
        for one, other in zip(mine, theirs):
            assert_same_state(one, other, where)
    elif torch.is_tensor(mine):
        assert torch.equal(mine, theirs), where
    else:
        assert mine == theirs, where


def assert_same_run(one, other, without=UNSEEDED):
    """Equal scalars, bit for bit, and equal checkpoints."""
    mine, theirs = (
        {tag: points for tag, points in scalars(run).items() if tag not in without}
        for run in (one, other)
    )
    assert mine == theirs
    differs = ("args", "envs", "last_eval")
    states = [
        {name: x for name, x in load(run).items() if name not in differs} for run in (one, other)
    ]
    assert tags(states[0]["script"]) <= set(mine) | UNSEEDED
    assert_same_state(*states)


def spy_on_updates(monkeypatch, check=lambda update, main, tensors: update(*tensors)):
    """Calls check(update, variables of main that it uses, tensors) instead of each update; the
    list of their names."""
    calls = []

    def compile(run, update):
        def call(*tensors):
            calls.append(update.__name__)
            return check(update, inspect.getclosurevars(update).nonlocals, tensors)

        return call

    monkeypatch.setattr(utils.Run, "compile", compile)
    return calls


def look(main, inds):
    """The agent's distribution and value for samples (or, with an LSTM, sequences) of the batch
    of main()."""
    agent, obs = main["agent"], main["b_obs"][inds]
    return (
        agent(obs, main["b_states"][inds], main["b_loads"][inds])[:2]
        if "b_states" in main
        else agent(obs)
    )


def spy_on_agents(monkeypatch, script):
    """A list that gets the agents that main() makes."""
    agents, Agent = [], module(script).Agent

    class SpiedAgent(Agent):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            agents.append(self)

    monkeypatch.setattr(module(script), "Agent", SpiedAgent)
    return agents


def spy_on_steps(monkeypatch, script, note):
    """Calls note(envs, actions, result of the step) after each step of training's environments."""
    kind = module(script).Games if script in ATARI_SCRIPTS else utils.VectorEnv
    step = kind.step

    def spied(envs, actions):
        result = step(envs, actions)
        note(envs, actions, result)
        return result

    monkeypatch.setattr(kind, "step", spied)


def assert_stepped(agent, reference, learning_rate, names=("",)):
    """The parameters of these networks are the reference's, within a small part of a step of Adam.

    Adam divides by the gradient's size: noise in a vanishing gradient may turn into a part of a
    step.
    """
    for name in names:
        for ours, theirs in zip(
            agent.get_submodule(name).parameters(), reference.get_submodule(name).parameters()
        ):
            assert (ours - theirs).abs().max() < 0.05 * learning_rate, name
            assert (ours - theirs).abs().mean() < 0.002 * learning_rate, name
