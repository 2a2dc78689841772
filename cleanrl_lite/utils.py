"""What the scripts share and no algorithm depends on: set-up, environments, runs, speed."""

import atexit
import copy
import json
import math
import os
import random
import re
import signal
import sys
import time
import warnings
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path

if sys.platform == "linux" and not os.environ.get("DISPLAY"):  # render without a display; mujoco reads it at import
    os.environ.setdefault("MUJOCO_GL", "egl" if find_library("EGL") and find_library("GL") else "disabled")
    os.environ.setdefault("SDL_VIDEODRIVER", "offscreen")
sys.path.append("")  # --env-id my_envs:MyEnv-v0 finds my_envs.py in the current directory
import cloudpickle
import gymnasium as gym
import numpy as np
import psutil
import torch
import tyro
from filelock import FileLock, Timeout
from threadpoolctl import threadpool_limits
from torch.utils._pytree import tree_leaves, tree_map
from tqdm import tqdm

warnings.filterwarnings("ignore", ".*is out of date")  # gymnasium about Hopper-v4 and its like, which papers report


# === set-up
def check(ok, message):
    """Refuses wrong input: ends the program with one line and exit status 1 unless `ok`."""
    if not ok:
        raise SystemExit(re.sub(r"\s*\n\s*", " ", f"error: {message}"))  # a space with uneven bounds has many lines


def parse(Args):
    """The command line as `Args`; with --resume or --evaluate, the saved run's arguments are the defaults."""
    sys.excepthook = explain
    words = [re.sub(r"(?<![^=])\d+\.?\d*e\d\d?$", lambda x: f"{float(x[0]):.15g}", word) for word in sys.argv[1:]]
    args = tyro.cli(Args, args=words, description=(sys.modules["__main__"].__doc__ or "").partition("\n")[0])
    check(not (args.resume and args.evaluate), "--resume and --evaluate cannot be combined")
    if not (path := args.evaluate or args.resume) or args.resume == "auto":
        return args
    own = dict(resume=None, evaluate=None) | (dict(capture_video=False) if args.evaluate else {})
    vars(args).update(load(path, Path(sys.argv[0]).stem)["args"] | own)
    return tyro.cli(Args, args=words, default=args)


def explain(kind, error, trace):
    """sys.excepthook: a traceback for bugs only, then one line with the step and how to resume."""
    cause = error.__context__ if kind is RuntimeError and isinstance(error.__context__, OSError) else error  # full disk
    if not isinstance(cause, OSError | MemoryError | FloatingPointError | KeyboardInterrupt | torch.OutOfMemoryError):
        sys.__excepthook__(kind, error, trace)
    line = f"error: {type(cause).__name__}: {cause}".splitlines()[0]
    if (run := Run.current) and run.last_save >= 0:
        line += f" ({run.args.env_id}, step {run.global_step:,}). Resume at step {run.last_save:,}: --resume {run.dir}"
    print(line, file=sys.stderr)


def setup(args):
    """Refuses impossible numbers, seeds python, numpy and torch, sets the number of threads; returns the device."""
    positive = *"envs steps episodes size len orders minibatches epochs frequency rate lr fraction".split(), "clip_coef"
    for name, value in vars(args).items():
        if type(value) in (int, float) and name not in ("v_min", "v_max"):
            flag, limit = f"--{name.replace('_', '-')}", dict(seed=2**31, threads=1025).get(name, 2**53)
            check(value > 0 or not name.endswith(positive), f"{flag} must be > 0, got {value}")
            check(0 <= value < limit, f"{flag} must be >= 0 and < {limit}, got {value}")  # NaN is neither
    random.seed(args.seed), np.random.seed(args.seed), torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    torch.set_num_threads(args.threads or torch.get_num_threads()), threadpool_limits(args.threads or None)  # BLAS too
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    check(device.type == "cuda" or args.evaluate or not args.cuda_graph, "--cuda-graph needs a GPU")
    return device


def rng_state():
    (name, keys, *rest), gpus = np.random.get_state(), torch.cuda.is_initialized() and torch.cuda.get_rng_state_all()
    return random.getstate(), (name, keys.tolist(), *rest), torch.get_rng_state(), gpus or []


def set_rng_state(python, numpy, cpu, gpus):
    random.setstate(python), np.random.set_state(numpy), torch.set_rng_state(cpu)
    torch.cuda.set_rng_state_all(gpus[: torch.cuda.device_count()])


def allocate(shape, dtype, device):
    """Zeros for a replay buffer: on `device` where they fit, else in main memory, else refused."""
    size = math.prod(shape) * dtype.itemsize
    if device.type == "cuda" and size < 0.9 * torch.cuda.mem_get_info()[0]:
        return torch.zeros(shape, dtype=dtype, device=device)
    fits = int(0.9 * psutil.virtual_memory().available / size * shape[0])
    check(shape[0] <= fits, f"--buffer-size {shape[0]} needs {size / 1e9:.1f} GB; {fits} would fit")
    return torch.from_numpy(np.zeros(shape, str(dtype).removeprefix("torch.")))  # takes memory when written to


def online_or_offline(init, **settings):
    """wandb.init(**settings), offline where W&B cannot be reached or has no key."""
    try:
        init(**settings, settings=dict(finish_timeout=300))
    except Exception as error:
        print(f"W&B: {str(error).splitlines()[0]}. Logging offline; upload with: wandb sync", file=sys.stderr)
        __import__("wandb").teardown()
        init(**settings, mode="offline")


# === environments
def make(env_id, env_kwargs, render_mode=None, **kwargs):
    """gymnasium.make; turns its errors into one line with a hint, and goes on without `render_mode` if that fails."""
    if render_mode:
        try:
            env = gym.make(env_id, render_mode=render_mode, **kwargs | json.loads(env_kwargs))
            env.reset(), env.render(), env.close()
            return gym.make(env_id, render_mode=render_mode, **kwargs | json.loads(env_kwargs))  # without a reset
        except Exception as error:
            print(f"cannot render: {error!r}. Debian needs: libegl1 libgl1 libglib2.0-0", file=sys.stderr)
    try:
        return gym.make(env_id, **kwargs | json.loads(env_kwargs))
    except (gym.error.Error, ImportError, TypeError, ValueError, AttributeError, AssertionError) as error:
        reason = re.sub(r"gymnasium\[(\w+)\]", r"cleanrl_lite[\1]", (str(error).strip() or repr(error)).splitlines()[0])
        reason = re.sub(".*gymnasium-robotics.*", "gymnasium no longer has this version. Use v4 or v5", reason)
        ids = "Hopper-v4, my_module:Env-v0, or ALE/Breakout-v5 with *_atari.py"
        check(False, f"--env-id {env_id}: {reason} (--env-kwargs {env_kwargs}; ids: {ids})")


def flatten(env):
    """`env` with vectors as observations and floats as rewards; refuses images, text and what else is no number."""
    env = gym.wrappers.TransformReward(env, lambda r: r if isinstance(r, float) else float(np.sum(r)))  # some: (1,)
    if isinstance(space := env.observation_space, gym.spaces.Box) and len(space.shape) == 1:
        return env
    for name, part in space.items() if isinstance(space, gym.spaces.Dict) else [("space", space)]:
        few = not re.search(r"\b(?!Box|Discrete|Multi|Tuple|Dict)\w+\(", str(part)) and gym.spaces.flatdim(part) <= 2000
        check(few, f"observation {name} is {part}, not a few numbers: leave it out or convert it. Images: ppo_image.py")
    return gym.wrappers.FlattenObservation(env)


def is_finite(numbers):
    """No NaN, no infinity. The sum tells at once, but large finite numbers may overflow it."""
    with np.errstate(over="ignore"):
        return math.isfinite(np.add.reduce(numbers, axis=None)) or bool(np.isfinite(numbers).all())


class VectorEnv(gym.vector.SyncVectorEnv):
    """SyncVectorEnv with SAME_STEP autoreset and no infos of ordinary steps; refuses NaN and other shapes."""

    def check_obs(self, i, obs, reward=0.0):
        shape = self.single_observation_space.shape
        if np.shape(obs) != shape or not (is_finite(obs) and math.isfinite(reward)):
            raise FloatingPointError(f"environment {i}: observation {obs} (not of shape {shape}?), reward {reward}")

    def step(self, actions):
        infos = {}
        if not all(is_finite(part) for part in (actions if isinstance(actions, tuple) else [actions])):
            raise FloatingPointError(f"the agent gave an action that is not finite: {actions}")
        actions = copy.deepcopy(actions)  # an environment may change its action in place
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, reward, terminated, truncated, info = env.step(action)
            self.check_obs(i, obs, reward)
            if terminated or truncated:
                last = {name: info[name] for name in info.keys() & {"statistics", "is_success"}}
                infos = self._add_info(infos, dict(final_obs=np.array(obs), final_info=last), i)
                obs, _ = env.reset()  # the trap: it may write into the array of the last observation, copied above
                self.check_obs(i, obs)
            self._observations[i], self._rewards[i] = obs, reward
            self._terminations[i], self._truncations[i] = terminated, truncated
        arrays = self._observations, self._rewards, self._terminations, self._truncations
        return *(array.copy() for array in arrays), infos


class InWorker(gym.Wrapper):
    """An environment in a process of its own: observations are copied, and np.random gets a stream of its own."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:  # a fork repeats the main process's np.random otherwise
            np.random.seed([seed, 1])
        obs, info = self.env.reset(seed=seed, options=options)
        return np.array(obs), info

    def step(self, action):
        obs, *rest = self.env.step(action)
        return np.array(obs), *rest


def vector_env(env_fns, async_envs, autoreset_mode):
    """All environments in this process, or each in its own; Ctrl-C and SIGTERM are for the main process to handle."""
    if not async_envs:
        return VectorEnv(env_fns, autoreset_mode=autoreset_mode)
    fns = [lambda f=f: InWorker(f()) for f in env_fns]
    atexit.register(lambda: [child.kill() for child in gym.vector.async_vector_env.multiprocessing.active_children()])
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # workers inherit it
    envs = gym.vector.AsyncVectorEnv(fns, autoreset_mode=autoreset_mode)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return envs


# === runs
def load(path, script, env_id=None, agent=None):
    """A checkpoint, or the one in a run directory, on the CPU and without executing code from it; fills `agent`."""
    path = Path(path, "checkpoint.pt") if Path(path).is_dir() else Path(path)
    try:
        state = torch.load(path, "cpu", weights_only=True, mmap=True)  # the replay buffer is read only when needed
        found, env_id = (state["script"], state["args"]["env_id"]), env_id or state["args"]["env_id"]
        check(found == (script, env_id), f"{path} is of {found[0]} on {found[1]}, not of {script} on {env_id}")
        agent and agent.load_state_dict(state["agent"])
    except Exception as error:
        check(False, f"cannot load {path}: {type(error).__name__}: {' '.join(str(error).split())[:150]}")
    return state | dict(dir=path.resolve().parent)


class Run:
    """A run's directory, checkpoints (of the agent and `parts`), evaluations and console output."""

    current, writer, result, stop, values, returns, episodes_go_on = None, None, None, 0, {}, [], False

    def __init__(self, args, script, make_env, envs, agent, **parts):
        self.args, self.make_env, self.envs, self.agent, self.script = args, make_env, envs, agent, Path(script).stem
        self.parts, self.device = dict(agent=agent) | parts, next(agent.parameters()).device
        arguments = json.dumps(dict(script=self.script) | vars(args) | dict(resume=None), indent=2) + "\n"
        if (path := args.evaluate or args.resume) == "auto" == args.resume:  # the last run with these arguments
            found = Path(args.runs_dir).glob("*/args.json")
            runs = [x.parent for x in found if x.read_text() == arguments and x.with_name("checkpoint.pt").is_file()]
            path = max(runs, key=os.path.getmtime, default=None)
        saved = load(path, self.script, args.env_id, agent) if path else {}
        self.global_step = step = saved.get("global_step", 0)
        if not path:  # a directory of its own, with the script and its arguments inside
            name, now = f"{args.env_id}__{args.exp_name}__{args.seed}", int(time.time())
            while (path := Path(args.runs_dir, re.sub("[/:]", "-", f"{name}__{now}"))).exists():
                now += 1
            path.mkdir(parents=True)
            (path / "args.json").write_text(arguments), (path / Path(script).name).write_text(Path(script).read_text())
        self.dir = saved.get("dir", path)
        if args.evaluate:
            self.result = self.evaluate(f"eval_{time.time():.0f}")
            return envs.close()
        self.lock = FileLock(self.dir / "lock", timeout=0)  # it ends with the process, however that ends
        with suppress(Timeout):
            self.lock.acquire()
        check(self.lock.is_locked, f"{self.dir} is in use by another process")
        streams = np.random.SeedSequence([args.seed, step]).generate_state(args.num_envs + 1)  # shared with no other
        seeds = [int(seed) >> 1 if i or step else args.seed for i, seed in enumerate(streams)]  # Atari takes 31 bits
        envs.action_space.seed(seeds.pop())  # with an environment's seed, random actions would be its random numbers
        self.obs, _ = envs.reset(seed=seeds)
        if saved:
            check("values" in saved, f"{self.dir} holds the networks only: it can be evaluated, not resumed")
            changed = {name for name, value in saved["args"].items() if value != vars(args).get(name)}
            check(not changed & {"num_envs", "buffer_size"}, "a resumed run keeps its --num-envs and --buffer-size")
            for name, part in self.parts.items():
                restore = getattr(part, "load_state_dict", None)
                restore(saved[name]) if restore else torch._foreach_copy_(tree_leaves(part), tree_leaves(saved[name]))
            set_rng_state(*saved["rng"])
            self.values = tree_map(lambda x: x.clone() if torch.is_tensor(x) else x, saved["values"])  # not in the file
            if "envs" in saved and not changed & {"async_envs", "env_kwargs", "max_episode_steps", "mask"}:
                envs.envs, inner, self.obs, envs.action_space._np_random = cloudpickle.loads(saved["envs"])
                for env, attributes in zip(envs.envs, inner):
                    vars(env.unwrapped).update(attributes)  # back in the middle of its episode
                self.episodes_go_on = True
        self.last_eval, self.last_save = saved.get("last_eval", 0), step if saved else -1  # -1: save at once
        self.log_step, self.log_time, self.printed = step, None, time.perf_counter()
        self.bar = tqdm(initial=step, total=args.total_timesteps, unit="step", file=sys.stdout, disable=None)
        print(f"run directory: {self.dir}\n{self.device}, torch {torch.__version__}, gymnasium {gym.__version__}")
        signal.signal(signal.SIGINT, self.on_signal), signal.signal(signal.SIGTERM, self.on_signal)
        Run.current = self

    def on_signal(self, number, _):  # asks the loop to stop at its next goes_on(); a second Ctrl-C interrupts at once
        self.stop = number
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def goes_on(self, global_step, obs, **values):
        """Evaluates and saves (obs and values too) where that is due; False at the end and after a signal."""
        began, args, self.global_step, stop = time.perf_counter(), self.args, global_step, self.stop
        eval_every, save_every = args.eval_every or math.inf, args.save_every or math.inf
        finished = global_step >= args.total_timesteps
        if global_step // eval_every > self.last_eval // eval_every and not finished:
            self.evaluate()
        if global_step // save_every > self.last_save // save_every or finished or stop:
            state = {k: part.state_dict() if hasattr(part, "state_dict") else part for k, part in self.parts.items()}
            if not all(x.isfinite().all() for x in filter(torch.is_tensor, tree_leaves(state | dict(replay=None)))):
                raise FloatingPointError("a weight is not finite")  # and so never replaces a good one
            state |= dict(script=self.script, args=vars(args), global_step=global_step, last_eval=self.last_eval)
            state |= dict(values=values, rng=rng_state())
            with suppress(Exception):  # Box2D cannot be pickled; MuJoCo's environments pickle only how they were made
                if all(type(env.unwrapped).__module__.startswith("gymnasium.") for env in self.envs.envs):  # no handles
                    inner = [vars(env.unwrapped) for env in self.envs.envs]
                    state["envs"] = cloudpickle.dumps((self.envs.envs, inner, obs, self.envs.action_space.np_random))
            self.writer.flush()  # what was logged up to this step, a resumed run does not log again
            with open(self.dir / "checkpoint.tmp", "wb") as file:
                torch.save(state, file), file.flush(), os.fsync(file.fileno())
            os.replace(self.dir / "checkpoint.tmp", self.dir / "checkpoint.pt")  # at any moment a complete one
            if self.last_save < 1 and not hasattr(self.agent, "normalize") and np.abs(obs).max() > 1e3:
                tqdm.write("warning: observations beyond 1,000: few agents learn. See docs/guides/environments.md")
            self.last_save = global_step
        self.log_time = time.perf_counter() - (began - self.log_time if self.log_time else 0)
        return not (finished or stop)

    @torch.no_grad()
    def evaluate(self, name="eval"):
        """Plays --eval-episodes with agent.act, logs them, writes {name}.json, puts training's random streams back."""
        streams, args, step, returns, lengths = rng_state(), self.args, self.global_step, [], []
        env = self.make_env(args, "human" if args.render else "rgb_array" if args.capture_video else None)
        folder = self.dir / "videos" / (f"step-{step}" if name == "eval" else name)
        if video := args.capture_video and env.render_mode == "rgb_array":
            env = gym.wrappers.RecordVideo(env, folder, lambda episode: episode == 0)
        self.agent.eval()  # Dropout and batch statistics are for training
        (obs, _), total, length = env.reset(seed=args.seed + 10_000), 0.0, 0
        while len(returns) < args.eval_episodes and not self.stop:
            action = self.agent.act(torch.as_tensor(np.asarray(obs)[None], device=self.device))[0].cpu().numpy()[()]
            if isinstance(space := env.action_space, gym.spaces.Box):  # float32 may round to beyond the bounds
                action = np.clip(action, space.low, space.high).astype(space.dtype)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, length = total + float(np.sum(reward)), length + 1
            if length % 10_000 == 0:  # an episode may have no end
                tqdm.write(f"evaluation: step {length:,} of an episode; it is cut at 100,000 (see --max-episode-steps)")
            if terminated or truncated or length >= 100_000:
                returns.append(total), lengths.append(length)
                (obs, _), total, length = env.reset(), 0.0, 0
        env.close(), set_rng_state(*streams), self.agent.train()
        if self.stop:
            return None
        mean, std, self.last_eval = float(np.mean(returns)), float(np.std(returns)), step
        tqdm.write(f"evaluation at step {step:,}: mean return {mean:.2f} +- {std:.2f} over {len(returns)} episodes")
        git = os.popen(f"git -C '{Path(__file__).parent}' describe --always --dirty --exclude='*' 2>&-").read().strip()
        record = dict(env_id=args.env_id, global_step=step, mean=mean, std=std, returns=returns, lengths=lengths)
        record |= dict(episodes=len(returns), date=time.strftime("%FT%T%z"), commit=git or None, args=vars(args))
        (f := self.dir / "tmp").write_text(json.dumps(record, indent=2) + "\n"), f.replace(self.dir / f"{name}.json")
        if self.writer:
            self.writer.add_scalar("eval/episodic_return", mean, step)
            self.writer.add_scalar("eval/episodic_length", np.mean(lengths), step)
            if args.track and video and (mp4 := next(folder.glob("*.mp4"), None)):
                (wandb := __import__("wandb")).log({"eval/video": wandb.Video(str(mp4), format="mp4")})
        return returns

    def finished_episodes(self, infos):
        """(index, return, length) of every environment whose episode ended in this step (SAME_STEP autoreset)."""
        episode, ended = infos.get("final_info", {}).get("statistics"), infos.get("_final_info", ())
        episodes = [(i, float(episode["r"][i]), int(episode["l"][i])) for i, over in enumerate(ended) if over]
        self.returns = [*self.returns, *(r for _, r, _ in episodes)][-20:] if episodes else self.returns
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
            self.printed, rest = now, f"{sps:,.0f} SPS | {mean} | {max(total - global_step, 0) / sps:.0f} s left"
            print(f"step {global_step:,} of {total:,} | {rest}", flush=True)

    def compile(self, update):
        """`update(*tensors) -> dict of tensors` as one compiled graph; eager with --no-compile or where that fails."""
        bare, checked, update.__code__ = None, None, update.__code__.replace()  # each run in a process compiles its own
        options = {"cpp_wrapper": self.device.type == "cpu", "cpp.use_decompose_tanh": True}  # faster; tanh 2e-7 off
        options = {k: v for k, v in options.items() if self.args.compile and k in torch._inductor.list_options()}
        guarded = self.args.compile and torch.compile(update, fullgraph=True, dynamic=False, options=options)

        def compiled(*tensors):
            nonlocal guarded, bare, checked
            # Asking torch whether anything has changed takes a sixth of the time: once per log and shape is enough.
            if (now := (self.log_step, *[tensor.shape for tensor in tensors])) == checked or bare is update:
                return bare(*tensors)
            began, first, checked = time.perf_counter(), checked is None, now
            first and print(f"compiling {update.__name__} (about 20 s the first time) ...", flush=True)
            try:
                torch._dynamo.config.trace_autograd_ops = True  # right with fullgraph=True only
                metrics = guarded(*tensors)
                graph = torch._dynamo.eval_frame._debug_get_cache_entry_list(update)[0].code  # the one just used
                bare = type(update)(graph, update.__globals__, closure=update.__closure__)
            except (AttributeError, torch._dynamo.exc.TorchDynamoException) as error:  # raised before anything ran
                tqdm.write(f"compilation failed; continuing in eager mode: {error}".splitlines()[0], file=sys.stderr)
                guarded, bare, metrics = update, update, update(*tensors)
            self.log_time += time.perf_counter() - began if first else 0
            return metrics

        return compiled if guarded else update

    def cuda_graph(self, function):
        """`function` as one CUDA graph with --cuda-graph: one launch, not hundreds."""

        def calls():
            tensors = yield
            for _ in range(3):  # warm up
                tensors = yield function(*tensors)
            graph, inputs = torch.cuda.CUDAGraph(), [tensor.clone() for tensor in tensors]
            with torch.cuda.graph(graph):
                metrics = function(*inputs)
                values = torch.stack([*metrics.values()])
            while True:
                inputs and torch._foreach_copy_(inputs, tensors)
                graph.replay()
                tensors = yield dict(zip(metrics, values.clone()))  # the next replay overwrites them

        next(graphed := calls())
        return (lambda *tensors: graphed.send(tensors)) if self.args.cuda_graph else function

    def end(self):
        """Plays the final evaluation and returns its returns; exits with 128 + its number after a signal."""
        self.result = None if self.stop else self.evaluate()
        self.writer.close(), self.envs.close(), self.bar.close()
        Run.current = self.lock.release()
        print(f"stopped. Resume with --resume {self.dir}" if self.stop else f"finished: {self.dir}")
        self.args.track and __import__("wandb").finish(self.stop and 128 + self.stop)
        return sys.exit(128 + self.stop) if self.stop else self.result


# === speed
def numpy_forward(module, device, live=False):
    """`module` as a function of numpy arrays: a row of a small MLP takes 5 us, in torch 25. `live` follows training."""
    known = {torch.nn.Linear: None, torch.nn.Tanh: np.tanh, torch.nn.ReLU: lambda x: np.maximum(x, 0)}
    layers = [*module] if isinstance(module, torch.nn.Sequential) else [module]
    if any(type(layer) not in known for layer in layers) or (live and device.type != "cpu"):
        return lambda x: torch.no_grad()(module)(torch.as_tensor(x, device=device)).cpu().numpy()
    steps = [(known[type(m)], *(p.detach().cpu().numpy().T for p in m.parameters()), 0.0, 0.0)[:3] for m in layers]

    def numpy_module(x):
        y = x[0] if len(x) == 1 else x  # a vector times a matrix is faster than a matrix of one row
        for activation, weight, bias in steps:
            y = activation(y) if activation else np.dot(y, weight) + bias
        return y.reshape(len(x), -1)

    return numpy_module
