"""The pages of an experiment: its store's card, pictures, episodes, and the report.

Every command of an experiment loads this module, but few write pages, so what these need (above
all matplotlib) is imported by the functions that write them.
"""

from pathlib import Path

from gaitforge.datasets import open_store
from gaitforge.flows.experiments.claim import Claim, claimed
from gaitforge.flows.experiments.experiment_stages import Pages, card_of, experiment_stages
from gaitforge.flows.experiments.kinds import PLAN_KINDS
from gaitforge.flows.experiments.staged_plan import plan_class
from gaitforge.flows.progress import Reporter
from gaitforge.flows.stages.stage import Stage
from gaitforge.flows.stages.status import staged_kind
from gaitforge.pipeline.report.added_pages import (
    EPISODE_PAGES,
    write_evaluation_pages,
    write_stored_page,
)


def write_store_card(store: Path, reporter: Reporter) -> None:
    """Write the card of an experiment's store, without pictures."""
    from gaitforge.pipeline.report.card import write_card

    write_card(open_store(store).select(), card_of(store).parent, reporter=reporter)


def write_experiment_report(out: Path, reporter: Reporter) -> Path:
    """Draw the sheets of an experiment's folder, and write its report."""
    from gaitforge.pipeline.report.pictures import make_experiment_sheets
    from gaitforge.pipeline.report.report import write_report

    make_experiment_sheets(out, reporter.say)
    if (out / "evaluate" / "expert.json").is_file():
        write_evaluation_pages(out, ["expert"], reporter)
    return write_report(out)


def stages_in(out: Path) -> list[Stage]:
    """The stages of an experiment's folder, of any kind; ValueError without one."""
    kind = staged_kind(out)
    if kind in PLAN_KINDS:
        return plan_class(kind).claimed(out).stages(out)
    return stages_of(claimed(out), out)


def stages_of(claim: Claim, out: Path) -> list[Stage]:
    """An experiment's stages, with its pages."""
    shown = bool(EPISODE_PAGES)
    pages = Pages(
        card=write_store_card,
        episodes=write_stored_page if shown else None,
        policies=write_evaluation_pages if shown else None,
        report=write_experiment_report,
    )
    return experiment_stages(claim, out, pages)
