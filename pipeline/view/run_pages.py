"""Pages of a run's evaluations; the cells of its report or comparison link to them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gaitforge.common.files import sha256_file
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import read_record, write_record
from gaitforge.pipeline.view.page import bundle, write_page, write_reason
from gaitforge.pipeline.view.policy_pages import (
    default_robot,
    evaluation_show,
    ghost_source,
    with_ghosts,
)
from gaitforge.pipeline.view.show import NothingToShow

PAGES = Path("episodes")
_EXPERT = "expert"


def write_evaluation_pages(
    run_dir: Path, names: Sequence[str], reporter: Reporter, ghosts: bool = True
) -> None:
    """Write `episodes/NAME.html` for evaluations of a demo or comparison, where none is newer.

    Each plays the worst, the median and the best episode of every cell, with `ghosts` beside the
    default expert's on the same start and seed, where it drives that robot. Where there is nothing
    to show, the page says why.

    Raises:
        ValueError: an evaluation or its policy is missing, or a page cannot be made or written.
    """
    bundle()
    for name in names:
        evaluation = run_dir / "evaluate" / f"{name}.json"
        if not evaluation.is_file():
            raise ValueError(f"{evaluation} is missing, whose episodes the page plays")
        key = {"evaluation": sha256_file(evaluation)}
        page = run_dir / PAGES / f"{name}.html"
        if read_record(page.with_suffix(".json")) == key and page.is_file():
            continue
        title = f"{name}: episodes of its evaluation"
        try:
            show = evaluation_show(evaluation, reporter)
            if ghosts and name != _EXPERT and show.robot.name == default_robot():
                show = with_ghosts(show, ghost_source(_EXPERT), reporter)
            write_page(replace(show, title=title), page)
        except NothingToShow as error:
            reporter.say(f"no page of episodes: {error}")
            write_reason(page, title, str(error))
        write_record(page.with_suffix(".json"), key)


def page_of(run_dir: Path, name: str) -> str:
    """Address of an evaluation's page, relative to the run's folder; "" where there is none."""
    page = PAGES / f"{name}.html"
    return page.as_posix() if (run_dir / page).is_file() else ""
