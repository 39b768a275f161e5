"""The code that the user named: the only code that a text in data may stand for.

A store, a foreign file, a checkpoint, a record or a plan may hold the name of code: "module:name",
or a path that somebody's environment imports. Such a text is imported only if the user's command
line has the same text, as an option's value or by `--trust TEXT`; a Python program calls `trust`.
Names in registries and installed packages' entry points need nothing.

The texts are kept in an environment variable, so that all processes which this one starts have
them: workers, processes of torchrun, commands. A user may set it, too.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

VARIABLE = "GAITFORGE_TRUST"
"""Environment variable with the texts, separated by spaces or commas."""

_SEPARATORS = re.compile(r"[\s,;=\"'()\[\]{}]+")


class UntrustedCodeError(ValueError):
    """Data names code that the user did not name.

    Attributes:
        text: the code's name; place: what names it, empty where that is unknown.
    """

    def __init__(self, text: str, place: object = "") -> None:
        self.text, self.place = text, str(place)
        super().__init__(text, self.place)

    def __str__(self) -> str:
        """One line: which file names which code, and what to do."""
        owner = self.place or "what this command reads"
        words = " ".join(f"--trust {piece}" for piece in pieces(self.text)) or "--trust"
        return (
            f"{owner} names the code {self.text!r}, and the command line does not: nothing of it "
            f"was run; add {words} if you trust it"
        )


def pieces(text: str) -> list[str]:
    """The parts of a text that can name code or a file, such as "my_env:make" and "my/scene.xml".

    These have a colon or a slash, or a dot beside a letter. Numbers and plain words are none.
    """
    return [part for part in _SEPARATORS.split(text) if _names_something(part)]


def _names_something(part: str) -> bool:
    if "/" in part or "\\" in part:
        return True
    return (":" in part or "." in part) and any(c.isalpha() or c == "_" for c in part)


def trusted() -> list[str]:
    """The texts that this process trusts."""
    return pieces(os.environ.get(VARIABLE, ""))


def trust(*texts: str) -> None:
    """Trust the code that these texts name, in this process and those that it starts.

    For the user's own words only, never for what was read from a file.
    """
    new = [part for text in texts for part in pieces(text)]
    os.environ[VARIABLE] = " ".join(dict.fromkeys([*trusted(), *new]))


@contextmanager
def trusting(texts: Iterable[str]) -> Iterator[None]:
    """Trust these texts, too, for the time of the block."""
    before = os.environ.get(VARIABLE)
    trust(*texts)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def is_trusted(text: str) -> bool:
    """Whether a text names no code or file, or only what the user named."""
    return set(pieces(text)) <= set(trusted())


def check_trusted(text: str) -> None:
    """Raise UntrustedCodeError for a name of code, "module:name", that the user did not name."""
    if text not in trusted():
        raise UntrustedCodeError(text)


@contextmanager
def naming(place: object) -> Iterator[None]:
    """Say in an UntrustedCodeError of the block what names the code."""
    try:
        yield
    except UntrustedCodeError as error:
        raise UntrustedCodeError(error.text, error.place or place) from None
