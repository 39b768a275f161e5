"""Interface of a measure: the points that it is taken at, and its values at each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from gaitforge.flows.progress import Advance

Point = tuple[str, float | None]
"""Axis and value, e.g. ("n_layers", 8); None for a point that lies on no axis."""


@dataclass(frozen=True)
class Series:
    """One candidate's figures at a point, one for each repeat.

    Attributes:
        facts: what else is known of it, e.g. {"parameters": 787852}.
        spectrum: "frequency_hz" and "energy_share", of a spectrum.
    """

    name: str
    values: Sequence[float]
    facts: dict[str, Any] = field(default_factory=dict)
    spectrum: dict[str, Any] | None = None


class Measure(Protocol):
    """Base of the measures: frozen dataclasses of settings, axes among them.

    Attributes:
        title, unit: of its figures; less_is_better: which series is ahead.
        axes: settings whose values are points, each measured by itself.
        timed: whether its points must not be measured side by side.
        reads_stores: whether it measures stores.
    """

    title: ClassVar[str]
    unit: ClassVar[str]
    axes: ClassVar[tuple[str, ...]]
    less_is_better: ClassVar[bool] = True
    timed: ClassVar[bool] = True
    reads_stores: ClassVar[bool] = False

    def points(self, stores: Sequence[str]) -> Iterator[Point]:
        """All points; ValueError for settings or stores that do not fit."""
        ...

    def series(
        self, point: Point, repeats: int, stores: Sequence[str], advance: Advance
    ) -> Iterator[Series]:
        """Measure at a point; a turn of all candidates advances by 1, `repeats` + 1 in all."""
        ...
