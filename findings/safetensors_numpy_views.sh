#!/usr/bin/env bash
# safetensors 0.8.0: save_file() for numpy writes other numbers where an array is not contiguous.
#
# Expected: a transposed or sliced array comes back as it was, or is refused, as safetensors.torch refuses it
# with a ValueError. safetensors.numpy takes as many bytes as the array has from where its memory begins. The
# shape is right and no message says so: weights that were transposed on the way (torch's Linear to Flax's
# Dense) come back shuffled, and of every second transition of a replay buffer, the first half is written.
# save() does the same. The docstring asks for contiguous arrays, but nothing checks for them;
# np.ascontiguousarray() helps.
#
# Output seen on 2026-11-28 (written -> read):
#     contiguous: [[0, 1, 2], [3, 4, 5]] -> [[0, 1, 2], [3, 4, 5]]
#     transposed: [[0, 3], [1, 4], [2, 5]] -> [[0, 1], [2, 3], [4, 5]]
#     every second row: [[0, 1], [4, 5]] -> [[0, 1], [2, 3]]
#     the first columns: [[0, 1], [3, 4]] -> [[0, 1], [2, 3]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "safetensors==0.8.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - "$folder/weights.safetensors" <<'PY'
import sys

import numpy as np
import safetensors.numpy

path = sys.argv[1]
square = np.arange(6, dtype=np.float32).reshape(2, 3)
rows = np.arange(8, dtype=np.float32).reshape(4, 2)
arrays = {
    "contiguous": square,
    "transposed": square.T,
    "every second row": rows[::2],
    "the first columns": square[:, :2],
}
equal = []
for name, array in arrays.items():
    safetensors.numpy.save_file({"x": array}, path)
    read = safetensors.numpy.load_file(path)["x"]
    equal.append(bool((array == read).all()) and array.shape == read.shape)
    print(f"{name}: {array.astype(int).tolist()} -> {read.astype(int).tolist()}")
seen = equal == [True, False, False, False]
raise SystemExit(0 if seen else "the behaviour has changed")
PY
