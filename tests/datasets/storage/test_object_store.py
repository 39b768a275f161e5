"""The store on S3-compatible storage: a real server on loopback, speaking S3 over HTTP."""

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import xarray
import zarr
from obstore.store import S3Store
from zarr.storage import ObjectStore

from conftest import BUCKET
from gaitforge.datasets import DatasetError, Store, open_store
from gaitforge.datasets.dataset import RemoteStore
from gaitforge.datasets.statistics import UnitReader
from gaitforge.datasets.storage import s3
from gaitforge.datasets.storage.s3 import Bucket, push_store
from tests.datasets.making import (
    TWO_PARTS,
    fill_store,
    part_input,
    small_schema,
    small_store,
    write_small_part,
)


def make(url: str, parts: Sequence[Sequence[int]] = TWO_PARTS) -> RemoteStore:
    store = RemoteStore.create(url, small_schema())
    fill_store(store, parts)
    return store


def opened_elsewhere(url: str, folder: Path) -> RemoteStore:
    """As another machine would, with a mirror of its own."""
    return RemoteStore.open(url, cache=folder)


def test_it_is_the_store_that_it_would_be_on_disk(url: str, tmp_path: Path) -> None:
    remote, local = make(url), small_store(tmp_path / "local")
    assert remote.info() == local.info()
    other = opened_elsewhere(url, tmp_path / "other")
    assert other.info() == local.info()
    chosen, same = (
        each.select(terrain="rough").where("length > 1").hash for each in (other, local)
    )
    assert chosen == same
    for field in ("obs", "reward", "final_obs"):
        np.testing.assert_array_equal(other.select().read(field), local.select().read(field))
    bucket = Bucket(url)
    keys, files = set(bucket.list("")), [each for each in local.path.rglob("*") if each.is_file()]
    assert keys == {path.relative_to(local.path).as_posix() for path in files}
    for key in keys:
        assert bucket.read(key) == (local.path / key).read_bytes(), key
    assert remote.verify() == []


def test_statistics_streams_and_arrays_work_on_it(url: str, tmp_path: Path) -> None:
    selection = make(url).select()
    rows = selection.read("obs")
    np.testing.assert_allclose(selection.statistics("obs").mean, rows.mean(0), atol=1e-6)
    np.testing.assert_array_equal(selection.dask("obs").compute(), rows)
    stream = selection.windows(window_len=16, batch_size=4, seed=3)
    assert sum(int(batch["mask"].sum()) for batch in stream) == selection.steps
    rebuild, arguments = UnitReader(selection, "obs").__reduce__()
    assert arguments[0] == (RemoteStore, url, None)
    moved = rebuild(*arguments)
    np.testing.assert_array_equal(moved.read(0), rows[:15])


def test_other_readers_open_it_in_place(url: str, server: str) -> None:
    selection = make(url).select(part="part-001")
    options: Any = {"allow_http": True}
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    store = S3Store(BUCKET, prefix=prefix, endpoint=server, client_options=options)
    group = zarr.open_group(ObjectStore(store, read_only=True), mode="r")
    array = group["parts/part-001/obs"]
    assert isinstance(array, zarr.Array)
    np.testing.assert_array_equal(np.asarray(array[:]), selection.read("obs"))
    part = S3Store(
        BUCKET, prefix=f"{prefix}/parts/part-001", endpoint=server, client_options=options
    )
    dataset = xarray.open_zarr(ObjectStore(part, read_only=True), consolidated=False)
    np.testing.assert_array_equal(dataset["obs"].to_numpy(), selection.read("obs"))


def test_of_writers_at_once_one_commits_and_all_agree(url: str, tmp_path: Path) -> None:
    make(url, ())
    stores = [opened_elsewhere(url, tmp_path / str(number)) for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        records = list(threads.map(lambda s: write_small_part(s, "part-000", (8, 20)), stores))
    assert len(set(records)) == 1
    assert stores[0].verify() == []
    assert stores[3].info().steps == 28


def test_writers_of_different_content_cannot_mix(url: str, tmp_path: Path) -> None:
    make(url, ())
    stores = [opened_elsewhere(url, tmp_path / str(number)) for number in range(2)]

    def write(number: int) -> str:
        try:
            write_small_part(stores[number], "part-000", (8, 20), first_episode=number)
        except DatasetError as error:
            return str(error)
        return "committed"

    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(write, range(2)))
    for outcome in outcomes:
        assert outcome == "committed" or "is there with other content" in outcome
    stores[0].gc(grace_s=0.0)
    if stores[0].missing(["part-000"]):  # each was in the other's way, so nothing was committed
        write_small_part(stores[0], "part-000", (8, 20))
    assert stores[0].verify() == []


def test_a_writer_that_died_is_finished_by_the_next_one(url: str, tmp_path: Path) -> None:
    store, local = make(url, ()), small_store(tmp_path / "local", [(5, 1, 9)])
    bucket = Bucket(url)
    for name in ("obs/zarr.json", "obs/c/0/0"):
        key = f"parts/part-000/{name}"
        assert bucket.create(key, (local.path / key).read_bytes())
    assert store.parts() == []
    assert len(store.select()) == 0
    write_small_part(store, "part-000", (5, 1, 9))
    assert store.verify() == []
    assert store.info() == local.info()


@pytest.mark.slow
def test_what_another_content_left_stops_the_writer_until_gc(url: str) -> None:
    store, bucket = make(url), Bucket(url)
    bucket.create("parts/part-007/obs/c/0/0", b"torn")
    with pytest.raises(DatasetError, match=r"part part-007.*obs/c/0/0 is there with other content"):
        write_small_part(store, "part-007", (4,), 70)
    assert store.missing(["part-007"]) == ["part-007"]
    assert store.gc() == []  # it may be in the writing
    before = store.info()
    assert store.gc(grace_s=0.0) == ["parts/part-007"]
    assert store.info() == before
    write_small_part(store, "part-007", (4,), 70)
    assert store.verify() == []


def test_faults_are_named_and_never_read(url: str, tmp_path: Path) -> None:
    store, bucket = make(url), Bucket(url)
    key = "parts/part-001/obs/c/0/0"
    content = bytearray(bucket.read(key) or b"")
    content[len(content) // 2] ^= 1
    bucket.delete([key, "parts/part-000/reward/c/0"])
    bucket.create(key, bytes(content))
    fresh = opened_elsewhere(url, tmp_path / "other")
    with pytest.raises(DatasetError, match=r"part-001.*obs/c/0/0 does not have its recorded SHA"):
        fresh.select().read("obs")
    with pytest.raises(DatasetError, match=r"part-000.*reward/c/0 is missing"):
        fresh.select().read("reward")
    faults = store.verify()
    assert len(faults) == 2
    assert "part part-000: object reward/c/0 is missing" in faults
    assert "part part-001: object obs/c/0/0 does not have its recorded SHA-256" in faults


def test_a_selection_does_not_see_what_is_committed_later(url: str, tmp_path: Path) -> None:
    store = make(url)
    reader = opened_elsewhere(url, tmp_path / "other")
    selection = reader.select()
    write_small_part(store, "part-002", (6,), 50)
    assert len(reader.select()) == len(selection) + 1
    assert len(selection.read("reward")) == selection.steps


def test_what_was_read_once_is_not_fetched_again(url: str, tmp_path: Path) -> None:
    make(url)
    reader = opened_elsewhere(url, tmp_path / "other")
    rows = reader.select().read("obs")
    Bucket(url).delete(["parts/part-000/obs/c/0/0", "parts/part-001/obs/c/0/0"])
    again = opened_elsewhere(url, tmp_path / "other")
    np.testing.assert_array_equal(again.select().read("obs"), rows)


def test_a_local_store_is_pushed_once(url: str, tmp_path: Path) -> None:
    local = small_store(tmp_path / "local", [(5, 1, 9), (130, 64), (3,)])
    kept = local.path / "imports/metadata/a.minari"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"kept")
    assert push_store(local, url) == ["part-000", "part-001", "part-002"]
    write_small_part(local, "part-003", (12,), 90)
    assert push_store(local, url) == ["part-003"]
    remote = open_store(url)
    assert isinstance(remote, RemoteStore)
    assert remote.info() == local.info()
    assert Bucket(url).read("imports/metadata/a.minari") == b"kept"
    assert remote.verify() == []


def test_a_compacted_store_is_pushed_merged(url: str, tmp_path: Path) -> None:
    local = small_store(tmp_path / "local", [(5, 1, 9), (13, 64), (3,)])
    push_store(local, url)
    local.compact()
    assert len(push_store(local, url)) == 1
    remote = opened_elsewhere(url, tmp_path / "other")
    assert remote.info().hash == local.info().hash
    np.testing.assert_array_equal(remote.select().read("obs"), local.select().read("obs"))
    assert "parts/part-001" in remote.gc()
    assert remote.verify() == []
    np.testing.assert_array_equal(remote.select().read("action"), local.select().read("action"))
    with pytest.raises(DatasetError, match="on object storage: compact a local copy"):
        remote.compact()


def test_edits_are_pushed_and_not_made_in_place(url: str, tmp_path: Path) -> None:
    local = open_store(small_store(tmp_path / "local").path)
    local.select(skill="run").drop()
    push_store(local, url)
    local.select(skill="stand").annotate({"note": "still"})
    push_store(local, url)
    local.select(skill="stand").trim(tail=1, length=8)
    push_store(local, url)
    remote = open_store(url)
    assert remote.info() == local.info()
    for field in ("obs", "final_obs"):
        np.testing.assert_array_equal(remote.select().read(field), local.select().read(field))
    assert remote.verify() == []
    with pytest.raises(DatasetError, match="edit a local copy"):
        remote.select().drop()
    other = open_store(small_store(tmp_path / "other").path)
    other.select(skill="crawl").drop()
    with pytest.raises(DatasetError, match="other edits"):
        push_store(other, url)


def test_tags_are_kept_and_never_changed(url: str, tmp_path: Path) -> None:
    store = make(url)
    tag = store.tag("v1")
    assert store.tag("v1") == tag
    write_small_part(store, "part-002", (6,), 50)
    with pytest.raises(DatasetError, match="tag v1"):
        opened_elsewhere(url, tmp_path / "other").tag("v1")
    assert store.tags() == [tag]
    tagged = open_store(url, "v1")
    assert tagged.info().hash == tag.hash != store.info().hash
    with pytest.raises(DatasetError, match="opened at tag v1"):
        write_small_part(tagged, "part-005", (6,), 60)


def test_create_and_open_say_what_is_wrong(url: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no store at s3://"):
        RemoteStore.open(url)
    make(url, ())
    with pytest.raises(DatasetError, match="another schema"):
        RemoteStore.create(url, small_schema(robot="anymal"))
    with pytest.raises(DatasetError, match="use s3://bucket/path"):
        RemoteStore.open("s3://bucket")
    with pytest.raises(DatasetError, match=r"s3://nowhere/x: .* cannot be written"):
        RemoteStore.create("s3://nowhere/x", small_schema())
    local = small_store(tmp_path / "local")
    assert type(open_store(local.path)) is Store


def test_without_obstore_it_says_how_to_get_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(DatasetError, match=r"pip install -e '.\[s3\]'"):
        RemoteStore.open(url)


def test_bad_input_is_refused_before_anything_is_written(url: str) -> None:
    store = make(url, ())
    given = part_input((3, 4))
    del given["steps"]["obs"]
    with pytest.raises(DatasetError, match="part part-000: fields per step"):
        store.write_part("part-000", **given)
    assert not Bucket(url).list("parts/part-000/")
    assert os.environ["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1")


@pytest.mark.parametrize("key", ["mine/zarr.json", "x.bin", "parts/mine/c/0", "catalog/x.csv"])
def test_foreign_objects_are_named(url: str, key: str) -> None:
    store = make(url)
    Bucket(url).create("README.md", b"of a published store")
    assert store.verify() == []
    Bucket(url).create(key, b"{}")
    [fault] = store.verify()
    assert key.removesuffix("/zarr.json").removesuffix("/c/0") in fault


def test_a_store_made_anew_at_an_address_is_not_mixed_with_the_old_one(
    url: str, tmp_path: Path
) -> None:
    make(url)
    rows = opened_elsewhere(url, tmp_path / "mirror").select().read("obs")
    bucket = Bucket(url)
    bucket.delete(bucket.list(""))
    store = make(url, ())
    for part, (lengths, first) in enumerate(zip(TWO_PARTS, (0, 3), strict=True)):
        content = part_input(lengths, first)
        content["steps"]["obs"] *= -1  # the sign's bit leaves the compressed size
        store.write_part(f"part-{part:03d}", **content)
    again = opened_elsewhere(url, tmp_path / "mirror").select()
    np.testing.assert_array_equal(again.read("obs"), -rows)


def test_a_crafted_record_writes_nothing_outside_the_mirror(url: str, tmp_path: Path) -> None:
    store = make(url)
    catalog = store.catalog()
    name = "obs/../../../../outside"
    for manifest in catalog.manifests.values():
        manifest.objects[name] = (1, "0")  # pyright: ignore[reportIndexIssue] (a dict)
    with pytest.raises(DatasetError, match="is no path inside"):
        store.array_reader(catalog, "part-000", "obs")


def test_storage_that_ignores_conditions_is_noticed_at_every_first_write(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(f"{url}/whole")
    before = Bucket(f"{url}/whole").list("")
    put = obstore.put

    def put_without_condition(*arguments: Any, **options: Any) -> Any:
        return put(*arguments, **options | {"mode": "overwrite"})

    monkeypatch.setattr(obstore, "put", put_without_condition)

    def add() -> object:
        return write_small_part(made, "part-9", [3])

    def create() -> object:
        return RemoteStore.create(f"{url}/new", small_schema())

    def push() -> object:
        return push_store(small_store(tmp_path / "local"), f"{url}/pushed")

    for write in (add, create, push, lambda: made.tag("v1")) * 2:
        monkeypatch.setattr("gaitforge.datasets.storage.s3._conditional", set())
        with pytest.raises(DatasetError, match="ignores 'If-None-Match"):
            write()
    for name in ("new", "pushed"):
        assert Bucket(f"{url}/{name}").list("") == {}
        with pytest.raises(DatasetError, match="no store"):
            RemoteStore.open(f"{url}/{name}")
    assert Bucket(f"{url}/whole").list("") == before


@pytest.mark.parametrize("ahead_s", [-7 * 86400.0, 7 * 86400.0])
def test_gc_measures_ages_by_the_storages_clock(
    ahead_s: float, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(url)
    Bucket(url).create("parts/part-007/obs/c/0/0", b"being written")
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + ahead_s)
        assert store.gc() == []
        assert store.gc(grace_s=0.0) == ["parts/part-007"]
    assert store.verify() == []


def ranked(values: Sequence[Any], first: int, name: str = "rank") -> dict[str, Any]:
    given = part_input([2, 3], first)
    return {**given, "episodes": {**given["episodes"], name: values}}


@pytest.mark.parametrize(
    ("name", "values"), [("rank", ["good", "bad"]), ("rank", [2**53 + 1, 2]), ("Rank", [0.5, 1.0])]
)
def test_columns_that_do_not_agree_are_refused(
    url: str, tmp_path: Path, name: str, values: Sequence[Any]
) -> None:
    store = make(url, ())
    store.write_part("first", **ranked([0.5, 2.0], 0))
    info = store.info()
    with pytest.raises(DatasetError, match=r"column '?[rR]ank"):
        store.write_part("later", **ranked(values, 10, name))
    local = Store.create(tmp_path / "local", small_schema())
    local.write_part("pushed", **ranked(values, 20, name))
    with pytest.raises(DatasetError, match=r"column '?[rR]ank"):
        push_store(local, url)
    assert opened_elsewhere(url, tmp_path / "other").info() == info
    assert Bucket(url).children("parts") == ["first/", "zarr.json"]
    store.write_part("later", **ranked([1, 2], 10))
    assert store.select().episodes("rank").column(0).to_pylist() == [0.5, 2.0, 1.0, 2.0]


def test_columns_of_a_part_that_came_meanwhile_are_seen(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = make(url, ()), opened_elsewhere(url, tmp_path / "other")
    send = s3._send_objects

    def send_beside_another(*arguments: Any) -> None:
        monkeypatch.setattr(s3, "_send_objects", send)
        other.write_part("other", **ranked(["good", "bad"], 0))
        send(*arguments)

    monkeypatch.setattr(s3, "_send_objects", send_beside_another)
    with pytest.raises(DatasetError, match="column rank"):
        store.write_part("later", **ranked([0.5, 2.0], 10))
    assert store.parts() == ["other"]
    assert store.select().episodes("rank").column(0).to_pylist() == ["good", "bad"]
