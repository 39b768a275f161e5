"""Checks and a base class that the networks' configs share."""

from typing import Any, ClassVar


class NoPrefix:
    """Base of the configs of networks that need no steps before a training window."""

    prefix_len: ClassVar[int] = 0
    """Steps before a training window that the network reads by default."""


def check_counts(model: str, config: Any, *names: str) -> None:
    """Raise ValueError if one of the fields `names` is not an integer above 0."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{model} {name} must be a whole number of at least 1, got {value}")


def check_rotary_heads(model: str, hidden_dim: int, n_heads: int) -> None:
    """Raise ValueError unless all heads have the same, even number of channels."""
    if hidden_dim % (2 * n_heads):
        raise ValueError(
            f"{model} hidden_dim must be a multiple of 2 * n_heads = {2 * n_heads}, "
            f"got {hidden_dim}"
        )
