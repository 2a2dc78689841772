"""Do two checkouts train alike? Short seeded runs of every script in both, compared bit for bit.

    git worktree add /tmp/before f8b1baa
    python -m benchmark.measure.same_runs /tmp/before                        all scripts, eager
    python -m benchmark.measure.same_runs /tmp/before --compile ppo_continuous sac

It compares all scalars but the speed, the last checkpoint's networks, optimisers and replay buffer,
and the returns of the final evaluation. A change that moves nothing leaves the published results
standing. Of a checkout before the fifth house, such as 20c5207, the steps of episodes do not count:
there, those that ended together have one step; nor do tags that only one side logs for an episode.
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmark import shared
from benchmark.measure.torture import EPISODES, same
from benchmark.shared import ROOT

DQN = "--learning-starts 500 --buffer-size 2000 --total-timesteps 3000"
DDPG = "--env-id Hopper-v4 --learning-starts 500 --buffer-size 1000 --total-timesteps 1500"
ATARI = "--env-id BreakoutNoFrameskip-v4 --num-envs 2 --threads 1 --eval-episodes 1"
FRAMES = f"{ATARI} --learning-starts 100 --buffer-size 300 --batch-size 16 --total-timesteps 400"
RUNS = {
    "ppo": "--env-id CartPole-v1 --total-timesteps 5000 --eval-every 2000",
    "ppo_continuous": "--env-id Hopper-v4 --num-steps 512 --total-timesteps 5000",
    "vpg": "--env-id CartPole-v1 --total-timesteps 5000",
    "a2c": "--env-id CartPole-v1 --total-timesteps 5000",
    "ppo_simple": "--env-id CartPole-v1 --total-timesteps 5000",
    "a2c_continuous": "--env-id Hopper-v4 --total-timesteps 5000",
    "ppo_simple_continuous": "--env-id Hopper-v4 --num-steps 512 --total-timesteps 5000",
    "ppo_continuous_adaptive": "--env-id Hopper-v4 --num-steps 512 --total-timesteps 5000",
    "ppo_hybrid": "--env-id tests.probe_envs:ProbeMixed-v0 --total-timesteps 5000",
    "ppo_continuous_asymmetric": (
        "--env-id tests.probe_envs:ProbePrivileged-v0 --total-timesteps 5000"
    ),
    "ppo_masked": "--env-id Taxi-v4 --total-timesteps 5000",
    "ppo_multiagent": "--env-id tests.probe_envs:ProbeTeam-v0 --total-timesteps 5000",
    "ppo_envpool": "--env-id CartPole-v1 --total-timesteps 12800 --eval-every 8000",
    "ppo_continuous_envpool": "--env-id Hopper-v4 --num-steps 64 --total-timesteps 4096",
    "ppo_continuous_mjx": (
        "--env-id inverted_pendulum --num-envs 16 --num-steps 64 --total-timesteps 4096"
    ),
    "fast_td3_mjx": (
        "--env-id inverted_pendulum --num-envs 16 --train-frequency 16 --batch-size 64 "
        "--learning-starts 320 --buffer-size 10000 --total-timesteps 4096 --v-min 0 --v-max 100"
    ),
    "ppo_selfplay": "--env-id tests.probe_envs:ProbeNim-v0 --total-timesteps 8192",
    "ppo_godot": "--env-path tests/like_godot.x86_64 --total-timesteps 8192",
    "ppo_microrts": (
        "--opponents passiveAI --num-envs 2 --num-steps 32 --total-timesteps 512 --eval-episodes 1"
    ),
    "ppo_lstm": "--env-id CartPole-v1 --total-timesteps 5000 --seq-len 8",
    "ppo_continuous_lstm": "--env-id Hopper-v4 --num-steps 64 --total-timesteps 5000 --seq-len 8",
    "ppo_atari": f"{ATARI} --num-steps 32 --total-timesteps 320",
    "ppo_atari_multigpu": f"{ATARI} --num-steps 32 --total-timesteps 320",
    "ppo_atari_lstm": f"{ATARI} --num-steps 32 --seq-len 8 --total-timesteps 320",
    "ppo_image": (
        "--env-id tests.probe_envs:ProbeDrawn-v0 --image-size 36 --threads 1 --total-timesteps 3000"
    ),
    "pqn": "--env-id CartPole-v1 --total-timesteps 5000 --eval-every 2000",
    "pqn_atari": f"{ATARI} --num-steps 32 --total-timesteps 320",
    "dqn": f"--env-id CartPole-v1 {DQN}",
    "sac_discrete": f"--env-id CartPole-v1 {DQN}",
    "sac_atari": FRAMES,
    "c51": f"--env-id CartPole-v1 {DQN} --eval-every 1000",
    "ppo_atari_visual": f"{ATARI} --num-steps 32 --total-timesteps 320",
    "dqn_atari": FRAMES,
    "dqn_atari_visual": FRAMES,
    "c51_atari": FRAMES,
    "c51_atari_visual": FRAMES,
    "rainbow": f"--env-id CartPole-v1 {DQN} --eval-every 1000",
    "rainbow_atari": FRAMES,
    "ddpg": DDPG,
    "td3": DDPG,
    "fast_td3": DDPG,
    "sac": f"{DDPG} --num-envs 2",
    "tqc": DDPG,
    "crossq": DDPG,
    "sac_her": DDPG.replace("Hopper-v4", "tests.probe_envs:ProbeReach-v0"),
}


def train(checkout, script, compiled, folder):
    """Runs the script in `checkout`; returns what must not change, {name: number or tensor}."""
    flags = [*RUNS[script].split(), "--runs-dir", str(folder)]
    if "compile" in shared.default_args((checkout / f"cleanrl_lite/{script}.py").read_text()):
        flags.append("--compile" if compiled else "--no-compile")
    command = [sys.executable, *shared.compiled_after(0, script), *flags]
    environ = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {script} failed in {checkout}:\n{done.stderr[-3000:]}")
    (run_dir,) = [path.parent for path in Path(folder).glob("*/checkpoint.pt")]
    state = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    events = shared.events(run_dir)
    found = dict(leaves(state))
    for tag in events.Tags()["scalars"]:
        if tag != "charts/SPS":
            found[tag] = [(event.step, event.value) for event in events.Scalars(tag)]
    found["evaluation"] = json.loads((run_dir / "eval.json").read_text())["returns"]
    return found, "id" not in state


def without_steps(curves, others):
    """As in an old checkout: of episodes the values alone, of the tags that both sides have."""
    for tag in [tag for tag in curves if tag.startswith(EPISODES)]:
        curves[tag] = [value for _, value in curves[tag]]
        if tag not in others:
            del curves[tag]


def leaves(tree, name=""):
    """All tensors of nested dicts, with their names."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{name}{key}.")
        elif isinstance(value, torch.Tensor):
            yield f"{name}{key}", value


def compare(before, script, compiled):
    """Trains the script in both checkouts; whether anything differs."""
    with tempfile.TemporaryDirectory() as folder:
        a, is_old = train(before, script, compiled, f"{folder}/before")
        b, _ = train(ROOT, script, compiled, f"{folder}/here")
    if is_old:
        without_steps(a, b)
        without_steps(b, a)
    differing = sorted(a.keys() ^ b.keys())
    differing += sorted(name for name in a.keys() & b.keys() if not same(a[name], b[name]))
    points = sum(len(value) for value in a.values() if isinstance(value, list))
    what = f"DIFFER: {', '.join(differing)}" if differing else "equal"
    print(f"{script:15} {points:5} points, {len(a):3} curves and tensors: {what}", flush=True)
    return bool(differing)


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("scripts", nargs="*", default=list(RUNS))
    parser.add_argument("--compile", action="store_true", help="compare compiled runs, not eager")
    args = parser.parse_intermixed_args()
    unknown = set(args.scripts) - set(RUNS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}. Scripts: {', '.join(RUNS)}")
    before = args.before.resolve()
    with ThreadPoolExecutor(2) as pool:
        differ = pool.map(lambda script: compare(before, script, args.compile), args.scripts)
        raise SystemExit(any(list(differ)))


if __name__ == "__main__":
    main()
