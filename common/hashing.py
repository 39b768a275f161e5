"""Random numbers from counters: a hash of whole numbers, without a state."""

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def hashed(*keys: int | np.ndarray) -> np.ndarray:
    """Uniform uint64 from integer keys; arrays broadcast, and the order of the keys matters.

    Chains SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
    """
    state = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for key in keys:
            state = _splitmix(state ^ _splitmix(np.asarray(key).astype(np.uint64)))
    return state


def _splitmix(value: np.ndarray) -> np.ndarray:
    mixed = value + _GAMMA
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))
