"""Importing by a plan, and the record that it leaves."""

import json
from pathlib import Path

import pytest

from gaitforge.datasets import open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import read_plan
from gaitforge.flows.stages.transfer import ImportPlan, run_import
from tests.datasets.formats.format_stores import plain_store, random_episodes

pytest.importorskip("h5py", reason="h5py is the extra hdf5")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A D4RL file of nine episodes."""
    store = plain_store(tmp_path / "store", random_episodes(9))
    export_selection("d4rl", store.select(), tmp_path / "walks.hdf5")
    return tmp_path / "walks.hdf5"


def test_the_record_beside_the_store_is_a_plan_and_says_what_came_over(
    source: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.hdf5"
    export_selection("d4rl", open_store(tmp_path / "store").select(), plain, {"notes": False})
    plan = ImportPlan("d4rl", {"task": "hopper"}, workers=1)
    report = run_import(plan, plain, tmp_path / "again", Silent())
    assert report.episodes == 9 == len(open_store(tmp_path / "again").select())
    [record] = (tmp_path / "again.records").glob("import-*.json")
    assert plan_from_tree(ImportPlan, read_plan(record)[0]) == plan
    tree = json.loads(record.read_text())
    assert "rewards -> reward" in tree["report"]["carried"]["kept"]
    assert tree["versions"]["zarr"]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"format": "rlds"}, "unknown format 'rlds'; allowed: .*d4rl"),
        ({"format": "d4rl", "workers": 0}, "0 workers: at least 1 is needed"),
        ({"format": "d4rl", "options": {"horizon": "many"}}, "D4rlOptions.horizon needs int"),
        ({"format": "d4rl", "options": {"colour": 1}}, "D4rlOptions has no 'colour'"),
    ],
)
def test_a_wrong_plan_is_one_line(
    tree: dict[str, object], message: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as found:
        run_import(plan_from_tree(ImportPlan, tree), source, tmp_path / "again", Silent())
    assert "\n" not in str(found.value)
    assert not (tmp_path / "again").exists()
