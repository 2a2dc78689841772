"""What large observations and rewards do to learning, and what docs/guides/scaled.py does about it.

    python -m benchmark.measure.scaling        Pendulum-v1, 27 short runs; again continues

Large-v0 is Pendulum-v1 with observations and rewards multiplied by constants. Every run plays 10
greedy episodes at its end; their mean is divided by what the rewards were multiplied by, so that
all returns are Pendulum-v1's own. Writes benchmark/results/scaling.json and the table in
scaling.md.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

from benchmark import shared
from benchmark.shared import RESULTS, ROOT, commit, hardware, made_on, row, versions

PATH = RESULTS / "scaling.json"
SEEDS = (1, 2, 3)
PROBLEMS = {  # name: keyword arguments of Large-v0
    "Pendulum-v1": {},
    "observations × 1,000,000": {"observations": 1e6},
    "rewards × 1,000": {"rewards": 1e3},
}
COLUMNS = [("sac", False), ("sac", True), ("ppo_continuous", False)]  # script, scaled?
FLAGS = {
    "sac": (
        "--total-timesteps 5000 --learning-starts 500 --batch-size 64 --buffer-size 5000 "
        "--no-compile"
    ),
    "ppo_continuous": (
        "--total-timesteps 40960 --num-envs 4 --num-steps 512 --gamma 0.9 --learning-rate 1e-3 "
        "--no-compile"
    ),
}


def large(observations=1.0, rewards=1.0, render_mode=None):
    env = gym.make("Pendulum-v1", render_mode=render_mode)
    low = env.observation_space.low * observations
    high = env.observation_space.high * observations
    env = gym.wrappers.TransformObservation(
        env,
        lambda obs: (obs * observations).astype(np.float32),
        gym.spaces.Box(low, high),
    )
    return gym.wrappers.TransformReward(env, lambda reward: reward * rewards)


gym.register("Large-v0", large, max_episode_steps=200)


def planned():
    """(script, problem, scaled?, seed), the most telling first."""
    for script, scaled in COLUMNS:
        for seed in SEEDS:
            for problem in PROBLEMS:
                yield script, problem, scaled, seed


def train(script, problem, scaled, seed):
    """A row of the results."""
    env_id = "benchmark.measure.scaling:Large-v0"
    keywords = PROBLEMS[problem]
    if scaled:
        keywords = {"env_id": env_id, **keywords}
        env_id = "scaled:Scaled-v0"
    words = ["--env-id", env_id, "--env-kwargs", json.dumps(keywords), "--seed", str(seed)]
    words += shlex.split(FLAGS[script])
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, f"cleanrl_lite/{script}.py", *words]
        done = subprocess.run(
            [*command, "--runs-dir", folder],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'docs/guides'}"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"error: {shlex.join(command)}\n{done.stderr[-2000:]}")
        (path,) = Path(folder).glob("*/eval.json")
        evaluation = json.loads(path.read_text())
    divided = re.search(r"divided by (\S+)", done.stdout)  # what scaled.py prints
    unit = keywords.get("rewards", 1) / (float(divided[1]) if divided else 1)
    return {
        "script": script,
        "problem": problem,
        "scaled": scaled,
        "seed": seed,
        "mean": evaluation["mean"] / unit,
        "unit": unit,
        "command": f"python cleanrl_lite/{script}.py {shlex.join(words)}",
        "date": time.strftime("%F"),
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
    }


def at_random():
    """The mean return of 100 episodes of random actions."""
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("Pendulum-v1"))
    env.reset(seed=1)
    env.action_space.seed(1)
    returns = []
    while len(returns) < 100:
        *_, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            returns.append(float(info["episode"]["r"]))
            env.reset()
    return float(np.mean(returns))


def cell(rows, script, scaled, problem):
    wanted = script, scaled, problem
    found = [run for run in rows if (run["script"], run["scaled"], run["problem"]) == wanted]
    means = [run["mean"] for run in found]
    if not means:
        return "not run"
    return f"{np.mean(means):,.0f} ± {np.std(means):,.0f} ({len(means)})"


def table(rows):
    """Markdown."""
    lines = ["| environment | sac | sac in Scaled-v0 | ppo_continuous |", "|---|---:|---:|---:|"]
    for problem in PROBLEMS:
        lines.append(row([problem, *(cell(rows, *column, problem) for column in COLUMNS)]))
    note = "Mean ± standard deviation over seeds (their number) of the final evaluation, in "
    note += f"Pendulum-v1's own units; random actions: {at_random():,.0f}. Flags: "
    note += "; ".join(f"{script} `{flags}`" for script, flags in FLAGS.items()) + "."
    made = shared.made_by(
        "python -m benchmark.measure.scaling",
        places=[f"{made_on(run)}; {run['date']}" for run in rows],
        commits=[run["commit"] for run in rows],
    )
    return "\n".join([*lines, "", note, "", made]) + "\n"


def main():
    rows = json.loads(PATH.read_text()) if PATH.exists() else []
    done = {(run["script"], run["problem"], run["scaled"], run["seed"]) for run in rows}
    for key in planned():
        if key not in done:
            rows.append(train(*key))
            print(*key, round(rows[-1]["mean"], 1), flush=True)
            PATH.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    found = table(rows)
    (RESULTS / "scaling.md").write_text(found)
    print(found)


if __name__ == "__main__":
    main()
