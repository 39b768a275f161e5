"""A part's arrays on disk, written as Zarr v3 and read directly from the shard files.

A part is a Zarr v3 group with one sharded array per field. An array has inner chunks of about
`CHUNK_BYTES` and shards of `SHARD_STEPS` rows. Inner codecs: rows transposed to the last axis (a
channel's samples are adjacent), byte shuffle and lz4 through Blosc, CRC32C.

Codecs with byte shuffle, measured on collected episodes with observation noise (83 float32 or 332
bytes per step). The times are of compressing, and of decoding into rows, in CPU time on a busy
machine, the codecs in turns:

    ======================  ==========  ===============  ==============
    codec                   bytes/step  write a step     read a step
    ======================  ==========  ===============  ==============
    zstd 3                  216         1.63 µs          0.26 µs
    zstd 1                  225         0.86 µs          0.40 µs
    lz4 9                   227         0.35 µs          0.14 µs
    lz4 5                   230         0.32 µs          0.14 µs
    lz4hc 1                 224         0.83 µs          0.14 µs
    lz4hc 3                 222         5.13 µs          0.14 µs
    zstd 3, not transposed  236         3.67 µs          0.25 µs
    lz4 9, not transposed   253         0.55 µs          0.09 µs
    ======================  ==========  ===============  ==============

Most of the rest is the entropy of the noise. Stores were written by zstd 3 before.

The reader of rows decodes only the chain of codecs that is written here, with any compressor of
Blosc, in a fifth of the zarr package's CPU time. It is also stricter: an absent shard or chunk is
an error instead of a fill value, and recorded sizes and the CRC32C of the shard index and of every
chunk are checked. The files are plain Zarr v3 all the same.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

import google_crc32c
import numpy as np
import numpy.typing as npt

from gaitforge.common.errors import DatasetError, disk_failures, listed
from gaitforge.common.files import files_under, join_inside, sha256_file
from gaitforge.datasets.catalog.catalog import Manifest
from gaitforge.datasets.layout import SHARD_STEPS
from gaitforge.datasets.schema import Field, Schema

# The reader of rows.
CHUNK_BYTES = 1 << 20
"""Most bytes of an inner chunk of several rows."""
LINE_BYTES = 64
"""A line of a processor's cache."""
CRC_BYTES = 4
INDEX_ENTRY_BYTES = 16
ABSENT = 2**64 - 1


@dataclass(frozen=True)
class ArrayLayout:
    """How an array's rows lie in its shard files, read from its `zarr.json`."""

    row_shape: tuple[int, ...]
    dtype: np.dtype
    chunk_rows: int
    shard_rows: int

    @classmethod
    def parse(cls, metadata: bytes) -> "ArrayLayout":
        """Layout of an array from `write_arrays`; DatasetError for any other array."""
        try:
            tree = json.loads(metadata)
            [codec] = tree["codecs"]
            sharding = codec["configuration"]
            grid = tree["chunk_grid"]["configuration"]
            names = [inner_codec["name"] for inner_codec in sharding["codecs"]]
            row_shape = tuple(tree["shape"][1:])
            dtype = np.dtype(tree["data_type"]).newbyteorder("<")
            layout = cls(row_shape, dtype, sharding["chunk_shape"][0], grid["chunk_shape"][0])
            layout.check_sizes()
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DatasetError(f"damaged array metadata: {error!r}") from error
        expected = ["transpose"] * bool(row_shape) + ["bytes", "blosc", "crc32c"]
        if names != expected:
            raise DatasetError(f"codecs {names} are not readable; allowed: {expected}")
        return layout

    def check_sizes(self) -> None:
        """ValueError for sizes that `write_arrays` does not give an array."""
        sizes = (*self.row_shape, self.chunk_rows, self.shard_rows)
        if any(type(size) is not int or size < 1 for size in sizes):
            raise ValueError(f"sizes {sizes} must be whole numbers above 0")
        row_bytes = self.dtype.itemsize * prod(self.row_shape)
        if self.chunk_rows > 1 and self.chunk_rows * row_bytes > CHUNK_BYTES:
            raise ValueError(f"chunks of {self.chunk_rows * row_bytes:,} bytes")
        if self.shard_rows % self.chunk_rows or self.shard_rows >= 2 * SHARD_STEPS:
            raise ValueError(f"shards of {self.shard_rows:,} rows")

    def shard_key(self, shard: int) -> str:
        """The shard's object name below the array's folder."""
        return "/".join(["c", str(shard), *("0" for _ in self.row_shape)])


class ArrayReader:
    """Reads runs of rows of one array; holds one open shard and one decoded chunk.

    `objects` gives the recorded bytes and SHA-256 of each object below the array's folder,
    `first_row` the row at which the part begins, and `label` the array's name in messages.
    """

    def __init__(
        self,
        folder: Path,
        layout: ArrayLayout,
        objects: Mapping[str, tuple[int, str]],
        label: str,
        first_row: int = 0,
    ) -> None:
        # slow to import: 0.09 s, which a query should not pay
        from numcodecs import blosc  # pyright: ignore[reportAttributeAccessIssue] (compiled)

        self._decompress = blosc.decompress
        self._folder = folder
        self._label = label
        self._layout = layout
        self._objects = objects
        self._first_row = first_row
        self._shard = self._descriptor = self._chunk = -1
        self._index: list[list[int]] = []
        self._decoded = np.empty((*layout.row_shape, layout.chunk_rows), layout.dtype)
        lines = -(-layout.chunk_rows * layout.dtype.itemsize // LINE_BYTES) | 1
        spaced_rows = lines * LINE_BYTES // layout.dtype.itemsize
        self._spaced = np.empty((*layout.row_shape, spaced_rows), layout.dtype)
        self._stored = np.empty(0, np.uint8)

    def __enter__(self) -> "ArrayReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._close_shard()

    def check_objects(self) -> None:
        """DatasetError for an object that does not have its SHA-256; reads each once."""
        for name, (_, recorded) in self._objects.items():
            with disk_failures(f"{self._label}, object {name} cannot be read"):
                digest = sha256_file(self._folder / name)
            if digest != recorded:
                raise DatasetError(f"{self._label}, object {name}: not its recorded SHA-256")

    def read_runs(self, runs: Iterable[tuple[int, int]], out: np.ndarray) -> None:
        """Copy the rows of the ascending half-open `runs`, end to end, into `out`.

        Raises DatasetError if an object is missing or its bytes have changed.
        """
        size = self._layout.chunk_rows
        filled = 0
        for begin, stop in runs:
            start = begin + self._first_row
            end = stop + self._first_row
            while start < end:
                chunk, low = divmod(start, size)
                count = min(size - low, end - start)
                self._decode(chunk)
                self._transpose(low, out[filled : filled + count])
                filled += count
                start += count

    def _transpose(self, first: int, out: np.ndarray) -> None:
        """Copy the decoded chunk's rows from `first` on into `out`.

        Channels are first copied to an odd number of cache lines each. In a chunk they begin a
        power of two of bytes apart, so the values of a row share a few sets of the cache and evict
        each other: reading them there takes five times as long as both copies.
        """
        channels = self._decoded[..., first : first + len(out)]
        if channels.ndim > 1:
            spaced = self._spaced[..., : len(out)]
            spaced[...] = channels
            channels = spaced
        out[...] = np.moveaxis(channels, -1, 0)

    def _decode(self, chunk: int) -> None:
        if chunk == self._chunk:
            return
        self._chunk = -1
        per_shard = self._layout.shard_rows // self._layout.chunk_rows
        shard, position = divmod(chunk, per_shard)
        self._open_shard(shard, per_shard)
        offset, length = self._index[position]
        if offset == ABSENT or length <= CRC_BYTES:
            raise self._fault(shard, f"chunk {position} is absent")
        stored = self._checked_read(offset, length, shard, f"chunk {position}")
        try:
            self._decompress(stored, self._decoded)
        except (RuntimeError, ValueError) as error:
            raise self._fault(shard, f"chunk {position} cannot be decoded") from error
        self._chunk = chunk

    def _open_shard(self, shard: int, per_shard: int) -> None:
        if shard == self._shard:
            return
        self._close_shard()
        key = self._layout.shard_key(shard)
        try:
            self._descriptor = os.open(self._folder / key, os.O_RDONLY)
        except FileNotFoundError as error:
            raise self._fault(shard, "the object is missing") from error
        size = os.fstat(self._descriptor).st_size
        recorded, _ = self._objects.get(key, (None, ""))
        if size != recorded:
            raise self._fault(shard, f"{size} bytes, recorded {recorded}")
        length = per_shard * INDEX_ENTRY_BYTES + CRC_BYTES
        stored = self._checked_read(size - length, length, shard, "the shard index")
        self._index = stored.view("<u8").reshape(per_shard, 2).tolist()
        self._shard = shard

    def _close_shard(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = self._shard = self._chunk = -1

    def _checked_read(self, offset: int, length: int, shard: int, piece: str) -> np.ndarray:
        """The bytes before the final CRC32C, valid until the next read.

        The memory is reused: touching fresh pages costs more than decoding.
        """
        if len(self._stored) < length:
            self._stored = np.empty(length + length // 4, np.uint8)
        stored = self._stored[:length]
        if os.preadv(self._descriptor, [stored.data], offset) != length:
            raise self._fault(shard, f"{piece} is cut short")
        content = stored[:-CRC_BYTES]
        recorded = stored[-CRC_BYTES:].tobytes()
        if struct.pack("<I", google_crc32c.value(content)) != recorded:
            raise self._fault(shard, f"{piece} fails its CRC32C")
        return content

    def _fault(self, shard: int, problem: str) -> DatasetError:
        return DatasetError(f"{self._label}, object {self._layout.shard_key(shard)}: {problem}")


def open_array(
    folder: Path,
    manifest: Manifest,
    first_row: int,
    label: str,
    layouts: dict[tuple[Path, str], ArrayLayout],
) -> ArrayReader:
    """A reader of one field's array, in the folder of its name; see `ArrayReader`.

    `layouts` caches (folder, digest of the metadata) -> layout. DatasetError for missing or
    damaged metadata.
    """
    prefix = f"{folder.name}/"
    objects = {
        name.removeprefix(prefix): recorded
        for name, recorded in manifest.objects.items()
        if name.startswith(prefix)
    }
    recorded = manifest.objects[f"{prefix}zarr.json"][1]
    key = folder, recorded
    if key not in layouts:
        root = folder.parents[2]
        for name in objects:
            join_inside(root, f"{folder.relative_to(root).as_posix()}/{name}")
        path = folder / "zarr.json"
        try:
            damaged = sha256_file(path) != recorded
        except OSError as error:
            raise DatasetError(f"{label}: zarr.json is missing") from error
        if damaged:
            raise DatasetError(f"{label}: zarr.json is not the file that was written")
        layouts[key] = ArrayLayout.parse(path.read_bytes())
    return ArrayReader(folder, layouts[key], objects, label, first_row)


def row_runs(starts: np.ndarray, lengths: np.ndarray) -> list[tuple[int, int]]:
    """Merge adjacent row ranges: ascending (E,) starts and lengths -> half-open runs."""
    if len(starts) == 0:
        return []
    stops = starts + lengths
    breaks = np.flatnonzero(starts[1:] != stops[:-1])
    firsts = starts[np.concatenate(([0], breaks + 1))]
    lasts = stops[np.concatenate((breaks, [len(stops) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


# The arrays as they are written.
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
        blosc_codec = BloscCodec(typesize=itemsize, cname="lz4", clevel=9, shuffle="shuffle")
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
