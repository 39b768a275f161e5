"""Names that files hold become paths below a folder, or an error of one line."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.common.files import join_inside
from gaitforge.datasets import DatasetError, Store, open_store
from gaitforge.datasets.catalog.edit_log import Edit, edit_name
from gaitforge.datasets.edits.operations import add_field
from tests.datasets.edits.test_fields import TWO, collected_obs, make_field
from tests.datasets.making import small_store

LEADING_OUT = [
    *("", ".", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/", "a/./b", "a/.."),
    *("a\\b", "..\\x", "C:/x", "c:x", "a\0b", None, 7, ["a"]),
]


@pytest.mark.parametrize("name", LEADING_OUT, ids=repr)
def test_a_name_that_leads_out_is_one_line(name: object, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is no path inside") as refused:
        join_inside(tmp_path, name)
    assert "\n" not in str(refused.value)


@given(st.text(st.sampled_from("ab./\\:\0é")))
def test_a_path_is_below_its_folder_or_refused(name: str) -> None:
    folder = Path("/nowhere/at/all")
    try:
        path = join_inside(folder, name)
    except DatasetError:
        return
    assert path == Path(os.path.normpath(path))
    assert path.relative_to(folder).as_posix() == name


def test_links_may_not_lead_out(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    (folder / "away").symlink_to(tmp_path / "outside")
    (folder / "own").mkdir()
    (folder / "near").symlink_to(folder / "own")
    for name in ("away", "away/x"):
        with pytest.raises(DatasetError, match="leads out of"):
            join_inside(folder, name)
    assert join_inside(folder, "near/x") == folder / "near/x"


@pytest.mark.parametrize("folder", ["../../victim", "..", "/", "two\\..", "link", ""])
def test_an_added_fields_folder_stays_in_its_store(folder: str, tmp_path: Path) -> None:
    victim = small_store(tmp_path / "victim")
    half = victim.path / "parts" / "half-written"
    half.mkdir()
    before = sorted(str(path) for path in victim.path.rglob("*"))
    store = open_store(small_store(tmp_path / "s").path)
    add_field(store, make_field(store, TWO, collected_obs(store)))
    (store.path / "overlays" / "link").symlink_to(victim.path)
    [edit] = store.edits()
    crafted = replace(edit, content={**edit.content, "folder": folder})
    rewrite(store, crafted)
    for work in (Store.gc, Store.info, Store.compact):
        with pytest.raises(DatasetError, match=r"is no path inside|leads out of|absent"):
            work(open_store(store.path))
    assert open_store(store.path).verify() != []
    assert sorted(str(path) for path in victim.path.rglob("*")) == before


def rewrite(store: Store, edit: Edit) -> None:
    """Replace a store's only edit, as somebody who crafts a store would."""
    shutil.rmtree(store.log.folder)
    store.log.folder.mkdir()
    content = edit.to_bytes()
    (store.log.folder / edit_name(1, content)).write_bytes(content)


def test_a_parts_name_in_a_record_is_a_name(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    manifest = store.files.manifest("part-000")
    for name in ("../x", "/x", "a/b", "", ".x"):
        with pytest.raises(DatasetError, match="its commit record is damaged"):
            type(manifest).from_json({**manifest.to_json(), "part_id": name})
