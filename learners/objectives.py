"""Training objectives. Each returns a mean over the valid steps, never over padding."""

from torch import Tensor

# Objective -> the kind of token it trains on.
OBJECTIVE_TOKENS = {"bc": "obs", "return": "return"}


def masked_mse(predicted: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Mean squared error over actions and valid steps; scalar.

    Args: predicted and target (B, T, A) in normalised action units; mask (B, T) bool, true where
    a step is real. The sum is divided by the number of valid steps, not by B * T.
    """
    error = (predicted - target).square().mean(-1)
    return error.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)
