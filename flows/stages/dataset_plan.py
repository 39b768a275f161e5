"""A dataset as a plan: kilobytes from which its parts are made anew, and their hashes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from gaitforge.common.errors import failures
from gaitforge.common.trust import naming
from gaitforge.datasets import DatasetError, Store, open_store
from gaitforge.datasets.catalog.conditions import matching_rows
from gaitforge.flows.records.part_records import plan_records
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import provenance, read_record
from gaitforge.flows.tasks.interface import CollectionPlan
from gaitforge.flows.tasks.registry import collection_plan

KIND = "gaitforge dataset"
PLANNED = ("terrain", "level", "skill", "seed", "action_noise")


@dataclass(frozen=True)
class _Collection:
    """A plan of a task, and those of its parts that are planned."""

    kind: str
    plan: Mapping[str, Any]
    parts: tuple[str, ...]


@dataclass(frozen=True)
class _DatasetPlan:
    """What a dataset's plan says: collections, and the hash of every part's content."""

    plans: tuple[_Collection, ...]
    parts: Mapping[str, str]


def dataset_plan(address: Path | str) -> dict[str, Any]:
    """The plans of a store's parts, the parts' hashes, and the versions that made them.

    Names of parts change with the files of experts, robots and policies, so that other files make
    no other dataset unnoticed.

    Raises:
        ValueError: no store, or a part that no plan beside it made.
    """
    store = open_store(address)
    hashes = content_hashes(store)
    plans = []
    planned = set[str]()
    for record in plan_records(store.address):
        new = dict.fromkeys(record["parts"])  # plans may share parts: the first one makes them
        parts = [part for part in new if part in hashes and part not in planned]
        if parts:
            plans.append({"kind": record["kind"], "plan": record["plan"], "parts": parts})
            planned |= set(parts)
    if lost := sorted(hashes.keys() - planned):
        raise ValueError(f"{address} has no plan beside it that made part {lost[0]}")
    return {"dataset": KIND, "plans": plans, "parts": hashes, **provenance()}


def read_dataset_plan(path: Path, where: str = "") -> list[tuple[CollectionPlan, list[str]]]:
    """The collections of a file that `dataset_plan` wrote, each with its parts.

    Args:
        where: SQL condition on terrain, level, skill, seed and action_noise; parts without such an
            episode are left out.

    Raises:
        ValueError: no such file, a condition that its plans cannot answer, or an expert's, robot's
            or policy's file that is missing or differs.
    """
    record = _read(path)
    collections = []
    listed = set[str]()
    for entry in record.plans:
        with naming(path):
            plan = collection_plan(entry.kind, entry.plan)
        plan.listed_with(entry.parts[0])
        new = [part for part in dict.fromkeys(entry.parts) if part not in listed]
        listed |= set(new)
        parts = [part for part in new if not where or _has(plan, part, where)]
        if parts:
            collections.append((plan, parts))
    if not collections:
        raise ValueError(f"no episode of {path} matches {where}")
    return collections


def differing_parts(path: Path, store: Store, parts: Sequence[str]) -> list[str]:
    """The parts of a store whose content is not what a dataset's plan says."""
    hashes = _read(path).parts
    stored = content_hashes(store)
    return [part for part in parts if stored.get(part) != hashes[part]]


def content_hashes(store: Store) -> dict[str, str]:
    """Part -> hash of its content, of a store without its edits."""
    manifests = store.as_collected().catalog.manifests
    return {part: manifests[part].content_hash for part in sorted(manifests)}


def _read(path: Path) -> _DatasetPlan:
    record = read_record(path)
    if record is None or record.get("dataset") != KIND:
        raise ValueError(f"{path} is no dataset's plan, which gaitforge plan writes")
    with failures(str(path), ValueError, error=ValueError):
        values = plan_from_tree(_DatasetPlan, {name: record[name] for name in ("plans", "parts")})
    for entry in values.plans:
        if not entry.parts:
            raise ValueError(f"{path}: a plan of {entry.kind} has no parts")
        if unknown := [part for part in entry.parts if part not in values.parts]:
            raise ValueError(f"{path} has no hash of part {unknown[0]}")
    return values


def _has(plan: CollectionPlan, part: str, where: str) -> bool:
    """Whether a part has an episode that matches."""
    grid = getattr(plan, "grid", None)
    if not hasattr(grid, "part_specs"):
        raise ValueError(f"--where needs plans of legged robots, not of {plan.kind}")
    specs = grid.part_specs(part)
    table = pa.table({n: [getattr(spec, n) for spec in specs] for n in PLANNED})
    return bool(len(matching_rows(_Planned(table), where)))


@dataclass(frozen=True)
class _Planned:
    """Catalog columns of episodes that are not simulated yet, for `matching_rows`."""

    table: pa.Table

    @property
    def column_names(self) -> list[str]:
        return self.table.column_names

    @property
    def num_rows(self) -> int:
        return self.table.num_rows

    def check_column(self, name: str) -> str:
        if name not in PLANNED:
            raise DatasetError(f"'{name}' is not known before: allowed are {', '.join(PLANNED)}")
        return name

    def stored(self, names: Sequence[str]) -> pa.Table:
        return self.table.select([name for name in names if name in PLANNED] or [PLANNED[0]])
