"""A picture of the trained agents at work: docs/img/agents.png, a row for each folder in benchmark/results/agents.

    python -m benchmark.publish.strip
    python -m benchmark.publish.strip runs/benchmark/Pong*    and a row for each of these run directories

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
from matplotlib import pyplot as plt  # noqa: E402

FRAMES, APART, FIRST = 7, 4, 60  # of a video that has one frame for each step of the environment


def frames(folder):
    """(FRAMES, height, width, 3) of the agent's video, and its recorded evaluation."""
    args, record = (json.loads((folder / name).read_text()) for name in ("args.json", "eval.json"))
    script = next(folder.glob("*.py")).stem
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        command = [sys.executable, ROOT / "cleanrl_lite" / f"{script}.py", "--evaluate", copy, "--capture-video"]
        if re.search(r"(?<!NoFrameskip)-v[45]$", args["env_id"]):  # MuJoCo: a camera that follows
            command += ["--env-kwargs", '{"camera_name": "track"}']
        subprocess.run([*command, "--eval-episodes", "1"], check=True)
        with VideoFileClip(str(next(Path(copy).rglob("*.mp4")))) as video:
            first = min(FIRST, int(video.duration * video.fps) - FRAMES * APART)
            times = [(first + APART * n) / video.fps for n in range(FRAMES)]
            return [video.get_frame(time) for time in times], record


def main():
    folders = sorted(path for path in (RESULTS / "agents").iterdir() if path.is_dir()) + [Path(x) for x in sys.argv[1:]]
    figure, axes = plt.subplots(len(folders), FRAMES, figsize=(1.3 * FRAMES, 1.45 * len(folders)), squeeze=False)
    for row, folder in zip(axes, folders):
        images, record = frames(folder)
        for ax, image in zip(row, images):
            ax.imshow(image)
            ax.axis("off")
        script = next(folder.glob("*.py")).name
        title = f"{record['env_id']}, {script}: mean return {record['mean']:,.1f} of {record['episodes']} episodes"
        row[0].set_title(title, loc="left", fontsize=8)
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.96, wspace=0.03, hspace=0.25)
    path = ROOT / "docs" / "img" / "agents.png"
    figure.savefig(path, dpi=90, pil_kwargs=dict(optimize=True))
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
