"""Pages that plug-ins and other packages add to a dataset's card and to a run, by entry points.

    [project.entry-points."gaitforge.card_pages"]
    explorer = "gaitforge.plugins.player.entries:EXPLORER"

    [project.entry-points."gaitforge.episode_pages"]
    player = "gaitforge.plugins.player.entries:EPISODES"

Quick to import, as these classes are what entry points name: the functions load when a page is
written. Without such an entry the card and the report have no link, and nothing else changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gaitforge.common.extensions import Registered, own_function

if TYPE_CHECKING:
    from gaitforge.datasets import Selection
    from gaitforge.flows.progress import Reporter


@dataclass(frozen=True)
class CardPage:
    """A page beside a dataset's card.

    Attributes:
        file: its name in the card's folder, e.g. "explorer.html"; a published store has it, too.
        link: the text of the card's link to it.
        text: "module:function" of (selection, folder, condition), which returns the page as text;
            `condition` is the SQL condition of the selection, empty for a whole store.
    """

    file: str
    link: str
    text: str


@dataclass(frozen=True)
class EpisodePages:
    """What writes the pages of a run that show its episodes.

    Attributes:
        stored: "module:function" of (store, page, reporter), which writes the page of a store's
            episodes.
        evaluated: "module:function" of (run folder, names, reporter, ghosts), which writes
            `episodes/NAME.html` of the evaluations of these names; `ghosts` asks for the expert
            beside them.
        command: the command that writes such a page of the store, evaluation's file or run that
            follows it, into `--out FILE`; "" for none.
    """

    stored: str
    evaluated: str
    command: str = ""


CARD_PAGES = Registered("card_page", CardPage, {})
"""Name -> a page beside every card."""
EPISODE_PAGES = Registered("episode_page", EpisodePages, {})
"""Name -> what writes pages of a run; the first one does."""


def card_pages(selection: "Selection", folder: Path, condition: str) -> dict[str, str]:
    """The added pages of a card in this folder: file -> text."""
    return {
        page.file: own_function(page.text)(selection, folder, condition)
        for page in CARD_PAGES.usable().values()
    }


def write_stored_page(store: Path, page: Path, reporter: "Reporter") -> None:
    """Write the page of a store's episodes; nothing where no package writes it."""
    if (pages := episode_pages()) is not None:
        own_function(pages.stored)(store, page, reporter)


def write_evaluation_pages(
    out: Path, names: Sequence[str], reporter: "Reporter", ghosts: bool = True
) -> None:
    """Write the pages of a run's evaluations; nothing where no package writes them."""
    if (pages := episode_pages()) is not None:
        own_function(pages.evaluated)(out, names, reporter, ghosts)


def episode_pages() -> EpisodePages | None:
    """What writes the pages of a run; None if no installed package does."""
    return next(iter(EPISODE_PAGES.usable().values()), None)
