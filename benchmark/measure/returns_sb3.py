"""Stable-Baselines3's returns with the hyperparameters of one of our experiments, beside ours.

    python -m benchmark.measure.returns_sb3 td3 LunarLanderContinuous-v3 td3_tuned 1 2    script, environment, experiment, seeds
    python -m benchmark.measure.returns_sb3                                               the table, from the file

A control for results below what others publish with other hyperparameters: is the script the cause, or are the
hyperparameters? Steps and flags of the experiment come from results/runs.json; each seed becomes a line of
results/returns_sb3.json, the table is results/returns_sb3.md, and the files in runs/sb3/ show how far a run is. For
ddpg, td3 and sac, with networks of 256-256. The same on both sides: Adam, initialisation, bootstrapping from truncated
episodes, how often the actor learns (--policy-frequency), and noise. Different: the streams of random numbers, so a
seed here and the same seed there have nothing in common, and SAC's learning rate, which is our actor's for everything.
"""

import argparse
import json
import time

import numpy as np

from benchmark.publish.collect import figure, groups, steps
from benchmark.shared import RESULTS, ROOT, commit, default_args, machine

NAMES = "script", "env_id", "exp_name", "seed"
FILE = RESULTS / "returns_sb3.json"


def read():
    return json.loads(FILE.read_text()) if FILE.exists() else []


def experiment(script, env_id, exp_name):
    """The number of steps and all arguments of an experiment in runs.json."""
    found = groups(script).get((script, env_id, exp_name, True))
    if not found:
        raise SystemExit(f"error: benchmark/results/runs.json has no finished run {exp_name} of {script} in {env_id}")
    defaults = default_args((ROOT / f"cleanrl_lite/{script}.py").read_text())
    return found[0]["total_timesteps"], defaults | found[0]["arguments"]


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
    (log := ROOT / "runs/sb3").mkdir(parents=True, exist_ok=True)
    names = [str(log / f"{env_id}__{script}__{seed}__{int(time.time())}_{n}") for n in range(args["num_envs"])]
    monitors = [Monitor(gymnasium.make(env_id), name) for name in names]
    envs = DummyVecEnv([lambda monitor=monitor: monitor for monitor in monitors])
    kwargs = off_policy_kwargs(script.upper(), False, args, envs.action_space.shape)
    algorithm = getattr(stable_baselines3, script.upper())
    model = algorithm("MlpPolicy", envs, gamma=args["gamma"], seed=seed, device="cpu", **kwargs)
    if script != "sac":
        model.policy_delay = args["policy_frequency"]
    model.learn(total_timesteps)
    ends = [np.cumsum(monitor.get_episode_lengths()) for monitor in monitors]
    ended = sorted((end, n, episode) for n in range(len(ends)) for episode, end in enumerate(ends[n]))
    returns = [monitors[n].get_episode_rewards()[episode] for _, n, episode in ended]
    greedy = Monitor(gymnasium.make(env_id))
    greedy.reset(seed=seed + 10_000)
    return returns, evaluate_policy(model, greedy, episodes, return_episode_rewards=True)[0]


def entry(script, env_id, exp_name, seed, total_timesteps, returns, evaluation, seconds):
    """A line of the file."""
    found = dict(script=script, env_id=env_id, exp_name=exp_name, seed=seed, total_timesteps=total_timesteps)
    found |= dict(episodes=len(returns), last_100_mean=round(float(np.mean(returns[-100:])), 2))
    found |= dict(evaluation=[round(float(n), 1) for n in evaluation], wall_seconds=round(seconds, 1))
    return found | dict(commit=commit(), **machine())


def write(entries):
    entries = {tuple(map(line.get, NAMES)): line for line in entries}
    lines = ",\n".join(json.dumps(entries[name]) for name in sorted(entries))
    FILE.write_text(f"[\n{lines}\n]\n")
    FILE.with_suffix(".md").write_text(table(read()))


def table(entries):
    """Markdown: a row for each experiment, ours before theirs."""
    lines = [
        "| script | environment | steps | last 100 training episodes, ours by seed | Stable-Baselines3's | "
        "evaluation, ours | Stable-Baselines3's |",
        "|---|---|---:|---|---|---|---|",
    ]
    for names in sorted({tuple(map(line.get, NAMES[:3])) for line in entries}):
        theirs = [line for line in entries if tuple(map(line.get, NAMES[:3])) == names]
        ours = groups(names[0])[(*names, True)]
        cells = [names[0], f"{names[1]}, `{names[2]}`", steps(theirs[0]["total_timesteps"])]
        cells += ["; ".join(figure(run["last_100_mean"]) for run in runs) for runs in (ours, theirs)]
        cells += ["; ".join(figure(run["eval_mean"]) for run in ours)]
        cells += ["; ".join(figure(np.mean(line["evaluation"])) for line in theirs)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", nargs="?", choices=("ddpg", "td3", "sac"))
    parser.add_argument("env_id", nargs="?")
    parser.add_argument("exp_name", nargs="?")
    parser.add_argument("seeds", nargs="*", type=int)
    args = parser.parse_args()
    if args.script and not args.seeds:
        parser.error("a script goes with an environment, an experiment and seeds")
    for seed in args.seeds:
        names, began = (args.script, args.env_id, args.exp_name), time.time()
        total_timesteps, arguments = experiment(*names)
        returns, evaluation = train(args.script, args.env_id, arguments, total_timesteps, seed)
        line = entry(*names, seed, total_timesteps, returns, evaluation, time.time() - began)
        print(f"{args.script} in {args.env_id}, seed {seed}: {line['last_100_mean']}, greedy {np.mean(evaluation):.1f}")
        write([*read(), line])
    write(read())
    print(table(read()))


if __name__ == "__main__":
    main()
