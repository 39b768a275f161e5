"""A check of foreign Arrow streams: gaitforge writes them without compression.

A compressed buffer may state any size, and a few bytes then take gigabytes. pyarrow does not tell
whether a batch is compressed, so the flatbuffer of each message is read here, as in
https://arrow.apache.org/docs/format/Columnar.html and Message.fbs of the same project.
"""

import struct

import pyarrow as pa

_DICTIONARY_BATCH = 2
_RECORD_BATCH = 3
"""Kinds of a message's header that hold buffers."""
_KIND = 1
_HEADER = 2
"""Places of fields in the table Message."""
_DATA = 1
"""Place of the record batch in the table DictionaryBatch."""
_COMPRESSION = 3
"""Place of a field in the table RecordBatch."""


def check_uncompressed(stream: pa.Buffer) -> None:
    """ValueError for a stream with compressed batches."""
    for message in pa.ipc.MessageReader.open_stream(stream):
        try:
            is_compressed = _is_compressed(message.metadata.to_pybytes())
        except (struct.error, IndexError):
            raise ValueError("a message of the Arrow stream is damaged") from None
        if is_compressed:
            raise ValueError("the Arrow stream is compressed; write it without compression")


def _is_compressed(flatbuffer: bytes) -> bool:
    message = _following(flatbuffer, 0)
    kind = _place(flatbuffer, message, _KIND)
    header = _place(flatbuffer, message, _HEADER)
    if not kind or not header:
        return False
    batch = _following(flatbuffer, header)
    if flatbuffer[kind] == _DICTIONARY_BATCH:
        data = _place(flatbuffer, batch, _DATA)
        return bool(data and _place(flatbuffer, _following(flatbuffer, data), _COMPRESSION))
    return flatbuffer[kind] == _RECORD_BATCH and bool(_place(flatbuffer, batch, _COMPRESSION))


def _following(flatbuffer: bytes, at: int) -> int:
    """Where the table lies whose distance is stored at a place."""
    [distance] = struct.unpack_from("<I", flatbuffer, at)
    return at + distance


def _place(flatbuffer: bytes, table: int, field: int) -> int:
    """Where a table's field lies; 0 if the table has none."""
    [back] = struct.unpack_from("<i", flatbuffer, table)
    description = table - back  # two sizes of two bytes, then the fields' distances
    [size] = struct.unpack_from("<H", flatbuffer, description)
    entry = 4 + 2 * field
    if entry + 2 > size:
        return 0
    [distance] = struct.unpack_from("<H", flatbuffer, description + entry)
    return table + distance if distance else 0
