"""The copies stay copies: anatomy, flags, shared text and plainness of the scripts.

Parents, flags and definitions are read from the scripts: a new one needs no entry here.
"""

import ast
import collections
import dataclasses
import difflib
import functools
import io
import re
import statistics
import subprocess
import sys
import tokenize

import pytest

from tests.helpers import (
    ATARI_SCRIPTS,
    FAMILIES,
    IMAGE_SCRIPTS,
    PARENT,
    PLAIN_SCRIPTS,
    ROOT,
    SCRIPTS,
    SOURCE,
    TEXT,
    default,
    lineage,
    module,
)

# Plainness: at most so many nodes of the syntax tree and characters a line, and so long lines.
NODES_A_LINE = 10
MEAN_LENGTH = 52
COLUMNS = 100
PLAIN_LINES = 200  # of the scripts to learn from
UTILS_LINES, UTILS_NODES = 655, 5_980  # it may shrink, not grow


def code(script):
    """The lines after the head docstring."""
    docstring = ast.parse(TEXT[script]).body[0]
    return TEXT[script].splitlines()[docstring.end_lineno :]


def fields(script):
    """{flag: (type, default, help)} as the source has them."""
    body = re.search(r"^class Args:\n(.*?)(?=^\S)", TEXT[script], re.S | re.M)[1]
    lines = re.findall(r"^    (\w+): (.+?) = (.+?)(?:  # (.+))?$", body, re.M)
    return {name: tuple(rest) for name, *rest in lines}


@functools.cache
def definitions(script):
    """{qualified name: source} of every function and of every class without its methods; what is
    defined in main() goes by its own name. Args and main() are for the script to fill."""
    found = {}

    def visit(node, path):
        for child in ast.iter_child_nodes(node):
            where = path
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                where = [*path, child.name] if child.name != "main" else path
                if child.name not in ("main", "Args"):
                    found[".".join(where)] = source(script, child)
            visit(child, where)

    visit(ast.parse(TEXT[script]), [])
    return found


def source(script, node):
    """The text of a definition, its decorators included; of a class up to its first method."""
    lines = TEXT[script].splitlines()
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    last = node.end_lineno
    methods = [child for child in node.body if isinstance(child, ast.FunctionDef)]
    if isinstance(node, ast.ClassDef) and methods:
        starts = [method.lineno - len(method.decorator_list) for method in methods]
        last = min(starts) - 1
    return "\n".join(lines[first - 1 : last]).rstrip()


def sections(script):
    """{comment: text} of main(): its parts under a banner or a stage, which a blank line
    precedes."""
    body = TEXT[script].partition("\ndef main(")[2]
    parts = re.split(r"\n\n( +# [^\n]+)\n", body)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def words(text):
    """The docstrings and comments of a definition."""
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    strings = [
        ast.get_docstring(node)
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    return comments, strings


def parsed(text):
    first = len(text) - len(text.lstrip())
    dedented = "\n".join(line[first:] for line in text.splitlines())
    try:
        return ast.parse(dedented)
    except SyntaxError:  # a class without its methods
        return ast.parse(dedented + "\n    pass")


def meaning(text):
    """The code of a definition without its docstrings, comments and line breaks."""
    tree = parsed(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree)


# --- anatomy


def test_what_the_package_holds():
    assert set(TEXT) == {*SCRIPTS, "utils"} | set(TEXT) & {"__init__"}
    folders = [path.name for path in SOURCE.iterdir() if path.is_dir()]
    assert set(folders) <= {"__pycache__", "tools"}
    assert set(PARENT.values()) <= set(SCRIPTS)
    assert set(FAMILIES) == {"ppo", "dqn", "ddpg"}


def test_anatomy(script):
    """The head docstring's five fields; the sections under their banners, in order."""
    docstring = ast.get_docstring(ast.parse(TEXT[script]))
    text = TEXT[script]
    headings = re.findall(r"^(\w+):", docstring, re.M)
    assert headings == ["Paper", "Run", "Differs", "Expected", "Details"]
    assert f" cleanrl_lite/{script}.py" in docstring
    assert f"docs/{script}.md" in docstring
    measured = re.search(r"^Expected:.*\d.*^Details:", docstring, re.S | re.M)
    assert measured, "Expected has no measured result"
    assert docstring.count("a variant of ") == (script in PARENT)
    outer = ["arguments", "environment", "networks", "replay", "pure functions"]
    if "buffer_size" not in fields(script):
        outer.remove("replay")
    inner = ["setup", "logging", "update", "training", "evaluation"]
    expected = [("", name) for name in outer] + [("    ", name) for name in inner]
    assert re.findall(r"^( *)# === (.+)$", text, re.M) == expected
    main = text.index("@utils.with_cleanup\ndef main(args: Args):")
    assert text.index("# === pure functions") < main < text.index("# === setup")


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


def test_the_run_flags_are_the_same(script):
    """As a text, apart from two defaults: threads, and how often thousands of environments save.
    What is plain is not compiled, and has no flags for it."""

    def run_flags(name):
        group = re.search(r"    # run flags, .*?(?=\n\n)", TEXT[name], re.S)[0]
        return re.sub(r"(?<=    )(threads|save_every): int = [\d_]+", r"\1", group)

    expected = run_flags("ppo")
    if script in PLAIN_SCRIPTS:
        expected, removed = re.subn(r"    (compile|cuda_graph): .*\n", "", expected)
        assert removed == 2
    assert run_flags(script) == expected
    of_images = script in ATARI_SCRIPTS + IMAGE_SCRIPTS
    assert default(script, "threads") == (0 if of_images else 1)


@pytest.mark.parametrize("script", [name for name in SCRIPTS if "run.compile(" in TEXT[name]])
def test_the_trap_of_compiled_updates_is_told(script):
    assert "# A number that changes during the run must be a tensor" in TEXT[script]


@pytest.mark.parametrize("variant", PARENT)
def test_flags_are_in_the_order_of_the_parent(variant):
    mine = list(fields(variant))
    theirs = list(fields(PARENT[variant]))
    common = [name for name in theirs if name in mine]
    assert [name for name in mine if name in theirs] == common


def test_every_flag_is_in_the_docs():
    text = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    flags = {name for script in SCRIPTS for name in fields(script)}
    for name in flags:
        flag = name.replace("_", "-")
        assert re.search(rf"--(no-)?{flag}\b", text), flag


def test_flags_in_the_docs_exist(script):
    """Those of each command of README.md and docs/."""
    flags = {name.replace("_", "-") for name in fields(script)} | {"help"}
    command = rf"python\S* (?:\S*/|-m cleanrl_lite\.){script}(?:\.py)? ([^\n`]*)"
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for given in re.findall(command, page.read_text().replace("\\\n", " ")):
            for flag in re.findall(r"--([\w-]+)", given):
                assert flag in flags or flag.removeprefix("no-") in flags, f"{page.name}: --{flag}"


# --- copies


def inherited(script, name):
    """(ancestor, its text) of the nearest ancestor with this function or class, or of another
    script, which is no descendant."""
    others = [name for name in SCRIPTS if script not in lineage(name)]
    for ancestor in [*lineage(script)[1:], *others]:
        if name in definitions(ancestor):
            return ancestor, definitions(ancestor)[name]
    return None, None


def has_changed(variant, name):
    _, theirs = inherited(variant, name)
    return definitions(variant)[name] != theirs


def is_its_own(variant, name):
    """What a variant is about, and changes without a word: its environment, its networks, its
    equations within main()."""
    whole = name.partition(".")[0]
    return whole in ("Agent", "make_env") or whole not in outermost(variant)


def outermost(script):
    nodes = ast.parse(TEXT[script]).body
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("variant", SCRIPTS)
def test_a_function_is_its_parents_or_says_what_it_is(variant):
    """Byte for byte, if its code is the same. If its code is another, its docstring or comments are
    others too, or its class's docstring: that declares that it was meant. A function that no
    ancestor has is that of the first other script with it."""
    for name, mine in definitions(variant).items():
        ancestor, theirs = inherited(variant, name)
        if mine == theirs or not ancestor or is_its_own(variant, name):
            continue
        where = f"{name} of {variant}.py and {ancestor}.py"
        head = name.partition(".")[0]
        others = [m for m in definitions(variant) if m.startswith(f"{name}.")]
        if meaning(mine) == meaning(theirs):
            changed = any(has_changed(variant, method) for method in others)
            assert changed, f"{where} have the same code, in another text"
        elif words(mine) == words(theirs):
            declared = head != name and has_changed(variant, head)
            assert declared, f"{where} differ, and their words do not"


def versions(parent, parts):
    """{name: {text: [children of the parent with this text]}} of what is not the parent's."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for variant in (name for name in PARENT if PARENT[name] == parent):
        for name, text in parts(variant).items():
            if parts(parent).get(name, text) != text:
                found[name][text].append(variant)
    return found


@pytest.mark.parametrize("parts", [definitions, sections])
@pytest.mark.parametrize("parent", sorted(set(PARENT.values())))
def test_what_variants_share_their_parent_has(parent, parts):
    """A mend in the parent alone, or in all but the parent, would show here."""
    for name, texts in versions(parent, parts).items():
        for variants in texts.values():
            assert len(variants) == 1, f"{name} of {variants} is the same, but not {parent}.py's"


@pytest.mark.parametrize("banner", ["logging", "evaluation"])
def test_sections_that_are_the_same_everywhere(banner):
    texts = {}
    for script in SCRIPTS:
        text = re.search(rf"    # === {banner}\n(.*?)(?=\n    # ===|\Z)", TEXT[script], re.S)[1]
        texts.setdefault(text, []).append(script)
    assert len(texts) == 1, list(texts.values())


SCHEDULES = [
    ("anneal_lr", r"if args\.anneal_lr:\n.*\n.*", {"ppo_continuous_adaptive"}),
    ("exploration_fraction", r"epsilon_steps = .*", set()),
    ("exploration_fraction", r"epsilon = linear_schedule.*", set()),
    ("priority_beta", r"total = .*\n *beta\.fill_.*", set()),
    ("target_kl", r"if args\.target_kl .*", {"ppo_atari_multigpu", "ppo_continuous_adaptive"}),
]


@pytest.mark.parametrize("flag, lines, others", SCHEDULES)
def test_schedules_have_one_text(flag, lines, others):
    """In all scripts with the flag: so also where no test in this tier watches the schedule."""
    texts = {}
    for script in set(SCRIPTS) - others:
        if flag in fields(script):
            (text,) = re.findall(lines, TEXT[script])
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


@pytest.mark.parametrize("variant", PARENT)
def test_a_variant_is_mostly_its_parent(variant):
    """At least two fifths of its lines, also where environment and networks are others."""
    mine = code(variant)
    theirs = code(PARENT[variant])
    matcher = difflib.SequenceMatcher(None, theirs, mine, autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    told = f"{same} of {len(mine)} lines are {PARENT[variant]}.py's"
    assert same >= 0.4 * len(mine), told


# --- plainness


def tricks(tree):
    """Statements and expressions that are read twice."""
    allowed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            allowed.update(ast.walk(node.test))
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Tuple() | ast.BoolOp() | ast.IfExp() | ast.ListComp()):
                yield node.lineno, "a statement for its side effects"
            case ast.Assign(value=ast.Lambda()):
                yield node.lineno, "a lambda with a name"
            case ast.Name(id="__import__"):
                yield node.lineno, "__import__"
            case ast.NamedExpr() if node not in allowed:
                yield node.lineno, "a walrus outside of if and while"
            case ast.comprehension():
                pass
            case _ if len(getattr(node, "generators", [])) > 1:
                yield node.lineno, "a comprehension with two for"


@pytest.mark.parametrize("name", TEXT)
def test_plain(name):
    """No dense lines, no long ones, no tricks."""
    lines = [line for line in TEXT[name].splitlines() if line.strip()]
    tree = ast.parse(TEXT[name])
    nodes = len(list(ast.walk(tree)))
    assert list(tricks(tree)) == []
    assert [line for line in lines if len(line) > COLUMNS] == []
    assert nodes / len(lines) <= NODES_A_LINE
    assert statistics.mean(map(len, lines)) <= MEAN_LENGTH
    if name == "utils":
        assert len(lines) <= UTILS_LINES
        assert nodes <= UTILS_NODES


@pytest.mark.parametrize("script", PLAIN_SCRIPTS)
def test_what_a_course_would_print(script):
    """torch.optim and loss.backward(), one formula that acts and learns, nothing for speed; and it
    is short."""
    text = TEXT[script]
    assert len([line for line in text.splitlines() if line.strip()]) <= PLAIN_LINES
    for statement in ("optimizer.zero_grad()", "loss.backward()", "optimizer.step()"):
        assert text.count(f"        {statement}\n") == 1, statement
    fast = ("compile(", "cuda_graph", "NumpyForward", "check_actions", "autograd.grad", "numpy as")
    assert [name for name in fast if name in text] == []


@pytest.mark.parametrize(
    "trick",
    [
        "a(), b()",
        "a and b()",
        "a() if b else c()",
        "[a() for a in b]",
        "f = lambda: 1",
        "__import__('os')",
        "f(a := 1)",
        "x = [a for b in c for a in b]",
    ],
)
def test_tricks_are_seen(trick):
    assert len(list(tricks(ast.parse(trick)))) == 1
    assert not list(
        tricks(ast.parse("if x := f():\n    a(x)\nwhile y := g():\n    b = [c for c in y]"))
    )


@pytest.mark.parametrize("name", TEXT)
def test_nothing_is_stored_and_never_read(name):
    tree = ast.parse(TEXT[name])
    for scope in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        names = [node for node in ast.walk(scope) if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        for node in ast.walk(scope):
            if isinstance(node, ast.Nonlocal | ast.Global):
                read.update(node.names)
        unread = {name for name in stored - read if not name.startswith("_")}
        assert not unread, f"{scope.name} stores {unread} and never reads it"


def test_no_attribute_is_stored_and_never_read():
    """In all files together. Of others' objects nobody knows: those are not self's."""
    stored = {}
    read = set()
    for name, text in TEXT.items():
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Attribute(ctx=ast.Load()):
                    read.add(node.attr)
                case ast.Attribute(ctx=ast.Store(), value=ast.Name(id="self")):
                    stored[node.attr] = name
    others = {"metadata", "render_mode", "reward_range"}  # gymnasium's
    unread = {attr: name for attr, name in stored.items() if attr not in read | others}
    assert unread == {}


@pytest.mark.parametrize("name", TEXT)
def test_every_function_is_called(name):
    """Or is one that torch, gymnasium, tyro or Python call."""
    texts = TEXT.values() if name == "utils" else [TEXT[name]]
    used = set()
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
    others = {"main", "forward", "reset", "step", "state", "act", "state_dict", "load_state_dict"}
    others |= {"close", "observation", "whole_number"}
    nodes = ast.walk(ast.parse(TEXT[name]))
    for function in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}:
        assert function in used | others or function.startswith("__"), function


IN_NUMPY = [name for name in SCRIPTS if "numpy_forward(" in TEXT[name]]


@pytest.mark.parametrize("script", [name for name in IN_NUMPY if "ppo" in lineage(name)])
def test_the_policy_that_acts_is_compared(script):
    """Where a copy in numpy acts, utils.check_actions compares it with the agent that learns."""
    assert "utils.check_actions(" in TEXT[script]


def test_utils_knows_no_algorithm():
    names = "ppo|a2c|dqn|c51|ddpg|td3|sac|rainbow|qdagger|pqn|rpo|rnd|trpo|gae|advantage|critic"
    names += "|q-?learning|losses/"
    assert re.findall(rf"(?<![a-z])(?:{names})(?![a-z_])", TEXT["utils"], re.I) == []


def test_readme_and_docs_list_every_script():
    readme, index = ((ROOT / name).read_text() for name in ("README.md", "docs/index.md"))
    for script in SCRIPTS:
        assert f"{script}.py" in readme and script in index, script
        assert (ROOT / "docs" / f"{script}.md").is_file(), script


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff(command):
    folders = [SOURCE, ROOT / "tests", ROOT / "benchmark"]
    ruff = [sys.executable, "-m", "ruff", *command.split(), *folders]
    done = subprocess.run(ruff, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
