"""Base of the networks of single steps with a memory of the last ones.

Legend: B batch, T time, D token, A action, n steps, F numbers of a channel that the memory keeps.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.learners.models.memory import SpectralMemory, StackedMemory


class HistoryNetwork(nn.Module, ABC):
    """Maps what it remembers of the last n tokens to an action; those before an episode are 0."""

    takes_mask = True
    """`forward` takes a mask and skips the other steps; see `PolicyNetwork`."""

    def __init__(self, memory: StackedMemory | SpectralMemory, width: int) -> None:
        super().__init__()
        self.memory = memory
        self.width = width

    @abstractmethod
    def encode(self, tokens: Tensor) -> Tensor:
        """(..., F x D), as the memory gives them -> (..., A)."""

    def narrowed(self, tokens: Tensor) -> Tensor:
        """The part of the tokens (..., D) that the network reads, (..., width)."""
        return tokens

    def histories(self, tokens: Tensor) -> Tensor:
        """The last n tokens of every step, oldest first: (B, T, D) -> (B, T, n x width)."""
        tokens = self.narrowed(tokens)
        steps = self.memory.steps
        if steps == 1:
            return tokens
        padded = functional.pad(tokens, (0, 0, steps - 1, 0))
        # The last n tokens are adjacent in memory: a view.
        views = padded.flatten(1).unfold(1, steps * self.width, self.width)
        return views[:, : tokens.shape[1]]

    def remembered(self, histories: Tensor) -> Tensor:
        """Features of `histories` in the memory: (..., n x width) -> (..., F x width)."""
        return self.memory.of_steps(histories, self.width)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, A) for any T; zeros where a mask (B, T) is false."""
        tokens = self.histories(tokens)
        if mask is None:
            return self.encode(self.remembered(tokens))
        counted = mask.nonzero(as_tuple=True)
        actions = self.encode(self.remembered(tokens[counted]))
        return actions.new_zeros(*mask.shape, actions.shape[-1]).index_put(counted, actions)

    def init_state(self, batch_size: int) -> Any:
        """The memory of `batch_size` robots before an episode."""
        return self.memory.init_state(next(self.parameters()).new_zeros(batch_size, self.width))

    @torch.no_grad()
    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One control step: token (B, D) -> action (B, A) as in `forward`; returns a new state."""
        remembered, state = self.memory.step(self.narrowed(token), state)
        return self.encode(remembered), state

    def reset_state(self, state: Any, rows: Tensor) -> None:
        """Reset the state of the robots `rows` (indices), in place."""
        self.memory.reset_state(state, rows)
