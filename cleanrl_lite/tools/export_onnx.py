"""Writes the greedy policy of a run as ONNX, and prints six lines that play it without torch.

    python -m cleanrl_lite.tools.export_onnx RUN_DIR [FILE]
    python -m cleanrl_lite.tools.export_onnx RUN_DIR FILE my_idea.py    of a script of your own

The file (RUN_DIR/policy.onnx by default) holds all that lies between a batch of observations, as
the environment gives them, and the actions that an evaluation plays: normalisation, network, and
the clipping to the actions' bounds. What an LSTM remembers is an input, `state`, and an output,
`next_state`: zeros at first, then what the call before returned.

Its metadata says what a program needs to know: `script`, `env_id`, and as JSON `env_kwargs`,
`observation` (its parts in their order, with their sizes) and `actions` (their space and bounds).
To read it: onnxruntime.InferenceSession(FILE).get_modelmeta().custom_metadata_map
"""

import io
import json
import logging
from contextlib import redirect_stderr
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.wrappers import FlattenObservation
from torch import nn
from torch.distributions import Distribution

from cleanrl_lite.tools import agents
from cleanrl_lite.tools import runs as tools
from cleanrl_lite.utils import check, load

# Wrappers that gymnasium.make adds, and the one that the printed lines add
PLAIN = "TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "FlattenObservation"
PLAY = """\
import gymnasium as gym, numpy as np, onnxruntime
env = gym.wrappers.RecordEpisodeStatistics({make})
policy = onnxruntime.InferenceSession("{file}")
obs, info = env.reset(seed=1)
while "episode" not in info:
    obs, *_, info = env.step(policy.run(["actions"], {{"obs": np.{dtype}([obs])}})[0][0])
print(info["episode"]["r"])"""
CALL = """\
import numpy as np, onnxruntime
policy = onnxruntime.InferenceSession("{file}")
obs = np.zeros({shape}, "{dtype}")  # instead: what make_env of {script}.py gives
(actions,) = policy.run(["actions"], {{"obs": obs}})
print(actions[0])"""
CALL_WITH_STATE = """\
import numpy as np, onnxruntime
policy = onnxruntime.InferenceSession("{file}")
obs = np.zeros({shape}, "{dtype}")  # instead: what make_env of {script}.py gives
state = np.zeros({state}, "float32")  # at an episode's first step
actions, state = policy.run(["actions", "next_state"], {{"obs": obs, "state": state}})
print(actions[0])"""


class Policy(nn.Module):
    def __init__(self, agent, space):
        super().__init__()
        self.agent = agent
        self.bounds = None
        if isinstance(space, Box):
            self.bounds = torch.as_tensor(space.low), torch.as_tensor(space.high)

    def forward(self, obs):
        actions = self.agent.act(obs)
        return actions.clamp(*self.bounds) if self.bounds else actions


class RememberingPolicy(Policy):
    """act() of an agent with a memory, which is an input and an output here."""

    def forward(self, obs, state):
        before = self.agent.memory
        self.agent.memory = state
        actions = super().forward(obs)
        next_state = self.agent.memory
        self.agent.memory = before  # torch.export refuses a forward that leaves a tensor behind
        return actions, next_state


def in_float32(module):
    """onnxruntime has no convolutions in bfloat16."""
    module.bf16 = False


def export(run_dir, path, script=None, **changed):
    """Writes the file `path`; returns lines that play it. script and changed: see agents.load."""
    agent, env = agents.load(run_dir, script, **changed)
    agent.apply(in_float32)
    problem = f"cannot export act() of {type(agent).__module__}"
    obs = torch.as_tensor(np.asarray(env.reset()[0], env.observation_space.dtype))
    batch = torch.stack([obs, obs])  # torch.export takes a size of one for a constant
    policy = Policy(agent, env.action_space)
    inputs = {"obs": batch}
    outputs = ["actions"]
    if hasattr(agent, "memory"):
        policy = RememberingPolicy(agent, env.action_space)
        inputs["state"] = torch.zeros(2, *agent.memory.shape[1:])
        outputs.append("next_state")
    # A distribution that checks its arguments looks at numbers, which torch.export refuses.
    Distribution.set_default_validate_args(False)
    try:
        exported = torch.onnx.export(
            policy,
            tuple(inputs.values()),
            dynamo=True,  # without it, what leaves torch would be written as a constant
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=[{0: "batch"} for _ in inputs],
            verbose=False,
        )
    except ImportError as error:
        command = "pip install onnx onnxscript onnxruntime"
        check(False, f"{error.name} is not installed. Run: {command}")
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__).splitlines()[0]
        check(False, f"{problem}: write it with torch operations only ({reason})")
    finally:
        Distribution.set_default_validate_args(True)
    saved = load(run_dir)
    args = {"script": saved["script"], "env_kwargs": "{}", **saved["args"]}
    exported.model.metadata_props.update(metadata(args, env))
    exported.save(path, external_data=False)
    return program(Path(path).name, args, env, agent, batch.numpy())


# === what a program needs to know
def env_id_of(args):
    """gymnasium's, which is evaluated, where envpool's is trained in."""
    return args["env_id"].removeprefix("envpool/")


def metadata(args, env):
    space = env.action_space
    actions = {"space": str(space), "dtype": str(space.dtype)}
    if isinstance(space, Box):
        actions["low"] = finite(space.low)
        actions["high"] = finite(space.high)
    found = {
        "env_kwargs": json.loads(args["env_kwargs"]),
        "observation": list(parts(unflattened(env).observation_space, "")),
        "actions": actions,
    }
    texts = {name: json.dumps(value) for name, value in found.items()}
    return {"script": args["script"], "env_id": env_id_of(args), **texts}


def finite(bounds):
    """As JSON has them: null where there is no bound."""
    return np.where(np.isfinite(bounds), bounds, None).tolist()


def unflattened(env):
    """The environment below the wrapper that makes a vector of an observation's parts."""
    below = env
    while isinstance(below, gym.Wrapper):
        if isinstance(below, FlattenObservation):
            return below.env
        below = below.env
    return env


def parts(space, name):
    """The parts of an observation in their order, and how many numbers each becomes."""
    if isinstance(space, gym.spaces.Dict):
        inner = space.spaces.items()
    elif isinstance(space, gym.spaces.Tuple):
        inner = enumerate(space.spaces)
    else:
        size = gym.spaces.flatdim(space)
        yield {"name": name or "obs", "size": size, "space": " ".join(str(space).split())}
        return
    for key, part in inner:
        yield from parts(part, f"{name}.{key}" if name else str(key))


def wrappers(env):
    while isinstance(env, gym.Wrapper):
        yield type(env).__name__
        env = env.env


def program(file, args, env, agent, batch):
    """Lines that play the file with gymnasium and onnxruntime alone; else lines that call it."""
    used = set(wrappers(env))
    shape = (1, *batch.shape[1:])
    words = {"file": file, "script": args["script"], "dtype": batch.dtype, "shape": shape}
    if hasattr(agent, "memory"):
        return CALL_WITH_STATE.format(state=(1, *agent.memory.shape[1:]), **words)
    if used - set(PLAIN):
        return CALL.format(**words)
    make = f"gym.make({arguments(args)})"
    if "FlattenObservation" in used:
        make = f"gym.wrappers.FlattenObservation({make})"
    return PLAY.format(make=make, **words)


def arguments(args):
    """What gymnasium.make takes to make the run's environment, as Python's text."""
    kwargs = json.loads(args["env_kwargs"])
    if args.get("max_episode_steps"):
        kwargs["max_episode_steps"] = args["max_episode_steps"]
    words = [f"{name}={value!r}" for name, value in kwargs.items()]
    return ", ".join([f'"{env_id_of(args)}"', *words])


def main():
    parser = tools.parser(__doc__)
    parser.add_argument("run_dir")
    parser.add_argument("file", nargs="?", help="default: RUN_DIR/policy.onnx")
    parser.add_argument("script", nargs="?", help="its path, if it is not an installed one")
    parser.add_argument("--env-id", help="the run's, if it names a module, which is imported then")
    args = parser.parse_args()
    path = args.file or f"{args.run_dir}/policy.onnx"
    changed = {"env_id": args.env_id} if args.env_id else {}
    # torch reports missing packages that are not needed, and prints a graph of what it refuses.
    logging.disable()
    with redirect_stderr(io.StringIO()):
        lines = export(args.run_dir, path, args.script, **changed)
    print(f"{path}\n\n{lines}")


if __name__ == "__main__":
    main()
