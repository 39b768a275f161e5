"""Versions of the layout, tags, and compaction: what changes on disk and what never does."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gaitforge.datasets import (
    SCHEMA_VERSION,
    DatasetError,
    Selection,
    Store,
    migrate_store,
    open_store,
)
from gaitforge.datasets.storage.root import MIGRATIONS, migrated
from tests.datasets.making import part_input, small_schema, small_store, write_small_part

SMALL_PARTS = [(5, 1), (9, 4), (7,), (3, 3, 3), (130, 64)]


def make_version_1(store: Store) -> None:
    """Give a store the root record that version 1 wrote."""
    path = store.path / "zarr.json"
    tree = json.loads(path.read_text())
    record = tree["attributes"]["gaitforge"]
    del record["schema"]["group_by"]
    tree["attributes"]["gaitforge"] = {"schema_version": 1, **record["schema"]}
    path.write_text(json.dumps(tree))


def make_version_2(store: Store) -> None:
    """Give a store the root record that version 2 wrote, and remove the index of this one."""
    path = store.path / "zarr.json"
    tree = json.loads(path.read_text())
    record = tree["attributes"]["gaitforge"]
    record["schema_version"] = 2
    del record["schema"]["group_by"]
    path.write_text(json.dumps(tree))
    store.files.index_path.unlink(missing_ok=True)


def old_gym_store(path: Path) -> Store:
    """A store of a Gymnasium task as version 2 wrote it, with the columns terrain and skill."""
    schema = replace(small_schema(), attributes={"format": "gymnasium"})
    store = Store.create(path, schema)
    for number, lengths in enumerate(SMALL_PARTS):
        store.write_part(f"part-{number:03d}", **part_input(lengths, 10 * number))
    make_version_2(store)
    return store


def observed(store: Store) -> dict[str, Any]:
    """All that a user can see of a store's content, sizes on disk left out."""
    everything = store.select()
    batches = everything.windows(window_len=4, batch_size=16, seed=3, return_to_go=True)
    return {
        "info": replace(store.info(), bytes=0, schema_version=0),
        "parts": store.parts(),
        "selection": everything.hash,
        "refined": everything.where("length > 3").hash,
        "episodes": everything.episodes().to_pydict(),
        "fields": {name: everything.read(name).tobytes() for name in store.schema.names()},
        "stream": [batch["obs"].numpy().tobytes() for batch in batches],
        "one": everything.episode(3)["final_obs"].tolist(),
    }


def test_a_store_of_version_1_is_read_as_it_is(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    before = observed(store)
    make_version_1(store)
    content = (store.path / "zarr.json").read_bytes()
    old = open_store(store.path)
    assert observed(old) == before
    assert old.info().schema_version == 1
    assert old.plan is None
    assert old.verify() == []
    assert (store.path / "zarr.json").read_bytes() == content


def test_writing_to_an_older_store_asks_for_a_migration(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    before = store.info()
    make_version_1(store)
    old = open_store(store.path)
    for write in (
        lambda: write_small_part(old, "part-009", (4,), 50),
        lambda: old.tag("v1"),
        old.compact,
        lambda: Store.create(store.path, small_schema()),
    ):
        with pytest.raises(DatasetError, match="schema version 1 and can only be read; migrate"):
            write()
    assert migrate_store(store.path) == 1
    assert migrate_store(store.path) == SCHEMA_VERSION
    assert open_store(store.path).info() == before
    write_small_part(open_store(store.path), "part-009", (4,), 50)
    assert open_store(store.path).verify() == []


def test_a_migrated_gym_store_takes_parts_of_the_new_names(
    tmp_path: Path,
) -> None:
    written = old_gym_store(tmp_path / "s")
    before = observed(open_store(written.path))
    with pytest.raises(DatasetError, match="unknown column 'skill'"):
        open_store(written.path).select(skill="run")
    assert migrate_store(written.path) == 2
    store = open_store(written.path)
    assert observed(store) == before
    given = part_input((4, 4), 90)
    with pytest.raises(DatasetError, match="episode columns are missing: task, quality"):
        store.write_part("part-900", **given)
    given["episodes"]["task"] = given["episodes"].pop("terrain")
    given["episodes"]["quality"] = given["episodes"].pop("skill")
    store.tag("before")
    store.write_part("part-900", **given)
    grown = observed(store)
    for _ in range(2):  # each file read by itself, then all from the index
        assert store.verify() == []
        assert observed(open_store(written.path, tag="before")) == before
        assert None not in store.select().episodes().column("quality").to_pylist()
        store.compact()
        store.gc()
    assert observed(open_store(written.path)) == grown


def test_there_is_a_migration_from_every_older_version() -> None:
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA_VERSION))
    old = {"schema_version": 1, "fields": [], "control_dt_s": 0.02, "robot": "r", "attributes": {}}
    copy = json.loads(json.dumps(old))
    assert migrated(old)["schema_version"] == SCHEMA_VERSION
    assert old == copy


def test_unknown_versions_and_damaged_root_records_are_one_line(tmp_path: Path) -> None:
    path = small_store(tmp_path / "s").path / "zarr.json"
    tree = json.loads(path.read_text())
    record = tree["attributes"]["gaitforge"]
    for changed, message in (
        (record | {"schema_version": 5}, r"version 5 .*versions 1 to 4; a newer program"),
        *((record | {"schema_version": each}, f"version {each} is not") for each in (0, None, "2")),
        *((each, "damaged") for each in ([], {"schema_version": 2}, {"schema_version": 3})),
        ({"schema_version": 1, "fields": 3}, "damaged"),
    ):
        tree["attributes"]["gaitforge"] = changed
        path.write_text(json.dumps(tree))
        for use in (open_store, migrate_store):
            with pytest.raises(DatasetError, match=message) as raised:
                use(path.parent)
            assert "\n" not in str(raised.value)


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
