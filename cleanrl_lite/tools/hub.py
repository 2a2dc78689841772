"""Exports a finished run as a folder to share, for example on the Hugging Face Hub.

    python -m cleanrl_lite.tools.hub export RUN_DIR FOLDER     networks, arguments, video, card ...
    python -m cleanrl_lite.ppo --evaluate FOLDER               plays it, from another folder
    hf upload USER/NAME FOLDER .                               the Hub's own command

The exported checkpoint holds networks and arguments only: no replay buffer, optimizer or anything
else that resuming needs. Like every checkpoint, it is loaded without executing code from it. FOLDER
also has copies of the script and of utils.py. Do not run commands in a FOLDER of others: Python
imports what lies there.
"""

import shutil
from pathlib import Path

import torch

from cleanrl_lite.tools import runs as tools
from cleanrl_lite.tools.runs import SCRIPTS, flag, format_number, read_json
from cleanrl_lite.utils import check, load

# The part of a checkpoint that --evaluate needs
KEPT = "script", "args", "global_step", "agent"
CARD = """---
library_name: cleanrl_lite
tags: [{args[env_id]}, {script}, reinforcement-learning, deep-reinforcement-learning]
model-index:
- name: {script}
  results:
  - task: {{type: reinforcement-learning, name: reinforcement-learning}}
    dataset: {{name: {args[env_id]}, type: {args[env_id]}}}
    metrics:
    - {{type: mean_reward, value: {score}, name: mean_reward, verified: false}}
---

# {script} on {args[env_id]}

An agent trained with `{script}.py` from cleanrl_lite, deep reinforcement learning in single files.

| | |
|---|---|
| evaluation, greedy policy, {episodes} episodes | {returns} |
| last 100 training episodes | {training} |
| environment steps | {steps:,} |
| seed | {args[seed]} |

Trained with

```sh
python {path} --env-id {args[env_id]} --seed {args[seed]} --total-timesteps {total}{flags}
```

To evaluate it again, install cleanrl_lite and run{copying} in another folder than this one, since
Python imports what lies in the current folder:

```sh
python {evaluate} --evaluate FOLDER --eval-episodes 100{module}
```
{video}
`checkpoint.pt` holds the networks, `args.json` all arguments, `eval.json` the evaluation, and
`{script}.py` is the script as it was when the run started, `utils.py` what it imports.
"""


def export(run_dir, folder):
    """Writes `folder` from a finished run."""
    check(not folder.exists(), f"{folder} already exists")
    saved = load(run_dir)
    evaluation = read_json(run_dir / "eval.json")
    finished = evaluation.get("global_step", -1) >= saved["args"]["total_timesteps"]
    check(finished, f"{run_dir} is not finished. Finish it with --resume {run_dir}")
    videos = sorted(run_dir.glob("videos/*/*.mp4"), key=lambda video: video.stat().st_mtime)
    text = card(run_dir, saved, evaluation, videos)
    folder.mkdir(parents=True)
    torch.save({name: saved[name] for name in KEPT}, folder / "checkpoint.pt")
    # machine.json: of runs that the launcher started
    for name in ("args.json", "eval.json", "machine.json", f"{saved['script']}.py", "utils.py"):
        if (run_dir / name).is_file():
            shutil.copy(run_dir / name, folder)
    if videos:
        shutil.copy(videos[-1], folder / "replay.mp4")  # the Hub plays a file of this name
    (folder / "README.md").write_text(text)
    return folder


def card(run_dir, saved, evaluation, videos):
    """The model card, README.md."""
    args, script = saved["args"], saved["script"]
    flags = tools.changed_flags(read_json(run_dir / "args.json"), run_dir / f"{script}.py")
    film = "\n`replay.mp4` is the first episode of the last evaluation.\n"
    is_ours = (SCRIPTS / f"{script}.py").exists()
    curve = tools.read_curve(run_dir, [tools.RETURN])
    return CARD.format(
        script=script,
        args=args,
        total=args["total_timesteps"],
        score=f"{evaluation['mean']:.2f} +/- {evaluation['std']:.2f}",
        steps=saved["global_step"],
        path=f"cleanrl_lite/{script}.py" if is_ours else f"{script}.py",
        evaluate=f"-m cleanrl_lite.{script}" if is_ours else f"{script}.py",
        copying="" if is_ours else f" a copy of {script}.py",
        module=f" --env-id {args['env_id']}" if ":" in args["env_id"] else "",
        flags="".join(f" \\\n    {flag(*item)}" for item in flags.items()),
        episodes=len(evaluation["returns"]),
        returns=format_number(evaluation["mean"], evaluation["std"]),
        training=format_number(curve[2][-100:].mean()) if curve else "none ended",
        video=film if videos else "",
    )


def main():
    parser = tools.parser(__doc__)
    parser.add_argument("what", choices=["export"])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    print(export(args.run_dir, args.folder))


if __name__ == "__main__":
    main()
