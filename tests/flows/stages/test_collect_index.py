"""A collection leaves the catalog's index behind, so that the first query need not make it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gaitforge.datasets import Store, open_store
from gaitforge.datasets.catalog.index import Segment, segment_paths
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.part_records import check_versions
from gaitforge.flows.stages.collect import collect
from tests.flows.making import COLLECT, GRID

PLAN = replace(COLLECT, grid=replace(GRID, parts=3, episodes_per_part=4), threads=1)
FIRST, *OTHERS = PLAN.part_ids()


def index_is_current(store: Store) -> bool:
    paths = segment_paths(store.files.index_folder)
    held = [Segment(path, store.files.read_columns).stamps for path in paths]
    return sorted(item for stamps in held for item in stamps.items()) == [
        *store.files.stamps().items()
    ]


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the first part of three."""
    path = tmp_path_factory.mktemp("collect") / "legged.zarr"
    collect(PLAN, path, Silent(), [FIRST])
    return path


def test_who_commits_the_last_part_makes_the_index_and_a_query_uses_it(
    unfinished: Path, tmp_path: Path
) -> None:
    path = tmp_path / "legged.zarr"
    shutil.copytree(unfinished, path)
    store = open_store(path)
    assert not segment_paths(store.files.index_folder), "parts are still missing"
    collect(PLAN, path, Silent(), OTHERS)
    assert index_is_current(store)
    [path_of_index] = segment_paths(store.files.index_folder)
    made = path_of_index.stat()
    assert len(open_store(path).select(skill="run")) == 6
    assert collect(PLAN, path, Silent()) == []
    after = path_of_index.stat()
    assert (after.st_ino, after.st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    assert store.verify() == []


@pytest.mark.slow
def test_a_longer_plan_brings_the_index_up_to_date(unfinished: Path, tmp_path: Path) -> None:
    path = tmp_path / "legged.zarr"
    shutil.copytree(unfinished, path)
    for parts in (2, 3):
        collect(replace(PLAN, grid=replace(PLAN.grid, parts=parts)), path, Silent())
        assert index_is_current(open_store(path))


@pytest.mark.slow
def test_without_an_index_or_beside_a_damaged_part_the_collection_is_complete(
    unfinished: Path, tmp_path: Path
) -> None:
    for fault in ("cannot be written", "damaged"):
        path = tmp_path / fault / "legged.zarr"
        shutil.copytree(unfinished, path)
        store = open_store(path)
        if fault == "damaged":
            store.files.path(FIRST).write_bytes(b"damaged")
        else:
            store.files.index_folder.write_text("in the way")
        assert [record.part for record in collect(PLAN, path, Silent())] == OTHERS
        assert not segment_paths(store.files.index_folder)
        assert len(store.verify()) == (1 if fault == "damaged" else 0)


@pytest.mark.slow
def test_beside_a_damaged_part_another_version_of_the_simulator_is_seen(
    unfinished: Path, tmp_path: Path
) -> None:
    path = tmp_path / "legged.zarr"
    shutil.copytree(unfinished, path)
    collect(PLAN, path, Silent(), OTHERS[:1])
    store = open_store(path)
    store.files.path(FIRST).write_bytes(b"damaged")
    simulator, version = PLAN.simulator() or ("", "")
    check_versions(store, path, simulator, version)
    with pytest.raises(ValueError, match="cannot be simulated again together"):
        check_versions(store, path, simulator, f"{version}.1")
