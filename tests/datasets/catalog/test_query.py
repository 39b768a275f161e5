"""Queries over the catalog: hostile conditions, groups, Parquet output, and the index."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Store, open_store, query, write_parquet
from gaitforge.datasets.catalog.catalog import distinct
from gaitforge.datasets.catalog.catalog_files import INDEX_FROM
from gaitforge.datasets.catalog.conditions import matching_rows
from gaitforge.datasets.catalog.episodes import episodes_digest
from gaitforge.datasets.catalog.index import segment_paths
from gaitforge.datasets.catalog.summaries import MOST_VALUES, in_bins_of
from tests.datasets.making import (
    part_input,
    small_schema,
    small_store,
    write_small_part,
    write_unchecked,
)
from tests.datasets.programs import run_afresh

MANY = [(3, 1 + k % 4) for k in range(INDEX_FROM)]

HOSTILE = [
    *("", "length", "1", "colour = 'red'", "length > 3, level", "length = ?", "length = $1"),
    *("true) union select 1 --", "true union all select true", "true from episodes"),
    *("true limit 1", "true group by all", "true order by 1", "true window w as ()"),
    *("true qualify true", "with t as (select 1) select true", "values (true)"),
    # Other statements
    *("true; drop table episodes", "true /* ; */ ; delete from episodes", "pragma version"),
    *("copy episodes to '/tmp/x.csv'", "attach '/tmp/x.db'", "install httpfs; load httpfs"),
    *("true; set enable_external_access = true", "true; export database '/tmp/x'"),
    # Queries within, and files
    *("length > (select min(length) from episodes)", "length in (select 1)"),
    *("length > any (select 1)", "exists (from '/etc/passwd')", "exists (from glob('/**'))"),
    "(select count(*) from read_csv('/etc/passwd')) > 0",
    *("content = 'x' from read_text('/etc/passwd')", "read_blob('/etc/passwd') is null"),
    *("query('select 1') is null", "query_table('episodes') is null"),
    # What is not a function of the episode
    *("random() < 0.5", "uuid() = 'x'", "setseed(0.5) is null", "nextval('s') > 0"),
    *("now() is not null", "current_timestamp is not null", "current_user = 'x'"),
    *("current_setting('memory_limit') = ''", "getenv('HOME') = ''", "getvariable('x') is null"),
    *("count(*) > 1", "max(length) > 1", "sum(length) over () > 1", "row_number() over () = 1"),
    *("columns(*) is not null", "unnest([true])", "struct_pack(a := 1).a = 1"),
    *("list_transform([1], x -> x + 1) = [2]", "list_filter([1], lambda x: true) = [1]"),
    *("pragma_table_info('episodes') is null", "error('boo') is null", "write_log('x') is null"),
    *("episodes.length > 3", "main.episodes.length > 3", "episodes is not null"),
    *("rowid > 3", "#1 > 3", "gaitforge_row > 1"),
    # What takes memory or time
    *("range(1000000000) is null", "sleep_ms(100000) is null"),
    "length(rpad('x', 1000000000, 'y')) > 1",
    *("printf('%1000000000d', 1) = 'x'", "array_to_string(range(100000000), ',') = 'x'"),
    "(" * 5_000 + "true" + ")" * 5_000,
    "not " * 2_400 + "true",
    "length > 3" + " or length > 3" * 5_000,
    "length in (" + ",".join(["1"] * 100_000) + ")",
    "terrain = '" + "x" * 20_000_000 + "'",
    # Text that is no SQL, and signs that look like others
    *("length > 3 collate", "\u2028true; drop table episodes", "length > 3\0 or true"),
    *("terrain = '\ud800'", "ｌｅｎｇｔｈ > 3", "l\u0435ngth > 3", "\u201clength\u201d > 3"),
    *('"length"" > 3', "terrain = 'flat", "terrain = $$flat", "/* length > 3", "-- length > 3"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return small_store(tmp_path_factory.mktemp("query") / "s", [(5, 1, 9, 4, 7), (130, 64)])


@pytest.mark.parametrize("condition", HOSTILE, ids=lambda text: ascii(text[:40]))
def test_hostile_conditions_are_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = store.info()
    with pytest.raises(DatasetError, match=r"not allowed: .*one boolean expression") as raised:
        store.select().where(condition)
    assert store.info() == before
    message = str(raised.value)
    assert message.isprintable()
    assert len(message) < 3_000
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=20)
@given(condition=st.text(max_size=40))
def test_any_text_is_a_condition_or_one_clear_error(store: Store, condition: str) -> None:
    try:
        kept = store.select().where(condition)
    except DatasetError as error:
        assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
    else:
        assert len(kept) <= len(store.select())


@settings(max_examples=25)
@given(
    low=st.integers(-5, 200),
    terrain=st.sampled_from(["flat", "rough", "no 'such'"]),
    share=st.floats(0.4, 1.2),
)
def test_conditions_equal_a_plain_loop(store: Store, low: int, terrain: str, share: float) -> None:
    text = terrain.replace("'", "''")
    condition = f"LENGTH >= {low} and (terrain = '{text}' or friction < {share!r})"
    kept = store.select().where(condition).episodes().column("episode").to_pylist()
    assert kept == [
        row["episode"]
        for row in store.select().episodes().to_pylist()
        if row["length"] >= low and (row["terrain"] == terrain or row["friction"] < share)
    ]


class _Table:
    """A table as `Columns`, of the chunks of a store's parts."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.column_names = table.column_names
        self.num_rows = table.num_rows

    def check_column(self, name: str) -> str:
        raise DatasetError(f"no column {name}")

    def stored(self, names: Sequence[str]) -> pa.Table:
        return self.table.select(names)


@settings(max_examples=60, deadline=None)
@given(
    clips=st.lists(st.integers(0, 11), max_size=12),
    levels=st.lists(st.integers(-1, 9), max_size=12),
    negated=st.booleans(),
    joined=st.sampled_from(["and", "or"]),
    parts=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    seed=st.integers(0, 99),
)
def test_lists_of_any_length_choose_the_rows_of_a_plain_loop(
    clips: list[int], levels: list[int], negated: bool, joined: str, parts: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    schema = pa.schema({"clip": pa.string(), "level": pa.int64()})
    chunks = []
    for n in parts:
        clip = [f"clip_{k}" for k in rng.integers(0, 9, n)]
        level = [k or None for k in rng.integers(0, 8, n).tolist()]
        chunks.append(pa.table({"clip": clip, "level": level}, schema))
    table = pa.concat_tables(chunks)
    names = [f"clip_{k}" for k in clips] or [""]
    numbers = levels or [-1]
    within = ", ".join(map(repr, names))
    condition = f"clip {'not ' * negated}in ({within}) {joined} level in {(*numbers, 99)}"
    both = all if joined == "and" else any
    expected = [
        row
        for row, (clip, level) in enumerate(zip(*table.to_pydict().values(), strict=True))
        if both([(clip in names) != negated, level in numbers])
    ]
    assert matching_rows(_Table(table), condition).tolist() == expected


def test_no_name_of_a_column_is_taken_for_another(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s", small_schema())
    names = ("mass", "Mass"), ("row_of_length", "gaitforge_row")
    for number, (weight, row) in enumerate(zip(*names, strict=True)):
        given = part_input((2, 3), 2 * number)
        columns = {**given["episodes"], weight: [1.0, 2.0], row: [100, 7]}
        write_unchecked(store, f"p{number}", {**given, "episodes": columns})
    for name, ids in (("row_of_length", [0]), ("gaitforge_row", [2])):
        for condition in (f"{name} = 100", f"{name} = 100 and length in (1, 2, 3, 4, 5, 6)"):
            assert store.select().where(condition).episode_ids().tolist() == ids
    with pytest.raises(DatasetError, match="columns mass, Mass differ in upper and lower case"):
        store.select().where("mass > 0")


def test_constant_conditions_keep_all_or_nothing(store: Store) -> None:
    assert len(store.select().where("true")) == 7
    assert len(store.select().where("1 > 2")) == 0


def test_missing_values_group_last_and_match_nothing(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [(3, 4)])
    more = part_input((5, 6, 7), 2)
    more["episodes"] |= {"mass_kg": [1.5, None, 0.5], "gait": ["trot", None, "pace"]}
    store.write_part("part-001", **more)
    assert [row["mass_kg"] for row in query(store, group_by=("mass_kg",))] == [0.5, 1.5, None]
    rows = query(store, group_by=("gait", "mass_kg"))
    assert [(row["gait"], row["mass_kg"], row["episodes"]) for row in rows] == [
        ("pace", 0.5, 1),
        ("trot", 1.5, 1),
        (None, None, 3),
    ]
    assert store.select(gait=["trot"]).lengths.tolist() == [5]
    assert store.select().where("gait <> 'trot'").lengths.tolist() == [7]
    with pytest.raises(DatasetError, match=r"no gait None in .*allowed: pace, trot"):
        store.select(gait=[None])


def test_groups_may_be_named_after_what_is_measured(store: Store) -> None:
    rows = query(store, group_by=("success", "success"))
    assert [row["success"] for row in rows] == [False, True]
    assert sum(row["episodes"] for row in rows) == 7


def test_an_empty_store_answers(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s", small_schema())
    assert query(store) == []
    assert query(store, where="length > 3") == []
    assert store.select().episodes().num_rows == 0
    with pytest.raises(DatasetError, match=r"no terrain 'flat' in .*allowed: \(none\)"):
        store.select(terrain="flat")


def test_parquet_output_holds_the_same_rows(store: Store, tmp_path: Path) -> None:
    groups = query(store, where="length > 3", group_by=("terrain", "level"))
    write_parquet(groups, tmp_path / "groups.parquet")
    assert pq.read_table(tmp_path / "groups.parquet").to_pylist() == groups
    episodes = store.select().episodes()
    write_parquet(episodes, tmp_path / "episodes.parquet")
    assert pq.read_table(tmp_path / "episodes.parquet").equals(episodes)
    write_parquet([], tmp_path / "none.parquet")
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0
    with pytest.raises(DatasetError, match="cannot write"):
        write_parquet(groups, tmp_path / "nowhere" / "x.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "episodes.parquet",
        "groups.parquet",
        "none.parquet",
    ]


STARTS_LIGHT = """
import sys
from gaitforge.datasets import open_store, query
query(open_store(sys.argv[1]), terrain="flat", where="length > 2", group_by=("terrain", "skill"))
heavy = ("torch", "zarr", "dask", "numcodecs", "pandas", "pyarrow.compute", "pyarrow.dataset")
print([name for name in heavy if name in sys.modules])
"""


def test_a_query_imports_nothing_heavy(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", MANY)
    store.catalog()
    answer = run_afresh(STARTS_LIGHT, store.path)
    assert (answer.stdout, answer.stderr) == ("[]\n", "")


def _answers(store: Store) -> dict[str, Any]:
    return {
        "all": store.select().episodes().to_pydict(),
        "where": store.select().where("length > 2 and friction < 0.9").hash,
        "groups": query(store, group_by=("terrain", "skill", "part")),
        "info": asdict(store.info()),
    }


def test_the_index_gives_the_answers_of_the_catalog_files(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", MANY[:-1])
    assert not segment_paths(store.files.index_folder)
    more = part_input((6, 2), 2 * INDEX_FROM)
    more["episodes"]["mass_kg"] = [1.5, None]
    store.write_part("part-0050", **more)  # sorts among the others
    direct = _answers_without_index(store.path)
    assert _answers(open_store(store.path)) == direct
    assert len(segment_paths(store.files.index_folder)) == 1
    assert _answers(open_store(store.path)) == direct
    write_small_part(store, "part-0001", (2, 2), 900)
    (store.path / "catalog" / "part-003.parquet").unlink()
    direct = _answers_without_index(store.path)
    assert _answers(open_store(store.path)) == direct == _answers(store)
    assert store.verify() == []


def _answers_without_index(path: Path) -> dict[str, Any]:
    cache = path / ".cache"
    kept = cache.rename(cache.with_suffix(".kept")) if cache.exists() else None
    cache.touch()  # nothing can be written in its place
    try:
        return _answers(open_store(path))
    finally:
        cache.unlink()
        if kept is not None:
            kept.rename(cache)


texts = st.text() | st.sampled_from(["flat", "rough", 'say "no"', "é\u2028"]) | st.none()


@given(st.lists(texts))
def test_the_digest_of_a_catalog_is_that_of_its_values_as_json(values: list[str | None]) -> None:
    array = pa.array(values, pa.string())
    plain = hashlib.sha256(f"name string {len(values)}\n".encode())
    plain.update(bytes(value is not None for value in values) + json.dumps(values).encode())
    assert episodes_digest(pa.table({"name": array})) == plain.hexdigest()


@given(
    st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1))
    | st.lists(st.booleans())
    | st.lists(st.floats())
)
def test_distinct_values_are_those_of_numpy(values: list[Any]) -> None:
    array = np.asarray(values, np.int64 if not values or type(values[0]) is int else None)
    known, places = distinct(array)
    expected, inverse = np.unique(array, return_inverse=True)
    assert known.dtype == expected.dtype
    np.testing.assert_array_equal(known, expected)
    np.testing.assert_array_equal(places, inverse)


def test_a_changed_catalog_file_is_never_answered_from_the_index(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", MANY)
    store.catalog()
    path = store.path / "catalog" / "part-004.parquet"
    content = bytearray(path.read_bytes())
    content[content.index(b"flat")] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DatasetError, match=r"part part-004: catalog file .* is damaged"):
        open_store(store.path).select()


@pytest.mark.slow
def test_a_flipped_byte_of_the_index_never_changes_an_answer(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", MANY)
    expected = _answers(store)
    [path] = segment_paths(store.files.index_folder)
    content = path.read_bytes()
    for position in np.linspace(4, len(content) - 1, 12).astype(int).tolist():
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 0x20]) + content[position + 1 :]
        )
        assert "delete it" in store.verify()[0]
        assert _answers(open_store(store.path)) == expected
    assert store.verify() == [], "it was built again"
    for cut in (content[:100], b"", bytes(4)):  # four zeros are the CRC32C of nothing
        path.write_bytes(cut)
        assert _answers(open_store(store.path)) == expected
        assert store.verify() == []


def test_an_open_reader_keeps_its_index_when_another_replaces_it(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", MANY)
    opened = open_store(store.path)
    reader = opened.select()
    ids = reader.episode_ids().tolist()
    for number in range(INDEX_FROM):
        write_small_part(store, f"part-0{number:03d}", (2,), 500 + number)
    assert len(open_store(store.path).select()) == len(ids) + INDEX_FROM
    assert reader.episodes().column("episode").to_pylist() == ids
    assert len(opened.select()) == len(ids) + INDEX_FROM


@pytest.mark.parametrize("condition", ["q > 1", "q >= 0", "q = q", "not q < 1", "q / 0 > 1"])
def test_no_comparison_matches_what_is_not_a_number(condition: str, tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s", small_schema())
    for number, values in enumerate(([float("nan"), 0.5, 2.0], [None, 1.5, float("nan")])):
        given = part_input((2, 2, 2), 3 * number)
        store.write_part(f"p{number}", **{**given, "episodes": {**given["episodes"], "q": values}})
    matched = open_store(store.path).select().where(condition).episode_ids().tolist()
    wanted = {"q > 1": [2, 4], "q >= 0": [1, 2, 4], "q = q": [1, 2, 4], "not q < 1": [2, 4]}
    assert matched == wanted.get(condition, [])
    assert open_store(store.path).select().where("q is null").episode_ids().tolist() == [0, 3, 5]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), float("1e400")])
def test_an_annotation_is_a_finite_number(value: float, tmp_path: Path) -> None:
    store = open_store(small_store(tmp_path / "s").path)
    with pytest.raises(DatasetError, match=r"column q: .* is no finite number"):
        store.select().annotate({"note": "x", "q": value})
    assert store.edits() == ()


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.floats(-1e6, 1e6) | st.none(), min_size=1, max_size=80, unique=True),
    st.integers(1, 30),
)
def test_bins_hold_every_number_once(values: list[float | None], bins: int) -> None:
    codes = np.arange(len(values))
    rows = codes[::2]
    numbers = [values[row] for row in rows]
    in_bins, keys = in_bins_of((codes, values), rows, bins)
    distinct_numbers = {value for value in numbers if value is not None}
    if len(distinct_numbers) <= max(MOST_VALUES, bins):
        assert keys == values, "few numbers are groups each"
        return
    assert keys[-1] is None
    bounds = keys[:-1]
    assert len(bounds) <= bins + 2
    assert bounds == sorted(bounds)
    for row, number in zip(rows, numbers, strict=True):
        key = keys[in_bins[row]]
        if number is None:
            assert key is None
        else:
            low, high = key
            slack = 1e-9 * max(1.0, abs(number))
            assert low - slack <= number <= high + slack
