"""Gym tensors as torch tensors over the same memory, and back."""

from __future__ import annotations

import torch

from ._values import GymMisuse, Tensor, TensorDataType

_DTYPES = {
    torch.float32: TensorDataType.DTYPE_FLOAT32,
    torch.uint8: TensorDataType.DTYPE_UINT8,
    torch.int16: TensorDataType.DTYPE_INT16,
    torch.int32: TensorDataType.DTYPE_UINT32,
    torch.int64: TensorDataType.DTYPE_UINT64,
}


def wrap_tensor(gym_tensor: Tensor) -> torch.Tensor:
    """A torch tensor that shares the simulator's memory."""
    return torch.from_numpy(gym_tensor.array)


def unwrap_tensor(torch_tensor: torch.Tensor) -> Tensor:
    """The gym tensor over a torch tensor's memory.

    Raises:
        GymMisuse: a tensor that is not contiguous, on the CPU, or of a type that Isaac Gym has.
    """
    if not torch_tensor.is_contiguous():
        raise GymMisuse("unwrap_tensor: the tensor is not contiguous")
    if torch_tensor.device.type != "cpu":
        raise GymMisuse(
            f"unwrap_tensor: the tensor is on {torch_tensor.device}, the pipeline's CPU"
        )
    if torch_tensor.dtype not in _DTYPES:
        raise GymMisuse(f"unwrap_tensor: Isaac Gym has no {torch_tensor.dtype}")
    return Tensor.of(torch_tensor.detach().numpy(), _DTYPES[torch_tensor.dtype])
