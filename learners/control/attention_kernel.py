"""The compiled control step of the Transformer and the Decision Transformer, see `CompiledStep`.

Legend: N robots, D token, A action, K tokens a step, L layers, n context length, S = n x K slots of
a layer's ring, H heads, w channels of a head, d = H x w.

network: `source` and weights as in `fcnet_step`; `gelu_polynomial`; (K + 1,) bounds of the parts of
a token, each embedded as a token of its own; (w / 2,) rad per step. state: (N, L, H, w, S) rotated
keys; (N, L, H, S, w) values; (N,) steps of the episode. clock: steps so far; only its differences
matter.
"""

import math

import numpy as np

from gaitforge.learners.control.compiled_kernels import (
    Array,
    add,
    affine,
    affine_rows,
    gelu,
    layer_norm,
    product,
    read_token,
    restore,
)
from gaitforge.learners.fast_kernels import compiled


@compiled()
def _norm_rows(weights: Array, cursor: int, x: Array, y: Array) -> int:
    """`layer_norm` for each row of x and y."""
    after = cursor
    for row in range(len(x)):
        after = layer_norm(weights, cursor, x[row], y[row])
    return after


@compiled()
def _remember(parts: Array, turn: Array, start: int, keys: Array, values: Array) -> None:
    """Rotate queries and keys of K tokens, and write keys and values to the slots from `start`.

    parts: (K, 3, H, w) queries, keys and values; queries are scaled. turn: (2, w / 2) cos and sin.
    keys: (H, w, S); values: (H, S, w).
    """
    tokens, _, heads, width = parts.shape
    half = width // 2
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


@compiled()
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


@compiled()
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


@compiled(nogil=True, error_model="numpy")
def transformer_step(
    obs: Array,
    condition: Array,
    network: tuple[Array, Array, Array, Array, Array],
    state: tuple[Array, Array, Array],
    clock: int,
    action: Array,
    first: int,
    last: int,
) -> None:
    """One control step as `fcnet_step`; for `network` and `state` see the module."""
    source, weights, coefficients, bounds, frequencies = network
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
            if k > 1:
                cursor = layer_norm(weights, cursor, x[j], x[j])
        for layer in range(layers):
            cursor = _norm_rows(weights, cursor, x, y)
            cursor = affine_rows(weights, cursor, y, qkv)
            _remember(parts, turn, slot * k, keys[layer], values[layer])
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
