"""RLtools' side of speed_rltools.py, which starts it.

    python benchmark/measure/speed_rltools_theirs.py ALGORITHM SETTINGS STEPS FOLDER

Trains on gymnasium's Pendulum-v1 for STEPS steps, without evaluations, and writes [step, time, CPU
seconds] of every 100th step to FOLDER/times.json, with the seconds that RLtools took to compile.
SETTINGS (JSON) are RLtools' own. Nothing here may import torch: RLtools refuses it beside MKL.
"""

import json
import sys
import time
from importlib import metadata
from pathlib import Path

import gymnasium
import rltools
from gymnasium.wrappers import RescaleAction

PACKAGES = "rltools", "mkl", "numpy", "gymnasium"


def make_env():
    return RescaleAction(gymnasium.make("Pendulum-v1"), -1, 1)  # RLtools takes no other bounds


def main(algorithm, settings, steps, folder):
    began = time.time()
    compile_loop = getattr(rltools, algorithm)
    loop = compile_loop(make_env, enable_evaluation=False, **json.loads(settings))
    compiled = time.time()
    state = loop.State(1)
    marks = []
    for step in range(1, int(steps) + 1):
        state.step()
        if step % 100 == 0:
            marks.append((step, time.time(), time.process_time()))
    record = {
        "marks": marks,
        "compile_s": round(compiled - began, 1),
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }
    Path(folder, "times.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
