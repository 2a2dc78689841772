"""--track with W&B itself, offline: what it has written is read back and compared with
TensorBoard's."""

import json
import sys

import pytest

from tests import helpers, wandb_file


def offline_runs(folder):
    return [wandb_file.read(path) for path in sorted((folder / "wandb").glob("offline-run-*"))]


def assert_same_curves(run_dir, histories):
    """Every scalar of TensorBoard is in W&B, point for point; where a step has several, W&B
    keeps the last."""
    found = {}
    for row in (row for history in histories for row in history):
        for tag in row.keys() - {"global_step"}:
            if "global_step" in row and not tag.startswith("_"):
                found.setdefault(tag, {})[row["global_step"]] = row[tag]
    for tag, points in helpers.scalars(run_dir).items():
        wanted = dict(points)
        assert found[tag].keys() == wanted.keys(), tag
        assert [found[tag][step] for step in wanted] == pytest.approx(
            [*wanted.values()], rel=1e-6
        ), tag


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) for name in ("ppo", "dqn_atari", "sac")]
)
def test_what_wandb_has(name, tmp_path):
    """Arguments, every scalar, the video and the exit status; a resumed run is the
    same one there."""
    total = helpers.SMALL[name]["total_timesteps"]
    script, small = (
        [sys.executable, helpers.SOURCE / f"{name}.py"],
        dict(track=True, total_timesteps=total // 2),
    )
    words = helpers.small_flags(name, tmp_path, **small, capture_video=name == "ppo")
    first = helpers.run([*script, *words], helpers.ROOT, WANDB_MODE="offline")
    assert first.returncode == 0, first.stderr
    run_dir = next(path.parent for path in tmp_path.glob("*/args.json"))
    run_id, config, history, files, status = offline_runs(tmp_path)[0]
    assert run_id == run_dir.name and status == 0
    args = helpers.load(run_dir)["args"]
    assert {key: config[key] for key in args} == json.loads(json.dumps(args))
    assert_same_curves(run_dir, [history])
    if name == "ppo":
        assert any(path.endswith(".mp4") for path in files)
    words = ["--resume", run_dir, "--total-timesteps", total]
    second = helpers.run([*script, *words], helpers.ROOT, WANDB_MODE="offline")
    assert second.returncode == 0, second.stderr
    runs = offline_runs(tmp_path)
    assert [run[0] for run in runs] == [run_dir.name] * 2 and [run[4] for run in runs] == [0, 0]
    assert_same_curves(run_dir, [run[2] for run in runs])
