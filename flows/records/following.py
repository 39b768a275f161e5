"""Following parts that others make."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flows.progress import Advance
from flows.records.activity import read_active
from flows.records.part_records import PartCollected


class FollowedParts:
    """Progress of parts that others make: whole ones by their records, the rest by heartbeats.

    Args:
        folder: the store's records; parts: that are awaited; advance: hears of their steps.
    """

    def __init__(self, folder: Path, parts: Iterable[str], advance: Advance):
        self._folder, self._open, self._advance = folder, set(parts), advance
        self._collected = self._shown = 0

    def __call__(self, records: list[PartCollected]) -> None:
        """Look again; `records` came since the last look."""
        self._open -= {record.part for record in records}
        self._collected += sum(record.steps for record in records)
        beats = [beat for beat in read_active(self._folder) if beat.part in self._open]
        known = self._collected + sum(beat.steps for beat in beats)
        # A part that is made again counts from its first step; what was shown stays.
        self._advance(max(0, known - self._shown), "")
        self._shown = max(known, self._shown)
