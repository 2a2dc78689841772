"""What the scripts share and no algorithm depends on: set-up, environments, runs, speed."""

import atexit
import json
import math
import multiprocessing
import os
import pickle
import random
import re
import signal
import sys
import time
import warnings
from collections import deque
from contextlib import suppress
from ctypes.util import find_library
from functools import reduce
from importlib import import_module
from pathlib import Path

if sys.platform == "linux" and not os.environ.get("DISPLAY"):  # render without a display; mujoco reads it at import
    os.environ.setdefault("MUJOCO_GL", "egl" if find_library("EGL") and find_library("GL") else "disabled")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import cloudpickle
import gymnasium as gym
import numpy as np
import torch
import tyro
from filelock import FileLock, Timeout
from threadpoolctl import threadpool_limits
from torch import nn
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

warnings.filterwarnings("ignore", ".*is out of date")  # gymnasium about Hopper-v4 and its like, which papers report


# === set-up
def check(ok, message):
    """Refuses wrong input: ends the program with one line and exit status 1 unless `ok`."""
    if not ok:
        raise SystemExit(f"error: {message}")


def check_args(args):
    """Refuses numbers that no run can work with."""
    positive = "envs", "steps", "episodes", "size", "minibatches", "epochs", "frequency", "rate", "lr", "clip_coef"
    for name, value in vars(args).items():
        if isinstance(value, float) or type(value) is int:
            flag, signed = f"--{name.replace('_', '-')}", name in ("v_min", "v_max")
            check(abs(value) < 2**53, f"{flag} must be finite, got {value}")  # NaN fails too
            check(value > 0 or not name.endswith(positive), f"{flag} must be > 0, got {value}")
            check(value >= 0 or signed, f"{flag} must be >= 0, got {value}")
            check(value <= 1 or name not in ("gamma", "gae_lambda", "tau"), f"{flag} must be <= 1, got {value}")
    check(args.total_timesteps % args.num_envs == 0, "--total-timesteps must be a multiple of --num-envs")


def parse(Args):
    """The command line as `Args`; with --resume or --evaluate, the saved run's arguments are the defaults."""
    sys.excepthook = explain
    words = [word for arg in sys.argv[1:] for word in (arg.split("=", 1) if arg.startswith("--") else [arg])]
    whole = [bool(re.fullmatch(r"\d+(\.\d+)?e\d+", word)) and float(word).is_integer() for word in words]  # 1e6
    words = [f"{float(word):.0f}" if is_whole else word for word, is_whole in zip(words, whole)]
    check(not {"--resume", "--evaluate"} <= {*words}, "--resume and --evaluate cannot be combined")
    path = next((path for flag, path in zip(words, words[1:]) if flag in ("--resume", "--evaluate")), "auto")
    saved = load(path, Path(sys.argv[0]).stem)["args"] if path != "auto" else {}
    saved |= dict(resume=None, evaluate=None) | (dict(capture_video=False) if "--evaluate" in words else {})
    default = Args(**{name: value for name, value in saved.items() if name in Args.__dataclass_fields__})
    return tyro.cli(
        Args, args=words, default=default, description=(sys.modules["__main__"].__doc__ or "").partition("\n")[0]
    )


def explain(kind, error, trace):
    """sys.excepthook: a traceback for bugs only, then one line with the step and how to resume."""
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):  # torch.save on a full disk
        kind, error = type(error.__context__), error.__context__
    if not issubclass(kind, OSError | MemoryError | FloatingPointError | KeyboardInterrupt | torch.OutOfMemoryError):
        sys.__excepthook__(kind, error, trace)
    line, run = f"error: {kind.__name__}: {error}".splitlines()[0], Run.current
    if run:
        with suppress(Exception):  # what was logged so far, if the disk takes it
            run.writer.flush()
        line += f" ({run.args.env_id}, step {run.global_step:,})"
        line += f"; last good checkpoint: step {run.last_save:,}. Resume with --resume {run.dir}"
    print(line, file=sys.stderr)


def setup(args):
    """Seeds python, numpy and torch, sets the number of threads, and returns the device."""
    check(args.seed < 2**31 and args.threads <= 1024, "--seed must be < 2**31 and --threads at most 1024")
    random.seed(args.seed), np.random.seed(args.seed), torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    if args.threads:
        torch.set_num_threads(args.threads), threadpool_limits(args.threads)  # the second is for numpy's BLAS
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    check(device.type == "cuda" or args.evaluate or not args.cuda_graph, "--cuda-graph needs a GPU")
    return device


def rng_state():
    """The state of every global random generator."""
    name, keys, *rest = np.random.get_state()
    state = dict(python=random.getstate(), numpy=(name, keys.tolist(), *rest), torch=torch.get_rng_state())
    return state | dict(cuda=torch.cuda.get_rng_state_all())


def set_rng_state(state):
    random.setstate(state["python"]), np.random.set_state(state["numpy"]), torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


def allocate(shape, dtype, device):
    """Zeros for a replay buffer: on `device` where they fit, else in main memory, else refused."""
    size = math.prod(shape) * dtype.itemsize
    if device.type == "cuda" and size < 0.9 * torch.cuda.mem_get_info()[0]:
        return torch.zeros(shape, dtype=dtype, device=device)
    meminfo = Path("/proc/meminfo").read_text() if sys.platform == "linux" else "MemAvailable: 999999999999"
    free = 900 * int(re.search(r"MemAvailable: *(\d+)", meminfo)[1])  # bytes: nine tenths of it
    enough = f"--buffer-size {shape[0]} needs {size / 1e9:,.1f} GB; {int(shape[0] * free / size)} would fit"
    check(size < free, enough)
    # numpy's zeros take memory when they are written to, torch's at once.
    return torch.from_numpy(np.zeros(shape, str(dtype).removeprefix("torch.")))


def online_or_offline(init, **settings):
    """wandb.init(**settings), offline where W&B cannot be reached or has no key."""
    settings["settings"] = import_module("wandb").Settings(init_timeout=60, finish_timeout=300)  # seconds
    try:
        init(**settings)
    except Exception as error:
        print(f"W&B: {str(error).splitlines()[0]}. Logging offline; upload with: wandb sync", file=sys.stderr)
        import_module("wandb").teardown()
        init(**settings, mode="offline")


# === environments
def make(env_id, render_mode=None, **kwargs):
    """gymnasium.make (ids such as `module:Env-v0` too); turns its errors into one line with a hint."""
    try:
        return gym.make(env_id, **kwargs, **(dict(render_mode=render_mode) if render_mode else {}))
    except (gym.error.Error, ImportError) as error:
        reason = re.sub(r"gymnasium\[(\w+)\]", r"cleanrl_lite[\1]", str(error).strip().splitlines()[0])
        if re.search("ALE|NoFrameskip|-v5", env_id):
            reason += " Atari games are called ALE/Breakout-v5 or BreakoutNoFrameskip-v4; use the *_atari.py scripts"
        elif "gymnasium-robotics" in reason:
            reason = "gymnasium no longer has this version. Use v4 or v5"
        check(False, f"--env-id {env_id}: {reason}")


class VectorEnv(gym.vector.SyncVectorEnv):
    """gymnasium's SyncVectorEnv with SAME_STEP autoreset; checked, without copies, and without the infos of ordinary
    steps, which no script reads: gathering them takes 18 us of a Hopper step's 131."""

    def step(self, actions):
        infos, shape = {}, self.single_observation_space.shape
        for i, (env, action) in enumerate(zip(self.envs, actions)):
            obs, reward, terminated, truncated, info = env.step(action)
            # The traps: numpy broadcasts another shape; one NaN or infinity spoils networks and replay buffer.
            if np.shape(obs) != shape or not math.isfinite(np.add.reduce(obs, axis=None) + reward):
                raise FloatingPointError(f"environment {i}: observation {obs}, of shape {shape}, or reward {reward}")
            if terminated or truncated:
                # The trap: the reset may write into the array of this last observation.
                ended = dict(final_obs=np.array(obs), final_info=dict(episode=info["episode"]))
                infos = self._add_info(infos, ended, i)
                obs, _ = env.reset()
            self._observations[i], self._rewards[i] = obs, reward
            self._terminations[i], self._truncations[i] = terminated, truncated
        return self._observations, self._rewards, self._terminations, self._truncations, infos


def vector_env(env_fns, async_envs, autoreset_mode):
    """All environments in this process, or each in its own; Ctrl-C and SIGTERM are for the main process to handle."""
    kind = gym.vector.AsyncVectorEnv if async_envs else VectorEnv
    if async_envs:  # copies, because a reset may write into the array of the last observation
        env_fns = [lambda fn=fn: gym.wrappers.TransformObservation(fn(), np.array, None) for fn in env_fns]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # workers inherit it
    envs = kind(env_fns, copy=False, autoreset_mode=autoreset_mode)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return envs


@atexit.register  # runs before multiprocessing's own handler, which would wait for a hanging worker
def kill_workers():
    for process in multiprocessing.active_children():
        process.kill()


# === runs
def load(path, script, env_id=None, agent=None):
    """A checkpoint, or the one in a run directory, on the CPU and without executing code from it; fills `agent`."""
    path = Path(path, "checkpoint.pt") if Path(path).is_dir() else Path(path)
    check(path.is_file(), f"there is no checkpoint at {path}")
    try:
        state = torch.load(
            path, map_location="cpu", weights_only=True, mmap=True
        )  # the replay buffer is read if needed
        found, env_id = (state["script"], state["args"]["env_id"]), env_id or state["args"]["env_id"]
        check(found == (script, env_id), f"{path} is of {found[0]} on {found[1]}, not of {script} on {env_id}")
        agent and agent.load_state_dict(state["agent"])
    except Exception as error:
        check(False, f"cannot load {path}: {type(error).__name__}: {' '.join(str(error).split())[:150]}")
    return state | dict(dir=path.resolve().parent)


class Run:
    """A run's directory, checkpoints, evaluations and console output.

    `parts` are what a checkpoint holds besides the agent: nested dicts of tensors, or objects with state_dict().
    """

    current = None

    def __init__(self, args, script, make_env, envs, agent, **parts):
        self.args, self.script, self.make_env, self.envs, self.agent = args, Path(script), make_env, envs, agent
        self.parts, self.values, self.result, self.stop, self.writer = parts, {}, None, 0, None
        self.purge_step, self.last_eval, self.last_save = None, 0, -1  # -1: the first checkpoint is due at once
        self.arguments = json.dumps(vars(args) | dict(resume=None), indent=2) + "\n"
        path = args.evaluate or (self.find() if args.resume == "auto" else args.resume)
        saved = load(path, self.script.stem, args.env_id, agent) if path else {}
        self.global_step, self.video = saved.get("global_step", 0), args.capture_video and can_record(make_env, args)
        self.dir, self.device = saved.get("dir") or self.create(), next(agent.parameters()).device
        if args.evaluate:
            envs.close()
            self.result = self.evaluate(f"eval_{time.time():.0f}")
            return
        try:
            self.lock = FileLock(self.dir / "lock", timeout=0)  # it ends with the process, however that ends
            self.lock.acquire()
        except Timeout:
            check(False, f"{self.dir} is in use by another process")
        last = json.loads((self.dir / "eval.json").read_text()) if (self.dir / "eval.json").is_file() else {}
        if last.get("global_step", -1) >= args.total_timesteps:
            print(f"already finished: {self.dir}")
            self.result = last["returns"]
            return
        self.last_eval = min(last.get("global_step", 0), self.global_step)
        self.start(saved)

    def find(self):
        """The last run with these arguments: what --resume auto means."""
        found = [path for path in Path(self.args.runs_dir).glob("*/args.json") if path.read_text() == self.arguments]
        needed = "checkpoint.pt", self.script.name
        runs = [path.parent for path in found if all((path.parent / name).is_file() for name in needed)]
        return max(runs, key=os.path.getmtime, default=None)

    def create(self):
        """Makes runs/{env_id}__{exp_name}__{seed}__{unix time}/ with the script and its arguments inside."""
        name = re.sub("[/:]", "-", f"{self.args.env_id}__{self.args.exp_name}__{self.args.seed}__")
        now = int(time.time())
        while (path := Path(self.args.runs_dir) / f"{name}{now}").exists():  # a run that started in the same second
            now += 1
        path.mkdir(parents=True)
        (path / self.script.name).write_text(self.script.read_text())
        (path / "args.json").write_text(self.arguments)
        return path

    def start(self, saved):
        """Begins the run, or puts everything back where the checkpoint was written."""
        # Streams that no neighbouring run shares; a resumed run plays new episodes. The first environment of a new run
        # keeps the seed itself. Atari takes 31 bits.
        streams = np.random.SeedSequence([self.args.seed, self.global_step]).generate_state(self.args.num_envs) >> 1
        seeds = [int(seed) for seed in streams] if self.global_step else [self.args.seed, *map(int, streams[1:])]
        self.envs.action_space.seed(seeds[0])
        self.obs, _ = self.envs.reset(seed=seeds)
        if saved:
            check("values" in saved, f"{self.dir} holds the networks only: it can be evaluated, not resumed")
            kept = [saved["args"].get(name) == vars(self.args).get(name) for name in ("num_envs", "buffer_size")]
            check(all(kept), "a resumed run keeps its --num-envs and --buffer-size")
            for name, part in self.parts.items():
                if hasattr(part, "load_state_dict"):
                    part.load_state_dict(saved[name])
                else:
                    torch._foreach_copy_(tree_leaves(part), tree_leaves(saved[name]))
            set_rng_state(saved["rng"])
            self.values, self.last_save, self.purge_step = saved["values"], self.global_step, self.global_step + 1
        if saved.get("envs"):
            pickled, self.envs.action_space.np_random.bit_generator.state, obs = saved["envs"]
            self.envs.envs, inner = pickle.loads(pickled)
            for env, attributes in zip(self.envs.envs, inner):
                vars(env.unwrapped).update(attributes)
            self.obs = obs.numpy()
        signal.signal(signal.SIGINT, self.on_signal), signal.signal(signal.SIGTERM, self.on_signal)
        Run.current, self.returns, self.log_step = self, deque(maxlen=20), self.global_step
        self.log_time, self.printed = None, time.perf_counter()
        bar = dict(initial=self.global_step, unit="step", file=sys.stdout, disable=not sys.stdout.isatty())
        self.bar = tqdm(total=self.args.total_timesteps, dynamic_ncols=True, **bar)
        versions = f"torch {torch.__version__}, gymnasium {gym.__version__}"
        print(f"run directory: {self.dir}\n{self.device}, {versions}", flush=True)

    def on_signal(self, number, _):
        """Asks the loop to stop at its next goes_on(); a second Ctrl-C interrupts at once."""
        self.stop = number
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def goes_on(self, global_step, obs, **values):
        """Evaluates and saves where that is due; False at the end and after a signal. A resumed run finds obs and
        values in run.obs and run.values."""
        self.global_step, began, finished = global_step, time.perf_counter(), global_step >= self.args.total_timesteps
        eval_every, save_every = self.args.eval_every or math.inf, self.args.save_every or math.inf
        if global_step // eval_every > self.last_eval // eval_every and not finished:
            self.evaluate()
        if global_step // save_every > self.last_save // save_every or finished or self.stop:
            self.save(obs, values)
        now = time.perf_counter()
        self.log_time = self.log_time + now - began if self.log_time else now  # the speed is that of training
        return not (finished or self.stop)

    def save(self, obs, values):
        """Writes checkpoint.pt atomically: after a crash it is the old or the new checkpoint, complete."""
        state = {k: part.state_dict() if hasattr(part, "state_dict") else part for k, part in self.parts.items()}
        state |= dict(script=self.script.stem, args=vars(self.args), global_step=self.global_step, values=values)
        state |= dict(agent=self.agent.state_dict(), rng=rng_state(), envs=None)
        trained = [state["agent"], *(part for part in self.parts.values() if isinstance(part, dict))]
        if not all(tensor.isfinite().all() for tensor in tree_leaves(trained)):
            raise FloatingPointError("a weight is not finite")  # and so never replaces a good one
        if isinstance(self.envs, VectorEnv) and all("gymnasium." in str(type(env.unwrapped)) for env in self.envs.envs):
            with suppress(Exception):  # Box2D cannot be pickled. MuJoCo's environments pickle only how they were made
                inner = [
                    {k: v for k, v in vars(e.unwrapped).items() if k not in ("model", "mujoco_renderer")}
                    for e in self.envs.envs
                ]
                actions = self.envs.action_space.np_random.bit_generator.state
                state["envs"] = cloudpickle.dumps((self.envs.envs, inner)), actions, torch.tensor(obs)
        self.writer.flush()  # what was logged up to this step, a resumed run does not log again
        with open(self.dir / "checkpoint.tmp", "wb") as file:
            torch.save(state, file)
            file.flush(), os.fsync(file.fileno())
        os.replace(self.dir / "checkpoint.tmp", self.dir / "checkpoint.pt")
        self.last_save = self.global_step

    def evaluate(self, name="eval"):
        """Plays --eval-episodes with agent.act, logs them, writes {name}.json, puts training's random streams back."""
        streams, args, step, returns, lengths = rng_state(), self.args, self.global_step, [], []
        env = self.make_env(args, "rgb_array" if self.video else None)
        if self.video:
            folder = self.dir / "videos" / (f"step-{step}" if name == "eval" else name)
            env = gym.wrappers.RecordVideo(env, folder, lambda episode: episode == 0)
        obs, _ = env.reset(seed=args.seed + 10_000)
        while len(returns) < args.eval_episodes and not self.stop:
            with torch.no_grad():
                action = self.agent.act(torch.as_tensor(np.asarray(obs)[None], device=self.device))[0].cpu().numpy()
            if isinstance(space := env.action_space, gym.spaces.Box):  # float32 may round to beyond the bounds
                action = np.clip(action, space.low, space.high).astype(space.dtype)
            obs, _, terminated, truncated, info = env.step(action if action.shape else action.item())
            if terminated or truncated:
                returns.append(float(info["episode"]["r"])), lengths.append(int(info["episode"]["l"]))
                obs, _ = env.reset()
        env.close()
        set_rng_state(streams)
        if len(returns) < args.eval_episodes:
            return None
        mean, std = float(np.mean(returns)), float(np.std(returns))
        tqdm.write(f"evaluation at step {step:,}: mean return {mean:.2f} +- {std:.2f} over {len(returns)} episodes")
        git = f"git -C '{Path(__file__).parent}' describe --always --dirty --exclude='*' 2>&-"
        record = dict(env_id=args.env_id, global_step=step, mean=mean, std=std, episodes=len(returns), returns=returns)
        record |= dict(lengths=lengths, date=time.strftime("%FT%T%z"), args=vars(args))
        record["commit"] = os.popen(git).read().strip() or None
        (self.dir / "eval.tmp").write_text(json.dumps(record, indent=2) + "\n")
        os.replace(self.dir / "eval.tmp", self.dir / f"{name}.json")
        self.last_eval = step
        if self.writer:
            self.writer.add_scalar("eval/episodic_return", mean, step)
            self.writer.add_scalar("eval/episodic_length", np.mean(lengths), step)
        if self.writer and args.track and self.video:
            with suppress(Exception):  # W&B must not stop a run
                wandb = import_module("wandb")
                wandb.log({"eval/video": wandb.Video(str(next(folder.glob("*.mp4"))), format="mp4")})
        return returns

    def finished_episodes(self, infos):
        """(index, return, length) of every environment whose episode ended in this step (SAME_STEP autoreset)."""
        episode, ended = infos.get("final_info", {}).get("episode"), infos.get("_final_info", ())
        episodes = [(i, float(episode["r"][i]), int(episode["l"][i])) for i, over in enumerate(ended) if over]
        self.returns.extend(episodic_return for _, episodic_return, _ in episodes)
        return episodes

    def log(self, scalars, global_step):
        """Writes {tag: tensor or number} and the speed, unless one is not finite; moves the progress bar."""
        now, total, self.global_step = time.perf_counter(), self.args.total_timesteps, global_step
        sps = (global_step - self.log_step) / (now - self.log_time)  # evaluations, checkpoints, compiling do not count
        for tag, value in (scalars | {"charts/SPS": sps}).items():
            if not math.isfinite(value):
                raise FloatingPointError(f"{tag} is {float(value)}")
            self.writer.add_scalar(tag, float(value), global_step)
        self.log_step, self.log_time = global_step, now
        mean = f"return {np.mean(self.returns):.1f}" if self.returns else "no episode has ended"
        self.bar.set_postfix_str(mean, refresh=False), self.bar.update(global_step - self.bar.n)
        if self.bar.disable and (now - self.printed > 10 or global_step >= total):
            self.printed, line = now, f"step {global_step:,} of {total:,} | {sps:,.0f} SPS | {mean}"
            print(f"{line} | {(total - global_step) / sps:.0f} s left", flush=True)

    def compile(self, update):
        """`update(*tensors) -> dict of tensors` as one compiled graph; eager with --no-compile or where that fails."""
        if hasattr(torch._dynamo.config, "trace_autograd_ops"):  # right with fullgraph=True only
            torch._dynamo.config.trace_autograd_ops = True
        chosen = [] if self.args.compile else [update]

        def call(*tensors):
            if chosen:
                return chosen[0](*tensors)
            tqdm.write(f"compiling {update.__name__} (about 30 s the first time) ..."), sys.stdout.flush()
            chosen.append(torch.compile(update, fullgraph=True, dynamic=False))
            began = time.perf_counter()
            try:
                return chosen[0](*tensors)
            except torch._dynamo.exc.TorchDynamoException as error:  # raised before anything ran
                tqdm.write(f"compilation failed; continuing in eager mode: {error}".splitlines()[0], file=sys.stderr)
                chosen[0] = update
                return update(*tensors)
            finally:
                self.log_time += time.perf_counter() - began

        return call

    def cuda_graph(self, function):
        """`function` as one CUDA graph with --cuda-graph."""
        return CudaGraph(function) if self.args.cuda_graph else function

    def end(self):
        """Plays the final evaluation and returns its returns; exits with 128 + its number after a signal."""
        self.result = None if self.stop else self.evaluate()
        for part in (self.writer, self.envs, self.bar):
            part.close()
        Run.current = self.lock.release()
        print(f"stopped. Resume with --resume {self.dir}" if self.stop else f"finished: {self.dir}")
        if self.args.track:
            with suppress(Exception):  # of W&B: the run is complete on disk
                import_module("wandb").finish(128 + self.stop if self.stop else 0)
        if self.stop:
            raise SystemExit(128 + self.stop)
        return self.result


def can_record(make_env, args):
    """Whether videos can be made here; says why not."""
    try:
        env = make_env(args, "rgb_array")
        env.reset(), env.render()
        return env.close() is None
    except (Exception, SystemExit) as error:
        print(f"no video: {error!r}. On Debian it needs: libegl1 libgl1 libglib2.0-0", file=sys.stderr)


# === speed
def numpy_forward(module, device, live=False):
    """`module` as a function of numpy arrays. A few rows through a small MLP take 7 us in numpy, 25 in torch, more on a
    GPU. MLPs on a GPU are copied as they are now, unless they must follow the training (`live`)."""
    functions = {nn.Linear: lambda x, w, b=0.0: np.dot(x, w) + b, nn.Tanh: np.tanh, nn.ReLU: lambda x: np.maximum(x, 0)}
    layers = [*module] if isinstance(module, nn.Sequential) else [module]
    if any(type(layer) not in functions for layer in layers) or (live and device.type != "cpu"):
        forward = torch.no_grad()(module)
        return lambda x: forward(torch.as_tensor(x, device=device)).cpu().numpy()
    steps = [(functions[type(m)], *(p.detach().cpu().numpy().T for p in m.parameters())) for m in layers]  # no copies
    return lambda x: reduce(lambda y, step: step[0](y, *step[1:]), steps, x)


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
