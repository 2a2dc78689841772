"""What every script shares and no algorithm needs to be understood: set-up, checkpoints, evaluation, console, speed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from ctypes.util import find_library
from functools import reduce
from pathlib import Path

if sys.platform == "linux" and not os.environ.get("DISPLAY"):  # render without a display; mujoco reads it at import
    os.environ.setdefault("MUJOCO_GL", "egl" if find_library("EGL") and find_library("GL") else "disabled")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import gymnasium as gym
import numpy as np
import torch
from torch import nn


def check(ok, message):
    """Bad input and bad luck: ends the program with one line and exit status 1 unless `ok`."""
    if not ok:
        raise SystemExit(f"error: {message}")


def make(env_id, render_mode=None, **kwargs):
    """gymnasium.make (ids of the form `module:Env-v0` too), with its errors as one line."""
    try:
        return gym.make(env_id, **kwargs, **(dict(render_mode=render_mode) if render_mode else {}))
    except (gym.error.Error, ImportError) as error:
        hint = " (Atari games have scripts named *_atari.py)" if "ALE" in env_id or "NoFrameskip" in env_id else ""
        check(False, f"--env-id {env_id}: {str(error).strip().splitlines()[0]}{hint}")


def setup_torch(args):
    """Seeds python, numpy and torch, sets the number of threads, and returns the device."""
    check(min(args.seed, args.threads) >= 0, "--seed and --threads must not be negative")
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    torch.set_num_threads(args.threads or torch.get_num_threads())
    return torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")


def make_run_dir(args, script):
    """Creates runs/{env_id}__{exp_name}__{seed}__{unix time}/ with the script's source and its arguments inside."""
    for now in range(int(time.time()), sys.maxsize):  # a second run started in this second gets the next one's name
        name = f"{args.env_id}__{args.exp_name}__{args.seed}__{now}".replace("/", "-").replace(":", "-")
        run_dir = Path(args.runs_dir) / name
        try:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            if run_dir.exists() or run_dir.mkdir():
                continue
        except OSError as error:
            check(False, f"cannot create the run directory {run_dir}: {error.strerror}")
        shutil.copy(script, run_dir)
        (run_dir / "args.json").write_text(json.dumps(vars(args), indent=2) + "\n")
        return run_dir


class VectorEnv(gym.vector.SyncVectorEnv):
    """gymnasium's SyncVectorEnv with SAME_STEP autoreset, without copies and the infos of ordinary steps: gathering
    those takes 18 us of a Hopper step's 131, and no script reads them. The next step overwrites what `step` returns."""

    def step(self, actions):
        infos = {}
        for i, (env, action) in enumerate(zip(self.envs, actions)):
            obs, self._rewards[i], terminated, truncated, info = env.step(action)
            if terminated or truncated:
                infos = self._add_info(infos, dict(final_obs=obs, final_info=info), i)
                obs, _ = env.reset()
            self._observations[i], self._terminations[i], self._truncations[i] = obs, terminated, truncated
        return self._observations, self._rewards, self._terminations, self._truncations, infos


def finished_episodes(infos):
    """(index, return, length) of every environment whose episode ended in this step (SAME_STEP autoreset)."""
    episode, ended = infos.get("final_info", {}).get("episode"), infos.get("_final_info", ())
    return [(i, float(episode["r"][i]), int(episode["l"][i])) for i, over in enumerate(ended) if over]


def rng_state():
    """The state of every global random generator, in types that torch.load(weights_only=True) accepts."""
    name, keys, *rest = np.random.get_state()
    generators = dict(torch=torch.get_rng_state(), cuda=torch.cuda.get_rng_state_all())
    return generators | dict(python=random.getstate(), numpy=(name, keys.tolist(), *rest))


def set_rng_state(state):
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


def save_checkpoint(path, state):
    """Atomic: whenever the process or the machine dies, `path` is a whole checkpoint, the old or the new one."""
    with open(f"{path}.tmp", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


def load_checkpoint(path, script, env_id=None, agent=None):
    """Loads a checkpoint, or the one in a run directory, onto the CPU, executing no code from it, and fills `agent`."""
    path = Path(path, "checkpoint.pt") if Path(path).is_dir() else Path(path)
    check(path.is_file(), f"there is no checkpoint at {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True) | dict(run_dir=path.resolve().parent)
        found, weights = (state["script"], state["args"]["env_id"]), state["agent"]
    except Exception as error:
        check(False, f"{path} is damaged or not a checkpoint of this project ({type(error).__name__})")
    wanted = (script, env_id or found[1])
    check(found == wanted, f"{path} is a checkpoint of {found[0]} on {found[1]}, not of {wanted[0]} on {wanted[1]}")
    try:
        return state if agent is None else agent.load_state_dict(weights) and state
    except RuntimeError as error:
        check(False, f"the network in {path} does not fit this one: {str(error).splitlines()[1].strip()}")


def saved_args(Args):
    """The defaults of the command line: with --resume or --evaluate those of the saved run, else those of the class."""
    words = [word for arg in sys.argv[1:] for word in arg.split("=", 1)]
    paths = [path for flag, path in zip(words, words[1:]) if flag in ("--resume", "--evaluate")]
    saved = load_checkpoint(paths[0], Path(sys.argv[0]).stem)["args"] if paths else {}
    saved |= dict(resume=None, evaluate=None)
    return Args(**{name: value for name, value in saved.items() if name in Args.__dataclass_fields__})


def stop_signals():
    """A list that gets the number of the first SIGTERM or SIGINT, for the loop to save and end; a second one kills."""
    received = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: (received.append(number), signal.signal(number, signal.SIG_DFL)))
    return received


def evaluate(act, make_env, args, device, global_step, path, video_dir=None):
    """Plays --eval-episodes episodes with the policy act(obs), films the first one if `video_dir` is given, prints the
    result and writes it to `path` (JSON). Puts training's random streams back: only the clock has moved on."""
    streams, returns, lengths = rng_state(), [], []
    env = make_env(args, "rgb_array" if video_dir else None)
    env = gym.wrappers.RecordVideo(env, video_dir / f"step-{global_step}", lambda n: n == 0) if video_dir else env
    obs, _ = env.reset(seed=args.seed + 10_000)
    while len(returns) < args.eval_episodes:
        with torch.no_grad():
            action = act(torch.as_tensor(np.asarray(obs)[None], device=device))[0].cpu().numpy()
        obs, _, terminated, truncated, info = env.step(action if action.shape else action.item())
        if terminated or truncated:
            returns.append(float(info["episode"]["r"]))
            lengths.append(int(info["episode"]["l"]))
            obs, _ = env.reset()
    env.close()
    set_rng_state(streams)
    mean, std = float(np.mean(returns)), float(np.std(returns))
    print(f"evaluation at step {global_step:,}: mean return {mean:.2f} +- {std:.2f} over {len(returns)} episodes")
    commit = subprocess.getoutput(f"git -C '{Path(__file__).parent}' describe --always --dirty --exclude='*' 2>&-")
    record = dict(env_id=args.env_id, global_step=global_step, mean=mean, std=std, episodes=len(returns))
    record |= dict(returns=returns, lengths=lengths, date=time.strftime("%FT%T%z"), commit=commit, args=vars(args))
    Path(path).write_text(json.dumps(record, indent=2) + "\n")
    return returns, lengths


def can_record(make_env, args):
    """Whether videos can be made here; if not, says which Debian packages are missing, and training goes on without."""
    try:
        env = make_env(args, "rgb_array")
        env.reset(), env.render()
        return env.close() is None
    except Exception as error:
        packages = (("EGL", "libegl1"), ("GL", "libgl1"), ("glib-2.0", "libglib2.0-0"))
        missing = " ".join(package for library, package in packages if not find_library(library))
        print("no video:", f"install the system packages {missing}" if missing else repr(error), file=sys.stderr)


class Progress:
    """One line: steps, speed, mean return of the last 20 episodes, time left; every 10 s where there is no terminal."""

    def __init__(self, total, start):
        self.returns, self.total, self.start = deque(maxlen=20), total, start
        self.began = self.printed = time.time()

    def update(self, step):
        live, now, done = sys.stdout.isatty(), time.time(), step >= self.total
        if done or now - self.printed >= (0.2 if live else 10):
            self.printed, sps = now, (step - self.start) / (now - self.began)
            mean = f"return {np.mean(self.returns):.1f}" if self.returns else "no episode has ended"
            line = f"step {step:,} of {self.total:,} | {sps:,.0f} SPS | {mean} | {(self.total - step) / sps:.0f} s left"
            print(f"\r{line}\033[K" if live else line, end="" if live and not done else "\n", flush=True)


def numpy_forward(module, device, live=False):
    """`module` as a function from numpy to numpy. For a few rows of a small MLP numpy takes 7 us, torch 25, a GPU more:
    an MLP acts in numpy, with a GPU's weights of this moment; where it has to follow them (`live`), on the GPU."""
    functions = {nn.Linear: lambda x, w, b=0.0: np.dot(x, w) + b, nn.Tanh: np.tanh, nn.ReLU: lambda x: np.maximum(x, 0)}
    layers = [*module] if isinstance(module, nn.Sequential) else [module]
    if any(type(layer) not in functions for layer in layers) or (live and device.type != "cpu"):
        forward = torch.no_grad()(module)
        return lambda x: forward(torch.as_tensor(x, device=device)).cpu().numpy()
    steps = [(functions[type(m)], *(p.detach().cpu().numpy().T for p in m.parameters())) for m in layers]  # no copies
    return lambda x: reduce(lambda y, step: step[0](y, *step[1:]), steps, x)


def compile_update(update, compile, cuda_graph):
    """`update(*tensors) -> dict of tensors` as a compiled graph or a CUDA graph or both; eager if that fails."""
    if compile and hasattr(torch._dynamo.config, "trace_autograd_ops"):  # right with fullgraph=True only
        torch._dynamo.config.trace_autograd_ops = True
    chosen = [torch.compile(update, fullgraph=True, dynamic=False) if compile else update]

    def call(*tensors):
        try:
            return chosen[0](*tensors)
        except torch._dynamo.exc.TorchDynamoException as error:  # raised before anything ran
            print(f"not compiled, goes on in eager mode: {str(error).strip().splitlines()[0]}", file=sys.stderr)
            chosen[0] = update
            return update(*tensors)

    return CudaGraph(call) if cuda_graph else call


class CudaGraph:
    """Calls fn three times to warm up, then captures it as a CUDA graph and replays that: one launch, not hundreds."""

    def __init__(self, fn):
        self.fn, self.calls, self.stream = fn, 0, torch.cuda.Stream()

    def __call__(self, *tensors):
        self.calls += 1
        if self.calls <= 3:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                outputs = self.fn(*tensors)
            torch.cuda.current_stream().wait_stream(self.stream)
            return outputs
        if self.calls == 4:
            self.inputs, self.graph = [x.clone() for x in tensors], torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                outputs = self.fn(*self.inputs)
                self.names, self.outputs = [*outputs], torch.stack([*outputs.values()])
        for mine, given in zip(self.inputs, tensors):
            mine.copy_(given)
        self.graph.replay()
        return dict(zip(self.names, self.outputs.clone()))  # the next replay overwrites them
