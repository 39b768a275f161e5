"""An experiment on stores as a plan in stages, with the pipeline's presets and pages."""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from gaitforge.flows.experiments.claim import Claim, claim, claimed
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.experiments.runs import note_rounds
from gaitforge.flows.experiments.staged_plan import FolderPlan
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.stages.stage import Stage
from gaitforge.flows.stages.status import EXPERIMENT
from gaitforge.pipeline.presets.choices import CONFIG, chosen_claim
from gaitforge.pipeline.report.experiment import stages_of


@dataclass(frozen=True)
class ExperimentPlan(FolderPlan):
    """An experiment, and the stores that it learns from; as `Claim`, but maybe without any yet."""

    kind: ClassVar[str] = EXPERIMENT
    takes_stores: ClassVar[bool] = True

    name: str
    experiment: Experiment
    stores: tuple[str, ...] = ()
    fitted: tuple[str, ...] = ()

    @classmethod
    def of_claim(cls, claim: Claim) -> Self:
        """The plan of a claim."""
        return cls(claim.name, claim.experiment, claim.stores, claim.fitted)

    def chosen(
        self,
        values: Mapping[str, Any],
        settings: Sequence[str],
        stores: Sequence[str],
        out: Path,
        say: Callable[[str], object],
    ) -> Self:
        """The plan on the stores, or its own ones, with the values; see `chosen_claim`."""
        addresses = tuple(str(store_address(store)) for store in (stores or self.stores))
        timed = "train_s" in values  # takes the place of the steps
        names = [name for name in CONFIG if name in values and not (timed and name == "steps")]
        config = {name: values[name] for name in names}
        choices = ChainMap({"config": config} if config else {}, values)  # type: ignore[arg-type]
        plan = self.name, self.experiment, addresses
        return self.of_claim(chosen_claim(*plan, choices, settings, out, say, self.fitted))

    def stages(self, out: Path) -> list[Stage]:
        """Its stages in a folder, with the pages."""
        return stages_of(self._claim(), out)

    def claim(self, out: Path, write: bool = True) -> None:
        """Write the plan.json of a folder; the store's records note rounds of imitation in it."""
        claim(self._claim(), out, write)
        if self.stores and write:
            note_rounds(self.experiment, self.stores[0])

    @classmethod
    def claimed(cls, path: Path) -> Self:
        """The plan of a folder; or of a plan's file, whose stores are another folder's."""
        old = claimed(path)
        return cls.of_claim(old) if path.is_dir() else cls(old.name, old.unfitted)

    def _claim(self) -> Claim:
        return Claim(self.name, self.experiment, self.stores, self.fitted)
