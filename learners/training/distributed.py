"""One training run on several processes, started by `torchrun`.

Every process (rank) holds the whole policy, computes the gradient of its share of each batch, and
takes the same optimiser step with the gradient of the whole batch. A rank gets every world_size-th
window of one global order, so that the shares together are the batch of one process.

Gradients are summed as one flat buffer after the backward pass, not by DistributedDataParallel:
they are weighted by each rank's valid steps, and for policies of up to tens of megabytes overlap
with the backward pass would save little.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed

from gaitforge.common.errors import amount
from gaitforge.common.machine import VISIBLE, why_no_gpu


@dataclass(frozen=True)
class Ranks:
    """This process's place among the run's processes; the default is a run of one process."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def share(self, batch_size: int) -> int:
        """Windows of a batch for each rank; ValueError unless all ranks get as many."""
        if batch_size % self.world_size:
            raise ValueError(
                f"batch_size must be a multiple of the {self.world_size} processes, "
                f"got {batch_size}"
            )
        return batch_size // self.world_size

    def sum(self, values: Tensor) -> Tensor:
        """Sum `values` over the ranks, in place."""
        if self.world_size > 1:
            distributed.all_reduce(values)
        return values

    def largest(self, number: int) -> int:
        """The largest number of all ranks."""
        if self.world_size == 1:
            return number
        values = torch.tensor([number], device=self.device)
        distributed.all_reduce(values, distributed.ReduceOp.MAX)
        return int(values)

    def same_start(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the values of rank 0 to every rank."""
        if self.world_size > 1:
            for value in tensors.values():
                distributed.broadcast(value, src=0)

    def sum_gradients(
        self, parameters: Iterable[torch.nn.Parameter], loss: Tensor, weight: int
    ) -> tuple[Tensor, int]:
        """Replace the gradients by their mean over the ranks, weighted by their valid steps.

        Takes the loss and valid steps of this rank and returns those of all ranks.
        """
        if self.world_size == 1:
            return loss, weight
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        # Float32 counts exactly up to 16.7 million steps.
        scalars = torch.stack([loss, torch.ones_like(loss)])
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), scalars]) * weight
        distributed.all_reduce(flat)
        total = flat[-1].clone()
        flat /= total.clamp(min=1.0)
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, mean in zip(gradients, flat[:-2].split(sizes), strict=True):
            gradient.copy_(mean.view_as(gradient))
        return flat[-2], int(total)


@contextmanager
def process_group(device: str) -> Iterator[Ranks]:
    """Within the block, join the processes that `torchrun` started.

    Without `torchrun` the run has one process. A group that already exists is used. device is "cpu"
    (gloo) or "cuda" (nccl, the GPU with the local rank). Raises ValueError if variables of
    `torchrun` are missing or wrong, or torch cannot use the device.
    """
    torch_device = (
        torch.device(device, _number("LOCAL_RANK", 0)) if device == "cuda" else torch.device(device)
    )
    _check_device(torch_device)
    world_size = _number("WORLD_SIZE", 1)
    if distributed.is_initialized():
        yield Ranks(distributed.get_rank(), distributed.get_world_size(), torch_device)
        return
    if world_size == 1:
        yield Ranks(device=torch_device)
        return
    needed = ("RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in needed if name not in os.environ]
    if missing:
        raise ValueError(
            f"WORLD_SIZE is {world_size} but {missing[0]} is not set; start with torchrun"
        )
    distributed.init_process_group("nccl" if torch_device.type == "cuda" else "gloo")
    try:
        yield Ranks(_number("RANK", 0), world_size, torch_device)
    finally:
        distributed.destroy_process_group()


def _check_device(device: torch.device) -> None:
    if device.type != "cuda":
        return
    if not torch.cuda.is_available():
        raise ValueError(f"device cuda was asked for, but {why_no_gpu(torch)}")
    present = torch.cuda.device_count()
    if device.index >= present:
        raise ValueError(
            f"device cuda:{device.index} was asked for, but torch sees {amount(present, 'GPU')} "
            f"({VISIBLE}={os.environ.get(VISIBLE, '')!r}); use fewer processes, or device=cpu"
        )
    torch.cuda.set_device(device)
    # In bfloat16 cuDNN's attention refuses 65,536 sequences, which the Body Transformer makes of
    # 1,024 windows of 64 steps; PyTorch's own is as fast, see docs/results/speed.md.
    torch.backends.cuda.enable_cudnn_sdp(False)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise ValueError(f"the variable {name} must be a number, got {text!r}")
    return int(text)
