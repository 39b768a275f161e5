"""The last action of a streamed step: the action of the step before, in the same episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Field, Selection, Store
from gaitforge.datasets.stream.materialise import Materialised
from tests.datasets.making import ACTION, part_input, small_schema
from tests.datasets.streaming import Batch, same_batches


@pytest.fixture(scope="module")
def copy(selection: Selection, tmp_path_factory: pytest.TempPathFactory) -> Materialised:
    return selection.materialise(tmp_path_factory.mktemp("copies"), ("obs", "action", "reward"))


def shifted(action: np.ndarray) -> np.ndarray:
    """(T, A) of one episode, a step later, after zeros."""
    return np.concatenate([np.zeros_like(action[:1]), action[:-1]])


@settings(max_examples=12)
@given(
    window_len=st.integers(1, 70),
    prefix_len=st.integers(0, 9),
    batch_size=st.integers(1, 9),
    pool_steps=st.integers(1, 300),
    workers=st.sampled_from([0, 2]),
    epoch=st.integers(0, 3),
    return_to_go=st.booleans(),
    fields=st.sampled_from([("obs", "action"), ("obs",)]),
)
def test_one_array_more(selection: Selection, copy: Materialised, **settings: Any) -> None:
    plain = list(selection.windows(**settings))
    given_too = list(selection.windows(**settings, last_action=True))
    without = [
        {name: batch[name] for name in batch if name != "last_action"} for batch in given_too
    ]
    assert all("last_action" not in batch for batch in plain)
    assert same_batches(without, plain)
    assert same_batches(copy.windows(**settings, last_action=True), given_too)
    check(selection, given_too, settings["prefix_len"])


def check(selection: Selection, batches: list[Batch], prefix_len: int = 0) -> None:
    expected = [shifted(selection.episode(index)["action"]) for index in range(len(selection))]
    for batch in batches:
        windows = zip(batch["episode"], batch["offset"], batch["mask"], strict=True)
        for row, (episode, offset, mask) in enumerate(windows):
            first = max(0, int(offset) - prefix_len)
            size = int(offset) + int(mask.sum()) - first
            given_rows = batch["last_action"][row]
            assert np.array_equal(given_rows[:size], expected[episode][first : first + size])
            assert not given_rows[size:].any()


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_state_goes_from_without_to_with_it(selection: Selection, world_size: int) -> None:
    for rank in range(world_size):
        settings: dict[str, Any] = {"pool_steps": 150, "rank": rank, "world_size": world_size}
        plain = selection.windows(8, 6, **settings)
        iteration = iter(plain)
        next(iteration)
        more = selection.windows(8, 6, last_action=True, **settings)
        more.load_state_dict(plain.state_dict())
        rest = list(more)
        without = [{name: batch[name] for name in batch if name != "last_action"} for batch in rest]
        assert same_batches(without, iteration)
        check(selection, rest)


def test_what_cannot_be_had_is_refused(selection: Selection, tmp_path: Path) -> None:
    copied = selection.materialise(tmp_path / "copies", ("obs",))
    with pytest.raises(DatasetError, match=r"'action'.*allowed: "):
        copied.windows(fields=("obs",), last_action=True)
    described = (*small_schema().fields, Field("last_action", (ACTION,)))
    store = Store.create(tmp_path / "s", small_schema(fields=described))
    part = part_input((3, 4))
    part["steps"]["last_action"] = part["steps"]["action"]
    store.write_part("p", **part)
    stored = store.select()
    with pytest.raises(
        DatasetError, match="'last_action' is a stored field: list it in fields, or"
    ):
        stored.windows(fields=("obs", "last_action"), last_action=True)
    [batch] = list(stored.windows(8, 6, fields=("action", "last_action")))
    assert batch["last_action"].equal(batch["action"])
    check(stored, list(stored.windows(3, 6, last_action=True)))
