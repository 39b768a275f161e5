"""Writing, reading back, and refusing what does not fit."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Field, Schema, Store, open_store
from gaitforge.datasets.storage.parts import SHARD_STEPS
from tests.datasets.making import part_input, small_schema, small_store, write_small_part

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


@settings(max_examples=8, deadline=None)
@given(parts=st.lists(LENGTHS, min_size=1, max_size=3))
def test_every_value_comes_back(parts: list[list[int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = small_store(Path(folder, "s.zarr"), parts)
        selection = open_store(store.path).select()
        first = 0
        row = 0
        for lengths in parts:
            given_part = part_input(lengths, first)
            stops = np.cumsum(lengths)
            for number, stop in enumerate(stops):
                episode = selection.episode(row)
                for name, array in given_part["steps"].items():
                    assert np.array_equal(episode[name], array[stop - lengths[number] : stop])
                final = given_part["per_episode"]["final_obs"][number]
                assert np.array_equal(episode["final_obs"], final)
                row += 1
            first += len(lengths)
        assert row == len(selection)
        assert store.verify() == []


def test_same_input_gives_same_hash_and_bytes_in_any_order(tmp_path: Path) -> None:
    one = small_store(tmp_path / "one", [(5, 3), (4,)])
    other = Store.create(tmp_path / "other", small_schema())
    write_small_part(other, "part-001", (4,), 2)
    write_small_part(other, "part-000", (5, 3), 0)
    assert one.info() == other.info()
    for path in sorted((tmp_path / "one").rglob("*")):
        if path.is_file():
            twin = tmp_path / "other" / path.relative_to(tmp_path / "one")
            assert path.read_bytes() == twin.read_bytes()


def test_catalog_input_types_do_not_change_the_hash(tmp_path: Path) -> None:
    given_part = part_input((3, 4))
    table = pa.table({name: list(values) for name, values in given_part["episodes"].items()})
    one = Store.create(tmp_path / "one", small_schema())
    other = Store.create(tmp_path / "other", small_schema())
    record = one.write_part("p", **given_part)
    assert other.write_part("p", **(given_part | {"episodes": table})) == record


def test_a_committed_part_is_left_as_it_is(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    before = store.info()
    record = write_small_part(store, "part-000", (7, 7))
    assert store.info() == before
    assert (record.part_id, record.steps, record.episodes) == ("part-000", 15, 3)
    assert store.missing(["part-009", "part-000", "part-005"]) == ["part-009", "part-005"]


def test_info_counts_what_is_there(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(5, 1, 9), (130, 64)])
    info = store.info()
    assert (info.steps, info.episodes, info.parts) == (209, 5, 2)
    files = [*(store.path / "parts").glob("part-*/**/*"), *(store.path / "catalog").iterdir()]
    assert info.bytes == sum(path.stat().st_size for path in files if path.is_file())
    write_small_part(store, "part-002", (3,), 5)
    assert store.info().hash != info.hash


def test_catalog_gets_part_and_start(tmp_path: Path) -> None:
    table = small_store(tmp_path / "s", [(5, 1, 9), (130, 64)]).select().episodes()
    assert table.column("start").to_pylist() == [0, 5, 6, 0, 130]
    assert table.column("part").to_pylist() == ["part-000"] * 3 + ["part-001"] * 2
    assert "friction" in table.column_names


def test_a_part_of_several_shards_and_chunks_reads_back(tmp_path: Path) -> None:
    rows = SHARD_STEPS + 1000
    lengths = [SHARD_STEPS - 10, 300, 710]  # the second lies in two shards
    schema = Schema((Field("flag", dtype="int8"), Field("wide", (3,), "int16")), 0.02, "aliengo")
    store = Store.create(tmp_path / "s", schema)
    values = np.arange(rows)
    steps = {
        "flag": (values % 100).astype(np.int8),
        "wide": np.stack([values % 9973, -values % 9967, values // 100], 1).astype(np.int16),
    }
    store.write_part("p", steps, part_input(lengths)["episodes"])
    assert len(list((store.path / "parts/p/wide/c").iterdir())) == 2
    selection = store.select()
    assert np.array_equal(selection.read("wide"), steps["wide"])
    middle = selection.episode(1)
    assert np.array_equal(middle["wide"], steps["wide"][SHARD_STEPS - 10 : SHARD_STEPS + 290])
    assert [unit.stop - unit.first for unit in selection.units()] == [2, 1]


def test_create_opens_an_equal_store_and_refuses_another(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    assert Store.create(store.path, small_schema()).info() == store.info()
    with pytest.raises(DatasetError, match="another schema"):
        Store.create(store.path, small_schema(robot="anymal"))


@pytest.mark.parametrize("kind", ["file", "folder", "below a file"])
def test_create_refuses_other_things_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    if kind == "folder":
        target.mkdir()
        (target / "letter.txt").write_text("mine")
    else:
        target.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    path = target / "s.zarr" if kind == "below a file" else target
    with pytest.raises(DatasetError, match="target"):
        Store.create(path, small_schema())
    assert sorted(tmp_path.rglob("*")) == before


def test_open_refuses_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no store at .*nowhere"):
        open_store(tmp_path / "nowhere")
    zarr.create_group(tmp_path / "other", zarr_format=3)
    with pytest.raises(DatasetError, match="not a store"):
        open_store(tmp_path / "other")


def test_schema_survives_json() -> None:
    schema = small_schema(attributes={"joints": ["hip", "thigh"], "gain": 40.0})
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_schemas_that_differ_tell_in_what() -> None:
    schema = Schema((Field("a"), Field("b")), 0.02, "go2", {"task": "walk"})
    for changes, words in (
        ({"fields": (Field("b"), Field("a"))}, "in the order of its fields"),
        ({"fields": (Field("a"), Field("c"))}, "in its fields b, c"),
        ({"control_dt_s": 0.01, "robot": "go1"}, "in its control_dt_s, robot"),
        ({"group_by": ("task", "quality")}, "in its group_by"),
        ({"fields": (Field("a"),), "attributes": {}}, "in its fields b and in its task"),
    ):
        assert schema.differences(replace(schema, **changes)) == words


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Field("Obs"), "lower-case"),
        (lambda: Field("mask"), "none of"),
        (lambda: Field("obs", (3,), "complex64"), "allowed: float32"),
        (lambda: Field("obs", (0,)), "1 or more"),
        (lambda: Field("obs", (3,), slices={"gravity": (1, 4)}), r"outside 0..3"),
        (lambda: small_schema(control_dt_s=0.0), "positive"),
        (lambda: small_schema(fields=(Field("obs"), Field("obs"))), "must differ"),
        (lambda: small_schema(attributes={"x": object()}), "JSON"),
    ],
)
def test_bad_schemas_are_refused(make, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        make()


def _changed(group: str, name: str, value: object) -> dict:
    given_part = part_input((3, 4))
    if value is None:
        del given_part[group][name]
    else:
        given_part[group][name] = value
    return given_part


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (_changed("steps", "action", None), "fields per step must be obs, action, reward"),
        (_changed("steps", "torque", np.zeros(7)), "given: action, obs, reward, torque"),
        (_changed("per_episode", "final_obs", None), "fields per episode"),
        (_changed("steps", "reward", np.zeros(6, np.float32)), r"reward: shape must be \(7,\)"),
        (_changed("steps", "reward", np.zeros(7)), "dtype must be float32, not float64"),
        (_changed("steps", "reward", np.full(7, np.nan, np.float32)), "finite"),
        (_changed("episodes", "skill", None), "missing: skill"),
        (_changed("episodes", "skill", ["run", None]), "skill: a value is missing"),
        (_changed("episodes", "skill", ["run"]), "same number of rows"),
        (_changed("episodes", "length", [3, 5]), "sum to 8"),
        (_changed("episodes", "length", [7, 0]), "at least one step"),
        (_changed("episodes", "episode", [1, 1]), "ids of a part must differ"),
        (_changed("episodes", "level", ["high", "low"]), "level"),
        (_changed("episodes", "return", [np.inf, 0.0]), "return: every value must be finite"),
        (_changed("episodes", "start", [0, 3]), "leave them out"),
        (_changed("episodes", "a b", [0, 3]), "letters, digits and underscores"),
        (_changed("episodes", "draws", [[1], [2]]), "draws: type"),
    ],
)
def test_bad_parts_are_refused_unwritten(tmp_path: Path, bad: dict, message: str) -> None:
    store = small_store(tmp_path / "s")
    before = sorted(store.path.rglob("*"))
    with pytest.raises(DatasetError, match=message) as raised:
        store.write_part("part-900", **bad)
    assert "\n" not in str(raised.value)
    assert sorted(store.path.rglob("*")) == before


@pytest.mark.parametrize("part_id", ["", "../evil", "a/b", ".hidden", "x" * 121])
def test_part_ids_cannot_leave_the_store(tmp_path: Path, part_id: str) -> None:
    store = small_store(tmp_path / "s")
    with pytest.raises(DatasetError, match="part id"):
        store.write_part(part_id, **part_input((3,)))


def test_parts_may_carry_different_extra_columns(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(3, 4)])
    more = part_input((5,), 2)
    more["episodes"]["base_mass_kg"] = [1.5]
    store.write_part("part-001", **more)
    column = store.select().episodes().column("base_mass_kg")
    assert column.to_pylist() == [None, None, 1.5]
    assert store.verify() == []
