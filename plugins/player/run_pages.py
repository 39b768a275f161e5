"""Pages of a run that play its episodes: the collected ones, and those of its evaluations.

The cells of the run's report link to them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gaitforge.collectors.legged.replaying import by_robot
from gaitforge.common.files import sha256_file
from gaitforge.datasets import open_store
from gaitforge.flows.experiments.page_files import page_of
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import read_record, write_file, write_record
from gaitforge.pipeline.report.pages import policy
from gaitforge.plugins.player.episodes import (
    NothingToShow,
    default_robot,
    evaluation_show,
    ghost_source,
    spread_over_returns,
    stored_show,
    with_ghosts,
)
from gaitforge.plugins.player.explorer import explorer_of
from gaitforge.plugins.player.page import bundle, write_page, write_reason

_SHOWN = 30
"""Most stored episodes on a page."""
_EXPERT = "expert"


def write_stored_page(store: Path, page: Path, reporter: Reporter) -> None:
    """Write a page that plays stored episodes, and the explorer of all beside it."""
    selection = open_store(store).select()
    write_file(page.with_name("explorer.html"), explorer_of(selection, page.parent).encode())
    one_robot = by_robot(selection)[0]  # a page shows one
    try:
        show = stored_show(spread_over_returns(one_robot, _SHOWN), reporter)
        write_page(show, page)
    except NothingToShow as error:
        reporter.say(f"no page of episodes: {error}")
        write_reason(page, "Stored episodes", str(error))


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
        page = page_of(run_dir, name)
        if read_record(page.with_suffix(".json")) == key and page.is_file():
            continue
        title = f"{policy(name)}: episodes of its evaluation"
        try:
            show = evaluation_show(evaluation, reporter)
            if ghosts and name != _EXPERT and show.robot.name == default_robot():
                show = with_ghosts(show, ghost_source(_EXPERT), reporter)
            write_page(replace(show, title=title), page)
        except NothingToShow as error:
            reporter.say(f"no page of episodes: {error}")
            write_reason(page, title, str(error))
        write_record(page.with_suffix(".json"), key)
