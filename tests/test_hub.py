"""cleanrl_lite/tools/hub.py: a finished run as a folder of its own, to share."""

import json
import re
import shutil
import sys

import pytest
import torch

from cleanrl_lite.tools import hub
from tests import helpers


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    return helpers.train("ppo", folder, eval_episodes=2, capture_video=True)[0]


@pytest.mark.slow
def test_a_folder_that_stands_alone(finished, tmp_path):
    """Evaluated elsewhere with the card's command, it plays as the run did."""
    (finished / "helper.py").touch()  # not the script
    folder = hub.export(finished, tmp_path / "agent")
    names = "checkpoint.pt args.json eval.json replay.mp4 README.md ppo.py utils.py".split()
    assert {*names} <= {path.name for path in folder.iterdir()}
    elsewhere = shutil.copytree(folder, tmp_path / "far" / "away")
    (elsewhere / "tyro.py").write_text("raise SystemExit(3)")  # what a stranger's folder may have
    card = (folder / "README.md").read_text()
    command = re.search(r"^python (-m .*) FOLDER ", card, re.M)[1]
    done = helpers.run([sys.executable, *command.split(), elsewhere], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (evaluation,) = elsewhere.glob("eval_*.json")
    recorded = helpers.read_json(finished / "eval.json")
    assert helpers.read_json(evaluation)["returns"] == recorded["returns"]
    assert f"value: {recorded['mean']:.2f} +/- " in card
    assert "--num-steps 32" in card


def test_the_card_of_a_copy(finished, tmp_path):
    """Its command trains as long as the run was to, with the module that the environment is in."""
    run_dir = shutil.copytree(finished, tmp_path / "run")
    saved = helpers.load(run_dir)
    saved["script"] = "my_idea"
    saved["global_step"] += 32  # whole rollouts may end beyond the total
    saved["args"]["env_id"] = "mine:Env-v0"
    torch.save(saved, run_dir / "checkpoint.pt")
    (run_dir / "ppo.py").rename(run_dir / "my_idea.py")
    folder = hub.export(run_dir, tmp_path / "agent")
    card = (folder / "README.md").read_text()
    steps = saved["args"]["total_timesteps"]
    assert f"python my_idea.py --env-id mine:Env-v0 --seed 1 --total-timesteps {steps} " in card
    assert f"| environment steps | {saved['global_step']:,} |" in card
    assert "--evaluate FOLDER --eval-episodes 100 --env-id mine:Env-v0\n" in card
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert {*state} == {"script", "args", "global_step", "agent"}


def test_refusals(finished, tmp_path):
    unfinished = shutil.copytree(finished, tmp_path / "unfinished")
    wrong = helpers.read_json(unfinished / "eval.json") | {"global_step": 1}
    (unfinished / "eval.json").write_text(json.dumps(wrong))
    (tmp_path / "there").mkdir()
    for source, target, message in (
        (tmp_path, tmp_path / "new", "cannot load .* a run directory of this script"),
        (unfinished, tmp_path / "new", "is not finished. Finish it with --resume"),
        (finished, tmp_path / "there", "already exists"),
    ):
        with pytest.raises(SystemExit, match=message):
            hub.export(source, target)
