"""Robots: their cards, those in a store's schema, and their bodies in numbers.

A robot card is the task's facts about a legged robot beside its MJCF.

A store's schema holds the cards and MJCFs of the robots that are not shipped.

The descriptor is a robot's body in numbers, a further input of policies that drive many robots.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import atan2
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.rotations import wrapped
from gaitforge.collectors.timing import GRAVITY_MS2
from gaitforge.common.errors import DatasetError, failures, names_allowed
from gaitforge.common.files import join_inside, write_bytes_durably
from gaitforge.datasets.schema import consecutive_slices

# Robot cards.
ASSETS = Path(__file__).parent.parent / "assets"
CARD_FILE = "robot.json"
DEFAULT_ROBOT = "aliengo"
N_LEGS = 4
JOINTS_PER_LEG = 3
N_JOINTS = N_LEGS * JOINTS_PER_LEG
LEGS = ("FL", "FR", "RL", "RR")
JOINTS_OF_A_LEG = ("hip", "thigh", "calf")

KNEES = {
    "backward": (-1, -1, -1, -1),
    "forward": (1, 1, 1, 1),
    "inward": (-1, -1, 1, 1),
    "outward": (1, 1, -1, -1),
}
"""Directions of knees as signs of their bend, front legs first: -1 is backwards."""


class RobotError(ValueError):
    """A robot card, or its MJCF, that cannot be used."""


VARIATION: dict[str, tuple[float, float]] = {
    "size": (0.75, 1.35),
    "trunk_length": (0.85, 1.2),
    "trunk_width": (0.85, 1.2),
    "trunk_height": (0.85, 1.2),
    "thigh_length": (0.85, 1.2),
    "calf_length": (0.85, 1.2),
    "mass": (0.85, 1.2),
    "trunk_mass": (0.8, 1.25),
    "kp": (0.8, 1.25),
    "kd": (0.8, 1.25),
}
"""Ranges of the factors of a family's bodies: for every length, for the trunk's sizes (and so the
distances between legs), for links, for the density of everything and of the trunk, and for gains
after they are scaled to weight and leg length."""


@dataclass(frozen=True)
class RobotCard:
    """A quadruped with three joints a leg: hip roll, thigh pitch, calf pitch.

    Legs are FL, FR, RL, RR; arrays are (12,) in `joint_names` order. Offsets (4, 3) of each leg
    are in m along the trunk's axes while all joints are at 0: from the trunk's origin to the hip
    joint, from there to the thigh joint, to the knee and to the foot's centre. `joint_signs` is +1
    where a positive angle turns about +x (hip) or +y (thigh, calf), -1 where about -x or -y. Knees
    bend as in the default pose. `trunk_half_size_m` is the trunk's box along x, y and z, `width_m`
    the outline across the hips with vertical legs, `variation` the ranges of its family.
    `motor_names` are the joints in the order of the robot's motors, () if the card has none.
    """

    name: str
    path: Path
    mjcf_path: Path
    source: str
    trunk_body: str
    foot_geoms: tuple[str, ...]
    knee_geoms: tuple[str, ...]
    joint_names: tuple[str, ...]
    joint_signs: np.ndarray
    default_joint_pos_rad: np.ndarray
    joint_lower_rad: np.ndarray
    joint_upper_rad: np.ndarray
    kp_nm_per_rad: np.ndarray
    kd_nms_per_rad: np.ndarray
    torque_limit_nm: np.ndarray
    action_scale_rad: float
    mass_kg: float
    foot_radius_m: float
    hip_offset_m: np.ndarray
    thigh_offset_m: np.ndarray
    knee_offset_m: np.ndarray
    foot_offset_m: np.ndarray
    nominal_height_m: float
    trunk_half_size_m: tuple[float, float, float]
    width_m: float
    variation: dict[str, tuple[float, float]] = field(default_factory=lambda: dict(VARIATION))
    motor_names: tuple[str, ...] = ()

    @cached_property
    def leg_signs(self) -> np.ndarray:
        """(4, 2): +1 front, -1 rear; +1 left, -1 right."""
        return np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])

    @cached_property
    def link_lengths_m(self) -> np.ndarray:
        """(4, 2): of each leg, thigh joint to knee and knee to foot, in the plane of the leg."""
        offsets = np.stack([self.knee_offset_m, self.foot_offset_m], axis=1)
        return np.hypot(offsets[..., 0], offsets[..., 2])

    @cached_property
    def link_angles_rad(self) -> np.ndarray:
        """(4, 2): angles of thigh and calf with all joints at 0, in the plane of the leg.

        A link at angle a points along (-sin a, -cos a) in x and z; it turns about +y.
        """
        offsets = np.stack([self.knee_offset_m, self.foot_offset_m], axis=1)
        return np.array([[atan2(-x, -z) + 0.0 for x, _, z in leg] for leg in offsets])

    @cached_property
    def knee_bend_rad(self) -> np.ndarray:
        """(4,): angle from thigh to calf in the default pose, before it is wrapped."""
        thigh, calf = self.link_angles_rad.T
        turned = (self.joint_signs * self.default_joint_pos_rad)[2::JOINTS_PER_LEG]
        return turned + (calf - thigh)

    @cached_property
    def knee_signs(self) -> np.ndarray:
        """(4,): -1 where the knee bends backwards in the default pose, +1 where forwards."""
        turns = np.round(self.knee_bend_rad / (2 * np.pi))
        return np.where(self.knee_bend_rad - 2 * np.pi * turns < 0, -1.0, 1.0)

    @cached_property
    def leg_length_m(self) -> float:
        """Mean length of a straight front and rear leg, thigh joint to foot."""
        front = self.link_lengths_m[0].sum()
        rear = self.link_lengths_m[2].sum()
        return float((front + rear) / 2)

    @cached_property
    def feet_below_m(self) -> np.ndarray:
        """(4, 2): x and y in the trunk's frame of feet straight below the thigh joints."""
        thigh = self.hip_offset_m + self.thigh_offset_m
        y = thigh[:, 1] + (self.knee_offset_m + self.foot_offset_m)[:, 1]
        return np.stack([thigh[:, 0], y], axis=1)

    @cached_property
    def reach_m(self) -> float:
        """Height of the trunk's origin on straight legs, from the feet's centres."""
        drop = (self.hip_offset_m + self.thigh_offset_m)[:, 2]
        return float((self.link_lengths_m.sum(axis=1) - drop).min())

    @cached_property
    def weight_n(self) -> float:
        """Weight without randomisation."""
        return self.mass_kg * GRAVITY_MS2

    def wrong(self, message: str) -> RobotError:
        """An error about this robot, to raise."""
        return RobotError(f"robot '{self.name}': {message}")


_TEXTS = ("name", "mjcf", "source", "trunk_body")
_NAMES = {"foot_geoms": N_LEGS, "knee_geoms": N_LEGS, "joint_names": N_JOINTS}
_GAINS = ("kp_nm_per_rad", "kd_nms_per_rad", "torque_limit_nm")
_JOINTS = ("default_joint_pos_rad", "joint_lower_rad", "joint_upper_rad", *_GAINS)
_MIRRORED = {
    "hip_offset_m": (-1.0, -1.0, 1.0),
    **dict.fromkeys(("thigh_offset_m", "knee_offset_m", "foot_offset_m"), (1.0, -1.0, 1.0)),
}
"""Signs of a rear and a right leg's x and y relative to the front left leg's."""
_SIZES = ("action_scale_rad", "mass_kg", "foot_radius_m", "nominal_height_m", "width_m")
OPTIONAL_KEYS = ("joint_signs", "variation", "motor_names")
_NUMBERS = (*_JOINTS, *_SIZES, *_MIRRORED, "trunk_half_size_m")
_POSITIVE = (*_GAINS, *_SIZES, "trunk_half_size_m")
CARD_KEYS = (*_TEXTS, *_NAMES, *_NUMBERS)
_LARGEST = 1e6

_Wrong = Callable[[str], RobotError]


def list_robots() -> list[str]:
    """Names of the shipped robots."""
    return sorted(p.parent.name for p in ASSETS.glob(f"*/{CARD_FILE}"))


_MOTOR_NAMES = re.compile(rb'\n *"motor_names": \[[^]]*\],|,\n *"motor_names": \[[^]]*\](?=\n})')


def simulated_files(robot: RobotCard) -> tuple[bytes, bytes]:
    """The card without the motors' order, which nothing simulated depends on, and the MJCF."""
    return _MOTOR_NAMES.sub(b"", robot.path.read_bytes()), robot.mjcf_path.read_bytes()


def own_files(robots: Sequence[RobotCard]) -> list[bytes]:
    """The `simulated_files` of those robots that are not shipped."""
    shipped = list_robots()
    return [file for r in robots if r.name not in shipped for file in simulated_files(r)]


def find_robot(robot: str) -> Path:
    """Path of a shipped robot by name, or of a card or its folder; RobotError if there is none."""
    if robot in list_robots():
        return ASSETS / robot / CARD_FILE
    path = Path(robot)
    if robot and path.is_file():
        return path
    if robot and path.is_dir():
        if (path / CARD_FILE).is_file():
            return path / CARD_FILE
        raise RobotError(f"the folder {path} holds no {CARD_FILE}")
    raise RobotError(
        f"no robot '{robot}'; "
        + names_allowed(robot, list_robots(), f"or a card, or a folder with {CARD_FILE}")
    )


def is_robot(robot: str) -> bool:
    """Whether there is a robot of this name or path; its card may still be unfit."""
    try:
        return find_robot(robot).is_file()
    except RobotError:
        return False


def absolute_robot(robot: str) -> str:
    """A shipped robot's name, or the absolute path of another or of a folder of robots.

    RobotError if there is none.
    """
    if robot in list_robots():
        return robot
    if folders := _family(robot):
        return str(folders[0].parent.resolve())
    path = find_robot(robot).resolve()
    return str(path.parent if path.name == CARD_FILE else path)


def load_robots(robot: str) -> list[RobotCard]:
    """Robots by name or path, separated by commas; a folder of robots' folders stands for them all.

    RobotError as `load_robot`, and for two robots of one name: data know robots by name.
    """
    robots: list[RobotCard] = []
    for name in robot.split(","):
        folders = [] if name in list_robots() else _family(name)
        robots += [load_robot(str(folder)) for folder in folders] or [load_robot(name)]
    names = [card.name for card in robots]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RobotError(f"robot {', '.join(twice)} is named more than once")
    return robots


def _family(robot: str) -> list[Path]:
    """Sorted robots' folders in a folder, empty for a robot's own folder."""
    path = Path(robot)
    if not robot or not path.is_dir() or (path / CARD_FILE).is_file():
        return []
    return sorted(card.parent for card in path.glob(f"*/{CARD_FILE}"))


def load_robot(robot: str = "aliengo") -> RobotCard:
    """Load a robot card, as `find_robot` finds it; `physics.mujoco.model` checks the MJCF.

    RobotError for no such robot, or an incomplete or contradictory card.
    """
    path = find_robot(robot)
    message = f"robot card {path}: it cannot be read as JSON"
    with failures(message, OSError, ValueError, error=RobotError):
        raw = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(raw, dict):
        raise RobotError(f"robot card {path}: it has to be a JSON object")
    return _card(path, raw)


def _card(path: Path, raw: dict[str, Any]) -> RobotCard:
    name = raw.get("name", path.parent.name)

    def wrong(message: str) -> RobotError:
        return RobotError(f"robot '{name}': {message}")

    _check_keys(path, raw, wrong)
    for key in _TEXTS:
        if not isinstance(raw[key], str) or not raw[key]:
            raise wrong(f"{key} has to be a text")
    if not re.fullmatch(r"[\w.-]+", name):
        raise wrong("name has to consist of letters, digits, '_', '-' and '.'")
    if name in list_robots() and path.resolve() != (ASSETS / name / CARD_FILE).resolve():
        raise wrong("that is a shipped robot's name, and data know robots by name; choose another")
    for key, count in _NAMES.items():
        _check_names(raw[key], key, count, wrong)
    entries: dict[str, Any] = {key: raw[key] for key in _TEXTS if key != "mjcf"}
    entries |= {key: tuple(raw[key]) for key in _NAMES}
    entries |= {key: _numbers(raw[key], key, wrong) for key in _NUMBERS}
    entries["joint_signs"] = _numbers(raw.get("joint_signs", 1), "joint_signs", wrong)
    entries["variation"] = VARIATION | _ranges(raw.get("variation", {}), wrong)
    entries["motor_names"] = _motor_names(raw, wrong)
    try:
        mjcf_path = join_inside(path.parent, raw["mjcf"])  # a store of this robot keeps its text
    except DatasetError as error:
        raise wrong(f"its mjcf: {error}") from None
    card = RobotCard(path=path, mjcf_path=mjcf_path, **entries)
    _check_pose(card)
    if not card.mjcf_path.is_file():
        raise card.wrong(f"its MJCF {card.mjcf_path} does not exist")
    return card


def _check_keys(path: Path, raw: dict[str, Any], wrong: _Wrong) -> None:
    missing = [key for key in CARD_KEYS if key not in raw]
    if missing:
        raise wrong(f"its card {path.name} lacks {', '.join(missing)}")
    allowed = (*CARD_KEYS, *OPTIONAL_KEYS)
    unknown = sorted(set(raw) - set(allowed))
    if unknown:
        raise wrong(
            f"its card {path.name} has the unknown {', '.join(unknown)}; "
            f"allowed: {', '.join(allowed)}"
        )


def _check_names(names: Any, key: str, count: int, wrong: _Wrong) -> None:
    if not isinstance(names, list) or not all(isinstance(n, str) and n for n in names):
        raise wrong(f"{key} has to be a list of names")
    if len(names) != count:
        raise wrong(f"{key} needs {count} names, not {len(names)}")
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise wrong(f"{key} names {', '.join(twice)} more than once")


def _motor_names(raw: dict[str, Any], wrong: _Wrong) -> tuple[str, ...]:
    names = raw.get("motor_names")
    if names is None:
        return ()
    _check_names(names, "motor_names", N_JOINTS, wrong)
    if other := sorted(set(names) ^ set(raw["joint_names"])):
        raise wrong(f"motor_names has to name the joints of joint_names; differing: {other[0]}")
    return tuple(names)


def _numbers(value: Any, key: str, wrong: _Wrong) -> Any:
    """The key's numbers: a float, a tuple of three, or float64 (12,) or (4, 3)."""
    try:
        numbers = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.array(np.nan)
    if _not_a_number(value) or not (np.abs(numbers) < _LARGEST).all():
        raise wrong(f"{key} has to be a number or a list of numbers, all finite")
    if key in _POSITIVE and not (numbers > 0).all():
        raise wrong(f"{key} has to be positive")
    if key in _SIZES:
        if numbers.size != 1:
            raise wrong(f"{key} needs one number, not {numbers.size}")
        return float(numbers.ravel()[0])
    if key == "trunk_half_size_m":
        if numbers.shape != (3,):
            raise wrong(f"{key} needs 3 numbers, not {numbers.size}")
        return tuple(numbers.tolist())
    return _of_legs(numbers, key, wrong) if key in _MIRRORED else _of_joints(numbers, key, wrong)


def _ranges(value: Any, wrong: _Wrong) -> dict[str, tuple[float, float]]:
    """Ranges of `VARIATION` that the card replaces."""
    if not isinstance(value, dict) or not set(value) <= set(VARIATION):
        raise wrong(f"variation has to be an object with some of {', '.join(VARIATION)}")
    ranges = {}
    for name, ends in value.items():
        numbers = isinstance(ends, list) and len(ends) == 2 and not _not_a_number(ends)
        if not numbers or not 0 < ends[0] <= ends[1] < _LARGEST:
            raise wrong(f"variation: {name} has to be [low, high], both positive")
        ranges[name] = (float(ends[0]), float(ends[1]))
    return ranges


def _not_a_number(value: Any) -> bool:
    """Whether nested lists hold anything but numbers, such as JSON's true or a text."""
    if isinstance(value, list):
        return any(map(_not_a_number, value))
    return isinstance(value, bool) or not isinstance(value, int | float)


def _of_joints(numbers: np.ndarray, key: str, wrong: _Wrong) -> np.ndarray:
    """(12,) from one number for all joints, three for each leg's hip, thigh and calf, or twelve."""
    if numbers.ndim > 1 or numbers.size not in (1, JOINTS_PER_LEG, N_JOINTS):
        raise wrong(f"{key} needs 1, {JOINTS_PER_LEG} or {N_JOINTS} numbers, not {numbers.size}")
    if key == "joint_signs" and not (np.abs(numbers) == 1).all():
        raise wrong("joint_signs has to be 1 or -1")
    return np.resize(numbers, N_JOINTS)


def _of_legs(numbers: np.ndarray, key: str, wrong: _Wrong) -> np.ndarray:
    """(4, 3) from three numbers of the front left leg, mirrored, or from all twelve."""
    if numbers.shape == (N_LEGS, 3):
        return numbers
    if numbers.shape != (3,):
        raise wrong(
            f"{key} needs 3 numbers, the front left leg's, or {N_LEGS} lists of 3, "
            f"not {numbers.size} numbers"
        )
    return mirrored(key, numbers)


def mirrored(key: str, front_left: np.ndarray) -> np.ndarray:
    """(4, 3): all legs' offsets of a kind (a card's key) from the front left leg's (3,)."""
    legs = np.tile(front_left, (N_LEGS, 1))
    rear, right, _ = _MIRRORED[key]
    legs[2:, 0] *= rear
    legs[1::2, 1] *= right
    return legs


def _check_pose(card: RobotCard) -> None:
    """Check limits, default pose and leg lengths against each other."""
    for i, joint in enumerate(card.joint_names):
        low = card.joint_lower_rad[i]
        high = card.joint_upper_rad[i]
        default = card.default_joint_pos_rad[i]
        if low >= high:
            raise card.wrong(
                f"the lower limit of {joint}, {low:g}, is not below the upper, {high:g}"
            )
        if not low <= default <= high:
            raise card.wrong(
                f"the default position of {joint}, {default:g}, is outside its limits "
                f"{low:g} to {high:g}"
            )
    if not card.link_lengths_m.all():
        raise card.wrong("knee_offset_m and foot_offset_m need a length in x and z")
    reach = card.reach_m + card.foot_radius_m
    if card.nominal_height_m >= reach:
        raise card.wrong(
            f"nominal_height_m {card.nominal_height_m:g} is out of reach: "
            f"on straight legs it is {reach:g}"
        )


# Robots in a store's schema.
ROBOTS = "robots"
"""Attribute of a schema: name -> card and MJCF, both empty for a shipped robot."""
SEVERAL = "several"
"""`Schema.robot` of a store with several robots; the column `robot` says which one."""


def robots_attribute(robots: Sequence[RobotCard]) -> dict[str, dict[str, Any]]:
    """The attribute's value for these robots."""
    records: dict[str, dict[str, Any]] = {}
    for robot in robots:
        if robot.name in list_robots():
            records[robot.name] = {}
            continue
        card = json.loads(robot.path.read_text(encoding="utf-8"))
        records[robot.name] = {"card": card, "mjcf": robot.mjcf_path.read_text(encoding="utf-8")}
    return records


def stored_robot(attributes: Mapping[str, Any], name: str) -> RobotCard:
    """The robot of a store by name: shipped, or from the schema's attributes.

    The latter is written to a temporary folder of the user, whose name follows from the content.
    RobotError if it is neither, or cannot be written.
    """
    record = attributes.get(ROBOTS, {}).get(name)
    if not record:
        return load_robot(name)
    try:
        card = {**record["card"], "name": name, "mjcf": "robot.xml"}
        mjcf = str(record["mjcf"])
    except (TypeError, KeyError):
        raise RobotError(f"the store's robot '{name}' lacks its card or MJCF") from None
    files = {CARD_FILE: json.dumps(card, sort_keys=True), card["mjcf"]: mjcf}
    digest = hashlib.sha256("\n".join(files.values()).encode()).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"gaitforge-robot-{os.getuid()}-{digest[:32]}"
    with failures(f"robot '{name}' cannot be written to {folder}", OSError, error=RobotError):
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.lstat().st_uid != os.getuid():
            raise RobotError(f"{folder} belongs to another user; remove it, or set TMPDIR")
        for file, text in files.items():
            path = folder / file
            if not path.is_file() or path.read_bytes() != text.encode():
                write_bytes_durably(path, text.encode())
    return load_robot(str(folder))


# Bodies in numbers.
_MIDDLE_LENGTH_M = 0.5
_MIDDLE_MASS_KG = 25.0
"""Aliengo's leg length and mass, for scaling."""
_LENGTHS = (
    "body_front_thigh_m",
    "body_front_calf_m",
    "body_rear_thigh_m",
    "body_rear_calf_m",
    "body_trunk_half_length_m",
    "body_trunk_half_width_m",
    "body_trunk_half_height_m",
    "body_hip_x_m",
    "body_hip_y_m",
    "body_foot_y_m",
    "body_nominal_height_m",
)
_DRIVES = tuple(
    f"body_{joint}_{quantity}" for quantity in ("kp", "kd", "torque") for joint in JOINTS_OF_A_LEG
)
_BENDS = ("body_front_knee", "body_rear_knee")
DESCRIPTOR_NAMES = ("body_mass_kg", *_LENGTHS, *_DRIVES, *_BENDS)
"""Lengths are of left legs; gains and torque limits of the front left leg, in Nm/rad, Nms/rad and
Nm; knees: -1 where they bend backwards, +1 where forwards."""
_DRIVE_UNITS = ("Nm/rad", "Nms/rad", "Nm")
DESCRIPTOR_UNITS = (
    "kg",
    *["m"] * len(_LENGTHS),
    *(unit for unit in _DRIVE_UNITS for _ in JOINTS_OF_A_LEG),
    "1",
    "1",
)


def descriptor(robot: RobotCard) -> np.ndarray:
    """(DESCRIPTOR_DIM,) float64 in the order of DESCRIPTOR_NAMES, SI units."""
    links = robot.link_lengths_m
    hips = robot.hip_offset_m
    feet = robot.feet_below_m
    leg = slice(0, JOINTS_PER_LEG)
    front = 0
    rear = 2
    return np.array(
        [
            robot.mass_kg,
            *links[front],
            *links[rear],
            *robot.trunk_half_size_m,
            (hips[front, 0] - hips[rear, 0]) / 2,
            (hips[front, 1] + hips[rear, 1]) / 2,
            (feet[front, 1] + feet[rear, 1]) / 2,
            robot.nominal_height_m,
            *robot.kp_nm_per_rad[leg],
            *robot.kd_nms_per_rad[leg],
            *robot.torque_limit_nm[leg],
            robot.knee_signs[front],
            robot.knee_signs[rear],
        ]
    )


def body_vector(robot: RobotCard) -> np.ndarray:
    """(BODY_DIM,) float32: the body as networks read it, in the order of `BODY_SLICES`.

    Numbers of the order of 1: logarithms of lengths over leg lengths, of masses and leg lengths
    over Aliengo's, of gains and torque limits over weight times leg length (with the time
    sqrt(leg length / g)); angles in rad; signs.
    """
    leg = robot.leg_length_m
    moment = robot.weight_n * robot.leg_length_m
    values = descriptor(robot)
    lengths = values[5:12]  # the trunk's half length and all lengths after it
    time_s = np.sqrt(leg / GRAVITY_MS2)
    side = np.abs(robot.feet_below_m[:, 1] - robot.hip_offset_m[:, 1])
    links = np.concatenate([side[:, None], robot.link_lengths_m], axis=1)
    angles = robot.joint_signs * robot.default_joint_pos_rad
    angles = angles.reshape(N_LEGS, JOINTS_PER_LEG) + np.stack(
        [np.zeros(N_LEGS), robot.link_angles_rad[:, 0], np.diff(robot.link_angles_rad)[:, 0]],
        axis=1,
    )
    parts = {
        "body_trunk": [
            np.log(robot.mass_kg / _MIDDLE_MASS_KG),
            np.log(leg / _MIDDLE_LENGTH_M),
            *np.log(np.abs(lengths) / leg),
        ],
        "body_stiffness": np.log(robot.kp_nm_per_rad / moment),
        "body_damping": np.log(robot.kd_nms_per_rad / (moment * time_s)),
        "body_torque": np.log(robot.torque_limit_nm / moment),
        "body_link": np.log(links.ravel() / leg),
        "body_pose": wrapped(angles).ravel(),
        "body_sign": robot.joint_signs,
    }
    return np.concatenate([np.asarray(parts[name]) for name in BODY_SLICES]).astype(np.float32)


_PER_JOINT = ("stiffness", "damping", "torque", "link", "pose", "sign")
BODY_SLICES = consecutive_slices(
    {"body_trunk": 2 + 7, **{f"body_{name}": N_JOINTS for name in _PER_JOINT}}
)
"""Trunk: mass, leg length, the trunk's half sizes, hip x and y, foot y and nominal height. Of each
joint in the card's order: gains, torque limit, length of the link below, angle in the default pose
(of thighs from the vertical, of calves from the thigh) and sign."""
BODY_DIM = max(stop for _, stop in BODY_SLICES.values())
