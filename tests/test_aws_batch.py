"""benchmark/launch/launch.py --aws-batch: against moto's AWS, with the tasks as processes here, and, where CONTAINER_ENGINE
names an engine, with the tasks in containers of the image (tests/test_docker.py builds it).

For containers DOCKER_HOST must lead to the engine's socket, and the engine must be able to use the host's network.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from benchmark.launch import aws_batch, launch
from tests import helpers, test_docker

boto3 = pytest.importorskip("boto3")
moto_server = pytest.importorskip("moto.server")
pytestmark = pytest.mark.slow
FLAGS = "--no-compile --num-envs 4 --num-steps 32 --eval-episodes 1 --save-every 128".split()
TEMPLATE = helpers.ROOT / "benchmark" / "launch" / "aws_batch.yaml"
KEYS = dict(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")


def set_docker(endpoint, use):
    config = json.dumps(dict(batch=dict(use_docker=use))).encode()
    urllib.request.urlopen(
        urllib.request.Request(f"{endpoint}/moto-api/config", data=config)
    ).close()


@pytest.fixture(scope="module")
def account():
    """An account of moto's with what the template creates; yields the environment variables that lead to it."""
    with pytest.MonkeyPatch.context() as patch:
        server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        environ = KEYS | dict(AWS_ENDPOINT_URL=f"http://{host}:{port}", AWS_CONFIG_FILE="/dev/null")
        for name, value in environ.items():
            patch.setenv(name, value)
        urllib.request.urlopen(f"{environ['AWS_ENDPOINT_URL']}/moto-api/reset", data=b"").close()
        set_docker(environ["AWS_ENDPOINT_URL"], False)
        subnets = [
            subnet["SubnetId"] for subnet in boto3.client("ec2").describe_subnets()["Subnets"]
        ]
        groups = [
            group["GroupId"]
            for group in boto3.client("ec2").describe_security_groups()["SecurityGroups"]
        ]
        given = dict(
            Image=test_docker.IMAGE,
            InstanceTypes="c5.large,m5.large",
            Subnets=",".join(subnets[:2]),
            SecurityGroups=groups[0],
        )
        given = [dict(ParameterKey=name, ParameterValue=value) for name, value in given.items()]
        role = "      Type: MANAGED\n      ServiceRole: !GetAtt InstanceRole.Arn\n"  # moto has no service-linked roles
        template = TEMPLATE.read_text().replace("      Type: MANAGED\n", role)
        stack = dict(StackName="cleanrl-lite", TemplateBody=template, Parameters=given)
        boto3.client("cloudformation").create_stack(**stack, Capabilities=["CAPABILITY_IAM"])
        (stack,) = boto3.client("cloudformation").describe_stacks()["Stacks"]
        outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
        yield environ | dict(BUCKET=outputs["Bucket"])
        server.stop()


def launcher(account, folder, *words, flags=(), root=helpers.ROOT):
    command = [sys.executable, "-m", "benchmark.launch", *words, "--runs-dir", folder]
    command += ["--", *FLAGS, *flags] if flags else []
    done = helpers.run(command, cwd=root, **account)
    return done.returncode, done.stdout + done.stderr


def states(account, folder):
    _, output = launcher(account, folder, "--status")
    return {line.split()[0]: line.split()[1] for line in output.splitlines() if "%" in line}


def submitted():
    """The last job that was submitted, as Batch describes it."""
    jobs = boto3.client("batch").describe_jobs(jobs=[])["jobs"]
    return max((job for job in jobs if ":" not in job["jobId"]), key=lambda job: job["createdAt"])


def task(account, folder, job, index=0):
    """A task as a container would be: the job's command, an empty folder for the runs."""
    words = [sys.executable, *job["container"]["command"], str(folder)]
    environ = dict(os.environ, **account, AWS_BATCH_JOB_ARRAY_INDEX=str(index))
    return subprocess.Popen(
        words, cwd=helpers.ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def saved(folder):
    (path,) = Path(folder).glob("*/checkpoint.pt")
    return helpers.load(path.parent)["global_step"]


def test_the_template():
    """Right for CloudFormation as its own linter sees it; a training may read and write its bucket, and no more."""
    cfn_lint = pytest.importorskip("cfnlint")
    assert not cfn_lint.lint_file(TEMPLATE)
    template = cfn_lint.decode.decode(str(TEMPLATE))[0]
    (policy,) = template["Resources"]["JobRole"]["Properties"]["Policies"]
    rules = policy["PolicyDocument"]["Statement"]
    assert [rule["Action"] for rule in rules] == [["s3:GetObject", "s3:PutObject"], "s3:ListBucket"]
    assert [next(iter(rule["Resource"].values())) for rule in rules] == [
        "${Bucket.Arn}/*",
        ["Bucket", "Arn"],
    ]


def test_an_array_with_one_failure(account, tmp_path):
    """Two jobs: one finishes, one fails twice; only the one that failed is submitted again."""
    from moto.batch.models import batch_backends

    s3 = f"s3://{account['BUCKET']}/first"
    words = [
        "ppo",
        "--env-ids",
        "CartPole-v1",
        "CartPol-v1",
        "--seeds",
        "1",
        "--aws-batch",
        "--s3",
        s3,
    ]
    words += ["--mem", "2G", "--cpus", "2", "--time", "1:30:00"]
    code, output = launcher(account, tmp_path, *words, flags=["--total-timesteps", "512"])
    assert code == 0 and "submitted 2 jobs as AWS Batch job" in output, output
    job = submitted()
    assert job["arrayProperties"]["size"] == 2 and job["timeout"] == dict(
        attemptDurationSeconds=5400
    )
    overrides = (
        batch_backends["123456789012"]["us-east-1"].get_job_by_id(job["jobId"]).container_overrides
    )
    needs = {
        need["type"]: need["value"] for need in overrides["resourceRequirements"]
    }  # moto describes them not
    assert needs == dict(VCPU="2", MEMORY="2048")
    for index, code in (0, 0), (1, 1):
        process = task(account, tmp_path / f"container{index}", job, index)
        output = process.communicate(timeout=180)[0].decode()
        assert process.returncode == code, output
    helpers.wait_for(lambda: "submitted" not in states(account, tmp_path).values())
    found = states(account, tmp_path)
    assert found == {"ppo-CartPole-v1-1": "finished", "ppo-CartPol-v1-1": "failed"}
    assert "doesn't exist" in launcher(account, tmp_path, "--log", "ppo-CartPol-v1-1")[1]
    assert not list(tmp_path.glob("*/checkpoint.pt"))
    code, output = launcher(account, tmp_path, *words, flags=["--total-timesteps", "512"])
    assert (
        code == 0
        and "submitted 1 jobs as AWS Batch job" in output
        and "arrayProperties" not in submitted()
    ), output


def test_collect(account, tmp_path):
    """`--collect` brings run directories with their checkpoints, and makes results of them (here: in a copy)."""
    root = tmp_path / "copy"
    for name in ("benchmark", "cleanrl_lite"):
        shutil.copytree(helpers.ROOT / name, root / name, ignore=shutil.ignore_patterns("runs"))
    s3, runs = f"s3://{account['BUCKET']}/second", tmp_path / "runs"
    words = [
        "ppo",
        "--env-ids",
        "CartPole-v1",
        "--seeds",
        "77",
        "--exp-name",
        "collected",
        "--aws-batch",
        "--s3",
        s3,
    ]
    launcher(account, runs, *words, flags=["--total-timesteps", "4096"])
    process = task(account, tmp_path / "container", submitted())
    assert process.wait(180) == 0
    code, output = launcher(account, runs, "--collect", root=root)
    assert code == 0, output
    assert saved(runs) == 4096 and len(list(runs.glob("*/machine.json"))) == 1
    results = helpers.read_json(root / "benchmark" / "results" / "runs.json")
    assert [run["seed"] for run in results if run["exp_name"] == "collected"] == [77]
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}
    launcher(account, runs, "--collect", root=root)
    assert before == {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}


def test_an_instance_is_taken_away(account, tmp_path):
    """SIGTERM: the run saves, S3 gets it; the next attempt, on another machine, goes on from there and finishes."""
    s3 = f"s3://{account['BUCKET']}/third"
    words = ["ppo", "--env-ids", "CartPole-v1", "--seeds", "1", "--aws-batch", "--s3", s3]
    launcher(account, tmp_path, *words, flags=["--total-timesteps", "30080"])
    job, container = submitted(), tmp_path / "container"
    process = task(account, container, job)
    helpers.wait_for(lambda: list(container.glob("*/checkpoint.pt")))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert 0 < saved(container) < 30_080 and states(account, tmp_path) == {
        "ppo-CartPole-v1-1": "interrupted"
    }
    (before,) = [path.parent.name for path in container.glob("*/checkpoint.pt")]
    shutil.rmtree(container)  # what it has left is on S3 alone
    process = task(account, container, job)
    assert process.wait(180) == 0
    assert saved(container) == 30_080 and states(account, tmp_path) == {
        "ppo-CartPole-v1-1": "finished"
    }
    (run_dir,) = [path.parent for path in container.glob("*/checkpoint.pt")]
    assert run_dir.name == before
    steps = [step for step, _ in helpers.scalars(run_dir)["charts/SPS"]]
    assert steps == [*range(128, 30_080, 128), 30_080]  # no gap, and nothing twice
    code, output = launcher(account, tmp_path, *words, flags=["--total-timesteps", "30080"])
    assert "nothing to submit" in output


def test_checkpoints_are_copied_last(account, tmp_path, monkeypatch):
    """The checkpoint on S3 is that of before the event files were copied, though a newer one is there by then."""
    run, order = tmp_path / "run", []
    run.mkdir()
    (run / "checkpoint.pt").write_text("old")
    (run / "zz_events").write_text("events")
    (run / "lock").write_text("")
    (run / "checkpoint.pt.tmp").write_text("half")
    call = aws_batch.aws

    def spy(service, name, **words):
        if name == "upload_file":
            order.append(words["Key"])
        if words["Key"].endswith("zz_events"):
            (run / "new").write_text("new")
            os.replace(run / "new", run / "checkpoint.pt")
        return call(service, name, **words)

    monkeypatch.setattr(aws_batch, "aws", spy)
    s3, sent = f"s3://{account['BUCKET']}/fourth", {}
    aws_batch.upload(tmp_path, s3, sent)
    assert order == ["fourth/run/zz_events", "fourth/run/checkpoint.pt"]
    assert aws_batch.read(f"{s3}/run/checkpoint.pt") == "old"
    aws_batch.upload(tmp_path, s3, sent)
    assert (
        order[2:] == ["fourth/run/checkpoint.pt"]
        and aws_batch.read(f"{s3}/run/checkpoint.pt") == "new"
    )
    aws_batch.upload(tmp_path, s3, sent)
    assert len(order) == 3  # nothing has changed


def test_pages(account, tmp_path, monkeypatch):
    """More files than one answer of S3 lists, here two."""
    call, listed = aws_batch.aws, []

    def two_a_page(service, name, **words):
        if name == "list_objects_v2":
            listed.append(words)
            words["MaxKeys"] = 2
        return call(service, name, **words)

    monkeypatch.setattr(aws_batch, "aws", two_a_page)
    for number in range(5):
        aws_batch.write(f"s3://{account['BUCKET']}/fifth/{number}", str(number))
    aws_batch.download(f"s3://{account['BUCKET']}/fifth", tmp_path)
    assert {path.read_text() for path in tmp_path.iterdir()} == set("01234") and len(listed) == 3


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "--aws-batch needs --s3"),
        (["--s3", "bucket/prefix"], "is not s3://BUCKET/PREFIX"),
        (["--s3", "s3://no-such-bucket/x"], "bucket does not exist"),
        (["--s3", "s3://{BUCKET}/x", "--queue", "none"], "none"),
        (
            ["--s3", "s3://{BUCKET}/x", "--mem", "lots"],
            "--mem takes a size such as 8G or 500M, got lots",
        ),
        (
            ["--s3", "s3://{BUCKET}/x", "--time", "1-0"],
            "--time takes a limit such as 1:30:00, or minutes, got 1-0",
        ),
        (["--s3", "s3://{BUCKET}/x", "--max-parallel", "2"], "MaxvCpus"),
    ],
)
def test_wrong_input(account, tmp_path, words, said):
    """One line, no traceback, and nothing is marked as submitted."""
    words = [word.replace("{BUCKET}", account["BUCKET"]) for word in words]
    code, output = launcher(
        account, tmp_path, "ppo", "--env-ids", "CartPole-v1", "--seeds", "1", "--aws-batch", *words
    )
    assert code and said in output and "Traceback" not in output, output
    manifest = tmp_path / "launch.json"
    assert not manifest.exists() or "submitted" not in manifest.read_text()


@pytest.mark.parametrize("limit, want", [("90", 5400), ("90:30", 5430), ("1:30:00", 5400)])
def test_time_as_sbatch_reads_it(limit, want):
    assert aws_batch.seconds(limit) == want


# === in containers
@pytest.fixture
def containers(account, monkeypatch):
    """Batch runs the tasks' containers. moto sets no AWS_BATCH_JOB_ARRAY_INDEX, as Batch does: that is added here."""
    from moto.batch.models import Job

    inner = Job._get_container_property

    def property(job, name, default):
        value = inner(job, name, default)
        if name != "environment":
            return value
        given = dict(account, AWS_BATCH_JOB_ARRAY_INDEX=str(job.array_properties.get("index", 0)))
        return [*value, *(dict(name=key, value=content) for key, content in given.items())]

    monkeypatch.setattr(Job, "_get_container_property", property)
    monkeypatch.setenv("MOTO_DOCKER_NETWORK_MODE", "host")
    set_docker(account["AWS_ENDPOINT_URL"], True)
    yield
    set_docker(account["AWS_ENDPOINT_URL"], False)


@test_docker.needs_engine
def test_in_containers(account, containers, tmp_path):
    """The whole way: an array of two in two containers of the image, cancelled, submitted again, collected."""
    flags = shlex.split(os.environ.get("CONTAINER_BUILD_FLAGS", ""))
    subprocess.run(
        [test_docker.ENGINE, "build", *flags, "-t", test_docker.IMAGE, "."],
        cwd=helpers.ROOT,
        check=True,
    )
    s3 = f"s3://{account['BUCKET']}/containers"
    words = ["ppo", "--env-ids", "CartPole-v1", "--seeds", "1-2", "--aws-batch", "--s3", s3]
    code, output = launcher(account, tmp_path, *words, flags=["--total-timesteps", "20000"])
    assert code == 0 and "submitted 2 jobs as AWS Batch job" in output, output
    assert set(states(account, tmp_path).values()) <= {
        "pending",
        "submitted",
        "runnable",
        "starting",
        "running",
    }
    helpers.wait_for(lambda: set(states(account, tmp_path).values()) == {"finished"}, 300)
    assert launcher(account, tmp_path, *words, flags=["--total-timesteps", "20000"])[1].startswith(
        "nothing to submit"
    )
    words[words.index("1-2")] = "3"
    launcher(account, tmp_path, *words, flags=["--total-timesteps", "50000000"])
    helpers.wait_for(lambda: states(account, tmp_path)["ppo-CartPole-v1-3"] == "running", 120)
    assert "cancelled 1 AWS Batch tasks" in launcher(account, tmp_path, "--cancel")[1]
    helpers.wait_for(lambda: states(account, tmp_path)["ppo-CartPole-v1-3"] == "interrupted", 120)
    aws_batch.collect(launch.Manifest(tmp_path / "launch.json"))
    steps = [
        helpers.load(path.parent)["global_step"]
        for path in tmp_path.glob("*__[12]__*/checkpoint.pt")
    ]
    assert steps == [20_000] * 2 or steps == [20_096] * 2
