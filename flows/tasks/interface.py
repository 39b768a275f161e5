"""Interface of a task for the collection engine: a plan, and a simulation of its parts.

The engine (`flows/stages/collect.py`) and the runners know a task through these classes alone. Its
evaluation of policies: `gaitforge.flows.tasks.evaluation`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

from gaitforge import datasets
from gaitforge.common.machine import default_threads
from gaitforge.common.ranges import Range, check_ranges
from gaitforge.flows.progress import Advance

if TYPE_CHECKING:
    import numpy as np

    from gaitforge.collectors.robots.robot import RobotCard

Workers = Annotated[int, Range(0, 512)]
"""Parallel workers of a local run, or threads of a simulator; 0 for `default_threads`."""


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
