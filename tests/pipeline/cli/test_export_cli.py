"""`gaitforge export` of policies and data, `import` and `formats`."""

import json
from pathlib import Path

import pytest

from gaitforge.datasets import open_store
from gaitforge.datasets.formats import format_names
from tests.pipeline.command_line import Run


@pytest.mark.slow
def test_an_exported_policy_can_be_evaluated(run: Run, trained: Path, tmp_path: Path) -> None:
    chosen = ("--formats", "onnx", "--batch", "2")
    record = json.loads(run("export", trained, tmp_path / "out", *chosen, "--json").out)
    assert record["folder"] == str(tmp_path / "out")
    assert record["bytes"].keys() == {"policy.onnx", "policy.json"}
    assert record["largest_error"]["onnx"] <= 1e-5
    assert not record["already_there"]
    assert json.loads((tmp_path / "out" / "policy.json").read_text())["batch_size"] == 2
    grid = ("--terrain", "flat", "--skill", "stand", "--level", "0", "--episodes", "1")
    shown = run("evaluate", tmp_path / "out", *grid, "--threads", "1", "--json").out
    assert json.loads(shown)["policy"] == "out"


def test_data_go_out_and_come_back(run: Run, store: Path, tmp_path: Path, rows_format: str) -> None:
    out = tmp_path / "rows"
    again = tmp_path / "again.zarr"
    where = ("--where", "skill = 'run'", "--set", "notes=true")
    assert json.loads(run("export", store, rows_format, out, *where, "--json").out)["episodes"] == 2
    shown = run("import", rows_format, out, again, "--workers", "1")
    assert "carried over: " in shown.out
    assert len(open_store(again).select()) == 2


def test_formats_are_listed(run: Run, rows_format: str) -> None:
    rows = {row["format"]: row for row in json.loads(run("formats", "--json").out)}
    assert set(rows) == set(format_names())
    assert "horizon" in rows[rows_format]["import_options"]
    assert "notes" in rows[rows_format]["export_options"]
    assert all(row["available"] or "pip install -e" in row["install"] for row in rows.values())
    assert "values as they lie in memory" in run("formats").out
