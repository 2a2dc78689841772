"""benchmark/measure/time_to_return.py: seconds until a mean return, beside Stable-Baselines3."""

import json
import subprocess

import pytest
from torch.utils.tensorboard import SummaryWriter

from benchmark import shared
from benchmark.measure import time_to_return, time_to_return_sb3
from tests.helpers import ROOT


def line(script="ppo", side="ours", seed=1, seconds=10.0, reached=True, commit="abc"):
    env_id, target = time_to_return.TARGETS[script]
    return dict(
        script=script,
        side=side,
        seed=seed,
        env_id=env_id,
        target=target,
        window=100,
        total_timesteps=500_000,
        reached=reached,
        steps=int(1000 * seconds),
        seconds=seconds,
        commit=commit,
        versions={"torch": "2"},
        hardware="a machine",
    )


def lines(script, side, *seconds):
    """A run for each of the seconds; None: never reached."""
    found = []
    for seed, value in enumerate(seconds, start=1):
        found.append(line(script, side, seed, value or 999.0, value is not None))
    return found


# === when it was reached
def test_the_first_time_that_a_hundred_episodes_have_the_mean():
    """Not the first episode that has the return, and not with fewer than a hundred."""
    poor = [(10 * n, float(n), 0.0) for n in range(50)]
    good = [(10 * n, float(n), 500.0) for n in range(50, 300)]
    assert time_to_return.reached(poor + good, 475) == (1440, 144.0)  # five poor ones are left
    assert time_to_return.reached(good, 475) == (1490, 149.0)
    assert time_to_return.reached(good[:99], 475) is None
    assert time_to_return.reached(good[:100], 500) == (1490, 149.0)
    assert time_to_return.reached(good, 500.1) is None


def test_a_mean_that_falls_again_was_reached_all_the_same():
    rows = [(n, float(n), 500.0 if n < 100 else 0.0) for n in range(300)]
    assert time_to_return.reached(rows, 475) == (99, 99.0)


# === both sides' episodes
def test_our_episodes_are_those_of_an_event_file_that_grows(tmp_path):
    episodes = time_to_return.OurEpisodes(tmp_path)
    assert episodes() == []  # the run has no directory yet
    with SummaryWriter(tmp_path / "run") as writer:
        assert episodes() == []
        for step in (100, 200):
            writer.add_scalar("charts/episodic_return", step / 10, step, walltime=1000.5 + step)
            writer.add_scalar("charts/SPS", 1.0, step)
        writer.flush()
        assert episodes() == [(100, 1100.5, 10.0), (200, 1200.5, 20.0)]
        writer.add_scalar("charts/episodic_return", 30, 300, walltime=1300.5)
        writer.flush()
        assert episodes()[2:] == [(300, 1300.5, 30.0)]


def test_a_line_that_is_not_whole_yet_waits(tmp_path):
    episodes = time_to_return.TheirEpisodes(tmp_path)
    assert episodes() == []
    (tmp_path / "episodes.csv").write_text("8,1000.25,21.0\n12,1001.5,1")
    assert episodes() == [(8, 1000.25, 21.0)]


def test_stable_baselines3_writes_its_episodes(tmp_path):
    """All of them, with the step, in raw returns; another seed is another run."""
    args = shared.script_defaults("ppo") | dict(num_steps=64)

    def train(seed):
        before = time_to_return.time.time()
        time_to_return_sb3.main(
            "ppo", "CartPole-v1", json.dumps(args), "1024", str(seed), str(tmp_path)
        )
        rows = time_to_return.TheirEpisodes(tmp_path)()
        assert all(before < when < time_to_return.time.time() for _, when, _ in rows)
        return [(step, episodic_return) for step, _, episodic_return in rows]

    first = train(1)
    steps = [step for step, _ in first]
    assert steps == sorted(steps)
    assert all(step % 4 == 0 for step in steps)
    played = sum(episodic_return for _, episodic_return in first)  # 1 a step
    assert 512 < played <= 1024
    assert steps[-1] <= 1024
    assert train(1) == first
    assert train(2) != first


@pytest.mark.slow
@pytest.mark.parametrize("side", ["sb3", "ours"])
def test_a_run_ends_when_it_is_there(side, monkeypatch):
    """Both sides in their own process: long before the last step; or at it, and not reached."""
    monkeypatch.setattr(time_to_return, "WINDOW", 10)
    found = time_to_return.measure(side, "ppo", "CartPole-v1", 15, 10**9, 1, 0)
    assert found["reached"]
    assert 10 * 9 < found["steps"] < 2000
    assert 1 < found["seconds"] < 300
    found = time_to_return.measure(side, "ppo", "CartPole-v1", 501, 2048, 1, 0)
    assert not found["reached"]
    assert 1500 < found["steps"] <= 2048


# === the file
@pytest.fixture
def faked(monkeypatch, tmp_path):
    """The command without runs: what it would run, and the file that it writes."""
    ran = []

    def measure(side, script, env_id, target, total, seed, core):
        ran.append((script, seed, side))
        if len(ran) == 4:
            raise KeyboardInterrupt
        return {"reached": True, "steps": 100, "seconds": 1.5}

    monkeypatch.setattr(time_to_return, "measure", measure)
    monkeypatch.setattr(time_to_return, "prepare", lambda core: None)
    monkeypatch.setattr(time_to_return, "commit", lambda: "abc")
    path = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["time_to_return", "--rows", "ppo", "--out", str(path)])
    return ran, path


def test_a_run_begins_with_nothing_compiled(tmp_path, monkeypatch):
    """Neither kernels nor torch's headers are those of runs before it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "filled"))
    code = "from torch._inductor import codecache as c; print(c.cache_dir(), c._HEADER_DIR)"
    time_to_return.run(["-c", code], tmp_path, 0, tmp_path / "cache")
    folders = (tmp_path / "log.txt").read_text().split()
    assert len(folders) == 2 and all(path.startswith(f"{tmp_path}/cache/") for path in folders)


def test_an_interrupted_command_goes_on_where_it_was(faked):
    """Ours and theirs take turns; each run is in the file as soon as it has ended."""
    ran, path = faked
    with pytest.raises(KeyboardInterrupt):
        time_to_return.main()
    assert len(time_to_return.read(path)) == 3
    time_to_return.main()
    turns = [(seed, side) for seed in (1, 2, 3) for side in ("sb3", "ours")]
    assert [(seed, side) for _, seed, side in ran] == turns[:4] + turns[3:]
    entries = time_to_return.read(path)
    assert len(entries) == 6
    assert {entry["commit"] for entry in entries} == {"abc"}
    assert {entry["total_timesteps"] for entry in entries} == {500_000}
    assert path.with_suffix(".md").read_text() == time_to_return.table(entries)
    time_to_return.main()
    assert len(ran) == 7  # nothing is left to do


def test_another_commit_measures_again(faked, monkeypatch):
    ran, path = faked
    path.write_text(json.dumps([line(seed=1), line(seed=2, commit="old")]))
    known = time_to_return.read(path)
    goals = {"ppo": (known[0]["target"], known[0]["total_timesteps"])}
    left = time_to_return.todo(["ppo"], [1, 2], known, "abc", goals)
    assert [*left] == [
        ("ppo", 1, "sb3"),
        ("ppo", 2, "sb3"),
        ("ppo", 2, "ours"),
    ]
    other = {"ppo": (known[0]["target"] + 1, known[0]["total_timesteps"])}
    todo = time_to_return.todo(["ppo"], [1, 2], known, "abc", other)
    assert len([*todo]) == 4
    time_to_return.write([line(seed=2, commit="old"), line(seed=2, commit="new")], path)
    assert [entry["commit"] for entry in time_to_return.read(path)] == ["new"]


def test_what_is_not_committed_is_not_measured(faked, monkeypatch):
    """And a commit in the middle of the runs ends them."""
    ran, path = faked
    monkeypatch.setattr(time_to_return, "commit", lambda: "abc-dirty")
    with pytest.raises(SystemExit, match="differ from their commit"):
        time_to_return.main()
    commits = iter(["abc", "abc", "def"])
    monkeypatch.setattr(time_to_return, "commit", lambda: next(commits))
    with pytest.raises(SystemExit, match="has changed since the start"):
        time_to_return.main()
    assert len(ran) == 1


def test_a_trial_does_not_write_into_the_published_file(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["time_to_return", "--target", "100"])
    with pytest.raises(SystemExit):
        time_to_return.main()
    assert "--out" in capsys.readouterr().err


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
    assert len(clean) == 12
    files[0].write_text("2")
    (tmp_path / "untracked").write_text("")
    assert shared.commit() == clean
    files[1].write_text("2")
    assert shared.commit() == f"{clean}-dirty"


# === the table
def test_the_table_of_published_figures_is_what_the_file_gives():
    path = ROOT / "benchmark/results/time_to_return.md"
    assert path.read_text() == time_to_return.table(time_to_return.read(time_to_return.FILE))


def test_without_figures_there_is_no_table():
    assert time_to_return.table([]).startswith("Not measured yet")
    assert time_to_return.sentence([]) == ""
    some = lines("ppo", "ours", 1, 2, 3) + lines("ppo", "sb3", 1, 2)  # a seed is missing
    assert time_to_return.table(some).startswith("Not measured yet")


def test_the_table():
    entries = lines("ppo", "ours", 30, 20, 25) + lines("ppo", "sb3", 50, 70, 60)
    entries += lines("dqn", "ours", 40, 45, 50)  # the other side is not measured
    text = time_to_return.table(entries)
    head, rule, row, _, note, *_ = text.split("\n")
    assert rule.count("|") - 1 == 7 == row.count("|") - 1 == head.count("|") - 1
    assert row == (
        "| 475 in CartPole-v1 | ppo | 25 (20 to 30) | 25,000 | 60 (50 to 70) | 60,000 | 2.40 |"
    )
    assert note.endswith("Not measured yet: dqn, ppo_continuous, sac.")
    assert "at commit abc, on:" in text
    assert "ppo, 475 in CartPole-v1: 25 s (60 s)." in time_to_return.sentence(entries)


def test_a_run_that_never_gets_there_counts():
    """As slower than all others; it moves the median, and is named."""
    entries = lines("ppo", "ours", 30, None, 20) + lines("ppo", "sb3", None, 70, None)
    row = time_to_return.table(entries).split("\n")[2]
    ours = row.split(" | ")[2]
    theirs = row.split(" | ")[4]
    assert ours == "30 (20 to 30), 1 of 3 not reached within 500,000 steps"
    assert theirs == "(70 to 70), 2 of 3 not reached within 500,000 steps"
    assert row.endswith(" |  |")  # no ratio without both medians
    assert "30 s, not reached by 1 of 3 seeds (not reached)" in time_to_return.sentence(entries)
    assert "Huber" not in time_to_return.table(entries)
    dqn = lines("dqn", "ours", 30, 40, 20) + lines("dqn", "sb3", None, None, 70)
    assert "Huber loss" in time_to_return.table(dqn)
    assert time_to_return.sentence(dqn) == ""
    never = lines("ppo", "ours", 30, 40, 20) + lines("ppo", "sb3", None, None, None)
    row = time_to_return.table(never).split("\n")[2]
    assert row.split(" | ")[4:] == ["not reached within 500,000 steps", "", " |"]
