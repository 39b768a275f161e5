"""A dataset's card as a Prefect flow; in a file of its own, since its runs need no torch."""

from pathlib import Path
from typing import Any

from gaitforge.datasets import open_store
from gaitforge.flows.forms import NONE, Levels, Place, Skills, Terrains
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.runners.artifacts import last_name, show_file, show_markdown, tag_run
from gaitforge.flows.runners.prefect import deployed_flow, named_after, retried_task
from gaitforge.pipeline.report.card import selected, write_card


@retried_task("card", "card {folder.name}")
def write_store_card(
    store: Path | str, folder: Path, cells: dict[str, Any], where: str, channels: bool
) -> tuple[Path, Path, Path]:
    """Write the card of a store's selection; returns its page, its Markdown and its record."""
    selection, filters, condition = selected(open_store(store), cells, where or None)
    return write_card(selection, folder, filters=filters, condition=condition, channels=channels)


@deployed_flow("card", named_after("card of", "store", "terrains", "skills"))
def card(
    store: Place,
    out: str = "",
    terrains: Terrains = NONE,
    skills: Skills = NONE,
    levels: Levels = NONE,
    where: str = "",
    channels: bool = True,
) -> None:
    """Compute a dataset's statistics and write its card.

    Args:
        store: a folder.
        out: folder of the card; empty for STORE.card.
        terrains: empty for all.
        skills: empty for all.
        levels: of the terrain; empty for all.
        where: a boolean SQL expression over the catalog's columns.
        channels: also read the arrays, for the statistics of every channel.
    """
    cells = {"terrain": terrains or None, "skill": skills or None, "level": levels or None}
    address, folder = store_address(store), Path(out or f"{store}.card")
    tag_run(store=last_name(store))
    page, markdown, _ = write_store_card(address, folder, cells, where, channels)
    show_markdown("card", markdown.read_text(), "dataset card", address)
    show_file("card page", page, "the card as a page")
