"""The moving picture of trained agents at the top of the README, docs/img/agents.gif.

    python -m benchmark.publish.gif                        the agents below
    python -m benchmark.publish.gif runs/benchmark/Pong*   and these run directories

Each panel is the first episode of an evaluation in real time, from its start, over and over.
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
from PIL import Image, ImageDraw, ImageFont, ImageOps

from benchmark.shared import RESULTS, ROOT

AGENTS = [
    "Hopper-v4__ppo_continuous",
    "HalfCheetah-v4__sac",
    "Walker2d-v4__sac",
    "LunarLanderContinuous-v3__ppo_continuous",
    "BipedalWalker-v3__ppo_continuous",
    "Acrobot-v1__ppo",
]
COLUMNS = 3
PANEL = 240, 160
CAPTION = 20  # its height
FRAMES = 72
DELAY = 80  # milliseconds
COLOURS = 96
CAMERA = {"camera_name": "track", "width": 240, "height": 160}  # follows the robot


def record(folder, copy):
    """The path of a video of one episode of the agent in `folder`, played from a copy of it."""
    args = json.loads((folder / "args.json").read_text())
    script = next(folder.glob("*.py")).name
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    command = [sys.executable, ROOT / "cleanrl_lite" / script, "--evaluate", copy]
    command += ["--capture-video", "--eval-episodes", "1"]
    if re.search(r"(?<!NoFrameskip)-v[45]$", args["env_id"]):  # MuJoCo
        command += ["--env-kwargs", json.dumps(CAMERA)]
    subprocess.run(command, check=True)
    return next(Path(copy).rglob("*.mp4"))


def frames(folder):
    """FRAMES images of the agent's episode, which begins again where it ends."""
    with tempfile.TemporaryDirectory() as copy, VideoFileClip(str(record(folder, copy))) as video:
        times = [n * DELAY / 1000 % video.duration for n in range(FRAMES)]
        return [Image.fromarray(video.get_frame(time)) for time in times]


def caption(folder):
    evaluation = json.loads((folder / "eval.json").read_text())
    args = json.loads((folder / "args.json").read_text())
    env_id = re.sub(r"Continuous|NoFrameskip", "", args["env_id"])
    script = next(folder.glob("*.py")).name
    return f"{env_id}  {script}  {evaluation['mean']:,.0f}"


def main():
    folders = [RESULTS / "agents" / name for name in AGENTS]
    folders += map(Path, sys.argv[1:])
    rows = -(-len(folders) // COLUMNS)
    width, height = PANEL
    size = COLUMNS * width, rows * (height + CAPTION)
    pages = [Image.new("RGB", size, "white") for _ in range(FRAMES)]
    dejavu = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
    font = ImageFont.truetype(str(dejavu), 10)
    for n, folder in enumerate(folders):
        left, top = n % COLUMNS * width, n // COLUMNS * (height + CAPTION)
        for page, image in zip(pages, frames(folder), strict=True):
            page.paste(ImageOps.pad(image, PANEL, color="white"), (left, top))
            corner = left + 5, top + height + 3
            ImageDraw.Draw(page).text(corner, caption(folder), "black", font)
    # One palette for all, of a page from the middle: else colours flicker.
    palette = pages[FRAMES // 2].quantize(COLOURS)
    pages = [page.quantize(palette=palette, dither=Image.Dither.NONE) for page in pages]
    path = ROOT / "docs/img/agents.gif"
    pages[0].save(path, save_all=True, append_images=pages[1:], duration=DELAY, loop=0)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
