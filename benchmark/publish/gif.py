"""The moving picture of trained agents at the top of the README, docs/img/agents.gif.

    python -m benchmark.publish.gif                        the agents below
    python -m benchmark.publish.gif runs/benchmark/Pong*   and these run directories

Each panel is a part of an agent's first episode of an evaluation, in real time.
"""

import json
import re
import sys
from pathlib import Path

import gymnasium as gym
import matplotlib
import numpy as np
import torch
from gymnasium.spaces import Box
from PIL import Image, ImageDraw, ImageFont, ImageOps

from benchmark.shared import RESULTS, ROOT
from cleanrl_lite.tools.agents import load

# and the second of the episode where the picture begins
AGENTS = {
    "Hopper-v4__ppo_continuous": 0,
    "HalfCheetah-v4__sac": 0,  # after 5 seconds it has left the floor behind
    "Walker2d-v4__sac": 0,
    "LunarLanderContinuous-v3__ppo_continuous": 5,
    "BipedalWalker-v3__ppo_continuous": 0,
    "Acrobot-v1__ppo": 0,
}
COLUMNS = 3
PANEL = 240, 160
CAPTION = 20  # its height
FRAMES = 64
DELAY = 80  # milliseconds
COLOURS = 256
SEED = 10_001  # of the evaluations
MUJOCO = {"camera_name": "track", "width": 240, "height": 160}  # the camera follows the robot


@torch.no_grad()
def frames(folder):
    """FRAMES images of the agent's episode, and of the next where it ends."""
    env_id = json.loads((folder / "args.json").read_text())["env_id"]
    spec = gym.registry.get(env_id)  # None of an Atari game, which its script registers
    is_mujoco = spec and "mujoco" in str(spec.entry_point)
    changed = {"env_kwargs": json.dumps(MUJOCO)} if is_mujoco else {}
    agent, env = load(folder, render_mode="rgb_array", **changed)
    steps_per_second = env.metadata["render_fps"]
    first = AGENTS.get(folder.name, 0) * steps_per_second
    apart = steps_per_second * DELAY / 1000
    images = []
    step = 0
    obs, _ = env.reset(seed=SEED)
    while len(images) < FRAMES:
        while len(images) < FRAMES and step >= first + len(images) * apart:
            images.append(Image.fromarray(env.render()))
        action = agent.act(torch.as_tensor(np.asarray(obs))[None])[0].numpy()[()]
        if isinstance(env.action_space, Box):
            action = np.clip(action, env.action_space.low, env.action_space.high)
        obs, _, terminated, truncated, _ = env.step(action)
        step += 1
        if terminated or truncated:
            obs, _ = env.reset()
    env.close()
    return images


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
