"""What the README, the pages and the guides show works."""

import re
import shlex
import sys

import pytest
import tyro

from benchmark.publish import tables
from tests import helpers
from tests.helpers import ROOT, run

PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]
TEXTS = [*PAGES, "benchmark/README.md", "CONTRIBUTING.md", "CHANGELOG.md"]


def commands(page):
    """(script, words) of every command of a script in the page's shell blocks."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    call = r"(?:python|cleanrl_lite|torchrun .*) (?:cleanrl_lite/)?(\w+)\.py(.*)"
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
        for script, words in re.findall(call, block):
            if script in helpers.SCRIPTS:
                yield script, shlex.split(re.split(r"[&;|]", words)[0].rstrip("\"'"), comments=True)


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_flags_that_exist(page):
    for script, words in commands(page):
        values = ["1" if word.startswith("$") else word for word in words]
        tyro.cli(helpers.module(script).Args, args=values)


def test_the_tools_that_the_pages_name_exist():
    text = "".join((ROOT / page).read_text() for page in TEXTS if page != "CHANGELOG.md")
    tools = set(re.findall(r"python -m ((?:benchmark|cleanrl_lite)[.\w]*\w)", text))
    paths = [ROOT / tool.replace(".", "/") for tool in tools - {"benchmark.launch.my_sweep"}]
    missing = [p for p in paths if not p.with_suffix(".py").exists() and not p.is_dir()]
    assert paths and not missing


def test_the_change_in_the_readme_is_a_tested_one():
    (shown,) = re.findall(r"^```diff\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert shown in [path.read_text() for path in (ROOT / "tests/changed_copies").glob("*.diff")]


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_those_of_the_files(page):
    """Where this fails, run `make results`."""
    text = (ROOT / page).read_text()
    assert tables.filled(text) == text
    marks = re.findall(r"^<!-- (?:table|file) \S+ -->$", text, re.M)
    assert len(marks) == text.count("\n<!-- end -->\n")


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    """Strictly: no broken link or anchor, no formula that docs/mathml.py does not know."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = run(command, cwd=ROOT, timeout=300, NO_MKDOCS_2_WARNING="1")
    assert done.returncode == 0, done.stderr
    for path in (ROOT / "docs/notebooks").glob("*.ipynb"):
        assert "data:image/png" in (tmp_path / f"notebooks/{path.stem}.html").read_text()
    assert 'href="source/ppo.html#L-0-' in (tmp_path / "ppo.html").read_text()
