"""Interface of a task for the collection engine: plan, simulation of its parts, and episode ids.

The engine (`flows/stages/collect.py`) and the runners know a task through `CollectionPlan`,
`Simulation` and `PartData` alone. Its evaluation of policies: `gaitforge.flows.tasks.evaluation`.

Episode ids of a collection: no two parts of a store may share one. Edits, `--episode` and splits
name episodes by their ids. A plan's ids begin with digits of a hash, so that two of them can be
equal by chance.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np

from gaitforge import datasets
from gaitforge.common.errors import listed
from gaitforge.common.limits import Range, check_ranges
from gaitforge.common.machine import default_threads
from gaitforge.datasets import DatasetError, Store
from gaitforge.flows.progress import Advance

if TYPE_CHECKING:
    from gaitforge.collectors.robots.robot import RobotCard

Workers = Annotated[int, Range(0, 512)]
"""Parallel workers of a local run, or threads of a simulator; 0 for `default_threads`."""


@dataclass(frozen=True)
class Rates:
    """What collecting a step costs, as measured.

    Attributes:
        bytes_per_step: in the store; steps_per_s: of one CPU, 0 for unknown.
        source: where it was measured.
    """

    bytes_per_step: float
    steps_per_s: float
    source: str


@dataclass(frozen=True)
class PartData:
    """A part of T steps in E episodes, as `Store.write_part` takes it.

    Attributes:
        steps: field -> (T, ...); per_episode: field -> (E, ...).
        catalog: column -> E values.
    """

    steps: dict[str, "np.ndarray"]
    per_episode: dict[str, "np.ndarray"]
    catalog: Mapping[str, Any]


class Simulation(ABC):
    """An open simulator with its policy; rolls out one part after another."""

    @abstractmethod
    def roll_out(self, part: str, schema: "datasets.Schema", advance: Advance) -> PartData:
        """Simulate a part: a pure function of the plan and the part's name.

        Args:
            advance: called after every step; it stops the roll-out by raising.
        """

    def close(self) -> None:  # noqa: B027, some have nothing open
        """Free the simulator."""


class CollectionPlan(ABC):
    """What to collect: a frozen dataclass that survives JSON and refuses bad values (ValueError).

    Attributes:
        kind: the task's name in `gaitforge.flows.tasks.registry`.
        parallelism: the field that says how many parts a local run makes at once, each in a
            process. Prefect tasks are threads where the simulator releases the interpreter's lock.
        work: a verb for the progress.
        evaluation: "module:class" of the task's evaluation plan; empty for none.
        keeps_version: whether the parts' versions of the simulator are those of a store's parts.
    """

    kind: ClassVar[str]
    parallelism: ClassVar[Literal["threads", "processes"]]
    work: ClassVar[str] = "collect"
    evaluation: ClassVar[str] = ""
    keeps_version: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def workers(self) -> int:
        """The workers of a local run: the plan's field that `parallelism` names."""
        return getattr(self, self.parallelism) or default_threads()

    @property
    def processor(self) -> str:
        """Device of the simulator: "cuda" for a GPU, else "cpu"."""
        return "cpu"

    def simulator(self) -> tuple[str, str] | None:
        """Name and version of the simulator here; None where it is known only once it is open."""
        return None

    def with_workers(self, workers: int) -> Self:
        """The plan with another number of workers; its parts stay the same."""
        return replace(cast(Any, self), **{self.parallelism: workers})

    @abstractmethod
    def expected_steps(self) -> dict[str, int]:
        """Part -> steps that are expected of it (the most, where episodes may end early).

        A name changes with anything that changes the part's content, and with nothing else.
        """

    @abstractmethod
    def schema(self) -> "datasets.Schema":
        """The schema of the store."""

    @abstractmethod
    def simulate(self, threads: int = 1) -> Simulation:
        """Open the simulator; `threads` step its robots where the simulator can use them."""

    def robot_cards(self) -> "Sequence[RobotCard]":
        """The legged robots of the episodes, with repeats; none in other tasks.

        Raises:
            ValueError: a robot or expert that is not here any more.
        """
        return ()

    def part_ids(self) -> list[str]:
        """Names of the parts, in the plan's order."""
        return list(self.expected_steps())

    def unknown_policy(self) -> str:
        """The policy of which no key says what it does, see `PolicySource.is_known`; else ""."""
        return ""

    def episode_ids(self) -> "Mapping[str, range]":
        """Part -> ids that its episodes may have; empty where they are not known beforehand.

        A collection whose parts would share some is refused before any is made.
        """
        return {}

    def rates(self) -> Rates | None:
        """What a step costs, for estimates before any part is made; None where it is unknown."""
        return None

    def complete(self) -> None:  # noqa: B027, most plans have nothing to do
        """Called when no part of the plan is missing; may be called again."""

    def only(self, part: str) -> Self:
        """A smaller plan with this part, whose parts are quicker to list; else the plan itself."""
        return self

    def listed_with(self, part: str) -> dict[str, int]:
        """The expected steps of the parts of `only(part)`.

        Raises:
            ValueError: the part is not the plan's.
        """
        planned = self.only(part).expected_steps()
        if part not in planned:
            names = self.part_ids()
            raise ValueError(
                f"part {part} is not one of the plan's {len(names)}, {names[0]} to {names[-1]}: "
                "its settings differ, or the expert's or policy's file changed since it was named"
            )
        return planned


# Episode ids: no two parts of a store may share one.
_ADVICE = "collect with another seed, or into a store of its own"


def check_planned_ids(plan: CollectionPlan, store: Store, planned: Iterable[str]) -> None:
    """ValueError if parts of the plan, or one and another part of the store, would share ids."""
    ranges = sorted((ids.start, ids.stop, part) for part, ids in plan.episode_ids().items())
    for (_, stop, part), (start, _, following) in pairwise(ranges):
        if start < stop:
            raise ValueError(
                f"parts {part} and {following} of the plan would share episode ids; {_ADVICE}"
            )
    if not ranges:
        return
    starts = np.array([start for start, _, _ in ranges])
    stops = np.array([stop for _, stop, _ in ranges])
    planned_parts = set(planned)
    for part, ids in _ids_by_part(store).items():
        if part in planned_parts:
            continue
        places = np.searchsorted(starts, ids, side="right") - 1
        is_shared = (places >= 0) & (ids < stops[places])
        if is_shared.any():
            sharing = ranges[places[is_shared][0]][2]
            raise ValueError(
                f"part {sharing} of the plan would share episode ids with part {part} of "
                f"{store.address}; {_ADVICE}"
            )


def check_stored_ids(store: Store) -> None:
    """DatasetError if an episode id is in two parts of the store."""
    by_part = _ids_by_part(store)
    ids, counts = np.unique(_joined(by_part), return_counts=True)
    repeated = ids[counts > 1]
    if len(repeated):
        parts = [part for part, part_ids in by_part.items() if np.isin(repeated, part_ids).any()]
        raise DatasetError(
            f"parts {listed(parts, 4)} of {store.address} share episode ids "
            f"{listed(repeated.tolist(), 4)}; {_ADVICE}"
        )


def _joined(by_part: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *by_part.values()])


def _ids_by_part(store: Store) -> dict[str, np.ndarray]:
    """Part -> its episodes' ids; empty for a store with damage, which `verify` names."""
    try:
        catalog = store.collected()
        ids = catalog.numbers("episode")
    except DatasetError:
        return {}
    return {part: ids[first:stop] for part, (first, stop) in catalog.part_bounds.items()}
