"""benchmark/measure/compare.py says what the seeds can tell, and no more."""

import json

import numpy as np
import pytest

from benchmark.measure import compare


def write(folder, results, **more):
    folder.mkdir()
    run = dict(
        script="ppo",
        env_id="CartPole-v1",
        exp_name="ppo",
        global_step=500,
        total_timesteps=500,
        finished=True,
        arguments={},
    )
    results = [
        dict(seed=seed, last_100_mean=value, eval_mean=value) for seed, value in results.items()
    ]
    runs = [run | result | more for result in results]
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
        (
            {
                1: 100,
                2: 110,
                3: 95,
                4: 105,
                5: 101,
            },
            "equal",
            0,
        ),
        (
            {
                1: 80,
                2: 91,
                3: 77,
                4: 83,
                5: 80,
            },
            "worse",
            1,
        ),
        (
            {
                1: 120,
                2: 129,
                3: 115,
                4: 126,
                5: 121,
            },
            "better",
            0,
        ),
        (
            {
                1: 90,
                2: 125,
                3: 88,
                4: 112,
                5: 99,
            },
            "open",
            0,
        ),
        ({6: 60, 7: 62, 8: 58}, "worse", 1),
        ({1: 10, 2: 11}, "too-few", 2),  # two seeds say nothing
    ],
)
def test_verdicts(after, verdict, status, monkeypatch, capsys, tmp_path):
    before = write(
        tmp_path / "a",
        {
            1: 100,
            2: 110,
            3: 95,
            4: 105,
            5: 101,
        },
    )
    code, output = told(monkeypatch, capsys, before, write(tmp_path / "b", after))
    assert (code, output.splitlines()[0].split()[-1]) == (status, verdict)


def test_whole_rollouts_may_end_beyond_the_total(monkeypatch, capsys, tmp_path):
    """Both runs are finished and of 500 steps; unfinished ones are compared at the same step."""
    seeds = {1: 100, 2: 110, 3: 95}
    before = write(tmp_path / "a", seeds)
    after = write(tmp_path / "b", seeds, global_step=512)
    assert told(monkeypatch, capsys, before, after)[0] == 0
    unfinished = write(tmp_path / "c", seeds, global_step=400, finished=False)
    assert told(monkeypatch, capsys, before, unfinished)[0] == 2


def test_the_first_ten_seeds(monkeypatch, capsys, tmp_path):
    """Seeds beyond them do not count: who got more may have hung on what the first ones showed."""
    ten = {seed: 100 + seed for seed in range(1, 11)}
    before = write(tmp_path / "a", {20: -9000, 11: 9000} | ten)
    after = write(tmp_path / "b", ten)
    code, output = told(monkeypatch, capsys, before, after)
    assert (code, output.splitlines()[0].split()[-1]) == (0, "equal")
    assert "(10 seeds)" in output


def test_only_like_with_like(monkeypatch, capsys, tmp_path):
    one = write(tmp_path / "a", {1: 1, 2: 2, 3: 3})
    other = write(tmp_path / "b", {1: 1, 2: 2, 3: 3}, arguments=dict(gamma=0.9))
    none = "0 compared, 0 worse (0.0 expected by chance); 1 only in A"
    status, output = told(monkeypatch, capsys, one, other)
    assert (status, output.splitlines()[-1]) == (2, none)
    assert '{"gamma": 0.9}: only in B' in output
    longer = write(
        tmp_path / "c", {1: 1, 2: 2, 3: 3}, total_timesteps=1000
    )  # at the same step of another schedule
    status, output = told(monkeypatch, capsys, one, longer)
    assert (status, output.splitlines()[-1]) == (2, none)


def test_the_machine_does_not_matter(monkeypatch, capsys, tmp_path):
    """On a GPU or not, compiled or not, under another name: the same experiment, and each line says which."""
    one = write(
        tmp_path / "a",
        {1: 100, 2: 101, 3: 99},
        exp_name="ppo_tuned",
        arguments=dict(cuda=False, gamma=0.9),
    )
    other = write(
        tmp_path / "b", {1: 50, 2: 51, 3: 49}, arguments=dict(gamma=0.9, compile=False, threads=1)
    )
    status, output = told(monkeypatch, capsys, one, other)
    assert status == 1
    assert "CartPole-v1, ppo_tuned " in output
    assert "1 compared, 1 worse" in output


def test_a_folder_that_is_not_there(monkeypatch, capsys, tmp_path):
    one = write(tmp_path / "a", {1: 1, 2: 2, 3: 3})
    monkeypatch.setattr("sys.argv", ["compare", one, str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match="2"):
        compare.main()
    assert "error: there is no folder" in capsys.readouterr().err


def test_results_that_are_not_there(monkeypatch, capsys, tmp_path):
    """An unfinished run has no final evaluation, though it may have one on the way."""
    one = write(tmp_path / "a", {1: 1, 2: 2, 3: 3})
    other = write(tmp_path / "b", {1: 1, 2: 2, 3: 3}, finished=False)
    assert told(monkeypatch, capsys, one, other)[1].startswith("ppo")
    assert told(monkeypatch, capsys, one, other, "--metric", "eval")[1].startswith("0 compared")
    none = write(tmp_path / "c", {1: 1, 2: 2, 3: 3}, best_20_mean=None)
    assert told(monkeypatch, capsys, none, none, "--metric", "best")[1].startswith("0 compared")


@pytest.mark.parametrize("seeds, paired", [(3, True), (5, True), (5, False), (10, False)])
def test_how_often_it_is_wrong(seeds, paired):
    """Equal means: a 95 % interval misses zero in 5 % of the cases, be the seeds ever so few."""
    rng = np.random.default_rng(1)
    pairs = rng.normal(100, 20, (1500, 2, seeds))
    verdicts = [compare.verdict(*pair, paired, 0.95)[0] for pair in pairs]
    assert 0.03 < 1 - verdicts.count("open") / len(verdicts) < 0.07


@pytest.mark.parametrize("paired", [True, False])
def test_no_spread(paired):
    """All seeds at 500, then all at 200: there is no t, and no doubt."""
    high = np.full(3, 500.0)
    low = np.full(3, 200.0)
    assert compare.verdict(high, low, paired, 0.95) == ("worse", -300, (-300, -300))
    assert compare.verdict(high, high, paired, 0.95)[0] == ("equal" if paired else "open")
