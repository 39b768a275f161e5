"""Importing by a plan, and the record that it leaves."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gaitforge.datasets import open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import read_plan
from gaitforge.flows.stages.transfer import ImportPlan, run_import
from tests.datasets.formats import rows_format
from tests.datasets.formats.format_stores import plain_store, random_episodes
from tests.datasets.formats.rows_format import NAME


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """A folder of nine episodes in a format that is known meanwhile."""
    store = plain_store(tmp_path / "store", random_episodes(9))
    with rows_format.registered():
        export_selection(NAME, store.select(), tmp_path / "walks")
        yield tmp_path / "walks"


def test_the_record_beside_the_store_is_a_plan_and_says_what_came_over(
    source: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    export_selection(NAME, open_store(tmp_path / "store").select(), plain, {"notes": False})
    plan = ImportPlan(NAME, {"quality": "expert"}, workers=1)
    report = run_import(plan, plain, tmp_path / "again", Silent())
    assert report.episodes == 9 == len(open_store(tmp_path / "again").select())
    [record] = (tmp_path / "again.records").glob("import-*.json")
    assert plan_from_tree(ImportPlan, read_plan(record)[0]) == plan
    tree = json.loads(record.read_text())
    assert "reward" in tree["report"]["carried"]["kept"]
    assert tree["versions"]["zarr"]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"format": "rlds"}, "unknown format 'rlds'; allowed: .*rows"),
        ({"format": NAME, "workers": 0}, "0 workers: at least 1 is needed"),
        ({"format": NAME, "options": {"horizon": "many"}}, "RowsOptions.horizon needs int"),
        ({"format": NAME, "options": {"colour": 1}}, "RowsOptions has no 'colour'"),
    ],
)
def test_a_wrong_plan_is_one_line(
    tree: dict[str, object], message: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as found:
        run_import(plan_from_tree(ImportPlan, tree), source, tmp_path / "again", Silent())
    assert "\n" not in str(found.value)
    assert not (tmp_path / "again").exists()


def test_a_scalar_action_is_of_no_robot(tmp_path: Path) -> None:
    source = rows_format.source_of(tmp_path / "rows", [4])
    path = source / rows_format.SCHEMA
    tree = json.loads(path.read_text())
    tree["fields"][1]["shape"] = []
    path.write_text(json.dumps(tree))
    (source / "action.bin").write_bytes(bytes(16))
    with rows_format.registered(), pytest.raises(ValueError, match="action has 1 number a step"):
        run_import(ImportPlan(NAME, robot="go1"), source, tmp_path / "s", Silent())
