"""Every script as on a GPU, in name only (like_cuda.py): each tensor where it belongs, no wait
inside a CUDA graph."""

import numpy as np
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


@pytest.mark.parametrize("cuda, kind", [(True, "cuda"), (False, "cpu")])
def test_the_device(cuda, kind, tmp_path):
    with like_cuda.cuda():
        args = helpers.small_args("ppo", tmp_path, cuda=cuda)
        assert utils.setup(args).type == kind


def test_what_is_refused():
    with like_cuda.cuda():
        x = torch.zeros(3, device="cuda")
        assert (x.is_cuda, (x + 1).device.type, x.cpu().is_cuda, x.sum().item()) == (
            True,
            "cuda",
            False,
            0.0,
        )
        assert (
            torch.from_numpy(np.ones(3)).to("cuda").is_cuda
            and torch.nn.Linear(2, 2).to(x.device).weight.is_cuda
        )
        for wrong in (
            lambda: x + torch.ones(3),
            x.numpy,
            lambda: np.asarray(x),
            lambda: torch.ones(3)[x.long()],
        ):
            with pytest.raises(RuntimeError):
                wrong()
        inside = (
            x.sum().item,
            lambda: x[[0, 1]],
            x.cpu,
            lambda: x.copy_(torch.ones(3)),
            lambda: bool(x.any()),
        )
        for wrong in (
            *inside,
            lambda: torch.tensor(1.0, device="cuda"),
            lambda: torch.ones(3).to("cuda"),
        ):
            wrong()
            with pytest.raises(RuntimeError), like_cuda.graph(None):
                wrong()


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(x, marks=[pytest.mark.slow] * (x not in QUICK))
        for x in helpers.SCRIPTS
        if x not in OTHERS
    ],
)
def test_scripts(script, monkeypatch, tmp_path):
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


ACTS_IN_A_GRAPH = ["ddpg", "td3", "fast_td3", "sac", "tqc", "crossq", "sac_her"]


@pytest.mark.parametrize("script", helpers.others_slow(ACTS_IN_A_GRAPH, ["td3", "sac"]))
def test_each_action_comes_out_of_a_graph(script, monkeypatch, tmp_path):
    """But for the random ones at the start; without a graph, a GPU waits between its kernels."""
    acted = []

    def counting(run, function):
        def counted(*tensors):
            result = function(*tensors)
            acted.extend(result.keys() & {"actions"})
            return result

        return counted

    monkeypatch.setattr(utils.Run, "cuda_graph", counting)
    helpers.train(script, tmp_path)
    args = helpers.small_args(script, tmp_path)
    learning = range(0, args.total_timesteps, args.num_envs)
    assert len(acted) == sum(step >= args.learning_starts for step in learning) > 0
