"""The digest of a catalog's rows, which committed files record: it never changes."""

import pyarrow as pa

from gaitforge.datasets.catalog.episodes import episodes_digest

TABLE = pa.table(
    {
        "number": pa.array([0.5, None, -0.0], pa.float64()),
        "answer": pa.array([True, None, False]),
        "count": pa.array([None, 2, 3], pa.int64()),
        "text": pa.array(["x", None, "y"]),
        "nothing": pa.array([None, None, None], pa.bool_()),
    }
)


def test_a_digest_is_as_recorded_also_of_missing_values() -> None:
    named = TABLE.rename_columns(["a", "b", "c", "d", "e"])
    assert episodes_digest(named) == (
        "f1f12ed241eec1ac82760f4d3658e7a9955e71e0a9516cb7cde859076f5c2e72"
    )


def test_the_digest_of_a_slice_is_of_its_rows_alone() -> None:
    rows = TABLE.slice(1, 2)
    copied = pa.Table.from_pylist(rows.to_pylist(), schema=rows.schema)
    assert episodes_digest(rows) == episodes_digest(copied) != episodes_digest(TABLE)
