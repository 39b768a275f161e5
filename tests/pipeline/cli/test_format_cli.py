"""`gaitforge import`, `formats`, and `export` of data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gaitforge.datasets import Store, open_store
from gaitforge.datasets.formats import FORMATS
from gaitforge.pipeline.cli.main import main
from tests.datasets.formats.format_stores import plain_store, random_episodes

pytest.importorskip("h5py", reason="h5py is the extra hdf5")


def call(*arguments: str | Path) -> int:
    """`main` in this process, as a shell would see it end."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return plain_store(tmp_path / "walks.zarr", random_episodes(20))


def test_data_go_out_and_come_back(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, again = tmp_path / "rough.hdf5", tmp_path / "again.zarr"
    where = ("--where", "terrain = 'rough'", "--set", "compression=none")
    assert call("export", store.path, "d4rl", out, *where, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["episodes"] == 10
    assert call("import", "d4rl", out, again, "--workers", "1") == 0
    shown = capsys.readouterr().out
    assert "carried over: everything that gaitforge wrote" in shown
    assert len(open_store(again).select()) == 10


def test_formats_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("formats", "--json") == 0
    rows = {row["format"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == FORMATS.keys()
    assert rows["d4rl"]["available"]
    assert "horizon" in rows["d4rl"]["import_options"]
    assert "compression" in rows["d4rl"]["export_options"]
    assert all(row["available"] or "pip install -e" in row["install"] for row in rows.values())
    assert call("formats") == 0
    assert "FCNet's three memory maps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("import d4rl NOWHERE STORE2", "nowhere: no such file"),
        ("import rlds NOWHERE STORE2", "unknown format 'rlds'; allowed: d4rl, fcnet"),
        (
            "import d4rl NOWHERE STORE2 --set horizon=x",
            "setting 'horizon' needs a whole number",
        ),
        ("import d4rl NOWHERE STORE2 --set colour=x", "unknown setting 'colour'; allowed: contr"),
        ("import d4rl s3://walks/hopper.hdf5 STORE2", "hopper.hdf5 is no local path; copy it to"),
        ("export STORE d4rl OUT --where colour=1", "colour"),
        ("export STORE d4rl s3://walks/out.hdf5", "out.hdf5 is no local path; export to one"),
        ("export STORE d4rl OUT --formats onnx", "--formats is for a policy"),
        ("export STORE OUT --where level=1", "--where is for data"),
        ("export STORE OUT --set compression=none", "--set is for data"),
        ("export STORE", "export needs RUN DST (a policy) or STORE FORMAT DST (data), not 1 names"),
        ("export STORE fcnet OUT", "FCNet's maps need the slice projected_gravity"),
    ],
)
def test_wrong_input_is_one_line(
    words: str, message: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {
        "NOWHERE": tmp_path / "nowhere",
        "STORE2": tmp_path / "new.zarr",
        "STORE": store.path,
        "OUT": tmp_path / "out",
    }
    assert call(*(places.get(word, word) for word in words.split())) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["walks.zarr"]
