"""Weights & Biases, with --track: whatever happens to it, training goes on and TensorBoard has everything."""

import atexit
import os
import sys
import threading
import time
from contextlib import suppress

import psutil

BUSY = []  # not empty where no loop can react to a signal: while W&B connects, or an update is compiled


def told(function, *args, **kwargs):
    """Calls it; what it raises is told in a line. Returns whether it has worked."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        print("W&B:", (str(error) or type(error).__name__).splitlines()[0], file=sys.stderr)
        return False
    return True


def start(args, run_dir, script):
    """Opens the run; offline, if W&B cannot be reached or knows no key. A resumed run goes on there."""
    if not args.track:
        return
    import wandb

    names = dict(project=args.wandb_project_name, entity=args.wandb_entity, name=run_dir.name, id=run_dir.name)
    names |= dict(config=vars(args), resume="allow", sync_tensorboard=True, dir=run_dir.parent)
    BUSY.append(True)  # it may take minutes
    try:
        if not told(wandb.init, **names, settings=wandb.Settings(init_timeout=60)):
            told(wandb.teardown)
            if told(wandb.init, **names, mode="offline"):
                print("W&B: it logs offline; `wandb sync` uploads that", file=sys.stderr)
    finally:
        BUSY.clear()
    if wandb.run:
        told(wandb.save, run_dir / f"{script}.py", base_path=run_dir, policy="now")
        atexit.register(finish, args)  # for a run that fails; before W&B's own, which would wait for ever


def log_video(folder):
    """Uploads the film in this folder."""
    import wandb

    for film in folder.glob("*.mp4") if wandb.run else ():
        told(lambda: wandb.log({"eval/video": wandb.Video(str(film), format="mp4")}))


def finish(args, status=1, stop=(1,)):
    """Waits for the upload, 10 minutes, or 5 s once `stop` is not empty: the rest is on disk, for `wandb sync`."""
    wandb, deadline = sys.modules.get("wandb"), time.monotonic() + 600
    if not (args.track and wandb and wandb.run):
        return
    thread = threading.Thread(target=told, args=[wandb.finish, status], daemon=True)
    thread.start()
    while thread.is_alive() and time.monotonic() < deadline:
        deadline = min(deadline, time.monotonic() + 5) if stop else deadline
        thread.join(0.1)
    for process in psutil.Process().children(recursive=True) if thread.is_alive() else ():
        with suppress(psutil.Error):
            if "wandb" in process.name():
                process.kill()


def end_now(status):
    """What SystemExit does, within 8 s. From a signal's handler that would do, too, but Python ignores exceptions in
    some places, such as a weak reference's callback, and compilers have many of those."""
    threading.Timer(8, os._exit, [status]).start()
    atexit._run_exitfuncs()  # the event file is closed, W&B told
    for process in psutil.Process().children(recursive=True):  # compilers
        with suppress(psutil.Error):
            process.kill()
    with suppress(Exception):  # the signal may have come while it was being written to
        sys.stdout.flush()
    os._exit(status)
