"""Protocol of worker and parent: commands, and blocks of shared memory.

Shared memory holds the time that steps took, then the blocks below: float32, one row per robot. Two
pipes carry commands, a byte each, and their answers, a line of JSON each: DONE, or the "error".
Quantities are in the project's convention (quaternions wxyz, angular velocity in the body frame,
joints in the card's order), positions relative to the middle of the robot's tile.
"""

import mmap

import numpy as np

BUILD = b"B"
"""Build the world of the world file, robots at the starts in EVENTS."""
STEP = b"S"
"""One control step towards TARGETS."""
STEP_WITH_EVENTS = b"E"
"""A control step, after the events in EVENTS."""
QUIT = b"Q"
DONE = b"{}\n"

JOINTS = 12
LEGS = 4

MOTION = (
    ("base_pos", 3),
    ("base_quat", 4),
    ("base_lin_vel_world", 3),
    ("base_ang_vel_body", 3),
    ("joint_pos", JOINTS),
    ("joint_vel", JOINTS),
)

TARGETS = (("joint_targets", JOINTS),)
"""rad, joint offsets included."""

EVENTS = (
    ("reset", 1),  # 1 where the robot starts
    ("push", 2),  # m/s in the world's x and y
    *MOTION,
    ("previous_targets", JOINTS),  # in force until the lag has passed
    ("periods", 2),  # how many periods of its tile the robot has crossed
    ("kp", JOINTS),  # Nm/rad, motor strength included
    ("kd", JOINTS),  # Nms/rad, motor strength included
    ("lag_substeps", 1),
)
"""Events of a robot; if `reset` is 0, only the push is read."""

STATE = (
    *MOTION,
    ("joint_torque", JOINTS),
    ("foot_pos", 3 * LEGS),
    ("foot_vel", 3 * LEGS),
    ("foot_force", 3 * LEGS),
    ("knee_force", 3 * LEGS),
    ("trunk_force", 3),
    ("barrier_force", 1),
    ("barrier_body_force", 1),
    ("periods", 2),
)

BLOCKS = (("targets", TARGETS), ("events", EVENTS), ("state", STATE))
FLOAT_BYTES = 4
CLOCK_BYTES = 8


def width(columns: "tuple[tuple[str, int], ...]") -> int:
    """Numbers a row."""
    return sum(count for _, count in columns)


def column_slices(columns: "tuple[tuple[str, int], ...]") -> "dict[str, slice]":
    """Slice of each quantity within a row, by name."""
    slices: dict[str, slice] = {}
    start = 0
    for name, count in columns:
        slices[name] = slice(start, start + count)
        start += count
    return slices


def memory_bytes(robots: int) -> int:
    """Size of the shared memory."""
    return CLOCK_BYTES + FLOAT_BYTES * robots * sum(width(columns) for _, columns in BLOCKS)


def clock_view(memory: mmap.mmap) -> np.ndarray:
    """(1,) float64 view: seconds spent on steps."""
    return np.ndarray((1,), dtype=np.float64, buffer=memory)


def block_views(memory: mmap.mmap, robots: int) -> "dict[str, np.ndarray]":
    """{name: (robots, width) float32} views of `memory_bytes(robots)` of shared memory."""
    views: dict[str, np.ndarray] = {}
    start = CLOCK_BYTES
    for name, columns in BLOCKS:
        shape = robots, width(columns)
        views[name] = np.ndarray(shape, dtype=np.float32, buffer=memory, offset=start)
        start += FLOAT_BYTES * robots * width(columns)
    return views
