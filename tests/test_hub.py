"""cleanrl_lite/tools/hub.py: a finished run as a folder of its own, and on the Hub, for which a server here stands in."""

import base64
import hashlib
import json
import re
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from cleanrl_lite.tools import hub
from tests import helpers

HUB = [sys.executable, "-m", "cleanrl_lite.tools.hub"]


class Hub(BaseHTTPRequestHandler):
    """What the client needs of the Hub: repositories, commits with the files in them, downloads."""

    repositories = {}  # name -> {path: content}
    protocol_version = "HTTP/1.1"

    def answer(self, content, status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        headers = {
            "Content-Type": "application/json",
            "Content-Length": len(body),
            "X-Repo-Commit": "0" * 40,
        } | headers
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if self.path == "/api/repos/create":
            words = json.loads(body)
            name = f"{words.get('organization') or 'me'}/{words['name']}"
            self.repositories.setdefault(name, {})
            self.answer(dict(url=f"http://{self.headers['Host']}/{name}", id=name, name=name))
        elif found := re.fullmatch(r"/api/models/(.+)/preupload/main", self.path):
            files = json.loads(body)["files"]
            modes = dict(uploadMode="regular", shouldIgnore=False)
            self.answer(dict(files=[dict(path=file["path"], **modes) for file in files]))
        elif found := re.match(r"/api/models/(.+)/commit/main", self.path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.repositories[found[1]][line["value"]["path"]] = base64.b64decode(
                        line["value"]["content"]
                    )
            address = f"http://{self.headers['Host']}/{found[1]}/commit/{'0' * 40}"
            self.answer(dict(success=True, commitOid="0" * 40, commitUrl=address, hookOutput=""))
        else:
            self.answer({}, 200)  # its validation of model cards

    def do_GET(self):
        if found := re.match(r"/api/models/([^/]+/[^/]+)/tree/", self.path):
            files = self.repositories[found[1]]
            entries = [
                dict(type="file", path=path, size=len(files[path]), oid=sha1(files[path]))
                for path in files
            ]
            self.answer(entries)
        elif found := re.match(r"/api/models/([^/]+/[^/]+)", self.path):
            if found[1] not in self.repositories:
                return self.answer(dict(error="not found"), 404, X_Error_Code="RepoNotFound")
            files = [dict(rfilename=path) for path in self.repositories[found[1]]]
            self.answer(
                dict(
                    id=found[1],
                    sha="0" * 40,
                    siblings=files,
                    private=False,
                    tags=[],
                    downloads=0,
                    likes=0,
                )
            )
        elif found := re.match(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path):
            content = self.repositories[found[1]][found[2]]
            self.answer(content, ETag=f'"{sha1(content)}"', Content_Type="application/octet-stream")
        else:
            self.answer(dict(error="not found"), 404)

    do_HEAD = do_GET

    def log_message(self, *words):
        pass


def sha1(content):
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def server(tmp_path):
    http = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{http.server_port}"
    yield dict(
        HF_ENDPOINT=address,
        HF_TOKEN="hf_stand_in",
        HF_HOME=str(tmp_path / "hf"),
        HF_HUB_DISABLE_XET="1",
    )
    http.shutdown()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of ppo with a video."""
    folder = tmp_path_factory.mktemp("hub")
    helpers.train("ppo", folder, eval_episodes=2, capture_video=True)
    return helpers.only_run(folder)


def evaluation(folder):
    (path,) = folder.glob("eval_*.json")
    return helpers.read_json(path)


@pytest.mark.slow
def test_a_folder_that_stands_alone(finished, tmp_path):
    """Networks, arguments, evaluation, video, card and script; evaluated elsewhere, it plays as the run does."""
    folder = tmp_path / "agent"
    done = helpers.run([*HUB, "export", finished, folder], cwd=helpers.ROOT)
    assert done.returncode == 0 and done.stdout.strip() == str(folder), done.stderr
    names = {path.name for path in folder.iterdir()}
    assert {"checkpoint.pt", "args.json", "eval.json", "replay.mp4", "README.md", "ppo.py"} <= names
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert (
        "adam" not in state and "rng" not in state and (folder / "replay.mp4").stat().st_size > 1000
    )
    elsewhere = shutil.copytree(folder, tmp_path / "far" / "away")
    done = helpers.run([sys.executable, "ppo.py", "--evaluate", "."], cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert evaluation(elsewhere)["returns"] == helpers.read_json(finished / "eval.json")["returns"]
    text, mean = (
        (folder / "README.md").read_text(),
        helpers.read_json(finished / "eval.json")["mean"],
    )
    assert f"value: {mean:.2f} +/- " in text and "--num-steps 32" in text and "replay.mp4" in text
    assert text.startswith("---\n") and "tags: [CartPole-v1, ppo, " in text


def test_the_card_of_a_copy(finished, tmp_path):
    """Its command trains as long as the run was to; nobody knows on which machine that was."""
    run_dir = shutil.copytree(finished, tmp_path / "run")
    saved = helpers.load(run_dir)
    saved["script"] = "my_idea"
    saved["global_step"] += 32  # whole rollouts may end beyond the total
    torch.save(saved, run_dir / "checkpoint.pt")
    (run_dir / "ppo.py").rename(run_dir / "my_idea.py")
    text = (hub.export(run_dir, tmp_path / "agent") / "README.md").read_text()
    steps = saved["args"]["total_timesteps"]
    command = f"python my_idea.py --env-id CartPole-v1 --seed 1 --total-timesteps {steps} "
    assert command in text
    assert f"| environment steps | {saved['global_step']:,} |" in text
    assert "| trained on | not recorded; torch " in text
    (run_dir / "machine.json").write_text(json.dumps({"hardware": "a PC", "versions": {"x": "1"}}))
    text = (hub.export(run_dir, tmp_path / "other") / "README.md").read_text()
    assert "| trained on | a PC; x 1 |" in text


def test_refusals(finished, tmp_path):
    unfinished = shutil.copytree(finished, tmp_path / "unfinished")
    whole = helpers.read_json(unfinished / "eval.json")
    wrong = whole | dict(global_step=1)
    (unfinished / "eval.json").write_text(json.dumps(wrong))
    (tmp_path / "there").mkdir()
    for source, target, message in (
        (tmp_path, tmp_path / "new", "is not a run directory with an evaluation"),
        (unfinished, tmp_path / "new", "is not finished. Finish it with --resume"),
        (finished, tmp_path / "there", "already exists"),
    ):
        with pytest.raises(SystemExit, match=message):
            hub.export(source, target)
    torn = shutil.copytree(finished, tmp_path / "torn")
    (torn / "eval.json").write_text(
        json.dumps({name: value for name, value in whole.items() if name != "std"})
    )
    with pytest.raises(KeyError):
        hub.export(torn, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(SystemExit, match="was not made by `export`"):
        hub.push(tmp_path, "me/agent")


@pytest.mark.slow
def test_to_the_hub_and_back(finished, tmp_path, server):
    helpers.run([*HUB, "export", finished, tmp_path / "agent"], cwd=helpers.ROOT)
    done = helpers.run([*HUB, "push", tmp_path / "agent", "me/agent"], cwd=helpers.ROOT, **server)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "agent/checkpoint.pt").read_bytes() == Hub.repositories["me/agent"][
        "checkpoint.pt"
    ]
    done = helpers.run([*HUB, "pull", "me/agent", tmp_path / "back"], cwd=helpers.ROOT, **server)
    assert done.returncode == 0, done.stderr
    for path in (tmp_path / "agent").iterdir():
        assert path.read_bytes() == (tmp_path / "back" / path.name).read_bytes()
