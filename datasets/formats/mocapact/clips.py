"""Lists of clips: the split of MoCapAct's rollouts into training and validation.

A split by clip keeps a motion whole on one side, where a split by episode would validate on other
rollouts of the motions that were trained on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from datasets.errors import DatasetError, listed
from datasets.selection.selection import Selection


def read_clip_list(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The clips of a text file, one a line; empty lines and those that begin with # are skipped.

    Raises:
        DatasetError: not such a file, or it names no clip.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read the clip list {path}: {error}") from error
    clips = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not clips:
        raise DatasetError(f"the clip list {path} names no clip; write one a line")
    return tuple(dict.fromkeys(clips))


def split_by_clips(
    selection: Selection, validation: Iterable[str], column: str = "clip"
) -> tuple[Selection, Selection]:
    """Split into (training, validation) by the episodes' clips.

    Raises:
        DatasetError: no such column, or a clip that no selected episode has.
    """
    codes, clips = selection.catalog.codes(selection.catalog.check_column(column))
    wanted = set(validation)
    chosen = codes[selection.rows]
    there = {clips[code] for code in np.unique(chosen)}
    if unknown := sorted(wanted - there):
        raise DatasetError(
            f"no episode of clip {listed(unknown)}; clips: {listed(sorted(map(str, there)))}"
        )
    held_out = np.isin(chosen, [code for code, clip in enumerate(clips) if clip in wanted])
    training, kept = (
        Selection(selection.store, selection.catalog, selection.rows[rows])
        for rows in (~held_out, held_out)
    )
    return training, kept
