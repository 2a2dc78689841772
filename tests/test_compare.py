"""benchmark/compare.py says what the seeds allow to say, and no more."""

import json

import numpy as np
import pytest

from benchmark import compare


def write(folder, results, **more):
    folder.mkdir()
    run = dict(script="ppo", env_id="CartPole-v1", global_step=500, arguments={}) | more
    runs = [run | dict(seed=seed, last_100_mean=value) for seed, value in results.items()]
    (folder / "runs.json").write_text(json.dumps(runs))
    return str(folder)


def told(monkeypatch, capsys, *folders):
    monkeypatch.setattr("sys.argv", ["compare", *folders])
    with pytest.raises(SystemExit) as end:
        compare.main()
    return end.value.code, capsys.readouterr().out


@pytest.mark.parametrize(
    "after, verdict, status",
    [
        ({1: 100, 2: 110, 3: 95, 4: 105, 5: 101}, "equal", 0),
        ({1: 80, 2: 91, 3: 77, 4: 83, 5: 80}, "worse", 1),
        ({1: 120, 2: 129, 3: 115, 4: 126, 5: 121}, "better", 0),
        ({1: 90, 2: 125, 3: 88, 4: 112, 5: 99}, "open", 0),
        ({6: 60, 7: 62, 8: 58}, "worse", 1),
        ({1: 10, 2: 11}, "open", 0),  # two seeds say nothing
    ],
)
def test_verdicts(after, verdict, status, monkeypatch, capsys, tmp_path):
    before = write(tmp_path / "a", {1: 100, 2: 110, 3: 95, 4: 105, 5: 101})
    code, output = told(monkeypatch, capsys, before, write(tmp_path / "b", after))
    assert (code, output.splitlines()[0].split()[-1]) == (status, verdict)


def test_only_like_with_like(monkeypatch, capsys, tmp_path):
    one = write(tmp_path / "a", {1: 1, 2: 2, 3: 3})
    other = write(tmp_path / "b", {1: 1, 2: 2, 3: 3}, arguments=dict(gamma=0.9))
    assert told(monkeypatch, capsys, one, other) == (0, "0 compared; 2 with other flags or on one side only\n")


def test_how_often_it_is_wrong():
    """Equal means, ten seeds each: an interval of 95 % misses zero in some 5 to 10 % of the cases, not in half."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(200):
        before, after = rng.normal(100, 20, (2, 10))
        wrong += compare.verdict(before, after, False, 0.95, rng)[0] != "open"
    assert 2 <= wrong <= 30
