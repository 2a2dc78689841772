#!/usr/bin/env bash
# torch 2.13.0: torch.save writes bytes and numpy arrays half as large again as they are.
#
# Expected: a megabyte of bytes takes a megabyte in the file, as a tensor of the same content does. torch.save
# pickles with protocol 2, which has no bytes: they become text, one character each, where those from 128 on
# take two bytes. The array of a replay buffer or the pickled state of an environment in a checkpoint is so
# 1.5 times as large, and saving it takes several times its size in memory, which may be what a long run has
# least of. torch.from_numpy() around the array, without a copy, is enough.
#
# Output seen on 2026-11-28 (4 MB of random content; size of the file and memory while saving, in times of
# it):
#     bytes: file 1.50, memory 5.5
#     numpy array: file 1.50, memory 6.5
#     tensor of the array: file 1.00, memory 0.0
#     pickle.dump of the bytes, protocol 5: file 1.00, memory 0.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torch==2.13.0" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - "$folder/checkpoint" <<'PY'
import os
import pickle
import sys
import tracemalloc

import numpy as np
import torch

path = sys.argv[1]
array = np.random.default_rng(1).integers(0, 256, 4_000_000, dtype=np.uint8)
content = array.tobytes()


def pickled():
    with open(path, "wb") as file:
        pickle.dump({"x": content}, file, protocol=5)


ways = {
    "bytes": lambda: torch.save({"x": content}, path),
    "numpy array": lambda: torch.save({"x": array}, path),
    "tensor of the array": lambda: torch.save({"x": torch.from_numpy(array)}, path),
    "pickle.dump of the bytes, protocol 5": pickled,
}
torch.save({"x": b""}, path)  # what the first call imports is not counted
sizes = []
for name, save in ways.items():
    tracemalloc.start()
    save()
    memory = tracemalloc.get_traced_memory()[1] / len(content)
    tracemalloc.stop()
    sizes.append((round(os.path.getsize(path) / len(content), 2), memory))
    print(f"{name}: file {sizes[-1][0]:.2f}, memory {memory:.1f}")
large = all(file == 1.5 and memory > 2 for file, memory in sizes[:2])
seen = large and all(file == 1 and memory < 1 for file, memory in sizes[2:])
raise SystemExit(0 if seen else "the behaviour has changed")
PY
