"""Write robots: their cards, and the inertias of bodies in their MJCFs."""

import json
from typing import Any

import mujoco
import numpy as np

from gaitforge.collectors.robots.robot import (
    CARD_KEYS,
    JOINTS_PER_LEG,
    N_JOINTS,
    N_LEGS,
    OPTIONAL_KEYS,
    VARIATION,
    RobotCard,
    mirrored,
)
from gaitforge.common.files import write_bytes_durably


def write_card(robot: RobotCard) -> None:
    """Write a card, durably, to its own path.

    It has one entry a line, and equal numbers of legs or joints once.
    """
    entries: dict[str, Any] = {}
    for key in (*CARD_KEYS, *OPTIONAL_KEYS):
        value = robot.mjcf_path.name if key == "mjcf" else getattr(robot, key)
        entries[key] = _short(key, value) if isinstance(value, np.ndarray) else value
    if entries["joint_signs"] == 1:
        del entries["joint_signs"]
    if entries["variation"] == VARIATION:
        del entries["variation"]
    if not entries["motor_names"]:
        del entries["motor_names"]
    lines = ",\n".join(f"  {json.dumps(key)}: {_text(value)}" for key, value in entries.items())
    write_bytes_durably(robot.path, f"{{\n{lines}\n}}\n".encode())


def _short(key: str, values: np.ndarray) -> Any:
    """The fewest numbers from which `load_robot` makes the same array."""
    if values.shape == (N_LEGS, 3):
        front_left = values[0]
        alike = np.array_equal(mirrored(key, front_left), values)
        return (front_left if alike else values).tolist()
    for count in (1, JOINTS_PER_LEG):
        if np.array_equal(np.resize(values[:count], N_JOINTS), values):
            return values[:count].tolist() if count > 1 else values[0].item()
    return values.tolist()


def _text(value: Any) -> str:
    """JSON; long lists have three items, lists of lists one list, objects one entry a line."""
    if isinstance(value, dict):
        rows = [f"{json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()]
        start, end = "{}"
    elif isinstance(value, list | tuple) and len(value) > N_LEGS:
        triples = [value[i : i + JOINTS_PER_LEG] for i in range(0, len(value), JOINTS_PER_LEG)]
        rows, (start, end) = [json.dumps(triple)[1:-1] for triple in triples], "[]"
    elif isinstance(value, list) and isinstance(value[0], list):
        rows, (start, end) = [json.dumps(item) for item in value], "[]"
    else:
        return json.dumps(value)
    return f"{start}\n    " + ",\n    ".join(rows) + f"\n  {end}"


def set_inertial(
    body: mujoco.MjsBody, mass: float, centre: np.ndarray, inertia: np.ndarray
) -> None:
    """Set a body's mass in kg, its centre (3,) and the inertia (3, 3) about it, in its frame."""
    body.explicitinertial = True
    body.mass = mass
    body.ipos = centre
    body.iquat = [1.0, 0.0, 0.0, 0.0]
    body.ialt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
    rows = (0, 1, 2, 0, 0, 1)
    columns = (0, 1, 2, 1, 2, 2)
    body.inertia = np.zeros(3)
    body.fullinertia = inertia[rows, columns]
