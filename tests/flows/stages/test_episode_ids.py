"""No two parts of a store share episode ids: refused before a part is made, or at the end."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gaitforge.datasets import DatasetError, Schema, open_store
from gaitforge.flows.progress import Advance, Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.interface import CollectionPlan, PartData, Simulation, Workers
from gaitforge.flows.tasks.legged import LeggedPlan
from tests.datasets.making import part_input, small_schema
from tests.flows.making import COLLECT


@dataclass(frozen=True)
class Parts(CollectionPlan):
    """Parts of two episodes; `first` has the first id of each, which `told` tells beforehand."""

    kind = "tests.flows.stages.test_episode_ids:Parts"
    parallelism = "threads"

    names: tuple[str, ...]
    first: tuple[int, ...]
    told: bool = True
    threads: Workers = 1

    def expected_steps(self) -> dict[str, int]:
        return dict.fromkeys(self.names, 5)

    def episode_ids(self) -> Mapping[str, range]:
        if not self.told:
            return {}
        ids = zip(self.names, self.first, strict=True)
        return {name: range(first, first + 2) for name, first in ids}

    def schema(self) -> Schema:
        return small_schema()

    def simulate(self, threads: int = 1) -> Simulation:
        return Made(self)


class Made(Simulation):
    def __init__(self, plan: Parts) -> None:
        self._plan = plan

    def roll_out(self, part: str, schema: Schema, advance: Advance) -> PartData:
        first = self._plan.first[self._plan.names.index(part)]
        data: dict[str, Any] = part_input((3, 2), first)
        return PartData(data["steps"], data["per_episode"], data["episodes"])


def test_parts_that_would_share_ids_are_refused_before_any_is_made(tmp_path: Path) -> None:
    out = tmp_path / "s.zarr"
    with pytest.raises(ValueError, match="parts a and b of the plan would share episode ids"):
        collect(Parts(("a", "b"), (10, 11)), out, Silent())
    assert open_store(out).parts() == []
    collect(Parts(("a", "b"), (10, 12)), out, Silent())
    for first in (9, 11, 13):
        with pytest.raises(ValueError, match=r"part c .* share episode ids with part [ab] of"):
            collect(Parts(("c",), (first,)), out, Silent())
    assert open_store(out).parts() == ["a", "b"]
    collect(Parts(("a", "b", "c"), (10, 12, 8)), out, Silent())
    assert open_store(out).verify() == []


def test_shared_ids_that_no_plan_told_are_an_error_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"parts a, b of .* share episode ids 10, 11"):
        collect(Parts(("a", "b"), (10, 10), told=False), tmp_path / "s.zarr", Silent())


def test_a_legged_plan_tells_the_ids_that_its_parts_have(tmp_path: Path) -> None:
    plan: LeggedPlan = COLLECT
    told = plan.episode_ids()
    assert list(told) == plan.part_ids()
    for part, ids in told.items():
        specs = plan.grid.part_specs(part)
        assert [spec.index for spec in specs] == list(ids)
