"""What every script shares and no algorithm needs to be understood: set-up, signals, evaluation, console, speed."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import contextmanager, suppress
from ctypes.util import find_library
from functools import reduce
from importlib.util import find_spec
from pathlib import Path

if sys.platform == "linux" and not os.environ.get("DISPLAY"):  # render without a display; mujoco reads it at import
    os.environ.setdefault("MUJOCO_GL", "egl" if find_library("EGL") and find_library("GL") else "disabled")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from cleanrl_lite import tracking


def check(ok, message):
    """Bad input and bad luck: ends the program with one line and exit status 1 unless `ok`."""
    if not ok:
        raise SystemExit(f"error: {message}")


def stop_run(message, run_dir):
    """Ends a run that cannot go on with one line, which says from where it can be resumed."""
    if run_dir and Path(run_dir, "checkpoint.pt").is_file():
        step = torch.load(Path(run_dir, "checkpoint.pt"), weights_only=True, mmap=True)["global_step"]
        message += f"; the last good checkpoint is of step {step:,}, to go on with --resume {run_dir}"
    check(False, message)


def check_ranges(args, positive, unit, not_negative=""):
    """Refuses numbers that no run can work with; each of the three lists names of flags."""
    numbers = {name: value for name, value in vars(args).items() if isinstance(value, int | float)}
    wrong = [name for name, value in numbers.items() if not abs(value) < 2**53]  # NaN too
    check(not wrong, f"these are no numbers to work with: {', '.join(wrong)}")
    not_negative = f"save_every eval_every {not_negative}"
    for names, ok, what in (
        (positive, lambda x: x > 0, "positive"),
        (unit, lambda x: 0 <= x <= 1, "between 0 and 1"),
        (not_negative, lambda x: x >= 0, "not negative"),
    ):
        wrong = [name for name in names.split() if not ok(numbers.get(name, 1))]
        check(not wrong, f"these must be {what}: {', '.join(wrong)}")


def setup_torch(args):
    """Seeds python, numpy and torch, sets the number of threads, and returns the device."""
    check(0 <= args.seed < 2**31 and 0 <= args.threads <= 1024, "0 <= --seed < 2**31, 0 <= --threads <= 1024")
    check(not args.track or find_spec("wandb"), "--track needs wandb: pip install wandb")
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    torch.set_num_threads(args.threads or torch.get_num_threads())
    return torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")


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


def stop_signals():
    """A list that gets the number of the first SIGTERM or SIGINT, for the loop to save and end. Ctrl-C kills then."""
    received = []

    def note(number, _):
        received.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if tracking.BUSY:
            tracking.end_now(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return received


def quietly(function):
    with suppress(OSError):  # of a full disk, which has been told before
        function()


@contextmanager
def short_errors():
    """For the command line: when the machine runs out of something, one line says so, and not a traceback."""
    # TensorBoard's thread tells the main one, too.
    threading.excepthook = lambda thread: issubclass(thread.exc_type, OSError) or threading.__excepthook__(thread)
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        texts = "No space left|quota exceeded|Read-only file system|out of memory|allocate memory|MemoryError"
        if not re.search(texts, f"{error!r}"):
            raise
        check(False, f"{type(error).__name__}: {error}".splitlines()[0])


def end_run(args, stop):
    """Ends what W&B was told of, and the program where a signal asked for that."""
    tracking.finish(args, 128 + stop[0] if stop else 0, stop)
    if stop:
        raise SystemExit(128 + stop[0])


def evaluate(act, make_env, args, device, global_step, path, video_dir=None, stop=()):
    """Plays --eval-episodes episodes with the policy act(obs), films the first one if `video_dir` is given, prints the
    result and writes it to `path` (JSON). Puts training's random streams back. None if a signal has broken it off."""
    streams, returns, lengths = rng_state(), [], []
    env = make_env(args, "rgb_array" if video_dir else None)
    env = gym.wrappers.RecordVideo(env, video_dir / f"step-{global_step}", lambda n: n == 0) if video_dir else env
    try:
        obs, _ = env.reset(seed=args.seed + 10_000)
        while len(returns) < args.eval_episodes and not stop:
            with torch.no_grad():
                action = act(torch.as_tensor(np.asarray(obs)[None], device=device))[0].cpu().numpy()
            if isinstance(space := env.action_space, gym.spaces.Box):  # float32 may round to beyond the bounds
                action = np.clip(action, space.low, space.high).astype(space.dtype)
            obs, _, terminated, truncated, info = env.step(action if action.shape else action.item())
            if terminated or truncated:
                returns.append(float(info["episode"]["r"]))
                lengths.append(int(info["episode"]["l"]))
                assert np.isfinite(returns[-1]), f"a return of {returns[-1]}"
                obs, _ = env.reset()
        env.close()
    except Exception as error:
        traceback.print_exception(error)
        stop_run(f"{args.env_id} failed in the evaluation at step {global_step:,}: {error!r}", Path(path).parent)
    set_rng_state(streams)
    if len(returns) < args.eval_episodes:
        return None
    mean, std = float(np.mean(returns)), float(np.std(returns))
    line = f"evaluation at step {global_step:,}: mean return {mean:.2f} +- {std:.2f} over {len(returns)} episodes"
    print("\r\033[K" * sys.stdout.isatty() + line)  # in the place of the progress line
    git = f"git -C '{Path(__file__).parent}' describe --always --dirty --exclude='*' 2>&-"
    commit = subprocess.getoutput(git) or None
    record = dict(env_id=args.env_id, global_step=global_step, mean=mean, std=std, episodes=len(returns))
    record |= dict(returns=returns, lengths=lengths, date=time.strftime("%FT%T%z"), commit=commit, args=vars(args))
    Path(f"{path}.tmp").write_text(json.dumps(record, indent=2) + "\n")
    os.replace(f"{path}.tmp", path)
    if args.track and video_dir and not args.evaluate:
        tracking.log_video(video_dir / f"step-{global_step}")
    return returns, lengths


def can_record(make_env, args):
    """Whether videos can be made here; if not, says which Debian packages are missing, and training goes on without."""
    try:
        env = make_env(args, "rgb_array")
        env.reset(), env.render()
        return env.close() is None
    except (Exception, SystemExit) as error:
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
    chosen, first = [torch.compile(update, fullgraph=True, dynamic=False) if compile else update], [True] * compile

    def call(*tensors):
        tracking.BUSY.extend(first)
        try:
            return chosen[0](*tensors)
        except torch._dynamo.exc.TorchDynamoException as error:  # raised before anything ran
            print(f"not compiled, goes on in eager mode: {str(error).strip().splitlines()[0]}", file=sys.stderr)
            chosen[0] = update
            return update(*tensors)
        finally:
            first.clear()
            tracking.BUSY.clear()

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
