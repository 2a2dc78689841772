"""Makes a notebook of a script:

python -m benchmark.publish.notebook ddpg --env-id Pendulum-v1 --total-timesteps 10000 --learning-starts 1000 --execute

The script's flags become the notebook's arguments. It goes to docs/notebooks/SCRIPT.ipynb, or to --output; --execute
runs it, in the current directory. Never edit a notebook by hand: edit the script and make it again.

The notebook has the script's sections, in its order and its words, with main()'s body in cells of its own. Cells that
are not in the script record videos while it trains, save the networks, show the evaluation, and draw the curves.
"""

import argparse
import ast
import textwrap
from importlib import import_module
from pathlib import Path

import nbformat
import tyro
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from benchmark.shared import ROOT

VIDEOS = """
# Not in the script: a video of the first environment every so many steps of it, while it trains
if hasattr(envs, "envs"):  # Atari's environments are not in a list
    every = args.total_timesteps // args.num_envs // 4
    envs.envs[0] = gym.wrappers.RecordVideo(
        make_env(args, "rgb_array"),
        video_folder=f"{args.runs_dir}/notebook_videos",
        step_trigger=lambda step: step % every == 0,
        video_length=200,
    )
"""
NETWORKS = """
# Not in the script: each network in a file of its own, such as actor.pt
for name, network in agent.named_children():
    torch.save(network.state_dict(), run.dir / f"{name}.pt")
print(*sorted(path.name for path in run.dir.glob("*.pt")))
"""
EVALUATION = """
# Not in the script: what the final evaluation recorded
record = json.loads((run.dir / "eval.json").read_text())
print(json.dumps({name: record[name] for name in record if name not in ("returns", "lengths", "args")}, indent=2))
"""
CURVES = """
# Not in the script: the curves that it logged
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(str(run.dir), size_guidance=dict(scalars=0)).Reload()
tags = [tag for tag in events.Tags()["scalars"] if tag.startswith(("charts/episodic_return", "losses/"))]
figure, panels = plt.subplots(math.ceil(len(tags) / 3), 3, figsize=(11, 2.2 * math.ceil(len(tags) / 3)), squeeze=False)
for tag, panel in zip(tags, panels.flat):
    panel.plot(*zip(*[(event.step, event.value) for event in events.Scalars(tag)]), linewidth=1)
    panel.set_title(tag, fontsize=9)
for panel in panels.flat[len(tags) :]:
    panel.axis("off")
figure.tight_layout()
"""


def cells(source, script, changed):
    """The notebook's cells: of the docstring, of each section, and of main(), which loses its `def` and its returns."""
    lines, tree = source.splitlines(), ast.parse(source)
    text = lambda first, last: "\n".join(lines[first - 1 : last]).strip("\n")  # noqa: E731
    main = next(node for node in tree.body if getattr(node, "name", None) == "main")
    banners = [i for i, line in enumerate(lines, 1) if line.strip().startswith("# === ")]
    head, made = ast.get_docstring(tree).splitlines(), f"`cleanrl_lite/{script}.py` by `python -m benchmark.publish.notebook`"
    fields = "\n".join(f"    {line}" for line in head[1:] if line)
    yield new_markdown_cell(f"# {script}\n\n{head[0]}\n\n{fields}\n\nMade from {made}: edit the script, not this.")
    extra = "import json\nimport math\n\nimport matplotlib.pyplot as plt\n\n"
    here = f'\n\n__file__ = str(Path(utils.__file__).with_name("{script}.py"))  # what run directories get a copy of'
    yield new_code_cell(extra + text(tree.body[1].lineno, banners[0] - 1) + here)
    for first, last in zip(banners, [*banners[1:], len(lines) + 1]):
        name, inside = lines[first - 1].strip().removeprefix("# === "), first > main.lineno
        last = min(last - 1, main.end_lineno) if inside else min(last, main.lineno) - 1
        yield new_markdown_cell(f"## {name}")
        if name == "setup":
            run = next(node for node in main.body if isinstance(node, ast.Assign) and "utils.Run(" in ast.unparse(node))
            given = ", ".join(f"{flag}={value!r}" for flag, value in changed.items())
            yield new_code_cell(f"args = Args({given})")
            yield new_code_cell(textwrap.dedent(text(first + 1, run.lineno - 1)))
            yield new_code_cell(VIDEOS.strip())  # before the run resets the environments
            first = run.lineno - 1
        body = textwrap.dedent(text(first + 1, last)) if inside else text(first + 1, last)
        body = body.replace("if run.result is not None:  # --evaluate\n    return run.result\n", "")
        yield new_code_cell(body.replace("return run.end()", "returns = run.end()"))
    yield from (new_code_cell(extra.strip()) for extra in (NETWORKS, EVALUATION, CURVES))


def notebook(script, changed):
    """The notebook of cleanrl_lite/SCRIPT.py with these arguments changed."""
    made = new_notebook(cells=list(cells((ROOT / f"cleanrl_lite/{script}.py").read_text(), script, changed)))
    for i, cell in enumerate(made.cells):
        cell["id"] = f"cell-{i}"  # not a random one: the same script makes the same notebook
    made.metadata["kernelspec"] = dict(name="python3", display_name="Python 3", language="python")
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", help="such as ddpg")
    parser.add_argument("--output", help="where to write it (docs/notebooks/SCRIPT.ipynb)")
    parser.add_argument("--execute", action="store_true", help="run it, in the current directory")
    args, words = parser.parse_known_args()
    Args = import_module(f"cleanrl_lite.{args.script}").Args
    chosen, defaults = vars(tyro.cli(Args, args=words)), vars(Args())
    changed = {flag: chosen[flag] for flag in chosen if chosen[flag] != defaults[flag]}
    made = notebook(args.script, changed)
    if args.execute:
        from nbclient import NotebookClient

        NotebookClient(made, timeout=None, resources=dict(metadata=dict(path="."))).execute()
    path = Path(args.output or ROOT / f"docs/notebooks/{args.script}.ipynb")
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, path)
    print(path)


if __name__ == "__main__":
    main()
