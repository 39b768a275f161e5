"""Transitions and last actions of streamed steps: what comes after and before each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.datasets import DatasetError, Field, Selection, Store
from gaitforge.datasets.stream.materialise import Materialised
from tests.datasets.making import ACTION, OBS, part_input, small_schema, small_store
from tests.datasets.streaming import PARTS, Batch, same_batches

ADDED = ("next_obs", "next_action", "last", "terminal", "ending")


def transitions_of(selection: Selection) -> dict[tuple[int, int], tuple[np.ndarray, bool, bool]]:
    """(episode, step) -> the next observation, whether it is terminal, and whether it is known."""
    finals = "final_obs" in selection.schema.names("episode")
    table, found = selection.episodes(), {}
    for episode in range(len(selection)):
        arrays = selection.episode(episode)
        failed = bool(table["terminated"][episode].as_py())
        obs, last = arrays["obs"], len(arrays["obs"]) - 1
        final = arrays["final_obs"] if finals else np.zeros(OBS, np.float32)
        for step in range(last + 1):
            following = obs[step + 1] if step < last else final
            known = finals or step < last or failed
            found[episode, step] = following, failed and step == last, known
    return found


@pytest.fixture(scope="module", params=[True, False], ids=["final", "no final"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Selection:
    folder = tmp_path_factory.mktemp("transitions") / "s"
    if request.param:
        return small_store(folder, PARTS).select()
    fields = tuple(each for each in small_schema().fields if each.per == "step")
    store, first = Store.create(folder, small_schema(fields=fields)), 0
    for number, lengths in enumerate(PARTS):
        part = part_input(lengths, first)
        del part["per_episode"]
        store.write_part(f"part-{number:03d}", **part)
        first += len(lengths)
    return store.select()


@settings(max_examples=10)
@given(
    window_len=st.integers(1, 70),
    prefix_len=st.integers(0, 9),
    batch_size=st.integers(1, 9),
    pool_steps=st.integers(1, 300),
    workers=st.sampled_from([0, 2]),
    epoch=st.integers(0, 3),
)
def test_every_known_transition_comes_once_an_epoch(stored: Selection, **settings: Any) -> None:
    expected, seen = transitions_of(stored), set()
    actions = [stored.episode(episode)["action"] for episode in range(len(stored))]
    for batch in stored.windows(**settings, transitions=True):
        assert batch["terminal"].shape == batch["mask"].shape
        for row, offset in enumerate(batch["offset"].tolist()):
            episode = int(batch["episode"][row])
            first = max(0, offset - settings["prefix_len"])
            for column in np.flatnonzero(batch["mask"][row]):
                key = episode, first + int(column)
                assert key not in seen
                seen.add(key)
                following, terminal, known = expected[key]
                assert known
                assert bool(batch["terminal"][row, column]) == terminal
                action, last = actions[episode], key[1] == len(actions[episode]) - 1
                assert bool(batch["last"][row, column]) == last
                next_action = np.zeros(ACTION) if last else action[key[1] + 1]
                assert np.array_equal(batch["next_action"][row, column], next_action)
                if not terminal or "final_obs" in stored.schema.names():
                    assert np.array_equal(batch["next_obs"][row, column], following)
    assert seen == {key for key, (_, _, known) in expected.items() if known}


def test_the_rest_of_the_batches_is_as_without(selection: Selection) -> None:
    sizes: dict[str, Any] = {"window_len": 12, "batch_size": 5, "prefix_len": 3}
    with_them = [
        {name: value for name, value in batch.items() if name not in ADDED}
        for batch in selection.windows(**sizes, transitions=True)
    ]
    assert same_batches(with_them, selection.windows(**sizes))


def test_what_cannot_be_had_is_refused(selection: Selection, tmp_path: Path) -> None:
    copied = selection.materialise(tmp_path / "copies", ("obs", "action"))
    for option in ({"transitions": True}, {"executed_actions": (0, ACTION)}):
        with pytest.raises(
            DatasetError, match="no final observations; stream transitions and exec"
        ):
            copied.windows(**dict[str, Any](option))
    with pytest.raises(
        DatasetError, match=rf"executed_actions \(0, 1\) is no place for \({ACTION},"
    ):
        selection.windows(executed_actions=(0, 1))
    fields = (*small_schema().fields, Field("next_obs", (OBS,)))
    store = Store.create(tmp_path / "s", small_schema(fields=fields))
    part = part_input((3, 4))
    part["steps"]["next_obs"] = part["steps"]["obs"]
    store.write_part("p", **part)
    with pytest.raises(DatasetError, match="'next_obs' is a stored field: list it in fields, or"):
        store.select().windows(fields=("obs", "next_obs"), transitions=True)


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


def test_last_actions_that_cannot_be_had_are_refused(selection: Selection, tmp_path: Path) -> None:
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
