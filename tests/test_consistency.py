"""The copies stay copies: anatomy, arguments and declared sections of the scripts (DESIGN, sections 2 and 9)."""

import ast
import dataclasses
import difflib
import re
import subprocess
import sys

import pytest

from tests.helpers import (
    ATARI_SCRIPTS,
    FAMILIES,
    MLP_SCRIPTS,
    OFF_POLICY_SCRIPTS,
    PARENT,
    ROLLOUT_SCRIPTS,
    ROOT,
    SCRIPTS,
    SOURCE,
    module,
)

# What the scripts share, and how many lines it may have.
SHARED = dict(utils=250, buffers=150, checkpoints=200, environments=310, tracking=80)
TEXT = {name: (SOURCE / f"{name}.py").read_text() for name in [*SCRIPTS, *SHARED]}
ROOTS = {"ppo", "dqn", "ddpg"}
# Lines that differ from another script (removed + added), from its parent above all. Raise it only for something that
# the variant truly needs.
DIFF_BUDGET = {
    ("ppo", "ppo_continuous"): 122,
    ("ppo", "ppo_atari"): 195,
    ("dqn", "dqn_atari"): 165,
    ("dqn", "c51"): 75,
    ("c51", "c51_atari"): 175,
    ("dqn_atari", "c51_atari"): 80,
    ("ddpg", "td3"): 60,
    ("td3", "sac"): 120,
}
PPO, DQN, DDPG = FAMILIES["ppo"], FAMILIES["dqn"], FAMILIES["ddpg"]
C51 = ["c51", "c51_atari"]
DQN_MLP = ["dqn", "c51"]
IDENTICAL_DEFINITIONS = [  # functions and classes; what is defined in main goes by its own name
    ("evaluate", SCRIPTS),
    ("make_env", [name for name in MLP_SCRIPTS if name != "ppo_continuous"]),  # which clips actions
    *((name, ATARI_SCRIPTS) for name in ("make_env", "game_settings", "Games", "PressFire")),
    *((name, PPO) for name in ("linear_recurrence", "compute_gae", "adam_step", "update")),
    ("mlp", ["ppo", "ppo_continuous"]),
    ("adam_step", OFF_POLICY_SCRIPTS),
    ("passed", OFF_POLICY_SCRIPTS),
    ("linear_schedule", DQN),
    ("learn", DQN),
    ("mlp", DQN_MLP),
    ("update", ["dqn", "dqn_atari"]),
    *((name, C51) for name in ("update", "project_distribution", "Agent.logits")),
    ("QNetwork", ["dqn_atari", "c51_atari"]),
    *((name, DDPG) for name in ("mlp", "adam_state", "Agent.forward", "Agent.value")),
    *((name, ["ddpg", "td3"]) for name in ("Agent.policy", "Agent.act")),
]
# From the first line that starts with one text to the next that starts with the other; or so many lines.
IDENTICAL_SPANS = {
    "divisible total, device": (SCRIPTS, "    check(args.total_timesteps %", 3),
    "checkpoint, run directory": (SCRIPTS, "    script, stop = Path(__file__).stem", "        for name, "),
    "tracking, logging": (SCRIPTS, "    tracking.start", "    # === update"),
    "cadences, progress": (SCRIPTS, "    save_every, eval_every = ", 2),
    "first observations": (["ppo", "ppo_continuous"], "    obs = envs.start", 1),
    "first observations, replay": (["dqn", "c51", *DDPG], "    obs = envs.start", 1),
    "first observations, Atari": (ATARI_SCRIPTS, "    obs, _ = envs.reset", 1),
    "evaluation, rollouts": (PPO, "    # === evaluation", "if __name__"),
    "evaluation, replay": (OFF_POLICY_SCRIPTS, "    # === evaluation", "if __name__"),
    "end": (SCRIPTS, "    utils.end_run", "if __name__"),
    "entry point": (SCRIPTS, "if __name__", None),
    "environments": (MLP_SCRIPTS, "    vector_env = ", "    check(len(obs_space"),
    "networks and Adam": (["ppo", "dqn", "c51"], "    zeros = ", 2),
    # the PPO trio
    "epochs and minibatches": (PPO, "        # learn", "        # log"),
    "sizes, rollouts": (PPO, "    positive = ", 2),
    "log of a rollout": (PPO, '        losses["charts/learning_rate"]', "    # === evaluation"),
    "evaluate, rollouts": (PPO, "        # evaluate, save", "        state |= dict(last_eval"),
    "saving, rollouts": (PPO, "        if finished or stop:", 5),
    "resuming, rollouts": (PPO, "    if resume:", "    tracking.start"),
    "compiling, rollouts": (PPO, "    update = utils.compile_update", 1),
    # all off-policy scripts
    "learning starts": (OFF_POLICY_SCRIPTS, "    check(0 <= args.learning_starts", 1),
    "start of the training": (OFF_POLICY_SCRIPTS, "    save_every, eval_every = ", 3),
    "end of the start": (OFF_POLICY_SCRIPTS, "    del checkpoint", 2),
    "evaluate, save": (OFF_POLICY_SCRIPTS, "        # evaluate, save", "        # act"),
    "when to learn": (OFF_POLICY_SCRIPTS, "        # learn, from the steps so far", 3),
    "finished episodes": (OFF_POLICY_SCRIPTS, '            writer.add_scalar("charts/episodic_return"', 3),
    "log of losses": (OFF_POLICY_SCRIPTS, "        # log", '            writer.add_scalar("charts/'),
    "log of the speed": (OFF_POLICY_SCRIPTS, '            writer.add_scalar("charts/SPS"', "    # === evaluation"),
    "step, store": (["dqn", "c51", *DDPG], "        # step, store", "        # log"),
    "parts of a transition": (["dqn", "c51", *DDPG], "    replay = ", 1),
    # dqn and what descends from it
    "step, store, Atari": (["dqn_atari", "c51_atari"], "        # step, store", "        # log"),
    "setup, Atari": (["dqn_atari", "c51_atari"], "    check(0 <= args.learning_starts", "    agent = Agent("),
    "replay, Atari": (["dqn_atari", "c51_atari"], "    params = ", "    script, stop = "),
    "spaces of actions, dqn": (DQN_MLP, "    check(isinstance(action_space", "    agent = Agent("),
    "replay, dqn": (DQN_MLP, "    params = ", "    script, stop = "),
    "resuming, dqn": (DQN, "    if resume:", "    tracking.start"),
    "compiling, dqn": (DQN, "    update = utils.compile_update", "    target_params"),
    "targets, dqn": (DQN, "    target_params = ", 1),
    "act, dqn": (DQN, "        # act", 6),
    "learn, dqn": (DQN, "        # learn, from", "        # step, store"),
    "log, dqn": (DQN, "        # log", "    # === evaluation"),
    "saving, dqn": (DQN_MLP, "    def save", "    def passed"),
    "saving, dqn, Atari": (["dqn_atari", "c51_atari"], "    def save", "    def passed"),
    "saving, ddpg": (DDPG, "    def save", "    def passed"),
    "sizes, dqn": (DQN, "    positive = ", 2),
    "act, c51": (C51, "        # act", "        # learn, from"),
    # ddpg and what descends from it
    "space of actions, ddpg": (DDPG, "    check(isinstance(action_space", "    agent = Agent("),
    "replay, ddpg": (DDPG, "    shapes = ", "    script, stop = "),
    "resuming, ddpg": (DDPG, "    if resume:", "    tracking.start"),
    "compiling, ddpg": (DDPG, "    update_critic, update_actor = ", "    def learn"),
    "learners, ddpg": (DDPG, "    learners = [partial", "        # act"),
    "random actions, ddpg": (DDPG, "        # act", 4),
    "learn, step, store, log, save, ddpg": (DDPG, "        # learn, from", "    # === evaluation"),
    "act, ddpg": (["ddpg", "td3"], "        # act", "        # learn, from"),
}


def fields_text(script):
    """{name: (type, default, help)} as the source has them."""
    body = re.search(r"^class Args:\n(.*?)(?=^\S)", TEXT[script], re.S | re.M)[1]
    lines = re.findall(r"^    (\w+): (.+?) = (.+?)(?:  # (.+))?$", body, re.M)
    return {name: (kind, default, text) for name, kind, default, text in lines}


def groups(script):
    """The names of the run flags and of the algorithm flags."""
    body = re.search(r"^class Args:\n(.*?)(?=^\S)", TEXT[script], re.S | re.M)[1]
    return [re.findall(r"^    (\w+):", part, re.M) for part in re.split(r"    # algorithm flags.*\n", body)]


def functions(script):
    """{name: source} of every function, nested ones too."""
    tree = ast.parse(TEXT[script])
    return {
        node.name: ast.get_source_segment(TEXT[script], node, padded=True)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }


def definitions(script):
    """{qualified name: source} of every class and function; what is defined in main goes by its own name."""
    found = {}

    def visit(node, path):
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            where = [*path, child.name] if named and child.name != "main" else path
            if named:
                found[".".join(where)] = ast.get_source_segment(TEXT[script], child, padded=True)
            visit(child, where)

    visit(ast.parse(TEXT[script]), [])
    return found


def span(script, start, end):
    lines = TEXT[script].splitlines()
    (first,) = [i for i, line in enumerate(lines) if line.startswith(start)]
    if isinstance(end, int):
        return "\n".join(lines[first : first + end])
    last = next((i for i in range(first, len(lines)) if end and lines[i].startswith(end)), len(lines))
    assert end is None or last < len(lines), f"{script}: {end} does not follow {start}"
    return "\n".join(lines[first:last])


def test_sections_in_order(script):
    banners = [(len(indent), name) for indent, name in re.findall(r"^( *)# === (.+)$", TEXT[script], re.M)]
    outer = [(0, name) for name in ("arguments", "environment", "networks", "pure functions")]
    assert banners == outer + [(4, name) for name in ("setup", "update", "training", "evaluation")]
    text = TEXT[script]
    assert text.index("# === pure functions") < text.index("def main(args: Args):") < text.index("# === setup")
    assert text.endswith("        main(tyro.cli(Args, default=checkpoints.saved_args(Args)))\n")


def test_head_docstring(script):
    docstring = ast.get_docstring(ast.parse(TEXT[script]))
    assert re.findall(r"^(\w+):", docstring, re.M) == ["Paper", "Run", "Differs", "Expected", "Details"]
    assert f"python cleanrl_lite/{script}.py" in docstring
    expected = re.search(r"^Expected:(.*?)^Details:", docstring, re.S | re.M)[1]
    assert re.search(r"\d", expected), "Expected has no measured result"
    details = re.search(r"^Details: +(\S+)$", docstring, re.M)[1]
    assert details == f"docs/{script}.md"
    assert (ROOT / details).is_file()


def test_every_flag_has_help(script):
    named = [field.name for field in dataclasses.fields(module(script).Args)]
    assert named == list(fields_text(script))
    assert [name for name, (_, _, text) in fields_text(script).items() if not text] == []


def test_every_flag_is_used(script):
    text = TEXT[script] + "".join(TEXT[name] for name in SHARED)
    assert [name for name in fields_text(script) if not re.search(rf"\bargs\.{name}\b(?! = )", text)] == []
    assert not re.search(r"\bargs\.\w+ (=|\+=|-=|\*=) ", text), "an argument is overwritten"


def test_flag_types_do_not_lie(script):
    """The default has the field's type, so that what arrives in the program is what the annotation says."""
    for field in dataclasses.fields(module(script).Args):
        assert isinstance(field.default, field.type), f"{field.name}: {field.type} = {field.default!r}"
        assert type(field.default) is field.type or field.default is None


def test_same_flag_same_meaning():
    seen = {}
    for script in SCRIPTS:
        for name, (kind, _, text) in fields_text(script).items():
            meaning = (kind, None if name == "env_id" else text)
            assert seen.setdefault(name, meaning) == meaning, f"{script}: {name}"


@pytest.mark.parametrize("one, other", DIFF_BUDGET)
def test_flags_in_the_same_order(one, other):
    """The flags that two siblings share stand in the same order."""
    shared = set(fields_text(one)) & set(fields_text(other))
    assert [name for name in fields_text(one) if name in shared] == [n for n in fields_text(other) if n in shared]


def test_run_flags_are_the_same_everywhere():
    def run_flags(script):
        names, _ = groups(script)
        return [(name, *fields_text(script)[name][: 1 if name == "threads" else 2]) for name in names]

    for script in SCRIPTS:
        assert run_flags(script) == run_flags("ppo")


@pytest.mark.parametrize("name, scripts", IDENTICAL_DEFINITIONS, ids=lambda value: value if str(value) == value else "")
def test_identical_definitions(name, scripts):
    first, *others = scripts
    assert others
    for other in others:
        assert definitions(other)[name] == definitions(first)[name], f"{name} of {other}"


@pytest.mark.parametrize("name", IDENTICAL_SPANS)
def test_identical_spans(name):
    (first, *others), *where = IDENTICAL_SPANS[name]
    assert others
    for other in others:
        assert span(other, *where) == span(first, *where), other


def test_every_variant_has_a_parent():
    """Every script but the roots; `name_variant` descends from `name`."""
    assert set(PARENT) == set(SCRIPTS) - ROOTS and ROOTS < set(SCRIPTS)
    assert {name: name.rsplit("_", 1)[0] for name in SCRIPTS if "_" in name}.items() <= PARENT.items()
    assert {(parent, variant) for variant, parent in PARENT.items()} <= set(DIFF_BUDGET)


@pytest.mark.parametrize("one, other", DIFF_BUDGET)
def test_diff_budget(one, other):
    diff = difflib.ndiff(TEXT[one].splitlines(), TEXT[other].splitlines())
    changed = sum(line[:2] in ("+ ", "- ") for line in diff)
    assert changed <= DIFF_BUDGET[one, other], f"{changed} lines differ from {one}.py"


def test_variants_name_their_parent(script):
    title = TEXT[script].splitlines()[0]
    assert re.findall(r"a variant of (\w+)\.py", title) == ([PARENT[script]] if script in PARENT else [])


def test_imports(script):
    """No script imports another one."""
    for node in ast.walk(ast.parse(TEXT[script])):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            if node.module.startswith("cleanrl_lite"):
                shared = sorted(set(SHARED) - ({"buffers"} if script in ROLLOUT_SCRIPTS else set()))
                assert (node.module, [name.name for name in node.names]) == ("cleanrl_lite", shared)
        if isinstance(node, ast.Import):
            assert not any(name.name.startswith("cleanrl_lite") for name in node.names)


@pytest.mark.parametrize("name", [*SCRIPTS, *SHARED])
def test_nothing_is_stored_and_never_read(name):
    tree = ast.parse(TEXT[name])
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef):
            continue
        names = [node for node in ast.walk(scope) if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        shared = {n for node in ast.walk(scope) if isinstance(node, ast.Nonlocal | ast.Global) for n in node.names}
        unread = {unread for unread in stored - read - shared if not unread.startswith("_")}
        assert not unread, f"{scope.name} stores {unread} and never reads it"
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    stored = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    everything = [node for text in TEXT.values() for node in ast.walk(ast.parse(text))]
    read = {node.attr for node in everything if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    # Settings and attributes that torch, Python and gymnasium read.
    outside = {"trace_autograd_ops", "deterministic", "excepthook", "closed", "state"}
    assert not {attr for attr in stored - read - outside if not attr.startswith("_")}


@pytest.mark.parametrize("name", [*SCRIPTS, *SHARED])
def test_functions_are_called(name):
    """No function that nothing calls (methods that gymnasium or torch call aside)."""
    called_elsewhere = {"main", "forward", "__init__", "__call__", "reset", "step", "close_extras"}
    for function in functions(name):
        text = "".join(TEXT.values()) if name in SHARED else TEXT[name]
        used = len(re.findall(rf"\b{function}\b(?!:)", text)) - len(re.findall(rf"def {function}\(", text))
        assert used or function in called_elsewhere, function


@pytest.mark.parametrize("name", [*SCRIPTS, *SHARED])
def test_length(name):
    lines = TEXT[name].splitlines()
    assert len(lines) <= SHARED.get(name, 400)
    assert [i for i, line in enumerate(lines, 1) if len(line) > 120] == []


def test_utils_knows_no_algorithm():
    names = r"ppo|a2c|dqn|c51|ddpg|td3|sac|rainbow|qdagger|pqn|rpo|rnd|trpo|gae|advantage|critic|q-?learning"
    shared = "".join(TEXT[name] for name in SHARED)
    found = re.findall(rf"(?<![a-z])(?:{names})(?![a-z])", shared, re.I)
    assert found == []
    assert not re.search(r"(add_scalar|SummaryWriter)", shared), "logging belongs to the scripts"


def test_readme_and_docs_list_every_script():
    readme, index = ((ROOT / name).read_text() for name in ("README.md", "docs/index.md"))
    for script in SCRIPTS:
        assert f"{script}.py" in readme, script
        assert f"{script}" in index, script
        assert (ROOT / "docs" / f"{script}.md").is_file()


def test_readme_commands_have_right_flags(script):
    """Every flag of this script that README.md and docs/ show exists."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    flags = {name.replace("_", "-") for name in fields_text(script)}
    for page in pages:
        text = page.read_text().replace("\\\n", " ")
        for words in re.findall(rf"python\S* (?:\S*/|-m cleanrl_lite\.){script}(?:\.py)? ([^\n`]*)", text):
            for flag in re.findall(r"--([\w-]+)", words):
                assert flag in flags | {"help"} or flag.removeprefix("no-") in flags, f"{page.name}: --{flag}"


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff(command):
    files = [SOURCE, ROOT / "tests"]
    done = subprocess.run([sys.executable, "-m", "ruff", *command.split(), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# The algorithms' defaults are CleanRL's; with others, the published results would no longer be those of the commands.
PPO_DEFAULTS = dict(anneal_lr=True, gamma=0.99, gae_lambda=0.95, norm_adv=True, clip_vloss=True, vf_coef=0.5)
PPO_DEFAULTS |= dict(max_grad_norm=0.5, target_kl=None)
DQN_DEFAULTS = dict(num_envs=1, gradient_steps=1, gamma=0.99, tau=1.0, start_e=1.0)
DDPG_DEFAULTS = dict(num_envs=1, buffer_size=1_000_000, train_frequency=1, gradient_steps=1, batch_size=256)
DDPG_DEFAULTS |= dict(gamma=0.99, tau=0.005, policy_frequency=2, total_timesteps=1_000_000)
SMALL_DQN = dict(learning_rate=2.5e-4, buffer_size=10_000, learning_starts=10_000, train_frequency=10, batch_size=128)
SMALL_DQN |= dict(target_network_frequency=500, end_e=0.05, exploration_fraction=0.5, total_timesteps=500_000)
ATARI_DQN = dict(buffer_size=1_000_000, learning_starts=80_000, train_frequency=4, batch_size=32, end_e=0.01)
ATARI_DQN |= dict(exploration_fraction=0.1, total_timesteps=10_000_000)
EPOCHS = dict(num_steps=128, num_minibatches=4, update_epochs=4, learning_rate=2.5e-4, ent_coef=0.01)
DEFAULTS = dict(
    ppo=PPO_DEFAULTS | EPOCHS | dict(num_envs=4, clip_coef=0.2, total_timesteps=500_000),
    ppo_continuous=PPO_DEFAULTS
    | dict(num_envs=1, num_steps=2048, num_minibatches=32, update_epochs=10, learning_rate=3e-4)
    | dict(ent_coef=0.0, clip_coef=0.2, total_timesteps=1_000_000),
    ppo_atari=PPO_DEFAULTS | EPOCHS | dict(num_envs=8, clip_coef=0.1, total_timesteps=10_000_000),
    dqn=DQN_DEFAULTS | SMALL_DQN,
    c51=DQN_DEFAULTS | SMALL_DQN | dict(n_atoms=101, v_min=-100.0, v_max=100.0),
    dqn_atari=DQN_DEFAULTS | ATARI_DQN | dict(learning_rate=1e-4, target_network_frequency=1000),
    c51_atari=DQN_DEFAULTS
    | ATARI_DQN
    | dict(learning_rate=2.5e-4, target_network_frequency=10_000, n_atoms=51, v_min=-10.0, v_max=10.0),
    ddpg=DDPG_DEFAULTS | dict(learning_rate=3e-4, learning_starts=25_000, exploration_noise=0.1),
    td3=DDPG_DEFAULTS
    | dict(learning_rate=3e-4, learning_starts=25_000, exploration_noise=0.1, policy_noise=0.2, noise_clip=0.5),
    sac=DDPG_DEFAULTS | dict(policy_lr=3e-4, q_lr=1e-3, learning_starts=5_000, alpha=0.2, autotune=True),
)
NOT_THE_ALGORITHM = {"env_id", "async_envs", "bf16"}


def test_defaults(script):
    """Every algorithm flag's default."""
    first = list(fields_text(script)).index("env_id")  # the run flags come before it
    names = set(list(fields_text(script))[first:]) - NOT_THE_ALGORITHM
    assert {name: getattr(module(script).Args(), name) for name in names} == DEFAULTS[script]
