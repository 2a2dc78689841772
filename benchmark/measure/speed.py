"""Speed of the scripts against Stable-Baselines3 on one CPU core.

    python -m benchmark.measure.speed                        the published figures, about an hour
    python -m benchmark.measure.speed --script dqn,c51 --pairs 3                  some of them
    python -m benchmark.measure.speed --script sac --env-id Ant-v4 --modes bf16   another one
    python -m benchmark.measure.speed --from-results         only the table, from the figures

Both sides use the script's hyperparameters, one torch thread and their TensorBoard logging. They
run in turns, each in a fresh process pinned to the same core; each of our modes is compared with
the Stable-Baselines3 run of its round. The speed of a run is the median over the second half of its
iterations, as many on both sides, timed from the end of one update to the end of the next: acting,
learning, logging and printing count, evaluations do not. An iteration of PPO is a rollout and its
update; an iteration of the other scripts is EVERY steps after learning has started. On both sides
learning starts after 1,000 steps, Atari has a small replay buffer, and epsilon falls over the short
run, so that its second half has as few random actions as the end of a long run.

Both sides do the same work, except for these points, which are left as Stable-Baselines3 has them:
- PPO: the same networks (two of two layers of 64 tanh units, or the Nature CNN) and Adam (eps
  1e-5). Its value loss lacks our factor 1/2, so it gets half of our vf_coef.
- C51: it has none. Its DQN stands in, which does less: one value per action where C51 has 51 or 101
  atoms.
- DQN: Huber loss and gradient clipping, which ours lacks. With them, our hyperparameters do not
  learn CartPole-v1: the Q-values grow far beyond 100, the highest discounted return. Its Atari
  replay buffer holds whole stacks of four frames, once each (optimize_memory_usage); ours holds
  single frames.
- SAC: one actor step per step, ours two at every second step; one learning rate for all networks,
  that of the actor.

Our updates are eager at first; in these short runs torch compiles the tenth. The first update's
seconds come from runs of their own, which start as every run does.

Peak memory is VmHWM of the process itself, without compilers, with a cold or a warm cache,
whichever is more. Our replay buffer takes its memory as it fills, like theirs; a short run fills
little of it. The machine should be idle. Raw figures go to benchmark/results/speed/*.json, and the
table of all of them to results/speed.md.
"""

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmark import shared
from benchmark.shared import (
    RESULTS,
    ROOT,
    commit,
    hardware,
    made_on,
    row,
    script_defaults,
    versions,
)
from cleanrl_lite import utils

# Iterations of a run, the same on both sides and in all modes: a longer run may be a faster one.
ITERATIONS = {
    "ppo": 400,
    "ppo_continuous": 24,
    "ppo_atari": 6,
    "dqn": 60,
    "c51": 60,
    "dqn_atari": 6,
    "c51_atari": 6,
    "ddpg": 8,  # of ddpg, td3 and sac as many steps, so that their episodes are as long
    "td3": 7,
    "sac": 6,
}
# Steps of an iteration without rollouts, multiples of the 100 steps between two logs. In CartPole
# there are enough of them for every iteration to have its share of ends of episodes and target
# updates.
EVERY = {
    "dqn": 1000,
    "c51": 1000,
    "ddpg": 100,
    "td3": 100,
    "sac": 100,
    "dqn_atari": 100,
    "c51_atari": 100,
}
MODES = {
    "compiled": [],
    "eager": ["--no-compile"],
    "bf16": ["--bf16"],
}
PUBLISHED = [
    ("ppo", "CartPole-v1", ["compiled", "eager"]),
    ("ppo_continuous", "Hopper-v4", ["compiled", "eager"]),
    ("ppo_atari", "BreakoutNoFrameskip-v4", ["compiled", "bf16", "eager"]),
    ("dqn", "CartPole-v1", ["compiled", "eager"]),
    ("c51", "CartPole-v1", ["compiled", "eager"]),
    ("dqn_atari", "BreakoutNoFrameskip-v4", ["compiled", "bf16"]),
    ("c51_atari", "BreakoutNoFrameskip-v4", ["compiled", "bf16"]),
    ("ddpg", "Hopper-v4", ["compiled", "bf16", "eager"]),
    ("td3", "Hopper-v4", ["compiled", "bf16", "eager"]),
    ("sac", "Hopper-v4", ["compiled", "bf16", "eager"]),
]


# === Stable-Baselines3's side
def make_envs(script, env_id, args, seed):
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

    if script.endswith("_atari"):
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        return VecFrameStack(make_atari_env(env_id, n_envs=args["num_envs"], seed=seed), 4)
    envs = make_vec_env(env_id, n_envs=args["num_envs"], seed=seed)
    return VecNormalize(envs, gamma=args["gamma"]) if script == "ppo_continuous" else envs


def ppo_kwargs(args):
    return {
        "learning_rate": lambda remaining: remaining * args["learning_rate"],
        "n_steps": args["num_steps"],
        "batch_size": args["num_envs"] * args["num_steps"] // args["num_minibatches"],
        "n_epochs": args["update_epochs"],
        "gae_lambda": args["gae_lambda"],
        "clip_range": args["clip_coef"],
        "clip_range_vf": args["clip_coef"] if args["clip_vloss"] else None,
        "normalize_advantage": args["norm_adv"],
        "ent_coef": args["ent_coef"],
        "vf_coef": args["vf_coef"] / 2,  # our value loss has a factor 1/2 that this one lacks
        "max_grad_norm": args["max_grad_norm"],
    }


def off_policy_kwargs(algorithm, atari, args, action_shape):
    kwargs = {
        "buffer_size": args["buffer_size"],
        "learning_starts": args["learning_starts"],
        "batch_size": args["batch_size"],
        "gradient_steps": args["gradient_steps"],
        "train_freq": args["train_frequency"] // args["num_envs"],
        "tau": args["tau"],
    }
    if algorithm == "DQN":
        return {**kwargs, **dqn_kwargs(atari, args)}
    kwargs["policy_kwargs"] = {"net_arch": [256, 256]}
    if algorithm == "SAC":
        kwargs["learning_rate"] = args["policy_lr"]
        kwargs["ent_coef"] = "auto" if args["autotune"] else args["alpha"]
        return kwargs  # targets move at every step by default
    from stable_baselines3.common.noise import NormalActionNoise

    std = np.full(action_shape, args["exploration_noise"])
    noise = NormalActionNoise(np.zeros(action_shape), std)
    kwargs["action_noise"] = noise
    kwargs["learning_rate"] = args["learning_rate"]
    if algorithm == "TD3":
        kwargs["target_policy_noise"] = args["policy_noise"]
        kwargs["target_noise_clip"] = args["noise_clip"]
    return kwargs


def dqn_kwargs(atari, args):
    kwargs = {
        "learning_rate": args["learning_rate"],
        "target_update_interval": args["target_network_frequency"],
        "exploration_initial_eps": args["start_e"],
        "exploration_final_eps": args["end_e"],
        "exploration_fraction": args["exploration_fraction"],
    }
    if atari:
        # Episodes cut off by a time limit cannot be told apart in the replay that stores each
        # observation once.
        kwargs["optimize_memory_usage"] = True
        kwargs["replay_buffer_kwargs"] = {"handle_timeout_termination": False}
    else:
        kwargs["policy_kwargs"] = {"net_arch": [120, 84]}
    return kwargs


def make_model(script, env_id, args, folder, seed=1):
    """Its algorithm with the hyperparameters of one of our scripts, on one thread of the CPU."""
    import stable_baselines3
    import torch

    torch.set_num_threads(1)
    atari = script.endswith("_atari")
    algorithm = script.split("_")[0].upper().replace("C51", "DQN")
    envs = make_envs(script, env_id, args, seed)
    if algorithm == "PPO":
        kwargs = ppo_kwargs(args)
    else:
        kwargs = off_policy_kwargs(algorithm, atari, args, envs.action_space.shape)
    model = getattr(stable_baselines3, algorithm)(
        "CnnPolicy" if atari else "MlpPolicy",
        envs,
        gamma=args["gamma"],
        tensorboard_log=folder,
        seed=seed,
        device="cpu",
        **kwargs,
    )
    if algorithm in ("DDPG", "TD3"):
        model.policy_delay = args["policy_frequency"]
    return model


def train_sb3(script, env_id, args, steps, every, folder):
    """Writes [step, time] of all multiples of `every` steps to FOLDER/times.json.

    A process of its own runs it. Updates are included: a rollout begins when the updates of the
    steps before it are done.
    """
    from stable_baselines3.common.callbacks import BaseCallback

    args = json.loads(args)
    learning_starts = args.get("learning_starts", 0)
    marks = []

    class Clock(BaseCallback):
        def _on_rollout_start(self):
            step = self.num_timesteps
            if step > learning_starts and step % int(every) == 0:
                marks.append((step, time.time()))

        def _on_step(self):
            return True

    model = make_model(script, env_id, args, folder)
    model.learn(int(steps), callback=Clock())
    marks.append((model.num_timesteps, time.time()))
    times = {"marks": marks, "policy_delay": getattr(model, "policy_delay", None)}
    Path(folder, "times.json").write_text(json.dumps(times))


# === runs
def run(command, folder, core, cache, enough=None):
    """Runs Python pinned to `core`; returns when it began and its peak resident memory in MB.

    `cache` is its folder of temporary files, where torch keeps what it has compiled. SIGKILL ends
    it as soon as enough() is true.
    """
    log = Path(folder, "log.txt")
    pin = ["taskset", "--cpu-list", str(core), sys.executable]
    Path(cache).mkdir(parents=True, exist_ok=True)
    # The trap: torch has its precompiled headers there even if TORCHINDUCTOR_CACHE_DIR is set.
    env = {**os.environ, "TMPDIR": str(cache)}
    env.pop("TORCHINDUCTOR_CACHE_DIR", None)
    began = time.time()
    with open(log, "w") as file:
        process = subprocess.Popen(
            [*pin, *command],
            cwd=ROOT,
            env=env,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    peak = 0
    stopped = False
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s*(\d+)", status)
        peak = max(peak, int(found[1]) if found else 0)
        if enough and not stopped and enough():
            process.kill()
            stopped = True
        time.sleep(0.05)
    good = process.returncode == 0 or (stopped and process.returncode == -signal.SIGKILL)
    if not good or "continuing in eager mode" in log.read_text():
        status = f"exit status {process.returncode}\n{log.read_text()[-2000:]}"
        raise SystemExit(f"error: {' '.join(command)}: {status}")
    return began, round(peak * 1024 / 1e6)


def shortened(script):
    """Settings of a short off-policy run that replace the script's defaults, on both sides."""
    if script not in EVERY:
        return {}
    changed = {"learning_starts": 1000}
    if "atari" in script:
        changed["buffer_size"] = 20_000
    return changed


def run_sb3(script, env_id, args, total, every, folder, core, cache):
    """When it began, its peak memory, [(step, time)] and its policy_delay."""
    command = ["-m", "benchmark.measure.speed", "sb3", script, env_id, json.dumps(args)]
    began, peak = run([*command, str(total), str(every), folder], folder, core, cache)
    times = json.loads(Path(folder, "times.json").read_text())
    return began, peak, times["marks"], {"policy_delay": times["policy_delay"]}


def run_ours(script, env_id, mode, total, learning_starts, folder, core, cache, eager_calls):
    """When it began, its peak memory, [(step, time)] and the median of charts/SPS."""
    command = shared.compiled_after(eager_calls, script)
    command += ["--env-id", env_id, "--total-timesteps", str(total), "--threads", "1", "--no-cuda"]
    command += ["--eval-episodes", "1", "--runs-dir", folder]
    for name, value in shortened(script).items():
        command.append(f"--{name.replace('_', '-')}={value}")

    def trained():
        """Is the last checkpoint there? The evaluation that follows may be a long game."""
        return "atari" in script and any(Path(folder).glob("*/checkpoint.pt"))

    began, peak = run([*command, *MODES[mode]], folder, core, cache, trained)
    (path,) = Path(folder).glob("*/args.json")
    events = shared.events(path.parent).Scalars("charts/SPS")
    events = [event for event in events if event.step > learning_starts]
    marks = [(event.step, event.wall_time) for event in events]
    charts_sps = median(event.value for event in events[len(events) // 2 :])
    return began, peak, marks, {"charts_sps": round(charts_sps, 1)}


def measure(side, script, env_id, args, iterations, core, cache):
    """One run of "sb3" or of one of our modes: speed, seconds to the first update, memory."""
    every = EVERY.get(script) or args["num_envs"] * args["num_steps"]
    learning_starts = args.get("learning_starts", 0)
    total = learning_starts + iterations * every
    with tempfile.TemporaryDirectory() as folder:
        if side == "sb3":
            log_every = 100 if script in EVERY else every
            found = run_sb3(script, env_id, args, total, log_every, folder, core, cache)
        else:
            calls = 10 if iterations > 1 else utils.EAGER_CALLS
            found = run_ours(
                script, env_id, side, total, learning_starts, folder, core, cache, calls
            )
    began, peak, marks, result = found
    ends = [when for step, when in marks if step % every == 0]
    sps = [round(every / (end - start), 1) for start, end in itertools.pairwise(ends)]
    result["first_update_s"] = round(marks[0][1] - began, 2)
    result["peak_mb"] = peak
    if sps:
        result["sps"] = round(median(sps[len(sps) // 2 :]), 1)
        result["iteration_sps"] = sps
    return result


def prepare(core):
    """Leaves the core to the runs, and warns if something else is running."""
    others = os.sched_getaffinity(0) - {core}
    os.sched_setaffinity(0, others or {core})
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: the machine is not idle (load {load:.1f})", file=sys.stderr)


# === comparisons
def compare(script, env_id, modes, pairs, core, iterations):
    """Alternates Stable-Baselines3 and all `modes`; writes one JSON file per mode."""
    load = os.getloadavg()[0]
    args = {**script_defaults(script), **shortened(script)}
    length = iterations or ITERATIONS[script]
    runs = {side: [] for side in ("sb3", *modes)}
    cold, warm = {}, {}
    with tempfile.TemporaryDirectory() as caches:
        for mode in modes:
            if "eager" not in mode:  # the first run has an empty cache
                for found in (cold, warm):
                    found[mode] = measure(mode, script, env_id, args, 1, core, f"{caches}/{mode}")
        for pair in range(pairs):
            for side in runs:
                cache = f"{caches}/{side}"
                result = measure(side, script, env_id, args, length, core, cache)
                runs[side].append(result)
                which = f"{script} {env_id}, pair {pair + 1} of {pairs}, {side}"
                print(f"{which}: {result['sps']:,.0f} steps/s", flush=True)
    for mode in modes:
        pairs_of_sps = zip(runs[mode], runs["sb3"], strict=True)
        ratios = [round(ours["sps"] / sb3["sps"], 3) for ours, sb3 in pairs_of_sps]
        record = {
            "script": script,
            "env_id": env_id,
            "mode": mode,
            "flags": MODES[mode],
            "commit": commit(),
            "versions": versions(),
            "hardware": hardware(),
            "core": core,
            "load_at_start": load,
            "date": time.strftime("%FT%T%z"),
            "command": shlex.join(["python", "-m", "benchmark.measure.speed", *sys.argv[1:]]),
            "args": args,
            "cold": cold.get(mode),
            "ratio": median(ratios),
            "ratios": ratios,
            "ours": medians(runs[mode]) | first_update(warm.get(mode)),
            "sb3": medians(runs["sb3"]),
            "ours_runs": runs[mode],
            "sb3_runs": runs["sb3"],
        }
        write(record)


def medians(results):
    names = ("sps", "first_update_s", "peak_mb")
    return {name: median(result[name] for result in results) for name in names}


def first_update(result):
    return {"first_update_s": result["first_update_s"]} if result else {}


def write(record):
    """To a file of its own, with a line for each field."""
    env_id = record["env_id"].replace("/", "-")
    path = RESULTS / "speed" / f"{record['script']}__{env_id}__{record['mode']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in record.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


# === the table
def speed_rows(records):
    yield "| script | environment | mode | steps/s | SB3's | ratio (min to max) |"
    yield "|---|---|---|---:|---:|---:|"
    for record in records:
        extent = f"{min(record['ratios']):.2f} to {max(record['ratios']):.2f}"
        cells = [
            record["script"],
            record["env_id"],
            record["mode"],
            f"{record['ours']['sps']:,.0f}",
            f"{record['sb3']['sps']:,.0f}",
            f"{record['ratio']:.2f} ({extent})",
        ]
        yield row(cells)


def start_rows(records):
    yield "| script | mode | first update, cold cache | warm | SB3's | peak memory | SB3's |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for record in records:
        ours = record["ours"]
        sb3 = record["sb3"]
        cold = record["cold"] or {"first_update_s": None, "peak_mb": 0}
        seconds = [side["first_update_s"] for side in (cold, ours, sb3)]
        memory = [max(ours["peak_mb"], cold["peak_mb"]), sb3["peak_mb"]]
        cells = [record["script"], record["mode"]]
        cells += [f"{second:.1f} s" if second else "" for second in seconds]
        cells += [f"{peak:.0f} MB" for peak in memory]
        yield row(cells)


def table(records):
    """Markdown: speed, start and memory, how they were measured; folded: machines and commits."""
    pairs = " or ".join(sorted({str(len(record["ratios"])) for record in records}))
    note = f"One core, one thread, medians of {pairs} pairs. Speed is that of a run's second half."
    if any(record["script"].startswith("c51") for record in records):
        note += " SB3 has no C51: those rows compare with its DQN, which does less."
    start = "The first update's seconds count from the process's start."
    if any(record["script"] in EVERY for record in records):
        start += " Off-policy scripts, both sides: learning starts after 1,000 steps, and its first"
        start += " 100 steps count as the first update; Atari has a replay buffer of 20,000; memory"
        start += " is that of a nearly empty replay buffer."
    measured_on = shared.made_by(
        "python -m benchmark.measure.speed",
        places=map(made_on, records),
        commits=[record["commit"] for record in records],
    )
    parts = [
        "\n".join(speed_rows(records)),
        note,
        "\n".join(start_rows(records)),
        start,
        measured_on,
    ]
    return "\n\n".join(parts) + "\n"


def write_table():
    paths = sorted((RESULTS / "speed").glob("*.json"))
    records = [json.loads(path.read_text()) for path in paths]
    (RESULTS / "speed.md").write_text(table(records))
    print(table(records))


# === the command line
def words(text):
    return text.split(",")


def parse():
    parser = shared.parser(__doc__)
    add = parser.add_argument
    several = {"type": words, "action": "extend"}
    add("--script", **several, help="one, or several separated by commas (default: all)")
    add("--env-id", help="environment (default: the published one)")
    add("--modes", **several, help=f"some of {', '.join(MODES)} (default: the published ones)")
    add("--pairs", type=int, default=5, help="pairs of runs")
    add("--core", type=int, default=0, help="core to pin all runs to")
    add("--iterations", type=int, help="iterations of a run, on both sides")
    add("--from-results", action="store_true", help="only make the table again")
    args = parser.parse_args()
    for name, known in {"script": ITERATIONS, "modes": MODES}.items():
        given = getattr(args, name) or []
        if not set(given) <= set(known):
            parser.error(f"--{name} takes some of {', '.join(known)}, got {','.join(given)}")
    return args


def main():
    if sys.argv[1:2] == ["sb3"]:  # the other side's process
        train_sb3(*sys.argv[2:])
        return
    args = parse()
    if args.from_results:
        write_table()
        return
    prepare(args.core)
    for script, env_id, published in PUBLISHED:
        if script in (args.script or ITERATIONS):
            modes = args.modes or published
            compare(script, args.env_id or env_id, modes, args.pairs, args.core, args.iterations)
    write_table()


if __name__ == "__main__":
    main()
