"""The compiled loops of `CompiledStep`: control steps of FCNet, MLPs, BoT and Transformers.

`fcnet_step` is a step of FCNet, `dense_step` of the MLPs, `bot_step` of Body Transformers, and
`transformer_step` of the Transformer and the Decision Transformer.

Arrays are float32, unless said, and contiguous in the last axis; inner loops run along that axis,
so that the compiler vectorises them.

Arguments of `transformer_step`: network: `source` and weights as in `fcnet_step`;
`gelu_polynomial`; (K + 1,) bounds of the parts of a token, each embedded as a token of its own;
(w / 2,) rad per step, (0,) without positions; whether a LayerNorm follows an embedding. state:
(N, L, H, w, S) rotated keys; (N, L, H, S, w) values; (N,) steps of the episode. clock: steps so
far; only its differences matter.

Legend: N robots, Do observation, D token, A action, L layers, n context length, m modes; FCNet: d
hidden channels, h decoder channels; MLPs and Body Transformers: F numbers of a channel that are
remembered, V nodes, E embedding; Transformers: K tokens a step, S = n x K slots of a layer's ring,
H heads, w channels of a head, d = H x w.
"""

import math
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from gaitforge.common.kernels import compiled_fast
from gaitforge.learners.models.body_attention import forward_loops

Array = np.ndarray

_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_EPSILON = np.float32(1e-5)  # nn.LayerNorm's default

# gelu(a) = a / 2 + |a| G(|a|), G(a) = erf(a / sqrt(2)) / 2: a polynomial up to 5.5 and constant
# beyond, where the difference is below 2e-8. The error of degree 20 is below that of float32.
_GELU_LIMIT = np.float32(5.5)
_GELU_DEGREE = 20
_GELU_BLOCK = 4  # coefficients a pass


def gelu_polynomial() -> Array:
    """Coefficients of G in w = 2 |a| / limit - 1, highest power first; float32."""

    def half_erf(points: Array) -> Array:
        return np.array([0.5 * math.erf(a / math.sqrt(2.0)) for a in points])

    fit = Chebyshev.interpolate(half_erf, _GELU_DEGREE, domain=[0.0, float(_GELU_LIMIT)])
    powers = fit.convert(kind=Polynomial, domain=fit.domain, window=[-1.0, 1.0])
    return powers.coef[::-1].astype(np.float32)


@compiled_fast(fastmath={"contract", "nsz"})
def product(matrix: Array, x: Array, y: Array) -> None:
    """Add x @ matrix to y, eight rows summed first, since rounding errors grow with each sum."""
    rows, columns = matrix.shape
    whole = rows - rows % 8
    for i in range(0, whole, 8):
        a = x[i]
        b = x[i + 1]
        c = x[i + 2]
        d = x[i + 3]
        e = x[i + 4]
        f = x[i + 5]
        g = x[i + 6]
        h = x[i + 7]
        for o in range(columns):
            left = (matrix[i, o] * a + matrix[i + 1, o] * b) + (
                matrix[i + 2, o] * c + matrix[i + 3, o] * d
            )
            right = (matrix[i + 4, o] * e + matrix[i + 5, o] * f) + (
                matrix[i + 6, o] * g + matrix[i + 7, o] * h
            )
            y[o] += left + right
    for i in range(whole, rows):
        a = x[i]
        for o in range(columns):
            y[o] += matrix[i, o] * a


@compiled_fast()
def affine(weights: Array, place: int, x: Array, y: Array) -> int:
    """Compute y = x @ matrix + bias, both read from `place`; returns the place after them.

    The matrix is stored as (inputs, outputs).
    """
    bias = place + x.size * y.size
    for o in range(y.size):
        y[o] = weights[bias + o]
    product(weights[place:bias].reshape((x.size, y.size)), x, y)
    return bias + y.size


@compiled_fast()
def add(x: Array, y: Array) -> None:
    """Add y to x, in place."""
    for c in range(x.size):
        x[c] += y[c]


@compiled_fast()
def affine_rows(weights: Array, place: int, x: Array, y: Array) -> int:
    """`affine` for each row of x and y."""
    after = place
    for row in range(len(x)):
        after = affine(weights, place, x[row], y[row])
    return after


@compiled_fast()
def layer_norm(weights: Array, place: int, x: Array, y: Array) -> int:
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
    scale = weights[place : place + size]
    offset = weights[place + size : place + 2 * size]
    for c in range(size):
        y[c] = (x[c] - mean) * spread * scale[c] + offset[c]
    return place + 2 * size


@compiled_fast()
def gelu(coefficients: Array, x: Array, w: Array, g: Array) -> None:
    """The exact (erf) GELU of x, in place; w and g are scratch of at least x's size."""
    for c in range(x.size):
        w[c] = min(abs(x[c]), _GELU_LIMIT) * (np.float32(2.0) / _GELU_LIMIT) - _ONE
        g[c] = coefficients[0]
    for k in range(1, coefficients.size, _GELU_BLOCK):
        p = coefficients[k]
        q = coefficients[k + 1]
        r = coefficients[k + 2]
        s = coefficients[k + 3]
        for c in range(x.size):
            g[c] = (((g[c] * w[c] + p) * w[c] + q) * w[c] + r) * w[c] + s
    for c in range(x.size):
        x[c] = _HALF * x[c] + abs(x[c]) * g[c]


@compiled_fast()
def _spectral(
    weights: Array,
    cursor: int,
    x: Array,
    oldest: Array,
    modes: Array,
    turn: Array,
    change: Array,
    y: Array,
) -> int:
    """One step of a spectral block, x (d,) -> y (d,): x enters the window, `oldest` leaves it.

    modes (2m, d) and turn float64, see `SpectralState`; change (d,) float64 scratch. The folded
    readout (2m, d), imaginary parts negated, is read from `cursor`; returns the place after it.
    """
    m = turn.shape[1]
    size = x.size
    readout = weights[cursor : cursor + 2 * m * size].reshape((2 * m, size))
    for c in range(size):
        change[c] = np.float64(x[c]) - oldest[c]
        oldest[c] = x[c]
        y[c] = np.float32(0.0)
    for k in range(m):  # Eq. (13) of the paper
        cos = turn[0, k]
        sin = turn[1, k]
        for c in range(size):
            re = modes[k, c] + change[c]
            im = modes[m + k, c]
            modes[k, c] = re * cos - im * sin
            modes[m + k, c] = re * sin + im * cos
        for c in range(size):
            y[c] += modes[k, c] * readout[k, c] + modes[m + k, c] * readout[m + k, c]
    return cursor + 2 * m * size


@compiled_fast()
def read_token(source: Array, weights: Array, obs: Array, condition: Array, token: Array) -> int:
    """Compute the normalised token (D,) from obs (Do,); returns the place after mean, std, bound.

    source (D,): the observation index of each token index; -1, -2, ... for the condition's numbers.
    """
    for i in range(token.size):
        if source[i] < 0:
            token[i] = condition[-1 - source[i]]
        else:
            value = (obs[source[i]] - weights[i]) / weights[token.size + i]
            bound = weights[2 * token.size + i]
            if value > bound:  # in this way NaN stays
                value = bound
            elif value < -bound:
                value = -bound
            token[i] = value
    return 3 * token.size


@compiled_fast()
def restore(weights: Array, place: int, action: Array) -> None:
    """Turn normalised actions (A,) into the units of the data, in place."""
    for i in range(action.size):
        action[i] = weights[place + i] + action[i] * weights[place + action.size + i]


@compiled_fast(nogil=True, error_model="numpy")
def fcnet_step(
    obs: Array,
    condition: Array,
    network: tuple[Array, Array, Array, Array, int],
    state: tuple[Array, Array],
    slot: int,
    action: Array,
    first: int,
    last: int,
) -> None:
    """One control step of the robots first..last: obs (N, Do) -> action (N, A) in data units.

    Args:
        condition: (N, C), for tokens that have one.
        network: `source` of `read_token`; all weights in the order in which they are read (see
            `compiled_step`); cos and sin of u_k (2, m); `gelu_polynomial`; h.
        state: (N, n, L, d) the last n inputs of every spectral block; (N, L, 2m, d) their modes;
            zeros at first.
        slot: steps so far modulo n.
    """
    source, weights, turn, coefficients, h = network
    layers, d = state[0].shape[2:]
    scratch = np.empty((6, max(source.size, d, h)), np.float32)
    change = np.empty(d)
    token = scratch[0, : source.size]
    x = scratch[1, :d]
    normed = scratch[2, :d]
    inner = scratch[3, :d]
    w = scratch[4]
    g = scratch[5]
    for robot in range(first, last):
        ring = state[0][robot]
        modes = state[1][robot]
        cursor = read_token(source, weights, obs[robot], condition[robot], token)
        cursor = affine(weights, cursor, token, x)
        for layer in range(layers):
            cursor = layer_norm(weights, cursor, x, normed)
            oldest = ring[slot, layer]
            cursor = _spectral(weights, cursor, normed, oldest, modes[layer], turn, change, inner)
            gelu(coefficients, inner, w, g)
            add(x, inner)
            cursor = layer_norm(weights, cursor, x, normed)
            cursor = affine(weights, cursor, normed, inner)
            gelu(coefficients, inner, w, g)
            cursor = affine(weights, cursor, inner, normed)
            add(x, normed)
        hidden = scratch[2, :h]
        cursor = affine(weights, cursor, x, hidden)
        gelu(coefficients, hidden, w, g)
        cursor = affine(weights, cursor, hidden, action[robot])
        restore(weights, cursor, action[robot])


@compiled_fast()
def _add_and_norm(weights: Array, cursor: int, x: Array, y: Array) -> int:
    """Compute x = LayerNorm(x + y) for each row; returns the place after scale and offset."""
    after = cursor
    for row in range(len(x)):
        add(y[row], x[row])
        after = layer_norm(weights, cursor, y[row], x[row])
    return after


# The networks with a memory of the last steps: MLPs and Body Transformers.
@compiled_fast()
def _remember(
    token: Array, waves: tuple[Array, Array], ring: Array, sums: Array, slot: int, features: Array
) -> None:
    """One step of a network's memory: token (D,) -> features (F, D), as in `models.base`.

    Args:
        waves: `SpectralMemory.enter` and `rotation`; empty for a stacked memory.
        ring: (n, D) the last tokens; sums: (2m - 1, D) float64, their modes, or (0, D).
        slot: steps so far modulo n.
    """
    enter, rotation = waves
    size = token.size
    steps = len(ring)
    if len(sums) == 0:
        ring[slot] = token
        for age in range(steps):
            features[age] = ring[(slot + 1 + age) % steps]
        return
    oldest = ring[slot]
    for k in range(len(sums)):
        phase = enter[k, slot]
        for c in range(size):
            sums[k, c] += phase * (np.float64(token[c]) - np.float64(oldest[c]))
    ring[slot] = token
    features[0] = token
    mode = np.empty(size)
    for k in range(len(sums)):
        mode[:] = 0.0
        for j in range(len(sums)):
            part = rotation[slot, k, j]
            if part != 0.0:
                for c in range(size):
                    mode[c] += part * sums[j, c]
        for c in range(size):
            features[1 + k, c] = np.float32(mode[c])


@compiled_fast()
def _embed(weights: Array, cursor: int, features: Array, nodes: Array, x: Array) -> int:
    """Tokens of the body's nodes, x (V, E), from features (F, D); returns the place after them.

    nodes (D,): the node of each channel. Read from `cursor`: biases (V, E), maps (F x D, E).
    """
    width = x.shape[1]
    for node in range(len(x)):
        for c in range(width):
            x[node, c] = weights[cursor + c]
        cursor += width
    for f in range(len(features)):
        for i in range(features.shape[1]):
            row = x[nodes[i]]
            number = features[f, i]
            for c in range(width):
                row[c] += number * weights[cursor + c]
            cursor += width
    return cursor


@compiled_fast(nogil=True, error_model="numpy")
def dense_step(
    obs: Array,
    condition: Array,
    network: tuple[Any, ...],
    state: tuple[Array, Array],
    slot: int,
    action: Array,
    first: int,
    last: int,
) -> None:
    """One control step of an MLP as `fcnet_step`, with another `network` and `state`.

    Args:
        network: `source` and weights as there; waves as in `_remember`; nodes as in `_embed`, empty
            for no body; `gelu_polynomial`, empty for ReLU; (layers, 2) the width of each linear map
            and whether an activation follows; numbers F of a channel, V and E.
        state: (N, n, D) and (N, 2m - 1, D) as in `_remember`.
    """
    source, weights, waves, nodes, coefficients, layers, sizes = network
    numbers, v, e = sizes
    features = np.empty((numbers, source.size), np.float32)
    token = np.empty(source.size, np.float32)
    body = np.empty((v, e), np.float32)
    widest = max(layers[:, 0].max(), 1)
    scratch = np.empty((4, widest), np.float32)
    for robot in range(first, last):
        cursor = read_token(source, weights, obs[robot], condition[robot], token)
        _remember(token, waves, state[0][robot], state[1][robot], slot, features)
        x = features.reshape(-1)
        if nodes.size:
            cursor = _embed(weights, cursor, features, nodes, body)
            x = body.reshape(-1)
        for layer in range(len(layers)):
            y = scratch[layer % 2, : layers[layer, 0]]
            cursor = affine(weights, cursor, x, y)
            if layers[layer, 1] and coefficients.size:
                gelu(coefficients, y, scratch[2], scratch[3])
            elif layers[layer, 1]:
                for c in range(y.size):  # NaN stays
                    y[c] = np.float32(0.0) if y[c] < 0 else y[c]
            x = y
        action[robot] = x
        restore(weights, cursor, action[robot])


@compiled_fast(nogil=True, error_model="numpy")
def bot_step(
    obs: Array,
    condition: Array,
    network: tuple[Any, ...],
    state: tuple[Array, Array],
    slot: int,
    action: Array,
    first: int,
    last: int,
) -> None:
    """One control step as `fcnet_step`, with another `network` and `state`.

    Args:
        network: `source` and weights as there; waves as in `_remember`; nodes (D,) of the token's
            numbers and (A,) of the actions; starts (L, V + 1), columns and biases of the layers'
            masks as in `forward_loops`, starts counted in the columns of all layers; E, heads, the
            feed-forward width, and the numbers of a channel.
        state: (N, n, D) and (N, 2m - 1, D) as in `_remember`.
    """
    source, weights, waves, token_nodes, action_nodes, starts, columns, biases, sizes = network
    e, heads, f, numbers = sizes
    v = starts.shape[1] - 1
    width = e // heads
    token = np.empty(source.size, np.float32)
    remembered = np.empty((numbers, source.size), np.float32)
    x = np.empty((v, e), np.float32)
    y = np.empty((v, e), np.float32)
    qkv = np.empty((v, 3 * e), np.float32)
    pooled = np.empty((v, e), np.float32)
    hidden = np.empty((v, f), np.float32)
    shares = np.empty((1, heads * columns.size), np.float32)
    parts = qkv.reshape((1, 3 * v * heads, width))
    sums = pooled.reshape((1, v * heads, width))
    for robot in range(first, last):
        out = action[robot]
        cursor = read_token(source, weights, obs[robot], condition[robot], token)
        _remember(token, waves, state[0][robot], state[1][robot], slot, remembered)
        cursor = _embed(weights, cursor, remembered, token_nodes, x)
        for layer in range(len(starts)):
            cursor = affine_rows(weights, cursor, x, qkv)
            forward_loops(parts, starts[layer], columns, biases, sums, shares, 0, 1)
            cursor = affine_rows(weights, cursor, pooled, y)
            cursor = _add_and_norm(weights, cursor, x, y)
            cursor = affine_rows(weights, cursor, x, hidden)
            for node in range(v):
                for c in range(f):  # NaN stays
                    hidden[node, c] = np.float32(0.0) if hidden[node, c] < 0 else hidden[node, c]
            cursor = affine_rows(weights, cursor, hidden, y)
            cursor = _add_and_norm(weights, cursor, x, y)
        bias = cursor + out.size * e
        for i in range(out.size):
            features = x[action_nodes[i]]
            total = weights[bias + i]
            for c in range(e):
                total += features[c] * weights[cursor + c]
            out[i] = total
            cursor += e
        restore(weights, bias + out.size, out)


# The Transformer and the Decision Transformer: attention over cached keys and values.
@compiled_fast()
def _norm_rows(weights: Array, cursor: int, x: Array, y: Array) -> int:
    """`layer_norm` for each row of x and y."""
    after = cursor
    for row in range(len(x)):
        after = layer_norm(weights, cursor, x[row], y[row])
    return after


@compiled_fast()
def _remember_keys(parts: Array, turn: Array, start: int, keys: Array, values: Array) -> None:
    """Rotate queries and keys of K tokens, and write keys and values to the slots from `start`.

    parts: (K, 3, H, w) queries, keys and values; queries are scaled. turn: (2, w / 2) cos and sin,
    or (2, 0) for no rotation. keys: (H, w, S); values: (H, S, w).
    """
    tokens, _, heads, width = parts.shape
    half = turn.shape[1]
    scale = np.float32(1.0 / math.sqrt(width))
    for token in range(tokens):
        for head in range(heads):
            for which in range(2):
                x = parts[token, which, head]
                for c in range(half):
                    a = x[c]
                    b = x[half + c]
                    x[c] = a * turn[0, c] - b * turn[1, c]
                    x[half + c] = b * turn[0, c] + a * turn[1, c]
            for c in range(width):
                parts[token, 0, head, c] *= scale
                keys[head, c, start + token] = parts[token, 1, head, c]
                values[head, start + token, c] = parts[token, 2, head, c]


@compiled_fast()
def _attend(
    query: Array, keys: Array, values: Array, hidden: Array, share: Array, y: Array
) -> None:
    """Attention of one token: query (H, w) -> y (d,). hidden: (S,) added to scores, 0 or -inf."""
    heads, width = query.shape
    for head in range(heads):
        share[:] = hidden
        product(keys[head], query[head], share)
        largest = np.float32(-np.inf)
        total = np.float32(0.0)
        for s in range(share.size):
            largest = max(largest, share[s])
        for s in range(share.size):
            share[s] = math.exp(share[s] - largest)
            total += share[s]
        pooled = y[head * width : (head + 1) * width]
        pooled[:] = np.float32(0.0)
        product(values[head], share, pooled)
        for c in range(width):
            pooled[c] /= total


@compiled_fast()
def _hide(slot: int, age: int, hidden: Array) -> None:
    """Hide from each of K tokens, (K, S), what is older than `age` steps and later in its step."""
    tokens, slots = hidden.shape
    steps = slots // tokens
    for step in range(steps):
        lag = slot - step + (steps if step > slot else 0)
        for key in range(tokens):
            for token in range(tokens):
                seen = 0 < lag < age or (lag == 0 and key <= token)
                hidden[token, step * tokens + key] = np.float32(0.0 if seen else -np.inf)


@compiled_fast(nogil=True, error_model="numpy")
def transformer_step(
    obs: Array,
    condition: Array,
    network: tuple[Array, Array, Array, Array, Array, bool],
    state: tuple[Array, Array, Array],
    clock: int,
    action: Array,
    first: int,
    last: int,
) -> None:
    """One control step as `fcnet_step`; for `network` and `state` see the module."""
    source, weights, coefficients, bounds, frequencies, embedding_norm = network
    layers, heads, width, slots = state[0].shape[1:]
    k = len(bounds) - 1
    d = heads * width
    slot = clock % (slots // k)
    angles = clock * frequencies
    turn = np.empty((2, angles.size), np.float32)
    turn[0], turn[1] = np.cos(angles), np.sin(angles)
    token = np.empty(source.size, np.float32)
    rows = np.empty((3, k, d), np.float32)
    hidden = np.empty((k, slots), np.float32)
    share = np.empty(slots, np.float32)
    qkv = np.empty((k, 3 * d), np.float32)
    wide = np.empty((k, 4 * d), np.float32)
    parts = qkv.reshape((k, 3, heads, width))
    scratch = np.empty((2, 4 * d), np.float32)
    x = rows[0]
    y = rows[1]
    pooled = rows[2]
    for robot in range(first, last):
        keys = state[0][robot]
        values = state[1][robot]
        ages = state[2]
        ages[robot] += 1
        _hide(slot, ages[robot], hidden)
        cursor = read_token(source, weights, obs[robot], condition[robot], token)
        for j in range(k):
            cursor = affine(weights, cursor, token[bounds[j] : bounds[j + 1]], x[j])
            if embedding_norm:
                cursor = layer_norm(weights, cursor, x[j], x[j])
        for layer in range(layers):
            cursor = _norm_rows(weights, cursor, x, y)
            cursor = affine_rows(weights, cursor, y, qkv)
            _remember_keys(parts, turn, slot * k, keys[layer], values[layer])
            for j in range(k):
                _attend(parts[j, 0], keys[layer], values[layer], hidden[j], share, pooled[j])
            cursor = affine_rows(weights, cursor, pooled, y)
            for j in range(k):
                add(x[j], y[j])
            cursor = _norm_rows(weights, cursor, x, y)
            cursor = affine_rows(weights, cursor, y, wide)
            for j in range(k):
                gelu(coefficients, wide[j], scratch[0], scratch[1])
            cursor = affine_rows(weights, cursor, wide, y)
            for j in range(k):
                add(x[j], y[j])
        cursor = layer_norm(weights, cursor, x[k - 1], y[0])
        cursor = affine(weights, cursor, y[0], action[robot])
        restore(weights, cursor, action[robot])
