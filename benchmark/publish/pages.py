"""Writes the tables of benchmark/results into the pages of docs/.

    python -m benchmark.publish.pages            write what has changed
    python -m benchmark.publish.pages --check    only list the pages that are out of date

What stands between two marks, each on a line of its own, is written by this command:

    <!-- table benchmark/results/ppo.md -->    `FILE:name`: a part that has marks
    <!-- end -->
"""

import re

from benchmark import shared
from benchmark.shared import ROOT

MARK = re.compile(r"^<!-- table (\S+) -->\n(.*?)^<!-- end -->$", re.M | re.S)


def table(words):
    """The text of FILE, or of its part FILE:name."""
    path, _, name = words.partition(":")
    text = (ROOT / path).read_text()
    if name:
        part = rf"--8<-- \[start:{name}\][^\n]*\n(.*?)^[^\n]*--8<-- \[end:{name}\]"
        (text,) = re.findall(part, text, re.M | re.S)
    return re.sub(r"^.*--8<-- \[.*\n", "", text, flags=re.M).strip("\n")


def write(text):
    """A page with all that is between marks written again."""
    return MARK.sub(lambda m: f"<!-- table {m[1]} -->\n\n{table(m[1])}\n\n<!-- end -->", text)


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    stale = [
        p for p in sorted((ROOT / "docs").rglob("*.md")) if write(p.read_text()) != p.read_text()
    ]
    for path in stale:
        print(path.relative_to(ROOT))
        if not args.check:
            path.write_text(write(path.read_text()))
    raise SystemExit(int(args.check and bool(stale)))


if __name__ == "__main__":
    main()
