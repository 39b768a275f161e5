"""Checks of channels: values that are not finite, constant, frozen, cut off, or out of range.

Some channels are constant but for a few steps, such as a bumper that is hardly ever touched. A few
of their values are hundreds of standard deviations from the mean, and a deviation that is only
rounding makes any other value one of thousands. Such nearly constant channels are told apart.
"""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from gaitforge.common.errors import listed
from gaitforge.datasets.data_checks import Severity
from gaitforge.datasets.schema import Field
from gaitforge.datasets.statistics import channel_names
from gaitforge.plugins.doctor.data import Finding, of_episodes
from gaitforge.plugins.doctor.measures import FROZEN_STEPS, Measures

_SHOWN = 4
_TOLERANCE = 1e-6
"""Range over size below which a channel is constant: float32 has 1.2e-7, and a normaliser that
divides by such a deviation amplifies its rounding."""

COMMAND = re.compile(r".*(command|goal|target|desired|task|one_hot|body).*")
"""Names of slices and fields that may well be constant: they say what to do, or who does it."""

POSE = re.compile(r"(?!.*(quat|action|reward|log_prob)).*(obs|state|pos|pose)")
"""Fields whose jumps are looked for. A quaternion may change its sign within a step."""

_LIMITS: tuple[tuple[re.Pattern[str], float, Severity, str], ...] = (
    (re.compile(r"(sin|cos)_.*"), 1.01, "error", "a sine or cosine"),
    (re.compile(r"(.*_)?quat"), 1.05, "error", "a unit quaternion"),
    (re.compile(r"projected_gravity"), 1.5, "error", "a unit vector with noise"),
    (re.compile(r"(.*_)?joint_vel|.*ang_vel.*|.*_rad_s"), 200.0, "warning", "rad/s"),
    (re.compile(r"(.*_)?joint_pos|.*_rad"), 4 * math.pi, "warning", "rad"),
)
"""Name of a slice or field, the size that its typical peak never has, and what it is then.

Joints turn by at most two revolutions, and legged robots' motors by about 20 to 50 rad/s; in
degrees both are 57 times as large.
"""

_UNITS = {"rad": "_rad", "rad/s": "_rad_s"}
_MIXED = 30.0
"""An episode's peak over the median peak: between deg/rad (57) and what a fall does (below 10)."""

_AT_LIMIT: tuple[tuple[Severity, float, float], ...] = (("warning", 0.5, 1.0), ("note", 0.2, 0.5))
"""Shares of an action's steps at its two extremes, from and to, that are a finding. Noise of half
the range that is clipped is there in about 5 % of the steps, a saturated tanh policy in up to 40 %.
"""

_JUMP = 8.0
_JUMP_RANGE = 0.25
_LEAST_EPISODES = 10


def channels_of(field: Field) -> list[str]:
    """The names of a field's channels, as `measures.flattened` orders them."""
    if len(field.shape) < 2:
        return channel_names(field) if field.shape else [field.name]
    return [f"{field.name}[{', '.join(map(str, at))}]" for at in product(*map(range, field.shape))]


def not_finite(measures: Measures) -> Iterator[Finding]:
    """Values that are NaN or infinite."""
    for name, field in measures.fields.items():
        bad = field["bad"]
        if bad.any():
            where = named_channels(measures, name, bad.any(axis=0))
            text = f"{bad.sum():,} values of {where} are NaN or infinite"
            location = name, int(np.argmax(bad.any(axis=0)))
            rows = measures.rows[bad.any(axis=1)]
            yield from of_episodes(
                "not-finite", "error", text, rows, location=location, remedy="leave out"
            )


def constant(measures: Measures) -> Iterator[Finding]:
    """Channels that never change, of fields that otherwise do.

    Of several that are constant beside each other, or at 0 or 1, it is a note: they may be a code
    of the task, or contacts that did not occur (as in Ant).
    """
    for name, field in measures.fields.items():
        low = field["low"].min(axis=0)
        high = field["high"].max(axis=0)
        size = np.maximum(np.abs(low), np.abs(high))
        still = high - low <= _TOLERANCE * size
        described = measures.schema.field(name)
        for block, channels in blocks_of(described).items():
            constants = channels[still[channels]]
            if not len(constants) or COMMAND.fullmatch(block):
                continue
            named = len(channels) < len(still) or name == "action"
            code = np.isin(high[constants], (0.0, 1.0)).all()
            few = 2 * len(constants) < len(channels)
            severity: Severity = "warning" if few and (named or not code) else "note"
            where = named_channels(measures, name, constants)
            text = f"{where} never changes: {high[constants[0]]:.4g}"
            yield Finding("constant-channel", severity, text, len(constants), remedy="limitations")


def units(measures: Measures) -> Iterator[Finding]:
    """Channels whose range is not one of their unit, in all or in some episodes."""
    for name, field in measures.fields.items():
        described = measures.schema.field(name)
        peaks = np.maximum(np.abs(field["low"]), np.abs(field["high"]))
        for block, channels in blocks_of(described).items():
            limit, severity, quantity = _limit(block, _UNITS.get(described.unit, ""))
            if not limit:
                continue
            block_peaks = peaks[:, channels].max(axis=1)
            typical = float(np.median(block_peaks))
            if typical > limit:
                text = (
                    f"{block} reaches {typical:.4g} in a typical episode, too much for {quantity}"
                )
                yield Finding("unit", severity, text, len(channels), remedy="limitations")
                continue
            wrong = block_peaks > max(limit, _MIXED * typical)
            text = (
                f"{block} reaches {block_peaks.max():.4g}, and {typical:.4g} in a typical episode"
            )
            location = name, int(channels[np.argmax(peaks[:, channels].max(axis=0))])
            yield from of_episodes("unit", severity, text, measures.rows[wrong], location=location)


def _limit(block: str, unit: str) -> tuple[float, Severity, str]:
    for pattern, limit, severity, quantity in _LIMITS:
        if pattern.fullmatch(block) or (unit and pattern.fullmatch(unit)):
            return limit, severity, quantity
    return 0.0, "note", ""


def at_limits(measures: Measures) -> Iterator[Finding]:
    """Actions that are at their extremes for much of the time; not of a switch with two values."""
    if "action" not in measures.fields:
        return
    field = measures.fields["action"]
    steps = int(measures.columns["length"].sum())
    low = field["low"].min(axis=0)
    high = field["high"].max(axis=0)
    at = np.where(field["low"] == low, field["at_low"], 0).sum(axis=0)
    at += np.where(field["high"] == high, field["at_high"], 0).sum(axis=0)
    shares = np.where((low == high) | (at == steps), 0.0, at / max(1, steps))
    for severity, least, most in _AT_LIMIT:
        flags = (shares > least) & (shares <= most)
        if flags.any():
            where = named_channels(measures, "action", flags)
            text = (
                f"{where} at the least or greatest value in {shares[flags].max():.0%} of the steps"
            )
            yield Finding("action-limit", severity, text, int(flags.sum()), remedy="limitations")


def frozen(measures: Measures) -> Iterator[Finding]:
    """Sensors that repeat a value many times in some episodes, and change at most steps of most."""
    for name, field in measures.fields.items():
        if name in ("action", "reward"):
            continue
        lively = np.median(field["repeats"], axis=0) < 1 / FROZEN_STEPS
        varied = field["low"].min(axis=0) < field["high"].max(axis=0)
        flags = field["frozen"] & (lively & varied)
        where = named_channels(measures, name, flags.any(axis=0))
        text = f"{where} keeps its value for {FROZEN_STEPS} steps or more"
        location = name, int(np.argmax(flags.any(axis=0)))
        yield from of_episodes(
            "frozen-sensor", "warning", text, measures.rows[flags.any(1)], location=location
        )


def jumps(measures: Measures) -> Iterator[Finding]:
    """Steps much larger than those of other episodes, and clocks that do not run evenly."""
    for name, field in measures.fields.items():
        if "back" in field:
            usual = float(np.median(field["jump"]))
            back = (field["back"] <= 0).any(axis=1)
            gap = (field["jump"] > 1.5 * usual).any(axis=1) & ~back
            text = f"{name} stands still or goes back"
            yield from of_episodes(
                "time-jump", "error", text, measures.rows[back], location=(name, 0)
            )
            text = f"{name} skips {field['jump'].max():.4g} at once, usually {usual:.4g}"
            yield from of_episodes(
                "time-jump", "warning", text, measures.rows[gap], location=(name, 0)
            )
        elif POSE.fullmatch(name) and len(measures.rows) >= _LEAST_EPISODES:
            jump = field["jump"]
            usual = np.quantile(jump, 0.9, axis=0)
            spread = np.quantile(field["high"], 0.95, axis=0) - np.quantile(field["low"], 0.05, 0)
            wraps = np.abs(jump - 2 * math.pi) < 0.05 * 2 * math.pi
            flags = (jump > _JUMP * usual) & (jump > _JUMP_RANGE * spread) & (usual > 0) & ~wraps
            for block, channels in blocks_of(measures.schema.field(name)).items():
                if COMMAND.fullmatch(block) or "quat" in block:
                    flags[:, channels] = False
            text = f"{named_channels(measures, name, flags.any(axis=0))} jumps within a step"
            location = name, int(np.argmax(flags.any(axis=0)))
            yield from of_episodes(
                "jump", "warning", text, measures.rows[flags.any(axis=1)], location=location
            )


def statistics(measures: Measures, stated: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Statistics that the data's files state and that are not the data's.

    Off by 1 % of a channel's range: programs may estimate them from a part of the frames.
    """
    for name, computed in measures.statistics.items():
        spread = np.maximum(computed.max - computed.min, 1e-9)
        for key in ("min", "max", "mean", "std"):
            if key not in stated[name]:
                continue
            values = np.ravel(stated[name][key])
            actual = np.ravel(getattr(computed, key))
            if len(values) != len(actual):
                text = f"{key} of {name} has {len(values)} values for {len(actual)} channels"
                yield Finding("statistics", "error", text, 1, remedy="export")
                continue
            off = ~(np.abs(values - actual) <= 0.01 * spread + _TOLERANCE * np.abs(actual))
            if off.any():
                at = int(np.argmax(off))
                where = named_channels(measures, name, off)
                text = f"{key} of {where} is stated as {values[at]:.4g}, but is {actual[at]:.4g}"
                yield Finding("statistics", "error", text, int(off.sum()), remedy="export")


def blocks_of(field: Field) -> dict[str, np.ndarray]:
    """Name -> channels that belong together: slices of several, and the rest of the field.

    Channels with a name each, such as an action's joints, are compared with one another.
    """
    wide = {
        name: np.arange(start, stop)
        for name, (start, stop) in field.slices.items()
        if stop - start > 1
    }
    remaining = np.arange(np.prod(field.shape, dtype=int))
    for channels in wide.values():
        remaining = np.setdiff1d(remaining, channels)
    return wide | ({field.name: remaining} if len(remaining) else {})


def named_channels(measures: Measures, name: str, chosen: Any) -> str:
    """The chosen channels (a mask or numbers) of a field."""
    names = np.array(channels_of(measures.schema.field(name)))[chosen]
    return listed(names, _SHOWN) if len(names) else name


# Nearly constant channels.
_RARE = 1e-3
"""Share of the steps below which other values than the usual one are rare."""

_STILL = (1e-6, 1e-4)
"""Range over size of a channel that nearly stands still; below, it is constant."""

_INPUTS = ("obs", "action")
"""Fields that networks read. Rewards and flags may well be rare."""


def nearly_constant(measures: Measures) -> Iterator[Finding]:
    """Channels of observations and actions that hardly ever change, or by hardly anything."""
    for name in _INPUTS:
        if name in measures.fields:
            yield from _of_field(measures, name)


def _of_field(measures: Measures, name: str) -> Iterator[Finding]:
    field = measures.fields[name]
    steps = int(measures.columns["length"].sum())
    low = field["low"].min(axis=0)
    high = field["high"].max(axis=0)
    size = np.maximum(np.abs(low), np.abs(high))
    away = field["away"].sum(axis=0)
    same = (field["usual"] == field["usual"][:1]).all(axis=0)
    moves = high - low > _STILL[0] * size
    rare = same & moves & (away <= _RARE * steps)
    still = ~rare & moves & (high - low <= _STILL[1] * size)
    for block, channels in blocks_of(measures.schema.field(name)).items():
        if COMMAND.fullmatch(block):
            continue
        for which, words in ((rare, _rarely), (still, _barely)):
            flagged = channels[which[channels]]
            if len(flagged):
                severity: Severity = "warning" if 2 * len(flagged) < len(channels) else "note"
                text = (
                    f"{named_channels(measures, name, flagged)} {words(field, flagged[0], steps)}"
                )
                yield Finding("near-constant", severity, text, len(flagged), remedy="limitations")


def _rarely(field: dict[str, np.ndarray], channel: int, steps: int) -> str:
    usual = field["usual"][0, channel]
    away = field["away"][:, channel].sum()
    return f"is {usual:.4g} but in {away:,} of {steps:,} steps; normalised, these are very large"


def _barely(field: dict[str, np.ndarray], channel: int, _: int) -> str:
    low = field["low"][:, channel].min()
    high = field["high"][:, channel].max()
    return f"changes by only {high - low:.2g} around {(low + high) / 2:.4g}"
