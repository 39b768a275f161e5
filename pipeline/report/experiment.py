"""The pages of an experiment: its store's card, pictures, episodes, and the report.

Every command of an experiment loads this module, but few write pages, so what these need (above
all matplotlib) is imported by the functions that write them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from gaitforge.collectors.legged.replaying import by_robot
from gaitforge.datasets import open_store
from gaitforge.flows.experiments import measurements, reinforcement, robustness
from gaitforge.flows.experiments.claim import Claim, claim_folder, claimed
from gaitforge.flows.experiments.experiment_stages import Pages, card_of, experiment_stages
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import PLAN, plan_from_tree
from gaitforge.flows.records.records import read_plan, reading_files, to_tree, write_file
from gaitforge.flows.stages.stage import Stage
from gaitforge.flows.stages.status import MEASUREMENT, REINFORCEMENT, ROBUSTNESS, staged_kind

_PAGES = "gaitforge.pipeline.report.kinds"
_SHOWN = 30
"""Most stored episodes on a page."""


def write_store_card(store: Path, reporter: Reporter) -> None:
    """Write the card of an experiment's store, without pictures."""
    from gaitforge.pipeline.report.card import write_card

    write_card(open_store(store).select(), card_of(store).parent, reporter=reporter)


def write_stored_page(store: Path, page: Path, reporter: Reporter) -> None:
    """Write a page that plays stored episodes, and the explorer of all beside it."""
    from gaitforge.pipeline.report.explorer.page import explorer_of
    from gaitforge.pipeline.view.page import write_page, write_reason
    from gaitforge.pipeline.view.show import NothingToShow
    from gaitforge.pipeline.view.stored_episodes import spread_over_returns, stored_show

    selection = open_store(store).select()
    write_file(page.with_name("explorer.html"), explorer_of(selection, page.parent).encode())
    one_robot = by_robot(selection)[0]  # a page shows one
    try:
        show = stored_show(spread_over_returns(one_robot, _SHOWN), reporter)
        write_page(show, page)
    except NothingToShow as error:
        reporter.say(f"no page of episodes: {error}")
        write_reason(page, "Stored episodes", str(error))


def write_experiment_report(out: Path, reporter: Reporter) -> Path:
    """Draw the sheets of an experiment's folder, and write its report."""
    from gaitforge.pipeline.report.pictures import make_experiment_sheets
    from gaitforge.pipeline.report.report import write_report

    make_experiment_sheets(out, reporter.say)
    if (out / "evaluate" / "expert.json").is_file():
        write_policy_pages(out, ["expert"], reporter)
    return write_report(out)


def write_policy_pages(out: Path, names: Sequence[str], reporter: Reporter) -> None:
    """Write pages that play episodes of an experiment's policies."""
    from gaitforge.pipeline.view.run_pages import write_evaluation_pages

    write_evaluation_pages(out, names, reporter)


@dataclass(frozen=True)
class PlanKind:
    """A kind of plan in stages beside `Experiment`.

    Attributes:
        name: in plan.json; plan: its class.
        stages: its stages in a folder, given what writes the folder's page.
        check: raises ValueError unless a plan, the second one, goes on with that of a folder.
        module: of `report/kinds`, with its `write_page` and `summary_rows`.
        options: field of the plan, wherever it is in its tree -> option of the command line.
        shared: field of named settings -> options that all of them get.
        picked: field whose entries --learners picks; "" for none.
    """

    name: str
    plan: type
    stages: Callable[[Any, Path, Callable[[Path, Reporter], object]], list[Stage]]
    check: Callable[[Any, Any, Path], None]
    module: str
    options: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    picked: str = ""

    def stages_of(self, plan: object, out: Path) -> list[Stage]:
        """The stages of a plan."""
        return self.stages(plan, out, self.page)

    def page(self, out: Path, reporter: Reporter) -> Path:
        """Write report.html of a folder; returns its path."""
        with reading_files(out):
            return import_module(f"{_PAGES}.{self.module}").write_page(out, reporter)

    def rows(self, summary: Mapping[str, Any]) -> list[dict[str, str]]:
        """The table of a `summary.json`."""
        return import_module(f"{_PAGES}.{self.module}").summary_rows(summary)

    def claimed(self, place: Path) -> Any:
        """The plan of a folder, or of a plan's file; ValueError without one."""
        return plan_from_tree(self.plan, read_plan(place if place.is_file() else place / PLAN)[0])

    def claim(self, plan: object, out: Path, write: bool = True) -> None:
        """Write the plan.json of a plan, or only see that it can be; see `claim_folder`."""
        record = {"kind": self.name, "plan": to_tree(plan)}
        claim_folder(out, self.name, plan, record, self.claimed, self.check, write)


_KINDS = (
    PlanKind(
        ROBUSTNESS, robustness.RobustnessPlan, robustness.robustness_stages,
        robustness.check_grown, "robustness",
        options={"terrains": "terrain", "skills": "skill", "levels": "level",
                 "episodes": "episodes", "threads": "threads"},
    ),
    PlanKind(
        REINFORCEMENT, reinforcement.ReinforcementPlan, reinforcement.reinforcement_stages,
        reinforcement.check_grown, "reinforcement",
        options={"seeds": "seeds"},
        shared={"tasks": ("steps", "device", "threads"), "evaluate": ("threads",)},
        picked="learners",
    ),
    PlanKind(
        MEASUREMENT, measurements.MeasurementPlan, measurements.measurement_stages,
        measurements.check_grown, "measurements",
        options={"threads": "threads"},
    ),
)  # fmt: skip
PLAN_KINDS: Mapping[str, PlanKind] = {kind.name: kind for kind in _KINDS}


def stages_in(out: Path) -> list[Stage]:
    """The stages of an experiment's folder, of any kind; ValueError without one."""
    if (kind := PLAN_KINDS.get(staged_kind(out))) is not None:
        return kind.stages_of(kind.claimed(out), out)
    return stages_of(claimed(out), out)


def stages_of(claim: Claim, out: Path) -> list[Stage]:
    """An experiment's stages, with its pages."""
    pages = Pages(write_store_card, write_stored_page, write_policy_pages, write_experiment_report)
    return experiment_stages(claim, out, pages)
