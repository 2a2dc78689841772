"""Writes code, diffs and tables into the pages of docs/, so that they can be read as they are.

    python -m benchmark.publish.pages            write what has changed
    python -m benchmark.publish.pages --check    only list the pages that are out of date

What stands between two marks, each on a line of its own, is written by this command:

    <!-- code cleanrl_lite/ppo.py compute_gae -->     a function or class; `main.update` names what
                                                      `update` alone does not
    <!-- section cleanrl_lite/ppo.py update -->       from `# === update` to the next banner
    <!-- diff vpg a2c update -->                      how this section of vpg.py becomes a2c.py's
    <!-- diff vpg a2c -->                             the same of the whole scripts
    <!-- file docs/guides/my_env.py -->               a file, `FILE:9` from this line on, or
                                                      `FILE:name` a part that has marks of its own
    <!-- table benchmark/results/ppo.md -->           the same, as Markdown
    <!-- end -->
"""

import ast
import difflib
import itertools
import re
import textwrap

from benchmark import shared
from benchmark.shared import ROOT

MARK = re.compile(
    r"^<!-- (code|section|diff|file|table) (.+?) -->\n(.*?)^<!-- end -->$",
    re.M | re.S,
)
PART = re.compile(r"--8<-- \[(start|end):(\w+)\]")  # in a file, around a part


# === code by name
def code(node, name, path=""):
    """(first line, last line) of all functions and classes of this name below `node`."""
    for child in ast.iter_child_nodes(node):
        child_path = path
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            child_path = f"{path}.{child.name}"
            if f"{child_path}.".endswith(f".{name}."):
                first = min(part.lineno for part in [child, *child.decorator_list])
                yield first, child.end_lineno
        yield from code(child, name, child_path)


def section(source, name):
    """(first line, last line) of all sections of this name, the banner included."""
    lines = source.splitlines()
    ends = re.compile(r"\s*# === |def main\(|if __name__")
    starts = [number for number, line in enumerate(lines, 1) if ends.match(line)]
    found = []
    for first, following in itertools.pairwise(starts):
        if lines[first - 1].strip() == f"# === {name}":
            found.append((first, following - 1))
    return found


def place(kind, path, name):
    """(first line, last line) of the one piece of code that a mark names."""
    source = (ROOT / path).read_text()
    found = section(source, name)
    if kind == "code":
        found = list(code(ast.parse(source), name))
    if len(found) != 1:
        raise SystemExit(f"error: {kind} {path} {name}: found {len(found)} times, not once")
    return found[0]


def piece(kind, path, name):
    first, last = place(kind, path, name)
    lines = (ROOT / path).read_text().splitlines()[first - 1 : last]
    return textwrap.dedent("\n".join(lines)).strip()


# === one script becomes another
def difference(old, new, name=None):
    lines = [f"--- {old}.py", f"+++ {new}.py"]
    for section_name, hunk in hunks(old, new, name):
        lines += [f"@@ {section_name} @@", *hunk]
    return "\n".join(lines)


def hunks(old, new, name=None):
    """(section, lines as of a diff) of each place where two scripts, or their sections, differ."""
    numbers, before = zip(*lines_of(old, name), strict=True)
    _, after = zip(*lines_of(new, name), strict=True)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(2):
        hunk = []
        for kind, first, last, new_first, new_last in group:
            if kind == "equal":
                hunk += [f" {line}" for line in before[first:last]]
            else:
                hunk += [f"-{line}" for line in before[first:last]]
                hunk += [f"+{line}" for line in after[new_first:new_last]]
        yield section_at(old, numbers[group[0][1]]), hunk


def lines_of(script, name):
    """(number, line) of a script's section, or of all lines below its docstring."""
    path = f"cleanrl_lite/{script}.py"
    source = (ROOT / path).read_text()
    lines = list(enumerate(source.splitlines(), 1))
    if not name:
        return lines[ast.parse(source).body[1].lineno - 1 :]
    first, last = place("section", path, name)
    return lines[first - 1 : last]


def section_at(script, number):
    """The name of the section that a line stands in."""
    lines = (ROOT / f"cleanrl_lite/{script}.py").read_text().splitlines()[:number]
    banners = [line.strip() for line in lines if line.strip().startswith("# === ")]
    return banners[-1].removeprefix("# === ") if banners else "imports"


# === files
def part(words):
    """The text of FILE, FILE:9 or FILE:name, without the marks of parts."""
    path, _, name = words.partition(":")
    lines = (ROOT / path).read_text().splitlines()
    if name.isdigit():
        lines = lines[int(name) - 1 :]
    elif name:
        marks = {PART.search(line)[0]: n for n, line in enumerate(lines) if PART.search(line)}
        first = marks[f"--8<-- [start:{name}]"]
        last = marks[f"--8<-- [end:{name}]"]
        lines = lines[first + 1 : last]
    lines = [line for line in lines if not PART.search(line)]
    return textwrap.dedent("\n".join(lines)).strip("\n")


# === pages
def content(kind, words):
    """What stands between two marks."""
    if kind == "table":
        return part(words)
    if kind == "file":
        language = {"py": "python", "yml": "yaml"}
        suffix = words.partition(":")[0].rpartition(".")[2]
        return fenced(language.get(suffix, suffix), part(words))
    if kind == "diff":
        old, new, *name = words.split(" ", 2)
        return fenced("diff", difference(old, new, *name))
    path, name = words.split(" ", 1)
    return fenced("python", piece(kind, path, name))


def fenced(language, text):
    return f"```{language}\n{text}\n```"


def write(text):
    """A page with all that is between marks written again."""

    def block(match):
        kind, words, _ = match.groups()
        return f"<!-- {kind} {words} -->\n\n{content(kind, words)}\n\n<!-- end -->"

    return MARK.sub(block, text)


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    stale = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        before = path.read_text()
        after = write(before)
        if before == after:
            continue
        stale.append(path)
        print(path.relative_to(ROOT))
        if not args.check:
            path.write_text(after)
    raise SystemExit(int(args.check and bool(stale)))


if __name__ == "__main__":
    main()
