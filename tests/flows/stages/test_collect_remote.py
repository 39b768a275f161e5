"""Collecting straight into object storage gives the dataset that a local folder would hold."""

from dataclasses import replace
from pathlib import Path

import pytest

from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.part_records import part_records
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.replay import replay
from tests.flows.making import COLLECT, GRID

PLAN = replace(COLLECT, grid=replace(GRID, parts=2, episodes_per_part=4))


@pytest.mark.slow
def test_a_remote_collection_is_the_local_one_and_goes_on(url: str, tmp_path: Path) -> None:
    local = tmp_path / "legged.zarr"
    collect(PLAN, local, Silent())
    first = collect(PLAN, url, Silent(), PLAN.part_ids()[:1])
    rest = collect(PLAN, url, Silent())
    assert sorted(record.part for record in first + rest) == PLAN.part_ids()
    assert open_store(url).info().hash == open_store(local).info().hash
    assert [record.part for record in part_records(url, PLAN.part_ids())] == PLAN.part_ids()
    assert replay(url, 4, 0, Silent()) == []
