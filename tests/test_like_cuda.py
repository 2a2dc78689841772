"""Every script as on a GPU, in name only (like_cuda.py): each tensor where it belongs, no wait
inside a CUDA graph."""

import pytest
import torch

from cleanrl_lite import ppo_microrts, utils
from tests import helpers, like_cuda
from tests.test_microrts import March

OTHERS = {
    "ppo_atari_multigpu",
    *helpers.MJX_SCRIPTS,
    *([] if helpers.GODOT else helpers.GODOT_SCRIPTS),
}
QUICK = {"ppo", "dqn", "td3"}


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x not in QUICK))
        for x in helpers.SCRIPTS
        if x not in OTHERS
    ],
)
def test_scripts(script, fake_envpool, monkeypatch, tmp_path):
    """A run with --cuda-graph, where the script has it, its evaluation included, without
    checkpoints: these tensors cannot be pickled."""
    monkeypatch.setattr(ppo_microrts, "MicroRTS", March)
    goes_on = utils.Run.goes_on

    def without_saving(run, global_step, *rest, **values):
        run.last_save = global_step
        run.parts = {}
        return goes_on(run, global_step, *rest, **values)

    monkeypatch.setattr(utils.Run, "goes_on", without_saving)
    monkeypatch.setattr(torch, "save", lambda *what, **options: None)
    flags = {} if script in helpers.PLAIN_SCRIPTS else {"cuda_graph": True}
    with like_cuda.cuda():
        helpers.main(
            script, helpers.small_args(script, tmp_path, cuda=True, eval_every=64, **flags)
        )
