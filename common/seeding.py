"""NumPy's random generators of many seeds: the hashes of all seeds come from one compiled call.

`np.random.default_rng` takes 20 µs to hash a seed, more than many an episode's draws. The numbers
are the same.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from gaitforge.common.kernels import compiled

Seed = int | Sequence[int]
"""A number from 0 on, or several."""

_POOL = 4
"""Words of 32 bits in a hash, and the most of a seed that is hashed here."""

_STATE = 4
"""Words of 64 bits that PCG64 takes from a hash."""

# The hash is NumPy's `SeedSequence` (numpy/random/bit_generator.pyx), which is M. E. O'Neill's
# seed_seq_fe: https://www.pcg-random.org/posts/developing-a-seed_seq-alternative.html. Its words
# have 32 bits; as numba widens their products to 64, each is cut by `_WORD`.
_WORD = np.uint64(0xFFFFFFFF)
_HALF_WORD = np.uint64(16)
_WHOLE_WORD = np.uint64(32)
_START_IN = np.uint64(0x43B0D7E5)
_GROWTH_IN = np.uint64(0x931E8875)
_START_OUT = np.uint64(0x8B51F9DD)
_GROWTH_OUT = np.uint64(0x58F38DED)
_MIX_TARGET = np.uint64(0xCA01F9DD)
_MIX_SOURCE = np.uint64(0x4973F715)


def generators(seeds: Sequence[Seed]) -> Iterator[np.random.Generator]:
    """`np.random.default_rng(seed)` of each seed; ValueError for a number below 0."""
    words = [_words(seed) for seed in seeds]
    entropy = np.array([(*some, *[0] * _POOL)[:_POOL] for some in words], np.uint64)
    states = np.empty((len(words), _STATE), np.uint64)
    _hash(entropy.reshape(-1, _POOL), states)
    for seed, some, state in zip(seeds, words, states, strict=True):
        # NumPy takes any ISeedSequence; its stubs do not say so.
        source: Any = _Hashed(state) if len(some) <= _POOL else seed
        yield np.random.Generator(np.random.PCG64(source))


class _Hashed(ISeedSequence):
    """A seed whose hash (4,) uint64 is known."""

    def __init__(self, state: np.ndarray) -> None:
        self._state = state

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """The hash, in the one size that PCG64 asks for; ValueError for another."""
        if (n_words, dtype) != (_STATE, np.uint64):
            raise ValueError("this hash seeds PCG64 alone")
        return self._state


def _words(seed: Seed) -> list[int]:
    """The seed's 32-bit words, the lowest of each number first."""
    words: list[int] = []
    for number in seed if isinstance(seed, Sequence) else (seed,):
        if number < 0:
            raise ValueError(f"a seed is a number from 0 on, not {number}")
        words.append(number & 0xFFFFFFFF)
        while number := number >> 32:
            words.append(number & 0xFFFFFFFF)
    return words


@compiled
def _hash(entropy: np.ndarray, states: np.ndarray) -> None:
    """Write the hashes (K, 4) of words (K, 4), both uint64."""
    pool = np.empty(_POOL, np.uint64)
    for k in range(len(entropy)):
        factor = _START_IN
        for i in range(_POOL):
            pool[i], factor = _hashed(entropy[k, i], factor, _GROWTH_IN)
        for source in range(_POOL):
            for target in range(_POOL):
                if source != target:
                    value, factor = _hashed(pool[source], factor, _GROWTH_IN)
                    mixed = (_MIX_TARGET * pool[target] - _MIX_SOURCE * value) & _WORD
                    pool[target] = mixed ^ (mixed >> _HALF_WORD)
        factor = _START_OUT
        for i in range(_STATE):
            low, factor = _hashed(pool[2 * i % _POOL], factor, _GROWTH_OUT)
            high, factor = _hashed(pool[(2 * i + 1) % _POOL], factor, _GROWTH_OUT)
            states[k, i] = low | (high << _WHOLE_WORD)


@compiled
def _hashed(value: np.uint64, factor: np.uint64, growth: np.uint64) -> tuple[np.uint64, np.uint64]:
    """A word's hash, and the factor of the next word."""
    value ^= factor
    factor = (factor * growth) & _WORD
    value = (value * factor) & _WORD
    return value ^ (value >> _HALF_WORD), factor
