"""The collections of legged-shift-v1: the same for ever, bit for bit, in their ranges."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.scenarios.randomisation import Randomisation
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import digest
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.dataset_plan import content_hashes
from gaitforge.flows.tasks.legged import legged_plan
from gaitforge.plugins.shift.benchmark import ShiftPlan, collection_of
from gaitforge.plugins.shift.sets import COLLECTIONS, DRAWS, EXPERT, MEDIUM, NAME, QUALITIES, WEAK
from gaitforge.plugins.shift.tests.conftest import small

PINNED = {
    "legged-shift-v1-nominal": "19269db32ffee4bb",
    "legged-shift-v1-low-friction": "e890bd9268774d3d",
    "legged-shift-v1-payload": "513f78c25f4246f6",
}
"""A change of these is another benchmark, which needs another name: v2."""
MOST_STEPS = 5_000_000
Stores = Mapping[str, Path]


def test_the_plans_are_those_of_version_1() -> None:
    assert {name: digest(plan.content()) for name, plan in COLLECTIONS.items()} == PINNED
    assert {name: legged_plan(name) for name in PINNED} == COLLECTIONS, "presets of collect"
    steps = [sum(plan.expected_steps().values()) for plan in COLLECTIONS.values()]
    assert sum(steps) <= MOST_STEPS
    assert [plan.grid.parts for plan in COLLECTIONS.values()] == [12] * 3


def column(store: Path, name: str) -> np.ndarray:
    return np.array(open_store(store).select().episodes(name).column(name).to_pylist())


@pytest.mark.parametrize("draws", DRAWS)
def test_what_is_drawn_lies_in_its_range_and_nothing_else_differs(
    draws: str, stores: Stores
) -> None:
    store = stores[draws]
    ranges = {
        "friction": (0.1, 0.3) if draws == "low-friction" else (0.3, 1.25),
        "base_mass_offset_kg": (-1.0, 3.0),
    }
    if draws == "payload":
        ranges |= {"payload_kg": (4.0, 8.0), "payload_x_m": (-0.1, 0.1)}
        ranges |= {"payload_y_m": (-0.05, 0.05), "payload_z_m": (0.08, 0.08)}
    for name, (low, high) in ranges.items():
        values = column(store, name)
        assert low <= values.min() <= values.max() <= high, name
        assert low == high or len(set(values)) == len(values)
    declared = open_store(store).schema.attributes["randomisation"]
    assert "gravity_ms2" not in declared, "9.81 in all three"
    for name in ("seed", "skill", "terrain_variant", "push_step", "kp_factor", "friction"):
        values = column(store, name)
        same = np.array_equal(values, column(stores["nominal"], name)[: len(values)])
        assert same == ((draws, name) != ("low-friction", "friction")), name


@pytest.mark.parametrize("draws", DRAWS)
def test_policies_are_scored_under_the_draws_of_a_collection(draws: str, stores: Stores) -> None:
    schema = open_store(stores[draws]).schema
    drawn = Randomisation.of_schema(schema.attributes["randomisation"])
    plan = ShiftPlan((str(stores["nominal"]),))
    assert Randomisation.parsed(plan.under(draws).randomisation) == drawn


def test_qualities_are_told_by_who_acted(stores: Stores) -> None:
    store = open_store(stores["nominal"])
    assert set(column(stores["nominal"], "expert")) == {EXPERT, MEDIUM, WEAK}
    for quality, condition in QUALITIES.items():
        selection = store.select().where(condition) if condition else store.select()
        assert len(selection) == (12 if quality == "mixed" else 4)
    assert collection_of(store) == "", "a part of it is not the collection"


@pytest.mark.slow
@pytest.mark.parametrize("draws", DRAWS)
def test_two_processes_make_the_same_bits_as_one(draws: str, tmp_path: Path) -> None:
    plan = small(COLLECTIONS[f"{NAME}-{draws}"])
    hashes = []
    for workers in (1, 2):
        store = tmp_path / f"{workers}.zarr"
        collect(replace(plan, threads=workers), store, Silent())
        hashes.append(content_hashes(open_store(store)))
    assert len(hashes[0]) == 3
    assert hashes[0] == hashes[1]
