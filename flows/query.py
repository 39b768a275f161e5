"""A query of a dataset as a Prefect flow; its runs load neither a simulator nor torch."""

from pathlib import Path
from typing import Any

from prefect import State
from prefect.states import Completed

from gaitforge.datasets import open_store
from gaitforge.datasets.errors import amount
from gaitforge.flows import forms
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.runners.artifacts import last_name, show_table, tag_run
from gaitforge.flows.runners.prefect import deployed_flow, named_after, retried_task


@retried_task("query", "query {store}")
def queried(
    store: Path | str,
    cells: dict[str, Any],
    where: str,
    group_by: list[str],
    listed: int,
    save: str,
) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
    """Select episodes; returns their number, a row of each group, and rows of the first ones."""
    selection = open_store(store).select(**cells)
    if where:
        selection = selection.where(where)
    if save:
        selection.save(save)
    groups = selection.describe(group_by or None)
    first = selection.listing(listed) if listed else []
    return len(selection), groups, first


@deployed_flow("query", named_after("query", "store", "terrains", "skills", "where"))
def query(
    store: forms.Place,
    terrains: forms.Terrains = forms.NONE,
    skills: forms.Skills = forms.NONE,
    levels: forms.Levels = forms.NONE,
    where: str = "",
    group_by: list[str] = forms.NONE,
    listed: forms.Listed = 0,
    save: str = "",
) -> State[None]:
    """Describe the episodes of a store that meet a condition, and list the first ones.

    Args:
        store: a folder, or s3://bucket/prefix.
        terrains: empty for all.
        skills: empty for all.
        levels: of the terrain; empty for all.
        where: a boolean SQL expression over the catalog's columns.
        group_by: columns; empty for the store's own.
        listed: episodes to list.
        save: file for the selection, to train on; empty for none.
    """
    tag_run(store=last_name(store), terrain=terrains)
    address = store_address(store)
    cells = {"terrain": terrains or None, "skill": skills or None, "level": levels or None}
    found, groups, first = queried(address, cells, where, list(group_by), listed, save)
    show_table("query", groups, f"{amount(found, 'episode')} of {store}", address)
    if first:
        show_table("episodes listed", first, f"the first {len(first):,} of {found:,}", address)
    return Completed(message=amount(found, "episode"))
