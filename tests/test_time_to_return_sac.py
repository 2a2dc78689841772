"""benchmark/measure/time_to_return_sac.py: seconds until a mean return, fast_td3.py's beside
sac.py's."""

import pytest
import tyro

from benchmark.measure import time_to_return, time_to_return_sac
from cleanrl_lite import fast_td3

ENV = "HalfCheetah-v4"


def line(script, seed, seconds, reached=True, env_id=ENV, commit="abc"):
    return dict(
        script=script,
        env_id=env_id,
        seed=seed,
        target=5000,
        total_timesteps=1000,
        flags=time_to_return_sac.FLAGS[script],
        reached=reached,
        steps=100 * seed,
        seconds=seconds,
        peak_mb=500 + seed,
        commit=commit,
        versions={"torch": "2"},
        hardware="a machine",
    )


@pytest.fixture
def file(monkeypatch, tmp_path):
    path = tmp_path / "found.json"
    monkeypatch.setattr(time_to_return_sac, "FILE", path)
    return path


def test_the_table_has_medians_of_both_sides(file):
    fast = [line("fast_td3", seed, 10.0 * seed) for seed in (1, 2, 3)]
    slow = [line("sac", seed, 50.0 * seed) for seed in (1, 2)]
    time_to_return_sac.write([*fast, *slow])
    assert file.with_suffix(".md").read_text().startswith("Not measured yet")
    last = line("sac", 3, 999.0, reached=False)
    time_to_return_sac.write([*fast, *slow, {**last, "flags": "--bf16"}])  # another experiment
    assert file.with_suffix(".md").read_text().startswith("Not measured yet")
    time_to_return_sac.write([*fast, *slow, last])
    cells = file.with_suffix(".md").read_text().splitlines()[2].strip("| ").split(" | ")
    assert cells[0] == "HalfCheetah-v4, 5,000"
    assert cells[1:3] == ["20 (10 to 30)", "200"]
    assert cells[3] == "100 (50 to 100), 1 of 3 not reached within 1,000 steps"
    assert cells[5:] == ["0.20", "502, 502"]


def test_no_ratio_where_most_runs_never_got_there(file):
    fast = [line("fast_td3", seed, 10.0) for seed in (1, 2, 3)]
    slow = [line("sac", seed, 10.0, reached=seed == 1) for seed in (1, 2, 3)]
    sides = {"fast_td3": fast, "sac": slow}
    assert time_to_return_sac.ratio(sides) == ""
    slow[1]["reached"] = True
    assert time_to_return_sac.ratio(sides) == "1.00"


def test_it_goes_on_where_it_was_stopped():
    """In turns, and only with the seeds asked for; a run of another commit counts no more."""
    known = [line("sac", 1, 5.0), line("fast_td3", 1, 5.0, commit="old")]
    left = time_to_return_sac.todo([ENV], [1, 3], "abc", known)
    assert list(left) == [
        (ENV, 1, "fast_td3"),
        (ENV, 3, "sac"),
        (ENV, 3, "fast_td3"),
    ]


def test_each_side_is_run_with_its_flags(file, monkeypatch):
    ran = []

    def measure(side, script, env_id, target, total, seed, core, flags):
        ran.append((script, seed, target, flags))
        return {"reached": True, "steps": 1, "seconds": 1.0, "peak_mb": 1}

    monkeypatch.setattr(time_to_return, "measure", measure)
    monkeypatch.setattr(time_to_return_sac, "prepare", lambda core: None)
    monkeypatch.setattr(time_to_return_sac, "commit", lambda: "abc")
    monkeypatch.setattr("sys.argv", ["time_to_return_sac", "--rows", "Hopper-v4"])
    time_to_return_sac.main()
    flags = time_to_return_sac.FLAGS["fast_td3"].split()
    assert ran[:2] == [("sac", 1, 2000, []), ("fast_td3", 1, 2000, flags)]
    assert len(ran) == 6
    assert {entry["flags"] for entry in time_to_return_sac.read()} == {"", " ".join(flags)}


def test_fast_td3_knows_the_flags():
    words = time_to_return_sac.FLAGS["fast_td3"].split()
    assert tyro.cli(fast_td3.Args, args=words).num_envs == 8


def test_what_is_not_committed_is_not_measured(file, monkeypatch):
    monkeypatch.setattr(time_to_return_sac, "commit", lambda: "abc-dirty")
    monkeypatch.setattr("sys.argv", ["time_to_return_sac"])
    with pytest.raises(SystemExit, match="differ from their commit"):
        time_to_return_sac.main()
