"""Tensors as the simulator takes them: NumPy arrays over the same memory."""

import numpy as np
import torch

from .gymapi import GymMisuse


def wrap_tensor(gym_tensor: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(gym_tensor)


def unwrap_tensor(torch_tensor: torch.Tensor) -> np.ndarray:
    if not torch_tensor.is_contiguous() or torch_tensor.device.type != "cpu":
        raise GymMisuse(f"unwrap_tensor: not contiguous, or on {torch_tensor.device}")
    return torch_tensor.numpy()
