"""cleanrl_lite/tools/study.py: what it refuses, what it runs, and whether its verdict is right."""

import json
import re
import shlex
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from cleanrl_lite.tools import compare, study
from cleanrl_lite.tools import runs as tools
from tests import helpers
from tests.fake_runs import write_run

# Arm 1 pays 1, arm 0 nothing; ten pulls are an episode. With epsilon 0.5 the answer is known: 7.5.
BANDIT = '''"""A bandit."""
import argparse, json, random, shutil, signal, sys, time
from pathlib import Path
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


# === arguments
class Args:
    num_envs: int = 1
    num_steps: int = 10
    epsilon: float = 0.5
    fade: float = 1.0
    pause: float = 0.0


# === agent
def explores(args, progress):
    return random.random() < args.epsilon and progress < args.fade


def main():
    parser = argparse.ArgumentParser()
    for name in "env_id seed total_timesteps runs_dir epsilon fade pause".split():
        parser.add_argument(f"--{name.replace('_', '-')}", default=getattr(Args, name, None))
    args, _ = parser.parse_known_args()
    if args.env_id == "wrong":
        sys.exit("error: no such environment")
    args.epsilon, args.fade, steps = float(args.epsilon), float(args.fade), int(args.total_timesteps)
    name = Path(__file__).stem
    folder = Path(args.runs_dir, f"{args.env_id}__{name}__{args.seed}__1")
    checkpoint, step = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        step = int(checkpoint.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "starts", "a") as starts:
        starts.write(f"{step} ")
    shutil.copy(__file__, folder)
    flags = {**vars(args), "script": name, "exp_name": name, "seed": int(args.seed)}
    flags["total_timesteps"] = steps
    (folder / "args.json").write_text(json.dumps(flags))

    def stop(*_):
        writer.flush()
        checkpoint.write_text(str(step))
        sys.exit(143)

    signal.signal(signal.SIGTERM, stop)
    random.seed(1000 * int(args.seed) + step)
    writer = EventFileWriter(str(folder))

    def log(tag, value):
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        writer.add_event(Event(step=step, wall_time=time.time(), summary=summary))

    values = [0.0, 0.1]
    while step < steps:
        episodic_return = 0.0
        for _ in range(10):
            arm = random.randrange(2) if explores(args, step / steps) else values.index(max(values))
            reward = float(arm == 1)
            values[arm] += 0.1 * (reward - values[arm])
            episodic_return += reward
            step += 1
        log("charts/episodic_return", episodic_return)
        log("charts/SPS", 1000.0)
        print(f"{step}%|#| {step}/{steps} [00:00<", flush=True)
        time.sleep(float(args.pause))
    writer.close()
    checkpoint.write_text(str(step))
    (folder / "eval.json").write_text(json.dumps({"global_step": step}))


main()
'''
OLD = "random.random() < args.epsilon and progress < args.fade"
BETTER = "random.random() < args.epsilon / 5 and progress < args.fade"
WORSE = "random.random() < args.epsilon * 1.8 and progress < args.fade"
SLOWER = "random.random() < args.epsilon and progress < 2 * args.fade"
SAME = "progress < args.fade and random.random() < args.epsilon"  # with fade 1


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The user stands in a folder with a bandit and with copies of it and of ppo."""
    monkeypatch.chdir(tmp_path)
    Path("bandit.py").write_text(BANDIT)
    for name in "BETTER", "WORSE", "SLOWER", "SAME":
        Path(f"{name.lower()}.py").write_text(BANDIT.replace(OLD, globals()[name]))
    Path("my_idea.py").write_text(helpers.TEXT["ppo"].replace("last_gain=0.01", "last_gain=0.02"))
    return tmp_path


@pytest.fixture
def ask(monkeypatch, capsys):
    """study in this process: its exit status, and what it prints."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["study", *map(str, words)])
        status = study.main()
        return status, capsys.readouterr().out

    return run


BANDITS = ("--parent", "bandit.py", "--env-id", "pays", "--steps", "2000", "--seeds", "1-3")
PPO = ("my_idea.py", "--parent", "ppo", "--env-id", "CartPole-v1", "--steps", "20000")


def pretend(words, finals):
    """Finished runs, of {name of an arm: returns of each seed, one number or all of them}."""
    args = study.parse([*words])
    for arm in study.arms_of(args):
        for seed, value in zip(args.seeds, finals[arm.name]):
            folder = study.folder(args, arm, "CartPole-v1")
            values = np.full(200, value) if np.isscalar(value) else value
            text = arm.script.read_text()
            write_run(folder, values, seed=seed, exp_name=arm.script.stem, text=text)


# --- the verdict
@pytest.mark.parametrize("kind", ["normal", "two kinds"])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_how_often_it_is_wrong(kind, seeds):
    """Of 2,000 pairs of sides that do not differ, at most 6 %. (200 scatter from 2 to 8 %.)"""
    rng = np.random.default_rng(0)

    def draw():
        noise = rng.normal(100, 20, (2000, seeds))
        return noise + 1000 * (rng.random(noise.shape) < 0.5) if kind == "two kinds" else noise

    finals = draw(), draw()
    areas = [(final + draw()) / 2 for final in finals]  # which partly follow
    measures = []
    for ours, theirs in (finals, areas):
        ps = stats.ttest_ind(ours, theirs, axis=1, equal_var=False).pvalue
        assert compare.beside(ours[0], theirs[0])["p"] == pytest.approx(ps[0])
        changes = ours.mean(1) - theirs.mean(1)
        measures.append([{"difference": d, "p": p} for d, p in zip(changes, ps)])
    verdicts = [study.judge(*pair) for pair in zip(*measures)]
    assert 0.005 < np.mean([verdict in ("better", "worse") for verdict in verdicts]) < 0.05
    assert np.mean([verdict != "cannot tell" for verdict in verdicts]) < 0.06
    at_ceiling = [study.judge(*pair, 500) for pair in zip(*measures)]
    assert 0.01 < np.mean([verdict != "same ceiling" for verdict in at_ceiling]) < 0.06


def test_verdicts():
    def judge(final, area, top=None):
        sides = [{"difference": d, "p": p} for d, p in (final, area)]
        return study.judge(*sides, top)

    assert judge((3, 0.024), (-1, 0.5)) == "better"
    assert judge((3, 0.049), (1, 0.024)) == "better"
    assert judge((-3, 0.024), (1, 0.5)) == "worse"
    assert judge((3, 0.051), (1, 0.024)) == "learns faster"
    assert judge((3, 0.051), (-1, 0.024)) == "learns more slowly"
    assert judge((3, 0.026), (-1, 0.026)) == "cannot tell"
    assert judge((3, 0.001), (-1, 0.049), 500) == "learns more slowly"
    assert judge((3, 0.001), (-1, 0.051), 500) == "same ceiling"
    assert judge((0, 1), (0, 1)) == "no effect"


NOISE = [(90, 100, 110, 95, 105), (92, 104, 99, 111, 93)]


ALMOST = (500,) * 5, (499, 500, 500, 500, 500), "cannot tell"  # one never ends at 500
CLEAR = (150, 160, 145, 155, 150), NOISE[1], "better"


@pytest.mark.parametrize(
    "mine, theirs, verdict", [CLEAR, pytest.param(*ALMOST, marks=pytest.mark.slow)]
)
def test_what_is_written(mine, theirs, verdict, ask):
    pretend(PPO, {"my_idea": mine, "ppo": theirs})
    status, text = ask(*PPO)
    assert status == 0
    assert f"- my_idea: **{verdict}**" in text
    assert "Lines of copy.diff: 2 in agent." in text
    assert "Comparison 1 with these seeds: about 0.05 differ by chance" in text
    folder = Path("study/my_idea")
    assert text == (folder / "verdict.md").read_text() + "\n"
    assert (folder / "curves.png").stat().st_size > 10_000
    assert (
        "+        self.actor = mlp(obs_dim, int(action_space.n), last_gain=0.02)"
        in (folder / "copy.diff").read_text()
    )
    status, text = ask(*PPO, "--json")
    (row,) = json.loads(text)["rows"]
    assert row["verdict"] == verdict
    assert row["final"]["values"] == pytest.approx(mine)
    assert row["final"]["difference"] == pytest.approx(np.mean(mine) - np.mean(theirs))
    low, high = row["final"]["interval"]
    assert low <= row["final"]["difference"] <= high
    assert len(Path("study/log.jsonl").read_text().splitlines()) == 1  # the same comparison


def test_the_same_ceiling(ask):
    """Both end at 500; one gets there later."""
    rise = [np.minimum(500, np.arange(1, 201) * slope) for slope in (5, 6, 7)]
    fast = [np.minimum(500, np.arange(1, 201) * slope) for slope in (20, 22, 24)]
    pretend([*PPO, "--seeds", "1-3"], {"my_idea": fast, "ppo": rise})
    assert "- my_idea: **learns faster**" in ask(*PPO, "--seeds", "1-3")[1]


def test_two_seeds_get_no_verdict_and_no_p(ask):
    words = [*PPO, "--seeds", "1-2"]
    pretend(words, {"my_idea": (900, 901), "ppo": (100, 101)})
    text = ask(*words)[1]
    assert "- my_idea: **no verdict**" in text
    assert "< 0.01" not in text
    assert not Path("study/log.jsonl").read_text()


def test_comparisons_are_counted(tmp_path):
    """Those that share a seed, each once."""
    Path("study").mkdir()
    row = {"folders": ["mine-1", "ppo-1"], "verdict": "better"}
    assert study.count_comparisons([{**row, "seeds": [1, 2, 3]}]) == 1
    assert study.count_comparisons([{**row, "seeds": [3, 4, 5]}]) == 2
    assert study.count_comparisons([{**row, "seeds": [6, 7, 8]}]) == 1
    assert study.count_comparisons([{**row, "seeds": [1, 2, 3], "verdict": "worse"}]) == 2
    other = {**row, "folders": ["mine-2", "ppo-1"], "seeds": [1, 2, 3]}
    assert study.count_comparisons([other, {**other, "verdict": None, "seeds": [1]}]) == 2


@pytest.mark.slow
def test_flags_to_try(ask):
    """The best comes first, and runs again on new seeds."""
    low, high = (f"my_idea --gamma {gamma} --ent-coef 0.1" for gamma in (0.9, 0.98))
    words = [*PPO, "--seeds", "1-3", "--try", "gamma=0.9,0.98", "ent_coef=0.1"]
    pretend(words, {"ppo": (100, 90, 110), low: (50, 60, 70), high: (200, 210, 190)})
    text = ask(*words)[1]
    assert f"- {high}: **better**\n- {low}: **worse**\n" in text
    assert "The best of several was also the luckiest" in text
    again = [*PPO, "--seeds", "11-13", "--try", "gamma=0.98", "ent_coef=0.1"]
    pretend(again, {"ppo": (105, 95, 100), high: (101, 99, 98)})
    text = ask(*words, "--confirm", "11-13")[1].split("seeds 11, 12, 13")[1]
    assert f"- {high}: **cannot tell**" in text
    assert low not in text


# --- what it refuses
def ppo_with(old, new):
    assert helpers.TEXT["ppo"].count(old) >= 1
    return helpers.TEXT["ppo"].replace(old, new)


EDIT = "last_gain=1.0", "last_gain=2.0"
OTHER_GAMMA = "gamma: float = 0.99", "gamma: float = 0.9"
UNCHECKED = "    utils.check_policy(agent, envs.obs.astype(np.float32))\n", ""
TRIED = ["--parent", f"{tools.SCRIPTS}/ppo", "--try", "gamma=0.9"]
REFUSED = [
    ("ppo.py", "# a comment\n", [], "ppo.py is the name of an installed script"),
    ("ppo.py", "import abc\n", TRIED, "ppo.py is the name of an installed script"),
    ("mine.py", "", [], "mine.py has the code of ppo.py"),
    ("mine.py", EDIT, ["--", "--seed", "3"], "--seed is no flag of both mine.py and ppo.py, or"),
    ("mine.py", EDIT, ["--", "--foo", "3"], "--foo is no flag"),
    ("mine.py", EDIT, ["--try", "foo=3"], "--foo is no flag"),
    ("mine.py", OTHER_GAMMA, [], "gamma is 0.99 in ppo.py. The same"),
    ("mine.py", UNCHECKED, [], "--other-act"),
    ("mine.py", EDIT, ["--confirm", "5-7"], "--confirm needs seeds"),
    ("mine.py", EDIT, ["--seeds", "x"], "seeds are numbers and ranges"),
    ("mine.py", EDIT, ["--seeds", "1", "5-1"], "seeds are numbers and ranges such as 1-5, not 5-1"),
    ("mine.py", EDIT, ["--minutes", "-1"], "give --steps or --minutes, above 0"),
    ("mine.py", EDIT, ["--minutes", "9", "--print-jobs"], "--minutes needs this machine"),
    ("mine.py", EDIT, ["--minutes", "9", "--jobs", "9999"], "a core for each of --jobs"),
    ("none.py", None, [], "there is no none.py"),
]


@pytest.mark.parametrize("name, change, words, message", REFUSED)
def test_refusals(name, change, words, message, ask):
    if change is not None:
        text = ppo_with(*change) if isinstance(change, tuple) else change + helpers.TEXT["ppo"]
        Path(name).write_text(text)
    name = str(Path(name).resolve().with_suffix("")) if change is not None else name
    with pytest.raises(SystemExit, match=re.escape(message)) as refused:
        ask(name, *PPO[1:], *words)
    assert str(refused.value).count("\n") == 0
    assert not Path("study").exists()


def test_what_may_differ(ask):
    """Another default, where both get the flag; act() as it is meant."""
    Path("mine.py").write_text(ppo_with(*OTHER_GAMMA))
    study.refuse_unfair(study.parse(["mine.py", *PPO[1:], "--", "--gamma", "0.9"]))
    Path("mine.py").write_text(ppo_with(*UNCHECKED))
    study.refuse_unfair(study.parse(["mine.py", *PPO[1:], "--other-act"]))


def test_minutes_alone_do_not_tell_a_schedule_where_it_ends():
    words = ["my_idea.py", "--parent", "ppo", "--env-id", "x"]
    with pytest.raises(SystemExit):
        study.parse(words)
    with pytest.raises(SystemExit, match="a schedule depends on the total: give --steps"):
        study.refuse_unfair(study.parse([*words, "--minutes", "9"]))
    args = study.parse([*words, "--minutes", "9", "--steps", "100000"])
    study.refuse_unfair(args)
    job = study.job_of(args, next(study.arms_of(args)), "x", 1)
    assert "--resume" not in job.words  # what was stopped begins again
    Path("mine.py").write_text("x = 1\n" + helpers.TEXT["sac"])  # without a schedule
    study.refuse_unfair(study.parse(["mine.py", *words[3:], "--minutes", "9"]))


def test_a_copy_that_has_changed(ask):
    """Comments may; a checkpoint holds what other code has learned."""
    pretend(PPO, {"my_idea": NOISE[0], "ppo": NOISE[1]})
    text = Path("my_idea.py").read_text()
    (folder,) = Path("study/runs").glob("my_idea-*")
    for run_dir in folder.iterdir():
        (run_dir / "checkpoint.pt").touch()
    Path("my_idea.py").write_text(text + "# a comment\n")
    assert ask(*PPO)[0] == 0
    Path("my_idea.py").write_text(text.replace("0.02", "0.03"))
    with pytest.raises(SystemExit, match=f"my_idea.py changed since it ran.*rm -r {folder}"):
        ask(*PPO)


def test_a_folder_that_cannot_be_written(ask):
    """Said before the first step."""
    Path("study").touch()
    with pytest.raises(SystemExit, match="error: cannot write to study/my_idea: Not a directory"):
        ask(*PPO)


def test_the_parent_is_the_nearest_script():
    for name in ("ppo", "sac", "dqn"):
        Path("mine.py").write_text(helpers.TEXT[name].replace("gamma", "discount"))
        assert tools.nearest_script(Path("mine.py").read_text()).stem == name
    counts = tools.changed_lines("a\n# === agent\nb\n", "c\n# === agent\nb\nd\n")
    assert counts == {"imports": 2, "agent": 1}


def test_which_runs_count():
    """Those of the same code, steps and flags; comments do not count."""

    def folder(*words):
        args = study.parse(["my_idea.py", "--parent", "ppo", "--env-id", "x", *words])
        return study.folder(args, [*study.arms_of(args)][-1], "a:b/c")

    first = folder("--steps", "100")
    assert first.name.startswith("my_idea-a-b-c-")
    assert folder("--steps", "100", "--seeds", "7", "--jobs", "2") == first
    words = [["200"], ["100", "--try", "gamma=0.9"], ["100", "--", "--gamma", "0.8"]]
    words += [["100", "--minutes", minutes] for minutes in ("9", "20")]
    others = {folder("--steps", *more) for more in words}
    text = Path("my_idea.py").read_text()
    Path("my_idea.py").write_text(text + "# a comment")
    assert folder("--steps", "100") == first
    Path("my_idea.py").write_text(text + "x = 1\n")
    assert len({first, folder("--steps", "100"), *others}) == 7


# --- what it runs
def starts(name, seed):
    """The step at which each attempt of a run began."""
    paths = Path("study/runs").glob(f"{name}-pays-*/pays__{name}__{seed}__1/starts")
    return [int(word) for path in paths for word in path.read_text().split()]


def test_a_bandit(ask):
    """Seed by seed. A run counts for another study too, but not with other flags."""
    status, text = ask("better.py", *BANDITS)
    assert status == 0
    assert "- better: **better**" in text
    (row,) = helpers.read_json("study/better/runs.json")["rows"]
    assert np.mean(row["final"]["values"]) == pytest.approx(9.5, abs=0.3)
    assert np.mean(row["final"]["of parent"]) == pytest.approx(7.5, abs=0.5)
    runs = sorted(Path("study/runs").glob("*/*/eval.json"), key=lambda path: path.stat().st_mtime)
    assert [path.parent.name for path in runs] == [
        f"pays__{name}__{seed}__1" for seed in "123" for name in ("bandit", "better")
    ]


@pytest.mark.slow
def test_other_bandits(ask):
    """Runs count for another study too, but not with other flags."""
    assert "- worse: **worse**" in ask("worse.py", *BANDITS)[1]
    assert "- same: **no effect**" in ask("same.py", *BANDITS, "--jobs", "2")[1]
    assert len([*Path("study/runs").glob("*/*/eval.json")]) == 9
    words = [*BANDITS, "--jobs", "2", "--", "--fade", "0.4"]
    assert "- slower: **learns more slowly**" in ask("slower.py", *words)[1]
    assert len([*Path("study/runs").glob("*/*/eval.json")]) == 15


def test_a_setting_that_fails(ask):
    """Before the first run."""
    words = [word if word != "pays" else "wrong" for word in BANDITS]
    with pytest.raises(SystemExit, match="error: no such environment"):
        ask("better.py", *words)
    assert not Path("study/runs").exists()


@pytest.mark.slow
def test_kill_and_continue(ask):
    """Ctrl-C: the run saves, the same command continues it, and the failed seed is named."""
    words = ["better.py", *BANDITS[:-1], "1-2", "--", "--pause", "0.02"]
    command = [sys.executable, "-m", "cleanrl_lite.tools.study", *words]
    process = helpers.in_background(command, cwd=Path())
    helpers.wait_for(lambda: starts("bandit", 1))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert starts("better", 1) == []
    (run_dir,) = Path("study/runs").glob("bandit-*/pays__bandit__1__1")
    saved = int((run_dir / "checkpoint.pt").read_text())
    assert 0 <= saved < 2000
    Path(run_dir.with_name("pays__bandit__2__1")).touch()  # this seed cannot begin
    status, text = ask(*words)
    assert status == 1
    assert starts("bandit", 1) == [0, saved]
    assert "- better: **no verdict**" in text
    assert re.search(
        r"^- bandit, pays, seed 2: FileExistsError.* \(see study/runs/bandit-", text, re.M
    )


@pytest.mark.slow
def test_equal_time(ask):
    """At any speed: each run ends when its minutes are over, and is compared by its own steps."""
    text = BANDIT.replace("time.sleep(float(args.pause))", "time.sleep(float(args.pause) / 20)")
    Path("quick.py").write_text(text)
    words = ["quick.py", *BANDITS[:4], "--seeds", "1-3", "--jobs", "2", "--minutes", "0.15"]
    flags = ["--", "--pause", "0.04", "--fade", "0.1"]  # explores for 4,000 of 40,000 steps
    for _ in range(2):  # the second time, all have finished
        status, text = ask(*words, "--steps", "40000", *flags)
        assert (status, starts("quick", 1)) == (0, [0])
        assert "- quick: **better**" in text
    (row,) = helpers.read_json("study/quick/runs.json")["rows"]
    quick, bandit = row["steps"]["values"], row["steps"]["of parent"]
    assert min(quick) > 4_500 > 3_500 > max(bandit)
    assert row["final"]["values"] == [10, 10, 10]
    assert np.mean(row["final"]["of parent"]) == pytest.approx(7.5, abs=0.5)
    assert min(row["area"]["values"]) > max(row["area"]["of parent"])
    status, text = ask(*words, "--steps", "500", *flags)
    assert status == 1
    assert "- quick, pays, seed 1: ended before its minutes: give it more --steps" in text


def test_jobs_for_a_cluster(ask, capsys):
    """The launcher runs what is left, and the study finds it."""
    from benchmark.launch import launch

    words = ["better.py", *BANDITS[:-1], "1"]
    with pytest.raises(SystemExit):
        ask(*words, "--print-jobs")
    lines = capsys.readouterr().out.splitlines()
    assert [shlex.split(line)[1] for line in lines] == ["bandit.py", "better.py"]
    found = launch.jobs(launch.piped(lines, []), Path("runs"))
    for job in found.values():
        assert job.start()
        assert job.process.wait(60) == 0
    args = study.parse([*words])
    for arm in study.arms_of(args):
        assert study.finished(study.job_of(args, arm, "pays", 1))


# --- AGENTS.md
def commands():
    """Its commands: cp, a try of ten seconds, and study."""
    text = (helpers.ROOT / "AGENTS.md").read_text()
    assert len(text.splitlines()) <= 70
    (block,) = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    copy, attempt, *others = (shlex.split(line, comments=True) for line in block.splitlines())
    Path("cleanrl_lite").symlink_to(helpers.SOURCE)
    assert helpers.run(copy, cwd=Path()).returncode == 0
    text = Path("my_idea.py").read_text()
    Path("my_idea.py").write_text(text.replace("last_gain=0.01", "last_gain=0.02"))
    return [sys.executable, *attempt[1:]], [[sys.executable, *other[1:]] for other in others]


@pytest.mark.slow
def test_a_try_of_ten_seconds():
    attempt, _ = commands()
    done = helpers.run(attempt, cwd=Path())
    assert done.returncode == 0, done.stderr
    assert "finished: runs/CartPole-v1__my_idea__1__" in done.stdout


@pytest.mark.slow
def test_the_study_of_agents_md():
    _, (command,) = commands()
    few = {"100000": "4096", "1-5": "1"}
    done = helpers.run([few.get(word, word) for word in command], cwd=Path())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("- my_idea: **no verdict**") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, old, new, verdicts",
    [
        (
            "faster",
            "args.learning_rate * rem",
            "5 * args.learning_rate * rem",
            ["better", "learns faster"],
        ),
        ("wrong", "policy_loss = -torch.min(", "policy_loss = torch.min(", ["worse"]),
        ("equal", "deltas", "td_errors", ["no effect"]),
        ("slower", "args.learning_rate * rem", "args.learning_rate * 0.1 * rem", ["worse"]),
    ],
)
def test_copies_of_ppo(name, old, new, verdicts, ask):
    Path(f"{name}.py").write_text(ppo_with(old, new))
    words = ["--env-id", "CartPole-v1", "--steps", "16384", "--seeds", "1-3", "--jobs", "2"]
    text = ask(f"{name}.py", *words, "--", "--no-compile")[1]
    assert any(f"- {name}: **{verdict}**" in text for verdict in verdicts), text
