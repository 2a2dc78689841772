#!/usr/bin/env bash
# TensorBoard 2.21.0 with tensorboard-data-server 0.7.2: where a step is logged again, the earlier
# value is not shown.
#
# Expected: every point of a tag is served, as EventAccumulator reads it. The data server, used for
# local folders unless --load_fast=false is set, takes a step that is not larger than the last one
# for a restart of the run: it drops all points of this tag from this step on. Where two
# environments end an episode in one step, only the last return is shown, and one late point, such
# as an evaluation logged with the step of its checkpoint, wipes out the curve behind it.
#
# Output seen on 2026-11-28 (written as 10: 1, 10: 2, 20: 3, 30: 4, 15: 5, 40: 6):
#     EventAccumulator: 10: 1, 10: 2, 20: 3, 30: 4, 15: 5, 40: 6
#     --load_fast=false: 10: 1, 10: 2, 20: 3, 30: 4, 15: 5, 40: 6
#     --load_fast=true: 10: 2, 15: 5, 40: 6
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "tensorboard==2.21.0" "tensorboard-data-server==0.7.2" \
    "tensorboardX==2.6.5" "numpy==2.3.5" "setuptools<81"
"$folder/venv/bin/python" -W ignore - "$folder/log" 2> "$folder/err" <<'PY' ||
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboardX import SummaryWriter

WRITTEN = [(10, 1.0), (10, 2.0), (20, 3.0), (30, 4.0), (15, 5.0), (40, 6.0)]
log = sys.argv[1]


def served(load_fast):
    """The points that a TensorBoard on this machine sends to the browser."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", log]
    command += [f"--load_fast={load_fast}", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(120):
            time.sleep(0.5)
            try:
                url = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?run=run&tag=return"
                with urllib.request.urlopen(url, timeout=10) as answer:
                    return [(step, value) for _, step, value in json.load(answer)]
            except urllib.error.URLError:
                pass  # it is starting, or has not read the file yet
        raise SystemExit("no answer from TensorBoard")
    finally:
        server.terminate()
        server.wait()


with SummaryWriter(f"{log}/run") as writer:
    for step, value in WRITTEN:
        writer.add_scalar("return", value, step)
reader = EventAccumulator(f"{log}/run")
reader.Reload()
found = {
    "EventAccumulator": [(event.step, event.value) for event in reader.Scalars("return")],
    "--load_fast=false": served("false"),
    "--load_fast=true": served("true"),
}
for name, points in found.items():
    print(f"{name}:", ", ".join(f"{step}: {value:.0f}" for step, value in points))
as_seen = list(found.values()) == [WRITTEN, WRITTEN, [(10, 2), (15, 5), (40, 6)]]
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
    { cat "$folder/err" >&2; exit 1; }
