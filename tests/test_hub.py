"""cleanrl_lite/tools/hub.py: a finished run as a folder of its own, to share."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cleanrl_lite.tools import hub
from tests import helpers

HUB = [sys.executable, "-m", "cleanrl_lite.tools.hub"]


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
    assert {
        "checkpoint.pt",
        "args.json",
        "eval.json",
        "replay.mp4",
        "README.md",
        "ppo.py",
        "utils.py",
    } <= names
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert {*state} == {"script", "args", "global_step", "agent"}
    assert (folder / "replay.mp4").stat().st_size > 1000
    elsewhere = shutil.copytree(folder, tmp_path / "far" / "away")
    (elsewhere / "tyro.py").write_text("raise SystemExit(3)")  # what a stranger's folder may have
    command = re.search(r"^python (-m .*) FOLDER ", (folder / "README.md").read_text(), re.M)[1]
    done = helpers.run([sys.executable, *command.split(), elsewhere], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert evaluation(elsewhere)["returns"] == helpers.read_json(finished / "eval.json")["returns"]
    text, mean = (
        (folder / "README.md").read_text(),
        helpers.read_json(finished / "eval.json")["mean"],
    )
    assert f"value: {mean:.2f} +/- " in text and "--num-steps 32" in text and "replay.mp4" in text
    assert text.startswith("---\n") and "tags: [CartPole-v1, ppo, " in text


def test_the_card_of_a_copy(finished, tmp_path):
    """Its command trains as long as the run was to; where that was, only a launcher's run knows. It
    is evaluated from another folder, with the module that the environment is in."""
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
    assert "trained on" not in text and "commit" not in text
    assert "run a copy of my_idea.py in another folder" in text
    assert "\npython my_idea.py --evaluate FOLDER --eval-episodes 100\n" in text
    machine = {"hardware": "a PC", "versions": {"x": "1"}, "commit": "abc"}
    (run_dir / "machine.json").write_text(json.dumps(machine))
    saved["args"]["env_id"] = "mine:Env-v0"
    torch.save(saved, run_dir / "checkpoint.pt")
    text = (hub.export(run_dir, tmp_path / "other") / "README.md").read_text()
    assert "| seed | 1 |\n| commit | abc |\n| trained on | a PC; x 1 |\n\nTrained" in text
    assert "--evaluate FOLDER --eval-episodes 100 --env-id mine:Env-v0\n" in text


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
    with pytest.raises(SystemExit, match="was not made by `export`"):
        hub.push(tmp_path, "me/agent")


def test_to_the_hub_and_back(finished, tmp_path, monkeypatch):
    """With a folder in place of the Hub, and the client's names and arguments."""
    hubs = tmp_path / "hub"

    class HfApi:
        def create_repo(self, repository, private, exist_ok):
            assert exist_ok
            (hubs / repository).mkdir(parents=True)
            return f"https://huggingface.co/{repository}"

        def upload_folder(self, repo_id, folder_path, commit_message):
            shutil.copytree(folder_path, hubs / repo_id, dirs_exist_ok=True)

    def snapshot_download(repository, local_dir):
        shutil.copytree(hubs / repository, local_dir, dirs_exist_ok=True)

    client = SimpleNamespace(HfApi=HfApi, snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    folder = hub.export(finished, tmp_path / "agent")
    assert hub.push(folder, "me/agent").endswith("me/agent")
    back = hub.pull("me/agent", tmp_path / "back")
    for path in folder.iterdir():
        assert path.read_bytes() == (Path(back) / path.name).read_bytes()
    (hubs / "me/agent/checkpoint.pt").unlink()
    with pytest.raises(SystemExit, match="has no checkpoint.pt"):
        hub.pull("me/agent", tmp_path / "again")
