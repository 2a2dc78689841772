"""ppo_multiagent.py: one actor for all agents, what the critics see, masks, the loss, what a team
learns. test_rollouts.py has what a rollout holds."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from cleanrl_lite import ppo_multiagent, utils
from tests import helpers, probe_envs


def observation(signs, bonus, t=0):
    """As the probe's wrapper has it: three own observations, the state, a rectangle of masks."""
    masks = [1, 1, 0] * 3
    return torch.tensor([[*signs, bonus, t, *masks]], dtype=torch.float32)


def agent_and_obs(central=True):
    """Of the probe: three agents that see a number each, a state of two, three choices; with a
    policy that is not uniform."""
    args, agent = helpers.agent_of("ppo_multiagent", central_critic=central)
    torch.nn.init.normal_(agent.actor[-1].weight)
    return args, agent, torch.cat([torch.randn(50, 5), torch.ones(50, 9)], 1)


def test_observations_of_a_team():
    """Own ones, the state, the masks; in the environment's order."""
    envs = utils.make_envs(
        helpers.small_args("ppo_multiagent", "unused", num_envs=2), ppo_multiagent.make_env
    )
    for obs, env in zip(envs.obs, envs.env.envs, strict=True):
        team = env.unwrapped
        assert torch.equal(torch.from_numpy(obs[None]), observation(team.signs, team.bonus))
    with pytest.raises(SystemExit, match="observations must be Dict"):
        ppo_multiagent.make_env(helpers.small_args("ppo_multiagent", "", env_id="CartPole-v1"))


@torch.no_grad()
def test_one_actor_for_all_agents():
    """Agents that change places change their distributions; nobody sees what others see, or the
    state. No sum over the agents: each has a ratio of its own."""
    _, agent, obs = agent_and_obs()
    dist, _ = agent(obs)
    assert dist.log_prob(dist.sample()).shape == dist.entropy().shape == (50, 3)
    for i in range(3):
        own = agent.actor(obs[:, i : i + 1])
        torch.testing.assert_close(dist.logits[:, i], Categorical(logits=own).logits)
    assert torch.equal(agent.act(obs), dist.logits.argmax(-1))
    samples = np.stack([agent.sampler()(obs[:1].numpy())[0] for _ in range(4000)])
    frequencies = [np.bincount(column, minlength=3) / 4000 for column in samples.T]
    np.testing.assert_allclose(frequencies, dist.probs[0], atol=0.04)


@torch.no_grad()
def test_what_the_critics_see():
    """The state and nothing else: one value for the team. With local critics an agent's own
    observation and nothing else: one value for each."""
    _, agent, obs = agent_and_obs()
    torch.testing.assert_close(agent(obs)[1], agent.critic(obs[:, 3:5]))
    _, agent, obs = agent_and_obs(central=False)
    expected = torch.cat([agent.critic(obs[:, i : i + 1]) for i in range(3)], 1)
    torch.testing.assert_close(agent(obs)[1], expected)


def test_masks_belong_to_agents():
    """An invalid choice is never drawn. An agent without a valid one has no gradient: all share
    the actor, and what it learns is what it learns from the others."""
    _, agent, obs = agent_and_obs()
    obs[:, 5:] = torch.tensor([1.0, 0, 1, 0, 1, 1, 0, 0, 0])
    dist, _ = agent(obs)
    assert (dist.probs[:, [0, 1], [1, 0]] == 0).all()
    assert (dist.probs[:, [0, 0, 1, 1], [0, 2, 1, 2]] > 0).all()
    for actions in dist.sample(), torch.from_numpy(agent.sampler()(obs.numpy())):
        assert set(actions[:, 0].tolist()) == {0, 2}
        assert set(actions[:, 1].tolist()) == {1, 2}
    terms = dist.log_prob(actions) + dist.entropy()
    weight, bias = agent.actor[-1].parameters()
    (idle,) = torch.autograd.grad(terms[:, 2].sum(), weight, retain_graph=True)
    first, first_bias = torch.autograd.grad(terms[:, 0].sum(), [weight, bias])
    assert not idle.any()
    assert first.any()
    assert first_bias[1] == 0


@pytest.mark.parametrize("central", [True, False])
def test_the_loss_of_a_team(central):
    """Each agent's ratio, with the team's advantage or its own; a mean over all; in float64 by
    hand."""
    args, agent, obs = agent_and_obs(central)
    columns = 1 if central else 3
    actions = torch.randint(3, (50, 3))
    with torch.no_grad():
        logprobs = agent(obs)[0].log_prob(actions) + 0.3 * torch.randn(50, 3)
    old_values, advantages, returns = torch.randn(3, 50, columns)
    batch = ppo_multiagent.Batch(obs, actions, logprobs, old_values, advantages, returns)
    loss, metrics = ppo_multiagent.ppo_loss(args, agent, batch)

    flat = (advantages - advantages.mean()) / advantages.std()
    policy_loss, value_loss, entropy = 0.0, 0.0, 0.0
    for i in range(3):
        dist = Categorical(logits=agent.actor(obs[:, i : i + 1]).double())
        ratio = (dist.log_prob(actions[:, i]) - logprobs[:, i]).exp()
        gain = flat[:, 0 if central else i]
        policy_loss -= torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() / 3
        entropy += dist.entropy().mean() / 3
    for k in range(columns):
        value = agent.critic(obs[:, 3:5] if central else obs[:, k : k + 1])[:, 0].double()
        old, target = old_values[:, k], returns[:, k]
        clipped = old + (value - old).clamp(-0.2, 0.2)
        square = torch.maximum((value - target) ** 2, (clipped - target) ** 2)
        value_loss += 0.5 * square.mean() / columns
    expected = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
    assert metrics["losses/policy_loss"].item() == pytest.approx(policy_loss.item(), abs=1e-5)
    assert metrics["losses/value_loss"].item() == pytest.approx(value_loss.item(), rel=1e-5)
    params = [*agent.parameters()]
    grads = [torch.autograd.grad(x, params) for x in (loss, expected)]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_each_agent_has_the_rewards_and_ends_of_its_team(monkeypatch, tmp_path):
    compute_gae, step, seen = ppo_multiagent.compute_gae, probe_envs.Team.step, []

    def note(args, rewards, values, next_values, terminations, dones):
        seen.extend([rewards, terminations, dones])
        return compute_gae(args, rewards, values, next_values, terminations, dones)

    def step_and_end(self, action):
        obs, reward, *_, info = step(self, action)
        return obs, reward, *(self.np_random.random(2) < 0.3), info

    monkeypatch.setattr(ppo_multiagent, "compute_gae", note)
    monkeypatch.setattr(probe_envs.Team, "step", step_and_end)
    helpers.train("ppo_multiagent", tmp_path, central_critic=False)
    for array in seen[:3]:
        teams = array.reshape(len(array), -1, 3)
        assert (teams == teams[..., :1]).all() and (teams[:, 0] != teams[:, 1]).any()
