"""What all scripts share: set-up, environments, runs, speed. No algorithm is in it."""

import functools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from contextlib import ExitStack, suppress
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
from filelock import FileLock
from threadpoolctl import threadpool_limits
from tqdm import tqdm

# Papers report Hopper-v4 and its like; gymnasium warns that they are out of date.
warnings.filterwarnings("ignore", ".*is out of date")


# === set-up
def check(ok, message):
    """Refuses wrong input: unless `ok`, ends the program with one line and exit status 1."""
    if not ok:  # one line: the text of a Box with uneven bounds has several
        raise SystemExit("error: " + " ".join(message.split()))


def parse(Args):
    """The command line as `Args`; with --resume or --evaluate, the saved run's are the defaults."""
    sys.excepthook = explain
    words = [re.sub(r"^(--[\w-]+=)?(\d+\.?\d*e\d\d?)$", write_out, word) for word in sys.argv[1:]]
    docstring = sys.modules["__main__"].__doc__ or ""
    args = tyro.cli(Args, args=words, description=docstring.partition("\n")[0])
    check(not (args.resume and args.evaluate), "--resume and --evaluate cannot be combined")
    path = args.evaluate or args.resume
    if path in (None, "auto"):
        return args
    saved = load(path)["args"]
    if args.evaluate:
        saved |= {"resume": None, "capture_video": False}
    vars(args).update(saved)
    return tyro.cli(Args, args=words, default=args)


def write_out(match):
    """1e6 as 1000000, which tyro accepts as an int."""
    return f"{match[1] or ''}{float(match[2]):.15g}"


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
    cuda = args.cuda and torch.cuda.is_available()
    check(
        cuda or args.evaluate or not getattr(args, "cuda_graph", False), "--cuda-graph needs a GPU"
    )
    blind = args.render and os.environ.get("SDL_VIDEODRIVER") == "offscreen"
    check(not blind, "--render needs a display; --capture-video does not")
    return torch.device("cuda" if cuda else "cpu")


def check_numbers(args):
    """Refuses NaN and, unless a flag's default is such, negative numbers and sizes of 0.

    gamma, tau, lambdas and epsilons must be at most 1.
    """
    positive = (
        "(envs|steps|episodes|size|len|orders|minibatches|epochs|frequency"
        "|rate|lr|fraction|clip_coef|grad_norm)$"
    )
    for name, value in vars(args).items():
        if type(value) in (int, float):
            flag = "--" + name.replace("_", "-")
            default = getattr(type(args), name, None)
            low = -1e15 if name == "v_max" or (default or 0) < 0 else 0
            high = 1 if re.fullmatch(r"gamma|tau|\w+_(lambda|e)", name) else 1e15
            check(low <= value <= high, f"{flag} must be from {low:g} to {high:g}, got {value}")
            sized = default != 0 and re.search(positive, name)
            check(value or not sized, f"{flag} must be > 0, got {value}")
    check(args.seed < 2**31, f"--seed must be less than {2**31}, got {args.seed}")


current = threading.local()  # .run: the run under way, one in each thread


def leaves_no_trace(main):
    """Decorates main(args): refuses impossible numbers, and tidies up.

    Threads, signal handlers and locks are afterwards as they were before. Random generators
    are not: main seeds them.
    """

    @functools.wraps(main)
    def restoring(args):
        check_numbers(args)
        current.run = None
        hook = sys.excepthook
        threads = torch.get_num_threads()
        torch.set_num_threads(args.threads or threads)
        try:
            # A compiled update that fails can leave gradients switched off; threads: numpy's BLAS.
            with torch.enable_grad(), threadpool_limits(args.threads or None):
                return main(args)
        finally:
            sys.excepthook = hook  # W&B sets its own, which prints tracebacks
            torch.set_num_threads(threads)
            if current.run:  # main raised an exception
                current.run.close(exit_code=1)

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
    rendering = {"render_mode": render_mode} if render_mode else {}
    try:
        kwargs |= json.loads(args.env_kwargs)
        env = gym.make(args.env_id, **rendering, **kwargs)
        if render_mode:  # Is that possible here?
            env.reset()
            env.render()
        return env
    except Exception as error:
        reason = str(error) or repr(error)
    if render_mode:
        print(
            f"cannot render: {reason}. On Debian, MuJoCo needs: libegl1 libgl1 libglib2.0-0",
            file=sys.stderr,
        )
        return make(args, **kwargs)
    advice = "ids are like Hopper-v4, my_module:Env-v0, or ALE/Breakout-v5 with ppo_atari.py"
    package = args.env_id.partition("/")[0]
    if "Namespace" in reason and package != "ALE":
        lines = f"import gymnasium, {package}; gymnasium.register_envs({package})"
        advice = f"write a my_envs.py with '{lines}', then --env-id my_envs:{args.env_id}"
    elif args.env_kwargs != "{}":
        advice = f"--env-kwargs {args.env_kwargs}"
    check(False, f"--env-id {args.env_id}: {reason} ({advice})")


def flatten(env):
    """`env` with vectors as observations and floats as rewards; refuses images and text."""
    env = gym.wrappers.TransformReward(env, as_float)
    space = env.observation_space
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1:
        return env
    # Text, Sequence, Graph, a space of one's own
    others = re.search(r"\b(?!Box|Discrete|Multi|Tuple|Dict)\w+\(", str(space))
    check(
        not others and gym.spaces.flatdim(space) <= 2000,
        f"the observation space is {space}, not a few numbers: "
        "leave parts out or convert them. Images: ppo_image.py; Atari games: ppo_atari.py",
    )
    return gym.wrappers.FlattenObservation(env)


def as_float(reward):
    """Some environments return an array of shape (1,)."""
    return reward if isinstance(reward, float) else float(np.sum(reward))


class VectorEnv(gym.vector.SyncVectorEnv):
    """SyncVectorEnv with SAME_STEP autoreset and no infos of ordinary steps.

    Refuses NaN and observations of another shape. What it returns belongs to the caller.
    """

    def step(self, actions):
        actions = np.array(actions)  # a copy: an environment may change its action in place
        if actions.dtype.kind == "f" and not np.isfinite(actions).all():
            raise FloatingPointError(f"the agent's actions are not finite: {actions.tolist()}")
        infos = {}
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, reward, terminated, truncated, info = env.step(action)
            self.check_step(i, obs, reward)
            if terminated or truncated:
                kept = {name: info[name] for name in info.keys() & {"statistics", "is_success"}}
                # The trap: reset may write into the array of the last observation. So copy it.
                infos = self._add_info(infos, {"final_obs": np.array(obs), "final_info": kept}, i)
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
        right = np.shape(obs) == shape and abs(reward) < 3e38  # where float32 ends
        # vdot is fast, but says nothing where it overflows
        if right and (float(np.vdot(obs, obs)) < 1e76 or np.isfinite(np.float32(obs)).all()):
            return
        raise FloatingPointError(
            f"environment {i}: not of shape {shape}, or not finite: {obs}, reward {reward}"
        )


class InWorker(gym.Wrapper):
    """An environment in a process of its own, with random numbers of its own.

    A fork repeats the main process's. Ctrl-C and SIGTERM are for the main process to handle.
    """

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            own = 2**31 + seed  # seed itself: the main process may have it
            random.seed(own)
            np.random.seed(own)
            torch.manual_seed(own)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        return self.env.reset(seed=seed, options=options)


def vector_env(env_fns, async_envs, autoreset_mode):
    """All environments in this process, or each in its own."""
    check(autoreset_mode is gym.vector.AutoresetMode.SAME_STEP, "only SAME_STEP is possible")
    if not async_envs:
        return VectorEnv(env_fns, autoreset_mode=autoreset_mode)
    workers = [functools.partial(in_worker, env_fn) for env_fn in env_fns]
    return gym.vector.AsyncVectorEnv(workers, autoreset_mode=autoreset_mode)


def in_worker(env_fn):
    # np.array: a copy, where an environment returns the same array again
    return InWorker(gym.wrappers.TransformObservation(env_fn(), np.array, None))


# === evaluation
class Returns(list):
    """The returns of an evaluation's episodes; .lengths too, and .dir, the run directory."""


def evaluate_saved(args, make_env, agent):
    """--evaluate: plays --eval-episodes with a saved agent; their Returns."""
    saved = load(args.evaluate, args.env_id, agent)
    return play(args, make_env, agent, saved["dir"], saved["global_step"])


@torch.no_grad()
def play(args, make_env, agent, directory, step, stopped=lambda: False):
    """Plays --eval-episodes with agent.act, writes the .json file, returns their Returns.

    Training's random numbers stay as they are. None if stopped() becomes true.
    """
    name = f"eval_{time.time():.0f}" if args.evaluate else "eval"
    state = rng_state()
    render_mode = "rgb_array" if args.capture_video else None
    env = make_env(args, "human" if args.render else render_mode)
    if args.capture_video and env.render_mode == "rgb_array":
        folder = directory / "videos" / (name if args.evaluate else f"step-{step}")
        env = gym.wrappers.RecordVideo(env, folder, lambda episode: episode == 0)
        tqdm.write(f"video: {folder}")
    env = gym.wrappers.TimeLimit(env, 100_000)  # cuts an endless episode
    env = gym.wrappers.RecordEpisodeStatistics(env, args.eval_episodes, stats_key="evaluation")
    modes = [(module, module.training) for module in agent.modules()]
    agent.eval()  # Dropout and batch statistics are for training
    seed = args.seed + 10_000
    while len(env.return_queue) < args.eval_episodes and not stopped():
        play_episode(env, agent, seed, stopped)
        seed = None  # The other episodes go on with its random numbers.
    env.close()
    for module, mode in modes:
        module.training = mode
    set_rng_state(state)
    if stopped():
        return None
    returns = Returns(map(float, env.return_queue))
    returns.lengths = list(env.length_queue)
    returns.dir = directory
    record = {
        "env_id": args.env_id,
        "global_step": step,
        "mean": float(np.mean(returns)),
        "std": float(np.std(returns)),
        "returns": returns,
        "lengths": returns.lengths,
        "episodes": len(returns),
        "date": time.strftime("%FT%T%z"),
        "commit": git_commit(),
        "args": vars(args),
    }
    write_json(directory / f"{name}.json", record)
    mean = f"mean return {record['mean']:.2f} +- {record['std']:.2f}"
    tqdm.write(f"evaluation at step {step:,}: {mean} over {len(returns)} episodes")
    return returns


def play_episode(env, agent, seed, stopped):
    """An episode with agent.act."""
    device = next(agent.parameters()).device
    space = env.action_space
    obs, _ = env.reset(seed=seed)
    over = False
    while not (over or stopped()):
        batch = torch.as_tensor(np.asarray(obs)[None], device=device)
        action = agent.act(batch)[0].cpu().numpy()[()]  # [()]: a number for Discrete
        if isinstance(space, gym.spaces.Box):  # float32 may round to beyond the bounds
            action = np.clip(action, space.low, space.high).astype(space.dtype)
        obs, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated


@functools.cache
def git_commit():
    """cleanrl_lite's commit at the first call, -dirty where files differ; None outside of git."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    with suppress(OSError):
        done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True)
        return done.stdout.strip() or None


# === a run's files
def write_json(path, content):
    """In one step, so that the file is never half written."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2))
    temporary.replace(path)


def load(path, env_id=None, agent=None):
    """A checkpoint, or the one in a run directory, on the CPU; fills `agent`.

    Executes no code from the file. The replay buffer is read only when it is needed.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "checkpoint.pt"
    try:
        saved = torch.load(path, "cpu", weights_only=True, mmap=True)
        found = saved["args"]["env_id"]
        if agent:
            agent.load_state_dict(saved["agent"])
            print(f"loading {path}, which {saved['script']}.py saved")
            if found != env_id:
                print(f"warning: it was trained in {found}, not in {env_id}")
    except Exception as error:
        check(False, f"cannot load {path}: {error!r:.200} (wanted: a run directory of this script)")
    saved["dir"] = path.resolve().parent
    return saved


def new_directory(args):
    """Creates a run's directory."""
    name = re.sub("[/:]", "-", f"{args.env_id}__{args.exp_name}__{args.seed}")
    number = int(time.time())
    while (directory := Path(args.runs_dir, f"{name}__{number}")).exists():
        number += 1
    directory.mkdir(parents=True)
    return directory


def last_checkpoint(args, script):
    """--resume auto: the newest checkpoint of a run with these arguments, or None."""
    wanted = {"script": script.stem, **vars(args)}
    found = []
    for path in Path(args.runs_dir).glob("*/args.json"):
        same = {**json.loads(path.read_text()), "resume": "auto"} == wanted
        checkpoint = path.with_name("checkpoint.pt")
        if same and checkpoint.exists():
            found.append(checkpoint)
    return max(found, key=os.path.getmtime, default=None)


def pickle_envs(envs, obs):
    """The environments in the middle of their episodes, or None where that is impossible."""
    with suppress(Exception):  # Box2D cannot be pickled, workers are elsewhere
        unwrapped = [env.unwrapped for env in envs.envs]
        if all(type(env).__module__.startswith("gymnasium.") for env in unwrapped):
            # MuJoCo's environments pickle only how they were made: so their attributes too.
            attributes = [vars(env) for env in unwrapped]
            return cloudpickle.dumps((envs.envs, attributes, obs, envs.action_space.np_random))


def unpickle_envs(envs, pickled):
    """Puts the environments back; returns their observations."""
    envs.envs, attributes, obs, envs.action_space._np_random = cloudpickle.loads(pickled)
    for env, saved in zip(envs.envs, attributes, strict=True):
        vars(env.unwrapped).update(saved)
    return obs


# === runs
class Run:
    """A run's directory, checkpoints of the agent and `parts`, evaluations and console."""

    def __init__(self, args, script, make_env, envs, agent, **parts):
        script = Path(script)
        self.args = args
        self.script = script.stem
        self.make_env = make_env
        self.envs = envs
        self.agent = agent
        self.parts = {"agent": agent, **parts}
        check_trained(agent, parts.values())
        git_commit()  # now: at the end the checkout may be at another
        self.device = next(agent.parameters()).device
        self.writer = None  # the script's SummaryWriter
        self.values = {}  # what goes_on() was given, if a checkpoint's episodes go on
        self.returns = deque(maxlen=20)  # of the last episodes, for the console
        self.stop = 0  # the exit status with which a signal asks the run to end
        self.undo = ExitStack()  # what close() does

        path = last_checkpoint(args, script) if args.resume == "auto" else args.resume
        saved = load(path, args.env_id, agent) if path else {}
        step = self.global_step = saved.get("global_step", 0)
        self.last_eval = saved.get("last_eval", step)
        self.last_save = step if saved else -1  # -1: save at once
        # disable=None: unless this is a terminal
        self.bar = tqdm(initial=step, total=args.total_timesteps, file=sys.stdout, disable=None)
        self.dir = saved["dir"] if saved else new_directory(args)
        self.undo.enter_context(FileLock(self.dir / "lock", timeout=0))  # for one process only
        current.run = self  # leaves_no_trace closes it, whatever happens
        self.reset_envs()
        copy = self.dir / script.name
        same = copy.exists() and copy.read_text() == script.read_text()
        if saved:
            self.restore(saved, same and saved["script"] == self.script)
        if not same:
            shutil.copy(script, copy)
        write_json(self.dir / "args.json", {"script": self.script, **vars(args)})
        print(f"run directory: {self.dir}")
        if saved and step >= args.total_timesteps:
            print(f"nothing is left to train: it is at step {step:,} of {args.total_timesteps:,}")
        print(f"{self.device}, torch {torch.__version__}, gymnasium {gym.__version__}")
        self.catch_signals()
        self.log_time = self.print_time = time.perf_counter()

    def reset_envs(self):
        """Resets the environments, each with a seed of its own, and seeds the random actions.

        A resumed run has other seeds: its new episodes are not the first ones again.
        """
        seed = self.args.seed
        streams = np.random.SeedSequence([seed, self.global_step])
        seeds = (streams.generate_state(self.args.num_envs + 1) >> 1).tolist()  # Atari: 31 bits
        if self.global_step == 0:
            seeds[0] = seed
        self.envs.action_space.seed(seeds.pop())
        self.obs, _ = self.envs.reset(seed=seeds)

    def restore(self, saved, same_script):
        """Continues the run from its checkpoint."""
        whole = isinstance(saved.get("rng"), dict)
        check(whole, f"{self.dir} holds the networks only, or is of an older version: evaluate it")
        changed = {name for name, _ in saved["args"].items() - vars(self.args).items()}
        fixed = {"num_envs", "buffer_size"}
        check(not changed & fixed, "a resumed run keeps its --num-envs and --buffer-size")
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])
        set_rng_state(saved["rng"])
        # make_env may read them
        names = list(vars(self.args))
        algorithm_flags = set(names[names.index("env_id") :]) - {"total_timesteps"}
        if not same_script:
            print("the script has changed, so new episodes begin")
        elif saved["envs"] and not changed & {"async_envs", *algorithm_flags}:
            self.obs = unpickle_envs(self.envs, saved["envs"])
            self.values = saved["values"]

    def catch_signals(self):
        with suppress(ValueError):  # Signals are for the main thread.
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.signal(number, self.on_signal)
                self.undo.callback(signal.signal, number, handler)

    def on_signal(self, number, _):
        """Asks the loop to stop at its next goes_on(); a second Ctrl-C interrupts at once."""
        self.stop = 128 + number
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def goes_on(self, global_step, obs, **values):
        """Evaluates and saves where that is due; False at the end.

        `values` belong to the unfinished episodes: saved and restored with the environments.
        """
        over = self.stop or global_step >= self.args.total_timesteps
        self.global_step = global_step
        if not over and is_due(self.args.eval_every, self.last_eval, global_step):
            over = not self.evaluate()  # after a signal, the resumed run makes it again
        if over or is_due(self.args.save_every, self.last_save, global_step):
            self.save(obs, values)
        return not over

    def save(self, obs, values):
        """Writes checkpoint.pt: at any moment the file is a complete one."""
        weights = self.agent.state_dict()
        for name, weight in weights.items():
            if not weight.isfinite().all():  # and so never replaces a good one
                raise FloatingPointError(f"{name} is not finite")
        if self.last_save < 1 and "obs_stats.mean" not in weights and np.abs(obs).max() > 1e3:
            tqdm.write("warning: observations beyond 1,000. See docs/guides/environments.md")
        state = {
            **{name: part.state_dict() for name, part in self.parts.items()},
            "script": self.script,
            "args": vars(self.args),
            "global_step": self.global_step,
            "last_eval": self.last_eval,
            "values": values,
            "rng": rng_state(),
            "envs": pickle_envs(self.envs, obs),
        }
        self.writer.flush()  # a resumed run does not log the steps up to here again
        temporary = self.dir / "checkpoint.tmp"
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.dir / "checkpoint.pt")
        self.last_save = self.global_step

    def evaluate(self):
        """Plays --eval-episodes and logs them; returns their Returns, or None after a signal."""
        step = self.global_step
        returns = play(self.args, self.make_env, self.agent, self.dir, step, lambda: self.stop)
        if returns:
            self.last_eval = step
            self.writer.add_scalar("eval/episodic_return", np.mean(returns), step)
            self.writer.add_scalar("eval/episodic_length", np.mean(returns.lengths), step)
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
        self.returns.extend(returns)
        return list(zip(ended, returns, statistics["l"][ended].tolist(), strict=True))

    def log(self, scalars, global_step):
        """Writes {tag: tensor or number} and the speed; raises FloatingPointError for NaN.

        Moves the bar on a terminal; elsewhere prints a line every ten seconds.
        """
        now = time.perf_counter()
        bar = self.bar
        sps = (global_step - bar.n) / (now - self.log_time)
        for tag, scalar in {**scalars, "charts/SPS": sps}.items():
            value = float(scalar)
            if not math.isfinite(value):
                raise FloatingPointError(f"{tag} is {value}")
            self.writer.add_scalar(tag, value, global_step)
        self.log_time = now
        mean = f"return {np.mean(self.returns):.1f}" if self.returns else "no episode has ended"
        bar.set_postfix_str(mean, refresh=False)
        bar.update(global_step - bar.n)
        bar.n = global_step  # also where there is no terminal
        if bar.disable and (now - self.print_time > 10 or global_step >= bar.total):
            self.print_time = now
            print(f"step {global_step:,} of {bar.total:,} | {sps:,.0f} SPS | {mean}", flush=True)

    def compile(self, update):
        """`update(*tensors) -> dict of tensors` as one compiled graph; eager with --no-compile."""
        if not self.args.compile:
            return update
        if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
            print("continuing in eager mode: this torch cannot compile updates", file=sys.stderr)
            return update
        # Lets torch.compile see torch.autograd.grad: right with fullgraph=True only.
        self.undo.enter_context(torch._dynamo.config.patch(trace_autograd_ops=True))
        return compiled(update, self.device)

    def cuda_graph(self, function):
        """`function` as one CUDA graph with --cuda-graph: one launch, not hundreds."""
        return graphed(function) if self.args.cuda_graph else function

    def end(self):
        """Plays the final evaluation and returns its Returns; after a signal, exits."""
        returns = None if self.stop else self.evaluate()
        self.envs.close()
        self.close(self.stop)
        if self.stop:
            sys.exit(self.stop)
        return returns

    def close(self, exit_code):
        """Leaves nothing behind but files, and says how to resume."""
        current.run = None
        for process in getattr(self.envs, "processes", []):
            process.kill()
        self.bar.close()
        self.undo.close()
        if self.writer:
            self.writer.close()
        if self.args.track:
            import wandb

            wandb.finish(exit_code)
        if not exit_code:
            print(f"finished: {self.dir}")
        elif self.last_save >= 0:
            print(f"stopped. Resume at step {self.last_save:,} with --resume {self.dir}")


def check_trained(agent, parts):
    """Refuses weights that no optimizer has: they would stay as they are, and nobody would see."""
    trained = set()
    for part in parts:
        trained.update(getattr(part, "params", []))  # a script's own optimizer
        for group in getattr(part, "param_groups", []):  # torch.optim's
            trained.update(group["params"])
    for name, param in agent.named_parameters():
        if param.requires_grad:
            check(param in trained, f"no optimizer has {name}, so it would never learn")


def is_due(every, last, step):
    """Whether `step` has passed a multiple of `every` since `last` (0: only if last is -1)."""
    if last < 0:  # nothing was done yet
        return True
    return every > 0 and step // every > last // every


# === speed
def compiled(update, device):
    """update(*tensors) as one graph. At every call torch itself checks whether it still fits.

    Where it cannot be compiled, it goes on in eager mode, and says so. No call is lost or made
    twice: torch compiles before it runs anything.
    """
    name = update.__name__
    print(f"compiling {name} at its first call (about 20 s) ...", flush=True)
    update.__code__ = update.__code__.replace()  # each run in a process compiles its own
    options = {"cpp_wrapper": device.type == "cpu", "cpp.use_decompose_tanh": True}
    known = torch._inductor.list_options()  # by this version of torch
    options = {option: options[option] for option in options.keys() & known}
    function = torch.compile(update, fullgraph=True, dynamic=False, options=options)
    exc = torch._dynamo.exc

    def call(*tensors):
        nonlocal function
        try:
            return function(*tensors)
        except exc.FailOnRecompileLimitHit:
            reason = "reads a Python number that changes: keep it in a tensor"
        except exc.TorchDynamoException as error:
            reason = "cannot be compiled: " + str(error).splitlines()[0]
        tqdm.write(f"continuing in eager mode: {name} {reason}", file=sys.stderr)
        function = update
        return update(*tensors)

    return call


def graphed(function):
    """function(*tensors) -> dict of tensors, recorded at its fourth call and then replayed."""
    graph = torch.cuda.CUDAGraph()
    calls = 0
    inputs = metrics = values = None

    def call(*tensors):
        nonlocal calls, inputs, metrics, values
        calls += 1
        if calls <= 3:  # warm up
            return function(*tensors)
        if calls == 4:
            inputs = [tensor.clone() for tensor in tensors]
            with torch.cuda.graph(graph):
                metrics = function(*inputs)
                values = torch.stack(list(metrics.values()))
        for static, tensor in zip(inputs, tensors, strict=True):
            static.copy_(tensor)
        graph.replay()
        # The next replay overwrites them: so copy.
        return dict(zip(metrics, values.clone(), strict=True))

    return call


class NumpyForward:
    """`module` as a function of numpy arrays: a row of a small MLP takes 5 us, in torch 25.

    For Linear, LayerNorm, Tanh, ReLU and nn.Sequential of them. At the first and every thousandth
    call, and for another module, it reads the layers anew and compares a row with torch, to which
    it falls back if they differ. Where weights change between calls, `module` is a function that
    gives the module of now. On a GPU such weights stay there.
    """

    def __init__(self, module, device):
        self.live = not isinstance(module, torch.nn.Module)
        self.get_module = module if self.live else lambda: module
        self.device = device
        self.layers_of = None  # the module that was read
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        if self.calls % 1000 == 1 or self.layers_of is not self.get_module():
            self.read_layers(x[:1] + 1)  # not all zeros, where different networks agree
        for layer in self.layers:
            x = layer(x)
        return x

    @torch.no_grad()
    def in_torch(self, x):
        return self.get_module()(torch.as_tensor(x, device=self.device)).cpu().numpy()

    def read_layers(self, row):
        module = self.layers_of = self.get_module()
        layers = list(module) if type(module) is torch.nn.Sequential else [module]
        self.layers = [in_numpy(layer) for layer in layers]
        hooked = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
        foreign = hooked or None in self.layers or (self.live and self.device.type == "cuda")
        if foreign or not np.allclose(self(row), self.in_torch(row), 1e-3, 1e-4):
            self.layers = [self.in_torch]
            say_once(
                "the network acts in torch: numpy is for CPUs and for Linear, LayerNorm, Tanh, ReLU"
            )


say_once = functools.cache(tqdm.write)


def in_numpy(layer):
    """A layer as a function of numpy arrays, or None.

    On a CPU, they share the parameters' memory, so they see what an optimizer changes in place.
    """
    params = {name: param.detach().cpu().numpy() for name, param in layer.named_parameters()}
    both = params.keys() == {"weight", "bias"}  # no weight_norm
    if both and type(layer) is torch.nn.Linear:
        weight, bias = params.values()
        return lambda x: np.dot(x, weight.T) + bias
    if both and type(layer) is torch.nn.LayerNorm:
        return functools.partial(layer_norm, **params, eps=layer.eps)
    others = {torch.nn.Tanh: np.tanh, torch.nn.ReLU: functools.partial(np.maximum, 0)}
    return others.get(type(layer))


def layer_norm(x, weight, bias, eps):
    centred = x - x.sum(-1, keepdims=True) / len(weight)  # .mean takes longer
    variance = np.square(centred).sum(-1, keepdims=True) / len(weight)
    return centred / np.sqrt(variance + eps) * weight + bias


def check_actions(taken, expected):
    """Stops where agent(obs) with the same noise gives other actions than those taken."""
    # The shape: actions of an LSTM may have one more axis.
    same = torch.isclose(taken, expected.reshape_as(taken), 1e-3, 1e-3, equal_nan=True)
    ties = 1 + 0.001 * same.numel()  # where two choices are equally good
    check((~same).sum() <= ties, "the policy that acts is not the one that learns: change both")
