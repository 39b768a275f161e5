"""The window stream: exact coverage, order, padding, returns, resumption, and its threads."""

import gc
import multiprocessing
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from datasets import DatasetError, Selection, Store
from datasets.order import epoch_order, tile
from datasets.returns import returns_to_go
from datasets.stream import THREAD_NAME, WindowStream
from tests.datasets.making import part_input, small_schema, small_store, write_small_part

PARTS = [(5, 1, 9, 40), (130, 64), (17, 17, 3), (1,), (80, 2)]


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    return small_store(tmp_path_factory.mktemp("stream") / "s", PARTS).select()


def steps_of(batches: list[dict[str, torch.Tensor]]) -> Counter[tuple[int, int]]:
    """(episode, step) -> how often it was streamed."""
    seen: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        for episode, offset, mask in zip(
            batch["episode"].tolist(), batch["offset"].tolist(), batch["mask"], strict=True
        ):
            seen.update((episode, offset + k) for k in range(int(mask.sum())))
    return seen


def every_step(selection: Selection) -> Counter[tuple[int, int]]:
    return Counter(
        (episode, step)
        for episode, length in enumerate(selection.lengths.tolist())
        for step in range(length)
    )


def windows_of(stream: WindowStream) -> list[tuple[int, int, int]]:
    return [
        (episode, offset, int(mask.sum()))
        for batch in stream
        for episode, offset, mask in zip(
            batch["episode"].tolist(), batch["offset"].tolist(), batch["mask"], strict=True
        )
    ]


def live_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if THREAD_NAME in thread.name]


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    context_len=st.integers(1, 20),
    data=st.data(),
)
def test_windows_tile_episodes(lengths: list[int], context_len: int, data: st.DataObject) -> None:
    first = [data.draw(st.integers(1, context_len)) for _ in lengths]
    episode, offset, length = tile(np.array(lengths), np.array(first), context_len)
    assert length.min() >= 1
    assert length.max() <= context_len
    covered = [
        (e, o + k) for e, o, n in zip(episode, offset, length, strict=True) for k in range(n)
    ]
    assert covered == [(e, k) for e, size in enumerate(lengths) for k in range(size)]
    assert all(
        length[i] == first[episode[i]]
        for i in np.flatnonzero(offset == 0)
        if lengths[episode[i]] >= first[episode[i]]
    )


@settings(max_examples=25)
@given(
    context_len=st.integers(1, 70),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 4),
    pool_windows=st.integers(1, 40),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 5),
)
def test_every_step_once_whatever_the_ranks(
    selection: Selection,
    context_len: int,
    batch_size: int,
    world_size: int,
    pool_windows: int,
    seed: int,
    epoch: int,
) -> None:
    streams = [
        selection.windows(
            context_len,
            batch_size,
            seed=seed,
            epoch=epoch,
            rank=rank,
            world_size=world_size,
            pool_windows=pool_windows,
        )
        for rank in range(world_size)
    ]
    counts = {len(stream) for stream in streams}
    batches = [list(stream) for stream in streams]
    assert {len(of_rank) for of_rank in batches} == counts
    assert len(counts) == 1
    assert steps_of([batch for of_rank in batches for batch in of_rank]) == every_step(selection)
    assert all(batch["mask"][:, 0].all() for of_rank in batches for batch in of_rank)
    assert all(len(batch["mask"]) == batch_size for of_rank in batches for batch in of_rank[:-1])


def test_ranks_stride_one_global_order(selection: Selection) -> None:
    whole = windows_of(selection.windows(8, 12, seed=5, pool_windows=20))
    for world_size in (2, 3, 4):
        ranks = [
            windows_of(
                selection.windows(
                    8, 12 // world_size, seed=5, pool_windows=20, rank=r, world_size=world_size
                )
            )
            for r in range(world_size)
        ]
        assert [ranks[i % world_size][i // world_size] for i in range(len(whole))] == whole


def test_batches_hold_the_stored_values_and_zero_padding(selection: Selection) -> None:
    episodes = [selection.episode(index) for index in range(len(selection))]
    for batch in selection.windows(16, 7, fields=("obs", "action", "reward"), pool_windows=5):
        assert batch["obs"].dtype == torch.float32
        assert batch["reward"].shape == batch["mask"].shape
        for row in range(len(batch["mask"])):
            count = int(batch["mask"][row].sum())
            assert batch["mask"][row, :count].all()
            begin = int(batch["offset"][row])
            stored = episodes[int(batch["episode"][row])]
            for name in ("obs", "action", "reward"):
                expected = torch.from_numpy(stored[name][begin : begin + count])
                assert torch.equal(batch[name][row, :count], expected)
                assert not batch[name][row, count:].any()


def test_order_is_a_function_of_seed_and_epoch(selection: Selection) -> None:
    def order(**changes: Any) -> list[tuple[int, int, int]]:
        return windows_of(selection.windows(8, 6, **changes))

    assert order(seed=1, epoch=2) == order(seed=1, epoch=2)
    assert order(seed=1, epoch=2) != order(seed=1, epoch=3)
    assert order(seed=1, epoch=2) != order(seed=2, epoch=2)
    assert sorted(order(seed=1)) != order(seed=1)


def test_phases_change_between_epochs_and_follow_the_episode_id() -> None:
    ids, lengths = np.arange(1000), np.full(1000, 100)
    arguments = {"context_len": 8, "pool_windows": 10**6, "seed": 3}
    first = epoch_order(ids, lengths, [0, 1000], epoch=0, **arguments)
    shares = np.bincount(first.length[first.offset == 0], minlength=9)[1:] / 1000
    assert np.abs(shares - 1 / 8).max() < 0.04
    half = epoch_order(ids[500:], lengths[500:], [0, 500], epoch=0, **arguments)
    kept = first.episode >= 500
    whole = sorted(zip(first.episode[kept] - 500, first.offset[kept], strict=True))
    assert whole == sorted(zip(half.episode, half.offset, strict=True))


def test_an_episode_that_fits_a_window_is_not_cut() -> None:
    lengths = np.array([8, 3, 9, 1])
    order = epoch_order(
        np.arange(4), lengths, [0, 4], context_len=8, pool_windows=100, seed=0, epoch=5
    )
    whole = {int(e): int(n) for e, n in zip(order.episode, order.length, strict=True) if e != 2}
    assert whole == {0: 8, 1: 3, 3: 1}
    assert order.length[order.episode == 2].sum() == 9


def test_a_pool_mixes_its_units(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [[20] * 10] * 10)
    batches = [set(b["episode"].tolist()) for b in store.select().windows(10, 40)]
    parts_seen = [len({episode // 10 for episode in batch}) for batch in batches]
    assert min(parts_seen[:-1]) >= 7


@settings(max_examples=25)
@given(
    before=st.integers(1, 4),
    after=st.integers(1, 4),
    taken=st.integers(0, 6),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    pool_windows=st.integers(1, 40),
)
def test_resume_on_another_number_of_ranks(
    selection: Selection,
    before: int,
    after: int,
    taken: int,
    sizes: tuple[int, int],
    pool_windows: int,
) -> None:
    common: dict[str, Any] = {"context_len": 8, "seed": 9, "epoch": 1, "pool_windows": pool_windows}
    seen: list[dict[str, torch.Tensor]] = []
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


def test_resumed_batches_are_those_that_would_have_come(selection: Selection) -> None:
    whole = list(selection.windows(8, 6, seed=4, pool_windows=15))
    stream = selection.windows(8, 6, seed=4, pool_windows=15)
    iteration = iter(stream)
    taken = [next(iteration) for _ in range(3)]
    assert torch.equal(taken[2]["obs"], whole[2]["obs"])
    state = stream.state_dict()
    fresh = selection.windows(8, 6, seed=4, pool_windows=15)
    fresh.load_state_dict(state)
    for expected, actual in zip(whole[3:], fresh, strict=True):
        assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_state_of_another_order_is_refused(selection: Selection) -> None:
    state = selection.windows(8).state_dict()
    for other in (
        selection.windows(9),
        selection.windows(8, seed=1),
        selection.windows(8, pool_windows=5),
        selection.where("length > 3").windows(8),
    ):
        with pytest.raises(DatasetError, match="the stream's state has"):
            other.load_state_dict(state)


def test_iterations_are_epochs_and_continue(selection: Selection) -> None:
    stream = selection.windows(8, 6)
    for epoch in range(3):
        assert stream.epoch == epoch
        stream.set_epoch(epoch)
        assert windows_of(stream) == windows_of(selection.windows(8, 6, epoch=epoch))
    taken = steps_of([next(iter(stream))])
    stream.set_epoch(3)  # the epoch in progress goes on
    taken += steps_of(list(stream))
    assert taken == every_step(selection)
    stream.set_epoch(0)
    assert windows_of(stream) == windows_of(selection.windows(8, 6))


def test_drop_last_leaves_only_full_batches(selection: Selection) -> None:
    total = len(windows_of(selection.windows(8)))
    streams = [selection.windows(8, 5, rank=r, world_size=2, drop_last=True) for r in range(2)]
    batches = [list(stream) for stream in streams]
    assert [len(of_rank) for of_rank in batches] == [total // 10] * 2
    assert all(len(batch["mask"]) == 5 for of_rank in batches for batch in of_rank)
    seen = steps_of([batch for of_rank in batches for batch in of_rank])
    assert set(seen.values()) == {1}
    resumed = selection.windows(8, 5, drop_last=True)
    resumed.load_state_dict(resumed.state_dict() | {"cursor": total - 2})
    assert len(resumed) == 0
    assert list(resumed) == []
    assert resumed.epoch == 1
    with pytest.raises(DatasetError, match="fewer than one batch"):
        len(selection.windows(8, 10_000, drop_last=True))


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
    for batch in chosen.windows(8, 6, return_to_go=True, pool_windows=10):
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


def test_single_steps(selection: Selection) -> None:
    batches = list(selection.windows(1, 50))
    assert batches[0]["obs"].shape == (50, 1, 5)
    assert all(batch["mask"].all() for batch in batches)
    assert steps_of(batches) == every_step(selection)


def test_filtered_streams_hold_only_what_was_selected(selection: Selection) -> None:
    chosen = selection.where("length > 4 and level <> 2")
    assert 0 < len(chosen) < len(selection)
    assert steps_of(list(chosen.windows(8, 6, pool_windows=10))) == every_step(chosen)
    rows = chosen.episodes().to_pylist()
    assert all(row["length"] > 4 and row["level"] != 2 for row in rows)


def test_leaving_early_ends_the_threads(selection: Selection) -> None:
    for _ in selection.windows(4, 1, pool_windows=5):
        assert live_threads()
        break
    gc.collect()
    assert live_threads() == []
    stream = selection.windows(4, 1, pool_windows=5)
    iteration = iter(stream)
    next(iteration)
    stream.close()
    assert live_threads() == []
    assert list(iteration) == []


def test_a_new_iteration_goes_on_where_the_old_one_stood(selection: Selection) -> None:
    stream = selection.windows(8, 6)
    first = iter(stream)
    seen = [next(first), next(first)]
    second = iter(stream)
    assert list(first) == []
    assert steps_of(seen + list(second)) == every_step(selection)


def test_errors_of_the_reading_thread_reach_the_consumer(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", PARTS)
    stream = store.select().windows(8, 2, pool_windows=3)
    iteration = iter(stream)
    next(iteration)
    for path in store.path.glob("parts/*/obs/c/0/0"):
        path.unlink()
    with pytest.raises(DatasetError, match="missing"):
        list(iteration)
    del iteration
    assert live_threads() == []


def _iterate_in_child(stream: WindowStream, answers: multiprocessing.Queue) -> None:
    try:
        next(iter(stream))
        answers.put("read")
    except DatasetError as error:
        answers.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_reader_is_refused(selection: Selection) -> None:
    stream = selection.windows(8, 6)
    next(iter(stream))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_iterate_in_child, args=(stream, answers))
    child.start()
    answer = answers.get(timeout=60)
    child.join(60)
    assert "forked reader is refused" in answer
    assert child.exitcode == 0


class _Wrapped(IterableDataset):
    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def __iter__(self):
        return iter(self._selection.windows(8, 6))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_data_loader_workers_are_refused_and_none_are_needed(selection: Selection) -> None:
    alone = DataLoader(_Wrapped(selection), batch_size=None)
    assert steps_of(list(alone)) == every_step(selection)
    loader = DataLoader(
        _Wrapped(selection), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(DatasetError, match="num_workers=0"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context_len": 0}, "context_len must be 1 or more"),
        ({"batch_size": -1}, "batch_size must be 1 or more"),
        ({"prefetch": 0}, "prefetch must be 1 or more"),
        ({"seed": -1}, "0 or more"),
        ({"rank": 2, "world_size": 2}, r"rank must be in 0\.\.1"),
        ({"fields": ("obs", "torque")}, "choose from obs, action, reward"),
        ({"fields": ("final_obs",)}, "choose from obs, action, reward"),
    ],
)
def test_bad_settings_are_refused(selection: Selection, changes: dict, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        selection.windows(**changes)


def test_what_cannot_be_streamed_is_refused(tmp_path: Path) -> None:
    schema = small_schema()
    no_reward = tuple(field for field in schema.fields if field.name == "obs")
    store = Store.create(tmp_path / "s", small_schema(fields=no_reward))
    with pytest.raises(DatasetError, match="empty"):
        store.select().windows()
    full = Store.create(tmp_path / "full", schema)
    write_small_part(full, "p", (3,))
    with pytest.raises(DatasetError, match="fewer than 4 ranks"):
        list(full.select().windows(64, world_size=4))


def test_return_to_go_needs_rewards() -> None:
    with tempfile.TemporaryDirectory() as folder:
        obs = small_schema().field("obs")
        store = Store.create(Path(folder, "s"), small_schema(fields=(obs,)))
        given_part = part_input((3,))
        store.write_part("p", {"obs": given_part["steps"]["obs"]}, given_part["episodes"])
        with pytest.raises(DatasetError, match="scalar field 'reward'"):
            store.select().windows(fields=("obs",), return_to_go=True)
        assert len(list(store.select().windows(fields=("obs",)))) == 1


def test_only_the_stream_imports_torch() -> None:
    code = (
        "import sys, datasets, datasets.store, datasets.order, datasets.pool;"
        "assert datasets.__gaitforge__ is True; sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
