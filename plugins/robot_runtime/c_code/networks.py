"""What the C sources of each network need beside its weights: sizes, tables, and memory."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gaitforge.learners.control.control import StepProgram
from gaitforge.plugins.robot_runtime.c_code.tables import float_literal, table


@dataclass(frozen=True)
class NetworkCode:
    """A network's part of policy.c.

    Attributes:
        sources: files of `source/` with its loops, in their order.
        sizes: macros that they read, see `tables.defines`.
        tables: constant arrays that they read, as C.
        memory: members of the state's memory as C: (ctype, name, numbers).
        reach: steps before the current one that can change its action.
        weights: further weights, after those of the program; the macro PAIR_BIAS has their place.
    """

    sources: tuple[str, ...]
    sizes: dict[str, object]
    tables: str
    memory: tuple[tuple[str, str, int], ...]
    reach: int
    weights: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))


def network_code(program: StepProgram) -> NetworkCode:
    """The part of policy.c for a network's program."""
    return _WRITERS[program.kernel.__name__](program)


def _gelu(coefficients: np.ndarray) -> tuple[dict[str, object], str]:
    """Macros and table of GELU's polynomial, see `compiled_kernels.gelu_polynomial`."""
    sizes = {"USES_GELU": True, "GELU_LIMIT": "5.5f", "GELU_COEFFICIENTS": len(coefficients)}
    return sizes, table("float", "gelu_coefficients", coefficients)


def _fcnet(program: StepProgram) -> NetworkCode:
    turn, coefficients, decoder = program.constants
    _, steps, layers, hidden = program.state[0].shape
    modes = turn.shape[1]
    gelu_sizes, gelu_table = _gelu(coefficients)
    sizes = {
        "USES_NORM": True,
        "STEPS": steps,
        "LAYERS": layers,
        "HIDDEN": hidden,
        "MODES": modes,
        "DECODER": decoder,
        **gelu_sizes,
    }
    turns = table("double", "mode_cosines", turn[0]) + table("double", "mode_sines", turn[1])
    memory = (
        ("double", "modes", layers * 2 * modes * hidden),
        ("float", "ring", steps * layers * hidden),
    )
    return NetworkCode(("fcnet.c",), sizes, gelu_table + turns, memory, layers * (steps - 1))


def _memory(program: StepProgram, waves: tuple[np.ndarray, np.ndarray]) -> NetworkCode:
    """The memory of the last steps, stacked or spectral."""
    _, steps, width = program.state[0].shape
    enter, rotation = waves
    memory: tuple[tuple[str, str, int], ...] = (("float", "ring", steps * width),)
    sizes: dict[str, object] = {"STEPS": steps}
    tables = ""
    if len(enter):
        sizes |= {"WAVES": len(enter)}
        tables = table("double", "wave_enter", enter) + table("double", "wave_rotation", rotation)
        memory = (("double", "sums", len(enter) * width), *memory)
    return NetworkCode(("memory.c",), sizes, tables, memory, steps - 1)


def _body_sizes(nodes: np.ndarray, count: int, embed: int) -> tuple[dict[str, object], str]:
    """Macros and table of the body's nodes."""
    return {"NODES": count, "EMBED": embed}, table("int32_t", "token_nodes", nodes)


def _dense(program: StepProgram) -> NetworkCode:
    waves, nodes, coefficients, layers, (numbers, count, embed) = program.constants
    remembered = _memory(program, waves)
    sizes = {**remembered.sizes, "NUMBERS": numbers, "LAYERS": len(layers)}
    sizes["WIDEST"] = layers[:, 0].max()
    tables = remembered.tables + table("int32_t", "layer_widths", layers[:, 0])
    tables += table("int32_t", "layer_active", layers[:, 1])
    parts = [_gelu(coefficients)] if len(coefficients) else []
    parts += [_body_sizes(nodes, count, embed)] if len(nodes) else []
    for part_sizes, part_tables in parts:
        sizes |= part_sizes
        tables += part_tables
    sources = (*remembered.sources, "dense.c")
    return NetworkCode(sources, sizes, tables, remembered.memory, remembered.reach)


def _bot(program: StepProgram) -> NetworkCode:
    waves, nodes, action_nodes, starts, columns, biases, sizes = program.constants
    embed, heads, feedforward, numbers = sizes
    count = starts.shape[1] - 1
    remembered = _memory(program, waves)
    body_sizes, body_table = _body_sizes(nodes, count, embed)
    chosen, unique_starts, unique_columns = _unique_masks(starts, columns)
    sizes = {
        **remembered.sizes,
        **body_sizes,
        "USES_NORM": True,
        "USES_SOFTMAX": True,
        "NUMBERS": numbers,
        "LAYERS": len(starts),
        "HEADS": heads,
        "FEEDFORWARD": feedforward,
        "SCORE_SCALE": float_literal(1.0 / math.sqrt(embed // heads)),
    }
    tables = remembered.tables + body_table
    tables += table("int32_t", "action_nodes", action_nodes)
    tables += table("int32_t", "layer_masks", chosen)
    tables += table("int32_t", "mask_starts", unique_starts)
    tables += table("int32_t", "mask_columns", unique_columns)
    return NetworkCode(
        (*remembered.sources, "bot.c"),
        sizes,
        tables,
        remembered.memory,
        remembered.reach,
        biases[: count * count],  # all layers have the same
    )


def _unique_masks(
    starts: np.ndarray, columns: np.ndarray
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Each layer's mask by number; starts (masks x (V + 1)) and columns of the different masks."""
    chosen: list[int] = []
    known: list[tuple[np.ndarray, np.ndarray]] = []
    for layer in starts:
        cols = columns[layer[0] : layer[-1]]
        degrees = layer - layer[0]
        for number, (other_degrees, known_cols) in enumerate(known):
            if np.array_equal(degrees, other_degrees) and np.array_equal(cols, known_cols):
                chosen.append(number)
                break
        else:
            chosen.append(len(known))
            known.append((degrees, cols))
    places = np.cumsum([0, *(len(cols) for _, cols in known)])
    unique_starts = [degrees + place for (degrees, _), place in zip(known, places, strict=False)]
    return (
        chosen,
        np.concatenate(unique_starts),
        np.concatenate([cols for _, cols in known]),
    )


def _transformer(program: StepProgram) -> NetworkCode:
    coefficients, bounds, frequencies, has_norm = program.constants
    _, layers, heads, width, slots = program.state[0].shape
    parts = len(bounds) - 1
    steps = slots // parts
    gelu_sizes, gelu_table = _gelu(coefficients)
    sizes = {
        "USES_NORM": True,
        "USES_SOFTMAX": True,
        "USES_ANGLES": len(frequencies) > 0,
        "EMBEDDING_NORM": bool(has_norm),
        "STEPS": steps,
        "PARTS": parts,
        "LAYERS": layers,
        "HIDDEN": heads * width,
        "HEADS": heads,
        "PAIRS": len(frequencies),
        "SCORE_SCALE": float_literal(1.0 / math.sqrt(width)),
        **gelu_sizes,
    }
    tables = gelu_table + table("int32_t", "part_starts", bounds)
    if len(frequencies):
        tables += table("double", "rotation_frequencies", frequencies)
    cache = layers * heads * width * slots
    memory = (("int64_t", "age", 0), ("float", "keys", cache), ("float", "values", cache))
    return NetworkCode(("transformer.c",), sizes, tables, memory, layers * (steps - 1))


_WRITERS: dict[str, Callable[[Any], NetworkCode]] = {
    "fcnet_step": _fcnet,
    "dense_step": _dense,
    "bot_step": _bot,
    "transformer_step": _transformer,
}
