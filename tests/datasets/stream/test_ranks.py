"""Exactly once, whatever the ranks and workers, and resumed on others."""

import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Selection
from tests.datasets.making import small_store
from tests.datasets.streaming import (
    Batch,
    every_step,
    same_batches,
    steps_of,
    windows_of,
)


def of_all_ranks(selection: Selection, world_size: int, **settings: Any) -> list[list[Batch]]:
    """Every rank's batches of one epoch."""
    return [
        list(selection.windows(rank=rank, world_size=world_size, **settings))
        for rank in range(world_size)
    ]


@pytest.mark.slow
@settings(max_examples=12)
@given(
    parts=st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=6), min_size=1, max_size=4),
    window_len=st.integers(1, 70),
    prefix_len=st.integers(0, 70),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 4),
    workers=st.sampled_from([0, 2]),
    pool_steps=st.integers(1, 300),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 5),
)
def test_every_step_once_whatever_the_episodes(
    parts: list[list[int]], window_len: int, world_size: int, batch_size: int, **settings: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        chosen = small_store(Path(folder, "s"), parts).select()
        settings |= {"window_len": window_len, "batch_size": batch_size}
        if len(windows_of(chosen.windows(**settings))) < world_size:
            with pytest.raises(DatasetError, match=f"fewer than {world_size} ranks"):
                of_all_ranks(chosen, world_size, **settings)
            return
        ranks = of_all_ranks(chosen, world_size, **settings)
        batches = list(chain.from_iterable(ranks))
        assert steps_of(batches) == every_step(chosen)
        assert len({len(of_rank) for of_rank in ranks}) == 1
        before = settings["prefix_len"]
        for batch in batches:  # the window's steps come after what there is of the prefix
            first = batch["mask"].int().argmax(1)
            assert first.equal(batch["offset"].clamp(max=before))
            assert (batch["mask"].diff(dim=1).sum(1) <= 2).all()
        assert all(len(batch["mask"]) == batch_size for each in ranks for batch in each[:-1])


def test_workers_do_not_change_a_batch(selection: Selection) -> None:
    settings: dict[str, Any] = {"window_len": 8, "batch_size": 6, "pool_steps": 150}
    for rank in range(2):
        settings |= {"rank": rank, "world_size": 2, "return_to_go": True}
        one = selection.windows(workers=0, **settings)
        assert same_batches(one, selection.windows(workers=3, prefetch=1, **settings))


def test_ranks_stride_one_global_order(selection: Selection) -> None:
    whole = windows_of(selection.windows(8, 12, seed=5, pool_steps=200))
    for world_size in (2, 3, 4):
        settings = {"window_len": 8, "batch_size": 12 // world_size, "seed": 5, "pool_steps": 200}
        ranks = [windows_of(each) for each in of_all_ranks(selection, world_size, **settings)]
        assert [ranks[i % world_size][i // world_size] for i in range(len(whole))] == whole


@settings(max_examples=15)
@given(
    before=st.integers(1, 4),
    after=st.integers(1, 4),
    taken=st.integers(0, 6),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    pool_steps=st.integers(1, 300),
    workers=st.sampled_from([0, 2]),
    prefix_len=st.sampled_from([0, 5]),
)
def test_resume_on_another_number_of_ranks(
    selection: Selection,
    before: int,
    after: int,
    taken: int,
    sizes: tuple[int, int],
    pool_steps: int,
    workers: int,
    prefix_len: int,
) -> None:
    common: dict[str, Any] = {"window_len": 8, "seed": 9, "epoch": 1, "pool_steps": pool_steps}
    common |= {"workers": workers, "prefix_len": prefix_len}
    seen: list[Batch] = []
    states = []
    for rank in range(before):
        stream = selection.windows(batch_size=sizes[0], rank=rank, world_size=before, **common)
        iteration = iter(stream)
        seen += [next(iteration) for _ in range(min(taken, len(stream) - 1))]
        states.append(stream.state_dict())
    assert all(state == states[0] for state in states)
    left = len(windows_of(selection.windows(**common))) - states[0]["cursor"]
    for rank in range(after):
        stream = selection.windows(batch_size=sizes[1], rank=rank, world_size=after, **common)
        if left < after:
            with pytest.raises(DatasetError, match=f"{left} windows are left"):
                stream.load_state_dict(states[0])
            return
        stream.load_state_dict(states[0])
        rest = len(stream)
        batches = list(stream)
        assert len(batches) == rest
        assert stream.state_dict()["epoch"] == 2
        seen += batches
    assert steps_of(seen) == every_step(selection)


def test_state_of_four_ranks_resumes_on_two_in_the_same_order(selection: Selection) -> None:
    common: dict[str, Any] = {"window_len": 4, "seed": 2, "pool_steps": 150}
    whole = windows_of(selection.windows(batch_size=4, **common))
    four = [selection.windows(batch_size=3, rank=r, world_size=4, **common) for r in range(4)]
    for stream in four:
        iteration = iter(stream)
        for _ in range(2):
            next(iteration)
        stream.close()
    two = [selection.windows(batch_size=5, rank=r, world_size=2, **common) for r in range(2)]
    state = four[3].state_dict()
    assert state == four[0].state_dict()
    for stream in two:
        stream.load_state_dict(state)
    rest = [windows_of(stream) for stream in two]
    assert [rest[i % 2][i // 2] for i in range(sum(map(len, rest)))] == whole[2 * 3 * 4 :]
