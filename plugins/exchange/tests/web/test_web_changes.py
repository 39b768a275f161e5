"""A web store is what its server has now: published again, redirected, with added fields."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Store, open_store
from gaitforge.datasets.edits.operations import add_field
from gaitforge.plugins.exchange.tests.web.web_server import Served, serving
from gaitforge.plugins.exchange.web import web_files
from gaitforge.plugins.exchange.web.cache import CACHE, CacheBound
from gaitforge.plugins.exchange.web.get import get_selection
from gaitforge.plugins.exchange.web.manifest import MANIFEST, write_manifest
from tests.datasets.edits.test_fields import TWO, collected_obs, make_field
from tests.datasets.making import TWO_PARTS, part_input, small_schema, small_store

pytest.importorskip("obstore")
NAME = "s.zarr"


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server of a small store, and an empty cache."""
    write_manifest(small_store(tmp_path / "served" / NAME))
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(web_files, "FIRST_WAIT_S", 0.001)
    with serving(tmp_path / "served") as served:
        yield served


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of stores of the same parts and sizes: others' rows in one part, or in both."""
    folders = []
    for number, signs in enumerate([(1, 1), (-1, 1), (-1, -1)]):
        folder = tmp_path_factory.mktemp(f"version-{number}")
        store = Store.create(folder / NAME, small_schema())
        for part, lengths in enumerate(TWO_PARTS):
            content = part_input(lengths, 100 * part)
            content["steps"]["obs"] *= signs[part]  # the sign's bit leaves the compressed size
            store.write_part(f"part-{part:03d}", **content)
        write_manifest(store)
        folders.append(folder)
    sizes = [(path / NAME / "parts/part-000/obs/c/0/0").stat().st_size for path in folders]
    assert sizes[0] == sizes[1] == sizes[2]
    return folders


READS = st.tuples(st.integers(0, 2), st.sampled_from(["part-000", "part-001", ""]))


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(READS, min_size=2, max_size=4))
def test_what_is_read_is_what_the_server_has(
    web: Served, versions: list[Path], tmp_path: Path, reads: list[tuple[int, str]]
) -> None:
    """After any history of publications and reads, in one process or several."""
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    address = f"{web.address}/{NAME}"
    for version, part in reads:
        web.folder = versions[version]
        store, local = open_store(address), open_store(web.folder / NAME)
        assert store.info().hash == local.info().hash
        chosen, expected = (
            each.select(part=part) if part else each.select() for each in (store, local)
        )
        assert chosen.hash == expected.hash
        np.testing.assert_array_equal(chosen.read("obs"), expected.read("obs"))


def test_a_selection_from_before_reads_its_own_rows_or_none(
    web: Served, versions: list[Path]
) -> None:
    web.folder = versions[0]
    before = open_store(f"{web.address}/{NAME}").select()
    rows = before.select(part="part-000").read("obs")
    web.folder = versions[2]
    now = open_store(f"{web.address}/{NAME}").select().read("obs")
    np.testing.assert_array_equal(before.select(part="part-000").read("obs"), rows)
    assert not np.array_equal(now[: len(rows)], rows)
    with pytest.raises(DatasetError, match="does not have its recorded SHA-256"):
        before.read("obs")


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 2)])
def test_a_copy_of_a_dataset_that_changes_meanwhile_is_refused(
    web: Served, versions: list[Path], tmp_path: Path, before: int, after: int
) -> None:
    """Of the first or the second part; and nobody goes on with it."""
    address = f"{web.address}/{NAME}"
    web.folder = versions[before]
    chosen = open_store(address).select()
    web.folder = versions[after]
    out = tmp_path / "copy.zarr"
    with pytest.raises(DatasetError, match="SHA-256"):
        get_selection(chosen, out)
    assert len(open_store(out).parts()) == before
    with pytest.raises(DatasetError, match="holds a copy of other episodes"):
        get_selection(open_store(address).select(), out)
    copied = get_selection(open_store(address).select(), tmp_path / "anew.zarr")
    assert copied.hash == open_store(versions[after] / NAME).info().hash


def test_facts_that_were_taken_back_are_gone(web: Served) -> None:
    local = open_store(web.folder / NAME)
    local.set_about(licence="MIT")
    write_manifest(local)
    assert open_store(f"{web.address}/{NAME}").about().licence == "MIT"
    (web.folder / NAME / "about.json").unlink()
    write_manifest(local)
    assert not open_store(f"{web.address}/{NAME}").about().licence


def test_a_store_with_an_added_field_is_read_streamed_and_copied(
    web: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = open_store(web.folder / NAME)
    add_field(local, make_field(local, TWO, collected_obs(local)))
    write_manifest(local)
    expected = local.select()
    monkeypatch.setenv("HF_ENDPOINT", web.address)
    hub = web.folder / "datasets/me/walks/resolve"
    hub.mkdir(parents=True)
    os.symlink(web.folder / NAME, hub / "main")
    for number, address in enumerate((f"{web.address}/{NAME}", "hf://datasets/me/walks")):
        store = open_store(address)
        assert store.info() == local.info()
        chosen = store.select()
        np.testing.assert_array_equal(chosen.read("two"), expected.read("two"))
        copied = get_selection(chosen, tmp_path / f"copy-{number}.zarr")
        copy = open_store(copied.store)
        np.testing.assert_array_equal(copy.select().read("two"), expected.read("two"))
        assert copy.verify() == []
    web.fault = lambda path, count: 503
    offline = open_store(f"{web.address}/{NAME}").select()
    pytest.importorskip("torch")
    streams = [
        each.windows(window_len=4, batch_size=8, fields=("two",)) for each in (offline, expected)
    ]
    for batch, same in zip(*streams, strict=True):
        np.testing.assert_array_equal(batch["two"], same["two"])


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_redirect_to_a_path_or_a_host_is_followed(
    web: Served, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the Hub does; the token goes to no other host."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", web.address)
    expected = open_store(web.folder / NAME).select().read("obs")
    start = "datasets/me/walks/resolve/main/"
    with serving(web.folder) as other:
        base = other.address if elsewhere else ""
        web.fault = lambda path, count: (
            f"{base}/{NAME}/{path.removeprefix(start)}" if path.startswith(start) else None
        )
        rows = open_store("hf://datasets/me/walks").select().read("obs")
    np.testing.assert_array_equal(rows, expected)
    assert "Bearer hf_secret" in web.tokens
    assert bool(other.tokens) == elsewhere
    assert not any(other.tokens)


@pytest.mark.parametrize("of", [MANIFEST, "/obs/"])
@pytest.mark.parametrize("scheme", ["file", "ftp", "data"])
def test_a_redirect_to_a_file_or_another_scheme_is_not_followed(
    web: Served, monkeypatch: pytest.MonkeyPatch, scheme: str, of: str
) -> None:
    monkeypatch.setattr(web_files, "ATTEMPTS", 1)
    target = {"file": f"file://{web.folder}", "ftp": "ftp://127.0.0.1:1", "data": "data:,"}[scheme]
    web.fault = lambda path, count: f"{target}/{path}" if of in path else None
    with pytest.raises(DatasetError, match="cannot be read") as refused:
        open_store(f"{web.address}/{NAME}").select().read("obs")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("absent", "complaint"),
    [
        (MANIFEST, "has no manifest.json"),
        ("catalog/part-001.parquet", "SHA-256"),
        ("parts/part-001/obs/c/0/0", "SHA-256"),
    ],
)
def test_a_page_in_place_of_an_absent_file_is_no_file(
    web: Served, absent: str, complaint: str
) -> None:
    web.missing = b"<!DOCTYPE html><html>not here</html>"
    (web.folder / NAME / absent).unlink()
    with pytest.raises(DatasetError, match=complaint):
        open_store(f"{web.address}/{NAME}").select().read("obs")


@pytest.mark.parametrize("name", ["my walks.zarr", "100%.zarr", "a%20b.zarr", "a+b.zarr", "ü.zarr"])
def test_a_folder_has_any_name(web: Served, name: str) -> None:
    (web.folder / NAME).rename(web.folder / name)
    rows = open_store(f"{web.address}/{quote(name)}").select().read("obs")
    np.testing.assert_array_equal(rows, open_store(web.folder / name).select().read("obs"))


@pytest.mark.parametrize(("most", "is_kept"), [(1_100, True), (1_099, False)])
def test_objects_that_another_process_removes_are_not_counted(
    most: int, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(bytes(1_000))
    os.utime(kept, (0, 0))  # unused for long
    cache = "gaitforge.plugins.exchange.web.cache"
    monkeypatch.setattr(f"{cache}._objects", lambda: iter([tmp_path / "gone", kept]))
    monkeypatch.setattr(f"{cache}.most_bytes", lambda: most)
    CacheBound().fetched(100)
    assert kept.exists() == is_kept
