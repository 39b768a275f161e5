"""The window stream: order, tiling, padding, resumption, and the memory it takes."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gaitforge.datasets import DatasetError, Field, Schema, Selection, Store
from gaitforge.datasets.stream.pool import epoch_order
from tests.datasets.making import part_input, small_schema, small_store, write_small_part
from tests.datasets.programs import run_afresh
from tests.datasets.streaming import (
    all_windows,
    every_step,
    same_batches,
    steps_of,
    windows_of,
)


@pytest.mark.parametrize(("window_len", "prefix_len"), [(16, 0), (16, 5), (1, 3), (7, 200)])
def test_batches_hold_stored_values(selection: Selection, window_len: int, prefix_len: int) -> None:
    fields = ("obs", "action", "reward")
    episodes = [selection.episode(index) for index in range(len(selection))]
    settings: dict[str, Any] = {"fields": fields, "pool_steps": 200}
    stream = selection.windows(window_len, 7, prefix_len=prefix_len, **settings)
    assert windows_of(stream) == windows_of(selection.windows(window_len, 7, **settings))
    stream.set_epoch(0)
    for batch in stream:
        assert batch["mask"].shape == (len(batch["mask"]), prefix_len + window_len)
        assert batch["obs"].dtype == torch.float32
        assert batch["reward"].shape == batch["mask"].shape
        for row in range(len(batch["mask"])):
            offset = int(batch["offset"][row])
            begin = max(0, offset - prefix_len)
            count = offset - begin + int(batch["mask"][row].sum())
            assert batch["mask"][row, offset - begin : count].all()
            stored = episodes[int(batch["episode"][row])]
            for name in fields:
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
    arguments: dict[str, Any] = {"window_len": 8, "pool_steps": 10**6, "seed": 3}
    first = all_windows(epoch_order(ids, lengths, [0, 1000], epoch=0, **arguments))
    shares = np.bincount(first.length[first.offset == 0], minlength=9)[1:] / 1000
    assert np.abs(shares - 1 / 8).max() < 0.04
    half = all_windows(epoch_order(ids[500:], lengths[500:], [0, 500], epoch=0, **arguments))
    kept = first.episode >= 500
    whole = sorted(zip(first.episode[kept] - 500, first.offset[kept], strict=True))
    assert whole == sorted(zip(half.episode, half.offset, strict=True))


def test_an_episode_that_fits_a_window_is_not_cut() -> None:
    lengths = np.array([8, 3, 9, 1])
    order = epoch_order(
        np.arange(4), lengths, [0, 4], window_len=8, pool_steps=100, seed=0, epoch=5
    )
    windows = all_windows(order)
    pairs = zip(windows.episode.tolist(), windows.length.tolist(), strict=True)
    assert {episode: length for episode, length in pairs if episode != 2} == {0: 8, 1: 3, 3: 1}
    assert windows.length[windows.episode == 2].sum() == 9


def test_a_pool_mixes_its_units(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", [[20] * 10] * 10)
    batches = [set(b["episode"].tolist()) for b in store.select().windows(10, 40)]
    parts_seen = [len({episode // 10 for episode in batch}) for batch in batches]
    assert min(parts_seen[:-1]) >= 7


def test_resumed_batches_are_those_that_would_have_come(selection: Selection) -> None:
    whole = list(selection.windows(8, 6, seed=4, pool_steps=200))
    stream = selection.windows(8, 6, seed=4, pool_steps=200)
    iteration = iter(stream)
    taken = [next(iteration) for _ in range(3)]
    assert torch.equal(taken[2]["obs"], whole[2]["obs"])
    state = stream.state_dict()
    fresh = selection.windows(8, 6, seed=4, pool_steps=200)
    fresh.load_state_dict(state)
    for expected, actual in zip(whole[3:], fresh, strict=True):
        assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_state_of_another_order_is_refused(selection: Selection) -> None:
    state = selection.windows(8).state_dict()
    for other in (
        selection.windows(9),
        selection.windows(8, seed=1),
        selection.windows(8, prefix_len=1),
        selection.windows(8, pool_steps=5),
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


def test_a_batch_is_not_changed_by_later_ones(selection: Selection) -> None:
    stream = selection.windows(8, 6, workers=2)
    first = next(iteration := iter(stream))
    kept = {name: tensor.clone() for name, tensor in first.items()}
    view = first.pop("obs")[2:, 1:].numpy()  # all that is left of the tensor
    for _ in iteration:
        pass
    assert np.array_equal(view, kept["obs"][2:, 1:])
    assert all(tensor.equal(kept[name]) for name, tensor in first.items())


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_of_released_batches_is_used_again(selection: Selection, workers: int) -> None:
    stream = selection.windows(2, 2, workers=workers)
    places = {batch["obs"].data_ptr() for _ in range(2) for batch in stream}
    assert len(places) <= stream.config.prefetch + 3 < len(stream)


def test_memory_is_bounded_by_pools_and_batches(tmp_path: Path) -> None:
    width, part_steps, parts = 100, 4000, 12
    store = Store.create(tmp_path / "s", Schema((Field("obs", (width,)),), 0.02, "aliengo"))
    for number in range(parts):
        episodes = part_input([100] * (part_steps // 100), 40 * number)["episodes"]
        obs = np.full((part_steps, width), number, np.float32)
        store.write_part(f"p{number:02d}", {"obs": obs}, episodes)
    stream = store.select().windows(16, 64, fields=("obs",), pool_steps=part_steps)
    row = 4 * width
    pools, batches = 2 * part_steps * row, (stream.config.prefetch + 3) * 65 * 16 * row
    chunks = 4 << 20  # a decoded chunk and its stored bytes for each of two workers
    tracemalloc.start()
    seen = sum(int(batch["mask"].sum()) for batch in stream)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == part_steps * parts
    assert peak < pools + batches + chunks < part_steps * parts * row


def test_half_floats_are_handed_out_as_float32(tmp_path: Path) -> None:
    fields = (Field("obs", (3, 2), "float16"), Field("flag", (), "bool"))
    store = Store.create(tmp_path / "s", Schema(fields, 0.02, "aliengo"))
    obs = np.random.default_rng(0).normal(size=(90, 3, 2)).astype(np.float16)
    given_part = part_input([30, 60])
    store.write_part("p", {"obs": obs, "flag": obs[:, 0, 0] > 0}, given_part["episodes"])
    chosen = store.select()
    for batch in chosen.windows(8, 6, fields=("obs", "flag")):
        assert (batch["obs"].dtype, batch["flag"].dtype) == (torch.float32, torch.bool)
        for episode, offset, length in windows_of([batch]):
            at = (batch["episode"] == episode) & (batch["offset"] == offset)
            first = int(chosen.starts[episode]) + offset
            expected = torch.from_numpy(obs[first : first + length].astype(np.float32))
            assert torch.equal(batch["obs"][at][0, :length], expected)
            assert torch.equal(batch["flag"][at][0, :length], expected[:, 0, 0] > 0)


def test_float32_is_rounded_into_half_float_fields(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s", Schema((Field("obs", (2,), "float16"),), 0.02, "aliengo"))
    obs = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    store.write_part("p", {"obs": obs}, part_input([40])["episodes"])
    (batch,) = list(store.select().windows(64, 8, fields=("obs",)))
    error = np.abs(batch["obs"][0, :40].numpy() - obs)
    assert (error <= np.maximum(np.abs(obs) * 2.0**-11, 2.0**-25)).all()
    assert error.any()
    obs[3, 1] = 70_000
    with pytest.raises(DatasetError, match="float16 holds values up to 65504, not 70000"):
        store.write_part("q", {"obs": obs}, part_input([40], 40)["episodes"])


def test_bad_settings_are_refused(selection: Selection) -> None:
    least = {"window_len": 1, "batch_size": 1, "prefetch": 1, "prefix_len": 0, "seed": 0}
    for name, value in (least | {"workers": 0}).items():
        with pytest.raises(DatasetError, match=f"{name} must be {value} or more"):
            selection.windows(**dict[str, Any]({name: value - 1}))
    with pytest.raises(DatasetError, match=r"rank must be in 0\.\.1"):
        selection.windows(rank=2, world_size=2)
    for fields in (("obs", "torque"), ("final_obs",)):
        with pytest.raises(DatasetError, match="allowed: obs, action, reward"):
            selection.windows(fields=fields)


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


def test_a_field_must_not_hide_a_batch_entry(tmp_path: Path) -> None:
    fields = (Field("ending"), Field("obs"))
    store = Store.create(tmp_path / "s", small_schema(fields=fields))
    values = np.zeros(3, np.float32)
    steps = {"ending": values, "obs": values}
    store.write_part("p", steps, part_input((3,))["episodes"])
    with pytest.raises(DatasetError, match="'ending' has the name of a batch's own entry"):
        store.select().windows(fields=("ending",))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_page_locked_memory_needs_an_accelerator(selection: Selection) -> None:
    with pytest.raises(DatasetError, match="pin_memory needs an accelerator"):
        selection.windows(pin_memory=True)


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
def test_page_locked_batches_are_the_same(selection: Selection) -> None:
    pinned = list(selection.windows(8, 6, pin_memory=True))
    assert all(tensor.is_pinned() for tensor in pinned[0].values())
    assert same_batches(pinned, selection.windows(8, 6))


def test_only_the_stream_imports_torch() -> None:
    code = (
        "import sys, gaitforge.datasets.storage.store, gaitforge.datasets.stream.pool;"
        "import gaitforge.datasets.stream.pool, gaitforge.datasets.stream.materialise;"
        "import gaitforge.datasets.stream.materialise, gaitforge.datasets.stream.stream_config;"
        "sys.exit('torch' in sys.modules)"
    )
    assert run_afresh(code).returncode == 0
