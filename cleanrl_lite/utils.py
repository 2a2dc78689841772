"""What every script shares and no algorithm needs to be understood: set-up, checkpoints, evaluation, progress, speed."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from ctypes.util import find_library
from pathlib import Path

# Rendering works without a display if this is said before mujoco and pygame are imported.
if sys.platform == "linux" and not os.environ.get("DISPLAY"):
    os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from tqdm import tqdm


def check(ok, message):
    """Bad input: ends the program with one line and exit status 1 unless `ok`."""
    if not ok:
        raise SystemExit(f"error: {message}")


def check_positive(args, *names):
    for name in names:
        check(getattr(args, name) > 0, f"--{name.replace('_', '-')} must be positive, not {getattr(args, name)}")


def make(env_id, **kwargs):
    """gymnasium.make (ids of the form `module:Env-v0` too), with its errors as one line."""
    try:
        return gym.make(env_id, **kwargs)
    except (gym.error.Error, ImportError) as error:
        check(False, f"--env-id {env_id}: {str(error).strip().splitlines()[0]}")


def setup_torch(args):
    """Seeds python, numpy and torch, sets the number of threads, and returns the device."""
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    return torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")


def make_run_dir(args, script):
    """Creates runs/{env_id}__{exp_name}__{seed}__{unix time}/ with the script's source and its arguments inside."""
    for now in range(int(time.time()), sys.maxsize):  # a second run started in this second gets the next one's name
        run_dir = Path(args.runs_dir) / re.sub(r"[^\w.-]+", "-", f"{args.env_id}__{args.exp_name}__{args.seed}__{now}")
        try:
            run_dir.mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            check(False, f"cannot create the run directory {run_dir}: {error.strerror}")
    shutil.copy(script, run_dir)
    (run_dir / "args.json").write_text(json.dumps(vars(args), indent=2) + "\n")
    return run_dir


def rng_state():
    """The state of every global random generator, in types that torch.load(weights_only=True) accepts."""
    name, keys, *rest = np.random.get_state()
    numpy_state = (name, torch.from_numpy(keys.astype(np.int64)), *rest)
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return dict(python=random.getstate(), numpy=numpy_state, torch=torch.get_rng_state(), cuda=cuda)


def set_rng_state(state):
    name, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def save_checkpoint(path, state):
    """Atomic: whenever the process or the machine dies, `path` is a whole checkpoint, the old or the new one."""
    temporary = Path(f"{path}.tmp")
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load_checkpoint(path, script=None, env_id=None):
    """Loads a checkpoint, or the one in a run directory, onto the CPU, and executes no code from it."""
    path = Path(path) / "checkpoint.pt" if Path(path).is_dir() else Path(path)
    check(path.is_file(), f"there is no checkpoint at {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        found = (state["script"], state["args"]["env_id"])
    except Exception as error:
        check(False, f"{path} is damaged or not a checkpoint of this project ({type(error).__name__})")
    wanted = (script or found[0], env_id or found[1])
    check(found == wanted, f"{path} is a checkpoint of {found[0]} on {found[1]}, not of {wanted[0]} on {wanted[1]}")
    return state | dict(run_dir=path.resolve().parent)


def load_weights(agent, weights):
    """agent.load_state_dict, with one line for a network of other sizes."""
    try:
        agent.load_state_dict(weights)
    except RuntimeError as error:
        check(False, f"the checkpoint's network does not fit: {str(error).splitlines()[1].strip()}")


def saved_args(Args):
    """The defaults of the command line: with --resume or --evaluate those of the saved run, else those of the class."""
    words = [word for arg in sys.argv[1:] for word in arg.split("=", 1)]
    for flag in ("--resume", "--evaluate"):
        if flag in words[:-1]:
            saved = load_checkpoint(words[words.index(flag) + 1])["args"]
            return Args(**{k: v for k, v in saved.items() if k in Args.__dataclass_fields__})
    return Args()


class StopSignal:
    """Becomes true on the first SIGTERM or SIGINT, so that the loop can save and end; a second SIGINT stops at once."""

    number = 0

    def __init__(self):
        def handler(number, _):
            self.number = number
            signal.signal(signal.SIGINT, signal.default_int_handler)

        self.previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}

    def __bool__(self):
        return self.number != 0

    def restore(self):
        for number, previous in self.previous.items():
            signal.signal(number, previous)


def finished_episodes(infos):
    """(index, return, length) of every environment whose episode ended in this step (SAME_STEP autoreset)."""
    if "final_info" not in infos:
        return []
    episode = infos["final_info"]["episode"]
    return [(i, float(episode["r"][i]), int(episode["l"][i])) for i in np.flatnonzero(infos["_final_info"])]


def due(every, before, now):
    """Whether the count passed a multiple of `every` on its way from `before` to `now`, however long the step."""
    return every > 0 and now // every > before // every


def check_finite(losses, global_step):
    """Stops the run at the first loss that is not a number; the last checkpoint stays as it is."""
    for name, value in losses.items():
        check(np.isfinite(value), f"{name} is {value} at step {global_step}; the last checkpoint is from before that")


def evaluate(act, make_env, args, device, video_dir, global_step):
    """Plays --eval-episodes episodes with the policy act(obs), the first one on film if `video_dir` is given.

    Returns the episodes' returns and lengths. Training's random streams are put back: only the clock has moved on.
    """
    streams, returns, lengths = rng_state(), [], []
    env = make_env(args, "rgb_array" if video_dir else None)
    if video_dir:
        first = dict(episode_trigger=lambda episode: episode == 0, name_prefix=f"step-{global_step}")
        env = gym.wrappers.RecordVideo(env, str(video_dir), disable_logger=True, **first)
    obs, _ = env.reset(seed=args.seed + 10_000)
    while len(returns) < args.eval_episodes:
        obs = np.asarray(obs)[None]
        obs = torch.as_tensor(obs if obs.dtype == np.uint8 else obs.astype(np.float32), device=device)
        with torch.no_grad():
            action = act(obs)[0].cpu().numpy()
        obs, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            returns.append(float(info["episode"]["r"]))
            lengths.append(int(info["episode"]["l"]))
            obs, _ = env.reset()
    env.close()
    set_rng_state(streams)
    return returns, lengths


def write_evaluation(path, args, global_step, returns, lengths):
    """Prints an evaluation and writes it to `path` (JSON) with what is needed to repeat it."""
    mean, std = float(np.mean(returns)), float(np.std(returns))
    print(f"evaluation at step {global_step:,}: mean return {mean:.2f} +- {std:.2f} over {len(returns)} episodes")
    git = f"git -C {Path(__file__).parent} describe --always --dirty --abbrev=12 --exclude=*".split()
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    record = dict(env_id=args.env_id, mean=mean, std=std, episodes=len(returns), returns=returns, lengths=lengths)
    record |= dict(global_step=global_step, date=time.strftime("%FT%T%z"), commit=commit or None, args=vars(args))
    Path(path).write_text(json.dumps(record, indent=2) + "\n")


def can_record(make_env, args):
    """Whether videos can be made here; if not, says which Debian packages are missing, and training goes on without."""
    try:
        env = make_env(args, "rgb_array")
        env.reset()
        frame = env.render()
        env.close()
        return frame is not None
    except Exception as error:
        packages = {"EGL": "libegl1", "GL": "libgl1", "glib-2.0": "libglib2.0-0"}
        missing = " ".join(package for library, package in packages.items() if not find_library(library))
        reason = f"install the system packages {missing}" if missing else f"rendering fails with {error!r}"
        print(f"no video will be recorded: {reason}", file=sys.stderr)
        return False


class Progress:
    """One line: steps, speed, mean return of the last 20 episodes, time left. Not on a terminal: a line every 10 s."""

    def __init__(self, total, start):
        self.bar = tqdm(total=total, initial=start, unit=" steps", unit_scale=True, disable=None, dynamic_ncols=True)
        self.returns, self.total, self.start, self.began = deque(maxlen=20), total, start, time.time()
        self.printed = self.began

    def update(self, step):
        mean = f"return {np.mean(self.returns):.1f}" if self.returns else "no episode has ended"
        self.bar.set_postfix_str(mean, refresh=False)
        self.bar.update(step - self.bar.n)
        if self.bar.disable and (time.time() - self.printed >= 10 or step == self.total):
            self.printed = time.time()
            sps = (step - self.start) / (self.printed - self.began)
            left = (self.total - step) / sps
            print(f"step {step:,} of {self.total:,} | {sps:,.0f} SPS | {mean} | {left:.0f} s left", flush=True)


def numpy_forward(module, device):
    """`module` as a function from numpy to numpy, with the weights of this moment: the policy of one rollout.

    For a few rows of a small MLP numpy takes 5 us and torch 25, on a GPU more: an MLP acts on the CPU, in numpy.
    """
    layers = list(module) if isinstance(module, nn.Sequential) else [module]
    if any(type(layer) not in (nn.Linear, nn.Tanh, nn.ReLU) for layer in layers):
        forward = torch.no_grad()(module)
        return lambda obs: forward(torch.as_tensor(obs, device=device)).cpu().numpy()
    functions = {nn.Tanh: np.tanh, nn.ReLU: lambda x: np.maximum(x, 0)}
    weights = [[p.detach().cpu().numpy().T for p in layer.parameters()] for layer in layers]
    steps = [pair or functions[type(layer)] for pair, layer in zip(weights, layers)]

    def forward(x):
        for step in steps:
            x = x @ step[0] + step[1] if isinstance(step, list) else step(x)
        return x

    return forward


def compile_update(update, compile, cuda_graph):
    """`update(*tensors) -> dict of tensors`, compiled into one graph and replayed as one CUDA graph where asked for.

    Where it cannot be compiled (no C++ compiler, an old torch, an operation without a graph), it runs eagerly.
    """
    if compile:
        torch._dynamo.config.trace_autograd_ops = True  # traces torch.autograd.grad; right with fullgraph=True only
        chosen = [torch.compile(update, fullgraph=True, dynamic=False)]

        def compiled(*tensors):
            try:
                return chosen[0](*tensors)
            except torch._dynamo.exc.TorchDynamoException as error:  # raised before anything ran
                reason = str(error).strip().splitlines()[0]
                print(f"not compiled, training goes on in eager mode: {reason}", file=sys.stderr, flush=True)
                chosen[0] = update
                return update(*tensors)

    return CudaGraph(compiled if compile else update) if cuda_graph else compiled if compile else update


class CudaGraph:
    """Calls fn three times to warm up, then captures it as a CUDA graph and replays that: one launch for all kernels."""

    def __init__(self, fn):
        self.fn, self.calls, self.graph, self.stream = fn, 0, None, torch.cuda.Stream()

    def __call__(self, *tensors):
        if self.calls < 3:
            self.calls += 1
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                outputs = self.fn(*tensors)
            torch.cuda.current_stream().wait_stream(self.stream)
            return outputs
        if self.graph is None:
            self.inputs, self.graph = [x.clone() for x in tensors], torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.outputs = self.fn(*self.inputs)
        for static, x in zip(self.inputs, tensors):
            static.copy_(x)
        self.graph.replay()
        return {name: x.clone() for name, x in self.outputs.items()}  # the next replay overwrites them
