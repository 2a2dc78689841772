"""ppo_multiagent.py: one actor for all agents, what the critics see, masks, what a team learns."""

import pytest
import torch
from torch.distributions import Categorical

from cleanrl_lite import ppo_multiagent
from tests import helpers

TEAM = "tests.probe_envs:ProbeTeam-v0"
FLAGS = dict(
    env_id=TEAM,
    num_envs=4,
    num_steps=32,
    num_minibatches=2,
    learning_rate=1e-2,
    clip_vloss=False,
    ent_coef=0.0,
)


def observation(signs, bonus, t=0):
    """As the probe's wrapper has it: three own observations, the state, a rectangle of masks."""
    masks = [1, 1, 0] * 3
    return torch.tensor([[*signs, bonus, t, *masks]], dtype=torch.float32)


def small_agent(central=True):
    """Two agents that see three numbers each, a state of two, four choices; with a policy that
    is not uniform."""
    agent = ppo_multiagent.Agent(2 * 3 + 2, 2, 4, 3, central)
    torch.nn.init.normal_(agent.actor[-1].weight)
    masks = torch.ones(50, 8)
    return agent, torch.cat([torch.randn(50, 8), masks], 1)


def test_one_actor_for_all_agents():
    """Agents that change places change their distributions; nobody sees what others see, or the
    state."""
    agent, obs = small_agent()
    dist, _ = agent(obs)
    # no sum over the agents
    assert dist.log_prob(dist.sample()).shape == (50, 2)
    assert dist.entropy().shape == (50, 2)
    for i in range(2):
        first = 3 * i
        own = agent.actor(obs[:, first : first + 3])
        torch.testing.assert_close(dist.logits[:, i], Categorical(logits=own).logits)
    assert torch.equal(agent.act(obs.double()), dist.logits.argmax(-1))
    other = obs.clone()
    other[:, 3:8] = torch.randn(50, 5)
    other_dist, _ = agent(other)
    torch.testing.assert_close(other_dist.logits[:, 0], dist.logits[:, 0])


def test_what_the_critics_see():
    """The state and nothing else; with local critics an agent's own observation and nothing
    else."""
    agent, obs = small_agent()
    _, values = agent(obs)
    torch.testing.assert_close(values, agent.critic(obs[:, 6:8]))
    agent, obs = small_agent(central=False)
    _, values = agent(obs)
    first = agent.critic(obs[:, :3])
    second = agent.critic(obs[:, 3:6])
    torch.testing.assert_close(values, torch.cat([first, second], 1))


def test_masks_belong_to_agents():
    agent, obs = small_agent()
    obs[:, 8:] = torch.tensor([1.0, 0, 1, 0, 0, 1, 1, -1])
    probs = agent(obs)[0].probs
    assert (probs[:, 0, [1, 3]] == 0).all()
    assert (probs[:, 1, [0, 3]] == 0).all()
    assert (probs[:, 0, [0, 2]] > 0).all()
    assert (probs[:, 1, [1, 2]] > 0).all()


def test_an_agent_without_a_valid_choice_has_no_gradient():
    """All agents share the actor: what it learns is what it learns from the others."""
    agent, obs = small_agent()
    obs[:, 8:] = torch.tensor([1.0, 1, 1, 1, 0, 0, 0, -1])
    dist, _ = agent(obs)
    actions = dist.sample()
    terms = dist.log_prob(actions) + dist.entropy()
    weight = agent.actor[-1].weight
    (idle,) = torch.autograd.grad(terms[:, 1].sum(), weight, retain_graph=True)
    (active,) = torch.autograd.grad(terms[:, 0].sum(), weight)
    assert not idle.any()
    assert active.any()


@pytest.mark.slow
@pytest.mark.parametrize("central", [True, False])
def test_a_team_learns(central, monkeypatch, tmp_path):
    """All right choices are taken from own observations; the bonus is in the state's value, not
    in that of agents."""
    agents = helpers.spy_on_agents(monkeypatch, "ppo_multiagent")
    _, returns = helpers.train(
        "ppo_multiagent",
        tmp_path,
        **FLAGS,
        central_critic=central,
        total_timesteps=6_016,
        eval_episodes=20,
    )
    assert set(returns) == {1.0, 2.0}
    for signs in ((-1, -1, 1), (1, -1, -1), (-1, 1, -1), (1, 1, 1)):
        right = [int(sign > 0) for sign in signs]
        assert agents[0].act(observation(signs, 0)).tolist() == [right]
        for bonus in (0, 1):
            _, values = agents[0](observation(signs, bonus))
            expected = [1 + bonus] if central else [1.5] * 3
            assert values[0].tolist() == pytest.approx(expected, abs=0.15)


def test_a_team_of_one_is_ppo(tmp_path):
    """Who sees the state: the same random numbers, so the same run as ppo.py's."""
    flags = dict(num_envs=4, num_steps=64, total_timesteps=1024, learning_rate=1e-3)
    team, returns = helpers.train(
        "ppo_multiagent", tmp_path / "team", env_id="tests.probe_envs:ProbeAlone-v0", **flags
    )
    plain, same = helpers.train("ppo", tmp_path / "ppo", env_id="CartPole-v1", **flags)
    assert returns == same
    mine, theirs = (helpers.scalars(run) for run in (team, plain))
    assert mine.keys() == theirs.keys()
    for tag in set(mine) - helpers.UNSEEDED:
        expected = [value for _, value in theirs[tag]]
        values = [value for _, value in mine[tag]]
        assert values == pytest.approx(expected, rel=1e-4, abs=1e-5)
