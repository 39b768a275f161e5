"""Arrow columns to NumPy and back through their buffers.

Arrow's own conversions import pandas if it is installed, which takes longer than a whole query.
"""

import numpy as np
import pyarrow as pa

_DTYPES = {pa.int64(): np.int64, pa.int32(): np.int32, pa.float64(): np.float64}


def to_numpy(column: pa.ChunkedArray) -> np.ndarray:
    """Values of an int64, int32, float64 or bool column; ValueError if some are missing."""
    if column.null_count:
        raise ValueError("the column has missing values")
    dtype = _DTYPES.get(column.type, np.bool_)
    values = [array_to_numpy(chunk) for chunk in column.chunks]
    return np.concatenate(values) if values else np.zeros(0, dtype)


def array_to_numpy(array: pa.Array) -> np.ndarray:
    """Values of an int64, int32, float64 or bool array without missing values."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(0, _DTYPES.get(array.type, np.bool_))
    start = array.offset
    stop = array.offset + len(array)
    if pa.types.is_boolean(array.type):
        bits = np.frombuffer(buffer, np.uint8)
        return np.unpackbits(bits, count=stop, bitorder="little")[start:].astype(bool)
    return np.frombuffer(buffer, _DTYPES[array.type])[start:stop]


def from_numpy(values: np.ndarray) -> pa.Array:
    """An int64 Arrow array that shares the values of an int64 NumPy array."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
