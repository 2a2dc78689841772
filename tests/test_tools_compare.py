"""cleanrl_lite/tools/compare.py: the table says what the seeds say, by the rule of docs/results.md."""

import json
import time

import numpy as np
import pytest
from scipy import stats
from torch.utils.tensorboard import SummaryWriter

from benchmark.publish import tables
from cleanrl_lite.tools import compare
from cleanrl_lite.tools import runs as tools
from tests.fake_runs import write_run


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["compare", *map(str, words)])
    compare.main()


def told(monkeypatch, capsys, *words):
    """What it prints: {environment: (first table, second table)}, rows as lists of cells."""
    run(monkeypatch, *words)
    tables = {}
    output = capsys.readouterr().out
    for block in output.split("\n\n"):
        if block.startswith("|"):
            head, _, *rows = block.split("\n")
            [*tables.values()][-1].append([cells(row) for row in (head, *rows)])
        elif "; final" in block:
            tables[block.strip()] = []
    return tables, output


def cells(row):
    return [part.strip() for part in row.strip()[1:-1].split("|")]


def flat(value, length=200):
    return np.full(length, float(value))


def test_a_table(tmp_path, monkeypatch, capsys):
    """A copy beside its origin, and another environment with one setting."""
    origin = [100, 110, 90, 105]
    copy = [140, 150, 135, 130]
    for seed, (ours, theirs) in enumerate(zip(copy, origin, strict=True), 1):
        write_run(tmp_path, flat(theirs), seed=seed)
        write_run(tmp_path, flat(ours), seed=seed, exp_name="my_idea")
    write_run(tmp_path, flat(-5), env_id="Acrobot-v1")
    tables, output = told(monkeypatch, capsys, tmp_path)
    final, area = tables["CartPole-v1; final: steps 18,000 to 20,000"]
    acrobot, _ = tables["Acrobot-v1; final: steps 18,000 to 20,000"]
    assert acrobot[1] == ["ppo", "1", "-5.0", "", "", "", ""]
    half = stats.t.ppf(0.975, 3) * stats.sem(origin)
    wanted = f"101.2 [{101.25 - half:.1f}, {101.25 + half:.1f}]"
    assert final[2] == ["ppo", "4", wanted, "", "", "", ""]
    assert final[0][2:4] == ["final", "minus ppo"]  # the origin, though it comes second
    test = stats.ttest_ind(copy, origin, equal_var=False)
    low, high = test.confidence_interval(0.95)
    assert final[1][3:6] == [f"+37.5 [{low:+.1f}, {high:+.1f}]", "< 0.01", "▲ above"]
    assert test.pvalue < 0.01
    assert area[0][2] == "area"
    assert area[1][2:] == final[1][2:]
    assert "If nothing differed, 0.1 of 2 tests" in output


def verdicts(tmp_path, monkeypatch, capsys, *words):
    """p and verdict of gamma=0.9 minus gamma=0.99."""
    words = ["--by", "gamma", "--baseline", "gamma=0.99", *words]
    tables, _ = told(monkeypatch, capsys, tmp_path, *words)
    ((final, _),) = tables.values()
    return {row[0]: tuple(row[4:6]) for row in final[1:]}["gamma=0.9"]


@pytest.mark.parametrize(
    "seeds, others, verdict",
    [
        ((1, 2, 3), {}, ("< 0.01", "▼ below")),
        ((1, 2), {}, ("", "fewer than 3 seeds")),
        ((4, 5, 6), {}, ("< 0.01", "▼ below, other seeds")),
        ((1, 2, 3), {"total_timesteps": 10_000}, ("", "other numbers of steps")),
        ((1, 2, 3), {"values": flat(np.nan)}, ("", "not finite")),
    ],
)
def test_no_verdict_without_grounds(seeds, others, verdict, tmp_path, monkeypatch, capsys):
    for seed in (1, 2, 3)[: len(seeds)]:
        write_run(tmp_path, flat(100 + seed), seed=seed)
    for seed in seeds:
        write_run(tmp_path, **{"values": flat(50 + seed), **others}, seed=seed, gamma=0.9)
    assert verdicts(tmp_path, monkeypatch, capsys) == verdict


def test_measures(tmp_path):
    """Final: the last tenth of the steps. Area: all of them, or all minutes. Long ones weigh more."""
    folder = write_run(tmp_path, [])
    steps = np.array([1000, 9000, 9500, 10_000])
    args = json.loads((folder / "args.json").read_text()) | {"total_timesteps": 10_000}
    (folder / "args.json").write_text(json.dumps(args))
    with SummaryWriter(folder) as writer:
        for step, value, minute in zip(steps, [10, 500, 20, 40], [1, 2, 4, 8]):
            writer.add_scalar(tools.RETURN, value, step, walltime=time.time() + 60 * minute)
    (run,) = tools.find([tmp_path])
    run.finished = True
    found = compare.measures(run)
    area = (1000 * 10 + 8000 * 500 + 500 * 20 + 500 * 40) / 10_000
    assert found == {"final": 30, "area": area, "steps": 10_000, "budget": 10_000}
    assert compare.measures(run, until=1000)["area"] == 10
    assert compare.measures(run, until=20_000) is None
    timed = compare.measures(run, minutes=10)
    area = (1 * 10 + 1 * 500 + 2 * 20 + 6 * 40) / 10
    assert timed == {**found, "area": pytest.approx(area, rel=1e-2), "budget": 10}


def test_unfinished_runs(tmp_path, monkeypatch, capsys):
    """Left out, unless they have come as far as --until."""
    for seed in (1, 2, 3):
        write_run(tmp_path, flat(100 + seed), seed=seed)
    late = dict(finished=False, gamma=0.9, total_timesteps=20_000)
    write_run(tmp_path, flat(50, 150), seed=1, **late)
    write_run(tmp_path, flat(60, 50), seed=2, **late)
    words = [tmp_path, "--by", "gamma"]
    run(monkeypatch, *words)
    captured = capsys.readouterr()
    assert "gamma=0.9 " not in captured.out
    assert "note: left out 2 runs not finished (see --until)" in captured.err
    tables, _ = told(monkeypatch, capsys, *words, "--until", 10_000)
    ((first, _),) = tables.values()
    assert first[1][:3] == ["gamma=0.9", "1", "50.0"]


def test_refusals(tmp_path, monkeypatch, capsys):
    write_run(tmp_path, flat(1), gamma=0.9)
    write_run(tmp_path, flat(1), gamma=0.8, finished=False)
    settings = r"--baseline ppo: the settings are: gamma=0.8; gamma=0.9"
    with pytest.raises(SystemExit, match=settings):
        run(monkeypatch, tmp_path, "--baseline", "ppo")
    with pytest.raises(SystemExit, match="nothing to compare"):
        run(monkeypatch, tmp_path, "--metric", "x")


def test_the_rule_is_that_of_the_published_tables():
    """docs/results.md compares with figures of which only mean, deviation and seeds are known."""
    rng = np.random.default_rng(0)
    seen = set()
    for shift in (0, 10, -30, 60):
        for _ in range(10):
            ours = rng.normal(100 + shift, 20, 5)
            theirs = rng.normal(100, 15, 3)
            row = {"mean": theirs.mean(), "std": theirs.std(), "seeds": "3"}
            difference, (low, high), p = compare.beside(ours, theirs).values()
            assert difference == ours.mean() - theirs.mean()
            verdict = compare.judge(p, difference)
            seen.add(verdict)
            assert tables.judge(ours, row) == (verdict, pytest.approx(p))
            assert (verdict == compare.SAME) == (p >= 0.05)
            assert (low > 0 or high < 0) == (p < 0.05)
    assert seen == {compare.ABOVE, compare.SAME, compare.BELOW}


def test_no_spread():
    """All seeds at 500, then all at 200: there is no t, and no doubt."""
    high, low = flat(500, 3), flat(200, 3)
    assert compare.beside(high, high)["p"] == 1
    assert compare.beside(low, high) == {"difference": -300, "interval": [-300, -300], "p": 0}
    assert compare.needed(high, low, 10) == ""


@pytest.mark.parametrize("size, stds", [(30, (20.0, 20.0)), (25, (10.0, 30.0))])
def test_how_many_seeds_it_takes(size, stds):
    """Played 4,000 times: with so many seeds 4 of 5 experiments see it, with one less fewer do."""
    seeds = compare.seeds_needed(size, *stds)
    rng = np.random.default_rng(1)

    def seen(count):
        ours = rng.normal(size, stds[0], (4000, count))
        theirs = rng.normal(0, stds[1], (4000, count))
        test = stats.ttest_ind(ours, theirs, axis=1, equal_var=False)
        return (test.pvalue < 0.05).mean()

    assert seen(seeds) > 0.78
    assert seen(seeds - 1) < 0.82
    assert compare.seeds_needed(0.001, *stds) is None  # more than 1,000
