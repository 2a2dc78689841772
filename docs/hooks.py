"""mkdocs hook: links to the lines of the code that the pages show, and pages for notebooks.

benchmark.publish.pages writes the code between marks; here it gets a title, with a link to its
line. On the page of a script, a name in *`italic code`* that is a function, class or section of
that script becomes a link. Links lead to the repository where mkdocs.yml has a repo_url, else to
pages with the whole scripts, which this hook adds to the site, as it does with the notebooks. Words
of inline code and figures are kept in one piece, so that no flag breaks in the middle.
"""

import ast
import json
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmark.publish.pages import code, place, section  # noqa: E402

SPACE = "\u00a0"  # where no line may break


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
    """Gives code a title with its place."""

    def titled(match):
        mark, kind, path, name = match.groups()
        first, _ = place(kind, path, name)
        return f'{mark}```python title="{path}, line {first}"\n'

    pattern = r"^(<!-- (code|section) (\S+) (.+?) -->\n\n)```python\n"
    return re.sub(pattern, titled, markdown, flags=re.M)


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
