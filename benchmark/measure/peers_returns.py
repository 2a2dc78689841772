"""Stable-Baselines3's defaults in our scripts: do both sides return the same?

    python -m benchmark.measure.peers_returns                     all cases, seeds 1 to 5
    python -m benchmark.measure.peers_returns ppo_pendulum --seeds 1 2
    python -m benchmark.measure.peers_returns --none              the table, from the file

Ours are run with the flags, and where flags do not reach with the edit, that the page "The same
flag elsewhere" shows (like_sb3/*.diff). Their side is `PPO("MlpPolicy", env)` or `SAC(...)` with
nothing set but the seed. Each seed becomes a line of results/peers_returns.json; the table is
results/peers_returns.md.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmark import shared
from benchmark.shared import RESULTS, ROOT, commit, machine
from cleanrl_lite.tools import compare

FILE = RESULTS / "peers_returns.json"
EDITS = ROOT / "benchmark/measure/like_sb3"
PPO_FLAGS = "--num-envs 1 --num-steps 2048 --num-minibatches 32 --update-epochs 10"
PPO_FLAGS += " --learning-rate 3e-4 --no-anneal-lr --ent-coef 0 --vf-coef 1 --no-clip-vloss"
SAC_FLAGS = "--learning-starts 100 --q-lr 3e-4 --policy-frequency 1"
# name: (script, environment, steps, flags)
CASES = {
    "ppo_cartpole": ("ppo", "CartPole-v1", 30_000, PPO_FLAGS),
    "ppo_pendulum": ("ppo_continuous", "Pendulum-v1", 50_000, PPO_FLAGS),
    "sac_pendulum": ("sac", "Pendulum-v1", 5_000, SAC_FLAGS),
}


# === our side
def changed(text, diff):
    """A script's text after an edit, as the page shows it."""
    for hunk in re.split(r"^@@ .*\n", diff, flags=re.M)[1:]:
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        if text.count(old) != 1:
            raise SystemExit(f"error: the edit does not fit the script:\n{old}")
        text = text.replace(old, new)
    return text


def edited(script):
    """The script's text after the edit of its diff, if it has one."""
    text = (ROOT / f"cleanrl_lite/{script}.py").read_text()
    path = EDITS / f"{script}.diff"
    return changed(text, path.read_text()) if path.exists() else text


def train_ours(name, seed, folder):
    """The returns of all training episodes, and of 10 greedy ones."""
    script, env_id, steps, flags = CASES[name]
    copy = Path(folder) / f"{script}.py"
    copy.write_text(edited(script))
    command = [sys.executable, str(copy), "--env-id", env_id, "--seed", str(seed)]
    command += ["--total-timesteps", str(steps), "--runs-dir", folder, "--save-every", "0"]
    command += ["--no-cuda", *flags.split()]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    (run_dir,) = Path(folder).glob("*__*")
    points = shared.events(run_dir).Scalars("charts/episodic_return")
    evaluation = json.loads((run_dir / "eval.json").read_text())
    return [point.value for point in points], evaluation["returns"]


# === their side
def model_of(name, seed, **kwargs):
    import gymnasium
    import stable_baselines3
    from stable_baselines3.common.monitor import Monitor

    script, env_id, *_ = CASES[name]
    algorithm = getattr(stable_baselines3, script.partition("_")[0].upper())
    monitor = Monitor(gymnasium.make(env_id))
    return algorithm("MlpPolicy", monitor, seed=seed, device="cpu", **kwargs), monitor


def train_theirs(name, seed):
    import gymnasium
    import torch
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    _, env_id, steps, _ = CASES[name]
    model, monitor = model_of(name, seed)
    model.learn(steps)
    greedy = Monitor(gymnasium.make(env_id))
    greedy.reset(seed=seed + 10_000)
    evaluation, _ = evaluate_policy(model, greedy, 10, return_episode_rewards=True)
    return monitor.get_episode_rewards(), evaluation


# === the file and the table
def read():
    return json.loads(FILE.read_text()) if FILE.exists() else []


def write(entries):
    entries = {(line["case"], line["side"], line["seed"]): line for line in entries}
    lines = ",\n".join(json.dumps(entries[key]) for key in sorted(entries))
    FILE.write_text(f"[\n{lines}\n]\n")
    FILE.with_suffix(".md").write_text(table(read()))


def of(entries, name, side, measure):
    found = [line for line in entries if (line["case"], line["side"]) == (name, side)]
    return [line[measure] for line in found]


def table(entries):
    """Markdown: two rows for each case."""
    head = ["case", "measure", "seeds", "ours", "Stable-Baselines3", "p (Welch)", "verdict"]
    lines = [shared.row(head), "|---|---|---|---:|---:|---:|---|"]
    for name, (script, env_id, steps, _) in CASES.items():
        for measure, words in (("last_100", "last 100 episodes"), ("greedy", "greedy, 10")):
            ours = of(entries, name, "ours", measure)
            theirs = of(entries, name, "theirs", measure)
            if min(len(ours), len(theirs)) < 2:
                continue
            p = compare.chance(ours, theirs)
            cells = [f"{script}, {env_id}, {steps:,} steps", words, f"{len(ours)}"]
            cells += [f"{np.mean(side):.1f} ± {np.std(side):.1f}" for side in (ours, theirs)]
            cells += [f"{p:.2f}", compare.judge(p, np.mean(ours) - np.mean(theirs))]
            lines.append(shared.row(cells))
    made = shared.made_by(
        "python -m benchmark.measure.peers_returns",
        places=map(shared.made_on, entries),
        commits=[line["commit"] for line in entries],
    )
    return "\n".join([*lines, "", made]) + "\n"


def main():
    parser = shared.parser(__doc__)
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default: all")
    add("--seeds", nargs="*", type=int, default=[1, 2, 3, 4, 5])
    add("--none", action="store_true", help="train nothing")
    args = parser.parse_args()
    unknown = set(args.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    names = [] if args.none else args.cases or list(CASES)
    for name in names:
        for seed in args.seeds:
            for side in ("ours", "theirs"):
                began = time.time()
                with tempfile.TemporaryDirectory() as folder:
                    if side == "ours":
                        returns, greedy = train_ours(name, seed, folder)
                    else:
                        returns, greedy = train_theirs(name, seed)
                line = {
                    "case": name,
                    "side": side,
                    "seed": seed,
                    "last_100": round(float(np.mean(returns[-100:])), 2),
                    "greedy": round(float(np.mean(greedy)), 2),
                    "episodes": len(returns),
                    "seconds": round(time.time() - began, 1),
                    "commit": commit(),
                    **machine(),
                }
                print(f"{name}, {side}, seed {seed}: {line['last_100']}, greedy {line['greedy']}")
                write([*read(), line])
    write(read())
    print(table(read()))


if __name__ == "__main__":
    main()
