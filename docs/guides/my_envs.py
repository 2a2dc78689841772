"""Environments that need a wrapper. Copy this file to the current directory, then for example:

python cleanrl_lite/ppo.py --env-id my_envs:MiniGrid-v0 \\
    --env-kwargs '{"env_id": "MiniGrid-Empty-5x5-v0"}'
"""

import gymnasium as gym


# --8<-- [start:minigrid]
def minigrid(env_id, **kwargs):
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(gym.make(env_id, **kwargs))  # without the text of the mission


gym.register("MiniGrid-v0", minigrid)


# --8<-- [end:minigrid]
# --8<-- [start:filter]
def only(env_id, keys, **kwargs):
    return gym.wrappers.FilterObservation(gym.make(env_id, **kwargs), keys)


gym.register("Only-v0", only)
# --8<-- [end:filter]
