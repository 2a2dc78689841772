"""tools/watch: a script that runs again each time it is saved."""

import os
import signal
import sys
import time

import pytest

from tests import helpers

SCRIPT = """
import sys
import time
from pathlib import Path

import beside_it

if __name__ == "__main__":
    try:
        print(f"run {beside_it.NUMBER} with {sys.argv[1:]}", flush=True)
        if beside_it.NUMBER == 2:
            1 / 0
        time.sleep(60 * (beside_it.NUMBER == 3))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def save(folder, number):
    """As editors do: a new file takes the place of the old one."""
    (folder / "beside_it.py").write_text(f"NUMBER = {number}\n")
    (folder / "new.py").write_text(SCRIPT)
    (folder / "new.py").replace(folder / "mine.py")


@pytest.mark.slow
def test_a_script_runs_each_time_it_is_saved(tmp_path):
    """Also after a traceback; a Ctrl-C stops the run, the next one the watch."""
    folder = tmp_path / "copies"
    folder.mkdir()
    save(folder, 1)
    words = [sys.executable, "-B", "-m", "cleanrl_lite.tools.watch", "copies/mine.py"]
    process = helpers.in_background([*words, "--seed", "1"], tmp_path)
    lines = iter(process.stdout.readline, "")
    waiting = "waiting: save copies/mine.py to run it again, press Ctrl-C to end\n"
    assert [next(lines), next(lines)] == ["run 1 with ['--seed', '1']\n", waiting]
    save(folder, 2)
    assert [next(lines), next(lines)] == ["run 2 with ['--seed', '1']\n", waiting]
    save(folder, 3)
    assert next(lines) == "run 3 with ['--seed', '1']\n"
    time.sleep(1)  # as a person does, so that the watch waits for its run by now
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert [next(lines), next(lines)] == ["interrupted\n", waiting]
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors.count("Traceback") == 1 and "ZeroDivisionError" in errors, errors


@pytest.mark.slow
def test_a_run_is_like_any_other(tmp_path):
    """It compiles, and what it leaves behind is what the script alone leaves."""
    (tmp_path / "mine.py").write_text(helpers.TEXT["ppo"])
    flags = helpers.small_flags("ppo", tmp_path / "runs", compile=True)
    words = [sys.executable, "-m", "cleanrl_lite.tools.watch", "mine.py", *map(str, flags)]
    process = helpers.in_background(words, tmp_path)
    for line in iter(process.stdout.readline, ""):
        if line.startswith("waiting"):
            break
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0 and "eager" not in errors, errors
    run_dir = helpers.only_run(tmp_path / "runs")
    assert (run_dir / "mine.py").read_text() == helpers.TEXT["ppo"]
    alone = helpers.main("ppo", helpers.small_args("ppo", tmp_path / "alone", compile=True))
    helpers.assert_same_state(helpers.load(run_dir)["agent"], helpers.load(alone["dir"])["agent"])


def test_a_script_that_does_not_exist(tmp_path, capfd):
    words = [sys.executable, "-m", "cleanrl_lite.tools.watch", "none.py"]
    done = helpers.run(words, tmp_path)
    assert done.returncode == 1 and done.stderr == "error: there is no script none.py\n"
