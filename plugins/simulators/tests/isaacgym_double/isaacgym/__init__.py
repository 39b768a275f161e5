"""A test double of NVIDIA's Isaac Gym: the calls that the worker makes, on MuJoCo's physics.

The real package is proprietary and fussy about its GPU. Conventions are those of the public code of
legged_gym and IsaacGymEnvs; names and arguments are checked against isaacgym-stubs by another test.
What the real package forbids or silently spoils, and the worker could get wrong, is refused.

Linear velocities are those of centres of mass, positions those of links' origins, as PhysX has them
(isaac-sim/IsaacLab#942 and #5400 on the same engine).
"""

import sys

if "torch" in sys.modules:
    raise ImportError("torch was imported before isaacgym: import isaacgym first")
