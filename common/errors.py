"""Errors that a user can cause."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from unicodedata import category


class DatasetError(ValueError):
    """An invalid request or a damaged store; the one-line message says what is allowed."""


class StorageError(DatasetError):
    """A disk or object storage failure that may be temporary; the same call may succeed later."""


@contextmanager
def disk_failures(what: str, advice: str = "") -> Iterator[None]:
    """Turn an OSError into a DatasetError: what failed, the system's reason, and the advice."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"{what}: {error.strerror or error}{advice}") from error


@contextmanager
def failures(
    what: str, *kinds: type[Exception], error: Callable[[str], Exception] = DatasetError
) -> Iterator[None]:
    """Turn exceptions of `kinds`, by default DatasetErrors, into an `error`: "WHAT: why"."""
    named = kinds or (DatasetError,)
    try:
        yield
    except named as cause:
        raise error(f"{what}: {first_line(cause)}") from cause


def first_line(error: BaseException | str) -> str:
    """The first line of an error's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def printable(text: str) -> str:
    """Text in one line, in which line breaks and a terminal's control characters are escaped.

    Spaces of all kinds stay, such as those in "5 ± 2" that do not break.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or category(c) == "Zs" else ascii(c)[1:-1] for c in text)


def listed(values: Iterable[object], limit: int = 24) -> str:
    """Join `values` for a message, at most `limit` of them."""
    names = [str(value) for value in values]
    if not names:
        return "(none)"
    extra = f", … ({len(names)} in all)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + extra


def nearest(name: str, names: Iterable[str]) -> str:
    """The name most like a mistyped one, whatever its case; "" if none is like it."""
    by_lower_case = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), by_lower_case, 1)
    return by_lower_case[close[0]] if close else ""


def names_allowed(name: object, names: Iterable[str], further: str = "", limit: int = 200) -> str:
    """The end of a message on an unknown name: the nearest name, then those that are allowed.

    Three names or fewer are seen at a glance, and none of them is guessed.

    Args:
        name: as a file or a user gives it, which may be no text.
        further: what else is allowed, in words, such as "or module:Config".
        limit: most names to list.
    """
    known = list(names)
    close = nearest(str(name), known) if len(known) > 3 else ""
    question = f"did you mean '{close}'? " if close else ""
    ending = f", {further}" if further else ""
    return f"{question}allowed: {listed(known, limit)}{ending}"


def install_extra(extra: str) -> str:
    """The command that installs an optional extra of the project, for a message."""
    if (Path(__file__).resolve().parents[1] / "Makefile").is_file():
        return f"run .venv/bin/python -m pip install -e '.[{extra}]' in gaitforge's folder"
    wheel = f"gaitforge-{version('gaitforge')}-py3-none-any.whl"
    return f"run {sys.executable} -m pip install '{wheel}[{extra}]' in the wheel's folder"


def missing_package(user: str, packages: str | Sequence[str], extra: str) -> str:
    """A message: what needs packages that are not installed, and the command that installs them."""
    names = [packages] if isinstance(packages, str) else packages
    last_two = " and ".join(names[-2:])
    listing = ", ".join([*names[:-2], last_two])
    verb = "is" if len(names) == 1 else "are"
    return f"{user} needs {listing}, which {verb} not installed: {install_extra(extra)}"


def amount(number: int, noun: str) -> str:
    """A number and its noun for a message: "1 part", "1,000 parts", "2 policies"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
