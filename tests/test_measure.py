"""benchmark/measure: what is reached when, and how far a GPU is from the CPU."""

import pytest
import torch

from benchmark.measure import cuda_check, time_to_return


def line(side="ours", seed=1, seconds=10.0, commit="abc"):
    """A line of time_to_return.json; None seconds: never reached."""
    _, env_id, target, _ = time_to_return.ROWS["ppo"]
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
    row = time_to_return.table([{**run, "script": "c51"} for run in ours]).split("\n")[2]
    assert row.startswith("| 475 in CartPole-v1 | c51 | 30 ") and row.endswith("|  |  |  |")


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
