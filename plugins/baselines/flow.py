"""A generative policy: flow matching over chunks of future actions.

A velocity v(history, x, t) carries noise x_0 ~ N(0, I) at t = 0 to a chunk x_1 of the next C
actions at t = 1. It is learned by conditional flow matching with straight paths (Lipman et al.
2023, arXiv 2210.02747, eq. 23 with sigma_min = 0; rectified flow, Liu et al. 2023, arXiv
2209.03003, eq. 1):

    x_t = (1 - t) x_0 + t x_1,    loss = |v(history, x_t, t) - (x_1 - x_0)|^2,    t ~ U(0, 1)

The network f gives the path's end, v = (f(history, x_t, t) - x_t) / (1 - t), and time t has the
weight (1 - t)^2, which does not change the best v. So the loss is

    (1 - t)^2 |v - (x_1 - x_0)|^2 = |f(history, x_t, t) - x_1|^2

and f need not carry the noise through its hidden layers to its output, as a velocity would have to.

In control the chunk is integrated anew at every step, by 1 to 4 Euler steps, and its first action
is executed: a receding horizon, as in DiffuseLoco (Huang et al. 2024, arXiv 2404.19264), which uses
a diffusion model.

Deviation: the integration starts at `temperature` times one fixed draw, by default at 0, the mean
of the noise, instead of at a new draw. So the action is a function of the history, the same in
training, control and export. One Euler step gives the mean of the data's chunks.

Legend: B batch, T time, N learned steps, D token, A action, C actions of a chunk, F numbers of
a channel that the memory keeps.
"""

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor, nn

from gaitforge.learners.models.base import (
    STACKED,
    HistoryNetwork,
    check_counts,
    check_memory,
    make_memory,
)
from gaitforge.learners.tokens import TokenLayout

MOST_STEPS = 4


@dataclass(frozen=True)
class FlowConfig:
    """Settings of the network and of the integration.

    Attributes:
        hidden_dim, n_layers: width and number of the hidden layers.
        context_len, history_kind, n_modes: the memory, see `memory`.
        chunk: C actions that it predicts.
        steps: Euler steps, 1 to 4. Trained weights suit any number.
        temperature: scale of the fixed noise at which the integration starts; 0 for none.

    Raises ValueError for a value outside its range.
    """

    hidden_dim: int = 256
    n_layers: int = 3
    context_len: int = 16
    history_kind: str = STACKED
    n_modes: int = 8
    chunk: int = 8
    steps: int = 2
    temperature: float = 0.0

    def __post_init__(self) -> None:
        check_counts("flow", self, "hidden_dim", "n_layers", "context_len", "chunk", "steps")
        check_memory("flow", self.history_kind, self.context_len, self.n_modes)
        if self.steps > MOST_STEPS:
            raise ValueError(f"flow steps must be 1 to {MOST_STEPS}, got {self.steps}")
        if not (isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"flow temperature must be at least 0, got {self.temperature}")

    @property
    def receptive_field(self) -> int:
        """Steps before the current one that can change its action."""
        return self.context_len - 1

    @property
    def prefix_len(self) -> int:
        """Steps before a training window that the network reads: a history and then a chunk."""
        return self.receptive_field + self.chunk - 1

    def build(self, layout: TokenLayout, act_dim: int) -> "FlowPolicy":
        """The network for tokens of `layout`."""
        return FlowPolicy(self, layout.dim, act_dim)


class FlowPolicy(HistoryNetwork):
    """Maps what it remembers of the last tokens to a chunk of actions; returns the first."""

    start: Tensor

    def __init__(self, config: FlowConfig, token_dim: int, act_dim: int) -> None:
        memory = make_memory(config.history_kind, config.context_len, config.n_modes)
        super().__init__(memory, token_dim)
        self.chunk = config.chunk
        self.act_dim = act_dim
        self.steps = config.steps
        width = config.hidden_dim
        size = config.chunk * act_dim
        # Two parts of an MLP's first layer: the history's part is the same in all Euler steps.
        self.history_in = nn.Linear(memory.numbers * token_dim, width)
        self.chunk_in = nn.Linear(size + 1, width, bias=False)
        self.rest = nn.Sequential(nn.GELU())
        for _ in range(config.n_layers - 1):
            self.rest.extend([nn.Linear(width, width), nn.GELU()])
        self.rest.append(nn.Linear(width, size))
        draw = torch.randn(size, generator=torch.Generator().manual_seed(0), device="cpu")
        self.register_buffer("start", config.temperature * draw)

    def path_end(self, context: Tensor, chunk: Tensor, time: Tensor) -> Tensor:
        """Expected end (..., C x A) of the path through x_t (..., C x A) at a time (..., 1).

        context: (..., hidden_dim), from the history.
        """
        return self.rest(context + self.chunk_in(torch.cat([chunk, time], dim=-1)))

    def predict_chunk(self, histories: Tensor) -> Tensor:
        """Integrate the velocity by Euler steps: (..., F x D) -> (..., C, A)."""
        context = self.history_in(histories)
        chunk = self.start.expand(*context.shape[:-1], -1)
        for number in range(self.steps):
            time = chunk.new_full((*chunk.shape[:-1], 1), number / self.steps)
            # x + v / n with 1 - t = (n - number) / n
            end = self.path_end(context, chunk, time)
            chunk = torch.lerp(chunk, end, 1 / (self.steps - number))
        return chunk.unflatten(-1, (self.chunk, self.act_dim))

    def encode(self, tokens: Tensor) -> Tensor:
        """(..., F x D) -> the chunk's first action (..., A)."""
        return self.predict_chunk(tokens)[..., 0, :]

    def imitation_losses(self, tokens: Tensor, actions: Tensor, mask: Tensor) -> Tensor:
        """The weighted flow matching loss of each learned chunk, with random noise and time.

        A learned step is the last of its chunk, so that windows of any length have whole chunks.
        If fewer steps precede it, as at an episode's start, the chunk begins with the row; its last
        action stands in for the unknown ones, which do not count in the loss.

        Takes tokens (B, T, D), actions (B, T, A) to imitate in normalised units, and a mask (B, T),
        true at the N steps to learn from; earlier steps belong to their episode. Returns (N,) means
        over the numbers of the known actions.
        """
        rows, last = mask.nonzero(as_tuple=True)
        steps = (last - (self.chunk - 1)).clamp(min=0)
        after = torch.arange(self.chunk, device=last.device)
        ahead = (last - steps)[:, None]
        valid = after <= ahead
        chunk = actions[rows[:, None], steps[:, None] + after.minimum(ahead)].flatten(1)
        noise = torch.randn_like(chunk)
        time = torch.rand_like(chunk[:, :1])
        context = self.history_in(self.remembered(self.histories(tokens)[rows, steps]))
        end = self.path_end(context, torch.lerp(noise, chunk, time), time).float()
        error = (end - chunk).square().unflatten(-1, (self.chunk, -1)).mean(-1)
        return (error * valid).sum(-1) / valid.sum(-1)
