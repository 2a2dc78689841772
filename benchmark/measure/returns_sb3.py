"""Stable-Baselines3's returns with the hyperparameters of one of our experiments, beside ours.

    python -m benchmark.measure.returns_sb3 SCRIPT ENV_ID EXPERIMENT SEED ...
    python -m benchmark.measure.returns_sb3 td3 LunarLanderContinuous-v3 td3_tuned 1 2
    python -m benchmark.measure.returns_sb3                        the table, from the file

A control for results below what others publish with other hyperparameters: is the script the cause,
or are the hyperparameters? Steps and flags of the experiment come from results/runs.json; each seed
becomes a line of results/returns_sb3.json, the table is results/returns_sb3.md, and the files in
runs/sb3/ show how far a run is. For ddpg, td3 and sac, with networks of 256-256. The same on both
sides: Adam, initialisation, bootstrapping from truncated episodes, how often the actor learns
(--policy-frequency), and noise. Different: the streams of random numbers, so a seed here and the
same seed there have nothing in common, and SAC's learning rate, which is our actor's for
everything.
"""

import json
import time

import numpy as np

from benchmark import shared
from benchmark.publish.collect import format_number, groups, steps
from benchmark.shared import RESULTS, ROOT, commit, machine, row, script_defaults

NAMES = "script", "env_id", "exp_name", "seed"
FILE = RESULTS / "returns_sb3.json"
HEAD = "| script | environment | steps | last 100 training episodes, ours by seed "
HEAD += "| Stable-Baselines3's | evaluation, ours | Stable-Baselines3's |"


def read():
    return json.loads(FILE.read_text()) if FILE.exists() else []


def experiment(script, env_id, exp_name):
    """The number of steps and all arguments of an experiment in runs.json."""
    found = groups(script).get((script, env_id, exp_name, True))
    if not found:
        what = f"no finished run {exp_name} of {script} in {env_id}"
        raise SystemExit(f"error: benchmark/results/runs.json has {what}")
    arguments = {**script_defaults(script), **found[0]["arguments"]}
    return found[0]["total_timesteps"], arguments


def train(script, env_id, args, total_timesteps, seed, episodes=10):
    """The returns of all training episodes and of `episodes` greedy ones at the end."""
    import gymnasium
    import stable_baselines3
    import torch
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from benchmark.measure.speed_sb3 import off_policy_kwargs

    torch.set_num_threads(1)
    folder = ROOT / "runs" / "sb3"
    folder.mkdir(parents=True, exist_ok=True)
    monitors = []
    for n in range(args["num_envs"]):
        name = f"{env_id}__{script}__{seed}__{int(time.time())}_{n}"
        monitors.append(Monitor(gymnasium.make(env_id), str(folder / name)))
    envs = DummyVecEnv([lambda monitor=monitor: monitor for monitor in monitors])
    algorithm = getattr(stable_baselines3, script.upper())
    model = algorithm(
        "MlpPolicy",
        envs,
        gamma=args["gamma"],
        seed=seed,
        device="cpu",
        **off_policy_kwargs(script.upper(), False, args, envs.action_space.shape),
    )
    if script != "sac":
        model.policy_delay = args["policy_frequency"]
    model.learn(total_timesteps)
    greedy = Monitor(gymnasium.make(env_id))
    greedy.reset(seed=seed + 10_000)
    evaluation, _ = evaluate_policy(model, greedy, episodes, return_episode_rewards=True)
    return in_order(monitors), evaluation


def in_order(monitors):
    """The returns of all environments' episodes, in the order in which they ended."""
    ended = []
    for n, monitor in enumerate(monitors):
        ends = np.cumsum(monitor.get_episode_lengths())
        ended += zip(ends, [n] * len(ends), monitor.get_episode_rewards(), strict=True)
    return [episodic_return for _, _, episodic_return in sorted(ended)]


def entry(names, seed, total_timesteps, returns, evaluation, seconds):
    """A line of the file."""
    return {
        **dict(zip(NAMES, (*names, seed), strict=True)),
        "total_timesteps": total_timesteps,
        "episodes": len(returns),
        "last_100_mean": round(float(np.mean(returns[-100:])), 2),
        "evaluation": [round(float(episode), 1) for episode in evaluation],
        "wall_seconds": round(seconds, 1),
        "commit": commit(),
        **machine(),
    }


def write(entries):
    entries = {tuple(map(line.get, NAMES)): line for line in entries}
    lines = ",\n".join(json.dumps(entries[name]) for name in sorted(entries))
    FILE.write_text(f"[\n{lines}\n]\n")
    FILE.with_suffix(".md").write_text(table(read()))


def table(entries):
    """Markdown: a row for each experiment, ours before theirs."""
    lines = [HEAD, "|---|---|---:|---|---|---|---|"]
    found = {}
    for line in entries:
        found.setdefault(tuple(map(line.get, NAMES[:3])), []).append(line)
    for names, theirs in sorted(found.items()):
        script, env_id, exp_name = names
        ours = groups(script)[(*names, True)]
        cells = [
            script,
            f"{env_id}, `{exp_name}`",
            steps(theirs[0]["total_timesteps"]),
            "; ".join(format_number(run["last_100_mean"]) for run in ours),
            "; ".join(format_number(run["last_100_mean"]) for run in theirs),
            "; ".join(format_number(run["eval_mean"]) for run in ours),
            "; ".join(format_number(np.mean(run["evaluation"])) for run in theirs),
        ]
        lines.append(row(cells))
    made = shared.made_by(
        "python -m benchmark.measure.returns_sb3",
        places=map(shared.made_on, entries),
        commits=[line["commit"] for line in entries],
    )
    return "\n".join([*lines, "", made]) + "\n"


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("script", nargs="?", choices=("ddpg", "td3", "sac"))
    parser.add_argument("env_id", nargs="?")
    parser.add_argument("exp_name", nargs="?")
    parser.add_argument("seeds", nargs="*", type=int)
    args = parser.parse_args()
    if args.script and not args.seeds:
        parser.error("a script goes with an environment, an experiment and seeds")
    names = args.script, args.env_id, args.exp_name
    for seed in args.seeds:
        began = time.time()
        total_timesteps, arguments = experiment(*names)
        returns, evaluation = train(args.script, args.env_id, arguments, total_timesteps, seed)
        line = entry(names, seed, total_timesteps, returns, evaluation, time.time() - began)
        found = f"{line['last_100_mean']}, greedy {np.mean(evaluation):.1f}"
        print(f"{args.script} in {args.env_id}, seed {seed}: {found}")
        write([*read(), line])
    write(read())
    print(table(read()))


if __name__ == "__main__":
    main()
