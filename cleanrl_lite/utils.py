"""What all scripts share: set-up, environments, runs, speed. No algorithm is in it."""

import copy
import functools
import inspect
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
import zlib
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
from gymnasium.spaces import Box
from gymnasium.wrappers import ClipAction, FlattenObservation, RecordVideo, TimeLimit
from threadpoolctl import threadpool_limits
from torch import nn
from tqdm import tqdm

# Papers report Hopper-v4 and its like; gymnasium warns that they are out of date.
warnings.filterwarnings("ignore", ".*is out of date")


# === set-up
def check(ok, message, error=SystemExit):
    """Refuses wrong input: unless `ok`, ends the program with one line and exit status 1."""
    if not ok:  # one line: the text of a Box with uneven bounds has several
        raise error("error: " + " ".join(message.split()))


class NotFinite(SystemExit, FloatingPointError):
    """One line, as from check; for a program that calls main, an error like others."""


recent = hasattr(gym.vector, "AutoresetMode")  # some packages install an old one
check(recent, f"gymnasium {gym.__version__} is too old. Run: pip install 'gymnasium>=1.1'")
numbers = tyro.constructors.ConstructorRegistry()


@numbers.primitive_rule
def whole_number(info):
    """For ints, 1e6 is a number too."""
    if info.type is int:
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda words: int(f"{float(words[0]):.15g}"),
            is_instance=lambda value: isinstance(value, int),
            str_from_instance=lambda value: [str(value)],
        )


def parse(Args):
    """The command line as `Args`; with --resume or --evaluate, the saved run's are the defaults."""
    title = str(sys.modules["__main__"].__doc__).partition("\n")[0]
    command_line = functools.partial(tyro.cli, Args, description=title, registry=numbers)
    args = command_line()
    path = args.evaluate or args.resume
    if path not in (None, "auto"):
        vars(args).update(load(path)["args"], resume=None)
        args = command_line(default=args)
    return args


def setup(args):
    """Seeds all random generators; returns the device."""
    seed_all(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    cuda = args.cuda and torch.cuda.is_available()
    graph = getattr(args, "cuda_graph", False)
    check(cuda or args.evaluate or not graph, "--cuda-graph needs a GPU")
    blind = args.render and os.environ.get("SDL_VIDEODRIVER") == "offscreen"
    check(not blind, "--render needs a display; --capture-video does not")
    check(args.eval_episodes, "--eval-episodes must be > 0")
    with suppress(ImportError):  # torch.compile needs it; loading it after Mesa has drawn crashes
        import triton  # noqa: F401
    return torch.device("cuda" if cuda else "cpu")


say_once = functools.cache(tqdm.write)


def warn_once(fault):
    say_once(f"warning: {fault} See python -m cleanrl_lite.tools.check_env")


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


undo = ExitStack()  # what ends with the run under way


def with_cleanup(main):
    """Decorates main(args): checks numbers; puts threads, signals, locks back at the end."""

    @functools.wraps(main)
    def main_with_cleanup(args):
        for name, value in vars(args).items():
            if isinstance(value, int | float):
                default = getattr(type(args), name, None) or 0
                fine = math.isfinite(value) and (value >= 0 or default < 0)
                flag = name.replace("_", "-")
                check(fine, f"--{flag} must be finite and not negative, got {value}")
        # The limit is torch's and numpy's. A compiled update that fails may switch gradients off.
        with undo, threadpool_limits(args.threads or None), torch.enable_grad():
            return main(args)

    return main_with_cleanup


def rng_state():
    """The state of all random generators."""
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), gpus


def set_rng_state(state):
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
    torch.cuda.set_rng_state_all(state[3][: torch.cuda.device_count()])


def allocate(shape, dtype, device):
    """Zeros for a replay buffer; refused where they do not fit into memory."""
    fits = math.prod(shape) * dtype.itemsize < 0.9 * psutil.virtual_memory().available
    check(fits or device.type != "cpu", f"--buffer-size {shape[0]} does not fit into memory")
    # numpy's zeros take memory only when they are written to.
    return torch.from_numpy(np.zeros(shape, str(dtype).removeprefix("torch."))).to(device)


# === environments
def make(args, render_mode=None, **kwargs):
    """gymnasium.make, with its errors in one line. A bug in the environment has its traceback."""
    if render_mode:
        kwargs["render_mode"] = render_mode
    try:
        env = gym.make(args.env_id, **kwargs, **json.loads(args.env_kwargs))
    except (gym.error.Error, ImportError, json.JSONDecodeError) as error:
        message = f"--env-id {args.env_id} --env-kwargs {args.env_kwargs}: {error}"
        check(False, f"{message} (see docs/guides/environments.md)")
    seeded = inspect.signature(env.unwrapped.reset).parameters.keys() & {"seed", "kwargs"}
    check(seeded, f"{args.env_id}: reset takes no seed. shimmy converts those of gym before 0.26")
    return env


def close(env):
    """Closes an environment, which may write its video. Where that fails, nothing is lost."""
    try:
        env.close()
    except Exception as error:
        tqdm.write(f"warning: an environment does not close: {error!r}")


def flatten(env):
    """`env` with vectors as observations; refuses images, text and the like."""
    space = env.observation_space
    flat = None
    with suppress(NotImplementedError):  # a space of one's own, such as MiniGrid's
        flat = gym.spaces.flatten_space(space)
    numbers = isinstance(flat, Box) and "Text(" not in str(space)
    few = numbers and flat.shape[0] > 0 and (space == flat or flat.shape[0] <= 2000)
    advice = "leave parts out or convert them. Images: ppo_image.py; Atari games: ppo_atari.py"
    check(few, f"the observation space is {space}, not a few numbers: {advice}")
    return env if space == flat else FlattenObservation(env)


class Checked(gym.Wrapper):
    """Arrays of its own, floats and bools; infos only where an episode ends, with "statistics".

    Refuses NaN and observations of other shapes. A worker has random numbers of its own.
    """

    outside = 0  # how many episodes in a row ended outside the space

    def __init__(self, env, in_worker=False):
        super().__init__(env)
        self.in_worker = in_worker
        self.ends = deque(maxlen=10)  # at which steps episodes terminated

    def reset(self, *, seed=None, **options):
        if seed is not None and self.in_worker:
            seed_all(2**31 + seed)  # seed itself: the main process may have it
        self.episodic_return = 0.0
        self.episodic_length = 0
        obs, _ = self.env.reset(seed=seed, **options)
        return self.checked(obs), {}

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        if not isinstance(reward, float):  # but a tensor, or one for each objective
            reward = float(np.asarray(reward).sum())
        self.episodic_return += reward
        self.episodic_length += 1
        obs = self.checked(obs, reward)
        if terminated or truncated:
            info = {**info, "statistics": (self.episodic_return, self.episodic_length)}
            self.look(obs, terminated)
        else:
            info = {}
        return obs, reward, bool(terminated), bool(truncated), info

    def look(self, obs, terminated):
        """Warns of what makes results wrong; at an episode's end, where it takes no time."""
        space = self.observation_space
        if isinstance(space, Box):
            inside = np.allclose(obs, np.clip(obs, space.low, space.high), 0.01, 1e-3)
            self.outside = 0 if inside else self.outside + 1
        if self.outside == 10:  # now and then is harmless: a walker turns over as it falls
            warn_once("ten episodes in a row ended outside the observation space.")
        self.ends.append(self.episodic_length if terminated else 0)
        if self.episodic_length > 20 and self.ends.count(self.episodic_length) == 10:
            warn_once("ten episodes in a row terminated at the same step. Is it a time limit?")

    def checked(self, obs, reward=0.0):
        space = self.observation_space
        own = np.array(obs, space.dtype)
        right = own.shape == space.shape and abs(reward) < 3e38  # where float32 ends
        # vdot is fast, but says nothing where it overflows
        if right and (np.vdot(own, own) < 1e38 or np.isfinite(np.float32(own)).all()):
            return own
        found = f"reward {reward}, observation {obs}"
        check(False, f"not finite, or not of shape {space.shape}: {found}", NotFinite)


class VectorEnv(gym.vector.SyncVectorEnv):
    """All in this process; SAME_STEP autoreset. infos["final_obs"][n] is of an ended episode."""

    def step(self, actions):
        actions = np.array(actions)  # a copy: an environment may change its action in place
        if not math.isfinite(np.vdot(actions, actions)):
            check(False, f"the agent's actions are not finite: {actions}", NotFinite)
        infos = {}
        results = []
        for n, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, reward, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                self._add_info(infos, {"final_obs": obs, "final_info": info}, n)
                obs, _ = env.reset()
            results.append((obs, reward, terminated, truncated))
        return *map(np.array, zip(*results, strict=True)), infos

    def _add_info(self, infos, info, n):
        # gymnasium's stacks values, whose shapes may differ.
        for name, value in info.items():
            infos.setdefault(name, {})[n] = value
        return infos


class AsyncVectorEnv(gym.vector.AsyncVectorEnv):
    """Each environment in a process of its own, with SAME_STEP autoreset."""

    _add_info = VectorEnv._add_info


SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1


def vector_env(env_fns, async_envs):
    """Steps environments together: all in this process, or each in its own."""
    kind = AsyncVectorEnv if async_envs else VectorEnv
    checked_fns = [lambda env_fn=env_fn: Checked(env_fn(), async_envs) for env_fn in env_fns]
    # Workers inherit what is blocked: signals are for the main process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return kind(checked_fns, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    except Exception:
        print("Where a process can have only one environment: --async-envs")
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# === evaluation
LONGEST_EPISODE = 100_000  # steps; an evaluation cuts an endless one


def evaluate_saved(args, make_env, agent):
    """--evaluate: plays --eval-episodes with a saved agent."""
    saved = load(args.evaluate, agent)
    return evaluate(args, make_env, agent, saved["dir"], saved["global_step"])


@torch.no_grad()
def evaluate(args, make_env, agent, directory, step):
    """Plays --eval-episodes with a copy of the agent; returns the record that it writes, a dict."""
    name = f"eval_{time.time():.0f}" if args.evaluate else "eval"
    agent = copy.deepcopy(agent).eval()  # Dropout and batch statistics are for training
    state = rng_state()  # those of training stay as they are
    infos = play(args, make_env, agent, args.eval_episodes)
    if args.capture_video:
        folder = directory / "videos" / (name if args.evaluate else f"step-{step}")
        try:
            play(args, make_env, agent, 1, folder)
            tqdm.write(f"video: {folder} (at most 1,000 frames)")
        except Exception as error:
            tqdm.write(f"no video: {error!r}")
    set_rng_state(state)
    returns = [info["statistics"][0] for info in infos]
    lengths = [info["statistics"][1] for info in infos]
    cut = lengths.count(LONGEST_EPISODE)
    record = {
        "env_id": args.env_id,
        "global_step": step,
        "mean": np.mean(returns),
        "std": np.std(returns),
        "returns": returns,
        "lengths": lengths,
        "cut": cut,
        "date": time.strftime("%FT%T%z"),
        "commit": git_commit(),
        "versions": versions(),
        "args": vars(args),
    }
    if "is_success" in infos[0]:
        record["success_rate"] = float(np.mean([info["is_success"] for info in infos]))
    write_json(directory / f"{name}.json", record)
    result = f"mean return {record['mean']:.2f} +- {record['std']:.2f}"
    tqdm.write(f"evaluation at step {step:,}: {result} over {len(returns)} episodes")
    if cut:
        tqdm.write(f"{cut} were cut at {LONGEST_EPISODE:,} steps: set --max-episode-steps")
    return {**record, "dir": directory}


def play(args, make_env, agent, episodes, folder=None):
    """The infos with which so many episodes end; with `folder`, their video in it."""
    mode = "rgb_array" if folder else "human" if args.render else None
    env = TimeLimit(make_env(args, mode), LONGEST_EPISODE)
    if isinstance(env.action_space, Box):
        env = ClipAction(env)
    if folder:
        env = RecordVideo(env, folder, lambda n: n == 0, video_length=1000)
    envs = vector_env([lambda: env], async_envs=False)
    infos = []
    try:
        with tqdm(desc="evaluation", delay=10, mininterval=10) as bar:
            obs, _ = envs.reset(seed=[args.seed + 10_000])
            while len(infos) < episodes:
                obs = torch.as_tensor(obs, device=next(agent.parameters()).device)
                obs, _, _, _, ended = envs.step(agent.act(obs).cpu().numpy())
                infos.extend(ended.get("final_info", {}).values())
                bar.update()
    finally:
        close(envs)
    return infos


@functools.cache
def git_commit():
    """cleanrl_lite's commit at the first call, -dirty where files differ; None outside of git."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    with suppress(OSError):
        done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True)
        return done.stdout.strip() or None


def versions():
    """Those of the imported packages that decide what a result is."""
    names = "torch", "numpy", "gymnasium", "mujoco", "ale_py", "Box2D", "envpool", "brax"
    return {name: str(sys.modules[name].__version__) for name in names if name in sys.modules}


# === a run's files
def write_json(path, content):
    """In one step, so that the file is never half written."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2))
    temporary.replace(path)


def load(path, agent=None):
    """A checkpoint, or that of a run directory; fills `agent`. Executes no code from the file."""
    path = Path(path)
    if path.is_dir():
        path /= "checkpoint.pt"
    try:
        saved = torch.load(path, "cpu", weights_only=True, mmap=True)
        if agent:
            agent.load_state_dict(saved["agent"])
        return {**saved, "args": saved["args"], "dir": path.resolve().parent}
    except Exception as error:
        check(False, f"cannot load {path}: {error!r:.200} (wanted: a run directory of this script)")


def new_directory(args):
    """Creates a run's directory. Its name is an id that W&B takes."""
    name = re.sub(r"[^\w.+=-]", "-", f"{args.env_id}__{args.exp_name}__{args.seed}")
    os.makedirs(args.runs_dir, exist_ok=True)
    while True:  # another run may begin in this second
        directory = Path(args.runs_dir, f"{name}__{time.time():.0f}")
        with suppress(FileExistsError):
            directory.mkdir()
            return directory


def last_checkpoint(runs_dir, setting):
    """--resume auto: the newest checkpoint of a run with these arguments, or None."""
    found = []
    for path in Path(runs_dir).glob("*/checkpoint.pt"):
        with suppress(Exception):  # no args.json, or a foreign one
            if setting.items() <= json.loads(path.with_name("args.json").read_text()).items():
                found.append(path)
    return max(found, key=os.path.getmtime, default=None)


def pickle_envs(envs, obs, values):
    """The environments in the middle of their episodes, or None where that is impossible."""
    with suppress(Exception):  # Box2D cannot be pickled, workers are elsewhere
        if type(envs.envs[0].unwrapped).__module__.startswith("gymnasium."):
            # MuJoCo's pickle only how they were made: so their attributes too, mostly zeros.
            pairs = [(env, vars(env.unwrapped)) for env in envs.envs]
            pairs.append((envs.action_space, (obs, values)))
            return [zlib.compress(cloudpickle.dumps(pair)) for pair in pairs]


def unpickle_envs(envs, pickled):
    """Puts the environments back and returns their observations and values, or None."""
    with suppress(Exception):
        pairs = [cloudpickle.loads(zlib.decompress(pair)) for pair in pickled]
        envs.action_space, episodes = pairs.pop()
        for env, attributes in pairs:
            vars(env.unwrapped).update(attributes)
        envs.envs = [env for env, _ in pairs]
        return episodes


# === runs
class Run:
    """A run's directory, checkpoints of the agent and `parts`, evaluations and console."""

    def __init__(self, args, script, make_env, envs, agent, **parts):
        self.args = args
        self.script = Path(script)
        self.make_env = make_env
        self.envs = envs
        self.agent = agent
        self.parts = {"agent": agent, **parts}
        check_trained(agent, parts.values())
        git_commit()  # now: at the end the checkout may be at another
        self.writer = None  # the script's SummaryWriter
        self.values = {}  # what goes_on() was given, if a checkpoint's episodes go on
        self.returns = deque(maxlen=20)  # of the last episodes, for the console
        self.stop = 0  # the exit status with which a signal asks the run to end
        setting = {"script": self.script.stem, **vars(args), "resume": None}
        path = args.resume
        if path == "auto":
            path = last_checkpoint(args.runs_dir, setting)
        # args.json; where it or the script differs, a resumed run begins new episodes.
        setting["versions"] = versions()
        self.setting = {**setting, "text": self.script.read_text()}
        saved = load(path, agent) if path else {}
        self.global_step = self.log_step = saved.get("global_step", 0)
        self.last_save = saved.get("global_step", -1)
        self.reset_envs()
        self.dir = saved["dir"] if saved else new_directory(args)
        undo.enter_context(FileLock(self.dir / "lock", timeout=0))  # one process only
        if saved:
            self.restore(saved)
        (self.dir / self.script.name).write_text(self.setting["text"])
        write_json(self.dir / "args.json", setting)
        print(f"run directory: {self.dir} ({next(agent.parameters()).device})")
        self.catch_signals()
        self.bar = tqdm(
            desc=self.dir.name,
            initial=self.global_step,
            total=args.total_timesteps,
            file=sys.stdout,
            disable=None,  # unless this is a terminal
        )
        self.log_time = time.perf_counter()
        undo.push(self.close)  # also after an error

    def reset_envs(self):
        """Resets the environments, each with a seed of its own; a resumed run has other seeds."""
        streams = np.random.SeedSequence([self.args.seed, self.global_step])
        seeds = (streams.generate_state(self.args.num_envs + 1) >> 1).tolist()  # Atari: 31 bits
        if self.global_step == 0:
            seeds[0] = self.args.seed
        self.envs.action_space.seed(seeds.pop())
        self.obs, _ = self.envs.reset(seed=seeds)
        alike = (self.obs == self.obs[0]).all() and "float" in str(self.obs.dtype)
        if alike and self.args.num_envs > 1:
            warn_once("all environments begin alike. Do they use their seeds?")
        if abs(self.obs).max() > 1e3 and not hasattr(self.agent, "obs_stats"):
            tqdm.write("warning: observations beyond 1,000. See docs/guides/environments.md")
        if self.args.eval_every:
            try:
                close(self.make_env(self.args))
            except Exception as error:
                check(False, f"--eval-every needs a second environment: {error!r}")

    def restore(self, saved):
        """Continues the run from its checkpoint."""
        before = saved.get("setting", {})
        for name in "num_envs", "buffer_size":
            same = before.get(name) == self.setting.get(name)
            check(same, "--resume needs this version's checkpoint, --num-envs and --buffer-size")
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])
        set_rng_state(cloudpickle.loads(saved["rng"]))
        episodes = unpickle_envs(self.envs, saved["envs"]) if before == self.setting else None
        if episodes:
            self.obs, self.values = episodes
        else:
            print("new episodes begin: a script, flag or package changed, or they cannot be saved")

    def catch_signals(self):
        with suppress(ValueError):  # Signals are for the main thread.
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
                    before = signal.signal(number, self.on_signal)
                    undo.callback(signal.signal, number, before)

    def on_signal(self, number, _):
        """Asks the loop to stop at its next goes_on(); a second Ctrl-C interrupts at once."""
        if self.stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.stop = 128 + number

    def goes_on(self, global_step, obs, **values):
        """Evaluates and saves where that is due; False at the end.

        `values` belong to the unfinished episodes: saved and restored with the environments.
        """
        last_step = self.global_step
        self.global_step = global_step
        over = global_step >= self.args.total_timesteps
        if not over and is_due(self.args.eval_every, last_step, global_step):
            self.evaluate()
        over = over or self.stop
        if over or is_due(self.args.save_every, self.last_save, global_step):
            self.save(obs, values)
        return not over

    def save(self, obs, values):
        """Writes checkpoint.pt if no weight is NaN: at any moment the file is a complete one."""
        for name, weight in self.agent.state_dict().items():
            check(weight.isfinite().all(), f"{name} is not finite", NotFinite)
        state = {
            **{name: part.state_dict() for name, part in self.parts.items()},
            "script": self.script.stem,
            "args": vars(self.args),
            "setting": self.setting,
            "global_step": self.global_step,
            "rng": cloudpickle.dumps(rng_state()),
            "envs": pickle_envs(self.envs, obs, values),
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
        """Plays --eval-episodes and logs them; returns their record."""
        step = self.global_step
        record = evaluate(self.args, self.make_env, self.agent, self.dir, step)
        self.writer.add_scalar("eval/episodic_return", record["mean"], step)
        self.writer.add_scalar("eval/episodic_length", np.mean(record["lengths"]), step)
        if self.args.track:
            import wandb

            for path in self.dir.glob(f"videos/step-{step}/*.mp4"):
                video = wandb.Video(str(path), format="mp4")
                wandb.log({"eval/video": video, "global_step": step})
        return record

    def finished_episodes(self, infos):
        """(index, return, length) of every environment whose episode ended in this step."""
        ended = infos.get("final_info", {})
        episodes = infos.get("episodes", [(n, *ended[n]["statistics"]) for n in ended])
        self.returns.extend(episode[1] for episode in episodes)
        return episodes

    def log(self, scalars, global_step):
        """Writes {tag: number} and the speed; on a terminal a bar, elsewhere a line each 10 s."""
        now = time.perf_counter()
        sps = (global_step - self.log_step) / (now - self.log_time)
        for tag, scalar in {**scalars, "charts/SPS": sps}.items():
            value = torch.as_tensor(scalar)
            if value.numel() != 1 or not value.isfinite():
                check(False, f"{tag} is {scalar}", NotFinite)
            self.writer.add_scalar(tag, float(value), global_step)
        mean = f"return {np.mean(self.returns):.1f}" if self.returns else "no episode has ended"
        bar = self.bar
        bar.set_postfix_str(mean, refresh=False)
        bar.update(global_step - bar.n)
        if bar.disable and (is_due(10, self.log_time, now) or global_step >= bar.total):
            print(f"step {global_step:,} of {bar.total:,} | {sps:,.0f} SPS | {mean}", flush=True)
        self.log_step = global_step
        self.log_time = now

    def compile(self, update):
        """`update(*tensors) -> dict of tensors` as one compiled graph; eager with --no-compile.

        Where torch finds at a call that none fits, it goes on in eager mode, and loses no call.
        """
        if not self.args.compile:
            return update
        name = update.__name__
        if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
            print(f"continuing in eager mode: to compile {name}, torch must be 2.11 or newer")
            return update
        print(f"compiling {name} at its first call ...")
        # Lets torch.compile see torch.autograd.grad: right with fullgraph=True only.
        undo.enter_context(torch._dynamo.config.patch(trace_autograd_ops=True))
        update.__code__ = update.__code__.replace()  # each run in a process compiles its own
        options = {"cpp_wrapper": not torch.cuda.is_initialized(), "cpp.use_decompose_tanh": True}
        options["cpp.vec_isa_ok"] = True  # else each start tries what the C++ compiler knows
        function = torch.compile(update, fullgraph=True, dynamic=False, options=options)

        def compiled(*tensors):
            nonlocal function
            try:
                return function(*tensors)
            except torch._dynamo.exc.FailOnRecompileLimitHit:
                reason = "reads a Python number that changes: keep it in a tensor"
            except torch._dynamo.exc.TorchDynamoException as error:
                # Of a backend that fails, the second line says why.
                reason = "cannot be compiled: " + str(error).replace(":\n", ": ").partition("\n")[0]
            advice = "See docs/guides/change_a_script.md"
            tqdm.write(f"continuing in eager mode: {name} {reason}. {advice}", file=sys.stderr)
            function = update
            return update(*tensors)

        return compiled

    def cuda_graph(self, function):
        """With --cuda-graph: `function` is recorded at its fourth call, and then replayed."""
        if not self.args.cuda_graph:
            return function
        graph = torch.cuda.CUDAGraph()
        calls = 0
        inputs = metrics = values = None

        def replayed(*tensors):
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
            return dict(zip(metrics, values.clone(), strict=True))  # a replay overwrites them

        return replayed

    def end(self):
        """Plays the final evaluation and returns its record; after a signal, exits."""
        if self.stop:
            sys.exit(self.stop)
        close(self.envs)  # first: a process may have only one
        return self.evaluate()

    def close(self, error, *_):
        """Leaves nothing behind but files, and says how to resume."""
        for process in getattr(self.envs, "processes", []):
            process.kill()
        self.bar.close()
        if self.writer:
            self.writer.close()
        if self.args.track:
            import wandb

            wandb.finish(exit_code=bool(error))
        if not error:
            print(f"finished: {self.dir}")
        elif self.last_save >= 0:
            print(f"stopped. Resume at step {self.last_save:,} with --resume {self.dir}")


def check_trained(agent, parts):
    """Refuses weights that no optimizer has: they would stay as they are, and nobody would see."""
    trained = set()
    for part in parts:
        for group in getattr(part, "param_groups", [vars(part)]):  # torch.optim's, a script's own
            trained.update(group.get("params", []))
    for name, param in agent.named_parameters():
        learns = param in trained or not param.requires_grad
        check(learns, f"no optimizer has {name}, so it would never learn")
    if any(isinstance(module, nn.RNNBase) for module in agent.modules()):
        tqdm.write("warning: nn.GRU and nn.LSTM forget between calls: see the *_lstm scripts")


def is_due(every, last, step):
    """Whether `step` has reached a multiple of `every` that `last` had not; never if it is 0."""
    return every and step // every > last // every


# === acting
def numpy_forward(module, device, live=False):
    """`module` as a function of numpy arrays: a row of a small MLP takes 5 us, in torch 25.

    For nn.Sequential of Linear, LayerNorm, Tanh and ReLU. Torch takes over if a row differs at
    the first or every thousandth call, and on a GPU if weights change between calls: `live`.
    """
    known = type(module) is nn.Sequential and not (live and device.type == "cuda")
    known = known and not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    layers = [in_numpy(layer) for layer in module] if known else [None]
    calls = 0

    @torch.no_grad()
    def in_torch(x):
        return module(torch.as_tensor(x, device=device)).cpu().numpy()

    def forward(x):
        for layer in layers:
            x = layer(x)
        return x

    def checked_forward(x):
        nonlocal layers, calls
        if calls % 1000 == 0:
            row = x[:1] + 1  # not all zeros, where networks agree
            if None in layers or not np.allclose(forward(row), in_torch(row), 1e-3, 1e-4):
                layers = [in_torch]
                say_once("the network acts in torch: numpy is for Linear, LayerNorm, Tanh, ReLU")
        calls += 1
        return forward(x)

    return checked_forward


def in_numpy(layer):
    """A layer as a function of numpy arrays, or None. On a CPU it sees weights that change."""
    params = {name: param.detach().cpu().numpy() for name, param in layer.named_parameters()}
    return {
        nn.Linear: lambda x: np.dot(x, params["weight"].T) + params.get("bias", 0),
        nn.LayerNorm: lambda x: layer_norm(x, layer.eps, **params),
        nn.Tanh: np.tanh,
        nn.ReLU: lambda x: np.maximum(x, 0),
    }.get(type(layer))


def layer_norm(x, eps, weight=1, bias=0):
    size = x.shape[-1]
    centred = x - x.sum(-1, keepdims=True) / size  # .mean takes longer
    variance = (centred**2).sum(-1, keepdims=True) / size
    return centred / np.sqrt(variance + eps) * weight + bias


def check_actions(taken, expected):
    """Stops where agent(obs) with the same noise gives other actions than those taken."""
    # The shape: actions of an LSTM may have one more axis.
    same = torch.isclose(taken, expected.reshape_as(taken), 1e-3, 1e-3, equal_nan=True)
    ties = 1 + 0.001 * same.numel()  # where two choices are equally good
    check((~same).sum() <= ties, "the policy that acts is not the one that learns: change both")
