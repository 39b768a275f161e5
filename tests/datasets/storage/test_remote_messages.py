"""What is said of a store on object storage names its address, not the folder of its mirror."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gaitforge.datasets import DatasetError, Selection, open_store
from gaitforge.datasets.dataset import RemoteStore
from gaitforge.datasets.storage.s3 import Bucket, push_store
from tests.datasets.making import TWO_PARTS, fill_store, small_schema, small_store
from tests.datasets.programs import run_on_full_disk

CATALOG_FILE = "catalog/part-000.parquet"
CHUNK = "parts/part-000/obs/c/0/0"


@pytest.fixture
def store(url: str) -> RemoteStore:
    """Two parts, tagged v1."""
    made = RemoteStore.create(url, small_schema())
    fill_store(made, TWO_PARTS)
    made.tag("v1")
    return made


def replace(url: str, key: str, content: bytes = b"nothing that can be read") -> None:
    bucket = Bucket(url)
    bucket.delete([key])
    assert bucket.create(key, content)


def of_another_version(url: str) -> None:
    root = Bucket(url).read("zarr.json") or b""
    replace(url, "zarr.json", root.replace(b'"schema_version": 3', b'"schema_version": 99'))


def nothing(url: str) -> None:
    assert Bucket(url).list("catalog/")


def without_a_part(url: str) -> None:
    Bucket(url).delete([CATALOG_FILE])


def with_damage(key: str) -> Callable[[str], None]:
    return lambda url: replace(url, key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "action"),
    [
        (nothing, lambda store, _: store.select(terrain="moon")),
        (nothing, lambda store, _: open_store(store.url, "v9")),
        (nothing, lambda store, _: store.compact()),
        (nothing, lambda store, _: push_store(store, f"{store.url}-2")),
        (without_a_part, lambda store, _: open_store(store.url, "v1").select()),
        (without_a_part, lambda store, folder: Selection.load(store, folder / "all.json")),
        (of_another_version, lambda store, _: open_store(store.url)),
        (with_damage("zarr.json"), lambda store, _: open_store(store.url)),
        (with_damage("tags/v1.json"), lambda store, _: store.tags()),
        (with_damage(CATALOG_FILE), lambda store, _: store.select()),
        (with_damage(CHUNK), lambda store, _: store.select().read("obs")),
        (with_damage("parts/part-000/obs/zarr.json"), lambda store, _: store.select().read("obs")),
    ],
    ids=lambda value: None if value.__name__ == "<lambda>" else value.__name__,
)
def test_errors_name_the_address(
    url: str,
    store: RemoteStore,
    tmp_path: Path,
    change: Callable[[str], None],
    action: Callable[[RemoteStore, Path], object],
) -> None:
    store.select().save(tmp_path / "all.json")
    change(url)
    with pytest.raises(DatasetError) as refusal:
        action(store, tmp_path)
    message = str(refusal.value)
    assert url in message
    assert str(store.path) not in message
    assert "\n" not in message


def test_faults_name_the_address(url: str, store: RemoteStore) -> None:
    for key in (CATALOG_FILE, "tags/v1.json"):
        replace(url, key)
    faults = store.verify()
    assert any(f"catalog file {url}/{CATALOG_FILE} is damaged" in fault for fault in faults)
    assert any(f"tag v1 of {url} cannot be read" in fault for fault in faults)
    assert not any(str(store.path) in fault for fault in faults)


def test_a_part_that_cannot_be_made_names_the_address_and_the_folder_that_is_full(url: str) -> None:
    code = (
        "from gaitforge.datasets.dataset import RemoteStore; "
        "store = RemoteStore.create(sys.argv[1], small_schema()); limited(); "
        "write_small_part(store, 'part-000', (130, 64))"
    )
    answer = run_on_full_disk(2000, code, url)
    assert answer.stderr == ""
    expected = rf"part part-000 was not committed to {url} through /.*: File too large\n"
    assert re.fullmatch(expected, answer.stdout)
    assert RemoteStore.open(url).parts() == []


def test_a_mirror_that_cannot_be_kept_says_what_to_set(store: RemoteStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DatasetError, match=f"remote store in {place}.*; set XDG_CACHE_HOME"):
            RemoteStore.open(store.url, cache=place)


def test_a_store_that_lacks_an_object_is_not_pushed(url: str, tmp_path: Path) -> None:
    local = small_store(tmp_path / "local")
    (local.path / "parts/part-001/obs/c/0/0").unlink()
    with pytest.raises(DatasetError, match=r"part-001 of .*local: object obs/c/0/0 cannot be read"):
        push_store(local, url)
    assert RemoteStore.open(url).parts() == []
