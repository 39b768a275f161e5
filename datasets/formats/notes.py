"""Notes: gaitforge's schema and catalog, which an export embeds in a foreign file or folder.

They give back what the layout has no place for. Someone may edit the arrays afterwards (relabel
rewards or endings) and leave the notes as they are. An import refuses notes that contradict the
arrays, instead of writing a catalog that contradicts its own data.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import listed
from gaitforge.datasets.formats.checks import refuse
from gaitforge.datasets.formats.sources import Span, episode_returns


def refuse_options(path: Path, key: str, options: Any, remedy: str) -> None:
    """Refuse options for a file with notes at `key`, which they could not change."""
    names = [
        field.name for field in fields(options) if getattr(options, field.name) != field.default
    ]
    if names:
        subject = f"option {names[0]} has" if len(names) == 1 else f"options {listed(names)} have"
        refuse(path, key, f"{subject} no effect on a file with gaitforge's notes; {remedy}")


def check_notes(
    source: Path | str,
    key: str,
    rows: pa.Table,
    span: Span,
    *,
    remedy: str,
    rewards: np.ndarray | None = None,
    **flags: np.ndarray | None,
) -> None:
    """Refuse catalog rows (E,) from the notes that contradict the arrays beside them.

    Args:
        source, key: what messages name: the file or folder, and where its notes are.
        span: the episodes by the arrays.
        remedy: ends the message, such as "delete the group to use the arrays".
        rewards: (T,) of these episodes, end to end; None where there is no scalar reward.
        **flags: terminated, truncated: (E,) bool by the arrays; None where the layout has none.
    """

    def compare(name: str, actual: np.ndarray, tolerance: np.ndarray | float = 0.0) -> None:
        values = _numbers(source, key, rows, name)
        if len(values) != len(actual):
            refuse(source, key, f"the notes have {len(values)} episodes, not {len(actual)}")
        # An episode with NaN, which is about to be dropped, contradicts nothing.
        if (differ := ~(np.abs(values - actual) <= tolerance) & ~np.isnan(actual)).any():
            row = int(np.argmax(differ))
            problem = f"{name} of episode {span.first + row} is {values[row]:.7g} in the notes"
            arrays = f"but {float(actual[row]):.7g} in the arrays"
            refuse(source, key, f"{problem}, {arrays}; {remedy}")

    lengths = span.lengths
    compare("length", lengths)
    for name, values in flags.items():
        if values is not None:
            compare(name, values)
    if rewards is not None:
        compare("return", episode_returns(rewards, lengths), _summation_error(rewards, lengths))


def _numbers(source: Path | str, key: str, rows: pa.Table, name: str) -> np.ndarray:
    """A column as float64, with NaN, which equals nothing, for a missing value."""
    if name not in rows.column_names:
        refuse(source, key, f"the notes lack the column {name}")
    column = rows.column(name)
    try:
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.uint8())
        return column.cast(pa.float64()).to_numpy()
    except pa.ArrowException:
        refuse(source, key, f"the column {name} of the notes is not of numbers")


def _summation_error(rewards: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(E,) largest difference between a collector's return and the sum of the stored rewards.

    It summed n rewards in some order, at the coarsest in float32, which is off by at most n units
    in the last place of the sum of their magnitudes (Higham, Accuracy and Stability of Numerical
    Algorithms, 2002, section 4.2), and perhaps before they were rounded to their dtype.
    """
    size = episode_returns(np.abs(rewards.astype(np.float64)), lengths)
    relative = lengths * float(np.finfo(np.float32).eps)
    smallest = 0.0
    if rewards.dtype.kind == "f":
        rounding = np.finfo(rewards.dtype)
        relative = relative + float(rounding.eps)
        smallest = float(rounding.smallest_subnormal)
    return relative * size + lengths * smallest
