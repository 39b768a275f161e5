"""Versions of the layout, tags, and compaction: what changes on disk and what never does."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zarr.codecs

from gaitforge.datasets import (
    DatasetError,
    Selection,
    Store,
    open_store,
)
from tests.datasets.making import part_input, small_schema, small_store, write_small_part

SMALL_PARTS = [(5, 1), (9, 4), (7,), (3, 3, 3), (130, 64)]


def observed(store: Store) -> dict[str, Any]:
    """All that a user can see of a store's content, sizes on disk left out."""
    everything = store.select()
    batches = everything.windows(window_len=4, batch_size=16, seed=3, return_to_go=True)
    return {
        "info": replace(store.info(), bytes=0),
        "parts": store.parts(),
        "selection": everything.hash,
        "refined": everything.where("length > 3").hash,
        "episodes": everything.episodes().to_pydict(),
        "fields": {name: everything.read(name).tobytes() for name in store.schema.names()},
        "stream": [batch["obs"].numpy().tobytes() for batch in batches],
        "one": everything.episode(3)["final_obs"].tolist(),
    }


@pytest.mark.parametrize("version", [2, 4, None, True, "3"])
def test_another_version_is_refused_with_one_line(tmp_path: Path, version: object) -> None:
    store = small_store(tmp_path / "s")
    change_record(store, {"schema_version": version})
    with pytest.raises(
        DatasetError, match=f"version {version} is not .* reads version 3"
    ) as raised:
        open_store(store.path)
    assert "\n" not in str(raised.value)


def test_a_store_of_the_former_codec_is_read_as_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = small_store(tmp_path / "new", SMALL_PARTS)

    blosc = zarr.codecs.BloscCodec

    def former(**options: Any) -> zarr.codecs.BloscCodec:
        return blosc(**options | {"cname": "zstd", "clevel": 3})

    with monkeypatch.context() as patched:
        patched.setattr("zarr.codecs.BloscCodec", former)
        old = small_store(tmp_path / "old", SMALL_PARTS)
    array = "parts/part-000/obs/zarr.json"
    codecs = [b"zstd" in (store.path / array).read_bytes() for store in (old, new)]
    assert codecs == [True, False]
    assert old.verify() == new.verify() == []
    assert observed(open_store(old.path)) == observed(open_store(new.path))


@pytest.mark.parametrize("change", [{"plan": 3}, {"schema": 3}, {"sha256": None}])
def test_a_damaged_root_record_is_one_line(tmp_path: Path, change: dict[str, Any]) -> None:
    store = small_store(tmp_path / "s")
    change_record(store, change)
    with pytest.raises(DatasetError, match="damaged") as raised:
        open_store(store.path)
    assert "\n" not in str(raised.value)


def change_record(store: Store, change: Mapping[str, Any]) -> None:
    path = store.path / "zarr.json"
    tree = json.loads(path.read_text())
    tree["attributes"]["gaitforge"] |= change
    path.write_text(json.dumps(tree))


def test_the_plan_is_kept_as_written_at_creation(tmp_path: Path) -> None:
    plan = {"grid": {"terrains": ["flat"], "seed": 3}, "sim": "mujoco"}
    Store.create(tmp_path / "s", small_schema(), plan)
    again = Store.create(tmp_path / "s", small_schema(), {"other": 1})
    assert again.plan == open_store(tmp_path / "s").plan == plan
    assert Store.create(tmp_path / "t", small_schema()).plan is None
    with pytest.raises(DatasetError, match="plain JSON"):
        Store.create(tmp_path / "u", small_schema(), {"x": object()})
    assert not (tmp_path / "u").exists()


def test_a_tag_shows_the_store_as_it_was(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    tag = store.tag("paper")
    before, info = observed(store), store.info()
    store.select().save(tmp_path / "chosen.json")
    write_small_part(store, "part-0005", (8, 8), 40)
    tagged = open_store(store.path, tag="paper")
    assert observed(tagged) == before
    assert tagged.info().hash == tag.hash == info.hash
    assert tagged.missing(["part-000", "part-0005"]) == ["part-0005"]
    assert Selection.load(tagged, tmp_path / "chosen.json").hash == before["selection"]
    assert store.info().hash != tag.hash
    assert store.tags() == [tag]
    with pytest.raises(DatasetError, match="opened at tag paper"):
        write_small_part(tagged, "part-700", (3,), 90)


def test_tags_never_change(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    tag = store.tag("v1")
    assert store.tag("v1") == tag
    write_small_part(store, "part-005", (8,), 40)
    with pytest.raises(DatasetError, match="tags never change"):
        store.tag("v1")
    assert store.tag("v2").episodes == tag.episodes + 1
    assert [each.name for each in store.tags()] == ["v1", "v2"]
    for name in ("", "../v3", ".v3", "a/b", "x" * 81):
        with pytest.raises(DatasetError, match="not allowed"):
            store.tag(name)
    with pytest.raises(DatasetError, match=r"no tag 'v9' in .*allowed: v1, v2"):
        open_store(store.path, tag="v9")


def test_damage_to_a_tag_is_found(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    store.tag("v1")
    path = store.path / "tags" / "v1.json"
    text = path.read_text()
    for changed in (text.replace('"episodes": 5', '"episodes": 6'), text[:-30], "[]", ""):
        path.write_text(changed)
        with pytest.raises(DatasetError, match=r"tag v1 of .* cannot be read"):
            open_store(store.path, tag="v1")
        assert "tag v1" in store.verify()[0]
    path.write_text(text)
    shutil.rmtree(store.path / "parts" / "part-001")
    (store.path / "catalog" / "part-001.parquet").unlink()
    assert store.verify() == ["tag v1: part part-001 is not in the store as it was tagged"]
    with pytest.raises(DatasetError, match=r"tag v1 of .*: part part-001 is absent"):
        open_store(store.path, tag="v1").select()


def test_compaction_changes_nothing_but_files(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", SMALL_PARTS)
    store.tag("before")
    store.select().where("length > 3").save(tmp_path / "chosen.json")
    before = observed(store)
    reader = open_store(store.path).select()
    (merged,) = store.compact()
    assert (merged.steps, merged.episodes) == (229, 10)
    assert store.verify() == []
    removed = store.gc()
    assert sorted(removed) == sorted(
        [f"catalog/part-{k:03d}.parquet" for k in range(5)]
        + [f"parts/part-{k:03d}" for k in range(5)]
    )
    for opened in (store, open_store(store.path), open_store(store.path, tag="before")):
        assert observed(opened) == before
        assert opened.verify() == []
    assert reader.read("obs").tobytes() == before["fields"]["obs"]  # opened before the removal
    assert Selection.load(store, tmp_path / "chosen.json").hash == before["refined"]
    assert [path.name for path in (store.path / "parts").iterdir() if path.is_dir()] == [
        merged.part_id
    ]
    assert store.compact() == []
    assert store.gc() == []


def test_merged_parts_count_as_committed_and_go_on_growing(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", SMALL_PARTS)
    twin = small_store(tmp_path / "twin", [*SMALL_PARTS, (6, 6)])
    store.compact()
    store.gc()
    assert store.missing(["part-000", "part-004", "part-005"]) == ["part-005"]
    record = write_small_part(store, "part-002", (7,), 4)  # left as it is
    assert record.content_hash == twin.catalog().manifests["part-002"].content_hash
    write_small_part(store, "part-005", (6, 6), 10)
    assert observed(store) == observed(twin)
    store.compact()
    store.gc()
    assert observed(open_store(store.path)) == observed(twin)
    assert len(list((store.path / "catalog").iterdir())) == 1


def test_only_small_parts_of_equal_columns_merge_up_to_the_target(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5,), (6,), (60,), (9,), (8,), (7,)])
    more = part_input((3,), 6)
    more["episodes"]["base_mass_kg"] = [1.5]
    store.write_part("part-006", **more)
    before = observed(store)
    merged = store.compact(target_steps=20)
    assert sorted(each.steps for each in merged) == [11, 17]
    store.gc()
    assert observed(open_store(store.path)) == before
    with pytest.raises(DatasetError, match="target_steps must be in 1"):
        store.compact(target_steps=0)


def test_compaction_refuses_damage_and_keeps_everything(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", SMALL_PARTS)
    shard = store.path / "parts/part-001/obs/c/0/0"
    content = bytearray(shard.read_bytes())
    content[11] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.raises(DatasetError, match="part part-001"):
        store.compact()
    assert store.parts() == [f"part-{k:03d}" for k in range(5)]
    assert [line for line in store.verify() if "part-001" not in line] == []


def test_gc_keeps_the_sources_of_a_damaged_merged_part(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", SMALL_PARTS)
    before = observed(store)
    (merged,) = store.compact()
    (store.path / "parts" / merged.part_id / "obs/c/0/0").unlink()
    with pytest.raises(DatasetError, match=rf"{merged.part_id}: object obs/c/0/0 is missing"):
        store.gc()
    assert any(merged.part_id in line for line in store.verify())
    (store.path / "catalog" / f"{merged.part_id}.parquet").unlink()
    assert observed(open_store(store.path)) == before
    assert store.gc() == [f"parts/{merged.part_id}"]
    assert store.verify() == []


def test_names_of_merged_parts_are_reserved(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    with pytest.raises(DatasetError, match="not beginning with 'merged-'"):
        write_small_part(store, "merged-1", (4,), 50)
