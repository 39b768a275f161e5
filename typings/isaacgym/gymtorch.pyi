"""Isaac Gym's `gymtorch`, which isaacgym-stubs leaves out: the calls that the worker makes."""

import torch
from isaacgym.gymapi import Tensor

def wrap_tensor(gym_tensor: Tensor) -> torch.Tensor:
    """A torch tensor over the simulator's memory."""

def unwrap_tensor(torch_tensor: torch.Tensor) -> Tensor:
    """What Isaac Gym's setters take; the torch tensor has to be contiguous."""
