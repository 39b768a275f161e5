"""The description for machines is what the format's own library reads, without a complaint."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gaitforge.datasets import open_store
from gaitforge.plugins.exchange.croissant import croissant, croissant_text
from gaitforge.plugins.exchange.recording.recorder import Recorder, RecordingOptions

mlcroissant = pytest.importorskip("mlcroissant")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 12 episodes in several parts, with all that its owner can say of it."""
    path = tmp_path_factory.mktemp("croissant") / "walks.zarr"
    fields = {"obs": {"unit": "rad", "slices": {"first": (0, 1)}}}
    options = RecordingOptions(0.02, fields=fields, part_steps=20, robot='"a" <b> é')
    with Recorder(path, options) as recorder:
        recorder.start({"mass": np.arange(3.0)})
        for step in range(20):
            done = np.full(3, step % 5 == 4)
            obs = np.ones((3, 2), np.float32)
            recorder.add(obs, obs, np.ones(3), done, ~done & False, final_obs=obs)
    about = {"licence": "MIT", "citation": "@misc{me}", "description": "Walks.", "authors": ["Me"]}
    open_store(path).set_about(**about)
    return path


def records(dataset: Any, name: str) -> list[dict[str, Any]]:
    """Rows of a record set by short names, with text as str."""
    return [
        {
            key.partition("/")[2]: value.decode() if isinstance(value, bytes) else value
            for key, value in row.items()
        }
        for row in dataset.records(name)
    ]


def assert_rows_are(dataset: Any, catalog: pa.Table) -> None:
    """A loader reads these episodes, once each and with these columns."""
    rows = sorted(records(dataset, "episodes"), key=lambda row: row["episode"])
    assert rows == sorted(catalog.to_pylist(), key=lambda row: row["episode"])


def test_the_formats_library_reads_it_and_has_no_complaint(stored: Path, tmp_path: Path) -> None:
    store = shutil.copytree(stored, tmp_path / "walks.zarr")
    selection = open_store(store).select()
    (store / "croissant.json").write_text(croissant_text(selection, tmp_path, ""))
    dataset = mlcroissant.Dataset(store / "croissant.json")
    assert not dataset.metadata.ctx.issues.errors
    assert not dataset.metadata.ctx.issues.warnings
    assert_rows_are(dataset, selection.episodes())
    rows = records(dataset, "episodes")
    assert {row["mass"] for row in rows} == {0.0, 1.0, 2.0}
    fields = {row["name"]: row for row in records(dataset, "fields")}
    assert set(fields) == set(selection.schema.names())
    assert fields["obs"]["unit"] == "rad"
    assert json.loads(fields["obs"]["slices"]) == {"first": [0, 1]}
    told = {row["name"]: row["value"] for row in records(dataset, "provenance")}
    assert told["hash"] == open_store(store).info().hash
    assert told["robot"] == '"a" <b> é'


def test_what_the_owner_does_not_say_is_left_out(stored: Path, tmp_path: Path) -> None:
    store = shutil.copytree(stored, tmp_path / "walks.zarr")
    (store / "about.json").unlink()
    record = croissant(open_store(store).select().where("mass > 0"), "mass > 0")
    assert not {"license", "citeAs", "creator"} & set(record)
    assert "8 episodes" in record["description"]
    assert "Selection: mass > 0." in record["description"]


def test_of_an_edited_and_compacted_store_it_describes_the_files(
    stored: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(stored, tmp_path / "walks.zarr")
    everything = open_store(path).select()
    everything.with_rows(everything.rows[:2]).drop()
    open_store(path).select().where("mass = 2").annotate({"note": "x", "mass": 5.0})
    open_store(path).compact()  # the parts that it replaces stay until `gc`
    store = open_store(path)
    record = croissant(store.select())
    assert "10 episodes" in record["description"]
    told = "have all 12 episodes as collected. Their 2 later edits"
    assert told in record["description"]
    assert len(store.files.stamps()) > len(record["distribution"][0]["includes"]) == 1
    (path / "croissant.json").write_text(croissant_text(store.select(), tmp_path, ""))
    dataset = mlcroissant.Dataset(path / "croissant.json")
    assert not dataset.metadata.ctx.issues.errors
    assert not dataset.metadata.ctx.issues.warnings
    assert_rows_are(dataset, store.as_collected().episodes(*store.collected().column_names))
