"""Runs a script again each time you save it, and starts it in a fraction of the time.

    python -m cleanrl_lite.tools.watch my_ppo.py --total-timesteps 20000

All that follows the script is passed on to it. Each run is a process of its own, forked from this
one, which has imported torch, its compiler and gymnasium already. Ctrl-C stops the run under way; a
second one, while no run is under way, ends the watch. Needs a system that can fork, such as Linux;
not tried on macOS.
"""

import argparse
import gc
import multiprocessing
import runpy
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.utils.tensorboard  # for the runs

from cleanrl_lite import utils


def import_compiler():
    """Compiles something small, which imports what torch imports when it first compiles."""
    torch.set_num_threads(1)  # a process with torch's threads cannot be forked
    function = torch.compile(torch.sin, options={"cpp_wrapper": True})
    with suppress(torch._dynamo.exc.TorchDynamoException):  # a script says what is missing
        function(torch.ones(8))
    gc.freeze()  # these objects stay: runs need not look for garbage among them


def run(path, argv):
    """As python would: the script is __main__, and its folder the first to import from."""
    sys.argv = [str(path), *argv]
    sys.path[0] = str(path.parent.resolve())
    runpy.run_path(str(path), run_name="__main__")


def saved_at(path):
    """When the file was last written; None in the moment in which an editor replaces it."""
    with suppress(FileNotFoundError):
        return path.stat().st_mtime_ns


def main():
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("script", type=Path)
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="the script's own")
    args = parser.parse_args()
    path = args.script
    utils.check(path.is_file(), f"there is no script {path}")
    import_compiler()
    fork = multiprocessing.get_context("fork")
    while True:
        seen = saved_at(path)
        process = fork.Process(target=run, args=(path, args.flags))
        process.start()
        while process.is_alive():
            with suppress(KeyboardInterrupt):  # the run has it too
                process.join()
        print(f"waiting: save {path} to run it again, press Ctrl-C to end", flush=True)
        while saved_at(path) in (None, seen):
            time.sleep(0.2)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
