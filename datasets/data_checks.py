"""Checks of what data hold, which plug-ins and other packages bring, by entry points.

    [project.entry-points."gaitforge.data_checks"]
    gaps = "walkers.gaps:CHECK"

An import and a card say what the installed checks see in a sample of the episodes; a merge says
what they see in two stores that do not fit each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gaitforge.common.extensions import Registered
from gaitforge.datasets.selection import EpisodeSelection

Severity = Literal["error", "warning", "note"]

SAMPLE_STEPS = 50_000
"""Steps that a check of a sample reads: a second."""


@dataclass(frozen=True, eq=False)
class DataFinding:
    """One kind of fault in a dataset.

    Attributes:
        name: of the fault, such as "frozen-sensor".
        severity: "error": wrong for any use; "warning": wrong for many; "note": good to know.
        text: what was found where, in one line.
        count: episodes, or else channels or values as the text says.
    """

    name: str
    severity: Severity
    text: str
    count: int

    @property
    def line(self) -> str:
        """Severity, name and text in one line."""
        return f"{self.severity}, {self.name}: {self.text}"


@dataclass(frozen=True)
class DataCheck:
    """What looks for faults in data.

    Attributes:
        command: the one that examines all of a store, whose address follows: "gaps find".
        of_sample: (episodes, steps) -> findings in the catalog, and in the arrays of some episodes
            with about so many steps; 0 for none.
        of_merge: selections of stores that become one -> what does not fit each other.
    """

    command: str
    of_sample: Callable[[EpisodeSelection, int], Sequence[DataFinding]]
    of_merge: Callable[[Sequence[EpisodeSelection]], Sequence[DataFinding]] = lambda selections: ()


DATA_CHECKS = Registered("data_check", DataCheck, {})
"""Every installed check, by its name."""
