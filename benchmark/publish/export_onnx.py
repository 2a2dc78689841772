"""Writes the greedy policy of a run as ONNX: python -m benchmark.publish.export_onnx RUN_DIR [FILE]

The file (RUN_DIR/policy.onnx by default) holds all that lies between a batch of observations, as the environment gives
them, and the actions that an evaluation plays: normalisation, network, and the clipping to the actions' bounds.
"""

import argparse
import io
import logging
import runpy
from contextlib import redirect_stderr
from pathlib import Path

import torch
from gymnasium.spaces import Box
from torch import nn

from benchmark.shared import ROOT
from cleanrl_lite.utils import check

GUIDE = ROOT / "docs/guides/agents.py"


class Policy(nn.Module):
    def __init__(self, agent, space):
        super().__init__()
        self.agent = agent
        self.bounds = [torch.as_tensor(space.low), torch.as_tensor(space.high)] if isinstance(space, Box) else None

    def forward(self, obs):
        actions = self.agent.act(obs)
        return actions.clamp(*self.bounds) if self.bounds else actions


def export(run_dir, path):
    check(Path(run_dir, "checkpoint.pt").is_file(), f"{run_dir} is not a run directory: it has no checkpoint.pt")
    agent, env = runpy.run_path(str(GUIDE))["load"](run_dir)
    agent.apply(lambda module: setattr(module, "bf16", False))  # onnxruntime has no convolutions in bfloat16
    problem = f"cannot export act() of {type(agent).__module__}"
    check(not hasattr(agent, "memory"), f"{problem}: it remembers. Play the agent with {GUIDE.name} of docs/guides")
    obs = torch.as_tensor(env.reset()[0])
    options = dict(input_names=["obs"], output_names=["actions"], dynamic_shapes=[{0: "batch"}], verbose=False)
    try:  # not dynamo=False, which writes what leaves torch as a constant
        batch = torch.stack([obs, obs])  # torch.export takes a size of one for a constant
        torch.onnx.export(Policy(agent, env.action_space), (batch,), path, dynamo=True, external_data=False, **options)
    except ImportError as error:
        check(False, f"{error.name} is not installed. Run: pip install -c constraints.txt -e '.[onnx]'")
    except torch.onnx.OnnxExporterError as error:
        check(False, f"{problem}: write it with torch operations only ({str(error.__cause__).splitlines()[0]})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir")
    parser.add_argument("file", nargs="?", help="default: RUN_DIR/policy.onnx")
    args = parser.parse_args()
    path = args.file or f"{args.run_dir}/policy.onnx"
    logging.disable()  # torch reports missing packages that are not needed, and prints a graph of whatever it refuses
    with redirect_stderr(io.StringIO()):
        export(args.run_dir, path)
    print(path)
