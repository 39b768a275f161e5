"""Masked attention: every implementation is the same function, with the same gradient."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gaitforge.learners.models.body_attention import (
    AttentionMask,
    dense_masked,
    masked_attention,
    prefers_compiled,
    sparse,
)

Attention = Callable[[Tensor, AttentionMask], Tensor]


def by_definition(qkv: Tensor, allowed: Tensor) -> Tensor:
    """Row by row, softmax over the allowed nodes alone."""
    query, key, value = qkv.unbind(2)
    rows = []
    for node in range(len(allowed)):
        near = allowed[node].nonzero().flatten()
        scores = torch.einsum("bhd,bnhd->bhn", query[:, node], key[:, near])
        weights = (scores / math.sqrt(qkv.shape[-1])).softmax(-1)
        rows.append(torch.einsum("bhn,bnhd->bhd", weights, value[:, near]))
    return torch.stack(rows, dim=1)


def draw(seed: int, shape: tuple[int, ...], density: float) -> tuple[Tensor, Tensor]:
    """Packed inputs in float64 and a mask that has its diagonal; density 0 leaves only that."""
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(shape[1], shape[1], generator=generator) < density
    qkv = torch.randn(shape, generator=generator, dtype=torch.float64)
    return qkv, allowed | torch.eye(shape[1], dtype=torch.bool)


sizes = st.tuples(
    st.integers(1, 3), st.integers(1, 9), st.just(3), st.integers(1, 3), st.integers(1, 6)
)
densities = st.sampled_from([0.0, 0.2, 0.6, 1.0])


@pytest.mark.parametrize("attention", [dense_masked, sparse])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**20), shape=sizes, density=densities)
def test_values_and_gradients_are_the_definitions(
    attention: Attention, seed: int, shape: tuple[int, ...], density: float
) -> None:
    qkv, allowed = draw(seed, shape, density)
    want_input, got_input = (qkv.clone().requires_grad_() for _ in range(2))
    want = by_definition(want_input, allowed)
    got = attention(got_input, AttentionMask(allowed))
    torch.testing.assert_close(got, want, atol=1e-10, rtol=1e-10)
    slope = torch.randn(want.shape, dtype=torch.float64)
    for each in (want, got):
        each.backward(slope)
    torch.testing.assert_close(got_input.grad, want_input.grad, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("rows", [1, 40, 300])
def test_the_choice_is_the_same_function(rows: int) -> None:
    qkv, allowed = draw(1, (rows, 13, 3, 2, 4), 0.1)
    qkv = qkv.float()
    got = masked_attention(qkv, AttentionMask(allowed))
    torch.testing.assert_close(got, by_definition(qkv, allowed), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_the_sequences_without_changing_them(threads: int) -> None:
    before = torch.get_num_threads()
    qkv, allowed = draw(2, (257, 5, 3, 1, 4), 0.3)
    qkv.requires_grad_()
    try:
        torch.set_num_threads(threads)
        got = sparse(qkv, AttentionMask(allowed))
        (got**2).sum().backward()
    finally:
        torch.set_num_threads(before)
    reference = qkv.detach().clone().requires_grad_()
    want = by_definition(reference, allowed)
    (want**2).sum().backward()
    torch.testing.assert_close(got, want, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(qkv.grad, reference.grad, atol=1e-10, rtol=1e-10)


def test_compiled_operator_meets_the_rules_of_torch() -> None:
    from gaitforge.learners.models.body_attention import _attention

    qkv, allowed = draw(3, (2, 4, 3, 2, 4), 0.4)
    mask = AttentionMask(allowed)
    checks = torch.library.opcheck(
        _attention,
        (qkv.requires_grad_(), mask.starts, mask.columns),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    assert set(checks.values()) == {"SUCCESS"}


def test_a_nan_stays_a_nan() -> None:
    qkv, allowed = draw(4, (2, 3, 3, 1, 4), 1.0)
    qkv[1, 0] = math.nan
    got = sparse(qkv.float(), AttentionMask(allowed))
    assert got[0].isfinite().all()
    assert got[1].isnan().all()


def test_exported_programs_need_no_operator_of_ours() -> None:
    qkv, allowed = draw(5, (64, 5, 3, 1, 4), 0.3)
    mask = AttentionMask(allowed)

    class Masked(torch.nn.Module):
        def forward(self, qkv: Tensor) -> Tensor:
            return masked_attention(qkv, mask)

    program = torch.export.export(Masked(), (qkv.float(),))
    assert "gaitforge" not in str(program.graph)
    got = program.module()(qkv.float())
    torch.testing.assert_close(got, by_definition(qkv.float(), allowed), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("nodes", [13, 32, 128])
def test_the_choice_follows_the_sparsity(nodes: int) -> None:
    chain = torch.ones(nodes, nodes).tril(1).triu(-1).bool()
    assert prefers_compiled(AttentionMask(chain))
    assert not prefers_compiled(AttentionMask(torch.ones(nodes, nodes, dtype=torch.bool)))


def test_a_node_that_attends_to_nothing_is_refused() -> None:
    allowed = torch.eye(3, dtype=torch.bool)
    allowed[1, 1] = False
    with pytest.raises(ValueError, match="every node must attend"):
        AttentionMask(allowed)
