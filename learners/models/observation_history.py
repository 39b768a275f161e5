"""Base of the networks that see the last H tokens.

Legend: B batch, T time, D token, A action, H history.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional


class HistoryNetwork(nn.Module, ABC):
    """Maps the last H tokens to an action; tokens before the first count as zero."""

    takes_mask = True
    """`forward` takes a mask and skips the other steps; see `PolicyNetwork`."""

    def __init__(self, history: int, width: int) -> None:
        super().__init__()
        self.history = history
        self.width = width

    @abstractmethod
    def encode(self, tokens: Tensor) -> Tensor:
        """(..., H x D), oldest step first -> (..., A)."""

    def narrowed(self, tokens: Tensor) -> Tensor:
        """The part of the tokens (..., D) that the network reads, (..., width)."""
        return tokens

    def histories(self, tokens: Tensor) -> Tensor:
        """The last H tokens of every step, oldest first: (B, T, D) -> (B, T, H x width)."""
        tokens = self.narrowed(tokens)
        if self.history == 1:
            return tokens
        padded = functional.pad(tokens, (0, 0, self.history - 1, 0))
        # The last H tokens are adjacent in memory: a view.
        views = padded.flatten(1).unfold(1, self.history * self.width, self.width)
        return views[:, : tokens.shape[1]]

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, A) for any T; zeros where a mask (B, T) is false."""
        tokens = self.histories(tokens)
        if mask is None:
            return self.encode(tokens)
        counted = mask.nonzero(as_tuple=True)
        actions = self.encode(tokens[counted])
        return actions.new_zeros(*mask.shape, actions.shape[-1]).index_put(counted, actions)

    def init_state(self, batch_size: int) -> Tensor:
        """(B, H - 1, D): the last tokens, oldest first; zeros before an episode."""
        return next(self.parameters()).new_zeros(batch_size, self.history - 1, self.width)

    @torch.no_grad()
    def step(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One control step: token (B, D) -> action (B, A) as in `forward`; returns a new state."""
        recent = torch.cat([state, self.narrowed(token)[:, None]], dim=1)
        return self.encode(recent.flatten(1)), recent[:, 1:]

    def reset_state(self, state: Tensor, rows: Tensor) -> None:
        """Reset the state of the robots `rows` (indices), in place."""
        state[rows] = 0.0
