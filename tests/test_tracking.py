"""--track with W&B itself, offline: what it has written is read back and compared with
TensorBoard's."""

import itertools
import json
import sys

import numpy as np
import pytest

from tests import helpers, wandb_file
from tests.probe_envs import probe


def offline_runs(folder):
    paths = (folder / "wandb").glob("offline-run-*")
    return [wandb_file.read(path) for path in sorted(paths)]


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


def run_offline(words):
    done = helpers.run(words, helpers.ROOT, WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "dqn_atari", "sac"])
def test_what_wandb_has(name, tmp_path):
    """Arguments, every scalar, all of several episodes that end in one step, the video and the exit
    status; a resumed run is the same one there, under another name of its directory."""
    total = helpers.SMALL[name]["total_timesteps"]
    script = [sys.executable, helpers.SOURCE / f"{name}.py"]
    small = dict(track=True, total_timesteps=total // 2)
    if name != "dqn_atari":
        small |= dict(env_id=probe("Constant", name), num_envs=4)  # all of them end at every step
    words = helpers.small_flags(name, tmp_path, **small, capture_video=name == "ppo")
    run_offline([*script, *words])
    (path,) = tmp_path.glob("*/args.json")
    run_dir = path.parent
    run_id, config, history, files, status = offline_runs(tmp_path)[0]
    assert run_id == run_dir.name
    assert status == 0
    as_json = json.loads(json.dumps(helpers.load(run_dir)["args"]))
    assert {key: config[key] for key in as_json} == as_json
    if name != "dqn_atari":
        episodes = helpers.scalars(run_dir)["charts/episodic_return"]
        assert [step for step, _ in episodes] == [*range(1, total // 2 + 1)]
    assert_same_curves(run_dir, [history])
    assert any(path.endswith(".mp4") for path in files) == (name == "ppo")
    run_dir = run_dir.rename(tmp_path / "renamed")
    words = ["--resume", run_dir, "--total-timesteps", total]
    words += ["--env-id", small["env_id"]] if "env_id" in small else []
    run_offline([*script, *words])
    runs = offline_runs(tmp_path)
    assert [run[0] for run in runs] == [run_id] * 2
    assert [run[4] for run in runs] == [0, 0]
    assert_same_curves(run_dir, [run[2] for run in runs])
