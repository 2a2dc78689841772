"""The copies stay copies: anatomy, flags, shared text and distances of the scripts (DESIGN,
sections 2 and 9)."""

import ast
import dataclasses
import difflib
import re
import subprocess
import sys

import pytest

from tests.helpers import (
    ATARI_SCRIPTS,
    ENVPOOL_SCRIPTS,
    FAMILIES,
    GOAL_SCRIPTS,
    IMAGE_SCRIPTS,
    LSTM_SCRIPTS,
    MLP_SCRIPTS,
    OFF_POLICY_SCRIPTS,
    PARENT,
    PLAIN_SCRIPTS,
    ROOT,
    SCRIPTS,
    SOURCE,
    module,
)

TEXT = {path.stem: path.read_text() for path in SOURCE.glob("*.py")}
PPO, DQN, DDPG = FAMILIES["ppo"], FAMILIES["dqn"], FAMILIES["ddpg"]
PPO = [name for name in PPO if name not in PLAIN_SCRIPTS]
ALONE = [name for name in PPO if name != "ppo_atari_multigpu"]  # one process
# the learning rate follows the steps alone
FIXED = [name for name in ALONE if "_adaptive" not in name]
VECTORS = [name for name in OFF_POLICY_SCRIPTS if name in MLP_SCRIPTS]
REPLAY, SAC = DQN + FAMILIES["ddpg"], ["sac", *GOAL_SCRIPTS]
FRAMES = [name for name in DQN if name in ATARI_SCRIPTS]

# Non-blank lines.
LENGTH = dict(
    ppo=246, ppo_continuous=286, ppo_atari=291, dqn=221, c51=251, dqn_atari=295, c51_atari=325
)
LENGTH |= dict(
    ppo_masked=283, ppo_image=306, ddpg=261, td3=276, sac=301, sac_her=340, ppo_microrts=336
)
LENGTH |= dict(ppo_envpool=287, ppo_continuous_envpool=326, ppo_lstm=305, ppo_atari_lstm=334)
LENGTH |= dict(
    ppo_multiagent=310,
    ppo_selfplay=333,
    ppo_continuous_adaptive=303,
    ppo_continuous_asymmetric=299,
    ppo_hybrid=311,
)
LENGTH |= dict(
    ppo_simple=199, vpg=178, a2c=178, ppo_atari_multigpu=339, ppo_godot=338, ppo_continuous_mjx=340
)
LENGTH |= dict(dqn_atari_visual=307, c51_atari_visual=336, ppo_atari_visual=302)
LENGTH |= dict(utils=350)
# For each two scripts: how many lines may be changed (added plus removed, by difflib, head
# docstrings aside), and the functions, classes and methods of the same name that have another text.
# Raise a budget only for something that the variant truly needs.
# of *_visual: the name of the script for vectors, and the wrapper that draws
VIDEOS = "game_settings make_env"
GAMES = "Games Games.__init__ Games.reset Games.step"
PAIRS = {
    ("ppo", "ppo_continuous"): (115, "Agent.act Agent.forward Agent.policy"),
    ("ppo", "ppo_simple"): (95, "adam_step compute_gae mlp update"),
    ("ppo_simple", "vpg"): (85, "Agent.forward update"),
    ("vpg", "a2c"): (45, "update"),
    ("ppo", "ppo_masked"): (100, "Agent.act Agent.forward Agent.policy make_env"),
    ("ppo", "ppo_lstm"): (135, "Agent.act Agent.forward make_env update"),
    ("ppo", "ppo_envpool"): (85, ""),
    ("ppo", "ppo_atari"): (175, "Agent.act Agent.forward make_env"),
    # 57 are the environments, which go
    ("ppo_atari", "ppo_image"): (182, "Agent.act Agent.forward make_env"),
    ("ppo_continuous", "ppo_continuous_envpool"): (88, ""),
    ("ppo_continuous", "ppo_continuous_adaptive"): (50, "Agent.forward update"),
    ("ppo_continuous", "ppo_hybrid"): (100, "Agent.act Agent.policy make_env"),
    ("ppo_continuous", "ppo_continuous_asymmetric"): (45, "Agent.act Agent.forward make_env"),
    # 90 lines of environments among them, and a rollout of tensors
    ("ppo_continuous", "ppo_continuous_mjx"): (225, "compute_gae linear_recurrence make_env"),
    # 68 lines of games and their client among them
    ("ppo_continuous", "ppo_godot"): (115, "make_env"),
    ("ppo_envpool", "ppo_continuous_envpool"): (120, "Agent.act Agent.forward Agent.policy"),
    # environment and networks
    ("ppo_masked", "ppo_microrts"): (285, "Agent.act Agent.forward make_env"),
    ("ppo_masked", "ppo_multiagent"): (90, "Agent.act Agent.forward Agent.policy make_env"),
    ("ppo_masked", "ppo_selfplay"): (95, "make_env mlp"),  # 45 lines of wrappers among them
    ("ppo_atari", "ppo_atari_lstm"): (105, f"Agent.act Agent.forward make_env update {GAMES}"),
    ("ppo_atari", "ppo_atari_multigpu"): (
        95,
        "Games Games.__init__ Games.reset adam_step game_settings update",
    ),
    ("ppo_lstm", "ppo_atari_lstm"): (None, "Agent.act Agent.forward make_env update"),
    ("ppo", "dqn"): (None, "Agent.act adam_step mlp update"),
    ("ppo_atari", "dqn_atari"): (None, "Agent.act adam_step update"),
    ("dqn", "c51"): (75, "Agent.act update"),
    # 55 lines of replay and 80 of environments among them
    ("dqn", "dqn_atari"): (250, "Agent.act make_env"),
    ("c51", "c51_atari"): (255, "Agent.act make_env"),
    ("dqn_atari", "c51_atari"): (75, "Agent.act update"),
    ("dqn_atari", "dqn_atari_visual"): (22, VIDEOS),
    ("c51_atari", "c51_atari_visual"): (22, VIDEOS),
    ("ppo_atari", "ppo_atari_visual"): (22, VIDEOS),
    ("dqn", "ddpg"): (None, "Agent.act mlp"),
    ("ddpg", "td3"): (55, "learn update_actor update_critic"),
    ("td3", "sac"): (110, "Agent.act Agent.policy learn update_actor update_critic"),
    # 51 lines of replay and 14 of goal environments among them
    ("sac", "sac_her"): (97, "learn update_critic"),
}
# Parts of main() with one text: from the line that starts with this to the next one that starts
# with that.
SPANS = [
    # --evaluate, W&B and TensorBoard
    (SCRIPTS, "    if run.result is not None", "    # === update"),
    (SCRIPTS, "    # === evaluation", "if __name__"),
    (SCRIPTS, "if __name__", None),
    (MLP_SCRIPTS + GOAL_SCRIPTS + IMAGE_SCRIPTS, "    envs = utils.vector_env", "    obs_space, "),
    (MLP_SCRIPTS + GOAL_SCRIPTS + ENVPOOL_SCRIPTS + IMAGE_SCRIPTS, "    obs_space, ", "    "),
    (ATARI_SCRIPTS, "    envs = Games", "    obs_space, "),
    (ALONE, "def main", "    envs = "),
    (["ppo_atari", "ppo_atari_visual", *FRAMES], "    envs = Games", "    agent = "),
    (PPO, "    params = ", "    run = "),
    (FIXED, "        if args.anneal_lr", "        # act"),
    (
        [name for name in FIXED if name not in ENVPOOL_SCRIPTS + LSTM_SCRIPTS],
        "        # learn",
        "    # === evaluation",
    ),
    (
        [name for name in FIXED if name not in ENVPOOL_SCRIPTS],
        "            metrics += epoch",
        "    # === evaluation",
    ),
    (ENVPOOL_SCRIPTS, "        # learn", "    # === evaluation"),
    (LSTM_SCRIPTS, "    rest = ", "    agent = "),
    (LSTM_SCRIPTS, "        # The samples of each", "    # === evaluation"),
    (
        ["ppo_atari", "ppo_atari_multigpu"],
        "        # values and adv",
        "            if args.target_kl",
    ),
    (["ppo_atari", "ppo_atari_visual", "ppo_image"], "        # act", "            obs, "),
    (["ppo_continuous", "ppo_image"], "            under_way = ", "        values"),
    (["dqn", *DDPG], "def main", "    envs = "),
    (REPLAY, "    check(args.learning_starts < ", "    "),
    (REPLAY, "    check(args.buffer_size", "    envs = "),
    (DDPG, "    check(isinstance(action_space", "    agent = "),
    (["dqn", "c51"], "    params = ", "    # === update"),
    (FRAMES, "    params = ", "    # === update"),
    (DQN, "    update = run.compile", "    target_params = "),
    (DQN, "        # act", "        if (explore"),
    (["c51", "c51_atari", "c51_atari_visual"], "        # act", "        # learn"),
    (DQN, "        # learn", "        # step, store"),
    (DQN, "        # log", "    # === evaluation"),
    (DDPG, "    update_critic, update_actor = ", "    def learn"),
    (DDPG, "    learners = ", "        # act"),
    (["ddpg", "td3"], "        # act", "        # learn"),
    (["ddpg", "td3", "sac"], "        # learn", "    # === evaluation"),
    (DDPG, "        # log", "    # === evaluation"),
    (SAC, "        # act", "        # learn"),
    (SAC, "    def temperature", "    def update_critic"),
    (SAC, "    def update_actor", "    def learn"),
    (VECTORS, "        # step, store", "        # log"),
    (FRAMES, "        # step, store", "        # log"),
]


def code(script):
    """The lines after the head docstring."""
    return TEXT[script].splitlines()[ast.parse(TEXT[script]).body[0].end_lineno :]


def fields(script):
    """{flag: (type, default, help)} as the source has them."""
    body = re.search(r"^class Args:\n(.*?)(?=^\S)", TEXT[script], re.S | re.M)[1]
    lines = re.findall(r"^    (\w+): (.+?) = (.+?)(?:  # (.+))?$", body, re.M)
    return {name: tuple(rest) for name, *rest in lines}


def definitions(script):
    """{qualified name: source} of every class and function; what is defined in main() goes by
    its own name."""
    found = {}

    def visit(node, path):
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            where = [*path, child.name] if named and child.name != "main" else path
            if named:
                found[".".join(where) or "main"] = ast.get_source_segment(
                    TEXT[script], child, padded=True
                )
            visit(child, where)

    visit(ast.parse(TEXT[script]), [])
    return found


def span(script, start, end):
    lines = TEXT[script].splitlines()
    (first,) = [i for i, line in enumerate(lines) if line.startswith(start)]
    last = next((i for i in range(first + 1, len(lines)) if end and lines[i].startswith(end)), None)
    assert last or not end, f"{script}: {end} does not follow {start}"
    return "\n".join(lines[first:last])


def test_what_the_package_holds():
    assert set(TEXT) == {*SCRIPTS, "utils"} | set(TEXT) & {"__init__"}
    assert [
        path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"
    ] == []
    assert set(PARENT) == set(SCRIPTS) - {"ppo", "dqn", "ddpg"}
    assert {(parent, variant) for variant, parent in PARENT.items()} <= set(PAIRS)


def test_anatomy(script):
    """The head docstring's five fields; the sections under their banners, in order."""
    docstring, text = ast.get_docstring(ast.parse(TEXT[script])), TEXT[script]
    assert re.findall(r"^(\w+):", docstring, re.M) == [
        "Paper",
        "Run",
        "Differs",
        "Expected",
        "Details",
    ]
    assert f"python cleanrl_lite/{script}.py" in docstring and f"docs/{script}.md" in docstring
    assert re.search(r"^Expected:.*\d.*^Details:", docstring, re.S | re.M), (
        "Expected has no measured result"
    )
    parent = [PARENT[script]] if script in PARENT else []
    assert re.findall(r"a variant of (\w+)\.py", text.splitlines()[0]) == parent
    outer = ["arguments", "environment", "networks", "replay", "pure functions"]
    outer.remove("replay") if script in FAMILIES["ppo"] else None
    banners = [(len(indent), name) for indent, name in re.findall(r"^( *)# === (.+)$", text, re.M)]
    inner = [(4, name) for name in ("setup", "update", "training", "evaluation")]
    assert banners == [(0, name) for name in outer] + inner
    assert (
        text.index("# === pure functions")
        < text.index("\ndef main(args: Args):")
        < text.index("# === setup")
    )


@pytest.mark.parametrize("name", LENGTH)
def test_length(name):
    lines = TEXT[name].splitlines()
    assert len(lines) <= 400
    assert sum(bool(line.strip()) for line in lines) <= LENGTH[name]
    assert [i for i, line in enumerate(lines, 1) if len(line) > 120] == []


def test_flags(script):
    """Each has help, is used, is not overwritten, and has a default of its type."""
    text = TEXT[script] + TEXT["utils"]
    assert [field.name for field in dataclasses.fields(module(script).Args)] == list(fields(script))
    assert [name for name, (_, _, text) in fields(script).items() if not text] == []
    assert [
        name for name in fields(script) if not re.search(rf"\bargs\.{name}\b(?! = )", text)
    ] == []
    assert not re.search(r"\bargs\.\w+ (=|\+=|-=|\*=) ", text)
    for field in dataclasses.fields(module(script).Args):
        assert isinstance(field.default, field.type), (
            f"{field.name}: {field.type} = {field.default!r}"
        )
        assert type(field.default) is field.type or field.default is None


def test_same_flag_same_meaning():
    """Type, help and place of a flag are the same in every script; of a run flag the default, too.

    --threads has several, and --save-every a larger one for thousands of environments.
    """
    seen, run_flags = (
        {},
        "exp_name seed torch_deterministic cuda threads compile cuda_graph track wandb_project_name",
    )
    run_flags += (
        " wandb_entity runs_dir save_every resume evaluate eval_episodes eval_every capture_video"
    )
    for script in SCRIPTS:
        for i, (name, (kind, default, text)) in enumerate(fields(script).items()):
            meaning = kind, None if name == "env_id" else text
            if name in run_flags.split():
                other = name == "threads" or (name, script) == ("save_every", "ppo_continuous_mjx")
                meaning += (
                    i,
                    None if name == "threads" else fields("ppo")[name][1] if other else default,
                )
            assert seen.setdefault(name, meaning) == meaning, f"{script}: {name}"
    for one, other in PAIRS:
        shared = set(fields(one)) & set(fields(other))
        assert [name for name in fields(one) if name in shared] == [
            name for name in fields(other) if name in shared
        ]


def test_every_flag_is_in_the_docs():
    text = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    flags = {name for script in SCRIPTS for name in fields(script)}
    assert {
        name for name in flags if not re.search(rf"--(no-)?{name.replace('_', '-')}\b", text)
    } == set()


def test_flags_in_the_docs_exist(script):
    """Those of each command of README.md and docs/."""
    flags = {name.replace("_", "-") for name in fields(script)} | {"help"}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text().replace("\\\n", " ")
        for words in re.findall(
            rf"python\S* (?:\S*/|-m cleanrl_lite\.){script}(?:\.py)? ([^\n`]*)", text
        ):
            for flag in re.findall(r"--([\w-]+)", words):
                assert flag in flags or flag.removeprefix("no-") in flags, f"{page.name}: --{flag}"


@pytest.mark.parametrize("one, other", PAIRS)
def test_same_name_same_text(one, other):
    """Of functions, classes and methods, but for these, which always differ."""
    mine, theirs, always = (
        definitions(one),
        definitions(other),
        {"Args", "Agent", "Agent.__init__", "main"},
    )
    assert {name for name in mine.keys() & theirs if mine[name] != theirs[name]} - always == {
        *PAIRS[one, other][1].split()
    }


@pytest.mark.parametrize("scripts, start, end", SPANS)
def test_same_text(scripts, start, end):
    for script in scripts[1:]:
        assert span(script, start, end) == span(scripts[0], start, end), script


@pytest.mark.parametrize("one, other", [pair for pair, (budget, _) in PAIRS.items() if budget])
def test_distance(one, other):
    changed = sum(line[:2] in ("+ ", "- ") for line in difflib.ndiff(code(one), code(other)))
    assert changed <= PAIRS[one, other][0], f"{changed} lines differ from {one}.py"


def test_scripts_import_utils_and_no_other_script(script):
    found = re.findall(r"^\s*((?:from|import) (?:cleanrl_lite|\.).*)$", TEXT[script], re.M)
    assert found == ["from cleanrl_lite import utils"]


@pytest.mark.parametrize("name", TEXT)
def test_nothing_is_stored_and_never_read(name):
    tree = ast.parse(TEXT[name])
    for scope in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        names = [node for node in ast.walk(scope) if isinstance(node, ast.Name)]
        stored, read = (
            {n.id for n in names if isinstance(n.ctx, kind)} for kind in (ast.Store, ast.Load)
        )
        outer = {
            n
            for node in ast.walk(scope)
            if isinstance(node, ast.Nonlocal | ast.Global)
            for n in node.names
        }
        unread = {unread for unread in stored - read - outer if not unread.startswith("_")}
        assert not unread, f"{scope.name} stores {unread} and never reads it"
    everything = [node for text in TEXT.values() for node in ast.walk(ast.parse(text))]
    read = {
        node.attr
        for node in everything
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    stored = {
        n.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
    }
    elsewhere = {
        "trace_autograd_ops",
        "cpp_wrapper",
        "deterministic",
        "excepthook",
        "ai2",
        "metadata",
    }  # others read them
    assert {attr for attr in stored - read - elsewhere if not attr.startswith("_")} == set()


@pytest.mark.parametrize("name", TEXT)
def test_every_function_is_called(name):
    """Or is one that torch, gymnasium or Python call."""
    text = "".join(TEXT.values()) if name == "utils" else TEXT[name]
    others = {
        "main",
        "forward",
        "reset",
        "step",
        "state",
        "act",
        "state_dict",
        "load_state_dict",
        "close",
    }
    for function in {
        node.name for node in ast.walk(ast.parse(TEXT[name])) if isinstance(node, ast.FunctionDef)
    }:
        used = len(re.findall(rf"\b{function}\b(?!:)", text)) - len(
            re.findall(rf"def {function}\(", text)
        )
        assert used or function in others or function.startswith("__"), function


def test_utils_knows_no_algorithm():
    names = "ppo|a2c|dqn|c51|ddpg|td3|sac|rainbow|qdagger|pqn|rpo|rnd|trpo|gae|advantage|critic|q-?learning|losses/"
    assert re.findall(rf"(?<![a-z])(?:{names})(?![a-z_])", TEXT["utils"], re.I) == []


def test_readme_and_docs_list_every_script():
    readme, index = ((ROOT / name).read_text() for name in ("README.md", "docs/index.md"))
    assert len(readme.splitlines()) <= 130
    for script in SCRIPTS:
        assert (
            f"{script}.py" in readme
            and script in index
            and (ROOT / "docs" / f"{script}.md").is_file()
        ), script


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff(command):
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        *command.split(),
        SOURCE,
        ROOT / "tests",
        ROOT / "benchmark",
    ]
    done = subprocess.run(ruff, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
