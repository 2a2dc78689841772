"""--track with W&B itself, offline: what it has written is read back and compared with TensorBoard's."""

import json
import sys

import pytest

from tests import helpers, wandb_file


def offline_runs(folder):
    return [wandb_file.read(path) for path in sorted((folder / "wandb").glob("offline-run-*"))]


def curves(histories):
    """{tag: {global_step: value}}; where a step has several points, W&B keeps the last."""
    found = {}
    for row in (row for history in histories for row in history):
        for tag in row.keys() & set(row) - {"global_step"}:
            if "global_step" in row and not tag.startswith("_"):
                found.setdefault(tag, {})[row["global_step"]] = row[tag]
    return found


def compare(run_dir, histories):
    """Every scalar of TensorBoard is in W&B, point for point."""
    found = curves(histories)
    for tag, points in helpers.scalars(run_dir).items():
        wanted = dict(points)
        assert found[tag].keys() == wanted.keys(), tag
        assert [found[tag][step] for step in wanted] == pytest.approx([*wanted.values()], rel=1e-6), tag


@pytest.mark.parametrize("name", helpers.SCRIPTS)
def test_what_wandb_has(name, tmp_path):
    """Arguments, every scalar, the film and the source. One script of each family stops half way: a run that goes on is
    the same one there."""
    total = helpers.SMALL[name]["total_timesteps"]
    stops = name in ("ppo", "dqn_atari", "sac")
    small = dict(track=True, capture_video=True, total_timesteps=total // 2 if stops else total)
    script = [sys.executable, helpers.SOURCE / f"{name}.py"]
    first = helpers.run([*script, *helpers.small_flags(name, tmp_path, **small)], tmp_path, WANDB_MODE="offline")
    assert first.returncode == 0, first.stderr
    run_dir = next(path.parent for path in tmp_path.glob("*/args.json"))
    run_id, config, history, files, status = offline_runs(tmp_path)[0]
    assert run_id == run_dir.name and status == 0
    args = helpers.read_json(run_dir / "args.json")
    assert {key: config[key] for key in args} == json.loads(json.dumps(args))
    compare(run_dir, [history])
    assert f"{name}.py" in files and any(path.endswith(".mp4") for path in files)
    assert any(row.get("eval/video/_type") == "video-file" for row in history)
    if not stops:
        return

    helpers.next_second()
    words = ["--resume", run_dir, "--total-timesteps", total]
    second = helpers.run([*script, *words], tmp_path, WANDB_MODE="offline")
    assert second.returncode == 0, second.stderr
    runs = offline_runs(tmp_path)
    assert [run[0] for run in runs] == [run_dir.name] * 2 and [run[4] for run in runs] == [0, 0]
    compare(run_dir, [run[2] for run in runs])
