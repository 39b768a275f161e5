"""Order of quaternions: wxyz or xyzw, told from the data, and mixes of both.

Isaac Lab 2, MuJoCo and Drake write wxyz; Isaac Lab 3, ROS, PyBullet and SciPy write xyzw. Files of
both have the same names and shapes. What tells them apart: projected gravity beside the quaternion,
or a robot that stays upright, whose parts x and y are small.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from gaitforge.common.errors import amount, listed
from gaitforge.datasets.schema import Field, Schema
from gaitforge.plugins.doctor.data import Arrays, Finding, of_episodes
from gaitforge.plugins.doctor.measures import Measures, flattened

ORDERS = ("wxyz", "xyzw")
_UNKNOWN = -1

_NAMED = re.compile(r".*(quat|orient|rot|pose|root_state|xform|transform).*")
_EXACT = re.compile(r".*quat.*")
_OTHER_BODY = re.compile(
    r".*(eef|ee_|hand|grip|finger|wrist|tool|tcp|object|obj|cube|cam|goal|target|command|action).*"
)
"""Names of what is no upright robot: nothing says how such a body lies."""

_UNIT = 2e-3
"""How far a unit vector's square may be from 1, of channels that no name calls a quaternion."""

_NOISY = 0.2
"""The same where the name says so: noise may have been added."""

_SAMPLE_STEPS = 1 << 13
_AGREES = 0.15
_DIFFERS = 3.0
"""Mean distance from projected gravity that is agreement, and the factor by which the other order's
is larger. Isaac Lab's noise on gravity is 0.05."""

_CLEAR_DIFFERENCE = 0.02
_UPRIGHT = 0.85
_DOMINANT = 5.0
_NEAR_ONE = 0.9
_FEW = 0.05
"""Share of the episodes of a source that may look otherwise: a robot that lies on its back does."""

_PEAK = 0.7
_SAME = 0.15
_OTHER = 0.5


@dataclasses.dataclass
class QuaternionChannels:
    """Four channels that are a quaternion.

    Attributes:
        name: for people. field, start: where they are. stated: the order that the schema states.
        upright: whether the body may be taken for an upright robot.
        named: whether a name calls it a rotation.
        gravity: field and first channel of unit vectors that may be its projected gravity.
        squares: (E, 4) mean squares of each part of spans; errors: (E, 2) mean distance of both
            orders from the gravity that fits best.
    """

    name: str
    field: str
    start: int
    stated: str
    upright: bool
    named: bool
    gravity: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    squares: list[np.ndarray] = dataclasses.field(default_factory=list)
    errors: list[np.ndarray] = dataclasses.field(default_factory=list)


class QuaternionCollector:
    """Collects what tells the order of each quaternion in each episode."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._blocks: list[QuaternionChannels] | None = None
        self._rows: list[np.ndarray] = []

    def add(self, rows: np.ndarray, lengths: np.ndarray, arrays: Arrays) -> None:
        """See episodes `rows` of the data, whose steps lie end to end in `arrays`."""
        if self._blocks is None:
            self._blocks = _blocks(self._schema, arrays)
        if not self._blocks:
            return
        self._rows.append(rows)
        starts = np.cumsum(lengths) - lengths
        for block in self._blocks:
            quat = _channels(arrays, block.field, block.start, 4)
            means = np.add.reduceat(np.square(quat), starts) / lengths[:, None]
            block.squares.append(means)
            block.errors.append(_gravity_errors(block, quat, arrays, starts, lengths))

    def findings(self, measures: Measures) -> Iterator[Finding]:
        """Mixed orders, orders other than stated, and the orders as told."""
        if not self._blocks:
            return
        rows = np.concatenate(self._rows)
        sources = measures.ids(rows).astype(np.int64) >> 32
        told: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        orders: dict[str, str] = {}
        for block in self._blocks:
            order, evidence = _orders(block, sources)
            known = order[order != _UNKNOWN]
            if len(np.unique(known)) > 1:
                yield _mix(block, order, evidence, rows, sources)
                continue
            if not len(known):
                yield from _shifted(block, rows, sources)
                told["", ""].append(block.name)
                continue
            name = ORDERS[known[0]]
            orders[block.name] = name
            if block.stated and block.stated != name:
                text = f"{block.name} is {name} {evidence}, but the schema says {block.stated}"
                yield Finding("quaternion-order", "error", text, len(known), remedy="limitations")
            elif not block.stated and (block.named or _is_imported(self._schema)):
                told[name, evidence].append(block.name)
        yield from _between_fields(orders)
        yield from _as_told(told)


def _blocks(schema: Schema, arrays: Arrays) -> list[QuaternionChannels]:
    """The quaternions among the step fields, by their names or by their unit length."""
    blocks: list[QuaternionChannels] = []
    units: list[tuple[str, int, str]] = []
    for name in arrays:
        described = schema.field(name)
        if described.per != "step" or not described.dtype.startswith("float"):
            continue
        sample = flattened(arrays[name][:_SAMPLE_STEPS]).astype(np.float64)
        sample = sample[np.isfinite(sample).all(axis=1)]
        if not len(sample) or sample.shape[1] < 3:
            continue
        starts = _quaternion_starts(described, sample)
        blocks += [_block(described, start) for start in starts]
        taken = {start + k for start in starts for k in range(4)}
        for start in _unit_starts(sample, 3, _UNIT):
            if not taken & {start, start + 1, start + 2}:
                units.append((name, start, ""))
        for slice_name, first, width in _named_parts(described):
            if width == 3 and "gravity" in slice_name:
                units.append((name, first, slice_name))
    units.sort(key=lambda unit: not unit[2])  # those with the name first
    for block in blocks:
        block.gravity = list(dict.fromkeys((name, start) for name, start, _ in units))
    return blocks


def _named_parts(described: Field) -> list[tuple[str, int, int]]:
    """Name, first channel and width of a field's slices, or of the field without any."""
    if described.slices and len(described.shape) == 1:
        return [(name, start, stop - start) for name, (start, stop) in described.slices.items()]
    return [(described.name, 0, int(np.prod(described.shape, dtype=int)))]


def _quaternion_starts(described: Field, sample: np.ndarray) -> list[int]:
    """First channels of the quaternions in a field's rows (T, C)."""
    starts: list[int] = []
    if sample.shape[1] < 4:
        return starts
    for name, first, width in _named_parts(described):
        if width % 4 == 0 and _EXACT.fullmatch(name):
            firsts = range(first, first + width, 4)
            starts += [k for k in firsts if _off(sample[:, k : k + 4]).mean() < _NOISY]
    taken = {start + k for start in starts for k in range(4)}
    candidates = [k for k in _unit_starts(sample, 4, _UNIT) if _is_rotation(described, sample, k)]
    candidates.sort(key=lambda k: (_off(sample[:, k : k + 4]).max(), k))
    for start in candidates:
        channels = {start + k for k in range(4)}
        if not channels & taken:
            starts.append(start)
            taken |= channels
    return sorted(starts)


def _off(values: np.ndarray) -> np.ndarray:
    """(T,) how far the squares of vectors (T, K) are from 1."""
    return np.abs(np.square(values).sum(axis=1) - 1)


def _unit_starts(sample: np.ndarray, width: int, tolerance: float) -> list[int]:
    """First channels of `width` neighbours that are a unit vector in each of the rows."""
    squares = np.cumsum(np.square(sample), axis=1)
    squares = np.concatenate([np.zeros((len(sample), 1)), squares], axis=1)
    sums = squares[:, width:] - squares[:, :-width]
    return np.flatnonzero((np.abs(sums - 1) < tolerance).all(axis=0)).tolist()


def _is_rotation(described: Field, sample: np.ndarray, start: int) -> bool:
    """Whether four unit channels are a quaternion rather than a code, or a unit vector and a 0."""
    quat = sample[:, start : start + 4]
    if _NAMED.fullmatch(_place(described, start)) and (quat != quat[0]).any():
        return True
    if np.isin(quat, (0.0, 1.0)).all():
        return False
    still = (quat == quat[0]).all(axis=0)
    triples = (_off(quat[:, :3]).max(), _off(quat[:, 1:]).max())
    pairs = (_off(quat[:, :2]).max(), _off(quat[:, 2:]).max(), _off(quat[:, 1:3]).max())
    return still.sum() < 2 and min(*triples, *pairs) > _UNIT


def _place(described: Field, start: int) -> str:
    """Name of four channels: of their slice, or of the slice or field and their numbers."""
    name = described.name
    first = 0
    width = int(np.prod(described.shape, dtype=int))
    for part, part_first, part_width in _named_parts(described):
        if part_first <= start and start + 4 <= part_first + part_width:
            name = part
            first = part_first
            width = part_width
    if width == 4:
        return name
    return f"{name}[{start - first}:{start - first + 4}]"


def _block(described: Field, start: int) -> QuaternionChannels:
    name = _place(described, start)
    words = f"{described.name} {name} {described.description}".lower()
    stated = [order for order in ORDERS if order in words]
    upright = not _OTHER_BODY.fullmatch(f"{described.name} {name}")
    return QuaternionChannels(
        name,
        described.name,
        start,
        stated[0] if len(stated) == 1 else "",
        upright,
        bool(_NAMED.fullmatch(name)),
    )


def _channels(arrays: Arrays, name: str, start: int, width: int) -> np.ndarray:
    """(T, width) float64 channels of a field; 0 where they are not finite."""
    values = flattened(arrays[name])[:, start : start + width].astype(np.float64)
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _gravity_errors(
    block: QuaternionChannels,
    quat: np.ndarray,
    arrays: Arrays,
    starts: np.ndarray,
    lengths: np.ndarray,
) -> np.ndarray:
    """(E, 2) mean distance of each order's gravity from the one beside; infinite without any.

    Of several vectors beside it, and of the conventions (gravity up or down, the inverse rotation),
    the first that agrees with one of the orders counts.
    """
    best = np.full((len(starts), 2), np.inf)
    turned = [_down(quat), _down(np.roll(quat, 1, axis=1))]
    inverse = quat * [1.0, -1.0, -1.0, -1.0]
    inverse_xyzw = quat * [-1.0, -1.0, -1.0, 1.0]
    turned_back = [_down(inverse), _down(np.roll(inverse_xyzw, 1, axis=1))]
    for name, start in block.gravity:
        beside = _channels(arrays, name, start, 3)
        for pair, sign in ((turned, 1), (turned, -1), (turned_back, 1), (turned_back, -1)):
            errors = np.empty_like(best)
            for k, gravity in enumerate(pair):
                away = np.linalg.norm(sign * gravity - beside, axis=1)
                errors[:, k] = np.add.reduceat(away, starts) / lengths
            new = (_decided(errors) != _UNKNOWN) & (_decided(best) == _UNKNOWN)
            best[new] = errors[new]
    return best


def _down(wxyz: np.ndarray) -> np.ndarray:
    """(T, 3) gravity's direction in the body's frame, of its rotations into the world."""
    w, x, y, z = wxyz.T
    return np.stack([2 * (w * y - x * z), -2 * (w * x + y * z), 2 * (x * x + y * y) - 1], axis=1)


def _decided(errors: np.ndarray) -> np.ndarray:
    """(E,) the order whose gravity (E, 2) agrees where the other one's does not."""
    least = errors.argmin(axis=1)
    low = errors.min(axis=1)
    high = errors.max(axis=1)
    with np.errstate(invalid="ignore"):
        sure = (low < _AGREES) & (high > _DIFFERS * low) & (high - low > _CLEAR_DIFFERENCE)
    return np.where(sure & np.isfinite(high), least, _UNKNOWN)


def _orders(block: QuaternionChannels, sources: np.ndarray) -> tuple[np.ndarray, str]:
    """(E,) the order in each episode, and the evidence in words."""
    by_gravity = _decided(np.concatenate(block.errors))
    if (by_gravity != _UNKNOWN).any():
        return by_gravity, "by the gravity beside it"
    if not block.upright:
        return by_gravity, ""
    squares = np.concatenate(block.squares)
    first = squares[:, 0]
    third = squares[:, 2]
    last = squares[:, 3]
    wxyz = (first > _DOMINANT * third) & (first + last > _UPRIGHT)
    xyzw = (third > _DOMINANT * first) & (third + last > _UPRIGHT)
    # (0, 0, 0, 1) is no turn in xyzw, and half a turn about the vertical in wxyz. Where headings
    # are anything, some episodes of wxyz look so, beside others whose first part is in between.
    still = (last > _NEAR_ONE) & ~xyzw
    for source in np.unique(sources):
        in_source = sources == source
        between = in_source & wxyz & ~still & (last > 1 - _NEAR_ONE)
        if not between.any():
            xyzw |= in_source & still
            wxyz &= ~(in_source & still)
    order = np.where(wxyz, 0, np.where(xyzw, 1, _UNKNOWN))
    for source in np.unique(sources):
        source_order = order[sources == source]
        for k in range(2):
            if 0 < (source_order == k).sum() <= _FEW * len(source_order):
                order[(sources == source) & (order == k)] = _UNKNOWN
    return order, "if the robot is upright"


def _mix(
    block: QuaternionChannels,
    order: np.ndarray,
    evidence: str,
    rows: np.ndarray,
    sources: np.ndarray,
) -> Finding:
    parts: list[str] = []
    for k, name in enumerate(ORDERS):
        flags = order == k
        prefixes = [f"{source:x}-" for source in np.unique(sources[flags]).tolist()]
        parts.append(f"{name} in {amount(int(flags.sum()), 'episode')} ({listed(prefixes, 3)})")
    fewer = int((order == 1).sum() <= (order == 0).sum())
    text = f"{block.name} is {' and '.join(parts)}, {evidence}: two orders of quaternions are mixed"
    [finding] = of_episodes("quaternion-mix", "error", text, rows[order == fewer])
    return finding


def _shifted(block: QuaternionChannels, rows: np.ndarray, sources: np.ndarray) -> Iterator[Finding]:
    """Sources whose parts lie one place apart, of a body that may lie anyhow."""
    squares = np.concatenate(block.squares)
    names, counts = np.unique(sources, return_counts=True)
    means = [squares[sources == source].mean(axis=0) for source in names]
    usual = means[int(counts.argmax())]
    shifted = [
        int(source)
        for source, mean in zip(names, means, strict=True)
        if min(usual.max(), mean.max()) > _PEAK
        and np.abs(mean - usual).max() > _OTHER
        and min(np.abs(np.roll(mean, k) - usual).max() for k in (-1, 1)) < _SAME
    ]
    text = f"{block.name} looks as if wxyz and xyzw were mixed: its parts are one place apart"
    flags = np.isin(sources, shifted)
    yield from of_episodes("quaternion-mix", "note", text, rows[flags])


def _between_fields(orders: Mapping[str, str]) -> Iterator[Finding]:
    if len(set(orders.values())) > 1:
        sides = [
            f"{order} in {listed([name for name, value in orders.items() if value == order], 4)}"
            for order in ORDERS
        ]
        text = f"quaternions are {' and '.join(sides)}: two orders in one dataset"
        yield Finding("quaternion-mix", "warning", text, len(orders), remedy="limitations")


def _as_told(told: Mapping[tuple[str, str], list[str]]) -> Iterator[Finding]:
    for (order, evidence), names in told.items():
        words = (
            f"quaternions {order} {evidence}"
            if order
            else "the order of quaternions, wxyz or xyzw, cannot be told"
        )
        text = f"{words}: {listed(names, 4)}"
        yield Finding("quaternion-order", "note", text, len(names), remedy="limitations")


def _is_imported(schema: Schema) -> bool:
    return "format" in schema.attributes
