"""What benchmark/measure/environments.py tries: what pip installs, and what check_env is given.

Behind "then" stand packages that are installed afterwards, without their dependencies.
my_envs is docs/guides/my_envs.py.
"""

CASES = {
    # gymnasium itself
    "": [
        """FrozenLake-v1 --env-kwargs '{"is_slippery": false}'""",
        "Taxi-v4",
        """CarRacing-v3 --env-kwargs '{"continuous": false}'""",
    ],
    # games and puzzles
    "flappy-bird-gymnasium==0.4.0": [
        """flappy_bird_gymnasium:FlappyBird-v0 --env-kwargs '{"use_lidar": false}'"""
    ],
    "minigrid==3.2.0": [
        """my_envs:MiniGrid-v0 --env-kwargs '{"env_id": "MiniGrid-Empty-5x5-v0"}'""",
        "minigrid:MiniGrid-Empty-5x5-v0",
    ],
    "popgym==1.0.7": ["popgym:popgym-RepeatPreviousEasy-v0"],
    "mo-gymnasium==1.3.2": ["mo_gymnasium:deep-sea-treasure-v0"],
    "gymnasium-2048==0.1.2": ["my_envs:Legal2048-v0"],
    "tetris-gymnasium==0.3.1": ["tetris_gymnasium.envs:tetris_gymnasium/Tetris"],
    "vizdoom==1.3.2": ["vizdoom.gymnasium_wrapper:VizdoomBasic-v1"],
    "nle==1.3.0": [
        """my_envs:Only-v0 --env-kwargs """
        """'{"env_id": "nle:NetHackScore-v0", "keys": ["glyphs", "blstats"]}'""",
        "nle:NetHackScore-v0",
    ],
    "stable-retro==1.0.1": ["my_envs:Retro-v0"],
    "gymnasium-search-race==4.1.1": [
        "gymnasium_search_race:gymnasium_search_race/SearchRaceDiscrete-v3"
    ],
    "crafter==1.8.3": ["my_envs:Crafter-v0"],
    "gymnasium-snake-game==0.2.1": ["gymnasium_snake_game:Snake-v1"],
    "gym-super-mario-bros==9.1.0": ["gym_super_mario_bros:SuperMarioBros-v0"],
    "minihack==1.0.2 setuptools<81": [
        """my_envs:Only-v0 --env-kwargs """
        """'{"env_id": "minihack:MiniHack-Room-5x5-v0", "keys": ["glyphs_crop", "blstats"]}'"""
    ],
    "memory-gym==1.0.2 then gymnasium==1.4.0": ["memory_gym:MortarMayhem-Grid-v0"],
    "jumanji==1.1.2": ["my_envs:Jumanji-v0 --seconds 60"],
    "shimmy[bsuite]==2.0.1": ["shimmy:bsuite/catch-v0"],
    "procgen2==0.10.7": ["procgen:procgen-coinrun-v0"],
    "griddly==1.6.7": ["griddly:GDY-Sokoban-v0"],
    "rubiks-cube-gym==0.5.2 then gymnasium==1.4.0": ["rubiks_cube_gym:rubiks-cube-222-v0"],
    "gymnasium-sudoku==0.3.5": ["gymnasium_sudoku:sudoku-v0"],
    "hcraft==2.0.1": ["hcraft:MineHcraft-CraftingTable-v1"],
    "gym-simplegrid==1.1.0": ["gym_simplegrid:SimpleGrid-8x8-v0"],
    # teams
    "lbforaging==2.0.0": [
        """my_envs:Team-v0 --env-kwargs '{"env_id": "lbforaging:Foraging-8x8-2p-1f-v3"}'"""
    ],
    "rware==2.0.0": ["""my_envs:Team-v0 --env-kwargs '{"env_id": "rware:rware-tiny-2ag-v2"}'"""],
    # roads, air, networks
    "highway-env==1.12.1": [
        "highway_env:parking-v0",
        """highway_env:highway-fast-v0 --env-kwargs '{"config": {"vehicles_count": 10}}'""",
    ],
    "bluesky-gym==0.2.0 numpy<2.4": ["my_envs:Descent-v0"],
    "mobile-env==2.1.0": ["mobile_env:mobile-small-central-v0"],
    "sumo-rl==1.4.5 eclipse-sumo": ["my_envs:Crossing-v0"],
    # health and minds
    "simglucose==0.2.11 setuptools<81 scipy<1.15 then gymnasium==1.4.0": ["my_envs:Glucose-v0"],
    "glucosim==0.1.1": ["glucosim:glucosim/ClosedLoop-v0"],
    "anesthesim==0.1.0": ["anesthesim:anesthesim/PropofolControl-v0"],
    "neurogym==2.3.1 then gymnasium==1.4.0": [
        "neurogym:PerceptualDecisionMaking-v0 --max-episode-steps 500"
    ],
    # robots
    "panda-gym==3.0.7": ["panda_gym:PandaReach-v3"],
    "pybullet-envs-gymnasium==0.6.0": ["pybullet_envs_gymnasium:HopperBulletEnv-v0"],
    "gymnasium-robotics==1.4.2 mujoco==4.0.0": [
        "gymnasium_robotics:PointMaze_UMaze-v3",
        "gymnasium_robotics:FetchReach-v4",
    ],
    "gymnasium-robotics==1.4.2 mujoco==3.3.7": ["gymnasium_robotics:FetchReach-v4"],
    "metaworld==3.1.1": ["""metaworld:Meta-World/MT1 --env-kwargs '{"env_name": "reach-v3"}'"""],
    "shimmy[dm-control]==2.0.1 mujoco==4.0.0": ["shimmy:dm_control/cheetah-run-v0"],
    "shimmy[dm-control]==2.0.1 mujoco==3.17.0": ["shimmy:dm_control/cheetah-run-v0"],
    "safety-gymnasium==1.0.0": ["safety_gymnasium:SafetyPointGoal1-v0"],
    "pyflyt==0.29.0": ["PyFlyt.gym_envs:PyFlyt/QuadX-Hover-v4"],
    "gym-hil==0.1.14": ["gym_hil:gym_hil/PandaPickCubeBase-v0"],
    "gym-aloha==0.1.5": ["gym_aloha:gym_aloha/AlohaTransferCube-v0"],
    "gym-xarm==0.1.1": ["gym_xarm:gym_xarm/XarmLift-v0"],
    "miniworld==2.1.0": [
        """my_envs:MiniWorld-v0 --env-kwargs '{"env_id": "MiniWorld-OneRoom-v0"}'"""
    ],
    "gym-pusht==0.1.8": ["gym_pusht:gym_pusht/PushT-v0"],
    "myosuite==3.0.0": ["myosuite:motorFingerPoseFixed-v0"],
    "fancy-gym==0.3.0": ["fancy_gym:fancy/Reacher5d-v0"],
    "evogym==2.0.0": ["evogym.envs:Walker-v0"],
    # others
    "gym-sailing==0.2.1": ["gym_sailing:SailboatDiscrete-v0"],
    "compiler-gym==0.2.5": ["compiler_gym:llvm-v0"],
    "carl-bench==1.1.1 then gymnasium==1.4.0": ["carl:carl/CARLCartPole-v0"],
    "pogema==1.4.0 then gymnasium==1.4.0": ["pogema:Pogema-v0"],
    # machines and energy
    "gym-electric-motor==3.0.3": [
        "gym_electric_motor:Cont-CC-PMSM-v0",
        """my_envs:Seeded-v0 --max-episode-steps 1000 --env-kwargs """
        """'{"env_id": "gym_electric_motor:Cont-CC-PMSM-v0"}'""",
    ],
    "pcgym==0.1.8": ["my_envs:Reactor-v0"],
    "citylearn==3.0.2": ["citylearn:CityLearn-v0"],
    "grid2op==1.12.6": ["my_envs:Grid-v0 --seconds 40"],
    "python-microgrid==1.4.1 numpy<2": ["my_envs:Microgrid-v0"],
    "gl-gym==0.3.2 then gymnasium==1.4.0": ["gl_gym:gl_gym/GreenLightTomato-v0"],
    "sinergym==3.12.2": ["sinergym:Eplus-demo-v1"],
    "gym-anm==2.0.1": ["gym_anm:ANM6Easy-v0 --max-episode-steps 1000"],
    # money and schedules
    "gym-anytrading==2.0.0": ["gym_anytrading:stocks-v0"],
    "gym-mtsim==2.0.0 pytz pandas<3": ["gym_mtsim:forex-hedge-v0"],
    "gym-trading-env==0.3.5": ["my_envs:Trading-v0"],
    "gym-invmgmt==0.2.1": ["gym_invmgmt:GymInvMgmt/Serial-v0"],
    "or-gym==0.5.0": ["or_gym:Knapsack-v0"],
    "or-gymnasium==0.1.0": ["or_gymnasium:Knapsack-v0", "or_gymnasium:Newsvendor-v0"],
    "jssenv==1.1.0": ["my_envs:JobShop-v0"],
}
