"""Plans in stages: what all kinds do, and a base of kinds beside experiments on stores."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from gaitforge.common.errors import DatasetError
from gaitforge.common.extensions import own_function
from gaitforge.flows.experiments.claim import claim_folder
from gaitforge.flows.experiments.kinds import PLAN_KINDS
from gaitforge.flows.experiments.summary import SUMMARY, with_page
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import PLAN, plan_from_tree
from gaitforge.flows.records.records import (
    provenance,
    read_plan,
    to_tree,
    write_record,
)
from gaitforge.flows.stages.stage import Stage


class FolderPlan(ABC):
    """A plan whose work is stages in a folder, which its plan.json claims.

    Attributes:
        kind: name of its `PlanKind`, and the `kind` in plan.json.
        takes_stores: whether a command line may give stores to a plan that is there.
    """

    kind: ClassVar[str]
    takes_stores: ClassVar[bool] = False

    @abstractmethod
    def chosen(
        self,
        values: Mapping[str, Any],
        settings: Sequence[str],
        stores: Sequence[str],
        out: Path,
        say: Callable[[str], object],
    ) -> Self:
        """The plan that a command line begins or goes on with in a folder.

        Args:
            values: options by name, as "seeds" or "terrains"; an option that is given and that no
                plan looks up is refused.
            settings: NAME=VALUE, see `override`.
            stores: in place of its own; empty unless it takes stores.
            say: is told what the plan leaves out.

        Raises:
            ValueError: a value that does not fit.
        """

    @abstractmethod
    def stages(self, out: Path) -> list[Stage]:
        """All its stages in a folder."""

    @abstractmethod
    def claim(self, out: Path, write: bool = True) -> None:
        """Write the plan.json of a folder, or only see that it can be; see `claim_folder`."""

    @classmethod
    @abstractmethod
    def claimed(cls, path: Path) -> Self:
        """The plan of a folder, or of a plan's file; ValueError without one."""


class StagedPlan(FolderPlan):
    """Base of plans whose work is stages, then a summary of them all, then a page.

    A plan is a frozen dataclass; plan.json holds its fields.
    """

    @abstractmethod
    def work(self, out: Path) -> list[Stage]:
        """Its stages in a folder, without those of the summary and the page."""

    @abstractmethod
    def summary(self, out: Path) -> Mapping[str, Any]:
        """What `summary.json` tells of the finished work beside the plan and its provenance."""

    @abstractmethod
    def with_options(self, values: Mapping[str, Any], settings: Sequence[str]) -> Self:
        """The plan with the values of a command line in place of its own; as `chosen`."""

    @abstractmethod
    def check_grown(self, old: Self, out: Path) -> None:
        """Raise ValueError unless the plan goes on with `old`, the one in its folder."""

    def chosen(
        self,
        values: Mapping[str, Any],
        settings: Sequence[str],
        stores: Sequence[str],
        out: Path,
        say: Callable[[str], object],
    ) -> Self:
        """The plan `with_options`, whatever its folder."""
        return self.with_options(values, settings)

    def stages(self, out: Path) -> list[Stage]:
        """All its stages in a folder."""
        page = PLAN_KINDS[self.kind].write_page
        summarise = partial(self._summarise, out)
        return with_page(self.work(out), out, self, summarise, partial(page, out))

    def _summarise(self, out: Path, reporter: Reporter) -> None:
        write_record(out / SUMMARY, {"plan": self, **self.summary(out), **provenance()})

    def claim(self, out: Path, write: bool = True) -> None:
        """Write the plan.json of a folder, or only see that it can be; see `claim_folder`."""
        record = {"kind": self.kind, "plan": to_tree(self)}
        claim_folder(out, self.kind, self, record, self.claimed, _check_grown, write)

    @classmethod
    def claimed(cls, path: Path) -> Self:
        """The plan of a folder, or of a plan's file; ValueError without one."""
        return plan_from_tree(cls, read_plan(path if path.is_file() else path / PLAN)[0])


def _check_grown(old: StagedPlan, new: StagedPlan, out: Path) -> None:
    new.check_grown(old, out)


def plan_class(kind: str) -> type[FolderPlan]:
    """The class of the plans of a kind of `PLAN_KINDS`.

    Raises:
        DatasetError: what its entry point names is no such class.
    """
    path = PLAN_KINDS[kind].plan
    plan = own_function(path, "plan")
    is_plan = isinstance(plan, type) and issubclass(plan, FolderPlan)
    if not is_plan or getattr(plan, "kind", "") != kind:
        raise DatasetError(f"{path} is no StagedPlan whose kind is '{kind}'")
    return plan
