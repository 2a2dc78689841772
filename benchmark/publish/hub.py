"""Exports a finished run as a folder to share, for example on the Hugging Face Hub.

    python -m benchmark.publish.hub export RUN_DIR FOLDER     networks, arguments, evaluation, video, script, model card
    python cleanrl_lite/ppo.py --evaluate FOLDER      plays the agent; FOLDER also has a copy of the script
    python -m benchmark.publish.hub push FOLDER USER/NAME     needs huggingface_hub and a token (`hf auth login`)
    python -m benchmark.publish.hub pull USER/NAME FOLDER

The exported checkpoint holds networks and arguments only: no replay buffer, optimizer or anything else that resuming
needs. Like every checkpoint, it is loaded without executing code from it.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch

from benchmark.publish.collect import figure, flag, read_run
from benchmark.shared import ROOT, default_args
from cleanrl_lite.utils import check

KEPT = "script", "args", "global_step", "agent"  # the part of a checkpoint that --evaluate needs
CARD = """---
library_name: cleanrl_lite
tags: [{env_id}, {script}, reinforcement-learning, deep-reinforcement-learning]
model-index:
- name: {script}
  results:
  - task: {{type: reinforcement-learning, name: reinforcement-learning}}
    dataset: {{name: {env_id}, type: {env_id}}}
    metrics: [{{type: mean_reward, value: {mean:.2f} +/- {std:.2f}, name: mean_reward, verified: false}}]
---

# {script} on {env_id}

An agent trained with `{script}.py` from cleanrl_lite, deep reinforcement learning in single files.

| | |
|---|---|
| evaluation, greedy policy, {episodes} episodes | {evaluation} |
| last 100 training episodes | {training} |
| environment steps | {steps:,} |
| seed | {seed} |
| commit | {commit} |
| trained on | {hardware}; {versions} |

Trained with

```sh
python cleanrl_lite/{script}.py --env-id {env_id} --seed {seed} --total-timesteps {steps}{flags}
```

To evaluate it again, install cleanrl_lite and run in this folder

```sh
python -m cleanrl_lite.{script} --evaluate . --eval-episodes 100
```
{video}
`checkpoint.pt` holds the networks, `args.json` all arguments, `eval.json` the evaluation, and `{script}.py` is the
script as it was when the run started.
"""


def export(run_dir, folder):
    """Writes `folder` from a finished run."""
    path = run_dir / "checkpoint.pt"
    check(path.is_file() and (run_dir / "eval.json").is_file(), f"{run_dir} is not a run directory with an evaluation")
    check(not folder.exists(), f"{folder} already exists")
    state = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    evaluation, run = json.loads((run_dir / "eval.json").read_text()), read_run(run_dir)
    finished = evaluation["global_step"] >= state["args"]["total_timesteps"]
    check(finished and run, f"{run_dir} is not finished. Finish it with --resume {run_dir}")
    videos = sorted(run_dir.glob("videos/*/*.mp4"), key=lambda video: video.stat().st_mtime)
    text = card(state, evaluation, run[0], bool(videos))
    folder.mkdir(parents=True)
    torch.save({name: state[name] for name in KEPT}, folder / "checkpoint.pt")
    for name in ("args.json", "eval.json", f"{state['script']}.py"):
        if (run_dir / name).is_file():
            shutil.copy(run_dir / name, folder)
    if videos:
        shutil.copy(videos[-1], folder / "replay.mp4")  # the Hub plays a file of this name
    (folder / "README.md").write_text(text)
    return folder


def card(state, evaluation, run, video):
    """The model card, README.md."""
    args, defaults = state["args"], default_args((ROOT / f"cleanrl_lite/{state['script']}.py").read_text())
    skipped = {"env_id", "seed", "total_timesteps", "runs_dir", "resume", "evaluate", "track", "exp_name"}
    flags = [flag(*item) for item in args.items() if item[0] not in skipped and item[1] != defaults.get(item[0])]
    return CARD.format(
        script=state["script"],
        env_id=args["env_id"],
        seed=args["seed"],
        steps=state["global_step"],
        flags="".join(f" \\\n    {words}" for words in flags),
        mean=evaluation["mean"],
        std=evaluation["std"],
        episodes=evaluation["episodes"],
        evaluation=figure(evaluation["mean"], evaluation["std"]),
        training=figure(run["last_100_mean"]),
        commit=evaluation["commit"] or "unknown",
        hardware=run["hardware"],
        versions=", ".join(map(" ".join, run["versions"].items())),
        video="\n`replay.mp4` is the first episode of the last evaluation.\n" if video else "",
    )


def client():
    try:
        import huggingface_hub
    except ImportError:
        raise SystemExit(
            "error: huggingface_hub is not installed. Run: pip install -c constraints.txt -e '.[hub]'"
        ) from None
    return huggingface_hub


def push(folder, repository, private=False):
    """Uploads the folder; returns its address."""
    check((folder / "checkpoint.pt").is_file(), f"{folder} was not made by `export`")
    api = client().HfApi()
    address = api.create_repo(repository, private=private, exist_ok=True)
    api.upload_folder(repo_id=repository, folder_path=folder, commit_message="a run of cleanrl_lite")
    return address


def pull(repository, folder):
    """Downloads a folder that `push` uploaded."""
    client().snapshot_download(repository, local_dir=folder)
    check((folder / "checkpoint.pt").is_file(), f"{repository} has no checkpoint.pt of this project")
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["export", "push", "pull"])
    parser.add_argument("source", help="run directory, folder or USER/NAME")
    parser.add_argument("target", help="folder or USER/NAME")
    parser.add_argument("--private", action="store_true", help="create a repository that only you can see")
    args = parser.parse_args()
    if args.what == "export":
        done = export(Path(args.source), Path(args.target))
    elif args.what == "push":
        done = push(Path(args.source), args.target, args.private)
    else:
        done = pull(args.source, Path(args.target))
    print(done)


if __name__ == "__main__":
    main()
