"""Inputs that name something outside themselves: refused in every format, and in a store."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import DatasetError, open_store
from gaitforge.datasets.edits.assemble import merge_stores
from gaitforge.datasets.formats import find_format
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.datasets.storage.integrity import store_files
from tests.datasets.formats.cases import CASES
from tests.datasets.formats.format_stores import random_episodes
from tests.datasets.making import small_store

h5py = pytest.importorskip("h5py", reason="h5py is an extra: gaitforge[hdf5]")

SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----" * 8


def _virtual(file: Any, secret: Path) -> None:
    layout = h5py.VirtualLayout((9,), "u1")
    layout[:] = h5py.VirtualSource(str(secret), "key", (9,))
    file.create_virtual_dataset("nested/deep/key", layout)


def _user_defined(file: Any, secret: Path) -> None:
    """An external link whose type is then one of a user's own."""
    file["nested/deep/marked-name"] = h5py.ExternalLink(str(secret), "/key")
    path = file.filename
    file.close()
    content = bytearray(Path(path).read_bytes())
    at = content.rindex(b"marked-name")
    kind = content.rindex(bytes([h5py.h5l.TYPE_EXTERNAL]), 0, at)
    content[kind] += 1
    Path(path).write_bytes(content)


LEADS: dict[str, tuple[Callable[[Any, Path], None], str]] = {
    "external link": (
        lambda file, secret: file.__setitem__("nested/key", h5py.ExternalLink(str(secret), "/")),
        "nested/key: is an external link",
    ),
    "soft link": (
        lambda file, _: file.__setitem__("nested/deep/key", h5py.SoftLink("/")),
        "nested/deep/key: is a soft link",
    ),
    "external storage": (
        lambda file, secret: file.create_dataset(
            "infos/key", (len(SECRET),), "u1", external=[(str(secret), 0, len(SECRET))]
        ),
        "infos/key: is a dataset in external files",
    ),
    "virtual dataset": (_virtual, "nested/deep/key: is a virtual dataset"),
    "user-defined link": (_user_defined, "nested/deep/marked-name: is a user-defined link"),
}


FOLDERS = [name for name, case in CASES.items() if case.links]


def exported(name: str, folder: Path) -> Path:
    if missing := find_format(name).missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    store = CASES[name].make(folder / "store", random_episodes(6))
    options = {"notes": False} if CASES[name].has_notes else {}
    export_selection(name, store.select(), folder / "source", options)
    return folder / "source"


def assert_refused(name: str, source: Path, message: str) -> None:
    with pytest.raises(DatasetError, match=message) as error:
        import_source(name, source, source.parent / "again")
    assert "\n" not in str(error.value)
    assert not (source.parent / "again").exists()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.required])
def test_hdf5_that_leads_to_other_files_is_refused(name: str, tmp_path: Path) -> None:
    source, secret = exported(name, tmp_path), tmp_path / "id_ed25519"
    secret.write_bytes(SECRET)
    path = source if source.is_file() else next(source.rglob("*.hdf5"))
    content = path.read_bytes()
    for edit, message in LEADS.values():
        with h5py.File(path, "a") as file:
            edit(file, secret)
        assert_refused(name, source, rf"{path.name}: {message}")
        path.write_bytes(content)
    with h5py.File(path, "a") as file:  # hard links stay in the file, also in a circle
        file["nested/circle"] = file["/"]
    if CASES[name].circles:
        import_source(name, source, tmp_path / "again")


@pytest.mark.parametrize("name", FOLDERS)
def test_links_out_of_a_folder_are_refused(name: str, tmp_path: Path) -> None:
    source = exported(name, tmp_path)
    for pattern in CASES[name].links:
        [path] = source.glob(pattern)
        away = tmp_path / "elsewhere"
        path.rename(away)
        path.symlink_to(away)
        assert_refused(name, source, rf"{path.name}.* leads out of .* to .*elsewhere")
        path.unlink()
        away.rename(path)
    (tmp_path / "link").symlink_to(source)
    import_source(name, tmp_path / "link", tmp_path / "again")


def as_snapshot(folder: Path, repository: Path) -> Path:
    """The folder as the Hub's cache keeps it: links into the repository's blobs."""
    snapshot = repository / "snapshots/0123abcd"
    (repository / "blobs").mkdir(parents=True)
    for number, path in enumerate(sorted(each for each in folder.rglob("*") if each.is_file())):
        blob, link = repository / f"blobs/{number}", snapshot / path.relative_to(folder)
        shutil.copy(path, blob)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


@pytest.mark.parametrize("name", FOLDERS)
def test_the_cache_of_the_hub_is_read(name: str, tmp_path: Path) -> None:
    snapshot = as_snapshot(exported(name, tmp_path), tmp_path / "datasets--owner--name")
    import_source(name, snapshot, tmp_path / "again")
    before, after = (open_store(tmp_path / each).select() for each in ("store", "again"))
    np.testing.assert_array_equal(before.read("action"), after.read("action"))
    blobs = tmp_path / "datasets--owner--name/blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DatasetError, match="leads out of"):
        import_source(name, snapshot, tmp_path / "other")


@pytest.mark.parametrize("what", ["parts/*/obs/c/0/0", "parts/*/obs", "parts/*", "parts"])
def test_a_store_with_arrays_elsewhere_is_refused(what: str, tmp_path: Path) -> None:
    folder = small_store(tmp_path / "store").path
    shutil.copytree(folder, tmp_path / "copy")
    path, away = sorted(folder.glob(what))[0], tmp_path / "elsewhere"
    path.rename(away)
    path.symlink_to(away)
    uses: list[Callable[[], object]] = [
        lambda: open_store(folder).select().read("obs"),
        lambda: store_files(open_store(folder)),
        lambda: merge_stores(open_store(folder), open_store(tmp_path / "copy"), tmp_path / "two"),
    ]
    for use in uses:
        with pytest.raises(DatasetError, match=r"leads out of .*store"):
            use()
    path.unlink()
    away.rename(path)
    (tmp_path / "link").symlink_to(folder)
    assert open_store(tmp_path / "link").select().read("obs").size


def test_a_catalog_that_lies_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = small_store(tmp_path / "store").path
    path = next((folder / "catalog").glob("*.parquet"))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DatasetError, match="leads out of"):
        open_store(folder).select()


def test_a_store_in_the_cache_of_the_hub_is_read(tmp_path: Path) -> None:
    folder = small_store(tmp_path / "store").path
    snapshot = as_snapshot(folder, tmp_path / "datasets--owner--name")
    before, after = (open_store(each).select().read("obs") for each in (folder, snapshot))
    np.testing.assert_array_equal(before, after)
