"""A part's arrays on disk: a Zarr v3 group with one sharded array per field.

An array has inner chunks of about `CHUNK_BYTES` and shards of `SHARD_STEPS` rows. Inner codecs:
rows transposed to the last axis (a channel's samples are adjacent), byte shuffle and zstd through
Blosc, CRC32C. A chunk of 1 MiB and its decoded copy fit into a core's cache.

Measured on collected episodes with observation noise (102 float32 or 408 bytes per step, one core):

    =========================  ==========  ==========  ===========
    codec                      bytes/step  write       read
    =========================  ==========  ==========  ===========
    zstd 5, byte shuffle       270         115 MB/s    2.7 GB/s
    zstd 3, byte shuffle       272         265 MB/s    2.2 GB/s
    zstd 3, bit shuffle        274         270 MB/s    1.9 GB/s
    lz4 5, byte shuffle        288         1,570 MB/s  5.9 GB/s
    zstd 5, not transposed     288         50 MB/s     1.6 GB/s
    zstd 9, byte shuffle       261         3 MB/s      1.2 GB/s
    =========================  ==========  ==========  ===========

Most of the rest is the entropy of the noise. zstd 3 halves the writing time of zstd 5 for 0.4 %
more bytes.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from gaitforge.common.errors import DatasetError, listed
from gaitforge.common.files import files_under, sha256_file
from gaitforge.datasets.layout import SHARD_STEPS
from gaitforge.datasets.schema import Field, Schema
from gaitforge.datasets.storage.shards import CHUNK_BYTES


def chunk_rows(field: Field, rows: int) -> int:
    """Rows of one inner chunk: the largest power of two within `CHUNK_BYTES`, or all rows."""
    fitting = max(1, CHUNK_BYTES // field.row_bytes)
    return min(1 << (fitting.bit_length() - 1), SHARD_STEPS, rows)


def shard_rows(field: Field, rows: int) -> int:
    """Rows of one shard: a multiple of the chunk's, at most `SHARD_STEPS`."""
    chunk = chunk_rows(field, rows)
    return -(-min(rows, SHARD_STEPS) // chunk) * chunk


def check_arrays(
    schema: Schema,
    steps: Mapping[str, npt.ArrayLike],
    per_episode: Mapping[str, npt.ArrayLike],
    episodes: int,
) -> dict[str, np.ndarray]:
    """All arrays of a part by field name, checked against the schema.

    `steps` are (T, *shape) with one T for all, `per_episode` (`episodes`, *shape). float16
    fields also accept float32, rounded to the nearest half: the error is at most 2**-11 of the
    value, or 2**-25 if that is more. DatasetError: missing or unknown fields, wrong shape or
    dtype, unequal T, non-finite values.
    """
    arrays: dict[str, np.ndarray] = {}
    kinds: dict[Literal["step", "episode"], Mapping[str, npt.ArrayLike]]
    kinds = {"step": steps, "episode": per_episode}
    for kind, values in kinds.items():
        names = schema.names(kind)
        if set(values) != set(names):
            raise DatasetError(
                f"fields per {kind} must be {listed(names)}; given: {listed(sorted(values))}"
            )
        arrays |= {name: np.asarray(values[name]) for name in names}
    first = arrays[schema.names("step")[0]]
    total = len(first) if first.ndim else 0
    for name, array in arrays.items():
        field = schema.field(name)
        expected = (total if field.per == "step" else episodes, *field.shape)
        if array.shape != expected:
            raise DatasetError(f"field {name}: shape must be {expected}, not {array.shape}")
        if field.dtype == "float16" and array.dtype == np.float32:
            array = _rounded_to_half(array, name)
        if array.dtype != np.dtype(field.dtype):
            raise DatasetError(f"field {name}: dtype must be {field.dtype}, not {array.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DatasetError(f"field {name}: every value must be finite")
        arrays[name] = np.ascontiguousarray(array)
    if total == 0:
        raise DatasetError("a part needs at least one step")
    return arrays


def _rounded_to_half(array: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        rounded = array.astype(np.float16)
    if np.isfinite(array).all() and not np.isfinite(rounded).all():
        limit = f"float16 holds values up to 65504, not {np.abs(array).max():.6g}"
        raise DatasetError(f"field {name}: {limit}; store it as float32")
    return rounded


def write_arrays(
    folder: Path, schema: Schema, part_id: str, arrays: Mapping[str, np.ndarray]
) -> None:
    """Write a part's group of arrays into the new `folder`, one shard at a time."""
    import zarr  # slow to import: 0.14 s, which a query should not pay
    from numcodecs import blosc  # pyright: ignore[reportAttributeAccessIssue] (compiled)
    from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, TransposeCodec
    from zarr.storage import LocalStore

    # Blosc's thread pool does not survive a fork and could make bytes depend on the core count.
    blosc.use_threads = False
    group = zarr.create_group(
        LocalStore(folder),
        zarr_format=3,
        attributes={"part": part_id, "control_dt_s": schema.control_dt_s, "robot": schema.robot},
    )
    for name, array in arrays.items():
        field = schema.field(name)
        rows = len(array)
        itemsize = array.dtype.itemsize
        shard = shard_rows(field, rows)
        rows_last = (*range(1, array.ndim), 0)
        blosc_codec = BloscCodec(typesize=itemsize, cname="zstd", clevel=3, shuffle="shuffle")
        stored = group.create_array(
            name,
            shape=array.shape,
            dtype=array.dtype,
            chunks=(chunk_rows(field, rows), *field.shape),
            shards=(shard, *field.shape),
            filters=[TransposeCodec(order=rows_last)] if field.shape else [],
            serializer=BytesCodec(),
            compressors=[blosc_codec, Crc32cCodec()],
            fill_value=np.nan if array.dtype.kind == "f" else 0,
            dimension_names=field.dimensions,
            attributes={
                "units": field.unit,
                "description": field.description,
                "slices": {key: list(bounds) for key, bounds in field.slices.items()},
            },
            config={"write_empty_chunks": True},
        )
        for start in range(0, rows, shard):
            stored[start : start + shard] = array[start : start + shard]


def object_hashes(folder: Path) -> dict[str, tuple[int, str]]:
    """Relative path -> (bytes, SHA-256) of every object of a part."""
    paths = {name: folder / name for name in files_under(folder)}
    return {name: (path.stat().st_size, sha256_file(path)) for name, path in paths.items()}


def array_digest(array: np.ndarray) -> str:
    """SHA-256 of dtype, shape and uncompressed bytes, independent of the codec."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
