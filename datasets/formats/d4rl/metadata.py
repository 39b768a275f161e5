"""`metadata/` of a D4RL file (the algorithm, the policy's weights): kept for an export.

It has no place in a store's parts. The store keeps it as a small HDF5 file beside them.
"""

from io import BytesIO
from pathlib import Path

import h5py

from gaitforge.datasets.formats.checks import damage_named
from gaitforge.datasets.formats.d4rl.d4rl_schema import NOTES
from gaitforge.datasets.formats.hdf5 import datasets_of

METADATA = "metadata"
MOST_BYTES = 16 << 20
"""Largest metadata that are kept; D4RL's largest are a policy of two layers of 256, 0.3 MB."""


def packed_metadata(path: Path, file: h5py.File) -> tuple[bytes, list[str]]:
    """An HDF5 file with all below `metadata` but gaitforge's notes, b"" for nothing.

    Also gives what is left out, with the reason.
    """
    group = file.get(METADATA)
    if not isinstance(group, h5py.Group):
        return b"", []
    names = [name for name in group if f"{METADATA}/{name}" != NOTES]
    with damage_named(path, METADATA), h5py.File.in_memory() as packed:
        datasets = datasets_of(group).items()
        sizes = [each.nbytes for name, each in datasets if name.partition("/")[0] in names]
        if sum(sizes) <= MOST_BYTES:
            for name in names:
                group.copy(name, packed)
            packed.flush()
            if len(content := packed.id.get_file_image()) <= 2 * MOST_BYTES:
                return content if names else b"", []
    return b"", [f"{METADATA}: larger than the {MOST_BYTES >> 20} MiB that are kept"]


def unpack_metadata(content: bytes, file: h5py.File) -> None:
    """Write below `metadata` what `packed_metadata` gave."""
    with h5py.File(BytesIO(content), "r") as packed:
        group = file.require_group(METADATA)
        for name in packed:
            packed.copy(name, group)
