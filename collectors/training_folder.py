"""A training's folder: `training.json` commits a checkpoint, whose tensors lie beside it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from datasets.files import check_outside_stores, write_bytes_durably

TRAINING = "training.json"


def write_checkpoint(
    out: Path, number: int, tensors: Mapping[str, torch.Tensor], record: Mapping[str, Any]
) -> None:
    """Write the tensors, then the record with their file as "tensors"; removes older tensors."""
    check_outside_stores(out)
    name = f"training-{number}.safetensors"
    content = save({key: value.contiguous() for key, value in tensors.items()})
    write_bytes_durably(out / name, content)
    tree = {**record, "tensors": name}
    write_bytes_durably(out / TRAINING, json.dumps(tree, indent=1).encode())
    for old in out.glob("training-*.safetensors"):
        if old.name != name:
            old.unlink()


def check_setting(out: Path, name: str, recorded: object, mine: object) -> None:
    """Raise ValueError if the training in `out` has another value of a setting."""
    if recorded != mine:
        raise ValueError(
            f"{out} holds a training with {name}={recorded}, not {mine}; choose another folder"
        )
