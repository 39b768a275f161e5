"""Progress of parts that other processes make."""

from collections.abc import Iterable
from pathlib import Path

from gaitforge.flows.progress import Advance
from gaitforge.flows.records.activity import read_active
from gaitforge.flows.records.part_records import PartCollected


class FollowedParts:
    """Follows parts: committed ones by their records, the rest by their heartbeats.

    Args:
        folder: the store's records; parts: to follow; advance: called with their steps.
    """

    def __init__(self, folder: Path, parts: Iterable[str], advance: Advance):
        self._folder, self._open, self._advance = folder, set(parts), advance
        self._collected = self._shown = 0

    def __call__(self, records: list[PartCollected]) -> None:
        """Report the steps since the last call; `records`: the parts that were committed since."""
        self._open -= {record.part for record in records}
        self._collected += sum(record.steps for record in records)
        beats = [beat for beat in read_active(self._folder) if beat.part in self._open]
        steps = self._collected + sum(beat.steps for beat in beats)
        # A restarted part begins at its first step; the shown progress stays.
        self._advance(max(0, steps - self._shown), "")
        self._shown = max(steps, self._shown)
