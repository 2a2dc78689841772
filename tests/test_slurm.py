"""benchmark/launch/launch.py --slurm, on a real Slurm of two nodes on this machine. Needs slurm-wlm and munge, and root."""

import os
import shutil
import socket
import subprocess
import sys
import time

import pytest

from tests import helpers

missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]
root = hasattr(os, "geteuid") and os.geteuid() == 0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(missing) or not root, reason=f"needs root and slurm-wlm, munge; missing: {missing}"
    ),
]
FLAGS = [
    "--no-compile",
    "--num-envs",
    "4",
    "--num-steps",
    "32",
    "--eval-episodes",
    "1",
    "--save-every",
    "128",
]
CONFIG = """
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
KillWait=10
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeHostname={host} Port={port1} CPUs={cpus} RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname={host} Port={port2} CPUs={cpus} RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 State=UP
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Slurm's daemons; yields the environment variables with which its commands find them."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    ports = dict(port=free_port(), port1=free_port(), port2=free_port(), cpus=os.cpu_count())
    (folder / "slurm.conf").write_text(
        CONFIG.format(folder=folder, host=socket.gethostname().split(".")[0], **ports)
    )
    environ = dict(SLURM_CONF=str(folder / "slurm.conf"))
    files = [f"--{name}={folder}/munge.{ending}" for name, ending in FILES.items()]
    daemons = [["munged", "--foreground", "--force", *files], ["slurmctld", "-D", "-c"]]
    daemons += [["slurmd", "-D", "-N", node] for node in ("n1", "n2")]
    running = []
    for words in daemons:
        running.append(
            subprocess.Popen(
                words,
                env=os.environ | environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        time.sleep(1)
    try:
        nodes = ["sinfo", "--noheader", "--partition=all", "--Node", "--format=%t"]
        helpers.wait_for(lambda: asked(environ, *nodes).split() == ["idle", "idle"], 60)
        yield environ
    finally:
        subprocess.run(["scancel", "--me"], env=os.environ | environ)
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(20)


FILES = {
    "socket": "socket",
    "key-file": "key",
    "pid-file": "pid",
    "log-file": "log",
    "seed-file": "seed",
}


def asked(environ, *words):
    """The output of one of Slurm's commands."""
    return subprocess.run(words, env=os.environ | environ, capture_output=True, text=True).stdout


def queue(cluster):
    return asked(cluster, "squeue", "--noheader", "--array", "--format=%T").split()


def launcher(cluster, folder, *words, flags=()):
    command = [sys.executable, "-m", "benchmark.launch", *words, "--runs-dir", folder]
    command += ["--", *FLAGS, *flags] if flags else []
    done = helpers.run(command, cwd=helpers.ROOT, **cluster)
    return done.returncode, done.stdout + done.stderr


def status(cluster, folder):
    """{job: state}"""
    _, output = launcher(cluster, folder, "--status")
    return {line.split()[0]: line.split()[1] for line in output.splitlines() if "%" in line}


def test_an_array_with_one_failure(cluster, tmp_path):
    """Four jobs, two at a time; two fail, are tried twice, and only these are submitted again."""
    words = [
        "ppo",
        "--env-ids",
        "CartPole-v1",
        "CartPol-v1",
        "--seeds",
        "1-2",
        "--slurm",
        "--max-parallel",
        "2",
    ]
    code, output = launcher(
        cluster,
        tmp_path,
        *words,
        "--mem",
        "1G",
        "--partition",
        "all",
        flags=["--total-timesteps", "512"],
    )
    assert code == 0 and "submitted 4 jobs as Slurm array job" in output, output
    helpers.wait_for(lambda: set(status(cluster, tmp_path).values()) <= {"finished", "failed"})
    found = status(cluster, tmp_path)
    assert [found[f"ppo-CartPole-v1-{seed}"] for seed in (1, 2)] == ["finished"] * 2
    assert [found[f"ppo-CartPol-v1-{seed}"] for seed in (1, 2)] == ["failed"] * 2
    task = helpers.read_json(tmp_path / "launch" / "ppo-CartPol-v1-1.json")["jobs"][
        "ppo-CartPol-v1-1"
    ]
    assert task["crashes"] == 2 and "doesn't exist" in task["last_line"]
    assert len(list(tmp_path.glob("*/checkpoint.pt"))) == 2
    code, output = launcher(cluster, tmp_path, *words, flags=["--total-timesteps", "512"])
    assert code == 0 and "submitted 2 jobs as Slurm array job" in output, output
    helpers.wait_for(lambda: not queue(cluster))


def running(cluster, folder):
    helpers.wait_for(
        lambda: (
            list(folder.glob("*/checkpoint.pt")) and "running" in status(cluster, folder).values()
        )
    )
    (task,) = [job["slurm"] for job in helpers.read_json(folder / "launch.json")["jobs"].values()]
    return task


def test_requeued_cancelled_and_submitted_again(cluster, tmp_path):
    """`scontrol requeue` restarts the task from its checkpoint; `--cancel` ends it; the same command continues."""
    words, flags = (
        ["ppo", "--env-ids", "CartPole-v1", "--seeds", "1", "--slurm"],
        ["--total-timesteps", "100000"],
    )
    launcher(cluster, tmp_path, *words, flags=flags)
    task = running(cluster, tmp_path)
    subprocess.run(["scontrol", "requeue", task], env=os.environ | cluster, check=True)
    helpers.wait_for(lambda: "Restarts=1" in asked(cluster, "scontrol", "show", "job", task))
    steps = saved(tmp_path)
    helpers.wait_for(lambda: saved(tmp_path) > steps + 2000)
    assert task == running(cluster, tmp_path) and len(list(tmp_path.glob("*/checkpoint.pt"))) == 1
    _, output = launcher(cluster, tmp_path, "--cancel")
    assert "cancelled 1 Slurm tasks" in output
    helpers.wait_for(lambda: status(cluster, tmp_path) == {"ppo-CartPole-v1-1": "interrupted"})
    steps = saved(tmp_path)
    assert 0 < steps < 100_000 and not queue(cluster)
    launcher(cluster, tmp_path, *words, flags=flags)
    helpers.wait_for(lambda: status(cluster, tmp_path) == {"ppo-CartPole-v1-1": "finished"}, 240)
    assert saved(tmp_path) == 100_096 and len(list(tmp_path.glob("*/checkpoint.pt"))) == 1


def saved(folder):
    (path,) = folder.glob("*/checkpoint.pt")
    return helpers.load(path.parent)["global_step"]


def test_the_time_limit(cluster, tmp_path):
    """At its time limit a task saves, is requeued, and continues in its next turn. Slurm may signal it up to a minute
    early: here 10 to 70 s after the start."""
    words = [
        "ppo",
        "--env-ids",
        "CartPole-v1",
        "--seeds",
        "1",
        "--slurm",
        "--time",
        "2",
        "--grace",
        "50",
    ]
    launcher(cluster, tmp_path, *words, flags=["--total-timesteps", "2000000"])
    task = running(cluster, tmp_path)
    helpers.wait_for(lambda: "Restarts=1" in asked(cluster, "scontrol", "show", "job", task), 180)
    steps = saved(tmp_path)
    helpers.wait_for(lambda: saved(tmp_path) > steps, 120)
    launcher(cluster, tmp_path, "--cancel")
    helpers.wait_for(lambda: not queue(cluster))


def test_preempted(cluster, tmp_path):
    """A job of a partition with priority takes the nodes; the task saves, waits, and continues when they are free."""
    words = ["ppo", "--env-ids", "CartPole-v1", "--seeds", "1", "--slurm", "--partition", "all"]
    launcher(cluster, tmp_path, *words, flags=["--total-timesteps", "2000000"])
    task = running(cluster, tmp_path)
    urgent = [
        "sbatch",
        "--partition=urgent",
        "--nodes=2",
        "--exclusive",
        "--output=/dev/null",
        "--wrap",
        "sleep 15",
    ]
    subprocess.run(urgent, env=os.environ | cluster, check=True)
    helpers.wait_for(lambda: status(cluster, tmp_path) == {"ppo-CartPole-v1-1": "pending"})
    steps = saved(tmp_path)
    helpers.wait_for(lambda: "Restarts=1" in asked(cluster, "scontrol", "show", "job", task), 180)
    helpers.wait_for(lambda: saved(tmp_path) > steps, 180)
    assert len(list(tmp_path.glob("*/checkpoint.pt"))) == 1
    launcher(cluster, tmp_path, "--cancel")
    helpers.wait_for(lambda: not queue(cluster))
