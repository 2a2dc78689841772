"""Makes a notebook of a script.

    python -m cleanrl_lite.tools.notebook ppo --env-id Acrobot-v1
    python -m cleanrl_lite.tools.notebook ddpg --execute --output my_ddpg.ipynb --seed 3

The script's flags become the notebook's arguments. Edit the script, not the notebook.

The notebook has the script's sections, in its order and its words, with main()'s body in cells of
its own. Cells that are not in the script record videos while it trains, save the networks, show the
evaluation, and draw the curves.
"""

import ast
import re
import textwrap
from importlib import import_module
from pathlib import Path

import nbformat
import tyro
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from cleanrl_lite.tools import runs as tools

HEAD = """
import json
import math

import matplotlib.pyplot as plt
from gymnasium.wrappers import RecordVideo

{imports}

# What run directories get a copy of
__file__ = str(Path(utils.__file__).with_name("{script}.py"))
"""
VIDEOS = """
# Not in the script: a video of the first environment every so many steps of it, while it trains
if hasattr(envs.env, "envs"):  # Atari's environments are not in a list
    every = args.total_timesteps // args.num_envs // 4
    recorded = RecordVideo(
        make_env(args, "rgb_array"),
        video_folder=f"{args.runs_dir}/notebook_videos",
        step_trigger=lambda step: step % every == 0,
        video_length=200,
    )
    envs.env.envs[0] = utils.Player(recorded)
    envs.begin()
"""
# What main() has for the command line
EVALUATE = r"(?m)^if args\.evaluate:\n(?: {4}.*\n)+"
RETURN = r"(?m)^return run\.finish\(writer\).*"
END = "record = run.finish(writer)"
NETWORKS = """
# Not in the script: each network in a file of its own, such as actor.pt
for name, network in agent.named_children():
    torch.save(network.state_dict(), run.dir / f"{name}.pt")
print(*sorted(path.name for path in run.dir.glob("*.pt")))
"""
EVALUATION = """
# Not in the script: what the final evaluation recorded
left_out = "returns", "lengths", "dir"
shown = {name: record[name] for name in record if name not in left_out}
print(json.dumps(shown, indent=2))
"""
CURVES = """
# Not in the script: the curves that it logged
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(str(run.dir), size_guidance={"scalars": 0}).Reload()
tags = events.Tags()["scalars"]
tags = [tag for tag in tags if tag.startswith(("charts/episodic_return", "losses/"))]
rows = math.ceil(len(tags) / 3)
figure, panels = plt.subplots(rows, 3, figsize=(11, 2.2 * rows), squeeze=False)
for panel in panels.flat[len(tags) :]:
    panel.axis("off")
for tag, panel in zip(tags, panels.flat, strict=False):
    points = events.Scalars(tag)
    panel.plot([event.step for event in points], [event.value for event in points], linewidth=1)
    panel.set_title(tag, fontsize=9)
figure.tight_layout()
"""


def sections(source):
    """(name, text) of each section, as it would stand at the left margin; main()'s, too."""
    (main,) = [node for node in ast.parse(source).body if getattr(node, "name", "") == "main"]
    lines = source.splitlines()[: main.end_lineno]
    del lines[main.lineno - 1]
    for block in re.split(r"(?m)^ *# === ", "\n".join(lines))[1:]:
        name, _, text = block.partition("\n")
        yield name, textwrap.dedent(text).strip("\n")


def cells(source, script, changed):
    """The notebook's cells: of the docstring, of each section, and of main().

    main() loses its frame, what --evaluate does, and its returns.
    """
    head = ast.get_docstring(ast.parse(source)).splitlines()
    fields = "\n".join(f"    {line}" for line in head[1:] if line)
    made = f"Made from `cleanrl_lite/{script}.py` by `python -m cleanrl_lite.tools.notebook`"
    title = f"# {script}\n\n{head[0]}\n\n{fields}\n\n{made}: edit the script, not this."
    yield new_markdown_cell(title)
    imports = source.split('"""')[2].partition("# === ")[0].strip()
    yield new_code_cell(HEAD.strip().format(imports=imports, script=script))
    given = ", ".join(f"{flag}={value!r}" for flag, value in changed.items())
    for name, body in sections(source):
        yield new_markdown_cell(f"## {name}")
        if name == "set-up":
            yield new_code_cell(f"args = Args({given})")
            yield new_code_cell(re.sub(EVALUATE, "", body))
            yield new_code_cell(VIDEOS.strip())
        else:
            yield new_code_cell(re.sub(RETURN, END, body))
    for extra in (NETWORKS, EVALUATION, CURVES):
        yield new_code_cell(extra.strip())


def notebook(script, changed):
    """The notebook of cleanrl_lite/SCRIPT.py with these arguments changed."""
    source = (tools.SCRIPTS / f"{script}.py").read_text()
    made = new_notebook(cells=list(cells(source, script, changed)))
    for i, cell in enumerate(made.cells):
        cell["id"] = f"cell-{i}"  # not a random one: the same script makes the same notebook
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    return made


def main():
    parser = tools.parser(__doc__)
    add = parser.add_argument
    names = sorted({path.stem for path in tools.SCRIPTS.glob("[!_]*.py")} - {"utils"})
    add("script", type=lambda word: word.removesuffix(".py"), choices=names, metavar="SCRIPT")
    add("--output", help="where to write it (SCRIPT.ipynb)")
    add("--execute", action="store_true", help="run it, in the current directory")
    args, words = parser.parse_known_args()
    Args = import_module(f"cleanrl_lite.{args.script}").Args
    chosen = vars(tyro.cli(Args, args=words))
    defaults = vars(Args())
    changed = {flag: chosen[flag] for flag in chosen if chosen[flag] != defaults[flag]}
    made = notebook(args.script, changed)
    if args.execute:
        from nbclient import NotebookClient

        NotebookClient(made, timeout=None, resources={"metadata": {"path": "."}}).execute()
    path = Path(args.output or f"{args.script}.ipynb")
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)
    print(path)


if __name__ == "__main__":
    main()
