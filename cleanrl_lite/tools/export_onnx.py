"""Writes the greedy policy of a run as ONNX, which plays without torch.

    python -m cleanrl_lite.tools.export_onnx RUN_DIR [FILE]
    python -m cleanrl_lite.tools.export_onnx RUN_DIR FILE my_idea.py    of a script of your own

The file (RUN_DIR/policy.onnx by default) holds all that lies between a batch of observations, as
the environment gives them, and the actions that an evaluation plays: normalisation, network, and
the clipping to the actions' bounds. What an LSTM remembers is an input, `state`, and an output,
`next_state`: zeros at first, then what the call before returned.

Its metadata, which the command prints, says what a program needs to know; the guide has one:
docs/guides/agents.md.
"""

import io
import json
import logging
from contextlib import redirect_stderr

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.distributions import Distribution

from cleanrl_lite.tools import agents
from cleanrl_lite.tools import runs as tools
from cleanrl_lite.utils import check, load


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


def export(run_dir, path, script=None, **changed):
    """Writes the file `path`; returns its metadata. script and changed: see agents.load."""
    agent, env = agents.load(run_dir, script, **changed)
    for module in agent.modules():
        module.bf16 = False  # onnxruntime has no convolutions in bfloat16
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
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__).splitlines()[0]
        check(False, f"cannot export act(): write it with torch operations only ({reason})")
    finally:
        Distribution.set_default_validate_args(True)
    saved = load(run_dir)
    args = {"script": saved["script"], "env_kwargs": "{}", **saved["args"]}
    told = metadata(args, env)
    exported.model.metadata_props.update(told)
    exported.save(path, external_data=False)
    return told


def metadata(args, env):
    """What a program needs to know, as texts; observations are those before any wrapper."""
    env_kwargs = json.loads(args["env_kwargs"])
    if args.get("max_episode_steps"):
        env_kwargs["max_episode_steps"] = args["max_episode_steps"]
    return {
        "script": args["script"],
        "env_id": args["env_id"].removeprefix("envpool/"),  # gymnasium's is evaluated
        "env_kwargs": json.dumps(env_kwargs),
        "observation_space": " ".join(str(env.unwrapped.observation_space).split()),
        "action_space": " ".join(str(env.action_space).split()),
    }


def main():
    parser = tools.parser(__doc__)
    parser.add_argument("run_dir")
    parser.add_argument("file", nargs="?", help="default: RUN_DIR/policy.onnx")
    parser.add_argument("script", nargs="?", help="its path, if it is not an installed one")
    parser.add_argument("--env-id", help="the run's, if it names a module, which is imported then")
    args = parser.parse_args()
    path = args.file or f"{args.run_dir}/policy.onnx"
    # torch reports missing packages that are not needed, and prints a graph of what it refuses.
    logging.disable()
    with redirect_stderr(io.StringIO()):
        told = export(args.run_dir, path, args.script, env_id=args.env_id)
    print(path, *(f"{name}: {text}" for name, text in told.items()), sep="\n")


if __name__ == "__main__":
    main()
