"""The environments of training: making them, stepping several, telling their faults, saving where they are."""

import atexit
import ctypes
import math
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import FunctionType

import gymnasium as gym
import numpy as np

from cleanrl_lite import utils

FLOAT32_MAX = float(np.finfo(np.float32).max)  # what the networks can take


def make(env_id, render_mode=None, **kwargs):
    """gymnasium.make (ids of the form `module:Env-v0` too), with its errors as one line."""
    try:
        return gym.make(env_id, **kwargs, **(dict(render_mode=render_mode) if render_mode else {}))
    except (gym.error.Error, ImportError) as error:
        hint = " (Atari games have scripts named *_atari.py)" if "ALE" in env_id or "NoFrameskip" in env_id else ""
        utils.check(False, f"--env-id {env_id}: {str(error).strip().splitlines()[0]}{hint}")


def extra(module, name):
    """An optional module, or a line that says how to install it."""
    try:
        return import_module(module)
    except ImportError:
        utils.check(False, f"{module} is not installed: pip install 'cleanrl_lite[{name}]'")


def finished_episodes(infos):
    """(index, return, length) of every environment whose episode ended in this step (SAME_STEP autoreset)."""
    episode, ended = infos.get("final_info", {}).get("episode"), infos.get("_final_info", ())
    return [(i, float(episode["r"][i]), int(episode["l"][i])) for i, over in enumerate(ended) if over]


class Fault(Exception):
    """An environment returned what it must not."""


class Guarded(gym.Wrapper):
    """An environment of a vector: what it returns is checked, and where it stands can be read and set."""

    def __init__(self, env_fn, main_process):
        super().__init__(env_fn())
        self.shape = self.env.observation_space.shape
        # A product with these is finite unless a number, or their sum, is none in float32: one call of 0.3 us.
        size = int(np.prod(self.shape or ()))
        self.weights = dict(f=np.ones(size, np.float32), d=np.full(size, np.finfo(np.float64).max / FLOAT32_MAX))
        if os.getpid() != main_process:  # a worker process
            for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes; the main one decides what happens
                signal.signal(number, signal.SIG_IGN)
            if sys.platform == "linux":  # the worker dies with it: PR_SET_PDEATHSIG
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    def check(self, obs, reward):
        """The trap: an array of another shape may be broadcast, and one NaN spoils the networks and the replay."""
        array = obs if type(obs) is np.ndarray else np.asarray(obs)
        if array.shape != self.shape:
            raise Fault(f"an observation of shape {array.shape}, not {self.shape}")
        if array.dtype.char in "eg":  # half and extended precision, which are rare
            array = array.astype(np.float64)
        if array.dtype.char in self.weights and not math.isfinite(array.ravel().dot(self.weights[array.dtype.char])):
            worst = np.nan_to_num(np.abs(array.ravel()), nan=np.inf).argmax()
            raise Fault(f"an observation whose number {worst} is {array.ravel()[worst]}")
        if not abs(reward) <= FLOAT32_MAX:  # so put, it is true of NaN
            raise Fault(f"a reward that is {reward}")

    def reset(self, **kwargs):
        obs, _ = self.env.reset(**kwargs)
        self.check(obs, 0.0)
        return obs, {}

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.check(obs, reward)
        if not (terminated or truncated):
            return obs, reward, terminated, truncated, {}  # no script reads infos, and gathering them can fail
        # The trap: the reset that follows may write into the array of this last observation.
        return np.array(obs), reward, terminated, truncated, dict(episode=info["episode"])

    @property
    def snapshot(self):
        """All that the next steps depend on, as bytes; None where it cannot be known."""
        states = [layer_state(layer) for layer in layers(self.env)]
        try:
            return None if any(state is None for state in states) else pickle.dumps(states)
        except (TypeError, AttributeError, pickle.PicklingError):
            return None

    @snapshot.setter
    def snapshot(self, states):
        for layer, state in zip(layers(self.env), pickle.loads(states), strict=True):
            set_layer_state(layer, state)


def failing(method):
    """`method` of a vector environment, of which an error ends the run with a line."""

    def call(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.fail(error)

    return call


class Resumable:
    """What both kinds of vector environment have beyond gymnasium's: faults with a name, and a start where a checkpoint
    was written."""

    env_id, run_dir, global_step = "the environment", None, 0

    @failing
    def start(self, args, run_dir, global_step, saved):
        """The first observations (num_envs, *shape): those at which `saved` was made, or, where it is None, those of
        new episodes, which are not the ones that the run has played already."""
        self.env_id, self.run_dir, self.global_step = args.env_id, run_dir, global_step
        self.action_space.seed(args.seed + global_step)
        obs, _ = self.reset(seed=args.seed + global_step)
        if saved:
            states, random_actions, saved_obs = decode(saved)
            self.set_attr("snapshot", [pickle.dumps(state) for state in states])
            self.action_space.np_random.bit_generator.state = random_actions
            obs[:] = saved_obs
        return obs

    @failing
    def snapshot(self, obs):
        """Where the environments stand, as `portable` takes it: it takes 20 us an environment, not 200."""
        return [*self.get_attr("snapshot")], self.action_space.np_random.bit_generator.state, obs.copy()

    def fail(self, error):
        """Ends the run with a line that names the environment and the step, after the traceback if there is one."""
        if not isinstance(error, Fault):
            traceback.print_exception(error)
        what = str(error) if isinstance(error, Fault) else f"{type(error).__name__}: {error}".splitlines()[0]
        utils.stop_run(f"{self.env_id} failed at step {self.global_step:,}: {what}", self.run_dir)


class VectorEnv(Resumable, gym.vector.SyncVectorEnv):
    """gymnasium's SyncVectorEnv with SAME_STEP autoreset, without copies and the infos of ordinary steps: gathering
    those takes 18 us of a Hopper step's 131, and no script reads them. The next step overwrites what `step` returns."""

    def __init__(self, env_fns, autoreset_mode):
        guarded = [partial(Guarded, env_fn, os.getpid()) for env_fn in env_fns]
        super().__init__(guarded, copy=False, autoreset_mode=autoreset_mode)

    @failing
    def step(self, actions):
        infos = {}
        self.global_step += self.num_envs
        for i, (env, action) in enumerate(zip(self.envs, actions)):
            obs, self._rewards[i], terminated, truncated, info = env.step(action)
            if terminated or truncated:
                infos = self._add_info(infos, dict(final_obs=obs, final_info=info), i)
                obs, _ = env.reset()
            self._observations[i], self._terminations[i], self._truncations[i] = obs, terminated, truncated
        return self._observations, self._rewards, self._terminations, self._truncations, infos


class AsyncVectorEnv(Resumable, gym.vector.AsyncVectorEnv):
    """gymnasium's AsyncVectorEnv, for which a worker that dies or hangs ends the run, and no worker outlives it."""

    timeout = 300  # seconds for a step or a reset

    def __init__(self, env_fns, autoreset_mode):
        self.processes = []
        atexit.register(self.kill)  # before multiprocessing's own, which would wait for a worker that hangs
        guarded = [partial(Guarded, env_fn, os.getpid()) for env_fn in env_fns]
        super().__init__(guarded, copy=False, autoreset_mode=autoreset_mode)

    def reset(self, **kwargs):
        self.reset_async(**kwargs)
        return self.reset_wait(timeout=self.timeout)

    @failing
    def step(self, actions):
        self.global_step += self.num_envs
        self.step_async(actions)
        return self.step_wait(timeout=self.timeout)

    def fail(self, error):
        died = any(not process.is_alive() for process in self.processes)
        if isinstance(error, multiprocessing.TimeoutError):
            error = Fault(f"no answer from its process for {self.timeout} s")
        elif died and isinstance(error, EOFError | ConnectionError):
            error = Fault("its process died")
        self.kill()
        super().fail(error)

    def kill(self):
        self.closed = True
        for process in self.processes:
            if process.pid:
                process.kill()
                process.join()
        atexit.unregister(self.kill)

    def close_extras(self, **kwargs):
        for pipe in self.parent_pipes:
            with suppress(OSError):
                pipe.send(("close", None))
        deadline = time.monotonic() + 5
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0))
        self.kill()


def layers(env):
    """The wrappers and, last, the environment itself."""
    return [env] if env is env.unwrapped else [env, *layers(env.env)]


# What a layer holds besides its state: what does not change, and what nobody reads, a clock and statistics.
OTHER = (gym.Env, gym.Space, gym.envs.registration.EnvSpec, FunctionType)
UNREAD = {"episode_start_time", "time_queue", "return_queue", "length_queue"}


def layer_state(layer):
    """{name: value} of what a wrapper or an environment keeps from one step to the next; None if it cannot be known.

    gymnasium's own keep it in their attributes. Any other one takes part by defining state_dict(), which returns plain
    data, and load_state_dict(state).
    """
    if hasattr(layer, "load_state_dict"):
        return layer.state_dict()
    if not type(layer).__module__.startswith("gymnasium."):
        return None
    state = {k: value for k, value in vars(layer).items() if not isinstance(value, OTHER) and k not in UNREAD}
    if "_np_random" in state:
        state["_np_random"] = layer.np_random.bit_generator.state
    if "mujoco_renderer" in state:
        del state["mujoco_renderer"], state["model"]
        state["data"] = mujoco_state(layer)
    return state


def set_layer_state(layer, state):
    if hasattr(layer, "load_state_dict"):
        return layer.load_state_dict(state)
    if "_np_random" in state:
        layer.np_random.bit_generator.state = state.pop("_np_random")
    if "data" in state:
        set_mujoco_state(layer, state.pop("data"))
    vars(layer).update(state)


def mujoco_state(env):
    """MuJoCo's own state, and the positions from which some environments compute how far a step has led."""
    import mujoco

    state = np.empty(mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(env.model, env.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return [state, env.data.xpos, env.data.xipos]


def set_mujoco_state(env, state):
    import mujoco

    mujoco.mj_setState(env.model, env.data, state[0], mujoco.mjtState.mjSTATE_INTEGRATION)
    env.data.xpos[:], env.data.xipos[:] = state[1:]


def portable(snapshot):
    """A snapshot in types that torch.load(weights_only=True) accepts, for `start`; None where an environment holds
    anything else: a simulator's objects, say."""
    states, *rest = snapshot or ([None],)  # a vector environment that is not of this module has none
    return None if None in states else encode([[pickle.loads(state) for state in states], *rest])


def encode(value):
    """Plain data, arrays included, in such types; None for anything else."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        plain = not value.dtype.hasobject
        return dict(dtype=value.dtype.str, shape=list(value.shape), bytes=value.tobytes().hex()) if plain else None
    if type(value) is dict:
        items = encode([list(value), list(value.values())])
        return items and dict(items=items)
    if type(value) in (tuple, list):
        values = [encode(x) for x in value]
        return type(value)(values) if all(y is not None or x is None for x, y in zip(value, values)) else None


def decode(value):
    if isinstance(value, tuple | list):
        return type(value)(decode(x) for x in value)
    if isinstance(value, dict) and "items" in value:
        return dict(zip(*decode(value["items"])))
    if isinstance(value, dict):
        array = np.frombuffer(bytes.fromhex(value["bytes"]), value["dtype"]).reshape(value["shape"]).copy()
        return array if array.shape else array[()]
    return value
