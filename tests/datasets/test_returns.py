"""Return-to-go: right to the last step, and unknown where an episode was cut off."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Selection, Store
from gaitforge.datasets.schema import (
    CUT_OFF,
    TERMINATED,
    TRUNCATED,
    returns_to_go,
)
from tests.datasets.making import part_input, small_schema


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_returns_to_go_equal_brute_force(lengths: list[int], seed: int) -> None:
    rewards = np.random.default_rng(seed).normal(size=sum(lengths)).astype(np.float32)
    sizes = np.array(lengths)
    starts = np.cumsum(sizes) - sizes
    expected = [
        rewards[step : start + size].astype(np.float64).sum()
        for start, size in zip(starts, sizes, strict=True)
        for step in range(start, start + size)
    ]
    np.testing.assert_allclose(returns_to_go(rewards, starts, sizes), expected, atol=1e-5)


def test_streamed_return_to_go_reaches_the_episodes_end(selection: Selection) -> None:
    chosen = selection.where("level <> 1")
    rewards = [chosen.episode(index)["reward"] for index in range(len(chosen))]
    returns = chosen.episodes().column("return").to_pylist()
    whole_episodes = 0
    for batch in chosen.windows(8, 6, return_to_go=True, pool_steps=200):
        for row in range(len(batch["mask"])):
            episode, begin = int(batch["episode"][row]), int(batch["offset"][row])
            for k in range(int(batch["mask"][row].sum())):
                expected = rewards[episode][begin + k :].sum()
                assert float(batch["return_to_go"][row, k]) == pytest.approx(expected, abs=1e-4)
            if begin == 0:
                whole_episodes += 1
                start_return = float(batch["return_to_go"][row, 0])
                assert start_return == pytest.approx(returns[episode], abs=1e-4)
            assert not batch["return_to_go"][row][~batch["mask"][row]].any()
    assert whole_episodes == len(chosen)


def part_with_endings(store: Store) -> None:
    given_part = part_input((20, 30, 10, 5))
    given_part["episodes"]["terminated"] = [True, False, False, True]
    given_part["episodes"]["truncated"] = [False, True, False, True]
    store.write_part("p", **given_part)


def test_endings_are_told_apart_and_unknown_returns_refused(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s", small_schema())
    part_with_endings(store)
    everything = store.select()
    with pytest.raises(DatasetError, match=r"1 of 4 episodes were cut off, .* partial_returns"):
        everything.windows(8, 6, return_to_go=True)
    whole = everything.where("terminated or truncated")
    expected = {0: TERMINATED, 1: TRUNCATED, 2: TERMINATED}
    for batch in whole.windows(8, 6, return_to_go=True):
        assert batch["ending"].dtype == torch.uint8
        for episode, ending in zip(batch["episode"].tolist(), batch["ending"], strict=True):
            assert expected[episode] == int(ending)
    rewards = everything.episode(2)["reward"]
    partial = everything.windows(64, 4, return_to_go=True, partial_returns=True)
    (batch,) = list(partial)
    row = batch["episode"].tolist().index(2)
    assert int(batch["ending"][row]) == CUT_OFF
    assert float(batch["return_to_go"][row, 0]) == pytest.approx(rewards.sum(), abs=1e-5)
    assert "ending" not in next(iter(everything.windows(8, 6)))


def test_return_to_go_needs_rewards() -> None:
    with tempfile.TemporaryDirectory() as folder:
        obs = small_schema().field("obs")
        store = Store.create(Path(folder, "s"), small_schema(fields=(obs,)))
        given_part = part_input((3,))
        store.write_part("p", {"obs": given_part["steps"]["obs"]}, given_part["episodes"])
        with pytest.raises(DatasetError, match="scalar field 'reward'"):
            store.select().windows(fields=("obs",), return_to_go=True)
        assert len(list(store.select().windows(fields=("obs",)))) == 1
