"""Numbers, names and texts as C source.

Names of robots, joints and fields come from files, so nothing but letters, digits and a few marks
reaches the C code unchanged: a file cannot bring code of its own.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np

_A_LINE = 8
_PLAIN = re.compile(r"[A-Za-z0-9 _.,:;()\[\]/+-]")
_LARGEST = np.finfo(np.float32).max


def float_literal(value: float) -> str:
    """A float32 as a C literal that gives the same bits; infinity is the largest number."""
    return _literals("float", np.array([value]))[0]


def double_literal(value: float) -> str:
    """A finite float64 as a C literal that gives the same bits."""
    return _literals("double", np.array([value]))[0]


def _literals(ctype: str, values: np.ndarray) -> list[str]:
    """Each number of (K,) as a literal: NumPy's shortest text that gives the same bits."""
    if ctype == "float":
        numbers = values.astype(np.float32).clip(-_LARGEST, _LARGEST)
        return [f"{text}f" for text in numbers.astype(str).tolist()]
    if ctype == "double":
        return values.astype(np.float64).astype(str).tolist()
    return values.astype(np.int64).astype(str).tolist()


def table(ctype: str, name: str, values: Iterable[float] | np.ndarray, static: bool = True) -> str:
    """A constant array of all values in their order."""
    texts = _literals(ctype, np.asarray(values).ravel())
    rows = [", ".join(texts[i : i + _A_LINE]) for i in range(0, len(texts), _A_LINE)]
    head = f"{'static ' if static else ''}const {ctype} {name}[{len(texts)}] = {{"
    return "\n".join([head, *(f"    {row}," for row in rows), "};", ""])


def text_literal(text: str) -> str:
    """A text as a C string; other than plain characters as octal numbers of their bytes."""
    parts = [
        letter if _PLAIN.match(letter) else "".join(f"\\{byte:03o}" for byte in letter.encode())
        for letter in text
    ]
    return '"' + "".join(parts) + '"'


def comment(text: str) -> str:
    """A text that can stand in a C comment, on one line."""
    plain = "".join(
        letter if _PLAIN.match(letter) or letter in "^%'*<>=" else " " for letter in text
    )
    return plain.replace("*/", "* /").replace("/*", "/ *")


def identifier(text: str) -> str:
    """A name in capitals, of letters, digits and underscores."""
    return re.sub(r"[^A-Z0-9]", "_", text.upper())


def defines(sizes: dict[str, object]) -> str:
    """A line for each macro; True defines one without a value."""
    lines = [
        f"#define {name}" + ("" if value is True else f" {value}")
        for name, value in sizes.items()
        if value is not None and value is not False
    ]
    return "\n".join(lines) + "\n"


def filled(template: str, holes: Mapping[str, str]) -> str:
    """A template with texts in place of @NAME@."""
    for name, text in holes.items():
        template = template.replace(f"@{name}@", text)
    return template
