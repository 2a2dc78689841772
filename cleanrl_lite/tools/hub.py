"""Exports a finished run as a folder to share, for example on the Hugging Face Hub.

    python -m cleanrl_lite.tools.hub export RUN_DIR FOLDER     networks, arguments, video, card ...
    python -m cleanrl_lite.ppo --evaluate FOLDER               plays it, from another folder
    python -m cleanrl_lite.tools.hub push FOLDER USER/NAME     needs a token (`hf auth login`)
    python -m cleanrl_lite.tools.hub pull USER/NAME FOLDER

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
tags: [{env_id}, {script}, reinforcement-learning, deep-reinforcement-learning]
model-index:
- name: {script}
  results:
  - task: {{type: reinforcement-learning, name: reinforcement-learning}}
    dataset: {{name: {env_id}, type: {env_id}}}
    metrics:
    - {{type: mean_reward, value: {mean:.2f} +/- {std:.2f}, name: mean_reward, verified: false}}
---

# {script} on {env_id}

An agent trained with `{script}.py` from cleanrl_lite, deep reinforcement learning in single files.

| | |
|---|---|
| evaluation, greedy policy, {episodes} episodes | {evaluation} |
| last 100 training episodes | {training} |
| environment steps | {steps:,} |
| seed | {seed} |
{made}
Trained with

```sh
python {path} --env-id {env_id} --seed {seed} --total-timesteps {total_timesteps}{flags}
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
    evaluated = (run_dir / "checkpoint.pt").is_file() and (run_dir / "eval.json").is_file()
    check(evaluated, f"{run_dir} is not a run directory with an evaluation")
    check(not folder.exists(), f"{folder} already exists")
    saved = load(run_dir)
    evaluation = read_json(run_dir / "eval.json")
    finished = evaluation["global_step"] >= saved["args"]["total_timesteps"]
    check(finished, f"{run_dir} is not finished. Finish it with --resume {run_dir}")
    videos = sorted(run_dir.glob("videos/*/*.mp4"), key=lambda video: video.stat().st_mtime)
    text = card(run_dir, saved, evaluation, bool(videos))
    folder.mkdir(parents=True)
    torch.save({name: saved[name] for name in KEPT}, folder / "checkpoint.pt")
    for name in ("args.json", "eval.json", f"{saved['script']}.py", "utils.py"):
        if (run_dir / name).is_file():
            shutil.copy(run_dir / name, folder)
    if videos:
        shutil.copy(videos[-1], folder / "replay.mp4")  # the Hub plays a file of this name
    (folder / "README.md").write_text(text)
    return folder


def card(run_dir, saved, evaluation, video):
    """The model card, README.md."""
    recorded = read_json(run_dir / "args.json")
    machine = read_json(run_dir / "machine.json")  # of the launcher
    args = saved["args"]
    script = saved["script"]
    flags = ""
    for name, value in tools.changed_flags(recorded, run_dir / f"{script}.py").items():
        flags += f" \\\n    {flag(name, value)}"
    film = "\n`replay.mp4` is the first episode of the last evaluation.\n"
    is_ours = (SCRIPTS / f"{script}.py").exists()
    made = ""
    if machine:
        installed = [f"{name} {version}" for name, version in machine["versions"].items()]
        made = f"| commit | {machine.get('commit') or 'unknown'} |\n"
        made += f"| trained on | {'; '.join([machine['hardware'], ', '.join(installed)])} |\n"
    curve = tools.read_curve(run_dir, [tools.RETURN])
    return CARD.format(
        script=script,
        path=f"cleanrl_lite/{script}.py" if is_ours else f"{script}.py",
        evaluate=f"-m cleanrl_lite.{script}" if is_ours else f"{script}.py",
        copying="" if is_ours else f" a copy of {script}.py",
        module=f" --env-id {args['env_id']}" if ":" in args["env_id"] else "",
        total_timesteps=args["total_timesteps"],
        env_id=args["env_id"],
        seed=args["seed"],
        steps=saved["global_step"],
        flags=flags,
        mean=evaluation["mean"],
        std=evaluation["std"],
        episodes=len(evaluation["returns"]),
        evaluation=format_number(evaluation["mean"], evaluation["std"]),
        training=format_number(curve[2][-100:].mean()) if curve else "none ended",
        made=made,
        video=film if video else "",
    )


def client():
    try:
        import huggingface_hub
    except ImportError:
        command = "pip install huggingface_hub"
        message = f"error: huggingface_hub is not installed. Run: {command}"
        raise SystemExit(message) from None
    return huggingface_hub


def push(folder, repository, private=False):
    """Uploads the folder; returns its address."""
    check((folder / "checkpoint.pt").is_file(), f"{folder} was not made by `export`")
    api = client().HfApi()
    address = api.create_repo(repository, private=private, exist_ok=True)
    api.upload_folder(
        repo_id=repository,
        folder_path=folder,
        commit_message="a run of cleanrl_lite",
    )
    return address


def pull(repository, folder):
    """Downloads a folder that `push` uploaded."""
    client().snapshot_download(repository, local_dir=folder)
    here = (folder / "checkpoint.pt").is_file()
    check(here, f"{repository} has no checkpoint.pt of this project")
    return folder


def main():
    parser = tools.parser(__doc__)
    add = parser.add_argument
    add("what", choices=["export", "push", "pull"])
    add("source", help="run directory, folder or USER/NAME")
    add("target", help="folder or USER/NAME")
    add("--private", action="store_true", help="create a repository that only you can see")
    args = parser.parse_args()
    if args.what == "export":
        print(export(Path(args.source), Path(args.target)))
    elif args.what == "push":
        print(push(Path(args.source), args.target, args.private))
    else:
        print(pull(args.source, Path(args.target)))


if __name__ == "__main__":
    main()
