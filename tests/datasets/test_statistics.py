"""Statistics and spectra of selections against their definitions."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, from_dtype

from gaitforge.datasets import ChannelStatistics, DatasetError, Field, Schema, Selection, Store
from gaitforge.datasets import statistics as module
from gaitforge.datasets.schema import DTYPES
from gaitforge.datasets.statistics import DEFAULT_QUANTILES, row_quantiles
from tests.datasets.making import part_input, small_schema, small_store

ROWS = arrays(
    np.float32, st.tuples(st.integers(1, 30), st.just(3)), elements=st.floats(-9, 9, width=32)
)


def assert_same(actual: ChannelStatistics, rows: np.ndarray) -> None:
    values = rows.astype(np.float64)
    assert actual.count == len(rows)
    np.testing.assert_allclose(actual.mean, values.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(actual.std, values.std(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(actual.min, values.min(0))
    np.testing.assert_array_equal(actual.max, values.max(0))


@given(parts=st.lists(ROWS, min_size=1, max_size=5))
def test_merged_statistics_equal_those_of_all_rows(parts: list[np.ndarray]) -> None:
    merged = ChannelStatistics.of(parts[0])
    for rows in parts[1:]:
        merged = merged.merge(ChannelStatistics.of(rows))
    assert_same(merged, np.concatenate(parts))


def test_a_large_offset_does_not_cost_precision() -> None:
    rows = 1e6 + np.random.default_rng(0).normal(size=(5000, 2))
    merged = ChannelStatistics.of(rows[:1000]).merge(ChannelStatistics.of(rows[1000:]))
    np.testing.assert_allclose(merged.std, rows.std(0), rtol=1e-8)


@pytest.mark.parametrize("field", ["obs", "action", "reward", "final_obs"])
def test_statistics_of_a_selection_equal_brute_force(tmp_path: Path, field: str) -> None:
    store = small_store(tmp_path / "s", [(5, 1, 9, 4), (5000, 64), (17, 3)])
    for selection in (store.select(), store.select(terrain="rough").where("length > 3")):
        assert_same(selection.statistics(field), selection.read(field))


def test_statistics_of_nothing_are_refused(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    with pytest.raises(DatasetError, match="the selection is empty"):
        store.select().where("length < 0").statistics("obs")


QUANTILES = st.lists(st.floats(0, 1), min_size=1, max_size=4)


def values_selection(folder: str | Path, parts: list[np.ndarray]) -> Selection:
    """A store with a part for each (N, 2) array of values, all of one type."""
    schema = Schema((Field("obs", (2,), dtype=str(parts[0].dtype)),), 0.02, "aliengo")
    store = Store.create(Path(folder, "s"), schema)
    for number, values in enumerate(parts):
        lengths = [len(values) - len(values) // 2, *([len(values) // 2] if len(values) > 1 else [])]
        episodes = part_input(lengths, first_episode=number * 2)["episodes"]
        store.write_part(f"p{number}", {"obs": values}, episodes)
    return store.select()


def elements(dtype: str) -> st.SearchStrategy[Any]:
    kind = np.dtype(dtype)
    if kind.kind != "f":
        return from_dtype(kind)
    unsigned = np.dtype(f"u{kind.itemsize}")  # as bits, since few of all floats fit into 16
    largest = int(np.finfo(kind).max.view(unsigned))
    magnitudes = st.integers(0, largest).map(lambda bits: unsigned.type(bits).view(kind))
    return st.builds(
        lambda value, negative: -value if negative else value, magnitudes, st.booleans()
    )


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30)
@given(data=st.data())
def test_quantiles_equal_those_of_numpy(dtype: str, data: st.DataObject) -> None:
    shape = st.tuples(st.integers(1, 12), st.just(2))
    rows = arrays(dtype, shape, elements=elements(dtype))
    values, quantiles = data.draw(rows), np.array(data.draw(QUANTILES))
    with np.errstate(over="ignore", invalid="ignore"):  # two extremes may be too far apart
        found = row_quantiles(values, quantiles)
        expected = np.quantile(values.astype(np.float64), quantiles, axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("held", [1, 1 << 29])
def test_quantiles_of_many_rows_are_exact_in_every_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES", held)  # one channel at a time, or all
    rng = np.random.default_rng(0)
    normal, skewed = rng.normal(size=30_000), rng.lognormal(0, 3, 30_000)
    values = np.stack([normal, np.round(skewed, 1)], axis=1).astype(np.float32)
    selection = values_selection(tmp_path, np.array_split(values, 5))
    quantiles = (0.0, *DEFAULT_QUANTILES, 0.999, 1.0)
    expected = np.quantile(values.astype(np.float64), quantiles, axis=0)
    np.testing.assert_allclose(selection.quantiles("obs", quantiles), expected, rtol=1e-14)
    kept = selection.where("episode % 3 = 0")
    expected = np.quantile(kept.read("obs").astype(np.float64), 0.99, axis=0)
    np.testing.assert_allclose(kept.quantiles("obs", (0.99,))[0], expected, rtol=1e-14)


@pytest.mark.parametrize("quantiles", [(), (-0.1,), (0.5, 1.5), (float("nan"),)])
def test_what_is_no_quantile_is_refused(tmp_path: Path, quantiles: tuple[float, ...]) -> None:
    selection = small_store(tmp_path / "s").select()
    with pytest.raises(DatasetError, match=r"numbers in 0..1"):
        selection.quantiles("obs", quantiles)


def test_threads_and_one_thread_give_the_same_bits(tmp_path: Path) -> None:
    parts = [(40, 30), (17, 50, 90), (33,), (8, 21), (64,), (100, 1), (77,)]
    selection = small_store(tmp_path / "s", parts).select()
    serial = selection.statistics("obs", scheduler="synchronous")
    energy = selection.spectral_energy("obs", 16, scheduler="synchronous")
    quantiles = selection.quantiles("obs", scheduler="synchronous")
    for _ in range(3):
        parallel = selection.statistics("obs", scheduler="threads")
        for name in ("count", "mean", "squares", "min", "max"):
            np.testing.assert_array_equal(getattr(parallel, name), getattr(serial, name))
        again = selection.spectral_energy("obs", 16, scheduler="threads")
        np.testing.assert_array_equal(again.energy, energy.energy)
        assert again.windows == energy.windows
        found = selection.quantiles("obs", scheduler="threads")
        np.testing.assert_array_equal(found, quantiles)


def test_energies_of_two_selections_merge_to_those_of_both(tmp_path: Path) -> None:
    selection = small_store(tmp_path / "s", [(40, 30), (17, 50)]).select()
    whole = selection.spectral_energy("obs", 8)
    halves = [selection.where(f"level {sign} 1").spectral_energy("obs", 8) for sign in ("<", ">=")]
    merged = halves[0].merge(halves[1])
    assert merged.windows == whole.windows
    np.testing.assert_allclose(merged.energy, whole.energy, rtol=1e-12)
    np.testing.assert_allclose(merged.share, whole.share, rtol=1e-12)


def signal_selection(folder: Path, signal: np.ndarray, lengths: list[int]) -> Selection:
    schema = Schema((Field("obs", (signal.shape[1],)),), 0.02, "aliengo")
    store = Store.create(folder / "s", schema)
    store.write_part("p", {"obs": signal.astype(np.float32)}, part_input(lengths)["episodes"])
    return store.select()


def test_a_sinusoid_has_its_energy_at_its_frequency(tmp_path: Path) -> None:
    time_s = np.arange(300) * 0.02
    signal = np.stack([np.sin(2 * np.pi * 5.0 * time_s), np.ones(300), np.zeros(300)], axis=1)
    spectrum = signal_selection(tmp_path, signal, [120, 130, 50]).spectral_energy("obs", 100)
    assert spectrum.windows == 2
    assert spectrum.frequency_hz[-1] == pytest.approx(25.0)
    assert spectrum.frequency_hz[np.argmax(spectrum.share[:, 0])] == pytest.approx(5.0)
    assert spectrum.share[:, 0].max() == pytest.approx(1.0, abs=1e-5)
    assert spectrum.share[0, 1] == pytest.approx(1.0)
    assert not spectrum.share[:, 2].any()


@settings(max_examples=15)
@given(n=st.integers(2, 20), seed=st.integers(0, 1000))
def test_shares_are_shares_of_the_signals_energy(n: int, seed: int) -> None:
    signal = np.random.default_rng(seed).normal(size=(50, 2)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        spectrum = signal_selection(Path(folder), signal, [20, 30]).spectral_energy("obs", n)
    starts = [*range(0, 20 - n + 1, n), *range(20, 50 - n + 1, n)]
    windows = [signal[start : start + n] for start in starts]
    assert spectrum.windows == len(windows)
    np.testing.assert_allclose(spectrum.share.sum(0), 1.0)
    energy = sum((window.astype(np.float64) ** 2).sum(0) for window in windows)
    zero_mode = sum(window.astype(np.float64).sum(0) ** 2 for window in windows) / n
    np.testing.assert_allclose(spectrum.share[0], zero_mode / energy, rtol=1e-9)


def test_spectra_that_cannot_be_are_refused(tmp_path: Path) -> None:
    selection = small_store(tmp_path / "s", [(5, 9)]).select()
    with pytest.raises(DatasetError, match="n must be at most 9"):
        selection.spectral_energy("obs", 10)
    with pytest.raises(DatasetError, match="2 steps or more"):
        selection.spectral_energy("obs", 1)
    with pytest.raises(DatasetError, match="no spectrum"):
        selection.spectral_energy("final_obs", 4)
    assert small_schema().control_dt_s == 0.02
