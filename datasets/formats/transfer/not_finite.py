"""Episodes with NaN or infinity in a source: named and refused, or left out of the import."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from gaitforge.datasets.errors import DatasetError, listed
from gaitforge.datasets.formats.checks import NotFiniteError, not_finite_allowed
from gaitforge.datasets.formats.protocol import Importer, PartInput

HINT = "--drop-nan (drop_nan=True) leaves such episodes out"


def read_finite(importer: Importer, number: int, drop: bool) -> tuple[PartInput, np.ndarray]:
    """A part of a source, and the episodes that were left out of it.

    Episodes are numbered in the source. With all of a part's episodes left out, its arrays and rows
    are empty.

    Raises:
        DatasetError: without `drop`, for values that are not finite; names the episodes.
    """
    try:
        return importer.read_part(number), np.zeros(0, np.int64)
    except NotFiniteError as error:
        return _without_damage(importer, number, drop, str(error))


def _without_damage(
    importer: Importer, number: int, drop: bool, refusal: str
) -> tuple[PartInput, np.ndarray]:
    # The refusal is text: an exception in a variable would keep its frames, and so files, open.
    try:
        with not_finite_allowed():
            part = importer.read_part(number)
    except DatasetError as error:
        raise DatasetError(refusal) from error
    lengths = importer.parts.lengths[number]
    wrong = ~_finite_episodes(part, lengths)
    episodes = importer.parts.episodes(number).start + np.flatnonzero(wrong)
    if not drop:
        raise DatasetError(f"{refusal}, in episode {listed(episodes, 4)}; {HINT}")
    return _of_episodes(part, lengths, ~wrong), episodes


def _finite_episodes(part: PartInput, lengths: np.ndarray) -> np.ndarray:
    """(E,) whether all values of an episode are finite."""
    finite, starts = np.ones(len(lengths), bool), np.cumsum(lengths) - lengths
    for rows in part.steps.values():
        good = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
        finite &= np.logical_and.reduceat(good, starts)
    for rows in part.per_episode.values():
        finite &= np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
    return finite


def _of_episodes(part: PartInput, lengths: np.ndarray, kept: np.ndarray) -> PartInput:
    """The part with the episodes at which `kept` (E,) is set."""
    of_steps = np.repeat(kept, lengths)
    steps = {name: rows[of_steps] for name, rows in part.steps.items()}
    per_episode = {name: rows[kept] for name, rows in part.per_episode.items()}
    rows = part.episodes
    if isinstance(rows, Mapping):
        rows = {name: np.asarray(values)[kept] for name, values in rows.items()}
    else:
        rows = rows.filter(pa.array(kept))
    return PartInput(steps, rows, per_episode)
