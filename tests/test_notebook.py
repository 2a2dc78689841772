"""cleanrl_lite/tools/notebook.py: the notebook is what the script makes today, and it runs."""

import ast
import json
import re

import pytest

nbformat = pytest.importorskip("nbformat")

from cleanrl_lite.tools import notebook  # noqa: E402
from tests import helpers  # noqa: E402

SHORT = dict(env_id="Pendulum-v1", total_timesteps=2_000, learning_starts=500, eval_episodes=2)
SHORT["compile"] = False


def sources(made):
    return [(cell.cell_type, cell.source) for cell in made.cells]


def test_the_published_notebook_is_todays():
    """Where this fails, run the commands of docs/guides/notebooks.md."""
    published = nbformat.read(helpers.ROOT / "docs/notebooks/ppo_continuous.ipynb", as_version=4)
    flags = dict(env_id="InvertedPendulum-v4", total_timesteps=60_000)
    assert sources(published) == sources(notebook.notebook("ppo_continuous", flags))
    outputs = [output for cell in published.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]


def test_every_script_has_a_notebook(script):
    """Valid cells that hold every line of the script, once and in its order, but for main()'s frame."""
    made = notebook.notebook(script, {})
    nbformat.validate(made)
    code = [cell.source for cell in made.cells if cell.cell_type == "code"]
    for source in code:
        ast.parse(source)
    left_out = {"def main(args: Args):", "return run.finish(writer)"}
    left_out |= {"return run.finish(writer) if rank == 0 else None"}
    text = (helpers.SOURCE / f"{script}.py").read_text()
    text = text[text.index("\nimport") : text.index("\nif __name__")]
    text = re.sub(r"\n    if args\.evaluate:\n( {8}.*\n)+", "\n", text)
    lines = [line.strip() for line in text.splitlines() if line.strip() and "# === " not in line]
    found = iter(line.strip() for source in code for line in source.splitlines())
    assert [line for line in lines if line not in left_out and line not in found] == []


def test_the_command(tmp_path, monkeypatch):
    """It takes a script's name with .py, too."""
    words = ["notebook", "ddpg.py", "--seed", "3", "--output", str(tmp_path / "a.ipynb")]
    monkeypatch.setattr("sys.argv", words)
    notebook.main()
    made = nbformat.read(tmp_path / "a.ipynb", as_version=4)
    assert sources(made) == sources(notebook.notebook("ddpg", {"seed": 3}))


@pytest.mark.slow
def test_a_notebook_runs(tmp_path, monkeypatch):
    """It trains, films, saves the networks, evaluates and draws, as a reader who runs all cells sees it."""
    pytest.importorskip("ipykernel")
    nbclient = pytest.importorskip("nbclient")
    made = notebook.notebook("ddpg", SHORT)
    monkeypatch.delenv("MPLBACKEND", raising=False)  # another one would not draw into it
    resources = dict(metadata=dict(path=tmp_path))
    nbclient.NotebookClient(made, timeout=600, resources=resources).execute()
    (run_dir,) = (tmp_path / "runs").glob("Pendulum-v1__ddpg__*")
    assert {"actor.pt", "qf1.pt"} <= {path.name for path in run_dir.glob("*.pt")}
    assert json.loads((run_dir / "eval.json").read_text())["global_step"] == 2_000
    shown = [output for cell in made.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in shown)
