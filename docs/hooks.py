"""mkdocs hook: code of the scripts by name, so that a page cannot go stale, with links to the lines.

{{ code cleanrl_lite/ppo.py compute_gae }}   a function or class; `main.update` where `update` alone is ambiguous
{{ section cleanrl_lite/ppo.py update }}     what stands between the banner `# === update` and the next one

Both stand on a line of their own. On the page of a script, a name in *`italic code`* that is a function, class or
section of that script becomes a link. Links lead to the repository where mkdocs.yml has a repo_url, else to pages with
the whole scripts, which this hook adds to the site. Words of inline code and figures are kept in one piece, so that
no flag breaks in the middle.
"""

import ast
import re
import textwrap
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]


def code(node, name, path=""):
    """(first line, last line) of all functions and classes of this name below `node`."""
    for child in ast.iter_child_nodes(node):
        child_path = (
            f"{path}.{child.name}" if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else path
        )
        if child_path != path and f"{child_path}.".endswith(f".{name}."):
            yield (
                min([child, *child.decorator_list], key=lambda part: part.lineno).lineno,
                child.end_lineno,
            )
        yield from code(child, name, child_path)


def section(source, name):
    ends = re.compile(r"\s*# === |def main\(|if __name__")
    lines = [i for i, line in enumerate(source.splitlines(), 1) if ends.match(line)]
    return [
        (i, j - 1)
        for i, j in zip(lines, lines[1:])
        if source.splitlines()[i - 1].strip() == f"# === {name}"
    ]


def link(page, config, path, first):
    """Where line `first` of a script is shown."""
    if config.repo_url:
        return f"{config.repo_url.rstrip('/')}/blob/main/{path}#L{first}"
    return f"{'../' * page.url.count('/')}source/{Path(path).stem}.html#L-0-{first}"


def on_files(files, config):
    for path in [] if config.repo_url else sorted((ROOT / "cleanrl_lite").glob("*.py")):
        text = f'# {path.name}\n\n```python linenums="1"\n{path.read_text()}```\n'
        head = "---\nsearch: {exclude: true}\nhide: [toc]\n---\n"
        files.append(File.generated(config, f"source/{path.stem}.md", content=head + text))


def on_page_markdown(markdown, page, config, files):
    def replace(match):
        if not (ROOT / match[2]).exists():
            raise PluginError(f"{page.file.src_path}: {match[0]}: there is no {match[2]}")
        source = (ROOT / match[2]).read_text()
        found = list(
            code(ast.parse(source), match[3]) if match[1] == "code" else section(source, match[3])
        )
        if len(found) != 1:
            raise PluginError(
                f"{page.file.src_path}: {match[0]}: found {len(found)} times in {match[2]}, not once"
            )
        text = textwrap.dedent(
            "\n".join(source.splitlines()[found[0][0] - 1 : found[0][1]])
        ).strip()
        return f'```python title="{match[2]}, line {found[0][0]}"\n{text}\n```'

    return re.sub(r"^\{\{ (code|section) (\S+) (.+?) \}\}$", replace, markdown, flags=re.M)


def on_page_content(content, page, config, files):
    def title(match):
        url = link(page, config, match[1], match[2])
        return f'<span class="filename"><a href="{url}">{match[1]}, line {match[2]}</a>'

    def name(match):
        found = list(code(tree, match[1])) or section(source, match[1])
        return (
            f'<a href="{link(page, config, path, found[0][0])}">{match[0]}</a>'
            if len(found) == 1
            else match[0]
        )

    content = re.sub(r'<span class="filename">(\S+\.py), line (\d+)', title, content)
    path = f"cleanrl_lite/{page.file.name}.py"
    if page.file.src_uri == f"{page.file.name}.md" and (ROOT / path).exists():
        source = (ROOT / path).read_text()
        tree = ast.parse(source)
        linked = lambda match: re.sub(r"<code>([\w.]+)(?:\(\))?</code>", name, match[0])  # noqa: E731
        content = re.sub(r"<em>(?:(?!</?em>).)*</em>", linked, content, flags=re.S)

    def pieces(match):
        words = re.sub(
            r"[^\s<>]{1,60}(?=\s|$)", lambda word: f'<span class="word">{word[0]}</span>', match[1]
        )
        return f"<code>{words}</code>"

    content = re.sub(r"<code>([^<>\n]*-[^<>\n]*)</code>", pieces, content)
    content = re.sub(r"(?<=>)[\w/]+-v\d(?=<)", r'<span class="word">\g<0></span>', content)
    content = re.sub(r"(?<=\d) ± (?=\d)", "\u00a0±\u00a0", content)
    content = re.sub(
        r"(?<=\d) (\[-?[\d.]+,) (?=-?[\d.]+\])", "\u00a0\\1\u00a0", content
    )  # an interval
    content = re.sub(r"(?<=\d[kM]) of (?=\d)", "\u00a0of\u00a0", content)
    return re.sub(r"(?<=\d) (?=(?:s|MB|GB)</td>)", "\u00a0", content)
