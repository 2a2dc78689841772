"""Plays one episode with a trained agent: python docs/guides/agents.py RUN_DIR, the run of ppo.py or sac.py."""

import sys

import torch

from cleanrl_lite import ppo, sac


# --8<-- [start:ppo]
def load_ppo(run_dir):
    checkpoint = torch.load(f"{run_dir}/checkpoint.pt", map_location="cpu", weights_only=True)
    env = ppo.make_env(ppo.Args(**checkpoint["args"]))
    agent = ppo.Agent(env.observation_space.shape[0], int(env.action_space.n))
    agent.load_state_dict(checkpoint["agent"])
    return agent, env


# --8<-- [end:ppo]
# --8<-- [start:sac]
def load_sac(run_dir):
    checkpoint = torch.load(f"{run_dir}/checkpoint.pt", map_location="cpu", weights_only=True, mmap=True)
    args = sac.Args(**checkpoint["args"])
    env = sac.make_env(args)
    agent = sac.Agent(env.observation_space.shape[0], env.action_space, args.bf16)
    agent.load_state_dict(checkpoint["agent"])
    return agent, env


# --8<-- [end:sac]
# --8<-- [start:play]
@torch.no_grad()
def play(agent, env, seed):
    obs, _ = env.reset(seed=seed)
    done = False
    while not done:
        action = agent.act(torch.as_tensor(obs)[None])[0].numpy()  # act() takes a batch of observations
        obs, reward, terminated, truncated, info = env.step(action if action.ndim else action.item())
        done = terminated or truncated
    return info["statistics"]["r"]


# --8<-- [end:play]
if __name__ == "__main__":
    script = torch.load(f"{sys.argv[1]}/checkpoint.pt", weights_only=True, mmap=True)["script"]
    agent, env = dict(ppo=load_ppo, sac=load_sac)[script](sys.argv[1])
    print(play(agent, env, seed=10_001))  # the first episode of the evaluation of a run with --seed 1
