"""Run directories as the scripts write them, made up in milliseconds."""

import json

from torch.utils.tensorboard import SummaryWriter

TEXT = "# === arguments\nclass Args:\n    gamma: float = 0.99\n    learning_rate: float = 1e-3\n"


def write_events(folder, tag, values, every=100, start=1_000_000.0, seconds=1.0):
    """A value each `every` steps and `seconds`."""
    writer = SummaryWriter(folder)
    for n, value in enumerate(values, 1):
        writer.add_scalar(tag, value, n * every, walltime=start + n * seconds)
    writer.close()


def write_run(runs_dir, values, finished=True, text=TEXT, tag="charts/episodic_return", **args):
    """A run of the script `exp_name`; `values` are the returns of its episodes of 100 steps."""
    args = {
        "script": args.get("exp_name", "ppo"),
        "exp_name": "ppo",
        "env_id": "CartPole-v1",
        "seed": 1,
        "total_timesteps": 100 * len(values),
        "gamma": 0.99,
        "learning_rate": 1e-3,
        "compile": True,
        **args,
    }
    number = len(list(runs_dir.glob("*"))) if runs_dir.exists() else 0
    folder = runs_dir / f"{args['env_id'].replace(':', '-')}__{args['exp_name']}__{number}"
    write_events(folder, tag, values)
    # event files tell when a run began
    for path in folder.glob("events*"):
        path.rename(folder / f"events.out.tfevents.{1_000_000 + number}.host.1.0")
    (folder / "args.json").write_text(json.dumps(args))
    (folder / f"{args['script']}.py").write_text(text)
    (folder / "utils.py").write_text("")  # beside it since the fifth house
    if finished:
        record = {"global_step": args["total_timesteps"], "mean": 1.0}
        (folder / "eval.json").write_text(json.dumps(record))
    return folder
