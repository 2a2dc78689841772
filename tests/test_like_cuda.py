"""Scripts as on a GPU, in name only (like_cuda.py): each tensor where it belongs, no wait inside a
CUDA graph."""

import pytest
import torch

from tests import helpers, like_cuda

OTHERS = {"ppo_atari_multigpu", *helpers.MJX_SCRIPTS, *helpers.JAVA_SCRIPTS}
OTHERS |= set() if helpers.GODOT else {*helpers.GODOT_SCRIPTS}
SCRIPTS = [name for name in helpers.SCRIPTS if name not in OTHERS]


@pytest.mark.parametrize("script", helpers.others_slow(SCRIPTS, ["ppo", "dqn", "td3"]))
def test_scripts(script, fake_envpool, monkeypatch, tmp_path):
    """A run with --cuda-graph, where the script has it, its evaluations included, without
    checkpoints: these tensors cannot be pickled."""
    monkeypatch.setattr(torch, "save", lambda state, path, **options: path.touch())
    flags = {} if script in helpers.PLAIN_SCRIPTS else {"cuda_graph": True}
    with like_cuda.cuda():
        helpers.train(script, tmp_path, cuda=True, eval_every=64, **flags)
