"""Folders with a robot in them, as a user would hand one over: copies of Go1 with changes."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from gaitforge.collectors.robots.robot import CARD_FILE, RobotCard, find_robot, load_robot

NAME = "mine"
MJCF_FILE = "mine.xml"
MISSING = object()
"""A card entry's value that takes the entry out."""
GO1 = load_robot("go1")
_ORDER = ("FR", "FL", "RR", "RL")

Edits = Sequence[tuple[str, str]]


def robot_folder(folder: Path, card: dict[str, Any] | None = None, mjcf: Edits = ()) -> Path:
    """Write Go1, as robot `mine`, into a folder, with entries of its card and parts of its MJCF
    replaced."""
    text = GO1.mjcf_path.read_text()
    for old, new in mjcf:
        assert old in text, old
        text = text.replace(old, new)
    return write_robot(folder, text, card)


def write_robot(folder: Path, mjcf: str, card: dict[str, Any] | None = None) -> Path:
    """Write an MJCF and Go1's card with some entries replaced into a folder."""
    folder.mkdir(exist_ok=True)
    (folder / MJCF_FILE).write_text(mjcf)
    entries = json.loads(find_robot("go1").read_text())
    entries |= {"name": NAME, "mjcf": MJCF_FILE} | (card or {})
    entries = {key: value for key, value in entries.items() if value is not MISSING}
    (folder / CARD_FILE).write_text(json.dumps(entries))
    return folder


def family_of(robot: RobotCard, count: int, folder: Path) -> list[RobotCard]:
    """Write larger bodies of a robot's family into folders in `folder`, as stiff for their size."""
    return [_grown(robot, f"{robot.name}-0-{i:03d}", 1.03 + 0.03 * i, folder) for i in range(count)]


def _grown(robot: RobotCard, name: str, factor: float, folder: Path) -> RobotCard:
    """A body with every length times a factor."""
    spec = mujoco.MjSpec.from_file(str(robot.mjcf_path))
    for body in spec.bodies:
        body.pos = factor * body.pos
        body.ipos = factor * body.ipos
        body.mass *= factor**3
        body.inertia = factor**5 * body.inertia
        body.fullinertia = factor**5 * body.fullinertia
    for geom in spec.geoms:
        geom.pos = factor * geom.pos
        geom.size = factor * geom.size
        geom.fromto = factor * geom.fromto
    for joint in spec.joints:
        joint.pos = factor * joint.pos
    spec.compile()
    own = folder / name
    own.mkdir(parents=True)
    (own / f"{name}.xml").write_text(spec.to_xml())
    powers = {
        **dict.fromkeys(("hip_offset_m", "thigh_offset_m", "knee_offset_m", "foot_offset_m"), 1),
        **dict.fromkeys(("foot_radius_m", "nominal_height_m", "trunk_half_size_m", "width_m"), 1),
        "mass_kg": 3,
        **dict.fromkeys(("kp_nm_per_rad", "kd_nms_per_rad", "torque_limit_nm"), 4),
    }
    entries = json.loads(robot.path.read_text()) | {"name": name, "mjcf": f"{name}.xml"}
    for key, power in powers.items():
        entries[key] = np.multiply(factor**power, entries[key]).tolist()
    (own / CARD_FILE).write_text(json.dumps(entries))
    return load_robot(str(own))


def changed(key: str, index: int, value: Any) -> dict[str, Any]:
    """Go1's card entry with one item replaced."""
    items = list(json.loads(find_robot("go1").read_text())[key])
    items[index] = value
    return {key: items}


def collection_style_folder(folder: Path) -> Path:
    """Go1 as model collections write it.

    Legs in the order FR, FL, RR, RL; every shape collides with everything, by default; motors,
    sensors, a home pose, a floor that the feet are paired with, and another step.
    """
    tree = ET.fromstring(GO1.mjcf_path.read_text())
    for option in tree.iter("option"):
        option.set("timestep", "0.002")
    for geom in tree.iter("geom"):
        for bits in ("contype", "conaffinity"):
            geom.attrib.pop(bits, None)
    trunk = _one(tree, "worldbody/body")
    legs = {leg: _one(trunk, f"body[@name='{leg}_hip']") for leg in _ORDER}
    for leg in _ORDER:
        trunk.remove(legs[leg])
        trunk.append(legs[leg])
    ET.SubElement(_one(tree, "worldbody"), "geom", name="floor", type="plane", size="0 0 0.05")
    pairs = ET.SubElement(tree, "contact")
    motors, sensors = ET.SubElement(tree, "actuator"), ET.SubElement(tree, "sensor")
    for leg in _ORDER:
        ET.SubElement(pairs, "pair", geom1=f"{leg}_foot", geom2="floor")
        ET.SubElement(sensors, "touch", name=f"{leg}_touch", site=f"{leg}_sole")
        foot = _one(legs[leg], f".//body[@name='{leg}_calf']")
        ET.SubElement(foot, "site", name=f"{leg}_sole", pos="0 0 -0.213")
        for part in ("hip", "thigh", "calf"):
            joint = f"{leg}_{part}_joint"
            ET.SubElement(motors, "motor", name=f"{leg}_{part}", joint=joint)
    ET.SubElement(sensors, "jointpos", name="first", joint="FR_hip_joint")
    home = "0 0 0.3 1 0 0 0" + 4 * " 0 0.9 -1.8"
    ET.SubElement(ET.SubElement(tree, "keyframe"), "key", name="home", qpos=home)
    return write_robot(folder, ET.tostring(tree, encoding="unicode"))


def _one(element: ET.Element, path: str) -> ET.Element:
    found = element.find(path)
    assert found is not None, path
    return found
