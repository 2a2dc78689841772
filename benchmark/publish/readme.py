"""Writes the generated parts of README.md, between their comments.

    python -m benchmark.publish.readme

All of it comes from benchmark/results/: a summary in two sentences, the main table of overview.py,
and one line of speed for each script.
"""

import json
import math
import re
import textwrap

from benchmark import shared
from benchmark.measure.speed import stars, unequal
from benchmark.publish.overview import (
    ABOVE,
    BELOW,
    SAME,
    SCRIPTS,
    SEEDS,
    compared,
    lacking,
    main_table,
    verdict,
)
from benchmark.shared import RESULTS, ROOT


def fill(text, indent=""):
    return textwrap.fill(
        text,
        width=118,
        break_on_hyphens=False,
        break_long_words=False,
        subsequent_indent=indent,
    )


def speeds(mode="compiled"):
    """{script: record} of a mode's runs beside Stable-Baselines3.

    `compiled` and `eager` are float32.
    """
    found = {}
    for path in (RESULTS / "speed").glob(f"*__{mode}.json"):
        record = json.loads(path.read_text())
        found[record["script"]] = record
    return {script: found[script] for script in SCRIPTS if script in found}


def summary():
    ratios = [record["ratio"] for record in speeds().values() if not unequal(record)]
    verdicts = [verdict(runs) for runs in compared()]
    fast = f"- **Fast**: {min(ratios):.1f} to {max(ratios):.1f} times the steps per second of "
    fast += "Stable-Baselines3 with the same hyperparameters on one CPU core, from the same "
    fast += "readable file ([speed](#speed))."
    above, same, below = (verdicts.count(word) for word in (ABOVE, SAME, BELOW))
    measured = "- **Measured**: with default flags the mean return is above CleanRL's published "
    measured += f"mean in {above} of {len(verdicts)} cells, within noise of it in {same}, below it "
    measured += f"in {below}, with {SEEDS} seeds or more in each ([results](#results))."
    return "\n".join([fill(fast, "  "), fill(measured, "  ")])


def results():
    text = "\n".join(main_table())
    missing = absent()
    return f"{text}\n\n{fill(missing)}" if missing else text


def absent():
    """One sentence: the scripts without full-length results."""
    found = [script for script in SCRIPTS if lacking(script)]
    others = [script for script in found if "_atari" not in script]
    if len(others) < len(found):
        others.append("the Atari scripts")
    told = f"**Not there yet**: some of the planned runs ({SEEDS} seeds) of {', '.join(others)}. "
    told += "[All results](benchmark/results/overview.md)."
    return told if found else ""


def speed():
    lines = [
        "| script | environment | Stable-Baselines3, steps/s | cleanrl_lite, steps/s | ratio |"
    ]
    lines.append("|---|---|---:|---:|---:|")
    records = speeds()
    for script, record in records.items():
        star = "\\*" if unequal(record) else ""
        cells = [
            script,
            record["env_id"],
            f"{record['sb3']['sps']:,.0f}",
            f"{record['ours']['sps']:,.0f}",
            f"**{record['ratio']:.1f}**{star}",  # the second digit does not repeat
        ]
        lines.append(shared.row(cells))
    machines = " or ".join(sorted({record["hardware"] for record in records.values()}))
    note = f"Float32, compiled, one core ({machines}). "
    note += "Ratio: median over pairs of runs; from day to day it moves by up to 10 %."
    if "c51" in records:
        note += " Stable-Baselines3 has no C51, so its DQN stands in."
    parts = [stars(records.values()), f"{note} {compiling()}"]
    return "\n\n".join(["\n".join(lines), *map(fill, filter(None, parts))])


def iterations(record):
    """How many of our script's iterations were timed in a run."""
    return len(record["ours_runs"][0]["iteration_sps"])


def compiling():
    """What compiling costs at the start of a PPO script, and what it gains afterwards."""
    eager = speeds("eager")
    compiled = {script: record for script, record in speeds().items() if script in eager}
    gains = []
    for script, record in compiled.items():
        if iterations(record) == iterations(eager[script]):
            gains.append(record["ours"]["sps"] / eager[script]["ours"]["sps"])
    gained = f"The update is compiled by default: {min(gains):.3g} to {max(gains):.3g} times as "
    gained += "fast as `--no-compile`."
    ppo = [record for script, record in compiled.items() if script.startswith("ppo")]
    starts = [record for record in ppo if record["cold"]]
    if not starts:
        return gained
    cold = seconds([record["cold"]["first_update_s"] for record in starts])
    warm = seconds([record["ours"]["first_update_s"] for record in starts])
    first = f"The ppo scripts finish their first update after {cold}, or {warm} with a filled "
    return f"{gained} {first}compiler cache."


def seconds(found):
    return f"{math.floor(min(found))} to {math.ceil(max(found))} s"


def render(readme):
    """README.md's text with its generated parts as the files give them now."""
    parts = {"summary": summary(), "results": results(), "speed": speed()}
    for name, text in parts.items():
        pattern = rf"(?<=<!-- {name}: )(.*? -->\n).*?(<!-- end of {name} -->)"
        pieces = re.search(pattern, readme, re.S)
        readme = readme.replace(pieces[0], f"{pieces[1]}{text}\n{pieces[2]}")
    return readme


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(render(path.read_text()))
