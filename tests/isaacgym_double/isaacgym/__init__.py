"""A test double of NVIDIA's Isaac Gym: its tensor calls and conventions, on MuJoCo's physics.

It stands in where the real package, proprietary and fussy about its GPU, cannot run, for programs
that drive robots on the CPU pipeline. Call orders that the real package forbids or silently spoils
are refused with `GymMisuse`, and so is what MuJoCo cannot model faithfully. Where no source is
named, conventions are those of the public code of legged_gym and IsaacGymEnvs and of the
declarations in isaacgym-stubs.

Linear velocities are those of centres of mass, positions those of links' origins, as PhysX has them
(isaac-sim/IsaacLab#942 and #5400 on the same engine).
"""

import sys

if "torch" in sys.modules:
    raise ImportError("torch was imported before isaacgym: import isaacgym first")
