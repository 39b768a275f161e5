"""The doctor finds each kind of fault, and nothing in data without faults."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gaitforge.datasets import Store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.plugins.doctor.data import Finding, source_data, store_data
from gaitforge.plugins.doctor.examine import examine, quick_findings
from gaitforge.plugins.doctor.tests.faults import (
    EPISODES,
    FAULTS,
    Arrays,
    Columns,
    clean,
    put,
    write_store,
)

FOREIGN = {
    "d4rl": "data.hdf5",
    "minari": "data",
    "lerobot": "data",
    "robomimic": "data.hdf5",
    "isaaclab": "data.hdf5",
}
FORMAT = {"isaaclab": "robomimic"}
CASES = [(name, fault) for name, faults in FAULTS.items() for fault in faults]
EXPORTED = [case for case in CASES if case[0] != "return"]
"""An export of a wrong return is refused."""
IN_TURN = [(case, list(FOREIGN)[k % len(FOREIGN)]) for k, case in enumerate(EXPORTED)]
"""A store meets every fault; of the formats that a file may have, a fault meets one, in turn."""
STEP_OF = {"not-finite": 7, "frozen-sensor": 6, "jump": 11, "time-jump": 11}
"""Name of a finding -> the step that its first example has to name."""


def _exported(store: Store, name: str, folder: Path) -> Path:
    if name != "lerobot":
        pytest.importorskip("h5py")
    if name == "minari":
        pytest.importorskip("minari")
    path = folder / FOREIGN[name]
    options = {"layout": name} if name == "isaaclab" else None
    export_selection(FORMAT.get(name, name), store.select(), path, options)
    return path


def _of_source(path: Path, name: str) -> list[Finding]:
    data = source_data(str(path))
    try:
        assert data.format == FORMAT.get(name, name)
        return examine(data)
    finally:
        data.close()


def _checked(findings: list[Finding], name: str) -> Finding:
    [found] = [each for each in findings if each.name == name]
    if name in STEP_OF:
        assert found.examples[0].step == STEP_OF[name]
    return found


def test_data_without_faults_has_no_finding(tmp_path: Path) -> None:
    store = write_store(tmp_path / "clean.zarr", *clean())
    assert examine(store_data(store.select())) == []
    assert quick_findings(store.select()) == []
    for name in FOREIGN:
        assert _of_source(_exported(store, name, tmp_path / name), name) == []


@pytest.mark.parametrize(("name", "fault"), CASES, ids=[fault.__name__ for _, fault in CASES])
def test_a_fault_in_a_store_is_found(
    tmp_path: Path, name: str, fault: Callable[[Arrays, Columns], None]
) -> None:
    arrays, columns = clean()
    fault(arrays, columns)
    findings = examine(store_data(write_store(tmp_path / "x.zarr", arrays, columns).select()))
    _checked(findings, name)
    more = {"seed-in-both": "same-seed", "unit": "jump"}.get(name, name)
    assert {each.name for each in findings} <= {name, more}, "nothing else"
    assert all(each.commands for each in findings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "format_name"),
    IN_TURN,
    ids=[f"{fault.__name__}-{format_name}" for (_, fault), format_name in IN_TURN],
)
def test_a_fault_in_a_foreign_file_is_found_without_an_import(
    tmp_path: Path, case: tuple[str, Callable[[Arrays, Columns], None]], format_name: str
) -> None:
    name, fault = case
    arrays, columns = clean()
    fault(arrays, columns)
    store = write_store(tmp_path / "x.zarr", arrays, columns)
    found = _checked(_of_source(_exported(store, format_name, tmp_path / "out"), format_name), name)
    assert found.commands[0].startswith(f"gaitforge import {FORMAT.get(format_name, format_name)} ")


@pytest.mark.parametrize("name", FOREIGN)
def test_what_a_reader_refuses_is_a_finding(tmp_path: Path, name: str) -> None:
    path = _exported(write_store(tmp_path / "x.zarr", *clean()), name, tmp_path / "out")
    put(path, name, "reward", 7, 5.0)
    [found] = _of_source(path, name)
    assert (found.name, found.severity, found.count) == ("unreadable", "error", EPISODES)
    assert "return of episode 0 is" in found.text


@pytest.mark.parametrize("name", FOREIGN)
def test_values_that_are_not_finite_are_found(tmp_path: Path, name: str) -> None:
    path = _exported(write_store(tmp_path / "x.zarr", *clean()), name, tmp_path / "out")
    put(path, name, "action", 7, float("nan"))
    found = _checked(_of_source(path, name), "not-finite")
    assert (found.severity, found.count, len(found.rows)) == ("error", 1, 1)
    assert found.commands[0].endswith(" --drop-nan")


def test_stated_statistics_are_compared_with_the_data(tmp_path: Path) -> None:
    store = write_store(tmp_path / "x.zarr", *clean())
    path = _exported(store, "lerobot", tmp_path / "out")
    file = path / "meta" / "stats.json"
    stats = json.loads(file.read_text())
    stats["observation.state"]["mean"][3] += 1.0
    file.write_text(json.dumps(stats))
    found = _checked(_of_source(path, "lerobot"), "statistics")
    assert (found.severity, found.count) == ("error", 1)
    assert "joint_pos[0]" in found.text
