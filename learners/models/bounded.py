"""A network whose actions lie within -1 and 1."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
