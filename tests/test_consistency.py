"""The copies stay copies: flags with help, functions of one name that agree, nothing shared but
utils. All is read from the scripts: a new one needs no entry here."""

import ast
import dataclasses
import functools
import re
import subprocess
import sys

import pytest

from tests.helpers import ROOT, SCRIPTS, SOURCE, TEXT, lineage, module


def fields(script):
    """{flag: (type, default, help)} as the source has them."""
    body = re.search(r"^class Args:\n(.*?)(?=^\S)", TEXT[script], re.S | re.M)[1]
    lines = re.findall(r"^    (\w+): (.+?) = (.+?)(?:  # (.+))?$", body, re.M)
    return {name: tuple(rest) for name, *rest in lines}


def test_flags(script):
    """Each has help, is used, is not overwritten, and has a default of its type."""
    text = TEXT[script] + TEXT["utils"]
    found = dataclasses.fields(module(script).Args)
    assert [field.name for field in found] == list(fields(script))
    for field in found:
        assert fields(script)[field.name][2], f"--{field.name} has no help"
        used = rf"\bargs\.{field.name}\b(?! = )|\"{field.name}\""
        assert re.search(used, text), f"--{field.name} is not used"
        assert isinstance(field.default, field.type)
    assert not re.search(r"\bargs\.\w+ (=|\+=|-=|\*=) ", TEXT[script])
    assert re.findall(r"^ *(?:from|import) cleanrl_lite.*", TEXT[script], re.M) == [
        "from cleanrl_lite import utils"
    ]


def test_same_flag_same_meaning():
    """Type and help of a flag are the same everywhere, but for what --env-id may be."""
    seen = {}
    for script in SCRIPTS:
        for name, (kind, _, told) in fields(script).items():
            same = kind, told if name != "env_id" else None
            other, first = seen.setdefault(name, (script, same))
            assert same == first, f"--{name} of {script} and {other}"


def test_what_acts_in_numpy_is_checked(script):
    """By main(), before it trains: an edit of sampler() alone stops (test_utils has the check)."""
    assert ("def sampler(" in TEXT[script]) == ("    utils.check_policy(" in TEXT[script])


@functools.cache
def definitions(script):
    """{name: (code, words)} of every function and class, Class.method, but what main() defines."""
    found, lines = {}, TEXT[script].splitlines()
    for node in ast.parse(TEXT[script]).body:
        inner = node.body if isinstance(node, ast.ClassDef) else []
        for part in [node, *inner]:
            kinds = ast.FunctionDef | ast.ClassDef
            if isinstance(part, kinds) and part.name not in ("main", "Args"):
                name = part.name if part is node else f"{node.name}.{part.name}"
                docstring = ast.get_docstring(part)
                text = "\n".join(lines[part.lineno - 1 : part.end_lineno])
                code = [ast.dump(child) for child in part.body[docstring is not None :]]
                if part is node and inner:
                    values = [child for child in inner if not hasattr(child, "decorator_list")]
                    code = [*map(ast.dump, values)]
                found[name] = code, (docstring, *re.findall("# .*", text))
    return found


def test_functions_of_one_name_agree(script):
    """With those of the nearest ancestor, or else of another script, that has it; where the code
    differs, so do docstring or comments, or those of its class: that says that it was meant."""
    others = [*lineage(script)[1:], *[name for name in SCRIPTS if script not in lineage(name)]]
    for name, (code, words) in definitions(script).items():
        head = name.partition(".")[0]
        theirs = [definitions(other)[name] for other in others if name in definitions(other)]
        if head in ("Agent", "make_env") or not theirs or code == theirs[0][0]:
            continue
        heads = [definitions(other)[head] for other in others if name in definitions(other)]
        declared = words != theirs[0][1] or definitions(script)[head][1] != heads[0][1]
        assert declared, f"{name} of {script}.py differs from another script's; its words do not"


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff(command):
    folders = [SOURCE, ROOT / "tests", ROOT / "benchmark"]
    ruff = [sys.executable, "-m", "ruff", *command.split(), *folders]
    done = subprocess.run(ruff, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
