"""What all scripts share: set-up, environments, evaluation, runs, speed. No algorithm is in it."""

import atexit
import copy
import json
import math
import multiprocessing
import os
import random
import re
import signal
import sys
import time
import warnings
from collections import deque
from contextlib import contextmanager, suppress
from ctypes.util import find_library
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro
from filelock import FileLock, Timeout
from gymnasium.spaces import Box, Dict, Tuple
from threadpoolctl import threadpool_limits
from torch import nn
from tqdm import tqdm


# === set-up
class Refused(SystemExit, ValueError):
    """One line and exit status 1; for a program that calls main, an error like others."""


def check(ok, message):
    """Ends the program with one line unless `ok`."""
    if not ok:
        for bar in list(tqdm._instances):
            bar.close()  # the line comes after it
        raise Refused("error: " + " ".join(message.split()))


SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1
received = []  # signals that ask the run to save and stop


def on_signal(number, _):
    if received and number == signal.SIGINT:
        raise KeyboardInterrupt  # a second Ctrl-C
    received.append(number)


def parse(Args):
    """The command line as `Args`, over a saved run's; from here on a run saves at Ctrl-C."""
    title = str(sys.modules["__main__"].__doc__).partition("\n")[0]
    args = tyro.cli(Args, description=title)
    for number in SIGNALS:
        if not args.evaluate and signal.getsignal(number) is not signal.SIG_IGN:  # as with nohup
            signal.signal(number, on_signal)
    path = args.evaluate or args.resume
    if path not in (None, "auto"):
        named = args.env_id
        vars(args).update(load(path)["args"], resume=None)
        args = tyro.cli(Args, description=title, default=args)
        trusted = args.env_id == named or ":" not in args.env_id
        check(trusted, f"this run imports a module. To allow it: --env-id {args.env_id}")
    return args


POSITIVE = """total_timesteps num_envs num_steps num_minibatches update_epochs batch_size seq_len
buffer_size train_frequency gradient_steps policy_frequency target_network_frequency eval_episodes
n_step n_critics n_quantiles stack_size exploration_fraction"""


def setup(args):
    """Checks the flags, seeds all random generators, sets the threads; returns the device."""
    # a program may give a dict, numpy's numbers or a Path
    flags = {name: json.dumps(x) if isinstance(x, dict) else x for name, x in vars(args).items()}
    plain = json.dumps(flags, default=lambda x: getattr(x, "tolist", x.__str__)())
    vars(args).update(json.loads(plain))
    for name in POSITIVE.split():
        check(vars(args).get(name, 1) > 0, f"--{name.replace('_', '-')} must be positive")
    # --env-id my_envs:MyEnv-v0 is in my_envs.py of the current folder, whose utils.py is its own
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path not in (here, "")] + [""]
    with suppress(ImportError):  # torch.compile needs it; loading it after Mesa has drawn crashes
        import triton  # noqa: F401
    threadpool_limits(args.threads or None)
    seed_all(args.seed)
    torch.backends.cudnn.deterministic = True
    cuda = args.cuda and torch.cuda.is_available()
    check(cuda or args.evaluate or not vars(args).get("cuda_graph"), "--cuda-graph needs a GPU")
    return torch.device("cuda" if cuda else "cpu")


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def keep_random_states():
    """Puts all random generators back into their states at the end."""
    in_python, in_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        yield
    random.setstate(in_python)
    np.random.set_state(in_numpy)


# === environments
def make(args, render_mode=None, **kwargs):
    """gymnasium.make with the flags --env-id, --env-kwargs and --max-episode-steps."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        # Draw without a display. MuJoCo reads this when it is imported.
        opengl = find_library("EGL") and find_library("GL")
        os.environ.setdefault("MUJOCO_GL", "egl" if opengl else "disabled")
    warnings.filterwarnings("ignore", ".*is out of date")
    kwargs["max_episode_steps"] = vars(args).get("max_episode_steps")
    if render_mode:
        kwargs["render_mode"] = render_mode
    check(args.env_kwargs.startswith("{"), f"--env-kwargs {args.env_kwargs}: no JSON object")
    try:
        kwargs.update(json.loads(args.env_kwargs))
        return gym.make(args.env_id, **kwargs)
    except (gym.error.Error, ImportError, json.JSONDecodeError) as error:
        check(False, f"--env-id {args.env_id} --env-kwargs {args.env_kwargs}: {error}")


def flatten(env):
    """`env` with vectors as observations; refuses images, text and the like."""
    space = flat = env.observation_space
    with suppress(NotImplementedError):  # a space of one's own, such as MiniGrid's
        flat = gym.spaces.flatten_space(space)
    numbers = isinstance(flat, Box) and "Text(" not in str(space)
    few = numbers and (space == flat or flat.shape[0] <= 2000)
    advice = "leave parts out or convert them. Images: ppo_image.py; Atari games: ppo_atari.py"
    check(few, f"observations are {space}, not a few numbers: {advice}")
    return env if space == flat else FlattenObservation(env)


class FlattenObservation(gym.wrappers.FlattenObservation):  # which would cast the parts
    def observation(self, obs):
        return super().observation(own(self.env.observation_space, obs))


def own(space, obs):
    """A copy of an observation; refuses what the declared types cannot hold."""
    if isinstance(space, Box):
        copied = np.asarray(obs).astype(space.dtype)
        exact = copied.dtype.kind == "f" or np.array_equal(copied, obs)
        held = exact and copied.shape == space.shape
    elif isinstance(space, Dict):
        return {name: own(part, obs[name]) for name, part in space.items()}
    elif isinstance(space, Tuple):
        return tuple(map(own, space, obs))
    else:
        copied, held = obs, space.contains(obs)
    if not held:
        check(False, f"observation {obs} is not in {space}")
    return copied


class Player(gym.Wrapper):
    """Begins a new episode where one ends, and sums up rewards. Its arrays are its own."""

    def reset(self, *, seed=None, options=None):
        if seed is not None and multiprocessing.current_process().name.startswith("Worker<"):
            seed_all(2**31 ^ seed)  # in a worker; the main process may have `seed` itself
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # they are for the main process
        self.episode = {"r": 0.0, "l": 0}  # return and length, by gymnasium's names
        obs, _ = self.env.reset(seed=seed, options=options)
        return own(self.observation_space, obs), {}

    def step(self, action):
        """The observation to act on next; at an episode's end, "final_obs" is where it led."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        obs = own(self.observation_space, obs)
        if not isinstance(reward, float):  # but a whole number, or one for each objective
            reward = float(np.asarray(reward).sum())
        self.episode["r"] += reward
        self.episode["l"] += 1
        info.pop("episode", None)  # the environment's own
        if terminated or truncated:
            info = {**info, "episode": self.episode, "final_obs": obs}
            obs, _ = self.reset()
        return obs, reward, bool(terminated), bool(truncated), info


class VectorEnv(gym.vector.SyncVectorEnv):
    def step(self, actions):  # in half the time of gymnasium's; infos is {n: info}
        results = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        *arrays, infos = zip(*results, strict=True)
        return *map(np.array, arrays), dict(enumerate(infos))


class AsyncVectorEnv(gym.vector.AsyncVectorEnv):
    def _add_info(self, infos, info, n):
        return {**infos, n: info}


def make_envs(args, make_env):
    """--num-envs environments as Envs; with --async-envs each in a process of its own."""
    in_processes = vars(args).get("async_envs")  # not every script has it
    kind = AsyncVectorEnv if in_processes else VectorEnv
    makers = [lambda: Player(make_env(args))] * args.num_envs
    vector_env = kind(makers, autoreset_mode=gym.vector.AutoresetMode.DISABLED)
    if in_processes:  # after an error too, before their pipes break
        atexit.register(lambda: [process.kill() for process in vector_env.processes])
    return Envs(args, vector_env)


class Envs(gym.vector.VectorWrapper):
    """Environments stepped together; obs, (num_envs, ...), is what to act on now.

    vector_env, as any engine, resets in the same step; its infos are {n: info}, as Player's.
    """

    def __init__(self, args, vector_env):
        super().__init__(vector_env)
        self.seed = args.seed
        self.returns = deque(maxlen=20)  # of the last episodes
        self.begin()

    def begin(self, step=0):
        """New episodes. Each environment has a seed of its own, and others where a run resumes."""
        streams = np.random.SeedSequence([self.seed, step])
        seeds = (streams.generate_state(self.num_envs + 1) >> 1).tolist()  # Atari: 31 bits
        if step == 0:
            seeds[0] = self.seed
        self.action_space.seed(seeds.pop())
        self.obs, _ = self.env.reset(seed=seeds)

    def step(self, actions):
        """next_obs, rewards, terminations, truncations: arrays (num_envs, ...); a list of infos.

        next_obs[n] is where the action, clipped to its bounds, truly led. If that ended an episode,
        infos[n]["episode"] has its return "r" and length "l", and obs[n] begins the next one.
        """
        space = self.single_action_space
        if isinstance(space, Box):
            actions = actions.clip(space.low, space.high)
        actions = np.array(actions, space.dtype)  # a copy: some environments change it in place
        if not is_finite(actions):
            check(False, f"the agent's actions are {actions}")
        self.obs, rewards, terminations, truncations, infos = self.env.step(actions)
        next_obs = self.obs.copy()
        for n, info in infos.items():
            if "episode" in info:
                next_obs[n] = info["final_obs"]
                self.returns.append(info["episode"]["r"])
        if not (is_finite(next_obs) and is_finite(rewards)):
            check(False, f"the environments gave {next_obs}, rewards {rewards}")
        infos = [infos.get(n, {}) for n in range(self.num_envs)]
        return next_obs, rewards, terminations, truncations, infos


def is_finite(x):
    # vdot takes a third of the time, but overflows
    return x.dtype.kind != "f" or math.isfinite(np.vdot(x, x)) or np.isfinite(x).all()


# === evaluation
def evaluate_saved(args, make_env, Agent):
    """--evaluate: plays --eval-episodes with a saved agent, without training."""
    device = setup(args)
    env = make_env(args)
    agent = Agent(args, env.observation_space, env.action_space).to(device)
    env.close()
    saved = load(args.evaluate, agent=agent)
    script = Path(make_env.__code__.co_filename)
    trained_by = saved["dir"] / f"{saved.get('script')}.py"
    if trained_by.exists() and trained_by.read_text() != script.read_text():
        tqdm.write(f"{script} is not the script that trained this agent, {trained_by}")
    name = f"eval_{time.time_ns()}"
    return evaluate(args, make_env, agent, saved["dir"], saved["global_step"], name)


@keep_random_states()
@torch.no_grad()
def evaluate(args, make_env, agent, directory, step, name="eval"):
    """Plays --eval-episodes with a copy of the agent; returns the record that it writes, a dict."""
    agent = copy.deepcopy(agent).eval()  # Dropout and batch statistics are for training
    infos = play(args, make_env, agent, args.eval_episodes)
    if args.capture_video:
        try:
            play(args, make_env, agent, 1, directory / "videos" / f"{name}-{step}")
        except Exception as error:
            tqdm.write(f"no video: {error!r}")
    returns = [info["episode"]["r"] for info in infos]
    lengths = [info["episode"]["l"] for info in infos]
    mean, std = np.mean(returns), np.std(returns)
    record = {"global_step": step, "mean": mean, "std": std, "returns": returns, "lengths": lengths}
    won = [np.asarray(info.get("is_success")) for info in infos]
    if all(success.dtype.kind in "biuf" for success in won):  # else not known
        record["success_rate"] = np.mean([success.mean() for success in won])
    (directory / f"{name}.json").write_text(json.dumps(record, indent=2))
    tqdm.write(f"evaluation at step {step:,}: mean return {mean:.2f} +- {std:.2f}")
    return record


def play(args, make_env, agent, count, folder=None):
    """The infos with which `count` episodes end; with `folder`, the first one's video is in it."""
    env = gym.wrappers.TimeLimit(make_env(args, "rgb_array" if folder else None), 100_000)
    if folder:
        env = gym.wrappers.RecordVideo(env, folder, lambda n: n == 0, video_length=1000)
    alone = copy.copy(args)
    vars(alone).update(num_envs=1, async_envs=False, seed=args.seed + 10_000)
    envs = make_envs(alone, lambda _: env)
    device = next(agent.parameters()).device
    ended = []
    while len(ended) < count:
        actions = agent.act(torch.as_tensor(envs.obs, device=device))
        *_, infos = envs.step(actions.cpu().numpy())
        ended += [info for info in infos if "episode" in info]
    envs.close()
    return ended


# === runs
def load(path, **parts):
    """A checkpoint, or that of a run directory; fills `parts`. Executes no code from the file."""
    path = Path(path, "checkpoint.pt") if Path(path).is_dir() else Path(path)
    try:
        saved = torch.load(path, "cpu", weights_only=True, mmap=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        return {**saved, "args": saved["args"], "dir": path.resolve().parent}
    except Exception as error:
        check(False, f"cannot load {path}: {error!r:.200} (wanted: a run directory of this script)")


def last_checkpoint(flags):
    """--resume auto: the newest checkpoint of a run with these flags, or None."""
    paths = []
    for path in Path(flags["runs_dir"]).glob("*/checkpoint.pt"):
        with suppress(Exception):  # no args.json, or a foreign one
            saved = json.loads(path.with_name("args.json").read_text())
            if flags.items() <= {**saved, "runs_dir": flags["runs_dir"]}.items():
                paths.append(path)
    return max(paths, key=os.path.getmtime, default=None)


class Run:
    """A run's directory, step (of all environments) and parts: what has state_dict() and lasts."""

    def __init__(self, args, script, make_env, envs, agent, **parts):
        self.args, self.make_env, self.envs, self.agent = args, make_env, envs, agent
        self.parts, self.script = {"agent": agent, **parts}, Path(script).stem
        groups = [group for part in parts.values() for group in getattr(part, "param_groups", [])]
        trained = {param for group in groups for param in group["params"]}
        for name, param in agent.named_parameters():
            learns = param in trained or not param.requires_grad
            check(learns, f"no optimizer has {name}, so it would never learn")
        flags = {"script": self.script, **vars(args), "resume": None}
        path = last_checkpoint(flags) if args.resume == "auto" else args.resume
        if path:  # parts are as they were; new episodes begin
            saved = load(path, **self.parts)
            check("id" in saved, f"{path} is of an older version: only --evaluate takes it")
            for name in "num_envs", "buffer_size", "n_step":  # the parts depend on them
                flag, now = name.replace("_", "-"), vars(args).get(name)
                before = saved["args"].get(name, now)
                check(now == before, f"--resume needs --{flag} {before}, as before")
            self.dir, self.step, self.id = saved["dir"], saved["global_step"], saved["id"]
            seed_all(args.seed + self.step)
            envs.begin(self.step)
        else:
            name = f"{args.env_id}__{args.exp_name}__{args.seed}__{time.time():.2f}"
            self.id = re.sub(r"[^\w.+=-]", "-", name)[-128:]  # one that W&B takes
            self.dir, self.step = Path(args.runs_dir, self.id), 0
            self.dir.mkdir(parents=True)
        self.lock = FileLock(self.dir / "lock", timeout=0, is_singleton=True)  # of this process
        with suppress(Timeout):
            self.lock.acquire()
        check(self.lock.is_locked, f"another process trains in {self.dir}")
        for source in script, __file__:
            (self.dir / Path(source).name).write_text(Path(source).read_text())
        (self.dir / "args.json").write_text(json.dumps(flags, indent=2))
        print(f"run directory: {self.dir} ({next(agent.parameters()).device})")
        self.last_step = self.log_step = self.step
        self.log_time = time.perf_counter()
        seconds = 0.1 if sys.stderr.isatty() else 10  # a log file gets fewer lines
        self.bar = tqdm(initial=self.step, total=args.total_timesteps, mininterval=seconds)

    def log(self, writer, scalars):
        """Writes {tag: number} and the speed; refuses NaN."""
        now = time.perf_counter()
        sps = (self.step - self.log_step) / (now - self.log_time)
        self.log_step, self.log_time = self.step, now
        for tag, scalar in {**scalars, "charts/SPS": sps}.items():
            writer.add_scalar(tag, float(scalar), self.step)
            if not math.isfinite(scalar):
                writer.flush()
                check(False, f"{tag} is {scalar}. The run directory is {self.dir}")
        if self.envs.returns:
            self.bar.set_postfix_str(f"return {np.mean(self.envs.returns):.1f}", refresh=False)
        self.bar.update(self.step - self.bar.n)

    def checkpoint(self, writer):
        """At the end of each turn: evaluates and saves where that is due. Ends after a signal."""
        over = self.step >= self.args.total_timesteps
        if self.is_due(self.args.eval_every) and not over:
            self.evaluate(writer)
        if self.is_due(self.args.save_every) or received or over:
            writer.flush()  # a resumed run does not log the steps up to here again
            self.save()
        self.last_step = self.step
        if received:
            self.bar.close()
            print(f"stopped. Resume at step {self.step:,} with --resume {self.dir}")
            sys.exit(128 + received[0])

    def is_due(self, every):
        """Whether this turn has reached a multiple of `every`; never if it is 0."""
        return every and self.step // every > self.last_step // every

    def save(self):
        """Writes checkpoint.pt if no weight is NaN: at any moment the file is a complete one."""
        for name, weight in self.agent.state_dict().items():
            check(weight.isfinite().all(), f"{name} is not finite")
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state.update(script=self.script, args=vars(self.args), global_step=self.step, id=self.id)
        temporary = self.dir / "checkpoint.tmp"
        try:
            torch.save(state, temporary)
            temporary.replace(self.dir / "checkpoint.pt")
        finally:
            temporary.unlink(missing_ok=True)  # where the disk is full

    def evaluate(self, writer):
        """Plays --eval-episodes and logs them; returns their record."""
        record = evaluate(self.args, self.make_env, self.agent, self.dir, self.step)
        writer.add_scalar("eval/episodic_return", record["mean"], self.step)
        writer.add_scalar("eval/episodic_length", np.mean(record["lengths"]), self.step)
        for path in self.dir.glob(f"videos/eval-{self.step}/*.mp4"):
            if self.args.track:
                import wandb

                video = wandb.Video(str(path), format="mp4")
                wandb.log({"eval/video": video, "global_step": self.step})
        return record

    def finish(self, writer):
        """Plays the final evaluation and returns its record; closes all that is open."""
        self.envs.close()  # first: a process may have only one
        record = self.evaluate(writer)
        writer.close()
        self.bar.close()
        self.lock.release(force=True)
        print(f"finished: {self.dir}")
        return {**record, "dir": self.dir}


# === speed
EAGER_CALLS = 1_000  # of an update on a CPU; then torch compiles it. A short run never waits


def compiled(args, function=None):
    """`function(*tensors)` as one compiled graph, but eager at first, or where torch fails."""
    if function is None:  # a decorator: @compiled(args)
        return lambda function: compiled(args, function)
    function.__code__ = function.__code__.replace()  # each run in a process compiles its own
    cuda = torch.cuda.is_initialized()
    # vec_isa_ok: torch compiles no trial programs for vector instructions, which takes 5 s
    options = {"cpp_wrapper": not cuda, "cpp.use_decompose_tanh": True, "cpp.vec_isa_ok": True}
    fast = None  # until then, since the compiler takes a second to import
    eager_calls = 0 if cuda else EAGER_CALLS

    def call(*tensors):
        nonlocal fast, eager_calls
        eager_calls -= 1
        if eager_calls >= 0 or not args.compile:
            return function(*tensors)
        try:
            # Lets torch (2.11 or newer) see autograd.grad: right with fullgraph=True only.
            torch._dynamo.config.trace_autograd_ops = True
            fast = fast or torch.compile(function, fullgraph=True, dynamic=False, options=options)
            return fast(*tensors)
        except Exception as error:
            tqdm.write(f"continuing in eager mode: {error!s:.300}", file=sys.stderr)
            tqdm.write("A number that changes must be a tensor: docs/guides/change_a_script.md")
        fast = function
        return function(*tensors)

    return recorded(args, call)


def recorded(args, function):
    """With --cuda-graph: `function` is recorded at its fourth call, and then replayed."""
    calls = 0
    graph = inputs = results = None

    def replayed(*tensors):
        nonlocal calls, graph, inputs, results
        calls += 1
        if calls <= 3:  # warm up
            return function(*tensors)
        if calls == 4:
            graph, inputs = torch.cuda.CUDAGraph(), [tensor.clone() for tensor in tensors]
            with torch.cuda.graph(graph):
                results = function(*inputs)
        for static, tensor in zip(inputs, tensors, strict=True):
            static.copy_(tensor)
        graph.replay()
        return torch.utils._pytree.tree_map(torch.clone, results)  # a replay overwrites them

    return replayed if args.cuda_graph else function


class Adam(nn.Module):
    """Adam (Kingma & Ba 2015, algorithm 1) on one flat vector: it compiles; torch.optim does not.

    Another optimizer is a subclass with another `change`.
    """

    def __init__(self, params, learning_rate, max_grad_norm=math.inf, beta1=0.9, eps=1e-8):
        super().__init__()
        self.params = [param for param in params if param.requires_grad]
        self.param_groups = [{"params": self.params}]  # as torch.optim has it
        self.max_grad_norm, self.beta1, self.beta2, self.eps = max_grad_norm, beta1, 0.999, eps
        flat = torch.cat([param.detach().flatten() for param in self.params])
        # not saved, since a resumed run may have another
        self.register_buffer("learning_rate", flat.new_tensor(learning_rate), persistent=False)
        self.register_buffer("step", flat.new_zeros(()))
        self.register_buffer("exp_avg", torch.zeros_like(flat))
        self.register_buffer("exp_avg_sq", torch.zeros_like(flat))

    def minimize(self, loss):
        """Takes a step that lowers `loss`; returns the gradient's norm before it is clipped."""
        grad = self.gradient(loss)
        with torch.no_grad():
            grad_norm = grad.norm()
            grad = grad * once((self.max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0))
            parts = self.change(grad).split([param.numel() for param in self.params])
            for param, part in zip(self.params, parts, strict=True):
                param.sub_(part.view_as(param))
        return grad_norm

    def gradient(self, loss):
        """That of `loss`, as one flat vector."""
        return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, self.params)])

    def change(self, grad):
        """What is subtracted from the weights, as one flat vector."""
        self.step.add_(1)
        self.exp_avg.lerp_(grad, 1 - self.beta1)
        self.exp_avg_sq.lerp_(grad.square(), 1 - self.beta2)
        correction1 = once(1 - self.beta1**self.step)
        correction2 = once(1 - self.beta2**self.step)
        denominator = (self.exp_avg_sq / correction2).sqrt() + self.eps
        return self.learning_rate * self.exp_avg / correction1 / denominator


def once(number):
    """A 0-d tensor, unchanged. A compiled loop over the weights does not compute it again."""
    inlined = torch.compiler.is_compiling() and number.is_cpu
    return number.expand(64).amax() if inlined else number  # torch inlines no reduction


IN_NUMPY = {
    nn.Linear: lambda x, weight, bias=0: np.dot(x, weight.T) + bias,
    nn.Tanh: np.tanh,
    nn.ReLU: lambda x: np.maximum(x, 0),
}


def in_numpy(module, live=False):
    """`module` in numpy, where a row takes 5 us, not 25; `live`: it sees weights that change."""
    device = next(module.parameters()).device
    layers = list(module) if type(module) is nn.Sequential else [module]
    params = [[param.numpy(force=True) for param in layer.parameters()] for layer in layers]

    def forward(x):
        for layer, weights in zip(layers, params, strict=True):
            x = IN_NUMPY[type(layer)](x, *weights)
        return x

    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    known = not hooked and all(type(layer) in IN_NUMPY for layer in layers)
    if known and not (live and device.type == "cuda"):  # whose weights are copies here
        return forward
    warnings.warn("a network acts in torch: numpy is for Linear, Tanh and ReLU", stacklevel=2)
    return torch.no_grad()(lambda x: module(torch.as_tensor(x, device=device)).numpy(force=True))


@keep_random_states()
@torch.no_grad()
def check_policy(agent, obs, rows=256, draws=64):
    """Stops unless sampler() and act() play the policy of forward(): a distribution or values.

    With random weights, since a new agent hides much: in each of `rows` observations, samples have
    the same mean log-probability, and act() is in their middle or the most likely one.
    """
    agent = copy.deepcopy(agent)
    for param in agent.parameters():
        fan_in = param[-1:].numel() if param.ndim > 1 else 10
        param.add_(torch.randn_like(param) * (2 / fan_in) ** 0.5)
    many = obs[:1] + np.random.standard_normal((rows, *obs.shape[1:]))
    many = many.astype(obs.dtype).repeat(draws, axis=0)
    x = torch.as_tensor(many, device=param.device)
    found = agent(x)
    if torch.is_tensor(found):  # values: the best action, or one nearly as good
        best = found >= found.amax(-1, keepdim=True) - 1e-4 * found.abs().amax()
        found = [torch.distributions.Categorical(probs=best.float())]
    dist = found[0]
    samples = dist.sample()
    logprobs = dist.log_prob(samples)
    sampled = torch.as_tensor(agent.sampler()(many), device=x.device)
    errors = (dist.log_prob(sampled) - logprobs).reshape(rows, draws, -1).sum(-1)  # of a team
    z = errors.mean(1) / (errors.std(1) / draws**0.5 + 0.01)
    same = z.mean().abs() < 0.4 and z.square().mean() < 1.6  # 0 and 1, give or take 0.1
    check(same, "sampler(), which acts, is not the policy of forward(), which learns")
    acts = agent.act(x)
    if acts.is_floating_point():  # a mean, median or mode
        samples = samples.reshape(rows, draws, -1)
        error = (acts.view_as(samples) - samples.mean(1, keepdim=True)).abs()
        greedy = error.mean() <= samples.std(1).mean()  # both 0 of a single option
    else:
        greedy = (dist.log_prob(acts) > logprobs - 0.01).all()
    check(greedy, "act(), which is evaluated, is not the policy of forward(), which learns")
