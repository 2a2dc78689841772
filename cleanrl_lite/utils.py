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
import psutil
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
    if video_dir:
        env = gym.wrappers.RecordVideo(env, video_dir / f"step-{global_step}", lambda episode: episode == 0)
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
    """`update(*tensors) -> dict of tensors`, compiled into one graph and replayed as one CUDA graph where asked for.
    Where it cannot be compiled (no C++ compiler, an old torch, an operation without a graph), it runs eagerly."""
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


def replay_memory(buffer_size, num_envs, row_shape, dtype, device):
    """A zero tensor (num_envs * slots, *row_shape) where it fits: on the training device, else in main memory.

    buffer_size, the sum over the environments, is rounded down. What is in main memory is taken when it is written to.
    """
    check(buffer_size >= 8 * num_envs, "--buffer-size must be at least 8 times --num-envs")
    slots, row_bytes = buffer_size // num_envs * num_envs, int(np.prod(row_shape)) * dtype.itemsize
    if device.type == "cuda" and slots * row_bytes < 0.9 * torch.cuda.mem_get_info()[0]:
        return torch.zeros((slots, *row_shape), dtype=dtype, device=device)
    fit = int(0.9 * psutil.virtual_memory().available / row_bytes)
    size = f"{slots * row_bytes / 1e9:,.1f} GB"
    check(slots <= fit, f"--buffer-size {buffer_size} takes {size}, more than is free; {fit} transitions would fit")
    return torch.from_numpy(
        np.zeros((slots, *row_shape), str(dtype).removeprefix("torch."))
    )  # torch.zeros takes it now


class ReplayBuffer:
    """The last `buffer_size` transitions. Each is one row of a preallocated matrix, so a minibatch is one gather.

    `shapes` are those of the parts of a transition, in the order in which `add` takes and `unpack` returns them.
    """

    def __init__(self, buffer_size, num_envs, shapes, device):
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes]).tolist()
        self.rows = replay_memory(buffer_size, num_envs, ends[-1:], torch.float32, device)
        self.shapes, self.ends, self.num_envs, self.device = shapes, ends, num_envs, device
        self.host = self.rows[:num_envs].cpu().numpy() if self.rows.is_cuda else self.rows.numpy()  # what `add` fills
        ranges = zip(shapes, [0, *ends], ends)
        self.columns = [self.host[:, begin:end] if shape else self.host[:, begin] for shape, begin, end in ranges]
        self.position, self.filled = 0, 0
        self.size = torch.zeros((), dtype=torch.float64, device=self.rows.device)  # `filled`, as a CUDA graph wants it

    def add(self, *parts):
        """Stores a transition of each environment: arrays (num_envs, *shape)."""
        start, stop = self.position, self.position + self.num_envs
        place = slice(None) if self.rows.is_cuda else slice(start, stop)
        for column, part in zip(self.columns, parts):
            column[place] = part
        if self.rows.is_cuda:
            self.rows[start:stop].copy_(torch.from_numpy(self.host), non_blocking=True)
        self.position = stop % len(self.rows)
        if self.filled < len(self.rows):
            self.filled = stop
            self.size.fill_(stop)

    def sample(self, batch_size):
        """A minibatch, drawn with replacement, on the training device, in the form that `unpack` takes."""
        indices = (torch.rand(batch_size, dtype=torch.float64, device=self.rows.device) * self.size).long()
        return (self.rows.index_select(0, indices).to(self.device),)

    def unpack(self, rows):
        """The parts of a minibatch: tensors (batch_size, *shape)."""
        parts = rows.tensor_split(self.ends[:-1], dim=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes)]

    def state_dict(self):
        rows = torch.from_numpy(self.rows[: self.filled].cpu().numpy())  # a view, of which torch.save writes no more
        return dict(sizes=[len(self.rows), self.num_envs], position=self.position, rows=rows)

    def load_state_dict(self, state):
        check(state["sizes"] == [len(self.rows), self.num_envs], "a resumed run keeps its --buffer-size and --num-envs")
        self.position, self.filled = state["position"], len(state["rows"])
        self.rows[: self.filled] = state["rows"]
        self.size.fill_(self.filled)


class FrameReplayBuffer:
    """A replay buffer for stacks of 4 frames that stores every frame once: 7 KB a transition of Atari, not 56.

    Each environment has a ring of its own. Slot t holds the newest frame of its t-th observation and what came of it;
    the slots t - 3 to t + 1 make that stack and the next one. At the start of a game the older frames are blank, as the
    agent saw them. The last frame of a truncated game has a slot too, with age 0, which no transition starts from.
    """

    def __init__(self, buffer_size, num_envs, frame_shape, device):
        self.frames = replay_memory(buffer_size, num_envs, frame_shape, torch.uint8, device)
        self.rows = torch.zeros((len(self.frames), 4), device=self.frames.device)  # action, reward, terminated, age
        self.num_envs, self.length, self.device = num_envs, len(self.frames) // num_envs, device
        self.age = np.ones(num_envs)  # how many frames of the next observation are of the game under way, 1 to 4
        self.written = np.zeros(num_envs, dtype=np.int64)  # slots so far; the newest one waits for its next frame
        self.first, self.count = torch.zeros((2, num_envs), dtype=torch.int64, device=self.rows.device)  # to draw from

    def add(self, obs, actions, rewards, terminations, truncations, new_games, final_obs):
        """Stores a transition of each environment: stacks (num_envs, 4, *frame_shape), the others (num_envs,)."""
        for n in range(self.num_envs):
            self.write(n, obs[n][-1], (actions[n], rewards[n], terminations[n], self.age[n]))
            if truncations[n]:
                self.write(n, final_obs[n][-1], (0, 0, 0, 0))
        self.age = np.where(new_games, 1, np.minimum(self.age + 1, 4))
        self.publish()

    def write(self, n, frame, row):
        slot = n * self.length + self.written[n] % self.length
        self.frames[slot].copy_(torch.from_numpy(frame), non_blocking=True)
        self.rows[slot].copy_(torch.tensor(row, dtype=torch.float32), non_blocking=True)
        self.written[n] += 1

    def publish(self):
        first = np.where(self.written > self.length, self.written - self.length + 4, 0)  # the stack is still there
        self.first.copy_(torch.from_numpy(first), non_blocking=True)
        self.count.copy_(torch.from_numpy(self.written - 1 - first), non_blocking=True)

    def sample(self, batch_size):
        """A minibatch, drawn with replacement, on the training device, in the form that `unpack` takes."""
        env, slot = torch.rand((2, batch_size), dtype=torch.float64, device=self.rows.device)
        env = (env * self.num_envs).long()
        ring, slot = env * self.length, self.first[env] + (slot * self.count[env]).long()
        slot = slot - (self.rows[ring + slot % self.length, 3] == 0).long()  # no transition's start: the one before it
        stack = ring[:, None] + (slot[:, None] + torch.arange(-3, 2, device=slot.device)) % self.length
        frames = self.frames.index_select(0, stack.flatten()).unflatten(0, stack.shape)
        return frames.to(self.device), self.rows[stack[:, 3]].to(self.device)

    def unpack(self, frames, rows):
        """obs, actions, rewards, next_obs, terminations of a minibatch; frames (batch_size, 5, *frame_shape)."""
        actions, rewards, terminations, age = rows.unbind(1)
        frames = frames * (torch.arange(3, -2, -1, device=age.device) < age[:, None])[:, :, None, None]
        return frames[:, :4], actions, rewards, frames[:, 1:], terminations

    def state_dict(self):
        used = len(self.frames) - self.length + min(int(self.written.max()), self.length)
        frames, rows = (torch.from_numpy(x[:used].cpu().numpy()) for x in (self.frames, self.rows))
        return dict(sizes=[len(self.frames), self.num_envs], written=self.written.tolist(), frames=frames, rows=rows)

    def load_state_dict(self, state):
        check(state["sizes"] == [len(self.rows), self.num_envs], "a resumed run keeps its --buffer-size and --num-envs")
        self.frames[: len(state["frames"])], self.rows[: len(state["rows"])] = state["frames"], state["rows"]
        self.written[:] = state["written"]
        self.publish()
        # The games go on without us: the newest observation is the next one of the transition before it, and no more;
        # where it begins a game, it is not even that, and is written over.
        newest = np.arange(self.num_envs) * self.length + (self.written - 1) % self.length
        self.written -= self.rows[newest, 3].cpu().numpy() == 1
        self.rows[newest, 3] = 0
