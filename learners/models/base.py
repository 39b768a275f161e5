"""Base classes that networks share: bounded actions, and configs with checks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from torch import Tensor, nn


class BoundedNetwork(nn.Module):
    """tanh of another network's actions, for policies of value-based learners."""

    network: Any
    _squash = True

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @property
    def takes_mask(self) -> bool:
        """The wrapped network's flag, see `PolicyNetwork.predict_batch`."""
        return getattr(self.network, "takes_mask", False)

    def forward(self, tokens: Tensor, *mask: Tensor) -> Tensor:
        """Tokens (B, T, D), and a mask (B, T) if the network takes one -> actions (B, T, A)."""
        actions = self.network(tokens, *mask)
        return actions.tanh() if self._squash else actions

    @contextmanager
    def unbounded(self) -> Iterator[None]:
        """Within the block, `forward` gives actions before the tanh."""
        self._squash = False
        try:
            yield
        finally:
            self._squash = True

    def init_state(self, batch_size: int) -> Any:
        """The state of `batch_size` robots before their first step."""
        return self.network.init_state(batch_size)

    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One control step: token (B, D) -> action (B, A) as in `forward`, next state."""
        action, state = self.network.step(token, state)
        return action.tanh(), state

    def reset_state(self, state: Any, rows: Tensor) -> None:
        """Reset the state of the robots `rows` (indices), in place."""
        self.network.reset_state(state, rows)


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
