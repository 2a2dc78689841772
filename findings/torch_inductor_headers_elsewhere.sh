#!/usr/bin/env bash
# torch 2.13.0: TORCHINDUCTOR_CACHE_DIR does not move the C++ headers that torch.compile precompiles.
#
# Expected: all that torch.compile keeps lies below this folder. The precompiled headers, 150 MB for each installation of
# torch and each set of compiler flags, lie in the folder of temporary files all the same. So they fill a small /tmp on a
# cluster; a cache that is mounted or carried to the next job lacks them, and each job precompiles them again (seconds of
# processor time); and a benchmark with an empty cache folder is not a first run.
#
# Output seen on 2026-11-28:
#     below TORCHINDUCTOR_CACHE_DIR: 0.3 MB, without precompiled headers
#     below TMPDIR: 1 precompiled header of 156 MB
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torch==2.13.0" "numpy==2.3.5" "setuptools==80.9.0"
mkdir "$folder/tmp"
TMPDIR="$folder/tmp" TORCHINDUCTOR_CACHE_DIR="$folder/cache" "$folder/venv/bin/python" -W ignore - "$folder" <<'PY'
import sys
from pathlib import Path

import torch

folder = Path(sys.argv[1])
torch.compile(lambda x: x.sin() + 1)(torch.ones(64))
sizes = {}
for name in ("cache", "tmp"):
    files = [path for path in (folder / name).rglob("*") if path.is_file()]
    headers = [path.stat().st_size / 1e6 for path in files if path.suffix == ".gch"]
    sizes[name] = (sum(path.stat().st_size for path in files) / 1e6, headers)
total, inside = sizes["cache"]
_, outside = sizes["tmp"]
print(f"below TORCHINDUCTOR_CACHE_DIR: {total:.1f} MB, {'with' if inside else 'without'} precompiled headers")
print(f"below TMPDIR: {len(outside)} precompiled header of {sum(outside):.0f} MB")
seen = not inside and len(outside) == 1 and outside[0] > 50
raise SystemExit(0 if seen else "the behaviour has changed")
PY
