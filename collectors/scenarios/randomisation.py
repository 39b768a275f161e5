"""Domain randomisation: which numbers are drawn for an episode, from which distributions.

Distributions of randomised quantities are read as they are written in plans.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, floor, isfinite, log
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypeVar, cast
from zlib import crc32

import numpy as np

from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.scenarios.quantities import QUANTITIES, Quantity
from gaitforge.common.errors import failures, nearest
from gaitforge.common.kernels import compiled
from gaitforge.common.seeding import generators

# Distributions.
_FORMS = {
    "fixed": "0.2",
    "uniform": "0.1:0.3",
    "log": "log:0.1:10",
    "normal": "normal:0:0.1:-0.3:0.3 (mean, deviation, ends)",
    "choice": "choice:0.2:0.5:0.9",
}
FORMS = ", ".join(_FORMS.values())
"""Examples of how a distribution is written."""


@dataclass(frozen=True)
class Distribution:
    """A distribution of one number.

    Attributes:
        kind: one of `_FORMS`; numbers: its parameters, as they are written.
        shares: whether the numbers are shares of a size of the robot, written with "%".
    """

    kind: str
    numbers: tuple[float, ...]
    shares: bool = False

    @classmethod
    def parsed(cls, text: str) -> "Distribution":
        """A distribution as it is written, see `FORMS`; ValueError for anything else."""
        words = text.replace(" ", "").split(":")
        kind = words.pop(0) if words[0] in _FORMS else ("fixed", "uniform")[len(words) > 1]
        percent = {word.endswith("%") for word in words}
        try:
            numbers = tuple(float(word.removesuffix("%")) for word in words)
        except ValueError:
            numbers = ()
        count = {"fixed": 1, "uniform": 2, "log": 2, "normal": 4}.get(kind, len(numbers))
        if (
            not numbers
            or len(numbers) != count
            or len(percent) > 1
            or not all(map(isfinite, numbers))
        ):
            raise ValueError(f"'{text}' is no distribution; such are: none, {FORMS}")
        shares = percent == {True}
        distribution = cls(
            kind, tuple(number / 100 for number in numbers) if shares else numbers, shares
        )
        if kind == "normal" and distribution.numbers[1] <= 0:
            raise ValueError(f"'{text}': a deviation is above 0")
        if kind == "log" and distribution.low <= 0:
            raise ValueError(f"'{text}': a log-uniform range is above 0")
        if kind != "choice" and distribution._ends[0] > distribution._ends[1]:
            raise ValueError(f"'{text}': the low end comes first")
        return distribution

    def __str__(self) -> str:
        numbers = [_written(number, self.shares) for number in self.numbers]
        words = numbers if self.kind in ("fixed", "uniform") else [self.kind, *numbers]
        return ":".join(words)

    @property
    def _ends(self) -> tuple[float, float]:
        if self.kind == "choice":
            return min(self.numbers), max(self.numbers)
        return self.numbers[-2:][0], self.numbers[-1]

    @property
    def low(self) -> float:
        """The least number."""
        return self._ends[0]

    @property
    def high(self) -> float:
        """The largest number."""
        return self._ends[1]

    def scaled(self, size: float) -> "Distribution":
        """The distribution of shares of a size; itself if its numbers are no shares."""
        if not self.shares:
            return self
        return Distribution(self.kind, tuple(size * number for number in self.numbers))

    def at(self, unit: float, whole: bool = False) -> float:
        """The quantile of `unit`, in [0, 1); `whole`: of whole numbers, both ends included."""
        low, high = self._ends
        if self.kind == "fixed" or low == high:
            return low
        if self.kind == "choice":
            return self.numbers[int(unit * len(self.numbers))]
        if self.kind == "uniform":
            return (
                float(floor(low + unit * (high - low + 1.0)))
                if whole
                else low + unit * (high - low)
            )
        if self.kind == "log":
            value = exp(log(low) + unit * (log(high) - log(low)))
            value = min(max(value, low), high)
        else:
            normal = NormalDist(*self.numbers[:2])
            first = normal.cdf(low)
            last = normal.cdf(high)
            # A range far in the tail has no probability left to divide.
            share = min(max(first + unit * (last - first), 1e-300), 1 - 1e-16)
            value = min(max(normal.inv_cdf(share), low), high)
        return float(round(value)) if whole else value


def _written(number: float, share: bool) -> str:
    """The shortest text that is read as the same number."""
    value, scale, unit = (100 * number, 100, "%") if share else (number, 1, "")
    text = f"{value:g}"
    return (text if float(text) / scale == number else repr(value)) + unit


# Numbers drawn for an episode.
NOMINAL = "none"
DEFAULT_NAME = "default"
HEAVY = "heavy"
"""Presets. In place of a distribution `none` is the quantity's nominal value."""
PRESET = "preset"
Value = TypeVar("Value")
Written = Mapping[str, str | float]
"""A randomisation as plans hold it, see `Randomisation.parsed`."""


@dataclass(frozen=True)
class Draw:
    """One drawn number: its name, and the quantity that it is, or is one of."""

    name: str
    label: str
    quantity: Quantity
    default: Distribution


DRAWS: tuple[Draw, ...] = tuple(
    Draw(quantity.name.format(label), label, quantity, Distribution.parsed(quantity.default))
    for quantity in QUANTITIES
    for label in quantity.labels or ("",)
)
DRAW_NAMES = tuple(draw.name for draw in DRAWS)
DRAW_INDEX = {name: i for i, name in enumerate(DRAW_NAMES)}
N_DRAWS = len(DRAWS)
N_STANDARD = DRAW_INDEX["joint_offset_11_rad"] + 1
"""The first draws: every store has them, experts see them, and they are drawn together."""
GROUPS = {
    group: [i for i, draw in enumerate(DRAWS) if draw.quantity.group == group]
    for group in dict.fromkeys(quantity.group for quantity in QUANTITIES)
}
"""Quantity -> its draws."""


def indices(name: str) -> slice:
    """The draws of a quantity."""
    return slice(GROUPS[name][0], GROUPS[name][-1] + 1)


COM_OFFSET = slice(DRAW_INDEX["com_offset_x_m"], DRAW_INDEX["com_offset_z_m"] + 1)
PAYLOAD_AT = slice(DRAW_INDEX["payload_x_m"], DRAW_INDEX["payload_z_m"] + 1)
JOINT_OFFSET = indices("joint_offset_rad")
JOINT_STRENGTH = indices("joint_strength")

_NOMINAL = np.array([draw.quantity.nominal for draw in DRAWS])
_LOW = np.array([draw.default.low for draw in DRAWS[:N_STANDARD]])
_HIGH = np.array([draw.default.high for draw in DRAWS[:N_STANDARD]])
_FURTHER = 0xD4A3


@dataclass(frozen=True)
class Randomisation:
    """The distributions of an episode's draws.

    Attributes:
        changed: name of a draw -> its distribution, where it is not the default.
    """

    changed: Mapping[str, Distribution]

    def __post_init__(self) -> None:
        for name, distribution in self.changed.items():
            _check(DRAWS[_index(name)].quantity, name, distribution)

    @classmethod
    def parsed(cls, values: Mapping[str, object]) -> "Randomisation":
        """From the name of a quantity, or of one of its draws, -> distribution as it is written.

        `preset`: none, default, heavy or a JSON file of such names; the others change it.

        Raises:
            ValueError: no such quantity or preset, no distribution, or numbers that no robot can
                have.
        """
        changed: dict[str, Distribution] = {}
        # Quantities first: one of their draws may differ.
        for name, value in sorted(expanded(values).items(), key=lambda item: item[0] not in GROUPS):
            for index in GROUPS.get(name) or [_index(name)]:
                draw = DRAWS[index]
                changed[draw.name] = _checked(draw.quantity, name, str(value))
        order = (name for name in DRAW_NAMES if name in changed)
        return cls({n: changed[n] for n in order if changed[n] != DRAWS[DRAW_INDEX[n]].default})

    @classmethod
    def of_schema(cls, declared: Mapping[str, Mapping[str, Any]]) -> "Randomisation":
        """Randomisation of a store, from its schema's declaration (see `declared`)."""
        texts = {
            name: entry["distribution"]
            for name, entry in declared.items()
            if "distribution" in entry
        }
        return cls.parsed(texts)

    def written(self) -> dict[str, str]:
        """Changed distributions as text; draws of a quantity that are alike under its name."""
        texts = {name: str(distribution) for name, distribution in self.changed.items()}
        for group, draws in GROUPS.items():
            names = [DRAW_NAMES[i] for i in draws]
            alike = {texts.get(name) for name in names}
            if len(names) > 1 and len(alike) == 1 and alike != {None}:
                texts[group] = alike.pop() or ""
                for name in names:
                    del texts[name]
        return texts

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The draws that stores keep: the standard ones, and those that were changed."""
        return tuple(n for i, n in enumerate(DRAW_NAMES) if i < N_STANDARD or n in self.changed)

    def declared(self, *robots: RobotCard) -> dict[str, dict[str, object]]:
        """Draw -> unit and range over robots, as schemas hold them; if changed, more of it."""
        tree: dict[str, dict[str, object]] = {}
        for name in self.names:
            draw = DRAWS[DRAW_INDEX[name]]
            text = dict[str, str]()
            if name in self.changed:
                meaning = draw.quantity.meaning.format(draw.label.replace("_", " "))
                text |= {"distribution": str(self.changed[name]), "meaning": meaning}
            ends = [self._of(draw, robot) for robot in robots]
            low = min(distribution.low for distribution in ends)
            high = max(distribution.high for distribution in ends)
            if draw.quantity.whole:
                low = int(low)
                high = int(high)
            tree[name] = {"unit": draw.quantity.unit, "low": low, "high": high, **text}
        return tree

    def ends(self, robot: RobotCard) -> tuple[np.ndarray, np.ndarray]:
        """(N_DRAWS,) each: the least and the largest of each draw."""
        ranges = [self._of(draw, robot) for draw in DRAWS]
        return np.array([span.low for span in ranges]), np.array([span.high for span in ranges])

    def draw(self, rng: np.random.Generator, seed: int, robot: RobotCard) -> np.ndarray:
        """(N_DRAWS,) an episode's draws, in the order of `DRAWS`.

        The standard ones come from `rng`, which is left in the same state whatever was changed;
        each of the others from the seed and its name, so that new quantities change no old one.
        """
        return self.values(rng.random((1, N_STANDARD)), [seed], [robot])[0]

    def values(
        self, units: np.ndarray, seeds: Sequence[int], robots: Sequence[RobotCard]
    ) -> np.ndarray:
        """(K, N_DRAWS) draws of K episodes, each with a seed and a robot; see `draw`.

        Args:
            units: (K, N_STANDARD) uniform numbers in [0, 1) for the standard draws.
        """
        if not any(distribution.shares for distribution in self.changed.values()):
            return _values(self._table_of_all, units, seeds)
        values = np.empty((len(seeds), N_DRAWS))
        for robot in {id(robot): robot for robot in robots}.values():
            rows = [k for k, other in enumerate(robots) if other is robot]
            table = _table([self._of(draw, robot) for draw in DRAWS])
            values[rows] = _values(table, units[rows], [seeds[k] for k in rows])
        return values

    @cached_property
    def _table_of_all(self) -> "_Table":
        return _table([self.changed.get(draw.name, draw.default) for draw in DRAWS])

    def _of(self, draw: Draw, robot: RobotCard) -> Distribution:
        distribution = self.changed.get(draw.name, draw.default)
        size = draw.quantity.share_of
        return distribution if size is None else distribution.scaled(size(robot))


_Table = tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[int, Distribution]]]
"""Low and high ends (N_DRAWS,), which standard draws are whole, and the draws that are neither
fixed nor standard and uniform."""


def _values(table: _Table, units: np.ndarray, seeds: Sequence[int]) -> np.ndarray:
    low, high, whole, special_draws = table
    values = np.tile(low, (len(seeds), 1))
    first = low[:N_STANDARD]
    span = high[:N_STANDARD] - first
    whole_values = np.floor(first + units * (span + 1.0))
    values[:, :N_STANDARD] = np.where(whole, whole_values, first + units * span)
    for index, distribution in special_draws:
        draw = DRAWS[index]
        if index < N_STANDARD:
            of_draw = units[:, index].tolist()
        else:
            name = crc32(draw.name.encode())
            rngs = generators([(_FURTHER, seed, name) for seed in seeds])
            of_draw = [rng.random() for rng in rngs]
        values[:, index] = [distribution.at(unit, draw.quantity.whole) for unit in of_draw]
    return values


def _table(distributions: list[Distribution]) -> _Table:
    low = np.array([distribution.low for distribution in distributions])
    high = np.array([distribution.high for distribution in distributions])
    whole = np.array([draw.quantity.whole for draw in DRAWS[:N_STANDARD]])
    special_draws = []
    for index, distribution in enumerate(distributions):
        if distribution.kind == "fixed" or low[index] == high[index]:
            high[index] = low[index]
        elif index >= N_STANDARD or distribution.kind != "uniform":
            special_draws.append((index, distribution))
    whole &= high[:N_STANDARD] > low[:N_STANDARD]
    return low, high, whole, special_draws


DEFAULT = Randomisation({})


def expanded(values: Mapping[str, object]) -> dict[str, object]:
    """A randomisation as it is written, with the entries of its `preset` in place of that."""
    entries = {name: value for name, value in values.items() if name != PRESET}
    return changed_by(_preset(str(values[PRESET])) if PRESET in values else {}, entries)


def changed_by(written: Mapping[str, Value], changes: Mapping[str, Value]) -> dict[str, Value]:
    """A randomisation as it is written, with changes.

    A quantity's change counts for all its draws, also for those that are written one by one.
    """
    chosen = {DRAW_NAMES[index] for name in changes for index in GROUPS.get(name, ())}
    return {name: value for name, value in written.items() if name not in chosen} | dict(changes)


def _preset(name: str) -> dict[str, object]:
    if name == NOMINAL:
        return {quantity.group: NOMINAL for quantity in QUANTITIES}
    if name in (DEFAULT_NAME, HEAVY):
        return {e.group: e.default if name == DEFAULT_NAME else e.heavy for e in QUANTITIES}
    if not Path(name).is_file():
        raise ValueError(f"no randomisation and no file '{name}'; there are none, default, heavy")
    with failures(f"{name} is no JSON file", ValueError, error=ValueError):
        tree = json.loads(Path(name).read_text())
    if not isinstance(tree, dict) or PRESET in tree:
        raise ValueError(f"{name} has to be an object of names and distributions")
    return cast(dict[str, object], tree)


def set_randomisation(plan: Any) -> None:
    """Write the randomisation of a frozen plan in its shortest form; ValueError as `parsed`."""
    written = Randomisation.parsed(plan.randomisation).written()
    object.__setattr__(plan, "randomisation", written)


def nominal_draws() -> np.ndarray:
    """(N_DRAWS,) the robot without randomisation."""
    return _NOMINAL.copy()


def _limits() -> tuple[np.ndarray, np.ndarray]:
    """(N_DRAWS,) lowest and highest allowed value of each draw, finite; see `Range`."""
    ranges = [draw.quantity.allowed for draw in DRAWS]
    low = [np.nextafter(r.low, np.inf) if r.above or r.low == -np.inf else r.low for r in ranges]
    high = [
        np.nextafter(r.high, -np.inf) if r.below or r.high == np.inf else r.high for r in ranges
    ]
    return np.array(low), np.array(high)


_LOWEST, _HIGHEST = _limits()


def check_draws(robot: RobotCard, trunk_kg: float, draws: np.ndarray) -> None:
    """RobotError unless a robot can have draws (N_DRAWS,).

    Back ends call it at a reset. trunk_kg: the trunk's nominal mass; inertia grows with the mass.
    """
    mass = trunk_kg + draws[DRAW_INDEX["base_mass_offset_kg"]]
    if mass <= 0:
        raise robot.wrong(
            f"base_mass_offset_kg {mass - trunk_kg:g} leaves {mass:.3g} of {trunk_kg:.3g} kg of "
            f"'{robot.trunk_body}'; its mass has to stay positive: choose another randomisation"
        )
    if _are_within(draws, _LOWEST, _HIGHEST):
        return
    for draw, value in zip(DRAWS, draws.tolist(), strict=True):
        if value not in draw.quantity.allowed:
            raise robot.wrong(f"no robot can have {draw.name} {value:g}: {draw.quantity.why}")


@compiled
def _are_within(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> bool:
    """Whether all values are numbers between their ends; one call, as resets make many."""
    are_within = True
    for k in range(len(values)):
        are_within &= low[k] <= values[k] <= high[k]
    return are_within


def drawn_gains(robot: RobotCard, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kp and kd (12,) of a robot with draws (N_DRAWS,), motor strength included."""
    strength = draws[DRAW_INDEX["motor_strength"]] * draws[JOINT_STRENGTH]
    kp = robot.kp_nm_per_rad * draws[DRAW_INDEX["kp_factor"]] * strength
    return kp, robot.kd_nms_per_rad * draws[DRAW_INDEX["kd_factor"]] * strength


def standardised(draws: np.ndarray) -> np.ndarray:
    """(..., N_STANDARD) float32 standard draws, their default ranges scaled to [-1, 1]."""
    standard = draws[..., :N_STANDARD]
    return ((standard - _LOW) / (_HIGH - _LOW) * 2.0 - 1.0).astype(np.float32)


def _index(name: str) -> int:
    if name not in DRAW_INDEX:
        near = nearest(name, [*GROUPS, *DRAW_NAMES])
        hint = f"did you mean '{near}'?" if near else f"there are {', '.join(GROUPS)}"
        raise ValueError(f"nothing is randomised by the name '{name}'; {hint}")
    return DRAW_INDEX[name]


def _checked(quantity: Quantity, name: str, text: str) -> Distribution:
    if text.lower() == NOMINAL:
        text = f"{quantity.nominal:g}"
    with failures(f"randomisation of {name}", ValueError, error=ValueError):
        distribution = Distribution.parsed(text)
    _check(quantity, name, distribution)
    return distribution


def _check(quantity: Quantity, name: str, distribution: Distribution) -> None:
    """ValueError for numbers that no robot can have, or for parts of a whole quantity."""
    if distribution.shares and quantity.share_of is None:
        raise ValueError(f"randomisation of {name}: only masses and places are written with %")
    ends = (distribution.low, distribution.high)
    # Of a normal distribution the mean and deviation need not be whole: its draws are rounded.
    drawn = distribution.numbers if distribution.kind == "choice" else ends
    if quantity.whole and not all(float(number).is_integer() for number in drawn):
        raise ValueError(f"randomisation of {name}: whole numbers, not '{distribution}'")
    wrong = [number for number in ends if number not in quantity.allowed]
    if wrong and not distribution.shares:
        raise ValueError(
            f"randomisation of {name}: {wrong[0]:g} is not {quantity.allowed}: {quantity.why}"
        )
