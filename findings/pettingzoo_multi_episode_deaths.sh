#!/usr/bin/env bash
# pettingzoo 1.27.0: MultiEpisodeParallelEnv tells no agent that it has died.
#
# Expected: several episodes one after the other; where an agent dies before the episode is over, it gets its
# termination, as from the environment itself and from MultiEpisodeEnv, the wrapper for turns. Both flags of all agents
# are set to false in every step but the last: an agent that has died is only missing from the next step. A learner that
# adds the value of the next observation unless an agent is terminated adds it at every death.
#
# Output seen on 2026-11-28 (two agents, the first dies in step 2 with a reward of -1, the episode ends with step 4):
#     the environment: step 2 terminated True False, step 4 terminated True
#     MultiEpisodeParallelEnv: step 2 terminated False False, step 4 terminated False
#     MultiEpisodeEnv: the first agent is terminated with its reward of -1: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "pettingzoo==1.27.0" "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec
from pettingzoo.utils.wrappers import MultiEpisodeEnv, MultiEpisodeParallelEnv


class Game(ParallelEnv):
    metadata = {"name": "game"}
    render_mode = None
    possible_agents = ["first", "second"]
    lasts = {"first": 2, "second": 4}

    def observation_space(self, agent):
        return spaces.Discrete(5)

    def action_space(self, agent):
        return spaces.Discrete(1)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = self.possible_agents[:], 0
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.steps += 1
        agents = self.agents
        dead = {agent: self.steps == self.lasts[agent] for agent in agents}
        self.agents = [agent for agent in agents if not dead[agent]]
        rewards = {agent: -float(dead[agent]) for agent in agents}
        return dict.fromkeys(agents, self.steps), rewards, dead, dict.fromkeys(agents, False), {a: {} for a in agents}


found = []
for name, env in (("the environment", Game()), ("MultiEpisodeParallelEnv", MultiEpisodeParallelEnv(Game(), 2))):
    env.reset()
    flags = [list(env.step(dict.fromkeys(env.agents, 0))[2].values()) for _ in range(4)]
    found.append((flags[1], flags[3]))
    print(f"{name}: step 2 terminated", *flags[1], end=", step 4 terminated ")
    print(*flags[3])
turns = MultiEpisodeEnv(parallel_to_aec(Game()), 2)
turns.reset()
told = False
for agent in turns.agent_iter(12):
    _, reward, terminated, _, _ = turns.last()
    told = told or (agent == "first" and terminated and reward == -1)
    turns.step(None if terminated else 0)
print("MultiEpisodeEnv: the first agent is terminated with its reward of -1:", told)
as_seen = found == [([True, False], [True]), ([False, False], [False])] and told
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
