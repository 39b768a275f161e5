"""Exports are read back before they appear; what killed or parallel exports leave does no harm."""

import signal
from pathlib import Path
from typing import Any

import pytest

from gaitforge.common.locks import exclusive_lock
from gaitforge.datasets import DatasetError, Store
from gaitforge.datasets.formats import exporter_class
from gaitforge.datasets.formats.protocol import Advance
from gaitforge.datasets.formats.transfer.exporting import export_selection, verify_export
from tests.datasets.formats.format_stores import Case, Episode, plain_store
from tests.datasets.formats.rows_format import NAME, RowsExporter
from tests.datasets.programs import run_program

EPISODES: list[Episode] = [(3, "truncated"), (1, "terminated"), (4, "both"), (2, "cut off")]

KILLED_WHILE_WRITING = """
import os, signal, sys
from gaitforge.datasets import open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from tests.datasets.formats import rows_format

rows_format.register()

def begin(total):
    return lambda steps: os.kill(os.getpid(), signal.SIGKILL)

export_selection(rows_format.NAME, open_store(sys.argv[1]).select(), sys.argv[2], begin=begin)
"""


def altered(store: Store, path: Path, field: str = "", column: str = "", value: Any = 0) -> Store:
    """The store with another first value of a field, or another column, in its last part."""
    other = Store.create(path, store.schema)
    for part in store.parts():
        chosen, last = store.select(part=part), part == store.parts()[-1]
        arrays = {each: chosen.read(each) for each in store.schema.names()}
        if field and last:
            arrays[field].reshape(-1)[0] += 1
        rows = chosen.episodes().drop_columns(["part", "start"])
        if column and last:
            at = rows.column_names.index(column)
            values = [value] * rows.num_rows
            rows = rows.set_column(at, column, [values])
        steps = {each: arrays.pop(each) for each in store.schema.names("step")}
        other.write_part(part, steps, rows, arrays)
    return other


@pytest.mark.slow
@pytest.mark.parametrize("noted", [True, False])
def test_what_reads_back_otherwise_is_named(
    name: str, case: Case, noted: bool, tmp_path: Path
) -> None:
    noted = noted and case.has_notes
    store = case.make(tmp_path / "store", EPISODES)
    options = exporter_class(name).Options
    exporter = exporter_class(name)(options(notes=noted) if case.has_notes else options())
    exporter.check(store.select(), tmp_path / "out")
    exporter.write(store.select(), tmp_path / "out", lambda steps: None)

    def compare(other: Store) -> None:
        verify_export(name, exporter, noted, other.select(), tmp_path / "out")

    compare(store)
    with pytest.raises(DatasetError, match=r"action of some episodes are not what .*other holds"):
        compare(altered(store, tmp_path / "other", field="action"))
    if noted:
        with pytest.raises(DatasetError, match=r"column level of some episodes are not"):
            compare(altered(store, tmp_path / "level", column="level", value=77))
    fewer = case.make(tmp_path / "fewer", EPISODES[:2])
    with pytest.raises(DatasetError, match="it has 4 episodes of 10 steps, not 2 of 4"):
        compare(fewer)


def test_an_export_that_lost_a_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = plain_store(tmp_path / "store", EPISODES)
    write = RowsExporter.write

    def flipping(self: RowsExporter, selection: Any, temporary: Path, advance: Advance) -> Any:
        carried = write(self, selection, temporary, advance)
        path = temporary / "action.bin"
        content = bytearray(path.read_bytes())
        content[50] ^= 1
        path.write_bytes(content)
        return carried

    monkeypatch.setattr(RowsExporter, "write", flipping)
    with pytest.raises(DatasetError, match=r"maps was not made, .* as it was written: .*action"):
        export_selection(NAME, store.select(), tmp_path / "maps")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_refusal_names_the_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = plain_store(tmp_path / "store", EPISODES)
    monkeypatch.setattr(RowsExporter, "write", lambda self, selection, path, advance: path.mkdir())
    with pytest.raises(DatasetError, match=f": {tmp_path}/maps/schema.json: no such file") as error:
        export_selection(NAME, store.select(), tmp_path / "maps")
    assert ".exporting" not in str(error.value)


def test_a_killed_export_is_cleared_away_by_the_next(tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store", EPISODES)
    for _ in range(2):
        done = run_program(KILLED_WHILE_WRITING, store.path, tmp_path / "maps")
        assert done.returncode == -signal.SIGKILL, done.stderr
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".maps.exporting", ".maps.exporting.lock", "store"]
    export_selection(NAME, store.select(), tmp_path / "maps")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["maps", "store"]


def test_of_two_exports_to_one_place_the_second_is_refused(tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store", EPISODES)
    with (
        exclusive_lock(tmp_path / ".maps.exporting.lock"),
        pytest.raises(DatasetError, match="maps is being written by another process"),
    ):
        export_selection(NAME, store.select(), tmp_path / "maps")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_what_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    store = plain_store(tmp_path / "store", EPISODES)

    def begin(total: int) -> Advance:
        (tmp_path / "maps").mkdir()
        return lambda steps: None

    with pytest.raises(DatasetError, match="maps exists; give the path of a new file or folder"):
        export_selection(NAME, store.select(), tmp_path / "maps", begin=begin)
    assert list((tmp_path / "maps").iterdir()) == []
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match="link exists; give the path"):
        export_selection(NAME, store.select(), tmp_path / "link")
