"""Noise of exploration that is correlated in time.

White noise averages out in arms and hands that follow targets: within an episode such a policy
hardly leaves the path of its mean. Noise of power spectral density 1/f^color does not; pink noise,
color 1, is what Eberhard et al. 2023 ("Pink Noise Is All You Need", ICLR) recommend for SAC. Each
step's noise alone is still standard normal, so that densities stay those of the policy.
"""

from __future__ import annotations

import numpy as np


def colored_noise(color: float, steps: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """Standard normal sequences whose power spectral density falls with 1/f^color.

    Drawn in the frequency domain (Timmer and Koenig 1995); the constant part has the power of the
    lowest frequency, 1/steps.

    Args:
        color: 0 for white noise, 1 for pink, 2 for red.

    Returns:
        (steps, channels) float32; every element has mean 0 and variance 1.
    """
    frequency = np.fft.rfftfreq(steps)
    frequency[0] = 1.0 / steps
    amplitude = frequency ** (-color / 2.0)
    parts = rng.standard_normal((2, len(frequency), channels))
    spectrum = parts[0] + 1j * parts[1]
    # Terms without a partner of negative frequency are real, and count once.
    alone = [0, -1] if steps % 2 == 0 else [0]
    spectrum[alone] = np.sqrt(2.0) * spectrum[alone].real
    count = np.full(len(frequency), 2.0)
    count[alone] = 1.0
    variance = 2.0 * np.sum(count * amplitude**2) / steps**2
    sequence = np.fft.irfft(spectrum * amplitude[:, None], n=steps, axis=0)
    return (sequence / np.sqrt(variance)).astype(np.float32)
