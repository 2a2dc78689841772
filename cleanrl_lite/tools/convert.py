"""Makes a checkpoint of an older version of ddpg, td3, sac or sac_her fit for --evaluate.

    python -m cleanrl_lite.tools.convert runs/Hopper-v4__sac__1__1795200000
    python -m cleanrl_lite.tools.convert benchmark/results/agents/*

Their layers were `actor.0`, `actor.2`, `actor.4`; now they are `actor.fc1`, `actor.fc2`,
`actor.fc3`. The converted checkpoint.pt holds networks and arguments only: a run of an older
version cannot be resumed, with or without this parser. Where the old file holds more than that,
it stays beside the new one as checkpoint_old.pt. Checkpoints that need nothing are left alone.
"""

import re
from pathlib import Path

import torch

from cleanrl_lite.tools import runs as tools
from cleanrl_lite.tools.hub import KEPT
from cleanrl_lite.utils import check, load

SCRIPTS = ("ddpg", "td3", "sac", "sac_her")
LAYERS = {"0": "fc1", "2": "fc2", "4": "fc3"}


def new_name(name):
    """actor.fc2.weight for actor.2.weight."""
    return re.sub(r"\.([024])\.", lambda match: f".{LAYERS[match[1]]}.", name)


def convert(path):
    """Converts a checkpoint in place; False if there is nothing to convert."""
    saved = load(path)
    agent = {new_name(name): weight for name, weight in saved["agent"].items()}
    if saved["script"] not in SCRIPTS or agent.keys() == saved["agent"].keys():
        return False
    parts = {**saved, "agent": agent}
    temporary = path.with_suffix(".tmp")
    torch.save({name: parts[name] for name in KEPT}, temporary)
    if saved.keys() - {*KEPT, "dir"}:
        path.rename(path.with_name("checkpoint_old.pt"))
    temporary.replace(path)
    return True


def main():
    parser = tools.parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories or checkpoints")
    args = parser.parse_args()
    for path in args.runs:
        path = path / "checkpoint.pt" if path.is_dir() else path
        check(path.is_file(), f"there is no {path}")
        print(f"{path}: {'converted' if convert(path) else 'nothing to convert'}")


if __name__ == "__main__":
    main()
