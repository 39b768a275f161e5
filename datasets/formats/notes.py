"""Do gaitforge's own notes in a foreign file still say what the file's arrays say?

An export may keep the catalog beside a layout that has no place for it. Whoever edits the arrays
afterwards, to relabel rewards or endings, leaves those notes behind: an import that went by them
would give a catalog that contradicts its own data, so it refuses the file instead.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from datasets.formats.sources import episode_returns, refuse

LENGTH, RETURN, TERMINATED, TRUNCATED = "length", "return", "terminated", "truncated"


def check_noted(
    source: Path | str,
    key: str,
    noted: pa.Table,
    first: int,
    lengths: np.ndarray,
    *,
    remedy: str,
    terminated: np.ndarray | None = None,
    truncated: np.ndarray | None = None,
    rewards: np.ndarray | None = None,
) -> None:
    """Refuse catalog rows that say something else than the arrays beside them.

    Args:
        source, key: what messages name: the file or folder, and where its notes are.
        noted: (E,) rows of the catalog as the notes keep them.
        first: number of their first episode in the source.
        lengths: (E,) steps of each episode by the arrays.
        remedy: ends the message, such as "delete the group to go by the arrays".
        terminated, truncated: (E,) bool by the arrays' flags; None where the layout has none.
        rewards: (T,) of these episodes, end to end; None where the store has no such field, or one
            that is not a number a step.

    Raises:
        DatasetError: names the source, the notes, the episode and both values.
    """

    def compare(name: str, given: np.ndarray, room: np.ndarray | float = 0.0) -> None:
        values = _numbers(source, key, noted, name)
        if len(values) != len(given):
            refuse(source, key, f"{len(values)} episodes are kept there, not {len(given)}")
        if (differ := ~(np.abs(values - given) <= room)).any():
            row = int(np.argmax(differ))
            refuse(
                source,
                key,
                f"{name} of episode {first + row} is kept there as {values[row]:.7g}, but the "
                f"arrays tell {float(given[row]):.7g}; {remedy}",
            )

    compare(LENGTH, lengths)
    for name, flags in ((TERMINATED, terminated), (TRUNCATED, truncated)):
        if flags is not None:
            compare(name, flags)
    if rewards is not None:
        compare(RETURN, episode_returns(rewards, lengths), _summation_error(rewards, lengths))


def _numbers(source: Path | str, key: str, noted: pa.Table, name: str) -> np.ndarray:
    """A column as float64; NaN, which equals nothing, where a value is absent."""
    if name not in noted.column_names:
        refuse(source, key, f"the column {name} is missing there")
    column = noted.column(name)
    try:
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.uint8())
        return column.cast(pa.float64()).to_numpy()
    except pa.ArrowException:
        refuse(source, key, f"the column {name} there is not of numbers")


def _summation_error(rewards: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(E,) how far the return that a collector summed up may be from the sum of what is stored.

    It summed n rewards in some order, at the coarsest in float32, which is off by at most n units
    in the last place of the sum of their magnitudes (Higham, Accuracy and Stability of Numerical
    Algorithms, 2002, section 4.2), and perhaps before they were rounded to the dtype they have.
    """
    size = episode_returns(np.abs(rewards.astype(np.float64)), lengths)
    relative, smallest = lengths * float(np.finfo(np.float32).eps), 0.0
    if rewards.dtype.kind == "f":
        rounding = np.finfo(rewards.dtype)
        relative = relative + float(rounding.eps)
        smallest = float(rounding.smallest_subnormal)
    return relative * size + lengths * smallest
