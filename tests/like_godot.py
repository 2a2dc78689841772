"""A game as godot-rl's client sees one, without Godot: each of its agents is to answer the number
that it observes.

tests/like_godot.x86_64 starts it, with the client's flags and these:
--actions=continuous|discrete|mixed, --agents=N, --log=FILE (a line for each start, message and
answer) and --fault=, which the tests of wrong games ask for.
"""

import json
import os
import random
import socket
import sys
import time

options = dict(actions="continuous", agents="2", fault="", log=os.devnull)
options |= dict(word.removeprefix("--").split("=") for word in sys.argv[1:] if "=" in word)
rng = random.Random(int(options["env_seed"]))
num_agents = int(options["agents"])
CHOICE = dict(side=dict(size=3, action_type="discrete"))
NUMBER = dict(number=dict(size=1, action_type="continuous"))
ACTIONS = dict(
    continuous=NUMBER, discrete=CHOICE | dict(again=CHOICE["side"]), mixed=CHOICE | NUMBER
)


def observe():
    """`last` is the observation of an episode's last step, which pays most."""
    return dict(obs=[rng.uniform(-1, 1), 7.0], last=int(rng.random() < 0.25))


def reward(obs, action):
    """At most 2: 1 for a number like the observed one, or for the side on which it is; twice
    that at the end."""
    number = obs["obs"][0]
    rewards = []
    for name, value in action.items():
        side = (number > -1 / 3) + (number > 1 / 3)
        rewards.append(
            round(1 - abs(value[0] - number), 1) if name == "number" else float(value == side)
        )
    return sum(rewards) / len(rewards) * (1 + obs["last"])


def write(**line):  # of several games
    with open(options["log"], "a") as file:
        file.write(json.dumps(dict(line, pid=os.getpid())) + "\n")


def answer(message, state):
    kind = message["type"]
    if kind == "env_info":
        obs_space = dict(obs=dict(space="box", size=[2]), last=dict(space="discrete", size=2))
        if options["fault"] == "image":
            obs_space = dict(camera_2d=dict(space="box", size=[3, 36, 36]))
        action_space = [dict(ACTIONS[options["actions"]]) for _ in range(num_agents)]
        if options["fault"] == "differ":
            action_space[-1] = ACTIONS["mixed"]
        return dict(
            type=kind, n_agents=num_agents, observation_space=obs_space, action_space=action_space
        )
    rewards = [reward(obs, action) for obs, action in zip(state, message.get("action", []))]
    dones = [bool(obs["last"]) for obs in state]
    state[:] = [observe() for _ in range(num_agents)]
    return (
        dict(type="reset", obs=state)
        if kind == "reset"
        else dict(type="step", obs=state, reward=rewards, done=dones)
    )


def play(stream):
    state = []
    steps = 0
    while header := stream.read(4):
        message = json.loads(stream.read(int.from_bytes(header, "little")))
        write(got=message)
        steps += message["type"] == "action"
        if message["type"] == "close" or (options["fault"] == "dies" and steps == 40):
            return
        if message["type"] != "handshake":
            reply = answer(message, state)
            write(sent=reply)
            text = json.dumps(reply).encode()
            stream.write(len(text).to_bytes(4, "little") + text)
            stream.flush()


if __name__ == "__main__":
    write(start=sys.argv[1:])
    if options["fault"] == "silent":
        time.sleep(600)
    with socket.create_connection(("127.0.0.1", int(options["port"]))) as connection:
        play(connection.makefile("rwb"))
    if options["fault"] == "hangs":
        time.sleep(600)
