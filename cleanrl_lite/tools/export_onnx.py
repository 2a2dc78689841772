"""Writes the greedy policy of a run as ONNX.

    python -m cleanrl_lite.tools.export_onnx RUN_DIR [FILE]

The file (RUN_DIR/policy.onnx by default) holds all that lies between a batch of observations, as
the environment gives them, and the actions that an evaluation plays: normalisation, network, and
the clipping to the actions' bounds. What an LSTM remembers is an input, `state`, and an output,
`next_state`: zeros at first, then what the call before returned.
"""

import io
import logging
import runpy
from contextlib import redirect_stderr
from pathlib import Path

import torch
from gymnasium.spaces import Box
from torch import nn

from benchmark.shared import ROOT
from cleanrl_lite.tools import runs as tools
from cleanrl_lite.utils import check

GUIDE = ROOT / "docs" / "guides" / "agents.py"


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


def export(run_dir, path):
    found = Path(run_dir, "checkpoint.pt").is_file()
    check(found, f"{run_dir} is not a run directory: it has no checkpoint.pt")
    agent, env = runpy.run_path(str(GUIDE))["load"](run_dir)
    agent.apply(in_float32)
    problem = f"cannot export act() of {type(agent).__module__}"
    obs = torch.as_tensor(env.reset()[0])
    batch = torch.stack([obs, obs])  # torch.export takes a size of one for a constant
    policy = Policy(agent, env.action_space)
    inputs = {"obs": batch}
    outputs = ["actions"]
    if hasattr(agent, "memory"):
        policy = RememberingPolicy(agent, env.action_space)
        inputs["state"] = torch.zeros(2, *agent.memory.shape[1:])
        outputs.append("next_state")
    try:
        torch.onnx.export(
            policy,
            tuple(inputs.values()),
            path,
            dynamo=True,  # without it, what leaves torch would be written as a constant
            external_data=False,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=[{0: "batch"} for _ in inputs],
            verbose=False,
        )
    except ImportError as error:
        command = "pip install -c constraints.txt -e '.[onnx]'"
        check(False, f"{error.name} is not installed. Run: {command}")
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__).splitlines()[0]
        check(False, f"{problem}: write it with torch operations only ({reason})")


def main():
    parser = tools.parser(__doc__)
    parser.add_argument("run_dir")
    parser.add_argument("file", nargs="?", help="default: RUN_DIR/policy.onnx")
    args = parser.parse_args()
    path = args.file or f"{args.run_dir}/policy.onnx"
    # torch reports missing packages that are not needed, and prints a graph of what it refuses.
    logging.disable()
    with redirect_stderr(io.StringIO()):
        export(args.run_dir, path)
    print(path)


if __name__ == "__main__":
    main()
