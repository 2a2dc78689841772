"""benchmark/measure: both sides do the same, what is reached when, and what a commit is."""

import json
import shutil
import subprocess
import sys

import pytest
from torch.utils.tensorboard import SummaryWriter

from benchmark import shared
from benchmark.measure import same_runs, speed, time_to_return, torture
from benchmark.publish import collect
from tests import helpers
from tests.helpers import ROOT


def line(side="ours", seed=1, seconds=10.0, commit="abc"):
    """A line of time_to_return.json; None seconds: never reached."""
    env_id, target = time_to_return.TARGETS["ppo"]
    return {
        "script": "ppo",
        "side": side,
        "seed": seed,
        "env_id": env_id,
        "target": target,
        "total_timesteps": 500_000,
        "reached": seconds is not None,
        "steps": int(1000 * (seconds or 999)),
        "seconds": seconds or 999.0,
        "commit": commit,
        "versions": {"torch": "2"},
        "hardware": "a machine",
    }


# === speed
def test_both_sides_are_timed_over_as_many_iterations(monkeypatch, tmp_path):
    """A longer run may be a faster one. Each mode is compared with the other side of its round."""
    monkeypatch.setattr(speed, "RESULTS", tmp_path)
    asked = []

    def measure(side, script, env_id, args, iterations, core, cache):
        asked.append((side, iterations))
        speeds = {"sb3": 2.0, "compiled": 8.0, "eager": 5.0}
        seconds = 4.0 if iterations == 1 else 30.0  # compiled in the midst of it
        return {"sps": speeds[side], "first_update_s": seconds, "peak_mb": 1}

    monkeypatch.setattr(speed, "measure", measure)
    speed.compare("dqn", "CartPole-v1", ["compiled", "eager"], 2, 0, 7)
    cold, warm, *rounds = asked
    assert cold == warm == ("compiled", 1)
    assert rounds == 2 * [("sb3", 7), ("compiled", 7), ("eager", 7)]
    records = [helpers.read_json(path) for path in sorted((tmp_path / "speed").glob("*.json"))]
    assert [record["ratios"] for record in records] == [[4.0, 4.0], [2.5, 2.5]]
    assert records[0]["ours"] == {"sps": 8.0, "first_update_s": 4.0, "peak_mb": 1}


@pytest.mark.parametrize("script, delay", [("ddpg", 2), ("td3", 2), ("dqn", None)])
def test_stable_baselines3_updates_as_often_as_ours(script, delay, tmp_path, monkeypatch):
    """Its DDPG would update the actor at every step, ours does at every second one."""
    seen = []

    def learn(self, total, callback):
        seen.append(self)
        self.num_timesteps = total

    monkeypatch.setattr(f"stable_baselines3.{script.upper()}.learn", learn)
    args = shared.script_defaults(script) | {"buffer_size": 100}
    env_id = "CartPole-v1" if script == "dqn" else "Pendulum-v1"
    speed.train_sb3(script, env_id, json.dumps(args), "100", "100", str(tmp_path))
    times = helpers.read_json(tmp_path / "times.json")
    assert getattr(seen[0], "policy_delay", None) == times["policy_delay"] == delay
    assert times["marks"][-1][0] == 100


@pytest.mark.slow
def test_a_run_begins_with_nothing_compiled(tmp_path, monkeypatch):
    """Neither kernels nor torch's headers are those of runs before it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "filled"))
    code = "from torch._inductor import codecache as c; print(c.cache_dir(), c._HEADER_DIR)"
    speed.run(["-c", code], tmp_path, 0, tmp_path / "cache")
    folders = (tmp_path / "log.txt").read_text().split()
    assert len(folders) == 2
    assert all(path.startswith(f"{tmp_path}/cache/") for path in folders)


# === time to a return
def test_the_first_time_that_a_hundred_episodes_have_the_mean():
    """Not the first episode that has the return, and not with fewer than a hundred."""
    poor = [(10 * n, float(n), 0.0) for n in range(50)]
    good = [(10 * n, float(n), 500.0) for n in range(50, 300)]
    assert time_to_return.reached(poor + good, 475) == (1440, 144.0)  # five poor ones are left
    assert time_to_return.reached(good[:99], 475) is None
    assert time_to_return.reached(good[:100], 500) == (1490, 149.0)
    assert time_to_return.reached(good, 500.1) is None
    assert time_to_return.reached(good + poor, 475) == (1490, 149.0)  # it was reached


def test_our_episodes_are_those_of_an_event_file_that_grows(tmp_path):
    episodes = time_to_return.OurEpisodes(tmp_path)
    assert episodes() == []  # the run has no directory yet
    with SummaryWriter(tmp_path / "run") as writer:
        assert episodes() == []
        writer.add_scalar("charts/episodic_return", 10, 100, walltime=1100.5)
        writer.flush()
        assert episodes() == [(100, 1100.5, 10.0)]
        writer.add_scalar("charts/episodic_return", 30, 300, walltime=1300.5)
        writer.flush()
        assert episodes()[1:] == [(300, 1300.5, 30.0)]


def test_stable_baselines3_writes_its_episodes(tmp_path):
    """All of them, with the step, in raw returns; a line that is not whole yet waits."""
    args = json.dumps(shared.script_defaults("ppo") | {"num_steps": 64})
    time_to_return.train_sb3("ppo", "CartPole-v1", args, "1024", "1", str(tmp_path))
    rows = time_to_return.TheirEpisodes(tmp_path)()
    steps = [step for step, _, _ in rows]
    assert steps == sorted(steps)
    assert all(step % 4 == 0 for step in steps)
    assert 512 < sum(episodic_return for _, _, episodic_return in rows) <= 1024  # 1 a step
    with open(tmp_path / "episodes.csv", "a") as file:
        file.write("2000,1001.5,1")
    assert time_to_return.TheirEpisodes(tmp_path)() == rows


def test_an_interrupted_command_continues_where_it_was(monkeypatch, tmp_path):
    """Ours and theirs take turns; each run is in the file as soon as it has ended."""
    ran = []

    def measure(side, script, env_id, target, total, seed, core):
        ran.append((seed, side))
        if len(ran) == 4:
            raise KeyboardInterrupt
        return {"reached": True, "steps": 100, "seconds": 1.5}

    monkeypatch.setattr(time_to_return, "measure", measure)
    monkeypatch.setattr(time_to_return, "prepare", lambda core: None)
    monkeypatch.setattr(time_to_return, "commit", lambda: "abc")
    path = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["time_to_return", "--rows", "ppo", "--out", str(path)])
    with pytest.raises(KeyboardInterrupt):
        time_to_return.main()
    assert len(time_to_return.read(path)) == 3
    time_to_return.main()
    turns = [(seed, side) for seed in (1, 2, 3) for side in ("sb3", "ours")]
    assert ran == turns[:4] + turns[3:]
    time_to_return.main()
    assert len(ran) == 7  # nothing is left to do
    monkeypatch.setattr(time_to_return, "commit", lambda: "abc-dirty")
    with pytest.raises(SystemExit, match="differ from their commit"):
        time_to_return.main()


def test_a_run_that_never_gets_there_counts():
    """As slower than all others; it moves the median, and is named."""
    theirs = [line("sb3", seed, seconds) for seed, seconds in enumerate((50, 70, 60), 1)]
    ours = [line("ours", seed, seconds) for seed, seconds in enumerate((30, None, 20), 1)]
    row = time_to_return.table(ours + theirs).split("\n")[2]
    assert "| 30 (20 to 30), 1 of 3 not reached within 500,000 steps |" in row
    assert row.endswith("| 60 (50 to 70) | 60,000 | 2.00 |")
    never = [line("sb3", seed, None) for seed in (1, 2, 3)]
    row = time_to_return.table(ours + never).split("\n")[2]
    assert row.endswith("| not reached within 500,000 steps |  |  |")
    assert time_to_return.table(ours).startswith("Not measured yet")  # one side alone


# === commits
def test_results_do_not_make_a_commit_dirty(tmp_path, monkeypatch):
    """Measuring commands write them one after the other; a changed script does."""
    monkeypatch.setattr(shared, "ROOT", tmp_path)
    assert shared.commit() is None
    (tmp_path / "benchmark/results").mkdir(parents=True)
    files = [tmp_path / "benchmark/results/a.json", tmp_path / "ppo.py"]
    for file in files:
        file.write_text("1")
    me = ["-c", "user.name=me", "-c", "user.email=me"]
    for words in (["init", "-q"], ["add", "."], [*me, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    clean = shared.commit()
    files[0].write_text("2")
    assert shared.commit() == clean
    files[1].write_text("2")
    assert shared.commit() == f"{clean}-dirty"
    monkeypatch.setenv("PATH", "")  # git is not installed
    assert shared.commit() is None


@pytest.mark.parametrize(
    "tool, words, message",
    [
        (speed, ["--modes", "eagr"], ", got eagr"),
        (collect, ["nowhere"], "there is no folder nowhere"),
        (same_runs, [".", "pp"], "there is no pp. Scripts: ppo, "),
        (torture, ["--scripts", "ppo,pp"], ", got pp"),
        (time_to_return, ["--target", "100"], "--out"),
    ],
)
def test_wrong_input_of_a_tool(tool, words, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tool", *words])
    with pytest.raises(SystemExit) as end:
        tool.main()
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_two_checkouts(tmp_path):
    """This checkout trains as itself, and not as one with another discount."""
    ignore = shutil.ignore_patterns("results", "runs")
    for name in ("benchmark", "cleanrl_lite"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    words = [sys.executable, "-m", "benchmark.measure.same_runs", tmp_path, "ppo"]
    assert "curves and tensors: equal" in helpers.run(words, cwd=ROOT).stdout
    script = tmp_path / "cleanrl_lite/ppo.py"
    script.write_text(script.read_text().replace("gamma: float = 0.99", "gamma: float = 0.9"))
    done = helpers.run(words, cwd=ROOT)
    assert done.returncode == 1
    assert "DIFFER: " in done.stdout
