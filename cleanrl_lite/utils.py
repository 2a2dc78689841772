"""What the scripts share and no algorithm depends on: set-up, environments, runs, speed."""

import atexit
import functools
import json
import math
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path

if sys.platform == "linux" and not os.environ.get("DISPLAY"):
    # Render without a display. MuJoCo reads this when it is imported.
    opengl = find_library("EGL") and find_library("GL")
    os.environ.setdefault("MUJOCO_GL", "egl" if opengl else "disabled")
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
from tqdm import tqdm

# gymnasium about Hopper-v4 and its like, which papers report
warnings.filterwarnings("ignore", ".*is out of date")


# === set-up
def check(ok, message):
    """Refuses wrong input: unless `ok`, ends the program with one line and exit status 1."""
    if not ok:
        line = " ".join(message.split())  # a Box with uneven bounds prints many lines
        raise SystemExit(f"error: {line}")


def parse(Args):
    """The command line as `Args`; with --resume or --evaluate, the saved run's are the defaults."""
    sys.excepthook = explain
    words = [re.sub(r"(?<![^=])\d+\.?\d*e\d\d?$", write_out, word) for word in sys.argv[1:]]
    docstring = sys.modules["__main__"].__doc__ or ""
    args = tyro.cli(Args, args=words, description=docstring.partition("\n")[0])
    check(not (args.resume and args.evaluate), "--resume and --evaluate cannot be combined")
    path = args.evaluate or args.resume
    if path is None or path == "auto":
        return args
    saved = {**load(path)["args"], "resume": None, "evaluate": None}
    if args.evaluate:
        saved["capture_video"] = False
    vars(args).update(saved)
    return tyro.cli(Args, args=words, default=args)


def write_out(match):
    """1e6 as 1000000, which tyro accepts as an int."""
    return f"{float(match[0]):.15g}"


def explain(kind, error, trace):
    """sys.excepthook: one line for a full disk and the like, a traceback for bugs."""
    if kind is RuntimeError and isinstance(error.__context__, OSError):
        error = error.__context__  # torch.save's own words hide the reason
    if kind.__module__.startswith("wandb"):
        error = ConnectionError(f"W&B (WANDB_MODE=offline logs without it): {error}")
    expected = OSError, MemoryError, FloatingPointError, torch.OutOfMemoryError
    if isinstance(error, expected):
        print(f"error: {type(error).__name__}: {error}".splitlines()[0], file=sys.stderr)
    elif kind is not KeyboardInterrupt:
        sys.__excepthook__(kind, error, trace)


def setup(args):
    """Seeds all random generators; returns the device."""
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    graphs = device.type == "cuda" or args.evaluate or not args.cuda_graph
    check(graphs, "--cuda-graph needs a GPU")
    return device


def check_numbers(args):
    """Refuses NaN and negative numbers, and 0 for sizes and frequencies."""
    sizes = "envs steps episodes size len orders minibatches epochs"
    positive = (*sizes.split(), "frequency", "rate", "lr", "fraction", "clip_coef")
    limits = {"seed": 2**31, "threads": 1025}  # more threads are a segmentation fault
    for name, value in vars(args).items():
        flag = "--" + name.replace("_", "-")
        limit = limits.get(name, 2**53)
        if type(value) in (int, float) and name not in ("v_min", "v_max"):
            check(0 <= value < math.inf, f"{flag} must be finite and not negative, got {value}")
            check(value < limit, f"{flag} must be less than {limit}, got {value}")
            check(value or not name.endswith(positive), f"{flag} must be > 0, got {value}")


def leaves_no_trace(main):
    """Decorates main(args): refuses impossible numbers; leaves the process as it was.

    Threads, signal handlers and locks are afterwards as they were before.
    """

    @functools.wraps(main)
    def restoring(args):
        check_numbers(args)
        hook = sys.excepthook
        threads = torch.get_num_threads()
        torch.set_num_threads(args.threads or threads)
        try:
            with threadpool_limits(args.threads or None):  # numpy's BLAS
                return main(args)
        finally:
            sys.excepthook = hook  # W&B sets its own, which prints tracebacks
            torch.set_num_threads(threads)
            run = Run.under_way.get(threading.get_ident())
            if run:  # main raised an exception
                run.close(exit_code=1)

    return restoring


def rng_state():
    """The state of all random generators, as a checkpoint holds it."""
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
        "cpu": torch.get_rng_state(),
        "gpus": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def set_rng_state(state):
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    torch.cuda.set_rng_state_all(state["gpus"][: torch.cuda.device_count()])


def allocate(shape, dtype, device):
    """Zeros for a replay buffer; refused where they do not fit into memory."""
    if device.type == "cuda":
        return torch.zeros(shape, dtype=dtype, device=device)
    available = 0.9 * psutil.virtual_memory().available
    fits = int(available / math.prod(shape[1:]) / dtype.itemsize)
    check(shape[0] <= fits, f"--buffer-size {shape[0]} does not fit into memory; {fits} would")
    # numpy's zeros take memory only when they are written to.
    return torch.from_numpy(np.zeros(shape, str(dtype).removeprefix("torch.")))


# === environments
def make(args, render_mode=None, **kwargs):
    """gymnasium.make; turns its errors into one line, and goes on without rendering if it must."""
    errors = gym.error.Error, ImportError, TypeError, ValueError, AttributeError, AssertionError
    try:
        kwargs |= json.loads(args.env_kwargs)
        if render_mode and can_render(args.env_id, render_mode, kwargs):
            kwargs["render_mode"] = render_mode
        return gym.make(args.env_id, **kwargs)
    except errors as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
    if "gymnasium-robotics" in reason:
        reason = "gymnasium no longer has this version. Use v4 or v5"
    reason = re.sub(r"gymnasium\[(\w+)\]", r"cleanrl_lite[\1]", reason)
    ids = "Hopper-v4, my_module:Env-v0, or ALE/Breakout-v5 with *_atari.py"
    check(False, f"--env-id {args.env_id}: {reason} (--env-kwargs {args.env_kwargs}; ids: {ids})")


def can_render(env_id, render_mode, kwargs):
    """Draws one frame, to see whether that is possible here."""
    try:
        env = gym.make(env_id, render_mode=render_mode, **kwargs)
        env.reset()
        env.render()
        env.close()
    except Exception as error:
        needs = "Debian needs: libegl1 libgl1 libglib2.0-0"
        print(f"cannot render: {error!r}. {needs}", file=sys.stderr)
        return False
    return True


def flatten(env):
    """`env` with vectors as observations and floats as rewards; refuses images and text."""
    env = gym.wrappers.TransformReward(env, as_float)
    space = env.observation_space
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1:
        return env
    parts = space.items() if isinstance(space, gym.spaces.Dict) else [("space", space)]
    for name, part in parts:
        others = re.search(r"\b(?!Box|Discrete|Multi|Tuple|Dict)\w+\(", str(part))
        few = not others and gym.spaces.flatdim(part) <= 2000
        what = f"observation {name} is {part}, not a few numbers"
        check(few, f"{what}: leave it out or convert it. Images: ppo_image.py")
    return gym.wrappers.FlattenObservation(env)


def as_float(reward):
    """Some environments return an array of shape (1,)."""
    return reward if isinstance(reward, float) else float(np.sum(reward))


class VectorEnv(gym.vector.SyncVectorEnv):
    """SyncVectorEnv with SAME_STEP autoreset and no infos of ordinary steps.

    Refuses NaN and observations of another shape. What it returns belongs to the caller.
    """

    def step(self, actions):
        if not np.isfinite(actions).all():
            found = np.asarray(actions).tolist()
            raise FloatingPointError(f"the agent gave actions that are not finite: {found}")
        infos = {}
        actions = np.array(actions)  # a copy: an environment may change its action in place
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, reward, terminated, truncated, info = env.step(action)
            self.check_step(i, obs, reward)
            if terminated or truncated:
                kept = {name: info[name] for name in info.keys() & {"statistics", "is_success"}}
                # The trap: reset may write into the array of the last observation. So copy it.
                last = {"final_obs": np.array(obs), "final_info": kept}
                infos = self._add_info(infos, last, i)
                obs, _ = env.reset()
                self.check_step(i, obs)
            self._observations[i] = obs
            self._rewards[i] = reward
            self._terminations[i] = terminated
            self._truncations[i] = truncated
        arrays = self._observations, self._rewards, self._terminations, self._truncations
        return *(array.copy() for array in arrays), infos

    def check_step(self, i, obs, reward=0.0):
        shape = self.single_observation_space.shape
        if np.shape(obs) != shape or not (np.isfinite(obs).all() and math.isfinite(reward)):
            wrong = f"a shape other than {shape}, NaN or infinity"
            raise FloatingPointError(f"environment {i}: {wrong}: {obs}, reward {reward}")


class OwnRandomStream(gym.Wrapper):
    """Gives np.random a stream of its own in each process: a fork repeats the main process's."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            np.random.seed([seed, 1])
        return self.env.reset(seed=seed, options=options)


def vector_env(env_fns, async_envs, autoreset_mode):
    """All environments in this process, or each in its own."""
    if not async_envs:
        return VectorEnv(env_fns, autoreset_mode=autoreset_mode)
    atexit.register(kill_workers)
    workers = [functools.partial(in_worker, env_fn) for env_fn in env_fns]
    # Workers inherit what is blocked: Ctrl-C and SIGTERM are for the main process to handle.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        return gym.vector.AsyncVectorEnv(workers, autoreset_mode=autoreset_mode)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def in_worker(env_fn):
    copies = gym.wrappers.TransformObservation(env_fn(), np.array, None)
    return OwnRandomStream(copies)


def kill_workers():
    """Ends AsyncVectorEnv's processes, even those that hang."""
    for process in multiprocessing.active_children():
        if "AsyncVectorEnv" in process.name:
            process.kill()


# === evaluation
class Returns(list):
    """The returns of an evaluation's episodes; `dir` is the run directory."""


def evaluate_saved(args, script, make_env, agent):
    """--evaluate: plays --eval-episodes with a saved agent; their Returns."""
    saved = load(args.evaluate, script, args.env_id, agent)
    folder = f"eval_{time.time():.0f}"
    returns, _ = play(args, make_env, agent, saved["dir"], saved["global_step"], folder)
    return returns


@torch.no_grad()
def play(args, make_env, agent, directory, step, name, stopped=lambda: False):
    """The Returns and the lengths of --eval-episodes with agent.act, which {name}.json gets too.

    Leaves training's random numbers alone. None where stopped() is true.
    """
    state = rng_state()
    render_mode = "rgb_array" if args.capture_video else None
    env = make_env(args, "human" if args.render else render_mode)
    if args.capture_video and env.render_mode == "rgb_array":
        folder = directory / "videos" / (name if args.evaluate else f"step-{step}")
        env = gym.wrappers.RecordVideo(env, folder, lambda episode: episode == 0)
    agent.eval()  # Dropout and batch statistics are for training
    episodes = []
    while len(episodes) < args.eval_episodes and not stopped():
        # The first episode is seeded, the others go on with its random numbers.
        seed = None if episodes else args.seed + 10_000
        episodes.append(play_episode(env, agent, seed, stopped))
    env.close()
    agent.train()
    set_rng_state(state)
    if stopped():
        return None, None
    returns, lengths = map(Returns, zip(*episodes, strict=True))
    returns.dir = directory
    record = {
        "env_id": args.env_id,
        "global_step": step,
        "mean": float(np.mean(returns)),
        "std": float(np.std(returns)),
        "returns": returns,
        "lengths": lengths,
        "episodes": len(returns),
        "date": time.strftime("%FT%T%z"),
        "commit": git_commit(),
        "args": vars(args),
    }
    write_json(directory / f"{name}.json", record)
    mean = "mean return {mean:.2f} +- {std:.2f} over {episodes} episodes".format_map(record)
    tqdm.write(f"evaluation at step {step:,}: {mean}")
    return returns, lengths


def play_episode(env, agent, seed, stopped):
    """The return and length of one episode; an endless one is cut at 100,000 steps."""
    device = next(agent.parameters()).device
    space = env.action_space
    obs, _ = env.reset(seed=seed)
    total = 0.0
    length = 0
    over = False
    while not over:
        batch = torch.as_tensor(np.asarray(obs)[None], device=device)
        action = agent.act(batch)[0].cpu().numpy()[()]
        if isinstance(space, gym.spaces.Box):  # float32 may round to beyond the bounds
            action = np.clip(action, space.low, space.high).astype(space.dtype)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(np.sum(reward))
        length += 1
        over = terminated or truncated or length == 100_000 or stopped()
        if length % 10_000 == 0:
            tqdm.write(f"evaluation: step {length:,} of an episode; it is cut at 100,000")
    return total, length


def git_commit():
    """The commit of cleanrl_lite, -dirty where files differ from it; None outside of git."""
    words = ["git", "-C", str(Path(__file__).parent), "describe"]
    flags = ["--always", "--dirty", "--exclude=*"]
    with suppress(OSError):
        process = subprocess.run(words + flags, capture_output=True, text=True)
        return process.stdout.strip() or None
    return None


# === a run's files
def write_json(path, content):
    """In one step, so that the file is never half written."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)


def load(path, script=None, env_id=None, agent=None):
    """A checkpoint, or the one in a run directory, on the CPU; fills `agent`.

    Executes no code from the file. The replay buffer is read only when it is needed.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "checkpoint.pt"
    try:
        saved = torch.load(path, "cpu", weights_only=True, mmap=True)
        found = saved["args"]["env_id"]
        check(env_id in (None, found), f"{path} is of {found}, not of {env_id}")
        if agent:
            agent.load_state_dict(saved["agent"])
    except Exception as error:
        check(False, f"cannot load {path}: {type(error).__name__}: {str(error)[:200]}")
    if script and saved["script"] != Path(script).stem:  # as in a renamed copy
        print(f"note: {path} was saved by {saved['script']}.py, and loads in {Path(script).name}")
    saved["dir"] = path.resolve().parent
    return saved


def run_name(args):
    return re.sub("[/:]", "-", f"{args.env_id}__{args.exp_name}__{args.seed}__")


def new_directory(args, script):
    """Creates a run's directory and copies the script into it."""
    number = int(time.time())
    while (directory := Path(args.runs_dir, f"{run_name(args)}{number}")).exists():
        number += 1
    directory.mkdir(parents=True)
    (directory / script.name).write_text(script.read_text())
    return directory


def last_directory(args, script):
    """--resume auto: the newest run with a checkpoint and these arguments, or None."""
    wanted = {"script": script.stem, **vars(args)}
    found = {}
    for path in Path(args.runs_dir).glob("*/checkpoint.pt"):
        if path.parent.name.startswith(run_name(args)):
            with suppress(SystemExit):  # load refuses a broken one
                saved = load(path)
                if {"script": saved["script"], **saved["args"], "resume": "auto"} == wanted:
                    found[path.stat().st_mtime] = path.parent
    return found[max(found)] if found else None


def lock(directory):
    """Reserves a run directory until the process ends, even by SIGKILL."""
    file_lock = FileLock(directory / "lock", timeout=0)
    with suppress(Timeout):
        file_lock.acquire()
    check(file_lock.is_locked, f"{directory} is in use by another run")
    return file_lock


def pickle_envs(envs, obs):
    """The environments in the middle of their episodes, or None where that is impossible."""
    with suppress(Exception):  # Box2D cannot be pickled, workers are elsewhere
        unwrapped = [env.unwrapped for env in envs.envs]
        if all(type(env).__module__.startswith("gymnasium.") for env in unwrapped):
            # MuJoCo's environments pickle only how they were made: so their attributes too.
            attributes = [vars(env) for env in unwrapped]
            return cloudpickle.dumps((envs.envs, attributes, obs, envs.action_space.np_random))
    return None


def unpickle_envs(envs, pickled):
    """Puts the environments back; returns their observations."""
    envs.envs, attributes, obs, envs.action_space._np_random = cloudpickle.loads(pickled)
    for env, saved in zip(envs.envs, attributes, strict=True):
        vars(env.unwrapped).update(saved)
    return obs


# === runs
class Run:
    """A run's directory, checkpoints of the agent and `parts`, evaluations and console."""

    under_way = {}  # noqa: RUF012  by thread: a process may have several

    def __init__(self, args, script, make_env, envs, agent, **parts):
        self.args = args
        self.script = Path(script)
        self.make_env = make_env
        self.envs = envs
        self.agent = agent
        self.parts = {"agent": agent, **parts}
        self.device = next(agent.parameters()).device
        self.writer = None  # the script's SummaryWriter
        self.values = {}  # goes_on()'s of a checkpoint, if its episodes go on
        self.returns = []  # of the last 20 episodes, for the console
        self.stop = 0  # the number of the signal that asks the run to stop
        self.handlers = {}  # the signals' before this run

        path = last_directory(args, self.script) if args.resume == "auto" else args.resume
        saved = load(path, script, args.env_id, agent) if path else {}
        step = self.global_step = self.last_eval = self.log_step = saved.get("global_step", 0)
        self.last_save = step if saved else -1  # -1: save at once
        self.log_time = None
        self.print_time = time.perf_counter()
        total = args.total_timesteps
        # disable=None: unless this is a terminal
        self.bar = tqdm(initial=step, total=total, unit="step", file=sys.stdout, disable=None)
        self.dir = saved["dir"] if saved else new_directory(args, self.script)
        self.lock = lock(self.dir)
        Run.under_way[threading.get_ident()] = self  # leaves_no_trace closes it, whatever happens
        if saved:
            self.restore(saved)
        else:
            self.reset_envs()
        write_json(self.dir / "args.json", {"script": self.script.stem, **vars(args)})
        print(f"run directory: {self.dir}")
        print(f"{self.device}, torch {torch.__version__}, gymnasium {gym.__version__}")
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.handlers[number] = signal.signal(number, self.on_signal)

    def reset_envs(self):
        """Seeds that no other environment, seed or resumed run has, nor the random actions."""
        seed = self.args.seed
        num_envs = self.args.num_envs
        streams = np.random.SeedSequence([seed, self.global_step]).generate_state(num_envs + 1)
        seeds = [int(stream) >> 1 for stream in streams]  # Atari takes 31 bits
        if self.global_step == 0:
            seeds[0] = seed
        self.envs.action_space.seed(seeds.pop())
        self.obs, _ = self.envs.reset(seed=seeds)

    def restore(self, saved):
        """Continues the run from its checkpoint."""
        whole = isinstance(saved.get("rng"), dict)
        check(whole, f"{self.dir} holds the networks only, or is of an older version: evaluate it")
        flags = vars(self.args)
        changed = {name for name, value in saved["args"].items() if value != flags.get(name)}
        fixed = changed & {"num_envs", "buffer_size"}
        check(not fixed, "a resumed run keeps its --num-envs and --buffer-size")
        self.reset_envs()
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])
        set_rng_state(saved["rng"])
        others = {"async_envs", "env_kwargs", "max_episode_steps", "mask"}
        if saved["envs"] and not changed & others:
            self.obs = unpickle_envs(self.envs, saved["envs"])
            self.values = saved["values"]

    def on_signal(self, number, _):
        """Asks the loop to stop at its next goes_on(); a second Ctrl-C interrupts at once."""
        self.stop = number
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def goes_on(self, global_step, obs, **values):
        """Evaluates and saves where that is due; False at the end.

        `values` belong to the unfinished episodes: saved and restored with the environments.
        """
        began = time.perf_counter()
        args = self.args
        self.log_time = self.log_time or began
        finished = global_step >= args.total_timesteps
        self.global_step = global_step
        if is_due(args.eval_every, self.last_eval, global_step) and not finished:
            self.evaluate()
        stop = self.stop
        if is_due(args.save_every, self.last_save, global_step) or finished or stop:
            self.save(obs, values)
        self.log_time += time.perf_counter() - began  # not counted in charts/SPS
        return not (finished or stop)

    def save(self, obs, values):
        """Writes checkpoint.pt: at any moment the file is a complete one."""
        weights = self.agent.state_dict()
        for name, weight in weights.items():
            if not weight.isfinite().all():  # and so never replaces a good one
                raise FloatingPointError(f"{name} is not finite")
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state["script"] = self.script.stem
        state["args"] = vars(self.args)
        state["global_step"] = self.global_step
        state["values"] = values
        state["rng"] = rng_state()
        state["envs"] = pickle_envs(self.envs, obs)
        self.writer.flush()  # what was logged up to this step, a resumed run does not log again
        temporary = self.dir / "checkpoint.tmp"
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.dir / "checkpoint.pt")
        if self.last_save < 1 and "obs_stats.mean" not in weights and np.abs(obs).max() > 1e3:
            advice = "most agents fail to learn. See docs/guides/environments.md"
            tqdm.write(f"warning: observations beyond 1,000: {advice}")
        self.last_save = self.global_step

    def evaluate(self):
        """Plays --eval-episodes and logs them; returns their Returns, or None after a signal."""
        step = self.global_step
        returns, lengths = play(
            self.args, self.make_env, self.agent, self.dir, step, "eval", lambda: self.stop
        )
        if returns:
            self.last_eval = step
            self.writer.add_scalar("eval/episodic_return", np.mean(returns), step)
            self.writer.add_scalar("eval/episodic_length", np.mean(lengths), step)
        if self.args.track:
            import wandb

            for video in (self.dir / "videos" / f"step-{step}").glob("*.mp4"):
                wandb.log({"eval/video": wandb.Video(str(video), format="mp4")})
        return returns

    def finished_episodes(self, infos):
        """(index, return, length) of every environment whose episode ended in this step."""
        if "_final_info" not in infos:
            return []
        ended = np.flatnonzero(infos["_final_info"]).tolist()
        statistics = infos["final_info"]["statistics"]
        returns = statistics["r"][ended].tolist()
        self.returns = [*self.returns, *returns][-20:]
        return list(zip(ended, returns, statistics["l"][ended].tolist(), strict=True))

    def log(self, scalars, global_step):
        """Writes {tag: tensor or number} and the speed; raises FloatingPointError for NaN."""
        now = time.perf_counter()
        sps = (global_step - self.log_step) / (now - self.log_time)
        for tag, scalar in {**scalars, "charts/SPS": sps}.items():
            value = float(scalar)
            if not math.isfinite(value):
                raise FloatingPointError(f"{tag} is {value}")
            self.writer.add_scalar(tag, value, global_step)
        self.global_step = self.log_step = global_step
        self.log_time = now
        self.show_progress(now, sps)

    def show_progress(self, now, sps):
        """Moves the bar on a terminal; elsewhere prints a line every ten seconds."""
        bar = self.bar
        mean = f"return {np.mean(self.returns):.1f}" if self.returns else "no episode has ended"
        bar.set_postfix_str(mean, refresh=False)
        bar.update(self.global_step - bar.n)
        left = max(bar.total - self.global_step, 0)
        if bar.disable and (now - self.print_time > 10 or left == 0):
            self.print_time = now
            step = f"step {self.global_step:,} of {bar.total:,}"
            print(f"{step} | {sps:,.0f} SPS | {mean} | {left / sps:.0f} s left", flush=True)

    def compile(self, update):
        """`update(*tensors) -> dict of tensors` as one compiled graph; eager with --no-compile."""
        return CompiledUpdate(self, update) if self.args.compile else update

    def cuda_graph(self, function):
        """`function` as one CUDA graph with --cuda-graph: one launch, not hundreds."""
        return CudaGraph(function) if self.args.cuda_graph else function

    def end(self):
        """Plays the final evaluation and returns its Returns; after a signal, exits."""
        returns = None if self.stop else self.evaluate()
        self.envs.close()
        exit_code = 128 + self.stop if self.stop else 0
        self.close(exit_code)
        if exit_code:
            sys.exit(exit_code)
        return returns

    def close(self, exit_code):
        """Leaves nothing behind but files, and says how to resume."""
        Run.under_way.pop(threading.get_ident(), None)
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        for process in getattr(self.envs, "processes", []):
            process.kill()
        self.bar.close()
        self.lock.release()
        if self.writer:
            self.writer.close()
        if self.args.compile:
            trace_autograd(False)
        if self.args.track:
            import wandb

            wandb.finish(exit_code)
        if not exit_code:
            print(f"finished: {self.dir}")
        elif self.last_save >= 0:
            print(f"stopped. Resume at step {self.last_save:,} with --resume {self.dir}")


def is_due(every, last, step):
    """Whether `step` has passed a multiple of `every` since `last` (0: only if last is -1)."""
    every = every or math.inf
    return step // every > last // every


# === speed
class CompiledUpdate:
    """update(*tensors) as one graph. At every call torch itself checks whether it still fits.

    Where it cannot be compiled, it goes on in eager mode, and says so. No call is lost or made
    twice: torch compiles before it runs anything.
    """

    def __init__(self, run, update):
        update.__code__ = update.__code__.replace()  # each run in a process compiles its own
        trace_autograd(True)
        options = {"cpp_wrapper": run.device.type == "cpu", "cpp.use_decompose_tanh": True}
        options = {name: options[name] for name in options.keys() & torch._inductor.list_options()}
        self.compiled = torch.compile(update, fullgraph=True, dynamic=False, options=options)
        self.update = update
        self.run = run
        self.called = False

    def __call__(self, *tensors):
        if self.called:
            return self.call(tensors)
        print(f"compiling {self.update.__name__} (about 20 s the first time) ...", flush=True)
        self.called = True
        began = time.perf_counter()
        metrics = self.call(tensors)
        self.run.log_time += time.perf_counter() - began  # not counted in charts/SPS
        return metrics

    def call(self, tensors):
        too_often = getattr(torch._dynamo.exc, "FailOnRecompileLimitHit", ())
        try:
            return self.compiled(*tensors)
        except too_often:
            reason = f"{self.update.__name__} reads a Python number or list that changes"
            reason += "; keep it in a tensor, and change that with fill_"
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = "compilation failed: " + str(error).splitlines()[0]
        tqdm.write(f"continuing in eager mode: {reason}", file=sys.stderr)
        self.compiled = self.update
        return self.update(*tensors)


def trace_autograd(on):
    """Lets torch.compile see torch.autograd.grad: right with fullgraph=True only."""
    if hasattr(torch._dynamo.config, "trace_autograd_ops"):
        torch._dynamo.config.trace_autograd_ops = on


class CudaGraph:
    """function(*tensors) -> dict of tensors, recorded at its fourth call and then replayed."""

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def __call__(self, *tensors):
        self.calls += 1
        if self.calls <= 3:  # warm up
            return self.function(*tensors)
        if self.calls == 4:
            self.record(tensors)
        for static, tensor in zip(self.inputs, tensors, strict=True):
            static.copy_(tensor)
        self.graph.replay()
        values = self.values.clone()  # the next replay overwrites them
        return dict(zip(self.names, values, strict=True))

    def record(self, tensors):
        self.inputs = [tensor.clone() for tensor in tensors]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            metrics = self.function(*self.inputs)
            self.values = torch.stack(list(metrics.values()))
        self.names = list(metrics)


class NumpyForward:
    """`module` as a function of numpy arrays: a row of a small MLP takes 5 us, in torch 25.

    For Linear, Tanh, ReLU and an nn.Sequential of them. At the first and every hundredth call it
    reads the layers anew and compares a row with torch, to which it falls back if they differ.
    Where weights change between calls, `module` is a function that gives the module of now. On a
    GPU such weights stay there.
    """

    def __init__(self, module, device):
        self.live = not isinstance(module, torch.nn.Module)
        self.module = module if self.live else lambda: module
        self.device = device
        self.calls = 0

    def __call__(self, x):
        if self.calls % 100 == 0:
            self.read_layers(x[:1] + 1)  # not all zeros, where different networks agree
        self.calls += 1
        return self.forward(x)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    @torch.no_grad()
    def in_torch(self, x):
        return self.module()(torch.as_tensor(x, device=self.device)).cpu().numpy()

    def read_layers(self, row):
        module = self.module()
        layers = list(module) if type(module) is torch.nn.Sequential else [module]
        self.layers = [in_numpy(layer) for layer in layers]
        hooked = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
        known = None not in self.layers and not hooked
        if self.live and self.device.type == "cuda":
            self.layers = [self.in_torch]
        elif not known or not np.allclose(self.forward(row), self.in_torch(row), 1e-3, 1e-4):
            self.layers = [self.in_torch]
            name = type(module).__name__
            say_once(f"{name} acts in torch, not in numpy, which knows Linear, Tanh and ReLU")


@functools.cache
def say_once(line):
    print(line, file=sys.stderr)


def in_numpy(layer):
    """A layer as a function of numpy arrays; None if it is none of these."""
    params = dict(layer.named_parameters())
    if type(layer) is torch.nn.Linear and params.keys() == {"weight", "bias"}:  # no weight_norm
        weight = params["weight"].detach().cpu().numpy().T
        bias = params["bias"].detach().cpu().numpy()
        return lambda x: np.dot(x, weight) + bias
    return {torch.nn.Tanh: np.tanh, torch.nn.ReLU: relu}.get(type(layer))


def relu(x):
    return np.maximum(x, 0)


def check_actions(taken, expected):
    """Stops where agent(obs) with the same noise gives other actions than those taken."""
    differ = ~torch.isclose(taken, expected, rtol=1e-3, atol=1e-3, equal_nan=True)
    few = differ.sum() <= 1 + 0.001 * differ.numel()  # where two choices are equally good
    check(few, "the policy that acts is not the one that learns: change both")
