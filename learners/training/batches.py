"""The batches of a run, for ever, and where the run stands in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from datasets import Selection
from learners.policy.tokens import needs_last_action
from learners.training.config import TrainConfig
from learners.training.distributed import Ranks
from learners.training.objectives import OBJECTIVES, objective_fields

if TYPE_CHECKING:
    from datasets.stream.window_stream import WindowStream

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class BatchPosition:
    """Which batch of a run: the epoch, and the batch within it, both from 0."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, batch {self.number}"


def open_stream(config: TrainConfig, selection: Selection, ranks: Ranks, seed: int) -> WindowStream:
    """This rank's share of the windows that the objective trains on.

    Less than half a batch at an epoch's end joins the batch before: it would weigh as much as a
    whole one, and the ranks' shares would not be the batches of one process.
    """
    objective, schema = OBJECTIVES[config.objective], selection.store.schema
    return selection.windows(
        window_len=config.window_len,
        batch_size=ranks.share(config.batch_size),
        fields=objective_fields(objective, schema),
        seed=seed,
        rank=ranks.rank,
        world_size=ranks.world_size,
        smallest_batch=max(1, config.batch_size // 2),
        return_to_go=objective.tokens == "return",
        last_action=needs_last_action(objective.tokens, schema.field("obs").slices),
        pin_memory=ranks.device.type == "cuda",
    )


def on_device(batch: Mapping[str, Tensor], ranks: Ranks) -> Batch:
    """The batch on the device that computes; asynchronous from page-locked memory."""
    return {name: value.to(ranks.device, non_blocking=True) for name, value in batch.items()}


class TrainingBatches:
    """Epoch after epoch without end."""

    def __init__(self, config: TrainConfig, selection: Selection, ranks: Ranks) -> None:
        self._stream = open_stream(config, selection, ranks, config.seed)
        self._batch_size = config.batch_size

    def __iter__(self) -> Iterator[tuple[BatchPosition, Batch]]:
        """Every iteration of the stream is one epoch; ends never."""
        batches = iter(self._stream)
        while True:
            state = self._stream.state_dict()
            batch = next(batches, None)
            if batch is None:
                batches = iter(self._stream)
                continue
            yield BatchPosition(state["epoch"], state["cursor"] // self._batch_size), batch

    def state(self) -> dict[str, Any]:
        """The position behind the batches handed out so far, the same on every rank."""
        return self._stream.state_dict()

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on behind a saved position, also with another number of ranks."""
        self._stream.load_state_dict(state)

    def close(self) -> None:
        """End the stream's threads."""
        self._stream.close()
