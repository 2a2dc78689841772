"""MinAtar's games, with sticky actions 0.1 and all six actions (pip install MinAtar==1.0.15)."""

from minatar.gym import register_envs

register_envs()  # gymnasium reads no entry points since 1.0
