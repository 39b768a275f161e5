"""The code that a command line names: it may be called also where data name it.

See `common.trust`. Only a command line is the user's own word. A form of Prefect, or the
words in a job's file, give no trust.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from gaitforge.pipeline.cli.parsing.runners import runner_arguments

_NO_NAMES = {"words", "command", "action", "run", "begin", "trust", "out", "store"}
"""Arguments that are no option's value, and places of results."""


def named_code(arguments: argparse.Namespace) -> list[str]:
    """The values of options that name code, or a setting that may be a file or code.

    `trust` tells which parts of them name something. Paths name none.
    """
    values = vars(arguments)
    left_out = _NO_NAMES | runner_arguments()
    texts = [text for name in values.keys() - left_out for text in _texts(values[name])]
    # Of `expert import` it is a flag, which allows a program of the user's own and names none.
    named = _texts(values.get("trust"))
    return [*named, *sorted(text for text in texts if _may_name_code(text))]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str | Path):  # a policy may stand where folders do
        yield str(value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _may_name_code(text: str) -> bool:
    """Whether a value is a setting or has a colon; addresses and existing files have no name."""
    if "=" in text:
        return True
    return ":" in text and "://" not in text and not Path(text).exists()
