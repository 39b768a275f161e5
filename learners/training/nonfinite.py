"""Find the cause of a non-finite loss or gradient."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gaitforge.datasets import Selection

_NAMED_EPISODES = 4


class NonFiniteError(ValueError):
    """Training met a number that is not finite, in the data or in the loss."""


def blame(batch: Mapping[str, Tensor], selection: Selection, rate: float, alone: bool) -> str:
    """Why a batch's loss is not finite, and in which episodes; `alone`: the run has one process."""
    way_out = "lower peak_lr" if alone else "lower peak_lr, unless another process names its data"
    return data_fault(batch, selection) or (
        f"the loss is not finite at learning rate {rate:.2g}, over "
        f"{_episodes(batch['episode'], selection)}; {way_out}"
    )


def data_fault(batch: Mapping[str, Tensor], selection: Selection) -> str | None:
    """Invalid numbers of a batch and their episodes, in words; None if there are none."""
    for name, value in batch.items():
        if not value.is_floating_point():
            continue
        wrong = ~torch.isfinite(value)
        problem = "numbers that are not finite"
        if name == "action_std" and not wrong.any():
            wrong = (value <= 0) & batch["mask"][..., None]
            problem = "numbers that are not above 0"
        if wrong.any():
            windows = wrong.flatten(1).any(1)
            owners = _episodes(batch["episode"][windows], selection)
            return f"field {name} of the data holds {problem}, in {owners}"
    return None


def _episodes(rows: Tensor, selection: Selection) -> str:
    """The parts and numbers of the first few of the episodes in these rows of the catalog."""
    distinct = rows.unique().cpu().numpy()
    table = selection.episodes().take(distinct[:_NAMED_EPISODES])
    by_part: dict[str, list[str]] = {}
    for row in table.select(["part", "episode"]).to_pylist():
        by_part.setdefault(row["part"], []).append(str(row["episode"]))
    named = ", ".join(
        f"episode{'s' * (len(numbers) > 1)} {', '.join(numbers)} of part {part}"
        for part, numbers in by_part.items()
    )
    omitted = len(distinct) - _NAMED_EPISODES
    return f"{named} and {omitted} more" if omitted > 0 else named
