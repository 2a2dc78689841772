"""The copies stay copies: flags with help, functions of one name that agree, nothing shared but
utils. Parents, flags and definitions are read from the scripts: a new one needs no entry here."""

import ast
import dataclasses
import functools
import re
import subprocess
import sys

import pytest

from tests.helpers import PARENT, PLAIN_SCRIPTS, ROOT, SCRIPTS, SOURCE, TEXT, lineage, module


def fields(script):
    """{flag: (type, default, help)} as the source has them."""
    body = re.search(r"^class Args:\n(.*?)(?=^\S)", TEXT[script], re.S | re.M)[1]
    lines = re.findall(r"^    (\w+): (.+?) = (.+?)(?:  # (.+))?$", body, re.M)
    return {name: tuple(rest) for name, *rest in lines}


def test_scripts_import_utils_and_no_other_script(script):
    found = re.findall(r"^\s*((?:from|import) (?:cleanrl_lite|\.).*)$", TEXT[script], re.M)
    assert found == ["from cleanrl_lite import utils"]


# --- flags


def test_flags(script):
    """Each has help, is used, is not overwritten, and has a default of its type."""
    text = TEXT[script] + TEXT["utils"]
    found = dataclasses.fields(module(script).Args)
    assert [field.name for field in found] == list(fields(script))
    for name, (_, _, told) in fields(script).items():
        assert told, f"--{name} has no help"
        assert re.search(rf"\bargs\.{name}\b(?! = )", text), f"--{name} is not used"
    assert not re.search(r"\bargs\.\w+ (=|\+=|-=|\*=) ", text)
    for field in found:
        value = field.default
        assert isinstance(value, field.type), f"{field.name}: {field.type} = {value!r}"
        assert type(value) is field.type or value is None


def test_same_flag_same_meaning():
    """Type and help of a flag are the same everywhere, but for what --env-id may be."""
    seen = {}
    for script in SCRIPTS:
        for name, (kind, _, told) in fields(script).items():
            same = kind, told if name != "env_id" else None
            other, first = seen.setdefault(name, (script, same))
            assert same == first, f"--{name} of {script} and {other}"


def test_the_run_flags_are_the_same():
    """As a text, apart from two defaults: threads, and how often thousands of environments save.
    What is plain is not compiled, and has no flags for it."""

    def run_flags(script):
        group = re.search(r"    # run flags, .*?(?=\n\n)", TEXT[script], re.S)[0]
        return re.sub(r"(?<=    )(threads|save_every): int = [\d_]+", r"\1", group)

    compiled = run_flags("ppo")
    plain = re.sub(r"    (compile|cuda_graph): .*\n", "", compiled)
    for script in SCRIPTS:
        assert run_flags(script) == (plain if script in PLAIN_SCRIPTS else compiled), script


# --- copies


@functools.cache
def definitions(script):
    """{qualified name: (code without words, docstring and comments)} of every function and of the
    heads of classes; what is defined in main() goes by its own name."""
    found = {}
    lines = TEXT[script].splitlines()

    def visit(node, path):
        for child in ast.iter_child_nodes(node):
            where = path
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                where = [*path, child.name] if child.name != "main" else path
                if child.name not in ("main", "Args"):
                    found[".".join(where)] = parts(child)
            visit(child, where)

    def parts(node):
        docstring = ast.get_docstring(node)
        body = node.body[docstring is not None :]
        if isinstance(node, ast.ClassDef):  # its methods stand for themselves
            body = [child for child in body if not isinstance(child, ast.FunctionDef)]
            return tuple(map(ast.dump, body)), (docstring,)
        text = lines[node.lineno - 1 : node.end_lineno]
        comments = [line.partition("# ")[2] for line in text if "# " in line]
        return (ast.dump(node.args), *map(ast.dump, body)), (docstring, *comments)

    visit(ast.parse(TEXT[script]), [])
    return found


def inherited(script, name):
    """(ancestor, its definition) of the nearest ancestor with this function or class, or of another
    script, which is no descendant."""
    others = [other for other in SCRIPTS if script not in lineage(other)]
    for ancestor in [*lineage(script)[1:], *others]:
        if name in definitions(ancestor):
            return ancestor, definitions(ancestor)[name]
    return None, None


@pytest.mark.parametrize("variant", SCRIPTS)
def test_a_function_is_its_parents_or_says_what_it_is(variant):
    """Its code is that of the nearest ancestor; if not, its docstring or comments are others too,
    or its class's docstring: that declares that it was meant. A variant's environment, networks and
    equations within main() are its own."""
    outer = {node.name for node in ast.parse(TEXT[variant]).body if hasattr(node, "name")}
    for name, (code, words) in definitions(variant).items():
        ancestor, theirs = inherited(variant, name)
        head = name.partition(".")[0]
        if not ancestor or head in ("Agent", "make_env") or head not in outer:
            continue
        declared = head != name and definitions(variant)[head] != inherited(variant, head)[1]
        same = code == theirs[0] or words != theirs[1] or declared
        assert same, f"{name} of {variant}.py and {ancestor}.py differ, and their words do not"


def sections(script):
    """{comment: text} of main(): its parts under a banner or a stage, which a blank line
    precedes."""
    body = TEXT[script].partition("\ndef main(")[2]
    parts = re.split(r"\n\n( +# [^\n]+)\n", body)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("parts", [definitions, sections])
@pytest.mark.parametrize("parent", sorted(set(PARENT.values())))
def test_what_variants_share_their_parent_has(parent, parts):
    """A mend in the parent alone, or in all but the parent, would show here."""
    found = {}
    for variant in (name for name in PARENT if PARENT[name] == parent):
        for name, part in parts(variant).items():
            if parts(parent).get(name, part) != part:
                found.setdefault((name, part), []).append(variant)
    for (name, _), variants in found.items():
        assert len(variants) == 1, f"{name} of {variants} is the same, but not {parent}.py's"


# They stand in every script, and not every script's schedule or end is run by the first tier.
EVERYWHERE = {
    "logging": (r"    # === logging\n(.*?)(?=\n    # ===)", set()),
    "evaluation": (r"    # === evaluation\n(.*)\Z", set()),
    "anneal_lr": (r"if args\.anneal_lr:\n[^\n]*\n[^\n]*", {"ppo_continuous_adaptive"}),
    "epsilon_steps": (r"epsilon_steps = [^\n]*", set()),
    "epsilon": (r"epsilon = linear_schedule[^\n]*", set()),
    "beta": (r"total = [^\n]*\n *beta\.fill_[^\n]*", set()),
    "target_kl": (r"if args\.target_kl [^\n]*", {"ppo_atari_multigpu", "ppo_continuous_adaptive"}),
}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_what_has_one_text_everywhere(name):
    pattern, others = EVERYWHERE[name]
    texts = {}
    for script in set(SCRIPTS) - others:
        for text in re.findall(pattern, TEXT[script], re.S):
            texts.setdefault(text, []).append(script)
    assert len(texts) == 1, texts


def test_what_goes_on_saves_is_read_back(script):
    """run.values has the names that goes_on is given: what belongs to the episodes under way."""
    saved = []
    for node in ast.walk(ast.parse(TEXT[script])):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "run.goes_on":
            saved += [keyword.arg for keyword in node.keywords]
    read = re.findall(r'run\.values\.get\("(\w+)"', TEXT[script])
    assert sorted(read) == sorted(saved)


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff(command):
    folders = [SOURCE, ROOT / "tests", ROOT / "benchmark"]
    ruff = [sys.executable, "-m", "ruff", *command.split(), *folders]
    done = subprocess.run(ruff, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
