"""Masked attention over body parts: every implementation by node count, and the paper's setting."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from gaitforge.flows.progress import Advance
from gaitforge.learners.models.bot.bodies import QUADRUPED, body_graph
from gaitforge.learners.models.bot.body_attention import AttentionMask, prefers_compiled
from gaitforge.learners.models.registry import preset
from gaitforge.learners.models.spaces import SPACES
from gaitforge.pipeline.bench.attention_baselines import (
    PAPER_NODES,
    PAPER_SPARSITY,
    WITHOUT_CPU_GRADIENT,
    compare_single_sequence,
    implementations,
    random_mask,
)
from gaitforge.pipeline.bench.harness import in_turns, median

PAPER_SPEED_UP_PERCENT = 206.0
"""The Body Transformer paper's Section 5.4, at 128 nodes."""
SINGLE_BASELINE = "numpy dense"
RANDOM = "random"
BODY_SPACES = {QUADRUPED: "legged", "adroit-door": "adroit-door", "cmu-humanoid": "mocapact"}


@dataclass(frozen=True)
class AttentionConfig:
    """Sizes of the measurement.

    Attributes:
        nodes: node counts of random masks of the paper's sparsity.
        bodies: names of BODY_SPACES, each with its own mask.
        tokens: nodes of a batch over all sequences, the same for every mask.
        single_masks: random masks of one sequence each, in the paper's setting.
    """

    nodes: tuple[int, ...] = PAPER_NODES
    bodies: tuple[str, ...] = tuple(BODY_SPACES)
    tokens: int = 13_312
    rounds: int = 7
    single_masks: int = 1000


def attention_layers(config: AttentionConfig, advance: Advance) -> list[dict[str, object]]:
    """One attention layer with the heads of the legged BoT, a record per mask.

    ``forward_ms`` and ``train_ms`` (with the gradient) are medians by implementation,
    ``train_over_dense`` their speed-up over the dense one; ``default`` is what the networks use.
    """
    sizes: Any = preset("bot").config
    records = []
    for name, mask in _masks(config):
        shape = (config.tokens // mask.nodes, mask.nodes, 3, sizes.n_heads)
        qkv = torch.randn(*shape, sizes.embed_dim // sizes.n_heads)
        times = _times(qkv, mask, config.rounds)
        train = times["train"]
        records.append(
            {
                "mask": name,
                "nodes": mask.nodes,
                "degree": mask.degree,
                "forward_ms": times["forward"],
                "train_ms": train,
                "train_over_dense": {each: train["dense"] / train[each] for each in train},
                "default": "compiled" if prefers_compiled(mask) else "dense",
                "fastest": min(train, key=train.__getitem__),
            }
        )
        advance(1, f"attention, {mask.nodes} nodes")
    return records


def single_sequences(config: AttentionConfig, advance: Advance) -> list[dict[str, object]]:
    """The paper's own setting, a record per node count.

    ``median_us`` by implementation, and ``speed_up_percent``: how much faster than NumPy's dense
    attention, 206 for the paper's at 128 nodes (read as 206 % more, not 206 % of).
    """
    records = []
    for nodes in config.nodes:
        seconds = compare_single_sequence(nodes, config.single_masks)
        micros = {name: 1e6 * value for name, value in seconds.items()}
        dense = micros[SINGLE_BASELINE]
        speed_up = {name: 100 * (dense / value - 1) for name, value in micros.items()}
        records.append({"nodes": nodes, "median_us": micros, "speed_up_percent": speed_up})
        advance(1, f"attention, {nodes} nodes")
    return records


def _masks(config: AttentionConfig) -> Iterator[tuple[str, AttentionMask]]:
    rng = np.random.default_rng(0)
    for body in config.bodies:
        space = SPACES[BODY_SPACES[body]]
        graph = body_graph(body, space.layout.slices, space.act_dim)
        yield body, AttentionMask(graph.embodiment_mask())
    for nodes in config.nodes:
        yield RANDOM, AttentionMask(torch.from_numpy(random_mask(nodes, rng, PAPER_SPARSITY)))


def _times(qkv: torch.Tensor, mask: AttentionMask, rounds: int) -> dict[str, dict[str, float]]:
    """Median ms by implementation, "forward" and with the gradient ("train"), all in turns."""
    learned = qkv.clone().requires_grad_()

    def train(attention: Callable[[torch.Tensor], torch.Tensor]) -> None:
        learned.grad = None
        attention(learned).sum().backward()

    works: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, attention in implementations(mask).items():
        works["forward", name] = partial(attention, qkv)
        if name not in WITHOUT_CPU_GRADIENT:
            works["train", name] = partial(train, attention)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        seconds = in_turns(works, rounds)
    times: dict[str, dict[str, float]] = {"forward": {}, "train": {}}
    for (kind, name), values in seconds.items():
        times[kind][name] = 1e3 * median(values)
    return times
