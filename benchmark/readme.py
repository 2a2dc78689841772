"""Copies the tables of benchmark/results/ into README.md, between its markers: python -m benchmark.readme"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmark" / "results"
SCRIPTS = "ppo ppo_continuous ppo_atari dqn dqn_atari c51 c51_atari ddpg td3 sac".split()  # in this order


def rows(path):
    return [line for line in path.read_text().splitlines() if line.startswith("|")]


def results():
    """One table of all scripts: environment, steps, seeds, our returns and CleanRL's, our evaluation."""
    lines = []
    for script in SCRIPTS:
        if (path := RESULTS / f"{script}.md").exists():
            cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows(path)[2:]]
            # Short runs compare flags or machines.
            cells = [row for row in cells if not re.search(r"_\d\dk|_200k", row[0])]
            finished = {row[0].split(",")[0] for row in cells if "unfinished" not in row[2]}
            # What was stopped on its way has a row only where the environment has no other.
            cells = [row for row in cells if "unfinished" not in row[2] or row[0].split(",")[0] not in finished]
            lines += [f"| {script} | {' | '.join(row[:5] + row[6:7])} |" for row in cells]
    head = "| script | environment | steps | seeds | last 100 training episodes | CleanRL, same metric | evaluation |"
    note = "Mean ± standard deviation over seeds. A name in code, such as `ppo_zoo`, is an experiment with flags of "
    note += "its own; without one, short runs of ddpg, td3 and sac start to learn earlier (`--learning-starts`). All "
    note += "flags, curves, hardware, commits and other runs: the pages in docs/."
    return "\n".join([head, "|---|---|---:|---:|---:|---:|---:|", *lines, "", note])


def render(readme):
    """README.md's text with the tables as the files give them now."""
    for name, text in (("results", results()), ("speed", (RESULTS / "speed.md").read_text().strip())):
        pattern = rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)"
        readme = re.sub(pattern, lambda match, text=text: f"{match[1]}{text}\n{match[2]}", readme, flags=re.S)
    return readme


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(render(path.read_text()))
