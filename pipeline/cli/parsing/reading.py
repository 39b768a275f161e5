"""Options that a command line gives and nothing reads: these are refused.

An option may matter in one of a command's modes only: with one task, without a plan's file, of one
kind of policy. No list says which. The arguments note what is read, and what was given but not read
by the time that the work begins is refused. So a command reads an option where it uses it, and
nowhere else.
"""

import argparse
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gaitforge.common.errors import listed

GIVEN = "given"
"""The argument that names what the command line gives: argument -> options, see `Parser`."""
_WORDS = ("command", "action", "trust")
"""Arguments that the program itself reads, before any command."""


class Arguments(argparse.Namespace):
    """Arguments of a command that note which of them were read."""

    def __init__(self, values: Mapping[str, Any]):
        super().__init__(**values)
        self._read: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        """An argument; it counts as read from now on."""
        value = super().__getattribute__(name)
        if not name.startswith("_"):
            self._read.add(name)
        return value


def noting(arguments: argparse.Namespace) -> Arguments:
    """The same arguments, noting what is read; themselves if they do so already."""
    return arguments if isinstance(arguments, Arguments) else Arguments(vars(arguments))


def uses(arguments: argparse.Namespace, *names: str) -> None:
    """Count arguments as read; all of them without names.

    For options that are read later than the work begins, or that act as they are parsed.
    """
    for name in names or vars(arguments):
        getattr(arguments, name)


def of_simulator(arguments: argparse.Namespace, *plans: object) -> None:
    """Count `--isaacgym-python` as read if a plan is simulated there; it acts as it is parsed."""
    if any(getattr(plan, "sim", "") == "isaacgym" for plan in plans):
        uses(arguments, "isaacgym_python")


class ChosenValues(Mapping[str, Any]):
    """Arguments that are not None, by other names; each counts as read when it is looked up.

    Args:
        names: a value's name -> its argument; arguments that the command lacks are left out.
        ready: further values, which are read already.
    """

    def __init__(self, arguments: argparse.Namespace, names: Mapping[str, str], **ready: Any):
        values = vars(arguments)
        self._arguments = arguments
        self._names = {key: name for key, name in names.items() if values.get(name) is not None}
        self._ready = ready

    def __getitem__(self, key: str) -> Any:
        return (
            self._ready[key] if key in self._ready else getattr(self._arguments, self._names[key])
        )

    def __contains__(self, key: object) -> bool:
        """Whether it is chosen; this does not read it."""
        return key in self._names or key in self._ready

    def __iter__(self) -> Iterator[str]:
        yield from self._names
        yield from self._ready

    def __len__(self) -> int:
        return len(self._names) + len(self._ready)


def refuse_unread(arguments: Arguments, besides: Collection[str] = ()) -> None:
    """Raise ValueError for options that were given and that nothing has read.

    Args:
        besides: arguments that others read.
    """
    given_options = vars(arguments).get(GIVEN, {})
    used = {*arguments._read, *besides, *_WORDS}
    unread = [
        option for name, options in given_options.items() if name not in used for option in options
    ]
    if unread:
        effect = "has no effect" if len(unread) == 1 else "have no effect"
        used_options = [
            o for name, options in given_options.items() if name in used for o in options
        ]
        flags = [option for option in used_options if option.startswith("-")]
        advice = f" beside {listed(flags)}; give only what goes together" if flags else " here"
        raise ValueError(f"{listed(unread)} {effect}{advice}")
