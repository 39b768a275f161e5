"""What rounds of corrections begin with: the parts of a store that no earlier rounds collected."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from gaitforge.common.errors import listed
from gaitforge.datasets import open_store
from gaitforge.flows.experiments.plan import Corrections, Experiment
from gaitforge.flows.experiments.runs import round_on_store
from gaitforge.flows.records.part_records import records_folder
from gaitforge.flows.records.records import digest, read_record, write_record

_ROUNDS = "rounds-"
"""Beginning of the names of files in a store's records that tell its rounds' plain parts."""
_NOBODY = ""
_ITSELF = "itself"
_DEMONSTRATORS = {
    _NOBODY: "policy_hash is null or policy_hash = ''",
    _ITSELF: "policy_hash = expert_hash",
}
"""Who drove beside the expert -> the condition that holds for these episodes."""


@dataclass(frozen=True)
class FirstParts:
    """Parts of a store.

    Attributes:
        kept: those that rounds begin with; left_out: those that earlier rounds have collected.
        where: SQL condition that leaves out earlier corrections within parts that are kept, as an
            import has them, which makes parts of its own; "" for none.
    """

    kept: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    where: str = ""


def parts_of_demonstrations(store_path: Path | str, among: Sequence[str] = ()) -> FirstParts:
    """The parts in which nobody else drove than who acted, told by the catalog's rows.

    Where a store has no others, episodes in which a policy acted for itself are demonstrations.

    Args:
        among: all that are looked at; empty for all.

    Raises:
        ValueError: there are none.
    """
    store = open_store(store_path)
    selection = store.select().of_parts(among) if among else store.select()
    columns = [
        name for name in ("policy_hash", "expert_hash") if name in selection.catalog.column_names
    ]
    drivers: dict[str, set[str]] = {part: set() for part in among or store.parts()}
    for row in selection.episodes("part", *columns).to_pylist():
        driver = row.get("policy_hash") or _NOBODY
        drivers[row["part"]].add(_ITSELF if driver == row.get("expert_hash") else driver)
    for demonstrator, condition in _DEMONSTRATORS.items():
        kept = tuple(part for part, part_drivers in drivers.items() if demonstrator in part_drivers)
        if kept:
            shared = [part for part in kept if len(drivers[part]) > 1]
            names = ", ".join(f"'{part}'" for part in shared)
            where = f"{condition} or part not in ({names})" if shared else ""
            left_out = tuple(part for part in drivers if part not in kept)
            return FirstParts(kept, left_out, where)
    raise ValueError(
        f"all parts of {store_path} are corrections of policies; choose those of round 0 by "
        "--set select.parts=NAME,NAME"
    )


def without_rounds(experiment: Experiment, store_path: Path | str) -> FirstParts:
    """An experiment's parts without those of plain imitation, of its own rounds or earlier ones.

    Its own are known by their names, those of other rounds by the store's records.

    Raises:
        ValueError: none is left.
    """
    if experiment.corrections is None:
        return FirstParts(experiment.select.parts)
    corrections = experiment.corrections
    chosen = set(experiment.select.parts)
    rounds = set(_noted_parts(store_path))
    for k in count(1):
        plain = set(_plain_parts(corrections, store_path, k))
        if k > corrections.rounds and not plain & chosen:
            break  # earlier ones had no more rounds either
        rounds |= plain
    kept = tuple(part for part in experiment.select.parts if part not in rounds)
    if not kept:
        raise ValueError(
            f"all of {listed(experiment.select.parts)} of {store_path} belong to rounds of "
            "corrections; choose those of round 0 by --set select.parts=NAME,NAME"
        )
    return FirstParts(kept, tuple(part for part in experiment.select.parts if part in rounds))


def note_rounds(experiment: Experiment, store_path: Path | str) -> None:
    """Note in a store's records which parts are an experiment's plain imitation.

    No catalog tells them from demonstrations: the expert alone drives.
    """
    corrections = experiment.corrections
    if corrections is None or experiment.collect is not None or not corrections.plain:
        return
    rounds = range(1, corrections.rounds + 1)
    parts = [part for k in rounds for part in _plain_parts(corrections, store_path, k)]
    if not set(parts) <= set(_noted_parts(store_path)):
        path = records_folder(store_path) / f"{_ROUNDS}{digest(parts)}.json"
        write_record(path, {"parts": parts})


def with_first(experiment: Experiment, first: FirstParts) -> Experiment:
    """An experiment that begins with these parts."""
    select = replace(experiment.select, parts=first.kept)
    if first.where:
        where = f"({select.where}) and ({first.where})" if select.where else first.where
        select = replace(select, where=where)
    return replace(experiment, select=select)


def _plain_parts(corrections: Corrections, store_path: Path | str, k: int) -> list[str]:
    return round_on_store(corrections, store_path, k).part_ids()


def _noted_parts(store_path: Path | str) -> list[str]:
    paths = sorted(records_folder(store_path).glob(f"{_ROUNDS}*.json"))
    records = (read_record(path) for path in paths)
    return [part for record in records if record is not None for part in record["parts"]]
