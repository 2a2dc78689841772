"""benchmark/launch/skypilot.yaml: SkyPilot accepts it and finds an instance; its commands run, stop and continue here.

SkyPilot is best in an environment of its own: SKYPILOT_PYTHON is its python.
"""

import os
import shlex
import subprocess
import sys

import pytest

from tests import helpers

yaml = pytest.importorskip("yaml")
PATH = helpers.ROOT / "benchmark" / "launch" / "skypilot.yaml"
TASK = yaml.safe_load(PATH.read_text())
PYTHON = os.environ.get("SKYPILOT_PYTHON", sys.executable)
# Instances and their prices come from the internet. This stands in for them.
CATALOG = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Arch,Price,SpotPrice,Region,AvailabilityZone
too.small,,,1.0,0.5,,x86_64,0.01,0.001,us-east-1,us-east-1a
m6i.large,,,2.0,8.0,,x86_64,0.096,0.035,us-east-1,us-east-1a
m6i.4xlarge,,,16.0,64.0,,x86_64,0.768,0.28,us-east-1,us-east-1a
"""
PROGRAM = """
from unittest import mock
import sky
from sky import clouds, optimizer

task = sky.Task.from_yaml({path!r})
with sky.Dag() as dag:
    dag.add(task)
enabled = "sky.check.get_cached_enabled_clouds_or_refresh"
with mock.patch(enabled, lambda *args, **kwargs: [clouds.AWS()]):
    optimizer.Optimizer.optimize(dag, quiet=True)
(storage,) = task.storage_mounts.values()
print("chosen", task.best_resources.instance_type, task.best_resources.use_spot, storage.mode.name)
"""


@pytest.mark.slow
def test_skypilot_would_start_it(tmp_path):
    """A dry run: the file is valid, and the cheapest spot instance that fits is chosen."""
    if subprocess.run([PYTHON, "-c", "import sky"], capture_output=True).returncode:
        pytest.skip("needs skypilot")
    catalog = tmp_path / ".sky" / "catalogs" / "v8" / "aws"
    catalog.mkdir(parents=True)
    (catalog / "vms.csv").write_text(CATALOG)
    program = PROGRAM.format(path=str(PATH))
    done = helpers.run([PYTHON, "-c", program], cwd=helpers.ROOT, HOME=str(tmp_path))
    assert "chosen m6i.large True MOUNT_CACHED" in done.stdout, done.stderr


def test_the_file():
    """Its shell is valid, its variables exist, and the run directories are in the bucket."""
    for name in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=TASK[name], text=True, check=True)
        used = {word[1:] for word in shlex.split(TASK[name].replace("=", " ")) if word[:1] == "$"}
        assert used <= {*TASK["envs"]}
    assert TASK["envs"]["RUNS_DIR"] in TASK["file_mounts"] and TASK["resources"]["use_spot"]
    assert "--resume auto" in TASK["run"]


@pytest.mark.slow
def test_a_lost_instance(tmp_path):
    """The command as it is: killed without a signal, it continues from the bucket's checkpoint."""
    binaries = tmp_path / "venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "activate").write_text(f"PATH={shlex.quote(str(binaries))}:$PATH\n")
    (binaries / "python").symlink_to(sys.executable)
    flags = "--env-id CartPole-v1 --total-timesteps 4096 --no-compile --save-every 512"
    variables = TASK["envs"] | {"RUNS_DIR": str(tmp_path / "bucket"), "HOME": str(tmp_path)}
    variables |= {"FLAGS": f"{flags} --eval-episodes 1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environ = helpers.environment(**variables)
    first = subprocess.Popen(["bash", "-c", TASK["run"]], cwd=helpers.ROOT, env=environ)
    helpers.wait_for(lambda: list(tmp_path.glob("bucket/*/checkpoint.pt")))
    first.kill()
    first.wait()
    (run_dir,) = (tmp_path / "bucket").iterdir()
    assert helpers.load(run_dir)["global_step"] < 4096
    done = helpers.run(["bash", "-c", TASK["run"]], cwd=helpers.ROOT, **variables)
    assert done.returncode == 0, done.stderr
    assert [*(tmp_path / "bucket").iterdir()] == [run_dir]
    assert helpers.load(run_dir)["global_step"] == 4096
