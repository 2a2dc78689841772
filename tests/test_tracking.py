"""--track with W&B itself, offline: what it has written is read back and compared with
TensorBoard's.

Its .wandb file is a log of protobuf records in the format of LevelDB's log.
"""

import itertools
import json
import struct
import sys

import numpy as np
import pytest

from tests import helpers
from tests.probe_envs import probe

# bytes; the file's own header and that of each part of a record are of the same length
BLOCK, HEADER = 32768, 7


def records(path):
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # the end of a block is left empty
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)  # checksum, length, kind
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def read(folder):
    """Of an offline run's folder: run's id, config, history (a list of dicts), names of saved
    files, exit status."""
    (path,) = folder.glob("*.wandb")
    run_id, config, history, files, status = None, {}, [], [], None
    for record in records(path):
        if record.HasField("run"):
            run_id = record.run.run_id
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.HasField("history"):
            items = record.history.item
            history.append(
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in items
                }
            )
        if record.HasField("files"):
            files += [file.path for file in record.files.files]
        if record.HasField("exit"):
            status = record.exit.exit_code
    return run_id, config, history, files, status


def offline_runs(folder):
    paths = (folder / "wandb").glob("offline-run-*")
    return [read(path) for path in sorted(paths)]


def assert_same_curves(run_dir, histories):
    """Every scalar of TensorBoard is in W&B, point for point."""
    found = {}
    for row in itertools.chain(*histories):
        for tag in row.keys() - {"global_step"}:
            if not tag.startswith("_") and "global_step" in row:
                found.setdefault(tag, []).append((row["global_step"], row[tag]))
    for tag, points in helpers.scalars(run_dir).items():
        assert [step for step, _ in found[tag]] == [step for step, _ in points], tag
        np.testing.assert_allclose(found[tag], points, rtol=1e-6, err_msg=tag)


def run_offline(words, folder):
    done = helpers.run(words, helpers.ROOT, WANDB_MODE="offline", WANDB_DIR=str(folder))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_wandb_has(tmp_path):
    """Arguments, every scalar, all of several episodes that end in one step, the video and the exit
    status; a resumed run is the same one there, under another name of its directory."""
    flags = dict(track=True, env_id=probe("Constant", "ppo"), num_envs=4)
    words = helpers.small_flags("ppo", tmp_path, **flags, total_timesteps=256, capture_video=True)
    script = [sys.executable, helpers.SOURCE / "ppo.py"]
    run_offline([*script, *words], tmp_path)
    run_dir = next(tmp_path.glob("*/args.json")).parent
    run_id, config, history, files, status = offline_runs(tmp_path)[0]
    assert run_id == run_dir.name
    assert status == 0
    as_json = json.loads(json.dumps(helpers.load(run_dir)["args"]))
    assert {key: config[key] for key in as_json} == as_json
    episodes = helpers.scalars(run_dir)["charts/episodic_return"]
    assert [step for step, _ in episodes] == [*range(1, 257)]
    assert_same_curves(run_dir, [history])
    assert any(path.endswith(".mp4") for path in files)
    run_dir = run_dir.rename(tmp_path / "renamed")
    words = ["--resume", run_dir, "--total-timesteps", 512, "--env-id", flags["env_id"]]
    run_offline([*script, *words], tmp_path)
    runs = offline_runs(tmp_path)
    assert [run[0] for run in runs] == [run_id] * 2
    assert [run[4] for run in runs] == [0, 0]
    assert_same_curves(run_dir, [run[2] for run in runs])
