"""Noise of exploration: standard normal at every step, whatever its colour."""

from __future__ import annotations

import numpy as np
import pytest

from collectors.gym.colored_noise import colored_noise


@pytest.mark.parametrize("steps", [1, 2, 99, 100])
@pytest.mark.parametrize("color", [0.0, 1.0, 2.0])
def test_every_step_is_standard_normal(color: float, steps: int) -> None:
    noise = colored_noise(color, steps, 20_000, np.random.default_rng(7))
    assert noise.shape == (steps, 20_000)
    np.testing.assert_allclose(noise.mean(1), 0.0, atol=0.05)
    np.testing.assert_allclose(noise.var(1), 1.0, atol=0.05)


@pytest.mark.parametrize("color", [0.0, 1.0, 2.0])
def test_power_falls_with_frequency(color: float) -> None:
    noise = colored_noise(color, 256, 4_000, np.random.default_rng(7))
    power = np.mean(np.abs(np.fft.rfft(noise, axis=0)) ** 2, axis=1)[1:-1]
    slope = np.polyfit(np.log(np.arange(1, 128)), np.log(power), 1)[0]
    assert slope == pytest.approx(-color, abs=0.02)


def test_channels_are_independent() -> None:
    noise = colored_noise(1.0, 4_000, 2, np.random.default_rng(7))
    others = colored_noise(1.0, 4_000, 2, np.random.default_rng(8))
    assert not np.array_equal(noise, others)
    correlations = [
        np.corrcoef(colored_noise(1.0, 100, 2, np.random.default_rng(seed)).T)[0, 1]
        for seed in range(400)
    ]
    assert np.mean(correlations) == pytest.approx(0.0, abs=0.06)
