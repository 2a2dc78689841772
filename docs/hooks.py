"""mkdocs hook: code of the scripts by name, which cannot go stale, with links to the lines.

{{ code cleanrl_lite/ppo.py compute_gae }}   a function or class
{{ section cleanrl_lite/ppo.py update }}     what stands between the banner `# === update` and the
                                             next one
{{ diff vpg a2c update }}                    how this section of vpg.py becomes that of a2c.py
{{ diff vpg a2c }}                           the same of the whole scripts, but their docstrings

Each stands on a line of its own, also in a folded block; `main.update` names what `update` alone
does not. On the page of a script, a name in *`italic code`* that is a function, class or section of
that script becomes a link. Links lead to the repository where mkdocs.yml has a repo_url, else to
pages with the whole scripts, which this hook adds to the site, as it does with the notebooks. Words
of inline code and figures are kept in one piece, so that no flag breaks in the middle.
"""

import ast
import difflib
import itertools
import json
import re
import textwrap
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
SPACE = "\u00a0"  # where no line may break


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


def included(match, page):
    """The code block that a line {{ ... }} stands for."""
    words, kind, path, name = match.group(0, 1, 2, 3)
    where = f"{page.file.src_path}: {words}"
    if not (ROOT / path).exists():
        raise PluginError(f"{where}: there is no {path}")
    source = (ROOT / path).read_text()
    found = section(source, name)
    if kind == "code":
        found = list(code(ast.parse(source), name))
    if len(found) != 1:
        raise PluginError(f"{where}: found {len(found)} times in {path}, not once")
    ((first, last),) = found
    lines = source.splitlines()[first - 1 : last]
    text = textwrap.dedent("\n".join(lines)).strip()
    return f'```python title="{path}, line {first}"\n{text}\n```'


# === one script becomes another
def difference(match, page):
    """The diff that a line {{ diff ... }} stands for."""
    indent, old, new, name = match.groups()
    lines = [f"--- {old}.py", f"+++ {new}.py"]
    for section, hunk in hunks(old, new, name, f"{page.file.src_path}: {match[0]}"):
        lines += [f"@@ {section} @@", *hunk]
    return textwrap.indent("\n".join(["```diff", *lines, "```"]), indent)


def hunks(old, new, name=None, where=""):
    """(section, lines as of a diff) of each place where two scripts, or their sections, differ."""
    numbers, before = zip(*lines_of(old, name, where), strict=True)
    _, after = zip(*lines_of(new, name, where), strict=True)
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


def lines_of(script, name, where):
    """(number, line) of a script's section, or of all lines below its docstring."""
    source = (ROOT / f"cleanrl_lite/{script}.py").read_text()
    lines = list(enumerate(source.splitlines(), 1))
    if not name:
        return lines[ast.parse(source).body[1].lineno - 1 :]
    found = section(source, name)
    if len(found) != 1:
        raise PluginError(f"{where}: found {len(found)} times in {script}.py, not once")
    ((first, last),) = found
    return lines[first - 1 : last]


def section_at(script, number):
    """The name of the section that a line stands in."""
    lines = (ROOT / f"cleanrl_lite/{script}.py").read_text().splitlines()[:number]
    banners = [line.strip() for line in lines if line.strip().startswith("# === ")]
    return banners[-1].removeprefix("# === ") if banners else "imports"


# === notebooks
def rendered(notebook):
    """A notebook's cells and what they put out, as Markdown."""
    parts = []
    for cell in json.loads(notebook.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = ""
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                image = "".join(data["image/png"]).replace("\n", "")
                parts.append(f"![What the cell draws](data:image/png;base64,{image})")
            else:
                printed += "".join(output.get("text", data.get("text/plain", "")))
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts)


# === links
def link(page, config, path, first):
    """Where line `first` of a script is shown."""
    if config.repo_url:
        return f"{config.repo_url.rstrip('/')}/blob/main/{path}#L{first}"
    return f"{'../' * page.url.count('/')}source/{Path(path).stem}.html#L-0-{first}"


# === what mkdocs calls
def on_files(files, config):
    """Adds a page for each notebook, and one with the whole text of each script."""
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=rendered(path)))
    if config.repo_url:
        return
    for path in sorted((ROOT / "cleanrl_lite").glob("*.py")):
        text = f'# {path.name}\n\n```python linenums="1"\n{path.read_text()}```\n'
        head = "---\nsearch: {exclude: true}\nhide: [toc]\n---\n"
        files.append(File.generated(config, f"source/{path.stem}.md", content=head + text))


def on_page_markdown(markdown, page, config, files):
    """Includes the code and the diffs."""
    pattern = re.compile(r"^\{\{ (code|section) (\S+) (.+?) \}\}$", re.M)
    markdown = pattern.sub(lambda match: included(match, page), markdown)
    pattern = re.compile(r"^( *)\{\{ diff (\w+) (\w+)(?: (.+?))? \}\}$", re.M)
    return pattern.sub(lambda match: difference(match, page), markdown)


def on_page_content(content, page, config, files):
    """Makes links, and keeps words together."""

    def title(match):
        url = link(page, config, match[1], match[2])
        return f'<span class="filename"><a href="{url}">{match[1]}, line {match[2]}</a>'

    content = re.sub(r'<span class="filename">(\S+\.py), line (\d+)', title, content)
    path = f"cleanrl_lite/{page.file.name}.py"
    if page.file.src_uri == f"{page.file.name}.md" and (ROOT / path).exists():
        content = linked(content, page, config, path)
    return in_one_piece(content)


def linked(content, page, config, path):
    """Links from names in italic code to their lines."""
    source = (ROOT / path).read_text()
    tree = ast.parse(source)

    def name(match):
        found = list(code(tree, match[1])) or section(source, match[1])
        if len(found) != 1:
            return match[0]
        return f'<a href="{link(page, config, path, found[0][0])}">{match[0]}</a>'

    def names(match):
        return re.sub(r"<code>([\w.]+)(?:\(\))?</code>", name, match[0])

    return re.sub(r"<em>(?:(?!</?em>).)*</em>", names, content, flags=re.S)


def in_one_piece(content):
    """Keeps words of inline code, environment ids, figures and intervals on one line."""

    def words(match):
        short_words = r"[^\s<>]{1,40}(?=\s|$)"
        return f"<code>{re.sub(short_words, whole_word, match[1])}</code>"

    content = re.sub(r"<code>([^<>\n]*-[^<>\n]*)</code>", words, content)
    content = re.sub(r"(?<=>)[\w/]+-v\d(?=<)", whole_word, content)
    content = re.sub(r"(?<=\d) ± (?=\d)", f"{SPACE}±{SPACE}", content)
    interval = r"(?<=\d) (\[-?[\d.]+,) (?=-?[\d.]+\])"
    content = re.sub(interval, rf"{SPACE}\1{SPACE}", content)
    content = re.sub(r"(?<=\d[kM]) of (?=\d)", f"{SPACE}of{SPACE}", content)
    return re.sub(r"(?<=\d) (?=(?:s|MB|GB)</td>)", SPACE, content)


def whole_word(match):
    return f'<span class="word">{match[0]}</span>'
