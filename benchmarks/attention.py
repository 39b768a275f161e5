"""Masked attention over body parts: the networks' two ways, by node count."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.harness import in_turns, median
from gaitforge.flows.progress import Advance
from gaitforge.learners.models.bot.bodies import QUADRUPED, body_view
from gaitforge.learners.models.bot.body_attention import (
    AttentionMask,
    compiled,
    dense_masked,
    prefers_compiled,
)
from gaitforge.learners.models.registry import preset
from gaitforge.learners.models.spaces import SPACES

PAPER_SPARSITY = 0.908
"""Share of zeros in the mask of MoCapAct's humanoid (Body Transformer paper, Section 5.4)."""
_BODY_SPACES = {QUADRUPED: "legged", "adroit-door": "adroit-door", "cmu-humanoid": "mocapact"}


@dataclass(frozen=True)
class AttentionConfig:
    """Sizes of the measurement.

    Attributes:
        nodes: node counts of random masks of the paper's sparsity, beside the masks of our bodies.
        tokens: nodes of a batch over all sequences, the same for every mask.
    """

    nodes: tuple[int, ...] = (16, 32, 64, 128)
    tokens: int = 13_312
    rounds: int = 7

    @property
    def turns(self) -> int:
        """How often the measurement reports progress."""
        return len(_BODY_SPACES) + len(self.nodes)


def attention_layers(config: AttentionConfig, advance: Advance) -> list[dict[str, object]]:
    """A record per mask of one attention layer with the heads of the legged BoT.

    `forward_ms` and `train_ms` (with the gradient) are medians by implementation; `default`
    is what the networks use.
    """
    sizes: Any = preset("bot").config
    records = []
    for name, mask in _masks(config):
        shape = (config.tokens // mask.nodes, mask.nodes, 3, sizes.n_heads)
        qkv = torch.randn(*shape, sizes.embed_dim // sizes.n_heads)
        records.append(
            {
                "mask": name,
                "nodes": mask.nodes,
                "degree": mask.degree,
                **_times(qkv, mask, config.rounds),
                "default": "compiled" if prefers_compiled(mask) else "dense",
            }
        )
        advance(1, f"attention, {mask.nodes} nodes")
    return records


def _masks(config: AttentionConfig) -> Iterator[tuple[str, AttentionMask]]:
    rng = np.random.default_rng(0)
    for body, name in _BODY_SPACES.items():
        graph, _ = body_view(body, SPACES[name].layout.slices, SPACES[name].act_dim)
        yield body, AttentionMask(graph.embodiment_mask())
    for nodes in config.nodes:
        yield "random", AttentionMask(torch.from_numpy(random_mask(nodes, rng)))


def _times(qkv: torch.Tensor, mask: AttentionMask, rounds: int) -> dict[str, dict[str, float]]:
    """Median times by implementation, all in turns."""
    learned = qkv.clone().requires_grad_()

    def train(attention: Callable[..., torch.Tensor]) -> None:
        learned.grad = None
        attention(learned, mask=mask).sum().backward()

    works: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, attention in {"dense": dense_masked, "compiled": compiled}.items():
        works["forward_ms", name] = partial(attention, qkv, mask=mask)
        works["train_ms", name] = partial(train, attention)
    times: dict[str, dict[str, float]] = {"forward_ms": {}, "train_ms": {}}
    for (kind, name), values in in_turns(works, rounds).items():
        times[kind][name] = 1e3 * median(values)
    return times


def random_mask(nodes: int, rng: np.random.Generator) -> np.ndarray:
    """(V, V) bool with a true diagonal and `PAPER_SPARSITY` of all entries false, or the rest."""
    mask = np.eye(nodes, dtype=bool)
    further = max(0, round((1.0 - PAPER_SPARSITY) * nodes * nodes) - nodes)
    mask.ravel()[rng.choice(np.flatnonzero(~mask), further, replace=False)] = True
    return mask
