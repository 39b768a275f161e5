"""The humanoid's stored observation and action: names, places and units.

As in MoCapAct's files: the walker's numeric observables in alphabetical order.
"""

from gaitforge.datasets.schema import consecutive_slices

CONTROL_DT_S = 0.03
"""The clips' time step; six physics steps of 0.005 s."""

REF_STEPS = (1, 2, 3, 4, 5)
"""How many control steps ahead the observed reference poses lie."""

LOOK_AHEAD = REF_STEPS[-1]

_AXES = {
    "foot": "xz", "femur": "xyz", "tibia": "x", "toes": "x", "clavicle": "yz", "humerus": "xyz",
    "radius": "x", "wrist": "y", "hand": "xz", "fingers": "x", "thumb": "xz",
}  # fmt: skip
_SPINE = ("lowerback", "upperback", "thorax", "lowerneck", "upperneck", "head")

JOINT_NAMES: tuple[str, ...] = tuple(
    sorted(
        [f"{side}{part}r{axis}" for side in "lr" for part, axes in _AXES.items() for axis in axes]
        + [f"{part}r{axis}" for part in _SPINE for axis in "xyz"]
    )
)
"""The 56 hinges in the order of actions and observed joints: alphabetical, `<body>r<axis>`."""

N_JOINTS = len(JOINT_NAMES)
N_BODIES = 31
"""Tracked bodies: all but the root."""

_STEPS = len(REF_STEPS)
_WIDTHS = {
    "actuator_activation": N_JOINTS,
    "appendages_pos": 15,
    "body_height": 1,
    "end_effectors_pos": 12,
    "gyro_anticlockwise_spin": 1,
    "gyro_backward_roll": 1,
    "gyro_control": 3,
    "gyro_rightward_roll": 1,
    "head_height": 1,
    "joints_pos": N_JOINTS,
    "joints_vel": N_JOINTS,
    "joints_vel_control": N_JOINTS,
    "orientation": 9,
    "position": 3,
    "reference_appendages_pos": _STEPS * 15,
    "reference_ego_bodies_quats": _STEPS * N_BODIES * 4,
    "reference_rel_bodies_pos_global": _STEPS * N_BODIES * 3,
    "reference_rel_bodies_pos_local": _STEPS * N_BODIES * 3,
    "reference_rel_bodies_quats": _STEPS * N_BODIES * 4,
    "reference_rel_joints": _STEPS * N_JOINTS,
    "reference_rel_root_pos_local": _STEPS * 3,
    "reference_rel_root_quat": _STEPS * 4,
    "sensors_accelerometer": 3,
    "sensors_gyro": 3,
    "sensors_torque": 6,
    "sensors_touch": 10,
    "sensors_velocimeter": 3,
    "time_in_clip": 1,
    "torso_xvel": 1,
    "torso_yvel": 1,
    "veloc_forward": 1,
    "veloc_strafe": 1,
    "veloc_up": 1,
    "velocimeter_control": 3,
    "world_zaxis": 3,
}
OBSERVATION_SLICES = consecutive_slices(_WIDTHS)
"""Name -> (start, stop) of the 35 observables."""

OBS_DIM = sum(_WIDTHS.values())
