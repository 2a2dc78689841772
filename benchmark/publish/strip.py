"""A picture of the trained agents at work, docs/img/agents.png.

    python -m benchmark.publish.strip                         those in benchmark/results/agents
    python -m benchmark.publish.strip runs/benchmark/Pong*    and these run directories

Each row has frames of the first episode of an evaluation, a fixed number of steps apart.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib
from moviepy import VideoFileClip

from benchmark.shared import RESULTS, ROOT

matplotlib.use("Agg")
from matplotlib import pyplot as plt

# Of a video that has one frame for each step of the environment
FRAMES = 7
APART = 4
FIRST = 60


def frames(folder):
    """(FRAMES, height, width, 3) of the agent's video."""
    args = json.loads((folder / "args.json").read_text())
    script = next(folder.glob("*.py")).name
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        command = [sys.executable, ROOT / "cleanrl_lite" / script, "--evaluate", copy]
        command += ["--capture-video", "--eval-episodes", "1"]
        if re.search(r"(?<!NoFrameskip)-v[45]$", args["env_id"]):  # MuJoCo: a camera that follows
            command += ["--env-kwargs", '{"camera_name": "track"}']
        subprocess.run(command, check=True)
        with VideoFileClip(str(next(Path(copy).rglob("*.mp4")))) as video:
            length = int(video.duration * video.fps)
            first = min(FIRST, length - FRAMES * APART)
            times = [(first + APART * n) / video.fps for n in range(FRAMES)]
            return [video.get_frame(time) for time in times]


def title(folder):
    record = json.loads((folder / "eval.json").read_text())
    script = next(folder.glob("*.py")).name
    result = f"mean return {record['mean']:,.1f} of {record['episodes']} episodes"
    return f"{record['env_id']}, {script}: {result}"


def main():
    folders = sorted(path for path in (RESULTS / "agents").iterdir() if path.is_dir())
    folders += map(Path, sys.argv[1:])
    size = 1.3 * FRAMES, 1.45 * len(folders)
    figure, axes = plt.subplots(len(folders), FRAMES, figsize=size, squeeze=False)
    for row, folder in zip(axes, folders, strict=True):
        for ax, image in zip(row, frames(folder), strict=True):
            ax.imshow(image)
            ax.axis("off")
        row[0].set_title(title(folder), loc="left", fontsize=8)
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.96, wspace=0.03, hspace=0.25)
    path = ROOT / "docs" / "img" / "agents.png"
    figure.savefig(path, dpi=90, pil_kwargs={"optimize": True})
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
