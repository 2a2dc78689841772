"""ppo_atari_multigpu.py: two processes are one, in what they learn, log and save."""

import json
import multiprocessing
import os
import socket
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

from cleanrl_lite import ppo_atari_multigpu, utils
from tests import helpers

SCRIPT, ENVS = "ppo_atari_multigpu", 4
FLAGS = dict(num_envs=ENVS, num_steps=8, total_timesteps=96, num_minibatches=2, update_epochs=2)
GAMES = json.dumps(dict(max_num_frames_per_episode=40))  # truncated after ten steps
FLAGS |= dict(env_id="CarnivalNoFrameskip-v4", env_kwargs=GAMES)  # they bring rewards early


def my_rank():
    return int(os.environ.get("RANK", 0))


def set_variables(names):
    os.environ.update(names)


class Pair:
    """Two processes that run jobs, functions of this module, as torchrun's processes would."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        # What both import is imported once; and neither has what this process did before.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self.pools = []
        for rank in "01":
            names = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_PORT=port)
            names |= dict(MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")
            pool = ProcessPoolExecutor(1, context, set_variables, (names,))
            self.pools.append(pool)

    def __call__(self, job, *args, **kwargs):
        """What the job returns in each; raises what one of them raised, the first one's first."""
        futures = [pool.submit(job, *args, **kwargs) for pool in self.pools]
        errors = [future.exception(400) for future in futures]
        for error in filter(None, errors):
            raise error
        return [future.result() for future in futures]

    def end(self):
        for pool in self.pools:
            for process in pool._processes.values():
                process.kill()  # one may wait for the other


@pytest.fixture(scope="module")
def pair():
    pair = Pair()
    yield pair
    pair.end()


# --- by direct calls


def learn(max_grad_norm):
    """Two steps of Adam on samples of which each process has its half: the weights after them, and
    the metrics."""
    torch.manual_seed(1)
    rank, world_size = ppo_atari_multigpu.join_processes(torch.device("cpu"))
    args = helpers.small_args(SCRIPT, "unused")
    agent = ppo_atari_multigpu.Agent(args, None, Discrete(4))
    adam = ppo_atari_multigpu.Adam(agent.parameters(), 1e-3, max_grad_norm, eps=1e-5)
    size = 12
    mine = slice(rank * size // world_size, (rank + 1) * size // world_size)
    metrics = []
    for _ in range(2):
        obs = torch.randint(256, (size, 4, 84, 84), dtype=torch.uint8)
        actions = torch.randint(4, (size,))
        rest = torch.randn(4, size)
        rest[2, :6] += 3  # the processes' advantages have different means
        with torch.no_grad():
            rest[0] = agent(obs)[0].log_prob(actions) + 0.05
        batch = ppo_atari_multigpu.Batch(*[x[mine] for x in (obs, actions, *rest)])
        loss, found = ppo_atari_multigpu.ppo_loss(args, agent, batch)
        found["losses/grad_norm"] = adam.minimize(loss)
        metrics.append({tag: x.item() for tag, x in found.items()})
    weights = torch.cat([param.detach().flatten() for param in agent.parameters()])
    return weights.numpy(), adam.exp_avg.numpy(), metrics


@pytest.mark.parametrize("max_grad_norm", helpers.others_slow([0.05, 100.0], [0.05]))
def test_two_halves_are_a_whole(pair, max_grad_norm):
    """Advantages are normalised by all samples; gradients are averaged, and then clipped, where
    their norm is too large."""
    weights, moments, metrics = learn(max_grad_norm)
    norms = [each["losses/grad_norm"] for each in metrics]
    assert 0.1 < min(norms)
    assert max(norms) < 50
    halves = pair(learn, max_grad_norm)
    for mine, mean, found in halves:
        assert np.abs(mine - weights).max() < 0.1 * 1e-3  # of a step
        np.testing.assert_allclose(mean, moments, rtol=1e-2, atol=1e-3 * np.abs(moments).max())
        assert [each["losses/grad_norm"] for each in found] == pytest.approx(norms, rel=1e-4)
    np.testing.assert_array_equal(halves[0][0], halves[1][0])
    for tag in metrics[0]:
        means = np.mean([[each[tag] for each in half[2]] for half in halves], 0)
        assert means == pytest.approx([each[tag] for each in metrics], rel=1e-3, abs=1e-5), tag


def begin_twice():
    """At the start, and after a resume."""
    ppo_atari_multigpu.join_processes(torch.device("cpu"))
    return [begin(step) for step in (0, 640)]


def begin(step):
    """What a process has after begin_together: step, weights, moments, games, random numbers."""
    args, agent = helpers.agent_of(SCRIPT, num_envs=2)
    adam = ppo_atari_multigpu.Adam(agent.parameters(), 1e-3)
    torch.nn.init.constant_(agent.critic.bias, 7 + my_rank())
    adam.exp_avg.fill_(my_rank() + 1)
    adam.step.fill_(5 - my_rank())
    envs = utils.Envs(args, ppo_atari_multigpu.Games(args))
    utils.seed_all(args.seed)
    run = SimpleNamespace(step=step if my_rank() == 0 else 0)
    ppo_atari_multigpu.begin_together(args, run, envs, agent, adam)
    for _ in range(20):
        envs.step(np.array([2, 2]))
    state = {name: x.clone() for name, x in {**agent.state_dict(), **adam.state_dict()}.items()}
    draws = np.random.random(), torch.rand(()).item()
    return run.step, state, [frames.tobytes() for frames in envs.obs], draws


def test_all_begin_where_the_first_does(pair):
    """With its weights, moments and step, but with games and random numbers of their own; other
    ones after a resume."""
    games = []
    for step, *both in zip((0, 640), *pair(begin_twice), strict=True):
        (first, state, one, draws), (second, same, other, others) = both
        assert first == second == step
        helpers.assert_same_state(same, state)
        assert state["critic.bias"] == 7
        assert state["exp_avg"].unique() == 1
        assert state["step"] == 5
        assert draws[0] != others[0]
        assert draws[1] != others[1]
        games.append((one, other))
        assert not {*one} & {*other}
    assert games[0][1] != games[1][1]


# --- whole runs


def train(runs_dir, **flags):
    """A small run; its directory, in the first process."""
    args = helpers.small_args(SCRIPT, runs_dir, **FLAGS, **flags)
    if my_rank() > 0:
        ppo_atari_multigpu.make_env = None  # it never evaluates
    record = helpers.main(SCRIPT, args)
    return record and record["dir"]


@pytest.mark.slow
def test_two_processes_make_one_run(pair, tmp_path):
    """The first one logs, evaluates and saves; steps and episodes are those of both, updates those
    of each."""
    both, none = pair(train, tmp_path, eval_every=32)
    assert none is None
    assert both == helpers.only_run(tmp_path)
    mine = helpers.scalars(both)
    assert [step for step, _ in mine["charts/episodic_length"]] == [37, 38, 39, 40, 77, 78, 79, 80]
    assert {value for _, value in mine["charts/episodic_return"]} > {0}
    assert [step for step, _ in mine["charts/learning_rate"]] == [32, 64, 96]
    assert [step for step, _ in mine["eval/episodic_return"]] == [32, 64, 96]
    state = helpers.load(both)
    assert state["global_step"] == 96
    assert state["adam"]["step"] == 12
