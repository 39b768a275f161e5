"""Base classes that networks share: bounded actions, configs with checks, memories of single steps.

A memory holds the last steps stacked (`StackedMemory`), or the low modes of more of them
(`SpectralMemory`). `HistoryNetwork` is the base of the networks with such a memory.

The spectral memory is FCNet's idea at the input of any network: a sliding DFT over the last n steps
(Tan et al. 2024, Eq. 9 and 13), here in real, orthonormal form. With age tau = 0 for the newest
step, angle a_k = 2 pi k / n and m modes, a channel x of the past becomes 2m numbers: x_t itself and

    c_0 = sum_tau x_(t-tau) / sqrt(n)
    c_k = sum_tau x_(t-tau) cos(a_k tau) sqrt(2/n),  s_k with sin,  k = 1 .. m-1.

A step of control costs as many numbers whatever n is. Nearest in the literature: Legendre memory
units (Voelker et al. 2019), whose window of Legendre polynomials is a state-space model too.

Legend: B batch, T time, D channels of a token, A action, n steps, m modes, F numbers of a channel
that the memory keeps.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.common.errors import listed


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

    @property
    def receptive_field(self) -> int | None:
        """Steps before the current one that can change its action; None for all of an episode's."""
        return None


def check_counts(model: str, config: Any, *names: str) -> None:
    """Raise ValueError if one of the fields `names` is not an integer above 0."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{model} {name} must be a whole number of at least 1, got {value}")


def check_heads(model: str, hidden_dim: int, n_heads: int, rotary: bool = True) -> None:
    """Raise ValueError unless all heads have as many channels, an even number if rotary."""
    if rotary and hidden_dim % (2 * n_heads):
        raise ValueError(
            f"{model} hidden_dim must be a multiple of 2 * n_heads = {2 * n_heads}, "
            f"got {hidden_dim}"
        )
    if hidden_dim % n_heads:
        raise ValueError(
            f"{model} hidden_dim must be a multiple of n_heads = {n_heads}, got {hidden_dim}"
        )


STACKED = "stacked"
SPECTRAL = "spectral"
HISTORY_KINDS = (STACKED, SPECTRAL)


def check_memory(owner: str, kind: str, steps: int, n_modes: int) -> None:
    """Raise ValueError for an unknown kind, or for modes that so many steps do not have."""
    if kind not in HISTORY_KINDS:
        raise ValueError(f"{owner} history_kind {kind!r}; allowed: {listed(HISTORY_KINDS)}")
    most = (steps + 1) // 2 if kind == SPECTRAL else n_modes
    if not 1 <= n_modes <= max(most, 1):
        raise ValueError(
            f"{owner} n_modes must be 1 to {max(most, 1)} for a history of {steps} steps, got "
            f"{n_modes}"
        )


def make_memory(kind: str, steps: int, n_modes: int) -> "StackedMemory | SpectralMemory":
    """The memory of a network that sees so many steps."""
    return StackedMemory(steps) if kind == STACKED else SpectralMemory(steps, n_modes)


class StackedMemory(nn.Module):
    """The last n steps, oldest first: F = n."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = self.numbers = steps

    def of_steps(self, steps: Tensor, width: int) -> Tensor:
        """The last steps (..., n x D), oldest first -> what is remembered (..., F x D)."""
        return steps

    def init_state(self, template: Tensor) -> Tensor:
        """(B, n - 1, D): the steps before, zeros; `template` is (B, D)."""
        return template.new_zeros(len(template), self.steps - 1, template.shape[1])

    def step(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """A step (B, D) -> what is remembered (B, F x D), and a new state."""
        recent = torch.cat([state, token[:, None]], dim=1)
        return recent.flatten(1), recent[:, 1:]

    def reset_state(self, state: Tensor, rows: Tensor) -> None:
        """Forget the steps of the robots `rows` (indices), in place."""
        state[rows] = 0.0


@dataclass
class SpectralMemoryState:
    """The last n steps (B, n, D), their modes without a common phase, and the next slot (1,).

    Every step stays in a slot, and is taken out of the modes as exactly the number that was put in.
    In float64 the sums' rounding stays below float32's own for years, as in `control.step_modules`.
    """

    ring: Tensor
    sums: Tensor
    slot: Tensor


class SpectralMemory(nn.Module):
    """The newest step and the low modes of the last n: F = 2m."""

    basis: Tensor
    enter: Tensor
    rotation: Tensor

    def __init__(self, steps: int, n_modes: int) -> None:
        super().__init__()
        self.steps = steps
        self.n_modes = n_modes
        self.numbers = 2 * n_modes
        places = torch.arange(steps, dtype=torch.float64)
        angles = 2 * math.pi / steps * torch.outer(torch.arange(n_modes), places)
        scale = torch.full((n_modes, 1), math.sqrt(2.0 / steps), dtype=torch.float64)
        scale[0] = math.sqrt(1.0 / steps)
        # Rows c_0 .. c_(m-1), s_1 .. s_(m-1); columns are slots, which for a full ring are ages.
        self.register_buffer("enter", _rows(angles.cos(), angles.sin()), persistent=False)
        waves = _rows(scale * angles.cos(), scale * angles.sin())
        self.register_buffer("basis", waves.flip(1).float(), persistent=False)
        self.register_buffer("rotation", _rotations(angles, scale), persistent=False)

    def of_steps(self, steps: Tensor, width: int) -> Tensor:
        """The last steps (..., n x D), oldest first -> what is remembered (..., F x D)."""
        recent = steps.unflatten(-1, (self.steps, width))
        modes = torch.matmul(self.basis.to(recent.dtype), recent)
        return torch.cat([recent[..., -1:, :], modes], dim=-2).flatten(-2)

    def init_state(self, template: Tensor) -> SpectralMemoryState:
        """The state before an episode; `template` is (B, D)."""
        batch, width = template.shape
        return SpectralMemoryState(
            template.new_zeros(batch, self.steps, width),
            template.new_zeros(batch, 2 * self.n_modes - 1, width, dtype=torch.float64),
            torch.zeros(1, dtype=torch.int64, device=template.device),
        )

    def step(self, token: Tensor, state: SpectralMemoryState) -> tuple[Tensor, SpectralMemoryState]:
        """A step (B, D) -> what is remembered (B, F x D), and a new state."""
        slot = state.slot
        oldest = state.ring.index_select(1, slot)[:, 0]
        change = token.double() - oldest.double()
        entered = self.enter.index_select(1, slot) * change[:, None]
        sums = state.sums + entered
        modes = torch.matmul(self.rotation.index_select(0, slot)[0], sums)
        ring = state.ring.index_copy(1, slot, token[:, None])
        remembered = torch.cat([token[:, None], modes.to(token.dtype)], dim=1).flatten(1)
        return remembered, SpectralMemoryState(ring, sums, (slot + 1) % self.steps)

    def reset_state(self, state: SpectralMemoryState, rows: Tensor) -> None:
        """Forget the steps of the robots `rows` (indices), in place."""
        state.ring[rows] = 0.0
        state.sums[rows] = 0.0


def _rows(cos: Tensor, sin: Tensor) -> Tensor:
    """Both (m, n) -> (2m - 1, n): the sine of mode 0 is zero and left out."""
    return torch.cat([cos, sin[1:]])


def _rotations(angles: Tensor, scale: Tensor) -> Tensor:
    """(n, 2m - 1, 2m - 1) float64: sums of `SpectralMemoryState` -> modes, for each newest slot.

    A step of age tau lies in slot s - tau: cos(a tau) = cos(a s) cos(a slot) + sin(a s) sin(a slot)
    and sin(a tau) = sin(a s) cos(a slot) - cos(a s) sin(a slot).
    """
    m, n = angles.shape
    cos = scale * angles.cos()
    sin = scale * angles.sin()
    rotations = torch.zeros(n, 2 * m - 1, 2 * m - 1, dtype=torch.float64)
    for k in range(m):
        rotations[:, k, k] = cos[k]
        if k:
            rotations[:, k, m + k - 1] = rotations[:, m + k - 1, k] = sin[k]
            rotations[:, m + k - 1, m + k - 1] = -cos[k]
    return rotations


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
