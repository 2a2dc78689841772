"""benchmark/measure: both sides do the same, what is reached when, and what a commit is."""

import pytest
import torch

from benchmark.measure import cuda_check, speed, time_to_return
from tests import helpers


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


# === a GPU beside the CPU
def test_the_largest_difference_of_20_updates():
    """Relative to a metric's largest value; that of the first update alone; a NaN is the worst."""
    cpu = {"loss": [torch.tensor(x) for x in (1.0, 4.0, 2.0)], "kl": [torch.zeros(2)] * 3}
    gpu = {"loss": [torch.tensor(x) for x in (1.04, 4.0, 3.0, 9.0)], "kl": [torch.zeros(2)] * 4}
    found = cuda_check.differences(gpu, cpu)
    assert found == {"first": pytest.approx(0.01), "all": 0.25, "largest": "loss", "updates": 3}
    gpu["kl"][1] = torch.tensor([0.0, torch.nan])
    found = cuda_check.differences(gpu, cpu)
    assert (found["all"], found["largest"]) == (torch.inf, "kl")
