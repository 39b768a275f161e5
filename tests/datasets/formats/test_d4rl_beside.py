"""What D4RL's files hold beside the arrays that all have: nested infos, and metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Field, open_store
from gaitforge.datasets.formats.d4rl import metadata
from gaitforge.datasets.formats.hdf5 import datasets_of
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats.test_d4rl import rows, write
from tests.datasets.formats.test_d4rl_exact import BASE, made

PART = st.text("aB_ .é/", min_size=1, max_size=3).map(lambda text: text.strip("/. ") or "x")
KEYS = st.lists(PART, min_size=1, max_size=5, unique=True)


def contents(path: Path, group: str) -> dict[str, Any]:
    """Path below a group -> values."""
    with h5py.File(path) as file:
        found = file.get(group)
        if not isinstance(found, h5py.Group):
            return {}
        return {name: each[()] for name, each in datasets_of(found).items()}


def again(path: Path, folder: Path, **options: Any) -> Path:
    """Imported and exported."""
    import_source("d4rl", path, folder / "store", options)
    export_selection("d4rl", open_store(folder / "store").select(), folder / "out.hdf5")
    return folder / "out.hdf5"


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(names=KEYS)
def test_infos_keep_their_path(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, arrays = tmp_path_factory.mktemp("infos"), rows(4)
    arrays["terminals"][-1] = True
    path = write(folder / "x.hdf5", arrays)
    with h5py.File(path, "a") as file:
        for number, name in enumerate(names):
            try:
                file.create_dataset(f"infos/{name}", data=np.arange(4, dtype="f4") + number)
            except (ValueError, OSError, KeyError, TypeError):
                continue  # one key lies in another, which is an array
    before = contents(path, "infos")
    written = again(path, folder)
    after = contents(written, "infos")
    assert after.keys() == before.keys()
    assert all(np.array_equal(after[name], before[name]) for name in before)
    (folder / "second").mkdir()
    assert contents(again(written, folder / "second"), "infos").keys() == before.keys()


def test_infos_as_one_array_come_back(tmp_path: Path) -> None:
    arrays = rows(4)
    arrays["infos"] = np.arange(4)
    with h5py.File(again(write(tmp_path / "x.hdf5", arrays), tmp_path, horizon=4)) as file:
        assert np.asarray(file["infos"]).tolist() == [0, 1, 2, 3]


def test_a_key_within_the_key_of_an_array_is_refused_before_it_is_written(tmp_path: Path) -> None:
    arrays = rows(4)
    arrays["infos/a/b"] = np.arange(4.0)
    import_source("d4rl", write(tmp_path / "x.hdf5", arrays), tmp_path / "store", {"horizon": 4})
    schema = open_store(tmp_path / "store").schema
    given = (*schema.fields, Field("info_a"))
    store = made(tmp_path / "other", *BASE, *[each for each in given if "info" in each.name])
    assert schema.attributes["d4rl_keys"] == {"info_a_b": "infos/a/b"}
    object.__setattr__(store.schema, "attributes", schema.attributes)
    with pytest.raises(DatasetError, match="two fields would have one key in a D4RL file, or one"):
        export_selection("d4rl", store.select(), tmp_path / "out")


def with_metadata(path: Path) -> Path:
    """A file with text, numbers, a policy's weights, and an array without numbers."""
    arrays = rows(6)
    arrays["terminals"][-1] = True
    write(path, arrays)
    with h5py.File(path, "a") as file:
        group = file.require_group("metadata")
        group["iteration"], group["note"] = np.int64(3), "größe"
        group["policy/nonlinearity"] = np.bytes_("relu")
        group["policy/fc1/weight"] = np.random.default_rng(0).normal(size=(64, 64)).astype(">f4")
        group["empty"] = np.zeros((0, 3))
    return path


@pytest.mark.parametrize(("notes", "url_or_folder"), [(True, "store"), (False, "s3")])
def test_metadata_come_back(
    notes: bool, url_or_folder: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = with_metadata(tmp_path / "hopper_medium-v2.hdf5")
    before = contents(path, "metadata")
    assert len(before) == 7
    for number in range(2):
        folder = tmp_path / "store"
        store = folder if url_or_folder == "store" else request.getfixturevalue("url")
        place = f"{store}-{number}"
        report = import_source("d4rl", path, place)
        assert not any("metadata" in line for line in report.carried.left)
        path = tmp_path / f"out-{number}.hdf5"
        report = export_selection("d4rl", open_store(place).select(), path, {"notes": notes})
        assert "metadata of the imported file -> metadata" in report.carried.kept
        after = contents(path, "metadata")
        assert {name for name in after if not name.startswith("gaitforge/")} == before.keys()
        for name, values in before.items():
            np.testing.assert_array_equal(after[name], values)
            assert np.asarray(after[name]).dtype == np.asarray(values).dtype


def test_metadata_of_two_files_are_left_and_said(tmp_path: Path) -> None:
    for number in range(2):
        path = with_metadata(tmp_path / f"{number}.hdf5")
        with h5py.File(path, "a") as file:
            file["actions"][0] = number  # pyright: ignore[reportIndexIssue]
            del file["next_observations"]
            file["metadata/seed"] = number
        import_source("d4rl", path, tmp_path / "store", {"task": "mine"})
    both = open_store(tmp_path / "store").select()
    report = export_selection("d4rl", both, tmp_path / "out.hdf5")
    assert any("metadata of 2 imported files" in line for line in report.carried.left)
    first = both.where(f"part = '{both.rows_by_part()[0][0]}'")
    export_selection("d4rl", first, tmp_path / "first.hdf5")
    assert "seed" in contents(tmp_path / "first.hdf5", "metadata")


def test_metadata_are_bounded_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_metadata(tmp_path / "x.hdf5")
    import_source("d4rl", path, tmp_path / "store")
    [kept] = (tmp_path / "store" / "imports/metadata").iterdir()
    content = bytearray(kept.read_bytes())
    content[-1] ^= 1
    kept.write_bytes(content)
    with pytest.raises(DatasetError, match=r"imports/metadata/\w+.d4rl of .* is damaged"):
        export_selection("d4rl", open_store(tmp_path / "store").select(), tmp_path / "out")
    monkeypatch.setattr(metadata, "MOST_BYTES", 1000)
    report = import_source("d4rl", path, tmp_path / "other")
    assert any(line.startswith("metadata: larger than") for line in report.carried.left)
