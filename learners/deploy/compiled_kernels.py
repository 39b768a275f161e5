"""The compiled loops of `CompiledFCNet`.

Arrays are float32 and contiguous in the last axis; inner loops run along that axis, so that the
compiler vectorises them.

Legend: Do observation, D token, A action, d hidden channels, h decoder channels, n context length,
m modes, L layers.
"""

import math

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from learners.compiling import compiled

Array = np.ndarray

_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_EPSILON = np.float32(1e-5)  # nn.LayerNorm's default

# gelu(a) = a / 2 + E(|a|) with E even: a polynomial up to |a| = 5.5 and |a| / 2 beyond, where the
# difference is below 2e-7. The error of degree 16 is below that of float32.
_GELU_LIMIT = np.float32(5.5)
_GELU_DEGREE = 16
_GELU_BLOCK = 4  # coefficients a pass


def gelu_polynomial() -> Array:
    """Coefficients of E in w = 2 |a| / limit - 1, highest power first; float32."""

    def even_part(points: Array) -> Array:
        return np.array([0.5 * a * math.erf(a / math.sqrt(2.0)) for a in points])

    fit = Chebyshev.interpolate(even_part, _GELU_DEGREE, domain=[0.0, float(_GELU_LIMIT)])
    powers = fit.convert(kind=Polynomial, domain=fit.domain, window=[-1.0, 1.0])
    return powers.coef[::-1].astype(np.float32)


@compiled()
def _affine(weights: Array, place: int, x: Array, y: Array) -> int:
    """Compute y = x @ matrix + bias, both read from `place`; returns the place after them.

    The matrix is stored as (inputs, outputs) and read four rows at a time.
    """
    rows, columns = x.size, y.size
    matrix = weights[place : place + rows * columns].reshape((rows, columns))
    place += rows * columns
    bias = weights[place : place + columns]
    for o in range(columns):
        y[o] = bias[o]
    whole = rows - rows % 4
    for i in range(0, whole, 4):
        a, b, c, d = x[i], x[i + 1], x[i + 2], x[i + 3]
        for o in range(columns):
            y[o] += (matrix[i, o] * a + matrix[i + 1, o] * b) + (
                matrix[i + 2, o] * c + matrix[i + 3, o] * d
            )
    for i in range(whole, rows):
        a = x[i]
        for o in range(columns):
            y[o] += matrix[i, o] * a
    return place + columns


@compiled()
def _layer_norm(weights: Array, place: int, x: Array, y: Array) -> int:
    """LayerNorm with scale and offset read from `place`; returns the place after them."""
    size = x.size
    mean = np.float32(0.0)
    for c in range(size):
        mean += x[c]
    mean /= np.float32(size)
    variance = np.float32(0.0)
    for c in range(size):
        variance += (x[c] - mean) * (x[c] - mean)
    spread = _ONE / np.float32(math.sqrt(variance / np.float32(size) + _EPSILON))
    scale, offset = weights[place : place + size], weights[place + size : place + 2 * size]
    for c in range(size):
        y[c] = (x[c] - mean) * spread * scale[c] + offset[c]
    return place + 2 * size


@compiled()
def _gelu(coefficients: Array, x: Array, w: Array, even: Array) -> None:
    """The exact (erf) GELU of x, in place; w and even are scratch of at least x's size."""
    for c in range(x.size):
        w[c] = min(abs(x[c]), _GELU_LIMIT) * (np.float32(2.0) / _GELU_LIMIT) - _ONE
        even[c] = coefficients[0]
    for k in range(1, coefficients.size, _GELU_BLOCK):
        p, q, r, s = coefficients[k], coefficients[k + 1], coefficients[k + 2], coefficients[k + 3]
        for c in range(x.size):
            even[c] = (((even[c] * w[c] + p) * w[c] + q) * w[c] + r) * w[c] + s
    for c in range(x.size):
        beyond = max(abs(x[c]) - _GELU_LIMIT, np.float32(0.0))
        x[c] = _HALF * (x[c] + beyond) + even[c]


@compiled()
def _slide(modes: Array, arrival: Array, turn: Array) -> None:
    """Eq. (13) of the paper, in place: modes (2m, d) <- u (modes + arrival (d,))."""
    m = turn.shape[1]
    for k in range(m):
        cos, sin = turn[0, k], turn[1, k]
        for c in range(arrival.size):
            re, im = modes[k, c] + arrival[c], modes[m + k, c]
            modes[k, c] = re * cos - im * sin
            modes[m + k, c] = re * sin + im * cos


@compiled()
def _spectral(
    weights: Array, place: int, x: Array, oldest: Array, modes: Array, turn: Array, y: Array
) -> int:
    """One step of a spectral block, x (d,) -> y (d,): x enters the window, `oldest` leaves it.

    modes (2, 2m, d): the window's, then those of the inputs since slot 0. The folded readout
    (2m, d), imaginary parts negated, is read from `place`; returns the place after it.
    """
    rows, size = modes.shape[1], x.size
    readout = weights[place : place + rows * size].reshape((rows, size))
    for c in range(size):
        oldest[c] = x[c] - oldest[c]
    _slide(modes[0], oldest, turn)
    _slide(modes[1], x, turn)
    oldest[:] = x
    y[:] = np.float32(0.0)
    for k in range(0, rows, 2):
        for c in range(size):
            y[c] += modes[0, k, c] * readout[k, c] + modes[0, k + 1, c] * readout[k + 1, c]
    return place + rows * size


@compiled()
def control_step(
    obs: Array,
    remaining: float,
    network: tuple[Array, Array, Array, Array],
    memory: tuple[Array, Array, Array],
    decoder_dim: int,
    slot: int,
    action: Array,
) -> None:
    """One control step of one robot: obs (Do,) -> action (A,), both in the units of the data.

    Args:
        remaining: return-to-go / return scale, for tokens that have it.
        network: (D,) the observation index of each token index, -1 for the return-to-go; all
            weights in the order in which they are read (see `compiled_fcnet`); cos and sin of u_k
            (2, m); `gelu_polynomial`.
        memory: (n, L, d) the last n inputs of every spectral block; (L, 2, 2m, d) modes as in
            `_spectral`; both zeros at first; (6, at least the largest of D, d and h) scratch.
        decoder_dim: h.
        slot: steps so far modulo n.
    """
    token_source, weights, turn, gelu = network
    ring, modes, scratch = memory
    d, h = ring.shape[2], decoder_dim
    token, x = scratch[0, : token_source.size], scratch[1, :d]
    normed, inner, w, even = scratch[2, :d], scratch[3, :d], scratch[4], scratch[5]

    place = 2 * token.size
    for i in range(token.size):
        source = token_source[i]
        if source < 0:
            token[i] = remaining
        else:
            token[i] = (obs[source] - weights[i]) / weights[token.size + i]
    place = _affine(weights, place, token, x)
    for layer in range(ring.shape[1]):
        place = _layer_norm(weights, place, x, normed)
        place = _spectral(weights, place, normed, ring[slot, layer], modes[layer], turn, inner)
        if slot == ring.shape[0] - 1:  # see spectral.renew
            modes[layer, 0] = modes[layer, 1]
            modes[layer, 1] = np.float32(0.0)
        _gelu(gelu, inner, w, even)
        x += inner
        place = _layer_norm(weights, place, x, normed)
        place = _affine(weights, place, normed, inner)
        _gelu(gelu, inner, w, even)
        place = _affine(weights, place, inner, normed)
        x += normed
    hidden = scratch[2, :h]
    place = _affine(weights, place, x, hidden)
    _gelu(gelu, hidden, w, even)
    place = _affine(weights, place, hidden, action)
    for i in range(action.size):
        action[i] = weights[place + i] + action[i] * weights[place + action.size + i]
