"""cleanrl_lite/tools/plot.py and runs.py: runs are found, told apart and drawn as they are."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.image import imread

from cleanrl_lite.tools import plot
from cleanrl_lite.tools import runs as tools
from tests import helpers
from tests.fake_runs import TEXT, write_events, write_run

RAMP = np.arange(200.0)


def groups(folder, by=None):
    """{label: seeds}"""
    found = tools.group(tools.find([folder]), by)
    seeds = {}
    for label, runs in found.items():
        seeds[label] = [run.args["seed"] for run in runs]
    return seeds


# --- which runs belong together
def test_runs_are_told_apart_by_what_differs(tmp_path):
    """Not by the machine, nor by what differs between environments only."""
    for seed in (1, 2):
        write_run(tmp_path, RAMP, seed=seed)
        write_run(tmp_path, RAMP, seed=seed, learning_rate=1e-4, compile=False, threads=seed)
    assert groups(tmp_path) == {"learning_rate=0.0001": [1, 2], "learning_rate=0.001": [1, 2]}
    write_run(tmp_path, RAMP, exp_name="my_idea")
    labels = ["my_idea", "ppo, learning_rate=0.0001", "ppo, learning_rate=0.001"]
    assert list(groups(tmp_path)) == labels
    other = tmp_path / "other"
    write_run(other, RAMP, gamma=0.9)
    write_run(other, RAMP, env_id="Acrobot-v1", gamma=0.99, total_timesteps=5)
    assert groups(other) == {"ppo": [1, 1]}


def test_a_script_changed_under_the_same_name(tmp_path):
    """A comment is no change."""
    write_run(tmp_path, RAMP, seed=1)
    write_run(tmp_path, RAMP, seed=2, text=TEXT + "# a comment\n\n")
    assert groups(tmp_path) == {"ppo": [1, 2]}
    write_run(tmp_path, RAMP, seed=1, text=TEXT + "clip = 0.1\n")
    found = groups(tmp_path)
    assert all(label.startswith("code ") for label in found)
    assert sorted(found.values()) == [[1], [1, 2]]


def test_grouped_by_choice(tmp_path, capsys):
    """Numbers by size. It says what else differs, and by what one can group."""
    for gamma in (0.99, 0.9, 1, 0.995):
        write_run(tmp_path, RAMP, gamma=gamma)
    write_run(tmp_path, RAMP, gamma=0.9, learning_rate=1.0)
    names = {"gamma=0.9": [1, 1], "gamma=0.99": [1], "gamma=0.995": [1], "gamma=1": [1]}
    assert list(groups(tmp_path, ["gamma"]).items()) == list(names.items())
    tools.mixed(tools.group(tools.find([tmp_path]), ["gamma"]))
    assert capsys.readouterr().err == "note: the runs of gamma=0.9 also differ in learning_rate\n"
    message = "^error: no run has an argument gama. These differ: folder, gamma, learning_rate$"
    with pytest.raises(SystemExit, match=message):
        groups(tmp_path, ["gama"])


def test_a_seed_that_ran_again_counts_once(tmp_path, capsys):
    """The newest finished one."""
    for finished in (True, True, False):
        newest = write_run(tmp_path, RAMP, finished=finished)
    (runs,) = tools.group(tools.find([tmp_path])).values()
    assert [run.dir.name[-1] for run in runs] == ["1"]
    assert newest.name[-1] == "2"
    assert capsys.readouterr().err.startswith("note: ppo: 2 seeds ran again, the newest")


ODD = ['{"seed":', "[1]", "3", '{"seed": 1, "env": "x"}', '{"total_timesteps": "many"}', ""]


def test_what_is_no_run(tmp_path, capsys):
    """Odd files of other projects stop nothing; each is said."""
    with pytest.raises(SystemExit, match="there is no folder"):
        tools.find([tmp_path / "nowhere"])
    with pytest.raises(SystemExit, match="error: no run below"):
        tools.find([tmp_path])
    run_dir = write_run(tmp_path, RAMP)
    for text in ODD:
        (write_run(tmp_path, RAMP) / "args.json").write_text(text)
    for odd in ("[]", '{"global_step": null}', "{"):
        (write_run(tmp_path, RAMP) / "eval.json").write_text(odd)
    exported = write_run(tmp_path, RAMP)
    next(exported.glob("events*")).unlink()
    odd_values = write_run(tmp_path, RAMP, seed=2, script=3, gamma={"a": [1]})
    found = [run.dir for run in tools.find([tmp_path])]
    assert found == [run_dir, odd_values]
    assert list(tools.group(tools.find([tmp_path])))
    assert capsys.readouterr().err.count("note: left out") == 2 * (len(ODD) + 3)


def test_a_file_that_is_cut_off_is_of_no_finished_run(tmp_path, capsys):
    """But an older file may be, of a run that was killed and resumed."""
    run_dir = write_run(tmp_path, RAMP)
    (path,) = run_dir.glob("events*")
    whole = path.read_bytes()
    (run,) = tools.find([tmp_path])
    assert run.finished
    (shorter,) = write_run(tmp_path / "shorter", RAMP[:-1]).glob("events*")
    shorter = shorter.rename(tmp_path / "shorter/events").read_bytes()
    for rest in (whole[: len(whole) // 3], whole[:-1], shorter, b""):
        path.write_bytes(rest)
        (run,) = tools.find([tmp_path])
        assert not run.finished
        assert "counts as unfinished" in capsys.readouterr().err
    path.write_bytes(whole[:-20] + b"\xff" * 20)
    with pytest.raises(SystemExit):
        tools.find([tmp_path])
    assert "note: left out" in capsys.readouterr().err
    (run_dir / "events.out.tfevents.2000000.host.1.0").write_bytes(whole)
    (run,) = tools.find([tmp_path])
    assert run.finished


# --- curves
def test_a_resumed_run_repeats_nothing(tmp_path):
    """The steps that a kill lost are in two files, and count once; the pause does not count."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.record_writer import RecordWriter

    for number, (start, first, last) in enumerate([(0, 1, 5), (1000, 3, 8)]):
        with open(tmp_path / f"events.out.tfevents.{number}", "wb") as file:
            writer = RecordWriter(file)
            log = SessionLog(status=SessionLog.START)
            header = Event(wall_time=start, step=first, session_log=log if number else None)
            writer.write(header.SerializeToString())
            for step in range(first, last):
                event = Event(wall_time=start + 60 * (step - first + 1), step=step)
                event.summary.value.add(tag="x", simple_value=step + 10 * number)
                writer.write(event.SerializeToString())
    steps, minutes, values = tools.read_curve(tmp_path, ["other", "x"])
    assert steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert values.tolist() == [1, 2, 13, 14, 15, 16, 17]
    assert minutes.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert tools.read_curve(tmp_path, ["other"]) is None


def test_long_episodes_weigh_more():
    """By hand: 10 for steps 1 to 100, 40 for 101 to 400, 20 and 40 at step 500; it holds then."""
    steps = np.array([100.0, 400, 500, 500])
    values = np.array([10.0, 40, 20, 40])
    means = tools.step_means(steps, values, np.array([0, 100, 200, 500, 900]))
    assert means == pytest.approx([10, 40, (200 * 40 + 100 * 30) / 300, 30])
    pairs = tools.step_means(steps, values, np.array([[0, 400], [350, 450]]))
    assert pairs[:, 0] == pytest.approx([(100 * 10 + 300 * 40) / 400, 35])


# --- pictures
def drawn(monkeypatch, folder, tmp_path, *words):
    """The figure of `plot FOLDER ...`, and what it printed goes on."""
    figures = []
    monkeypatch.setattr(plot.plt, "close", figures.append)
    monkeypatch.setattr("sys.argv", ["plot", str(folder), "--out", str(tmp_path / "x"), *words])
    plot.main()
    monkeypatch.undo()
    (figure,) = figures
    plt.close(figure)
    return figure


def legend(ax):
    return [text.get_text().replace("\u00a0", " ") for text in ax.get_legend().get_texts()]


def test_a_picture(tmp_path, monkeypatch, capsys):
    """A panel an environment; mean and band of the finished seeds, the unfinished one dashed."""
    folder = tmp_path / "runs"
    for seed, height in enumerate([0, 10, 40], 1):
        write_run(folder, RAMP + height, seed=seed)
    write_run(folder, RAMP[:50] + 1000, finished=False, seed=4, total_timesteps=20_000)
    write_run(folder, -RAMP, env_id="Acrobot-v1")
    figure = drawn(monkeypatch, folder, tmp_path)
    acrobot, cartpole = figure.axes
    assert [ax.get_title("left") for ax in figure.axes] == ["Acrobot-v1", "CartPole-v1"]
    assert legend(acrobot) == ["ppo (1 seed)"]
    assert legend(cartpole) == ["ppo (4 seeds, 1 unfinished)"]
    *seeds, mean, unfinished = cartpole.lines
    assert len(seeds) == 3
    assert len(cartpole.collections) == 1
    assert not acrobot.collections
    window = 10  # 5 % of the steps
    last = RAMP[-window:].mean() + np.mean([0, 10, 40])
    assert mean.get_ydata()[-1] == pytest.approx(last)
    assert mean.get_xdata()[0] == 100 * window  # whole windows only
    assert mean.get_linestyle() == "-"
    assert unfinished.get_linestyle() == "--"
    assert unfinished.get_ydata()[-1] == pytest.approx(RAMP[40:50].mean() + 1000)
    band = cartpole.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(RAMP[-window:].mean() + 40)
    assert imread(capsys.readouterr().out.strip()).shape[1] > 1000


# --- other libraries
def test_other_libraries(tmp_path, monkeypatch):
    """Tags as stable-baselines3 2.9.2, CleanRL fe8d8a0 and rl-games 1.6.5 write them. What they
    log as a mean of episodes is not averaged again."""
    write_run(tmp_path / "runs", RAMP)
    write_run(tmp_path / "runs", RAMP, env_id="Acrobot-v1")
    also = tmp_path / "also"
    for number in (1, 2):
        write_events(also / f"CartPole-v1/PPO_{number}", "rollout/ep_rew_mean", RAMP + number)
    write_events(also / "Acrobot-v1__dqn__7__1700000000", "charts/episodic_return", RAMP)
    write_events(also / "Acrobot-v1/a2c_27-17-40-02/summaries", "rewards/step", RAMP)
    figure = drawn(monkeypatch, tmp_path / "runs", tmp_path, "--also", str(also))
    acrobot, cartpole = figure.axes
    names = ["ppo (1 seed)", "a2c of also (1 seed)", "dqn of also (1 seed)"]
    assert legend(acrobot) == names
    assert legend(cartpole) == ["ppo (1 seed)", "PPO of also (2 seeds)"]
    ends = [line.get_ydata()[-1] for line in acrobot.lines]
    assert ends == pytest.approx([RAMP[-10:].mean(), 199, RAMP[-10:].mean()])
    assert cartpole.lines[-1].get_ydata()[-1] == pytest.approx(200.5)


def test_names_of_other_libraries(tmp_path):
    """Only the numbers go that Stable-Baselines3 adds; in CleanRL's an id may have a slash, and a
    name what separates the others."""
    for name in ("ppo_64_1", "ppo_64_2", "lr-3e-4_1", "width_32"):
        write_events(tmp_path / "sb3/CartPole-v1" / name, "rollout/ep_rew_mean", RAMP)
    found = plot.find_also([tmp_path / "sb3"], {"CartPole-v1"})
    names = {label.split(" of ")[0]: len(runs) for label, runs in found.items()}
    assert names == {"ppo_64": 2, "lr-3e-4": 1, "width_32": 1}
    for name in ("ALE/Pong-v5__ppo_atari__1__1700000100", "CartPole-v1__my__idea__2__1700000100"):
        write_events(tmp_path / "runs" / name, "charts/episodic_return", RAMP)
    found = plot.find_also([tmp_path / "runs"], {"ALE/Pong-v5", "x:CartPole-v1"})
    env_ids = {label.split(" of ")[0]: runs[0].env_id for label, runs in found.items()}
    assert env_ids == {"ppo_atari": "ALE/Pong-v5", "my__idea": "x:CartPole-v1"}


def test_the_script_of_a_run_is_not_utils(tmp_path):
    """Whose text lies beside it, before or after it in the alphabet."""
    for script in ("ppo", "vpg"):
        run_dir = write_run(tmp_path, RAMP, exp_name=script)
        assert tools.source_of(run_dir) == run_dir / f"{script}.py"


def test_no_script_imports_a_tool_and_no_tool_the_repository():
    for text in helpers.TEXT.values():
        assert not re.search(r"(import|from) .*\btools\b", text)
    for path in (helpers.SOURCE / "tools").glob("*.py"):
        imports = re.findall(r"^ *(?:from|import) (\w+)", path.read_text(), re.M)
        assert not {"benchmark", "tests", "docs", "stable_baselines3"} & {*imports}, path.name
