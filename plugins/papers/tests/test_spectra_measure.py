"""Energy by mode: Parseval's law, and shares that add up on motions and stores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gaitforge.datasets.statistics import mode_energy
from gaitforge.flows.progress import no_progress
from gaitforge.learners.models.fcnet import paper_modes
from gaitforge.plugins.papers.measures.spectra import LOWEST, OTHERS, Spectra

SHAPES = st.tuples(st.integers(1, 4), st.integers(2, 33), st.integers(1, 3))


@given(SHAPES.flatmap(lambda shape: arrays(np.float64, shape, elements=st.floats(-1e3, 1e3))))
def test_the_energy_of_all_modes_is_that_of_the_signal(windows: np.ndarray) -> None:
    n = windows.shape[1]
    energy = mode_energy(windows)
    assert energy.shape == (n // 2 + 1, windows.shape[2])
    expected = n * np.square(windows).sum(axis=(0, 1))
    np.testing.assert_allclose(energy.sum(axis=0), expected, rtol=1e-9, atol=1e-9)


def test_a_motion_s_shares_are_whole_and_mostly_low() -> None:
    measure = Spectra(n=(64, 256))
    for point in measure.points(()):
        low, others = measure.series(point, 3, (), no_progress)
        assert (low.name, others.name) == (LOWEST, OTHERS)
        np.testing.assert_allclose(np.add(low.values, others.values), 100.0)
        assert min(low.values) > 90.0
        assert low.spectrum is not None
        assert sum(low.spectrum["energy_share"]) == pytest.approx(1.0)
        assert len(low.spectrum["frequency_hz"]) == int(point[1] or 0) // 2 + 1


@pytest.mark.parametrize(("context_len", "modes"), [(4, 3), (64, 10), (128, 12), (1024, 17)])
def test_modes_of_the_paper(context_len: int, modes: int) -> None:
    assert paper_modes(context_len) == modes
