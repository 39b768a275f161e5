"""A training's last checkpoint: `training.json` of its folder.

`history.jsonl` beside it has a row per evaluation.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gaitforge.collectors.training_folder import TRAINING
from gaitforge.common.errors import failures

Row = dict[str, Any]


@dataclass(frozen=True)
class TrainingRecord:
    """A training's last checkpoint.

    Attributes:
        config: its settings as JSON values.
        steps, episodes: environment steps and episodes so far; wall_s: seconds that they took, over
            all processes.
        tensors: name of the file with the algorithm's state dict.
    """

    config: Mapping[str, Any]
    steps: int
    episodes: int
    wall_s: float
    tensors: str


def read_training(out: Path) -> TrainingRecord | None:
    """The record in a folder, None before the first checkpoint; ValueError if it is damaged."""
    path = out / TRAINING
    if not path.exists():
        return None
    message = f"{path} is not the record of a training"
    kinds = (KeyError, TypeError, ValueError)
    with failures(message, *kinds, error=ValueError):
        tree = json.loads(path.read_text())
        return TrainingRecord(**{field.name: tree[field.name] for field in fields(TrainingRecord)})
