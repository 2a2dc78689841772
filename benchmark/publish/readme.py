"""Writes the generated parts of README.md, between their comments:  python -m benchmark.publish.readme

All of it comes from benchmark/results/: a summary in two sentences, the main table of
benchmark/publish/overview.py, and one line of speed for each script.
"""

import json
import math
import re
import textwrap

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

WRAP = dict(width=118, break_on_hyphens=False, break_long_words=False)


def speeds(mode="compiled"):
    """{script: record} of a mode's runs beside Stable-Baselines3; `compiled` and `eager` are float32."""
    records = [json.loads(path.read_text()) for path in (RESULTS / "speed").glob(f"*__{mode}.json")]
    records = {record["script"]: record for record in records}
    return {script: records[script] for script in SCRIPTS if script in records}


def summary():
    ratios = [record["ratio"] for record in speeds().values() if not unequal(record)]
    verdicts = [verdict(runs) for runs in compared()]
    fast = f"**Fast**: {min(ratios):.1f} to {max(ratios):.1f} times the steps per second of Stable-Baselines3 with the "
    fast += "same hyperparameters on one CPU core, from the same readable file ([speed](#speed))."
    above, same, below = (verdicts.count(word) for word in (ABOVE, SAME, BELOW))
    measured = "**Measured**: with default flags the mean return is above CleanRL's published mean "
    measured += f"in {above} of {len(verdicts)} cells, within noise of it in {same}, below it in "
    measured += f"{below}, with {SEEDS} seeds or more in each ([results](#results))."
    return "\n".join(textwrap.fill(f"- {text}", **WRAP, subsequent_indent="  ") for text in (fast, measured))


def results():
    text = "\n".join(main_table())
    if missing := absent():
        text += "\n\n" + textwrap.fill(missing, **WRAP)
    return text


def absent():
    """One sentence: the scripts without full-length results."""
    found = [script for script in SCRIPTS if lacking(script)]
    if atari := [script for script in found if "_atari" in script]:
        found = [script for script in found if script not in atari] + ["the Atari scripts"]
    told = f"**Not there yet**: some of the planned runs ({SEEDS} seeds) of {', '.join(found)}. "
    told += "[All results](benchmark/results/overview.md)."
    return told if found else ""


def speed():
    lines = ["| script | environment | Stable-Baselines3, steps/s | cleanrl_lite, steps/s | ratio |"]
    lines += ["|---|---|---:|---:|---:|"]
    for script, record in speeds().items():
        theirs, ours = (f"{record[side]['sps']:,.0f}" for side in ("sb3", "ours"))
        star = "\\*" if unequal(record) else ""
        ratio = f"**{record['ratio']:.1f}**{star}"  # the second digit does not repeat
        lines.append(f"| {script} | {record['env_id']} | {theirs} | {ours} | {ratio} |")
    note = f"Float32, compiled, one core ({' or '.join(sorted({r['hardware'] for r in speeds().values()}))}). "
    note += "Ratio: median over pairs of runs; from day to day it moves by up to 10 %."
    note += " Stable-Baselines3 has no C51, so its DQN stands in." if "c51" in speeds() else ""
    parts = [stars(speeds().values()), f"{note} {compiling()}"]
    filled = [textwrap.fill(part, **WRAP) for part in parts if part]
    return "\n\n".join(["\n".join(lines), *filled])


def iterations(record):
    """How many of our script's iterations were timed in a run."""
    return len(record["ours_runs"][0]["iteration_sps"])


def compiling():
    """What compiling costs at the start of a PPO script, and what it gains afterwards."""
    both = {script: (r, speeds("eager")[script]) for script, r in speeds().items() if script in speeds("eager")}
    as_long = [(r, eager) for r, eager in both.values() if iterations(r) == iterations(eager)]
    gains = [r["ours"]["sps"] / eager["ours"]["sps"] for r, eager in as_long]
    gained = f"The update is compiled by default: {min(gains):.3g} to {max(gains):.3g} times as fast as `--no-compile`."
    starts = [r for script, (r, _) in both.items() if script.startswith("ppo") and r["cold"]]
    if not starts:
        return gained
    cold, warm = ([r[side]["first_update_s"] for r in starts] for side in ("cold", "ours"))
    cold, warm = (f"{math.floor(min(seconds))} to {math.ceil(max(seconds))} s" for seconds in (cold, warm))
    return f"{gained} The ppo scripts finish their first update after {cold}, or {warm} with a filled compiler cache."


def render(readme):
    """README.md's text with its generated parts as the files give them now."""
    for name, write in dict(summary=summary, results=results, speed=speed).items():
        pattern = rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)"
        readme = re.sub(pattern, lambda match, text=write(): f"{match[1]}{text}\n{match[2]}", readme, flags=re.S)
    return readme


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(render(path.read_text()))
