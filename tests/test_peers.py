"""What the same flag means elsewhere: the file, the page, and our own cells."""

import json
import re
import sys

import numpy as np
import pytest

from benchmark.measure import peers, peers_first_update, peers_returns
from benchmark.measure.probes import ours, scripted
from tests.helpers import ROOT

FOUND = json.loads(peers.FILE.read_text())
PAGE = (ROOT / "docs/guides/same_flag.md").read_text()
ANCHORS = {title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", PAGE, re.M)}


def test_our_cells_are_what_the_scripts_compute(tmp_path):
    """Where a script has been changed on purpose: python -m benchmark.measure.peers --library ours."""
    assert peers.probe("ours", tmp_path)["cells"] == FOUND["ours"]["cells"]


def test_every_cell_has_a_row():
    known = {f"{algorithm} {name}" for algorithm, rows in peers.ROWS.items() for name in rows}
    for library, record in FOUND.items():
        assert record["cells"].keys() <= known, library
        assert record["versions"] and record["commit"] and record["hardware"]


def test_the_tables_are_those_of_the_file():
    assert peers.FILE.with_suffix(".md").read_text() == peers.tables(FOUND)
    assert peers_returns.FILE.with_suffix(".md").read_text() == peers_returns.table(
        peers_returns.read()
    )


def test_the_tables_have_at_most_eight_columns():
    for algorithm in peers.ROWS:
        for line in peers.table(algorithm, FOUND):
            assert line.replace("clip(a, -1, 1)", "").count(" | ") < 8, line


def test_the_last_row_of_each_table_leads_to_a_recipe():
    for algorithm in peers.ROWS:
        tables = "\n".join(peers.table(algorithm, FOUND)).split("\n\n")
        ends = [text.splitlines()[-1] for text in tables]
        assert all(end.startswith("| to get the same here") for end in ends)
        links = re.findall(r"\(#(.+?)\)", "".join(ends))
        measured = [name for name in FOUND if peers.has(FOUND[name], algorithm)]
        assert len(links) == len(measured) - 1 and set(links) <= ANCHORS


def test_a_checkout_is_measured_by_the_program_of_the_package(tmp_path, monkeypatch):
    """Two environments; the commit is its version, and its recipe that of CleanRL."""
    calls = []

    def run_probe(*args):
        calls.append(args)
        return {"versions": {"torch": "2"}, "cells": {f"PPO cell {len(calls)}": 1}}

    monkeypatch.setattr(peers, "run_probe", run_probe)
    (tmp_path / "leanrl").mkdir()
    found = peers.probe("leanrl", tmp_path, str(tmp_path / "leanrl"))
    assert found["versions"] == {"leanrl": "of a folder without commit", "torch": "2"}
    assert sorted(found["cells"]) == ["PPO cell 1", "PPO cell 2"]
    assert "gymnasium==" not in calls[0][1] and "gymnasium==" in calls[1][1]
    record = {**FOUND["cleanrl"], "versions": {"leanrl": "760837e"}}
    text = "\n".join(peers.table("PPO", {"ours": FOUND["ours"], "leanrl": record}))
    assert "| LeanRL 760837e |" in text and "[how](#ppo-like-cleanrl)" in text


EDITS = re.findall(r"^```diff\n--- (\w+)\.py\n\+\+\+ (\w+)\.py\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.parametrize(("script", "name", "text"), EDITS)
def test_an_edit_computes_what_the_table_says(script, name, text, tmp_path, monkeypatch):
    """In a copy, which the probe of our scripts then measures."""
    path = tmp_path / f"{script}.py"
    source = (ROOT / f"cleanrl_lite/{script}.py").read_text()
    path.write_text(peers_returns.changed(source, text))
    copy = peers_first_update.module_at(path)
    monkeypatch.setitem(sys.modules, f"cleanrl_lite.{script}", copy)
    library = name.removeprefix("like_").removesuffix("_exact")
    for cell, value in MEASURED[script, name]():
        assert value == FOUND[library]["cells"][cell], cell


def advantages(**flags):
    found = dict(ours.advantage_cells(**flags))
    yield "PPO advantages_over", found["advantages_over"]
    yield "PPO advantages_std", found["advantages_std"]


def sb3_value_clipping():
    _, away = ours.value_gradient(1.0, -9.0)
    _, towards = ours.value_gradient(1.0, 12.0)
    yield "PPO value_clipping_given", scripted.clipping_words(away, towards)


def torchrl_value_loss():
    """The errors are -0.6 and beyond: clipped at 1, times --vf-coef."""
    seen = ours.run_ppo(clip_vloss=False, vf_coef=1.0)
    errors = -seen.advantages[0]
    grad = float(seen.grads[0]["critic.0.bias"])
    assert grad == pytest.approx(errors.clip(-1, 1).mean(), rel=1e-4)
    yield "PPO value_gradient", "1, error clipped at 1"


def clipped_squares():
    """RLlib's limit on the squared error: no gradient beyond a root of 10."""
    small = ours.run_ppo(clip_vloss=False, vf_coef=2.0)
    errors = -small.advantages[0]
    assert np.abs(errors).max() < 10**0.5
    grad = float(small.grads[0]["critic.0.bias"])
    assert grad == pytest.approx(2 * errors.mean(), rel=1e-4)
    large = ours.run_ppo(reward=100.0, clip_vloss=False, vf_coef=2.0)
    assert float(large.grads[0]["critic.0.bias"]) == 0
    yield "PPO value_gradient", "2, none beyond an error of 3.16"


def one_permutation():
    seen = ours.run_ppo(num_minibatches=2, update_epochs=3)
    assert len(seen.orders) == 1 and len(seen.grads) == 6
    yield "PPO later_epochs", "the same permutation"


def cleanrl_bootstrap():
    last = ours.run_ppo().advantages[0][scripted.EPISODE - 1]
    yield "PPO truncated_advantage", round(float(last), 4)
    yield "PPO truncated_bootstrap", scripted.bootstrap_words(last)


def return_scale():
    yield "PPO return_scale", ours.return_scale()


def rl_games_order():
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "permutation", drawn.append)
        ours.run_ppo(num_minibatches=2, update_epochs=2)
    assert drawn == []
    yield "PPO later_epochs", "the same, never shuffled"


def box_actions():
    yield "PPO box_action", ours.box_action()


def chosen(algorithm, cells, names):
    found = dict(cells())
    for name in names:
        yield f"{algorithm} {name}", found[name]


def torchrl_critics():
    assert dict(ours.sac_cells())["critic_gradient"] == pytest.approx(1 / 4.5)
    yield "SAC critic_gradient", "1, error clipped at 1"


def rl_games_actor():
    """One step of the actor for two of the critics."""
    order = dict(ours.sac_cells())["order"]
    assert order == "C T C T A C T C T A"
    assert FOUND["rl_games"]["cells"]["SAC order"].count("A") == order.count("A")
    return iter(())


def tianshou_targets():
    found = dict(ours.td3_cells())
    assert found["target_action_clipped"] == "no"
    yield "TD3 order", found["order"]


def cleanrl_sac():
    found = dict(ours.sac_cells())
    yield "SAC tanh_slope", scripted.plain(found["tanh_slope"])
    for name in ("log_prob_scale", "alpha_gradient", "log_std"):
        yield f"SAC {name}", found[name]


def sac_exact():
    """Both lines on top of SB3's edit are measured by test_the_first_update_of_sac_is_theirs."""
    found = dict(ours.sac_cells())
    yield "SAC critic_gradient", pytest.approx(found["critic_gradient"])
    yield "SAC tanh_slope", pytest.approx(found["tanh_slope"], abs=0.01)


SAC_LIKE_SB3 = ["log_std", "log_prob_scale", "alpha_gradient"]
MEASURED = {
    ("ppo", "like_cleanrl"): cleanrl_bootstrap,
    ("ppo", "like_rsl_rl"): one_permutation,
    ("ppo", "like_rllib"): clipped_squares,
    ("ppo_continuous", "like_cleanrl"): return_scale,
    ("sac", "like_cleanrl"): cleanrl_sac,
    ("sac", "like_sb3_exact"): sac_exact,
    ("td3", "like_sbx"): lambda: chosen("TD3", ours.td3_cells, ["order"]),
    ("ppo", "like_sb3"): sb3_value_clipping,
    ("ppo", "like_sbx"): advantages,
    ("ppo", "like_skrl"): lambda: advantages(norm_adv=False),
    ("ppo", "like_torchrl"): torchrl_value_loss,
    ("ppo", "like_rl_games"): rl_games_order,
    ("ppo_continuous", "like_sb3"): box_actions,
    ("ppo_continuous", "like_tianshou"): box_actions,
    ("sac", "like_sb3"): lambda: chosen("SAC", ours.sac_cells, SAC_LIKE_SB3),
    ("sac", "like_torchrl"): torchrl_critics,
    ("sac", "like_rl_games"): rl_games_actor,
    ("td3", "like_tianshou"): tianshou_targets,
    ("dqn", "like_sb3"): lambda: chosen("DQN", ours.dqn_cells, ["gradient"]),
    ("dqn", "like_tianshou"): lambda: chosen("DQN", ours.dqn_cells, ["double"]),
}


def test_each_edit_is_measured():
    assert sorted(MEASURED) == sorted((script, name) for script, name, _ in EDITS)


def test_the_surprises_are_those_of_the_file():
    """The numbers in the list above the tables."""

    def cell(library, name):
        return FOUND[library]["cells"][name]

    assert cell("cleanrl", "PPO truncated_advantage") == -12
    assert cell("skrl", "PPO truncated_advantage") == -1.515
    for library in ("rl_games", "rsl_rl"):
        assert cell(library, "PPO truncated_advantage") == -0.3
        assert cell(library, "PPO truncated_advantage_silent") == -12
    assert cell("rllib", "PPO value_gradient") == "2, none beyond an error of 3.16"
    assert cell("rllib", "PPO advantages_mean") == pytest.approx(0.43, abs=5e-3)
    assert cell("cleanrl", "PPO uneven_minibatches") == "2, 2, 2, 2"
    assert cell("rsl_rl", "PPO uneven_minibatches") == "2, 2, 2"
    assert cell("rsl_rl", "PPO later_epochs") == "the same permutation"
    assert cell("rllib", "PPO later_epochs").endswith("the first in order")
    assert cell("torchrl", "SAC tanh_slope") == "takes u for 7.25"
    assert cell("torchrl", "TD3 target_noise") == cell("skrl", "TD3 target_noise_given") == 0.2
    assert cell("sbx", "TD3 order") == "C T C T A C T C T A"
    assert cell("skrl", "PPO value_gradient") == 10 * cell("ours", "PPO value_gradient") == 5
    assert cell("sbx", "PPO vf_coef_effect") < 1e-6
    assert cell("sbx", "PPO value_clipping_given") == "off"
    assert cell("sbx", "PPO kl_updates") == 20
    for library in ("sb3", "sb3_contrib"):
        assert cell(library, "SAC target_moves_of_40") == 40
    assert cell("rl_games", "PPO later_epochs") == "the same, never shuffled"
    assert cell("tianshou", "TD3 target_action_clipped").startswith("no")
    assert cell("skrl", "DQN epsilon") == "no exploration"
    assert cell("tianshou", "DQN epsilon") == "0"


def test_a_changed_cell_is_printed(capsys):
    peers.say_changes("sb3", {"PPO ent_coef": 0.0, "PPO adam_eps": 1e-5}, {"PPO ent_coef": 0.1})
    printed = capsys.readouterr().out
    assert "changed: sb3, PPO adam_eps: 1e-05 -> not measured\n" in printed
    assert "changed: sb3, PPO ent_coef: 0.0 -> 0.1\n" in printed


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0.6, "its last observation"),
        (-12, "nothing"),
        (-0.3, "the observation before"),
        (-3, "the next episode's first"),
        (-1.5148, "the next episode's first; runs on into it"),
        (0.5, "another: 0.5"),
    ],
)
def test_what_an_advantage_says(number, words):
    assert scripted.bootstrap_words(number) == words


def test_normalised_advantages_are_told_apart():
    advantages = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    inds = [0, 2, 5]
    for over in ("minibatch", "rollout"):
        for std in ("unbiased", "biased"):
            samples = [advantages[n] for n in inds]
            whole = samples if over == "minibatch" else advantages
            found = scripted.normalised(samples, whole, std)
            grad = -(found * [0.5, -0.5, 0.5]).mean()
            actions = [0, 0, 1, 1, 0, 0]
            assert scripted.normalisation(grad, advantages, actions, inds) == (over, std)


def test_the_first_update_is_theirs():
    """PPO with Stable-Baselines3's defaults: weights after an update from the same rollout."""
    difference, change = peers_first_update.compare("ppo_cartpole")
    assert difference < 1e-6 < 1e-4 < change


def test_the_first_update_of_sac_is_theirs():
    difference, change, gradients = peers_first_update.compare_sac(exact=True)
    assert difference < 1e-6 < 1e-4 < change
    assert max(gradients.values()) < 1e-5
    _, _, gradients = peers_first_update.compare_sac(exact=False)
    assert gradients["qf1"] < 1e-5 < gradients["actor"] < 1e-2
