"""mkdocs hook: pages for notebooks, and links from a script's page to the lines that it names.

A name in *`italic code`* that is a function or class of the page's script becomes a link: to the
repository where mkdocs.yml has a repo_url, else to a page with the script, which is added here.
"""

import json
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]


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


def on_files(files, config):
    for path in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=rendered(path)))
    if config.repo_url:
        return
    for path in sorted((ROOT / "cleanrl_lite").glob("*.py")):
        text = f'# {path.name}\n\n```python linenums="1"\n{path.read_text()}```\n'
        head = "---\nsearch: {exclude: true}\nhide: [toc]\n---\n"
        files.append(File.generated(config, f"source/{path.stem}.md", content=head + text))


def line_of(source, name):
    """The number of the line that defines `Class`, `function` or `Class.method`; or None."""
    at = 0
    for part in name.split("."):
        found = re.compile(rf"^ *(?:def|class) {part}\b", re.M).search(source, at)
        if not found:
            return None
        at = found.end()
    return source[:at].count("\n") + 1


def on_page_content(content, page, config, files):
    path = ROOT / f"cleanrl_lite/{page.file.name}.py"
    if page.file.src_uri != f"{page.file.name}.md" or not path.exists():
        return content
    source = path.read_text()
    target = f"source/{path.stem}.html#L-0-"
    if config.repo_url:
        target = f"{config.repo_url.rstrip('/')}/blob/main/cleanrl_lite/{path.name}#L"

    def link(match):
        line = line_of(source, match[1])
        return f'<a href="{target}{line}">{match[0]}</a>' if line else match[0]

    def links(match):
        return re.sub(r"<code>([\w.]+)</code>", link, match[0])

    return re.sub(r"<em>(?:(?!</?em>).)*</em>", links, content, flags=re.S)
