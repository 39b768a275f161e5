"""A dataset's card as a Prefect flow; in a file of its own, since its runs need no torch."""

from pathlib import Path
from typing import Any

from prefect import flow

from datasets import open_store
from flows.forms import NONE, Levels, Place, Skills, Terrains
from flows.records.part_records import store_address
from flows.runners.prefect import last_name, named_after, retried_task, show_file, show_markdown
from pipeline.report.card import selected, write_card


@retried_task("card", "card {folder.name}")
def write_store_card(
    store: Path | str, folder: Path, cells: dict[str, Any], where: str, channels: bool
) -> tuple[Path, Path, Path]:
    """Write the card of a store's selection; returns its page, its Markdown and its record."""
    selection, filters, condition = selected(open_store(store), cells, where or None)
    return write_card(selection, folder, filters=filters, condition=condition, channels=channels)


@flow(name="card", flow_run_name=named_after("card of", "store"), persist_result=False)
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
    folder, name = Path(out or f"{store}.card"), last_name(store)
    page, markdown, _ = write_store_card(store_address(store), folder, cells, where, channels)
    show_markdown(f"card {name}", markdown.read_text(), "dataset card")
    show_file(f"card page {name}", page, "the card as a page")
