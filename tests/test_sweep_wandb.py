"""benchmark/launch/sweep_wandb.yaml with the real `wandb sweep` and `wandb agent`, against a stand-in for W&B's server.

The stand-in answers the few GraphQL operations that those two ask for, and hands out settings from the sweep's
parameters as a server would; the runs themselves are offline, and read back.
"""

import json
import random
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tests import helpers, wandb_file

SWEEP = helpers.ROOT / "benchmark" / "launch" / "sweep_wandb.yaml"
WANDB = Path(sys.executable).parent / "wandb"


class Server(ThreadingHTTPServer):
    """One sweep; two runs are handed out, and then the agent is told to end."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.config, self.given, self.asked = None, [], []

    def answer(self, operation, variables):
        self.asked.append(operation)
        if operation == "Viewer":
            teams = dict(edges=[dict(node=dict(name="me"))])
            viewer = dict(id="1", entity="me", username="me", email="me@x", flags="{}", teams=teams)
            return dict(viewer=viewer)
        if operation == "UpsertSweep":
            self.config = variables["config"]
            project = dict(id="p", name="cleanrl_lite", entity=dict(name="me", id="e"))
            sweep = dict(id="s", name="sweep1", method="bayes", state="RUNNING", project=project)
            return dict(upsertSweep=dict(sweep=sweep, configValidationWarnings=[]))
        if operation == "SweepWithRuns":
            sweep = dict(
                id="s",
                name="sweep1",
                method="bayes",
                state="RUNNING",
                config=self.config,
                runs=dict(edges=[]),
            )
            return dict(project=dict(sweep=sweep))
        if operation == "CreateAgent":
            return dict(createAgent=dict(agent=dict(id="a")))
        if operation == "Heartbeat":
            return dict(
                agentHeartbeat=dict(
                    agent=dict(id="a"), commands=json.dumps(self.commands(variables))
                )
            )
        return dict(serverInfo=None, project=None, viewer=None, entity=None)

    def commands(self, variables):
        if any(json.loads(variables["runState"]).values()):
            return []
        if len(self.given) == 2:
            return [dict(type="exit")]
        config = yaml.safe_load(self.config)
        self.given.append(
            {name: self.sample(space) for name, space in config["parameters"].items()}
        )
        args = {name: dict(value=value) for name, value in self.given[-1].items()}
        return [
            dict(type="run", run_id=f"run{len(self.given)}", program=config["program"], args=args)
        ]

    def sample(self, space):
        choices = space.get("values", [space.get("value")])
        return (
            random.uniform(space["min"], space["max"]) if "min" in space else random.choice(choices)
        )


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = {}
        if self.path == "/graphql":
            asked = json.loads(body)
            operation = asked.get("operationName") or asked["query"].split("(")[0].split()[1]
            data = dict(data=self.server.answer(operation, asked.get("variables")))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    do_GET = do_POST

    def log_message(self, *words):
        pass


@pytest.fixture
def server():
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.mark.slow
def test_sweep_and_agent(server, tmp_path):
    """Two runs with the settings that the server gave, each with its final evaluation, the sweep's metric, logged."""
    account = dict(
        WANDB_BASE_URL=f"http://127.0.0.1:{server.server_port}",
        WANDB_API_KEY="0" * 40,
        WANDB_ENTITY="me",
    )
    account |= dict(
        WANDB_DIR=str(tmp_path), WANDB_CONFIG_DIR=str(tmp_path), WANDB_CACHE_DIR=str(tmp_path)
    )
    config = yaml.safe_load(SWEEP.read_text())
    config["parameters"] |= {
        "total-timesteps": dict(value=1024),
        "runs-dir": dict(value=str(tmp_path / "runs")),
    }
    config["command"] = [
        sys.executable if word == "python" else word for word in config["command"]
    ] + ["--no-compile"]
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(config))
    words = [WANDB, "sweep", "--project", "cleanrl_lite", tmp_path / "sweep.yaml"]
    done = helpers.run(words, cwd=helpers.ROOT, **account)
    output = done.stdout + done.stderr
    assert done.returncode == 0 and "me/cleanrl_lite/sweep1" in output, (output, server.asked)
    words = [WANDB, "agent", "me/cleanrl_lite/sweep1"]
    done = helpers.run(words, cwd=helpers.ROOT, timeout=300, **account, WANDB_MODE="offline")
    assert done.returncode == 0 and len(server.given) == 2, (
        done.stdout + done.stderr,
        server.asked,
    )
    for number, given in enumerate(server.given, 1):
        (folder,) = tmp_path.glob(f"runs/wandb/offline-run-*-run{number}")
        run_id, found, history, *_ = wandb_file.read(folder)
        assert run_id == f"run{number}"
        assert {name: found[name.replace("-", "_")] for name in given} == given
        assert [row["eval/episodic_return"] for row in history if "eval/episodic_return" in row]
