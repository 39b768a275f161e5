"""Channels that are constant but for a few steps, such as a bumper that is hardly ever touched.

A few of their values are hundreds of standard deviations from the mean, and a deviation that is
only rounding makes any other value one of thousands.
"""

from collections.abc import Iterator

import numpy as np

from gaitforge.datasets.doctor.channels import COMMAND, blocks_of, named_channels
from gaitforge.datasets.doctor.finding import Finding, Severity
from gaitforge.datasets.doctor.measures import Measures

_RARE = 1e-3
"""Share of the steps below which other values than the usual one are rare."""

_STILL = (1e-6, 1e-4)
"""Range over size of a channel that nearly stands still; below, it is constant."""

_INPUTS = ("obs", "action")
"""Fields that networks read. Rewards and flags may well be rare."""


def nearly_constant(m: Measures) -> Iterator[Finding]:
    """Channels of observations and actions that hardly ever change, or by hardly anything."""
    for name in _INPUTS:
        if name in m.fields:
            yield from _of_field(m, name)


def _of_field(m: Measures, name: str) -> Iterator[Finding]:
    field = m.fields[name]
    steps = int(m.columns["length"].sum())
    low = field["low"].min(axis=0)
    high = field["high"].max(axis=0)
    size = np.maximum(np.abs(low), np.abs(high))
    away = field["away"].sum(axis=0)
    same = (field["usual"] == field["usual"][:1]).all(axis=0)
    moves = high - low > _STILL[0] * size
    rare = same & moves & (away <= _RARE * steps)
    still = ~rare & moves & (high - low <= _STILL[1] * size)
    for block, channels in blocks_of(m.schema.field(name)).items():
        if COMMAND.fullmatch(block):
            continue
        for which, words in ((rare, _rarely), (still, _barely)):
            flagged = channels[which[channels]]
            if len(flagged):
                severity: Severity = "warning" if 2 * len(flagged) < len(channels) else "note"
                text = f"{named_channels(m, name, flagged)} {words(field, flagged[0], steps)}"
                yield Finding("near-constant", severity, text, len(flagged), remedy="limitations")


def _rarely(field: dict[str, np.ndarray], channel: int, steps: int) -> str:
    usual = field["usual"][0, channel]
    away = field["away"][:, channel].sum()
    return f"is {usual:.4g} but in {away:,} of {steps:,} steps; normalised, these are very large"


def _barely(field: dict[str, np.ndarray], channel: int, _: int) -> str:
    low = field["low"][:, channel].min()
    high = field["high"][:, channel].max()
    return f"changes by only {high - low:.2g} around {(low + high) / 2:.4g}"
