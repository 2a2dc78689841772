"""Weights & Biases, with --track: whatever happens to it, training goes on and TensorBoard has everything."""

import sys
import threading

import psutil


def start(args, run_dir, script):
    """Opens the run; offline, if W&B cannot be reached or knows no key. A resumed run goes on there."""
    if not args.track:
        return
    import wandb

    names = dict(project=args.wandb_project_name, entity=args.wandb_entity, name=run_dir.name, id=run_dir.name)
    names |= dict(config=vars(args), resume="allow", sync_tensorboard=True, dir=run_dir.parent)
    try:
        wandb.init(**names, settings=wandb.Settings(init_timeout=60))
    except Exception as error:
        print(f"W&B: {str(error).splitlines()[0]} It logs offline; `wandb sync` uploads that.", file=sys.stderr)
        wandb.teardown()
        wandb.init(**names, mode="offline")
    wandb.save(run_dir / f"{script}.py", base_path=run_dir, policy="now")


def log_video(folder):
    """Uploads the film in this folder."""
    import wandb

    try:
        film = next(folder.glob("*.mp4"))
        wandb.log({"eval/video": wandb.Video(str(film), format="mp4")})
    except Exception as error:
        print(f"W&B: {type(error).__name__}: {error}", file=sys.stderr)


def finish(args, seconds):
    """Waits for the upload, but not for ever: what could not be uploaded is on disk, for `wandb sync`."""
    if not args.track:
        return
    import wandb

    def wait():
        try:
            wandb.finish()
        except Exception as error:
            print(f"W&B: {type(error).__name__}: {error}", file=sys.stderr)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(seconds)
    for process in psutil.Process().children(recursive=True) if thread.is_alive() else ():
        if "wandb" in process.name():
            process.kill()
