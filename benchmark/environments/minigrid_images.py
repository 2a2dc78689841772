"""Tasks of MiniGrid whose view is an image of 56 x 56 pixels (pip install minigrid)."""

import gymnasium as gym


def make(env_id, **kwargs):
    from minigrid.wrappers import RGBImgPartialObsWrapper

    return RGBImgPartialObsWrapper(gym.make(env_id, **kwargs))


for task in ("Empty-Random-6x6", "DoorKey-5x5", "LavaGapS5"):
    gym.register(
        f"MiniGridImages-{task}-v0",
        make,
        kwargs={"env_id": f"minigrid:MiniGrid-{task}-v0"},
    )
