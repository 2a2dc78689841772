"""Stable-Baselines3's side of time_to_return.py, which starts it, watches it, and stops it.

    python -m benchmark.measure.time_to_return_sb3 SCRIPT ENV_ID ARGS STEPS SEED FOLDER

Trains its algorithm with the hyperparameters ARGS (JSON) of one of our scripts, as speed_sb3.py
does, which lists what is not equal. Writes a line for each training episode to FOLDER/episodes.csv:
step, time, return.
"""

import json
import sys
import time
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from benchmark.measure.speed_sb3 import make_model


class Episodes(BaseCallback):
    """Writes down each training episode when it ends. The returns are those of its Monitor."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def _on_step(self):
        for info in self.locals["infos"]:
            if "episode" in info:
                line = f"{self.num_timesteps},{time.time()},{info['episode']['r']}"
                print(line, file=self.file, flush=True)
        return True


def main(script, env_id, args, steps, seed, folder):
    model = make_model(script, env_id, json.loads(args), folder, int(seed))
    with open(Path(folder, "episodes.csv"), "w") as file:
        model.learn(int(steps), callback=Episodes(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
