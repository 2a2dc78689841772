"""Plays one episode with a trained agent: python docs/guides/agents.py RUN_DIR"""

import importlib
import sys

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete


# --8<-- [start:load]
def load(run_dir):
    checkpoint = torch.load(f"{run_dir}/checkpoint.pt", map_location="cpu", weights_only=True, mmap=True)
    if checkpoint["script"] == "ppo_godot":
        raise SystemExit("error: a game's agents play together. Play them with ppo_godot.py --evaluate")
    script = importlib.import_module(f"cleanrl_lite.{checkpoint['script']}")
    args = script.Args(**checkpoint["args"])
    env = script.make_env(args)
    obs_shape, actions = env.observation_space.shape, env.action_space
    obs_dim = obs_shape[0]
    match checkpoint["script"]:  # Agent(...) as in the script's section `setup`
        case "ppo" | "ppo_lstm" | "ppo_envpool" | "ppo_simple" | "vpg" | "a2c" | "dqn":
            agent = script.Agent(obs_dim, int(actions.n))
        case "c51":
            agent = script.Agent(obs_dim, int(actions.n), args.n_atoms, args.v_min, args.v_max)
        case "ppo_masked" | "ppo_selfplay":
            parts, choices = len(actions.nvec), int(max(actions.nvec))
            agent = script.Agent(obs_dim - parts * choices, parts, choices)  # the mask is behind the observation
        case "ppo_multiagent":  # masks and state are behind the agents' own observations
            sizes = len(actions.nvec), int(max(actions.nvec)), env.get_wrapper_attr("own_dim")
            agent = script.Agent(obs_dim - sizes[0] * sizes[1], *sizes, args.central_critic)
        case "ppo_continuous" | "ppo_continuous_envpool" | "ppo_continuous_mjx" | "ppo_continuous_adaptive":
            agent = script.Agent(obs_dim, actions.shape[0])
        case "ppo_continuous_asymmetric":
            agent = script.Agent(obs_dim, actions.shape[0], env.get_wrapper_attr("state_dim"), args.privileged_critic)
        case "ppo_hybrid":
            agent = script.Agent(obs_dim, actions.shape[0], env.get_wrapper_attr("choices"))
        case "ppo_image":
            discrete = isinstance(actions, Discrete)
            agent = script.Agent(obs_shape, int(actions.n) if discrete else actions.shape[0], discrete, args.bf16)
        case name if name.startswith("c51_atari"):
            agent = script.Agent(int(actions.n), args.n_atoms, args.v_min, args.v_max, args.bf16)
        case name if "_atari" in name:
            agent = script.Agent(int(actions.n), args.bf16)
        case "ppo_microrts":
            agent = script.Agent(*obs_shape[:2], min(args.max_orders, len(actions.nvec)))
        case "ddpg" | "td3" | "sac" | "sac_her":
            agent = script.Agent(obs_dim, actions, args.bf16)
    agent.load_state_dict(checkpoint["agent"])
    return agent, env


# --8<-- [end:load]
# --8<-- [start:play]
@torch.no_grad()
def play(agent, env, seed):
    obs, _ = env.reset(seed=seed)
    episodic_return, done = 0.0, False
    while not done:
        action = agent.act(torch.as_tensor(obs)[None])[0].numpy()[()]  # act() takes a batch of observations
        if isinstance(env.action_space, Box):  # actions of ppo_continuous may lie outside the bounds
            action = np.clip(action, env.action_space.low, env.action_space.high)
        obs, reward, terminated, truncated, _ = env.step(action)
        episodic_return, done = episodic_return + reward, terminated or truncated
    return episodic_return


# --8<-- [end:play]
if __name__ == "__main__":
    agent, env = load(sys.argv[1])
    print(play(agent, env, seed=10_001))  # the first episode of the evaluation of a run with --seed 1
