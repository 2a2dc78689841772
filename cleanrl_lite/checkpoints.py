"""Run directories and the checkpoints in them: made, locked, saved, found and loaded again, whatever went wrong."""

import json
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event

from cleanrl_lite.environments import portable
from cleanrl_lite.utils import check, stop_run

try:
    import fcntl
except ImportError:  # Windows: no locks
    fcntl = None


def make_run_dir(args, script):
    """Creates runs/{env_id}__{exp_name}__{seed}__{unix time}/ with the script's source and its arguments inside."""
    for now in range(int(time.time()), sys.maxsize):  # a second run started in this second gets the next one's name
        name = f"{args.env_id}__{args.exp_name}__{args.seed}__{now}".replace("/", "-").replace(":", "-")
        run_dir = Path(args.runs_dir) / name
        try:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            run_dir.mkdir()
            shutil.copy(script, run_dir)
            (run_dir / "args.json").write_text(json.dumps(vars(args), indent=2) + "\n")
        except FileExistsError as error:
            check(run_dir.exists(), f"cannot create the run directory {run_dir}: {error.strerror}")
            continue
        except OSError as error:
            check(False, f"cannot create the run directory {run_dir}: {error.strerror}")
        lock(run_dir)
        return run_dir


LOCKS = {}  # the open lock files of this process


def lock(run_dir):
    """One process a run: two would write into each other's files. The lock ends with the process, however it ends."""
    try:
        if run_dir not in LOCKS:
            LOCKS[run_dir] = open(run_dir / "lock", "a")
        if fcntl:
            fcntl.lockf(LOCKS[run_dir], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        check(False, f"another process is at work in {run_dir}")
    except OSError as error:
        check(False, f"cannot write in {run_dir}: {error.strerror}")


def find_run(args, script):
    """What --resume means: nothing, a run directory or checkpoint, or with `auto` the last run of this script and these
    arguments, if there is one."""
    check(not (args.resume and args.evaluate), "either --resume or --evaluate")
    if args.resume and args.resume != "auto" and Path(args.resume).exists():
        lock(Path(args.resume).resolve() if Path(args.resume).is_dir() else Path(args.resume).resolve().parent)
    if args.resume != "auto":
        return args.resume
    wanted = json.dumps(vars(args) | dict(resume=None), sort_keys=True)
    for path in sorted(Path(args.runs_dir).glob("*/checkpoint.pt"), key=os.path.getmtime, reverse=True):
        if (path.parent / f"{script}.py").is_file() and (path.parent / "args.json").is_file():
            with suppress(ValueError, TypeError):  # it is something else
                found = json.loads((path.parent / "args.json").read_text()) | dict(resume=None)
                if json.dumps(found, sort_keys=True) == wanted:
                    lock(path.resolve().parent)
                    return path.parent


def save(run_dir, state, writer):
    """Writes run_dir/checkpoint.pt, atomically: whenever process or machine die, it is a whole checkpoint, the old or
    the new one. What is not finite is not saved: it would take the place of a good one."""
    writer.flush()  # what was logged up to this step, a resumed run does not log again
    state = state | dict(envs=portable(state["envs"]))
    path, step = run_dir / "checkpoint.pt", state["global_step"]
    for name, tensor in tensors({name: state[name] for name in ("agent", "adam", "adams") if name in state}):
        if not torch.isfinite(tensor).all():
            stop_run(f"{name} is not finite at step {step:,}", run_dir)
    try:
        for events in run_dir.glob("events.out.tfevents.*"):
            with open(events, "r+b") as file:
                os.fsync(file.fileno())
        with open(f"{path}.tmp", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.tmp", path)
    except (OSError, RuntimeError) as error:  # torch has its own for a full disk
        Path(f"{path}.tmp").unlink(missing_ok=True)
        stop_run(f"cannot save step {step:,}: {error.__context__ or error}", run_dir)
    return step


def tensors(tree, name=""):
    """(name, tensor) of every tensor in nested dicts."""
    if isinstance(tree, torch.Tensor):
        return [(name, tree)]
    return [pair for key, value in tree.items() for pair in tensors(value, f"{name}.{key}".lstrip("."))]


def load(path, script, env_id=None, agent=None):
    """Loads a checkpoint, or the one in a run directory, onto the CPU, executing no code from it, and fills `agent`."""
    path = Path(path, "checkpoint.pt") if Path(path).is_dir() else Path(path)
    check(path.is_file(), f"there is no checkpoint at {path}")
    try:
        large = path.stat().st_size > 1e8  # a replay buffer: read where it is needed, but Windows keeps such a file
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=large)
        state["run_dir"] = path.resolve().parent
        found, weights = (state["script"], state["args"]["env_id"]), state["agent"]
        evaluations = [dict(global_step=0, returns=None), state.get("last_eval")]  # the first versions had none
        if (path.parent / "last_eval.json").is_file():
            evaluations.append(json.loads((path.parent / "last_eval.json").read_text()))
        evaluations = [one for one in evaluations if one and one["global_step"] <= state["global_step"]]
        state["last_eval"] = max(evaluations, key=lambda one: one["global_step"])
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
    words = [word for arg in sys.argv[1:] for word in (arg.split("=", 1) if arg.startswith("--") else [arg])]
    paths = [path for flag, path in zip(words, words[1:]) if flag in ("--resume", "--evaluate")]
    check(len(paths) < 2, "either --resume or --evaluate")
    saved = load(paths[0], Path(sys.argv[0]).stem)["args"] if paths and paths != ["auto"] else {}
    saved |= dict(resume=None, evaluate=None)
    return Args(**{name: value for name, value in saved.items() if name in Args.__dataclass_fields__})


def is_finished(checkpoint, args):
    """Whether the run has been evaluated at its end; if so, says it."""
    finished = checkpoint["last_eval"]["global_step"] >= args.total_timesteps
    if finished:
        print(f"the run in {checkpoint['run_dir']} is finished")
        LOCKS.pop(checkpoint["run_dir"]).close()
    networks_only = "rng" not in checkpoint and not finished
    check(not networks_only, f"{checkpoint['run_dir']} has the networks only: it can be evaluated, not resumed")
    return finished


def reopen(run_dir, checkpoint, num_envs):
    """Removes what was logged after the checkpoint: it will be logged again, and no reader sees a step twice. The last
    evaluation is older than the checkpoint's step where it was broken off.

    A file of events is a row of records: 8 bytes with the length of the data, their checksum (4), data, checksum (4).
    """
    check(num_envs == checkpoint["args"]["num_envs"], "a resumed run keeps its --num-envs")
    global_step, last_eval = checkpoint["global_step"], checkpoint["last_eval"]["global_step"]
    for path in run_dir.glob("events.out.tfevents.*"):
        data, kept, start = path.read_bytes(), [], 0
        with suppress(DecodeError):  # the rest is torn, by a kill or a crash
            while 0 < int.from_bytes(data[start : start + 8], "little") <= len(data) - start - 16:
                end = start + 16 + int.from_bytes(data[start : start + 8], "little")
                event = Event.FromString(data[start + 12 : end - 4])
                evaluation = any(value.tag.startswith("eval/") for value in event.summary.value)
                if event.step <= (last_eval if evaluation else global_step):
                    kept.append(data[start:end])
                start = end
        if sum(map(len, kept)) < len(data):
            replace(path, b"".join(kept))


def replace(path, data):
    """Writes bytes into a file, atomically."""
    with open(path.parent / "new.tmp", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path.parent / "new.tmp", path)


def end(run_dir, last_eval, writer):
    """Notes the last evaluation, which is newer than the checkpoint where it ended the run, and releases the run."""
    writer.close()
    replace(run_dir / "last_eval.json", json.dumps(last_eval).encode())
    LOCKS.pop(run_dir).close()
    print("\r\033[K" * sys.stdout.isatty() + f"the run is in {run_dir}")


def check_finite(metrics, global_step, run_dir):
    """Ends the run where a loss is not a finite number."""
    for name, value in metrics.items():
        if not np.isfinite(value):
            stop_run(f"{name} is {value} at step {global_step:,}", run_dir)
