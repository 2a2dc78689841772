"""mkdocs hook: shows code of the scripts by name, so that a page cannot go stale. On a line of its own:

{{ code cleanrl_lite/ppo.py compute_gae }}   a function or class; `main.update` where `update` alone is ambiguous
{{ section cleanrl_lite/ppo.py update }}     what stands between the banner `# === update` and the next one
"""

import ast
import re
import textwrap
from pathlib import Path

from mkdocs.exceptions import PluginError


def code(node, name, path=""):
    """(first line, last line) of all functions and classes of this name below `node`."""
    for child in ast.iter_child_nodes(node):
        child_path = f"{path}.{child.name}" if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else path
        if child_path != path and f"{child_path}.".endswith(f".{name}."):
            yield min([child, *child.decorator_list], key=lambda part: part.lineno).lineno, child.end_lineno
        yield from code(child, name, child_path)


def section(source, name):
    ends = re.compile(r"\s*# === |def main\(|if __name__")
    lines = [i for i, line in enumerate(source.splitlines(), 1) if ends.match(line)]
    return [(i, j - 1) for i, j in zip(lines, lines[1:]) if source.splitlines()[i - 1].strip() == f"# === {name}"]


def on_page_markdown(markdown, page, config, files):
    def replace(match):
        source = (Path(config.config_file_path).parent / match[2]).read_text()
        found = list(code(ast.parse(source), match[3]) if match[1] == "code" else section(source, match[3]))
        if len(found) != 1:
            raise PluginError(f"{page.file.src_path}: {match[0]}: found {len(found)} times in {match[2]}, not once")
        text = textwrap.dedent("\n".join(source.splitlines()[found[0][0] - 1 : found[0][1]])).strip()
        return f'```python title="{match[2]}, line {found[0][0]}"\n{text}\n```'

    return re.sub(r"^\{\{ (code|section) (\S+) (.+?) \}\}$", replace, markdown, flags=re.M)
