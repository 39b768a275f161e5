"""A training's progress and evaluations in its folder's `training.json`.

`history.jsonl` beside it has the evaluations for people to follow, also those since the checkpoint.
It is read only where an earlier version wrote a `training.json` without them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any

from collectors.training_folder import TRAINING
from datasets.files import write_bytes_durably

HISTORY = "history.jsonl"

Row = dict[str, Any]


@dataclass(frozen=True)
class TrainingRecord:
    """A training's last checkpoint.

    Attributes:
        config: its settings as JSON values.
        steps, episodes: of the environment so far; wall_s: that they took, over all processes.
        tensors: name of the file of the algorithm's state dict.
        history: a row per evaluation, see `training.train_gym`.
    """

    config: Mapping[str, Any]
    steps: int
    episodes: int
    wall_s: float
    tensors: str
    history: Sequence[Row] = field(default_factory=list)


def read_training(out: Path) -> TrainingRecord | None:
    """The record in a folder, None before the first checkpoint; ValueError if it is damaged."""
    path = out / TRAINING
    if not path.exists():
        return None
    try:
        tree = json.loads(path.read_text())
        known = {each.name: tree[each.name] for each in fields(TrainingRecord)[:-1]}
        history = tree["history"] if "history" in tree else _rows_until(out, known["steps"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not the record of a training: {error}") from None
    return TrainingRecord(**known, history=history)


def write_history(out: Path, history: Sequence[Row]) -> None:
    """Write the evaluations for people."""
    lines = "".join(json.dumps(row) + "\n" for row in history)
    write_bytes_durably(out / HISTORY, lines.encode())


def _rows_until(out: Path, steps: int) -> list[Row]:
    """Evaluations in `history.jsonl` up to a step, the last one of each step; no torn lines."""
    path = out / HISTORY
    found: dict[int, Row] = {}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
            if row["steps"] <= steps and isfinite(row["return"]):
                found[row["steps"]] = row
        except (KeyError, TypeError, ValueError):
            continue  # a killed process cut it short
    return [found[at] for at in sorted(found)]
