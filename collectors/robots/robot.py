"""Robot cards: what the task needs to know of a legged robot beside its MJCF."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collectors.timing import GRAVITY_MS2

ASSETS = Path(__file__).parent.parent / "assets"
CARD_FILE = "robot.json"
DEFAULT_ROBOT = "aliengo"
N_LEGS = 4
JOINTS_PER_LEG = 3
N_JOINTS = N_LEGS * JOINTS_PER_LEG
LEGS = ("FL", "FR", "RL", "RR")
JOINTS_OF_A_LEG = ("hip", "thigh", "calf")


class RobotError(ValueError):
    """A robot card, or its MJCF, that cannot be used."""


@dataclass(frozen=True)
class RobotCard:
    """A quadruped with three joints a leg: hip roll, thigh pitch, calf pitch.

    Legs are FL, FR, RL, RR; arrays are (12,) in `joint_names` order. `trunk_half_size_m` is the
    trunk's box along x, y and z, `width_m` the outline across the hips with vertical legs.
    """

    name: str
    path: Path
    mjcf_path: Path
    source: str
    trunk_body: str
    foot_geoms: tuple[str, ...]
    knee_geoms: tuple[str, ...]
    joint_names: tuple[str, ...]
    default_joint_pos_rad: np.ndarray
    joint_lower_rad: np.ndarray
    joint_upper_rad: np.ndarray
    kp_nm_per_rad: np.ndarray
    kd_nms_per_rad: np.ndarray
    torque_limit_nm: np.ndarray
    action_scale_rad: float
    mass_kg: float
    foot_radius_m: float
    hip_offset_m: tuple[float, float]
    thigh_offset_m: float
    thigh_length_m: float
    calf_length_m: float
    nominal_height_m: float
    trunk_half_size_m: tuple[float, float, float]
    width_m: float

    @property
    def leg_signs(self) -> np.ndarray:
        """(4, 2): +1 front, -1 rear; +1 left, -1 right."""
        return np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])

    @property
    def hip_positions_m(self) -> np.ndarray:
        """(4, 3): hip joints in the trunk frame."""
        xy = self.leg_signs * np.array(self.hip_offset_m)
        return np.concatenate([xy, np.zeros((N_LEGS, 1))], axis=1)

    @property
    def leg_length_m(self) -> float:
        """Length of a straight leg, hip to foot."""
        return self.thigh_length_m + self.calf_length_m

    @property
    def weight_n(self) -> float:
        """Weight without randomisation."""
        return self.mass_kg * GRAVITY_MS2

    def wrong(self, message: str) -> RobotError:
        """An error about this robot, to raise."""
        return RobotError(f"robot '{self.name}': {message}")


_TEXTS = ("name", "mjcf", "source", "trunk_body")
_NAMES = {"foot_geoms": N_LEGS, "knee_geoms": N_LEGS, "joint_names": N_JOINTS}
_ANGLES = ("default_joint_pos_rad", "joint_lower_rad", "joint_upper_rad")
_GAINS = ("kp_nm_per_rad", "kd_nms_per_rad")
"""A single gain holds for every joint."""
_LENGTHS = ("foot_radius_m", "thigh_offset_m", "thigh_length_m", "calf_length_m", "width_m")
_POSITIVE = {
    **dict.fromkeys(("torque_limit_nm", *_GAINS), N_JOINTS),
    **dict.fromkeys(("action_scale_rad", "mass_kg", "nominal_height_m", *_LENGTHS), 1),
    **{"hip_offset_m": 2, "trunk_half_size_m": 3},
}
_COUNTS = dict.fromkeys(_ANGLES, N_JOINTS) | _POSITIVE
CARD_KEYS = (*_TEXTS, *_NAMES, *_COUNTS)
_LARGEST = 1e6

_Wrong = Callable[[str], RobotError]


def list_robots() -> list[str]:
    """Names of the shipped robots."""
    return sorted(p.parent.name for p in ASSETS.glob(f"*/{CARD_FILE}"))


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
        f"no robot '{robot}'; allowed: {', '.join(list_robots())}, or a card, "
        f"or a folder with {CARD_FILE}"
    )


def absolute_robot(robot: str) -> str:
    """A shipped robot's name, or the absolute path of another; RobotError if there is none."""
    if robot in list_robots():
        return robot
    path = find_robot(robot).resolve()
    return str(path.parent if path.name == CARD_FILE else path)


def load_robot(robot: str = "aliengo") -> RobotCard:
    """Load a robot card, as `find_robot` finds it; `physics.mujoco.model_check` checks the MJCF.

    RobotError for no such robot, or an incomplete or contradictory card.
    """
    path = find_robot(robot)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RobotError(f"robot card {path}: it cannot be read as JSON: {error}") from None
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
    entries |= {key: _numbers(raw[key], key, count, wrong) for key, count in _COUNTS.items()}
    card = RobotCard(path=path, mjcf_path=path.parent / raw["mjcf"], **entries)
    _check_pose(card)
    if not card.mjcf_path.is_file():
        raise card.wrong(f"its MJCF {card.mjcf_path} does not exist")
    return card


def _check_keys(path: Path, raw: dict[str, Any], wrong: _Wrong) -> None:
    missing = [key for key in CARD_KEYS if key not in raw]
    if missing:
        raise wrong(f"its card {path.name} lacks {', '.join(missing)}")
    unknown = sorted(set(raw) - set(CARD_KEYS))
    if unknown:
        raise wrong(
            f"its card {path.name} has the unknown {', '.join(unknown)}; "
            f"allowed: {', '.join(CARD_KEYS)}"
        )


def _check_names(names: Any, key: str, count: int, wrong: _Wrong) -> None:
    if not isinstance(names, list) or not all(isinstance(n, str) and n for n in names):
        raise wrong(f"{key} has to be a list of names")
    if len(names) != count:
        raise wrong(f"{key} needs {count} names, not {len(names)}")
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise wrong(f"{key} names {', '.join(twice)} more than once")


def _numbers(value: Any, key: str, count: int, wrong: _Wrong) -> Any:
    """The key's numbers: one float, a tuple, or float64 (12,) in the order of the joints."""
    items = value if isinstance(value, list) else [value]
    if not all(
        isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < _LARGEST for x in items
    ):
        raise wrong(f"{key} has to be a number or a list of numbers, all finite")
    if key in _GAINS and len(items) == 1:
        items = items * count
    if len(items) != count:
        needs = f"{'1 or ' if key in _GAINS else ''}{count} numbers" if count > 1 else "one number"
        raise wrong(f"{key} needs {needs}, not {len(items)}")
    numbers = np.array(items, dtype=np.float64)
    if key in _POSITIVE and not (numbers > 0).all():
        raise wrong(f"{key} has to be positive")
    if count == N_JOINTS:
        return numbers
    return float(numbers[0]) if count == 1 else tuple(numbers.tolist())


def _check_pose(card: RobotCard) -> None:
    """Check limits, default pose and leg length against each other."""
    for i, joint in enumerate(card.joint_names):
        low, high = card.joint_lower_rad[i], card.joint_upper_rad[i]
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
        if i % JOINTS_PER_LEG == JOINTS_PER_LEG - 1 and default >= 0:
            raise card.wrong(
                f"the default position of {joint}, {default:g}, is not below 0: "
                "knees have to bend backwards"
            )
    if card.nominal_height_m >= card.leg_length_m:
        raise card.wrong(
            f"nominal_height_m {card.nominal_height_m:g} is out of reach: "
            f"the legs are {card.leg_length_m:g} long"
        )
