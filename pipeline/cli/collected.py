"""What a collection tells when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flows.records.part_records import PartCollected, collection_rate
from pipeline.tables import show


def show_collected(
    rows: Sequence[dict[str, Any]], records: Sequence[PartCollected], as_json: bool
) -> None:
    """Print rows about what was collected and, below a table, how fast, where times are known."""
    show(rows, as_json)
    rate = collection_rate(records)
    if rate and not as_json:
        print(f"{rate:,.0f} steps/s: simulation, policy and writing")
