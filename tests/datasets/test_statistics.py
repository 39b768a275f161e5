"""Statistics and spectra of selections against their definitions."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from datasets import ChannelStatistics, DatasetError, Field, Schema, Selection, Store
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
    with pytest.raises(DatasetError, match="empty selection"):
        store.select().where("length < 0").statistics("obs")


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
    with pytest.raises(DatasetError, match="n of at most 9"):
        selection.spectral_energy("obs", 10)
    with pytest.raises(DatasetError, match="2 steps or more"):
        selection.spectral_energy("obs", 1)
    with pytest.raises(DatasetError, match="no spectrum"):
        selection.spectral_energy("final_obs", 4)
    assert small_schema().control_dt_s == 0.02
