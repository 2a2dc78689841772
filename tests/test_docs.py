"""What the README and the guides show works."""

import re
import shlex
import shutil
import sys

import gymnasium as gym
import pytest
import tyro
from PIL import Image

from benchmark.publish import pages
from tests import helpers
from tests.helpers import ROOT, SOURCE, run

PAGES = [
    "README.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
]

# Of formulas: what MathJax and KaTeX know, and docs/mathml.py
LATEX = {"text", "frac", "sqrt", "hat", "quad", "min", "max", "log", "exp", "tanh", "arg"}
LATEX |= {"alpha", "beta", "gamma", "delta", "epsilon", "lambda", "mu", "phi", "pi", "rho", "sigma"}
LATEX |= {"tau", "theta", "Delta", "nabla", "cdot", "pm", "leftarrow", "sim", "lVert", "rVert"}
LATEX |= {"lfloor", "rfloor", "lceil", "rceil", "ldots", "lt", "gt", "le", "ge", "sum", "in"}


def commands(page):
    """(script, words) of every command of a script in the page's shell blocks."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
        for script, words in re.findall(
            r"(?:python|cleanrl_lite|torchrun .*) (?:cleanrl_lite/)?(\w+)\.py(.*)", block
        ):
            if script in helpers.SCRIPTS:
                yield script, shlex.split(re.split(r"[&;|]", words)[0].rstrip("\"'"), comments=True)


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_flags_that_exist(page):
    for script, words in commands(page):
        values = ["1" if word.startswith("$") else word for word in words]
        tyro.cli(helpers.module(script).Args, args=values)


def test_these_are_the_commands():
    """The pattern finds them."""
    assert len([*commands("README.md")]) >= 6
    assert sum(len([*commands(page)]) for page in PAGES) > 30


def test_the_tools_that_the_pages_name_exist():
    pages = [*PAGES, "benchmark/README.md", "CONTRIBUTING.md"]
    text = "".join((ROOT / page).read_text() for page in pages)
    tools = set(re.findall(r"python -m (benchmark[.\w]*\w)", text)) - {"benchmark.launch.my_sweep"}
    paths = [ROOT / tool.replace(".", "/") for tool in tools]
    assert len(paths) > 15
    assert all(p.with_suffix(".py").exists() or (p / "__main__.py").exists() for p in paths)


def test_the_moving_picture():
    """The first screen of the README and of the docs; small, and it never stops."""
    path = ROOT / "docs/img/agents.gif"
    assert path.stat().st_size <= 4e6
    with Image.open(path) as picture:
        assert picture.n_frames * picture.info["duration"] > 5_000
        assert picture.info["loop"] == 0
    for page in ("README.md", "docs/index.md"):
        before, after = (ROOT / page).read_text().split("agents.gif", 1)
        assert before.count("\n") < 10 and re.search(r"^## .*", after, re.M)[0] == "## Start"
        assert "|--" not in after[: after.index("## Start")]


def test_each_script_is_in_one_row_of_the_readme():
    """Of the core scripts or of the variants."""
    text = (ROOT / "README.md").read_text()
    tables = text[text.index("\n## Scripts") : text.index("\n## A run")]
    linked = re.findall(r"\[(\w+)\.py\]\(docs/(\w+)\.md\)", tables)
    assert sorted(linked) == sorted((script, script) for script in helpers.SCRIPTS)


def test_the_change_in_the_readme_is_a_tested_one():
    text = (ROOT / "README.md").read_text()
    (shown,) = re.findall(r"^```diff\n(.*?)^```", text, re.M | re.S)
    diffs = [path.read_text() for path in (ROOT / "tests/changed_copies").glob("*.diff")]
    assert shown in diffs
    assert 8 <= len(re.findall(r"^[-+] ", shown, re.M)) <= 12


def test_the_diffs_between_the_algorithms():
    """Each whole diff that the docs show turns the old script's code into the new one's."""
    page = (ROOT / "docs/guides/algorithms.md").read_text()
    steps = re.findall(r"^<!-- diff (\w+) (\w+) -->$", page, re.M)
    assert len(steps) == 9
    for old, new in steps:
        before, after = (
            [line for _, line in pages.lines_of(script, None)] for script in (old, new)
        )
        at = 0
        for section, hunk in pages.hunks(old, new):
            removed = [line[1:] for line in hunk if line[0] in " -"]
            while before[at : at + len(removed)] != removed:
                at += 1
                assert at < len(before), f"{old} to {new}: {section}"
            added = [line[1:] for line in hunk if line[0] in " +"]
            before[at : at + len(removed)] = added
        assert before == after


@pytest.mark.parametrize("page", PAGES)
def test_what_stands_between_marks_is_todays(page):
    """Where this fails, run `python -m benchmark.publish.pages`."""
    text = (ROOT / page).read_text()
    assert pages.write(text) == text


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_read_as_it_is(page):
    """On a code host: no placeholder, no syntax of mkdocs only, formulas between dollars."""
    text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", (ROOT / page).read_text(), flags=re.M | re.S)
    found = re.findall(r"--8<-- .*|\{\{ .*|^\?\?\?.*|^!!!.*|\\[(\[].*", text, re.M)
    assert found == []
    for formula in re.findall(r"\$\$\n.*?\n\$\$|\$[^$\n]+\$", text, re.S):
        inner = formula.strip("$\n")
        assert inner == inner.strip()
        commands = {*re.findall(r"\\([A-Za-z]+)", inner)}
        assert commands <= LATEX, formula
    assert text.count("$") % 2 == 0
    marks = re.findall(r"^<!-- (?:(?:code|section|diff|file|table) .+|(end)) -->$", text, re.M)
    assert marks[::2] == [""] * (len(marks) // 2)
    assert marks[1::2] == ["end"] * (len(marks) // 2)


@pytest.mark.parametrize("page", [*PAGES, "benchmark/README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_to_files(page):
    """Also on a code host, where nothing is built."""
    text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", (ROOT / page).read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if not re.match("https?://|mailto:", target):
            assert ((ROOT / page).parent / target).exists(), target


def test_a_part_that_is_not_there():
    with pytest.raises(
        SystemExit, match="code cleanrl_lite/ppo.py nothing: found 0 times, not once"
    ):
        pages.write("<!-- code cleanrl_lite/ppo.py nothing -->\n<!-- end -->")


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    """Strictly: no broken link, no code that is not there; with rendered notebooks and diffs."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = run(
        command,
        cwd=ROOT,
        timeout=300,
        NO_MKDOCS_2_WARNING="1",
    )
    assert done.returncode == 0, done.stderr
    for path in (ROOT / "docs/notebooks").glob("*.ipynb"):
        assert "data:image/png" in (tmp_path / f"notebooks/{path.stem}.html").read_text()
    assert (tmp_path / "guides/algorithms.html").read_text().count("@@ update @@") >= 12


@pytest.mark.slow
def test_the_commands_of_the_readme(tmp_path):
    """Its section A run, line by line, on a run of some seconds; and a copy of a script."""
    python = f"{shlex.quote(sys.executable)} "
    (tmp_path / "cleanrl_lite").symlink_to(SOURCE)
    shutil.copytree(ROOT / "benchmark/results/agents", tmp_path / "benchmark/results/agents")
    small = (
        "--no-compile --num-steps 128 --num-minibatches 4 --update-epochs 1 --total-timesteps 256"
    )
    block = re.search(r"```sh\n(run=.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    block = block.replace("2000000", "512").replace("--eval-episodes 100", "--eval-episodes 2")
    lines = [
        "set -e",
        f"python cleanrl_lite/ppo_continuous.py --env-id Hopper-v4 {small} --eval-episodes 1",
        block,
    ]
    lines += [
        f"cp cleanrl_lite/ppo_continuous.py my_idea.py && python my_idea.py --env-id Walker2d-v4 {small}"
    ]
    lines = [line.replace("python ", python) for line in lines]
    done = run(["bash", "-c", "\n".join(lines)], cwd=tmp_path, timeout=400)
    assert done.returncode == 0, done.stderr
    run_dir = next((tmp_path / "runs").glob("Hopper-v4__ppo_continuous__1__*"))
    assert helpers.load(run_dir)["global_step"] == 512
    assert len(list(run_dir.glob("eval_*.json"))) == 1
    assert list((tmp_path / "runs").glob("Walker2d-v4__my_idea__1__*/my_idea.py"))


@pytest.mark.parametrize(
    "script",
    [
        *helpers.variants_slow(helpers.MLP_SCRIPTS),
        *helpers.GOAL_SCRIPTS,
        *helpers.ENVPOOL_SCRIPTS,
        *helpers.IMAGE_SCRIPTS,
        "ppo_multiagent",
    ]
    + ["ppo_continuous_asymmetric", "ppo_hybrid", "ppo_selfplay"]
    + [pytest.param(script, marks=pytest.mark.slow) for script in helpers.ATARI_SCRIPTS],
)
def test_a_trained_agent_from_python(script, tmp_path, monkeypatch):
    """cleanrl_lite/tools/agents.py: the loaded agent plays as the run's evaluation did."""
    from cleanrl_lite.tools import agents

    run_dir, returns = helpers.train(script, tmp_path)
    agent, env = agents.load(run_dir)
    env = (
        gym.wrappers.TimeLimit(env, 40) if script in helpers.ATARI_SCRIPTS else env
    )  # as helpers.main does
    assert agents.play(agent, env, seed=10_001) == pytest.approx(returns[0])
