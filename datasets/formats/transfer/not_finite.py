"""Episodes with NaN or infinity in a source: named and refused, or left out of the import."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.formats.checks import NotFiniteError, not_finite_allowed
from gaitforge.datasets.formats.protocol import Importer, PartInput
from gaitforge.datasets.formats.sources import Span

HINT = "--drop-nan (drop_nan=True) leaves such episodes out"


def read_finite(importer: Importer, span: Span, drop: bool) -> tuple[PartInput, np.ndarray]:
    """A part of a source, and the episodes that were left out of it.

    Episodes are numbered in the source. With all of a part's episodes left out, its arrays and rows
    are empty.

    Raises:
        DatasetError: without `drop`, for values that are not finite; names the episodes.
    """
    try:
        return importer.read_part(span), np.zeros(0, np.int64)
    except NotFiniteError as error:
        refusal = str(error)  # as text: the exception's frames would keep files open
    try:
        with not_finite_allowed():
            part = importer.read_part(span)
    except DatasetError as error:
        raise DatasetError(refusal) from error
    per = {"step": span.starts, "episode": np.arange(len(span.lengths))}
    kept = np.ones(len(span.lengths), bool)
    for field in importer.schema.fields:
        rows = part.arrays[field.name]
        finite = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
        kept &= np.logical_and.reduceat(finite, per[field.per])
    episodes = span.first + np.flatnonzero(~kept)
    if not drop:
        raise DatasetError(f"{refusal}, in episode {listed(episodes, 4)}; {HINT}")
    of = {"step": np.repeat(kept, span.lengths), "episode": kept}
    fields = importer.schema.fields
    arrays = {field.name: part.arrays[field.name][of[field.per]] for field in fields}
    rows = part.episodes
    if isinstance(rows, Mapping):
        rows = {name: np.asarray(values)[kept] for name, values in rows.items()}
    else:
        rows = rows.filter(pa.array(kept))
    return PartInput(arrays, rows), episodes
