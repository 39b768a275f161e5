"""One training run on several processes, started by `torchrun`.

Every process (rank) holds the whole policy, computes the gradient of its share of each batch, and
takes the same optimiser step with the gradient of the whole batch. The stream deals every
world_size-th window of one global order to a rank, so that the ranks' shares together are the
batch of one process.

The gradients are summed as one flat buffer after the backward pass rather than by torch's
DistributedDataParallel: they have to be weighted by each rank's valid steps, and for policies of
up to tens of megabytes there is little to hide behind the backward pass.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed

_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """This process's place among those of the run; the default is a run of one process."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def leads(self) -> bool:
        """Whether this process writes the run's files."""
        return self.rank == 0

    def share(self, batch_size: int) -> int:
        """Windows of a batch for each rank; ValueError unless they divide evenly."""
        if batch_size % self.world_size:
            raise ValueError(
                f"batch_size must be a multiple of the {self.world_size} processes, "
                f"got {batch_size}"
            )
        return batch_size // self.world_size

    def sum(self, values: Tensor) -> Tensor:
        """The sum of every rank's `values`, in place."""
        if self.world_size > 1:
            distributed.all_reduce(values)
        return values

    def largest(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        if self.world_size == 1:
            return number
        values = torch.tensor([number], device=self.device)
        distributed.all_reduce(values, distributed.ReduceOp.MAX)
        return int(values)

    def same_start(self, tensors: Mapping[str, Tensor]) -> None:
        """Give every rank the values of rank 0."""
        if self.world_size > 1:
            for value in tensors.values():
                distributed.broadcast(value, src=0)

    def sum_gradients(
        self, parameters: Iterable[torch.nn.Parameter], loss: Tensor, weight: int
    ) -> tuple[Tensor, int]:
        """Replace the ranks' gradients and losses by their mean, each rank with its `weight`.

        Args:
            loss: scalar; the loss whose gradient the parameters have.
            weight: its valid steps; at least 1 over all ranks.

        Returns:
            The loss and the valid steps of all ranks together.
        """
        if self.world_size == 1:
            return loss, weight
        gradients = [each.grad for each in parameters if each.grad is not None]
        # Float32 counts exactly to 16.7 million steps a batch.
        scalars = torch.stack([loss, torch.ones_like(loss)])
        flat = torch.cat([*(each.flatten() for each in gradients), scalars]) * weight
        distributed.all_reduce(flat)
        total = flat[-1].clone()
        flat /= total
        sizes = [each.numel() for each in gradients]
        for gradient, mean in zip(gradients, flat[:-2].split(sizes), strict=True):
            gradient.copy_(mean.view_as(gradient))
        return flat[-2], int(total)


def process_rank() -> int:
    """This process's rank as `torchrun` set it; 0 outside it."""
    return _number("RANK", 0)


@contextmanager
def process_group(device: str) -> Iterator[Ranks]:
    """Join the processes that `torchrun` started, for the time of the block.

    Outside `torchrun` the run is of one process. A group that the caller made is used as it is.

    Args:
        device: "cpu" (gloo) or "cuda" (nccl, the GPU with this process's local rank).

    Raises:
        ValueError: variables of `torchrun` are missing or wrong, or torch cannot use the device.
    """
    place = (
        torch.device(device, _number("LOCAL_RANK", 0)) if device == "cuda" else torch.device(device)
    )
    _check_device(place)
    world_size = _number("WORLD_SIZE", 1)
    if distributed.is_initialized():
        yield Ranks(distributed.get_rank(), distributed.get_world_size(), place)
        return
    if world_size == 1:
        yield Ranks(device=place)
        return
    missing = [name for name in ("RANK", *_ADDRESS) if name not in os.environ]
    if missing:
        raise ValueError(
            f"WORLD_SIZE is {world_size} but {missing[0]} is not set; start with torchrun"
        )
    distributed.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Ranks(process_rank(), world_size, place)
    finally:
        distributed.destroy_process_group()


def _check_device(device: torch.device) -> None:
    if device.type != "cuda":
        return
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.index >= present:
        raise ValueError(
            f"device cuda:{device.index} was asked for, but torch sees {present} GPUs; "
            "use device=cpu or fewer processes"
        )
    torch.cuda.set_device(device)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise ValueError(f"the variable {name} must be a number, got {text!r}")
    return int(text)
