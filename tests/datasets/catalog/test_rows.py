"""Arrow columns as NumPy arrays: some rows are those of all."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.datasets.catalog.rows import to_numpy

KINDS = {
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
}


@given(st.data())
def test_the_values_of_some_rows_are_those_among_all(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(KINDS)))
    chunks: list[list[Any]] = data.draw(st.lists(st.lists(KINDS[kind], max_size=5), max_size=4))
    column = pa.chunked_array([pa.array(chunk, kind) for chunk in chunks], kind)
    is_wanted = data.draw(st.lists(st.booleans(), min_size=len(column), max_size=len(column)))
    rows = np.flatnonzero(np.array(is_wanted, bool))
    expected = [value for chunk in chunks for value in chunk]
    np.testing.assert_array_equal(to_numpy(column), expected)
    some = to_numpy(column, rows)
    assert some.dtype == to_numpy(column).dtype
    np.testing.assert_array_equal(some, [expected[row] for row in rows])


def test_a_column_that_lacks_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="missing values"):
        to_numpy(pa.chunked_array([pa.array([1, None], pa.int64())]), np.array([0]))
