"""Attention of the benchmark: every implementation is the same function."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gaitforge.learners.models.bot.body_attention import AttentionMask
from gaitforge.pipeline.bench.attention_baselines import (
    PAPER_SPARSITY,
    WITHOUT_CPU_GRADIENT,
    compare_single_sequence,
    implementations,
    numpy_dense,
    random_mask,
    single_sequence,
)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_all_implementations_have_the_dense_values_and_gradients(density: float) -> None:
    generator = torch.Generator().manual_seed(0)
    allowed = torch.rand(7, 7, generator=generator) < density
    mask = AttentionMask(allowed | torch.eye(7, dtype=torch.bool))
    qkv = torch.randn(2, 7, 3, 2, 16, generator=generator)
    slope = torch.randn(2, 7, 2, 16, generator=generator)
    ways = implementations(mask)
    values, gradients = {}, {}
    for name, attend in ways.items():
        learned = qkv.clone().requires_grad_(name not in WITHOUT_CPU_GRADIENT)
        pooled = attend(learned)
        values[name] = pooled.detach()
        if name not in WITHOUT_CPU_GRADIENT:
            pooled.backward(slope)
            gradients[name] = learned.grad
    assert set(values) == {"dense", "gathered", "compiled", "flex"}
    for found in (values, gradients):
        for got in found.values():
            torch.testing.assert_close(got, found["dense"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("nodes", [1, 5, 32, 128])
def test_random_masks_are_the_papers(nodes: int) -> None:
    mask = random_mask(nodes, np.random.default_rng(0))
    assert mask.diagonal().all()
    assert mask.sum() == max(nodes, round((1 - PAPER_SPARSITY) * nodes**2))


@pytest.mark.parametrize("nodes", [5, 16, 64])
def test_single_sequences_agree(nodes: int) -> None:
    ways = single_sequence(nodes, np.random.default_rng(0))
    masked = ways["numpy dense masked"]()
    assert not np.allclose(ways["numpy dense"](), masked)
    np.testing.assert_allclose(ways["compiled"](), masked, atol=1e-5)


def test_the_comparison_times_every_way() -> None:
    times = compare_single_sequence(16, masks=3)
    assert set(times) == set(single_sequence(16, np.random.default_rng(0)))
    assert all(seconds > 0 for seconds in times.values())


def test_numpy_attention_without_a_mask_is_torchs() -> None:
    rng = np.random.default_rng(1)
    query, key, value = rng.standard_normal((3, 7, 8))
    tensors = [torch.from_numpy(x)[None, None] for x in (query, key, value)]
    want = torch.nn.functional.scaled_dot_product_attention(tensors[0], tensors[1], tensors[2])
    np.testing.assert_allclose(numpy_dense(query, key, value), want[0, 0].numpy(), atol=1e-12)
