"""Episodes with NaN or infinity in a source: named and refused, or left out of the import."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from gaitforge.datasets.errors import DatasetError, listed
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
    kept = _finite_episodes(part, span)
    episodes = span.first + np.flatnonzero(~kept)
    if not drop:
        raise DatasetError(f"{refusal}, in episode {listed(episodes, 4)}; {HINT}")
    steps = {name: rows[np.repeat(kept, span.lengths)] for name, rows in part.steps.items()}
    per_episode = {name: rows[kept] for name, rows in part.per_episode.items()}
    rows = part.episodes
    if isinstance(rows, Mapping):
        rows = {name: np.asarray(values)[kept] for name, values in rows.items()}
    else:
        rows = rows.filter(pa.array(kept))
    return PartInput(steps, rows, per_episode), episodes


def _finite_episodes(part: PartInput, span: Span) -> np.ndarray:
    """(E,) whether all values of an episode are finite."""
    finite = np.ones(len(span.lengths), bool)
    for arrays, starts in ((part.steps, span.starts), (part.per_episode, np.arange(len(finite)))):
        for rows in arrays.values():
            good = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
            finite &= np.logical_and.reduceat(good, starts)
    return finite
