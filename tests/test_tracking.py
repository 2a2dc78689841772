"""--track with W&B itself, offline: what it has written is read back and compared with
TensorBoard's."""

import itertools
import json
import sys

import pytest

from tests import helpers, wandb_file


def offline_runs(folder):
    paths = (folder / "wandb").glob("offline-run-*")
    return [wandb_file.read(path) for path in sorted(paths)]


def assert_same_curves(run_dir, histories):
    """Every scalar of TensorBoard is in W&B, point for point; where a step has several, W&B
    keeps the last."""
    found = {}
    for row in itertools.chain(*histories):
        step = row.get("global_step")
        if step is None:
            continue
        for tag in row.keys() - {"global_step"}:
            if not tag.startswith("_"):
                points = found.setdefault(tag, {})
                points[step] = row[tag]
    for tag, points in helpers.scalars(run_dir).items():
        wanted = pytest.approx(dict(points), rel=1e-6)
        assert found[tag] == wanted, tag


def run_offline(words):
    done = helpers.run(words, helpers.ROOT, WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "dqn_atari", "sac"])
def test_what_wandb_has(name, tmp_path):
    """Arguments, every scalar, the video and the exit status; a resumed run is the
    same one there."""
    total = helpers.SMALL[name]["total_timesteps"]
    script = [sys.executable, helpers.SOURCE / f"{name}.py"]
    small = dict(track=True, total_timesteps=total // 2)
    video = name == "ppo"
    words = helpers.small_flags(name, tmp_path, **small, capture_video=video)
    run_offline([*script, *words])
    (path,) = tmp_path.glob("*/args.json")
    run_dir = path.parent
    run_id, config, history, files, status = offline_runs(tmp_path)[0]
    assert run_id == run_dir.name
    assert status == 0
    args = helpers.load(run_dir)["args"]
    as_json = json.loads(json.dumps(args))
    assert {key: config[key] for key in args} == as_json
    assert_same_curves(run_dir, [history])
    if video:
        assert any(path.endswith(".mp4") for path in files)
    words = ["--resume", run_dir, "--total-timesteps", total]
    run_offline([*script, *words])
    runs = offline_runs(tmp_path)
    assert [run[0] for run in runs] == [run_dir.name] * 2
    assert [run[4] for run in runs] == [0, 0]
    assert_same_curves(run_dir, [run[2] for run in runs])
