"""The stored observation, 70 numbers in the paper's order, and the experts' privileged one."""

import numpy as np

from gaitforge.collectors.robots.kinematics import N_COMMANDS
from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.collectors.rotations import cosine, sine
from gaitforge.collectors.scenarios.randomisation import N_STANDARD
from gaitforge.datasets.schema import consecutive_slices

_FIELDS: tuple[tuple[str, int, str, str], ...] = (
    ("projected_gravity", 3, "1", "unit vector of gravity in the trunk's frame (x forward, y left, "
     "z up); (0, 0, -1) when level"),
    ("joint_vel", 12, "rad/s", "joint velocities in joint order"),
    ("sin_joint_pos", 12, "1", "sine of the joint positions in joint order"),
    ("cos_joint_pos", 12, "1", "cosine of the joint positions in joint order"),
    ("base_ang_vel_body", 3, "rad/s", "angular velocity of the trunk in its own frame"),
    ("last_action", 12, "action", "the action of the step before, clipped as it was executed; "
     "zeros at the start"),
    ("command", N_COMMANDS, "see command", "the command in force, after its ramps"),
)  # fmt: skip
"""Name, width, unit and meaning of each part of the stored observation."""


POLICY_SLICES = consecutive_slices({name: width for name, width, _, _ in _FIELDS})
OBS_DIM = POLICY_SLICES["command"][1]
FIELD_UNITS = {name: unit for name, _, unit, _ in _FIELDS}
FIELD_MEANINGS = {name: meaning for name, _, _, meaning in _FIELDS}

SCAN_X_M = np.array([-0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8])
SCAN_Y_M = np.array([-0.3, -0.15, 0.0, 0.15, 0.3])
SCAN_POINTS = np.stack(np.meshgrid(SCAN_X_M, SCAN_Y_M, indexing="ij"), axis=-1).reshape(-1, 2)
"""(35, 2): points of the height scan in the heading frame, m."""
N_SCAN = len(SCAN_POINTS)

PRIVILEGED_SLICES = consecutive_slices(
    {
        "base_lin_vel_body": 3,
        "base_ang_vel_body": 3,
        "velocity_heading": 3,
        "projected_gravity": 3,
        "gravity_error": 3,
        "joint_pos_error": N_JOINTS,
        "joint_vel": N_JOINTS,
        "height_error": 1,
        "foot_contact": 4,
        "gait_clock_sin": 4,
        "gait_clock_cos": 4,
        "gait_clock_cycles": 1,
        "passage": 6,
        "height_scan": N_SCAN,
        "randomisation": N_STANDARD,
    }
)
PRIVILEGED_DIM = max(stop for _, stop in PRIVILEGED_SLICES.values())

NOISE_SLICES = consecutive_slices(
    {"projected_gravity": 3, "joint_vel": N_JOINTS, "joint_pos": N_JOINTS, "base_ang_vel_body": 3}
)
NOISE_DIM = max(stop for _, stop in NOISE_SLICES.values())
NOISE_SCALE = np.concatenate(
    [np.full(3, 0.05), np.full(N_JOINTS, 1.5), np.full(N_JOINTS, 0.01), np.full(3, 0.2)]
).astype(np.float32)
"""Half-widths of the uniform noise, in SI units: legged_gym's."""


def policy_observation(
    gravity: np.ndarray,
    joint_vel: np.ndarray,
    joint_pos: np.ndarray,
    base_ang_vel_body: np.ndarray,
    last_action: np.ndarray,
    command: np.ndarray,
    noise: np.ndarray,
) -> np.ndarray:
    """The (N, 70) float32 observation in raw SI units.

    Args:
        noise: (N, 30) in [-1, 1], scaled by `NOISE_SCALE`; added to positions before sin and cos,
            like an encoder's.
    """
    scaled = noise * NOISE_SCALE
    noises = {name: scaled[:, start:stop] for name, (start, stop) in NOISE_SLICES.items()}
    measured_pos = joint_pos + noises["joint_pos"]
    parts = {
        "projected_gravity": gravity + noises["projected_gravity"],
        "joint_vel": joint_vel + noises["joint_vel"],
        "sin_joint_pos": sine(measured_pos),
        "cos_joint_pos": cosine(measured_pos),
        "base_ang_vel_body": base_ang_vel_body + noises["base_ang_vel_body"],
        "last_action": last_action,
        "command": command,
    }
    return joined(parts, POLICY_SLICES)


def joined(parts: dict[str, np.ndarray], slices: dict[str, tuple[int, int]]) -> np.ndarray:
    """Blocks (N, ...) as one (N, D) float32 array, laid out by `slices`."""
    rows = len(next(iter(parts.values())))
    whole = np.empty((rows, max(stop for _, stop in slices.values())), dtype=np.float32)
    for name, (start, stop) in slices.items():
        whole[:, start:stop] = parts[name]
    return whole
