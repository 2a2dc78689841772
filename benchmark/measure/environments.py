"""Do environments of other packages run? check_env, and the script that it names, in each of them.

    python -m benchmark.measure.environments                     everything, in a temporary folder
    python -m benchmark.measure.environments --venvs FOLDER --only highway-env minigrid

Every package is installed in a virtual environment of its own, on top of the packages of the
current one, which stays as it is; with --venvs they are kept. What check_env found and how a short
run ended go to benchmark/results/environments.json, and the table to environments.md; rows of
other packages stay. CASES are in benchmark/measure/environments_cases.py.
"""

import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from benchmark import shared
from benchmark.measure.environments_cases import CASES
from benchmark.shared import RESULTS, ROOT, commit, hardware, script_defaults

PATH = RESULTS / "environments.json"
SHORT = "--total-timesteps 2048 --eval-episodes 2 --no-compile"
OFF_POLICY = "--learning-starts 1500"  # and this, for scripts with a replay buffer
PLAY = "10"  # seconds that check_env plays

# What check_env says, in a few words: (topic, what it saw, words)
SEEDS = [
    ("WRONG", "seeds 1, 2 and 3 gave the same", "**all the same**"),
    ("WRONG", "another episode the second time", "**ignored**"),
    ("WRONG", "the same first episode twice", "**first episode only**"),
    ("note", "unless (\\S+) was seeded", "only with \\1"),
    ("note", "depending on what was played", "ok, in new instances"),
    ("", "all episodes are alike", "all alike"),
    ("", "gave others", "ok"),
]
LIMITS = [
    ("WRONG", "both true", "**both flags**"),
    ("WRONG", "after exactly ([\\d,]+) steps", "**terminated**, \\1"),
    ("", "that of ([\\d,]+) is inside", "truncated, \\1"),
    ("", "limit: ([\\d,]+)", "truncated, \\1"),
    ("note", "no episode ended", "none"),
    ("", "no episode ended", "not met"),
    ("", "none registered", "none"),
]
SURPRISES = [
    ("observations", "leaves its space by ([\\d.]+) %", "observations \\1 % outside"),
    ("observations", "up to \\S+ in size", "unscaled numbers"),
    ("observations", "numbers never change", "mostly constant"),
    ("observations", "same arrays", "same arrays again"),
    ("observations", "has shapes", "other shape than declared"),
    ("observations", "declared is", "other dtype"),
    ("observations", "not finite", "NaN or infinity"),
    ("observations", "all \\d+ numbers are the same", "nothing changes"),
    ("observations", "vary little", "float32 loses digits"),
    ("last obs", "time limit cuts", "zeros at the limit"),
    ("last obs", "", "zeros at the end"),
    ("rewards", "arrays", "rewards are arrays"),
    ("rewards", "in size", "unscaled rewards"),
    ("rewards", "all are 0", "no reward"),
    ("rewards", "", "rewards are no numbers"),
    ("infos", "the shape changes", "ragged infos"),
    ("infos", "same dict", "same info again"),
    ("actions", "step wrote", "writes into actions"),
    ("actions", "reset changes", "reset changes spaces"),
    ("actions", "infinite", "unbounded actions"),
    ("actions", "wide", "wide or narrow actions"),
    ("memory", "", "memory grows"),
    ("random", "draws from (\\S+?),", "draws from \\1"),
    ("random", "seeds (\\S+?),", "seeds \\1"),
    ("instances", "only one", "one instance a process"),
    ("instances", "", "instances disturb each other"),
    ("video", "", "no video"),
    ("close", "", "close fails"),
    ("again", "check_close", "close fails"),
    ("again", "", "fails when made again"),
]


def last_line(text):
    """The line that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if re.match(r"(error|ERROR|[\w.]*(Error|Exception)):? ", line):
            return line
    return lines[-1] if lines else ""


def pip_lines(packages):
    """What stands behind "then" comes without its dependencies."""
    first, *later = packages.split(" then ")
    lines = [["pip", "install", *first.split()]]
    for names in later:
        lines.append(["pip", "install", "--no-deps", *names.split()])
    return lines


def install(packages, folder, seconds):
    """The python of a virtual environment with these packages, and pip's error if there was one."""
    place = folder / re.sub(r"\W+", "-", packages)
    python = place / "bin" / "python"
    done = place / "installed"
    if done.exists():
        return python, None
    venv.create(place, clear=True)
    (site,) = place.glob("lib/python*/site-packages")
    below = [path for path in sys.path if path.endswith("site-packages")]
    # This environment's packages, seen by pip too
    lines = [f"import site; site.addsitedir({path!r})\n" for path in below]
    (site / "below.pth").write_text("".join(lines))
    for words in pip_lines(packages):
        command = [sys.executable, "-m", "pip", "--python", python, *words[1:], "-q"]
        pip, error = call(command, ROOT, seconds)
        if error:
            return None, error
        if pip.returncode:
            python_needed = re.search(r"Requires-Python \S+$", pip.stderr, re.M)
            return None, python_needed[0] if python_needed else last_line(pip.stderr)
    done.touch()
    return python, None


def call(command, folder, seconds):
    """The process, or why there is none."""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'docs/guides'}"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return None, f"not finished after {seconds} s"
    return done, None


def versions(python, packages):
    names = re.findall(r"(?:^| )([a-zA-Z][\w-]*)", packages.replace(" then ", " "))
    names = ["gymnasium", "numpy", *names]
    code = "import importlib.metadata as m, json, sys; "
    code += "print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    command = [python, "-c", code, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def check(python, line, folder, seconds):
    """What check_env found: {script, command, findings}, or {error}."""
    path = folder / "found.json"
    words = ["--seconds", PLAY, "--json", path, *shlex.split(line)]
    command = [python, "-m", "cleanrl_lite.tools.check_env", *words]
    done, error = call(command, folder, seconds)
    if error or not path.exists():
        return {"error": f"check_env: {error or last_line(done.stderr)}"}
    record = json.loads(path.read_text())
    findings = []
    for found in record["lines"]:
        if found["state"] or found["topic"] in ("seeds", "time limit"):
            findings.append([found["state"], found["topic"], found["seen"]])
    return {
        "script": record["script"],
        "command": record["command"],
        "steps_per_second": round(record["steps_per_second"], 1),
        "findings": findings,
    }


def attempt(python, script, command, folder, seconds):
    """{command, steps, mean} of the run, or {command, error, traceback}."""
    command += f" {SHORT}"
    if "learning_starts" in script_defaults(script):
        command += f" {OFF_POLICY}"
    found = {"command": command}
    words = shlex.split(command)[1:]
    done, error = call([python, *words], folder, seconds)
    if error:
        return {**found, "error": error}
    if done.returncode:
        traceback = "Traceback" in done.stderr
        return {**found, "error": last_line(done.stderr), "traceback": traceback}
    (path,) = folder.glob("runs/*/eval.json")
    record = json.loads(path.read_text())
    return {**found, "steps": record["global_step"], "mean": record["mean"]}


def survey(python, line, seconds):
    """Of one environment: what check_env found, and how the script that it names ends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = check(python, line, folder, seconds)
        if found.get("script"):
            found |= attempt(python, found["script"], found["command"], folder, seconds)
    return found


def in_words(findings, topic, known):
    """The words of the first kind that was found."""
    for state, pattern, words in known:
        for found_state, found_topic, seen in findings:
            match = re.search(pattern, seen)
            if (found_state, found_topic) == (state, topic) and match:
                return match.expand(words)
    return ""


def surprises(findings):
    words = []
    for state, topic, seen in findings:
        for known_topic, pattern, text in SURPRISES:
            match = re.search(pattern, seen)
            if state and known_topic == topic and match:
                mark = "**" if state == "WRONG" else ""
                words.append(mark + match.expand(text) + mark)
                break
    return ", ".join(dict.fromkeys(words))


def has_trained(row):
    return "mean" in row


def outcome(row):
    if has_trained(row):
        return f"{row['script']}: trained"
    if "error" not in row:
        why = [seen for _, topic, seen in row["findings"] if topic == "script"]
        return f"no script: {why[0]}"
    noise = r"^(ERROR|error): |--env-id \S+ --env-kwargs \S+: | when getting .*| \(Atari: .*"
    text = re.sub(noise, "", row["error"].removeprefix("check_env: "))
    text = text.replace("|", "\\|").replace("`", "'")
    text = text.replace("Requires-Python", "needs Python")
    if len(text) > 60:
        text = text[:59] + "…"
    before = f"{row['script']}: " if row.get("script") else ""
    return f"{before}`{text}`"


def registered(line):
    """Which module registers it."""
    module, _, name = shlex.split(line)[0].rpartition(":")
    if module == "my_envs":
        return f"`my_envs.py`: {name}"
    return f"import `{module}`" if module else "by itself"


def environment(line):
    """The id; of a wrapped one the id inside."""
    inner = re.search(r'"env_id": "([^"]+)"', line)
    name = inner[1] if inner else shlex.split(line)[0]
    return f"`{name.rpartition(':')[2]}`"


def table_row(row, usual):
    versions = dict(row["versions"])
    numpy = versions.pop("numpy", None)
    if versions.get("gymnasium") == usual:
        versions.pop("gymnasium", None)
    if "numpy" in row["packages"]:
        versions["numpy"] = numpy
    named = [f"{name} {version}" for name, version in versions.items()]
    named.sort(key=lambda text: text.startswith(("gymnasium ", "numpy ", "mujoco ")))
    findings = row.get("findings", [])
    cells = [
        ", ".join(named) or row["packages"].replace("==", " ") or "gymnasium",
        environment(row["environment"]),
        registered(row["environment"]),
        in_words(findings, "seeds", SEEDS),
        in_words(findings, "time limit", LIMITS),
        surprises(findings),
        outcome(row),
    ]
    return shared.row(cells)


def counts(rows):
    """How many packages did what, in a sentence; without gymnasium itself."""
    groups = {}
    for row in rows:
        if row["packages"]:
            name = re.match(r"[\w-]+", row["packages"])[0]
            groups.setdefault(name, []).append(row)

    def number(holds):
        return sum(any(map(holds, group)) for group in groups.values())

    def has(topic, known, pattern):
        def holds(row):
            return re.search(pattern, in_words(row.get("findings", []), topic, known))

        return number(holds)

    total = len(groups)
    missing = number(lambda row: not row["versions"])
    checked = number(lambda row: "findings" in row)
    seeds = [has("seeds", SEEDS, word) for word in ("ignored", "all the same", "first episode")]
    limits = [has("time limit", LIMITS, word) for word in (r"\*\*terminated", "both flags")]
    return (
        f"Of {total} packages, {number(has_trained)} trained. {missing} could not be installed, "
        f"and check_env played {checked}. Of these, {seeds[0]} ignore the seed, {seeds[1]} give "
        f"every seed the same episodes, and {seeds[2]} seed only the first episode; {limits[0]} "
        f"set `terminated` after a fixed number of steps, and {limits[1]} set both flags there."
    )


def table(rows):
    """Markdown."""
    found = [row["versions"]["gymnasium"] for row in rows if row["versions"]]
    usual = statistics.mode(found) if found else None
    head = (
        "| Package | Environment | Registers | Seeds | Time limit | Surprises | Script: outcome |"
    )
    lines = [counts(rows), "", head, "|---|---|---|---|---|---|---|"]
    lines += [table_row(row, usual) for row in rows]
    places = [f"{row['hardware']}, gymnasium {usual}; {row['date']}" for row in rows]
    commits = [row["commit"] for row in rows]
    made = shared.made_by("python -m benchmark.measure.environments", places, commits)
    return "\n".join([*lines, "", made]) + "\n"


def parse():
    parser = shared.parser(__doc__)
    add = parser.add_argument
    add("--venvs", type=Path, help="folder of the virtual environments (none: a temporary one)")
    add("--only", nargs="*", help="packages, with or without a version; '': gymnasium's own")
    add("--results", type=Path, default=PATH, help="file of the results")
    add("--seconds", type=int, default=300, help="time limit of an installation and of a run")
    args = parser.parse_args()
    args.packages = []
    for name in list(CASES) if args.only is None else args.only:
        fitting = [key for key in CASES if name == key]
        if name and not fitting:
            fitting = [key for key in CASES if key.startswith(f"{name}==")]
        if not fitting:
            choices = ", ".join(map(repr, CASES))
            parser.error(f"--only {name!r}: choose from {choices}")
        args.packages += fitting
    return args


def in_order(row):
    names = list(CASES)
    known = row["packages"] in CASES
    return names.index(row["packages"]) if known else len(names)


def main():
    args = parse()
    rows = json.loads(args.results.read_text()) if args.results.exists() else []
    temporary = tempfile.TemporaryDirectory()
    folder = (args.venvs or Path(temporary.name)).resolve()
    for packages in args.packages:
        python = sys.executable
        error = None
        if packages:
            python, error = install(packages, folder, args.seconds)
        base = {
            "packages": packages,
            "pip": " && ".join(map(shlex.join, pip_lines(packages))) if packages else "",
            "date": time.strftime("%F"),
            "commit": commit(),
            "hardware": hardware(),
            "versions": {} if error else versions(python, packages),
        }
        rows = [row for row in rows if row["packages"] != packages]
        for line in CASES[packages]:
            found = {"error": error} if error else survey(python, line, args.seconds)
            rows.append({**base, "environment": line, **found})
            print(json.dumps(rows[-1]), flush=True)
        rows.sort(key=in_order)
        args.results.write_text(json.dumps(rows, indent=1) + "\n")
        args.results.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
