"""Commands that plug-ins and other packages add to the command line, by entry points.

    [project.entry-points."gaitforge.commands"]
    walk = "walkers.entries:COMMAND"
    "dataset.limp" = "walkers.entries:LIMP"

The second one is `gaitforge dataset limp`, an action of a command that is there.
A `CommandEntry` lies in a module that is quick to import: `gaitforge --help` reads all of them.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import NoReturn, cast

from gaitforge.common.errors import DatasetError
from gaitforge.common.extensions import extension, extension_names

KIND = "command"
"""Of extensions: the group of entry points is gaitforge.commands."""
OTHERS = "others"
"""The heading of commands that name none."""


@dataclass(frozen=True)
class Command:
    """A command: its name, its help, and a function that adds its options to a parser.

    has_actions: whether it has only commands of its own, such as `dataset merge`.
    """

    name: str
    what: str
    fill: Callable[[argparse.ArgumentParser], None]
    has_actions: bool = False


@dataclass(frozen=True)
class CommandEntry:
    """One command.

    Attributes:
        summary: its line in `gaitforge --help`.
        path: "module:name" of its `Command`; the module loads when the command is used.
        group: its heading in `gaitforge --help`, e.g. "make data"; an action needs none.
        after: the command that it follows there; empty for the end, where commands are sorted.
    """

    summary: str
    path: str
    group: str = field(default=OTHERS, kw_only=True)
    after: str = field(default="", kw_only=True)

    def load(self) -> Command:
        """The command with its options."""
        module, _, name = self.path.partition(":")
        return cast(Command, getattr(import_module(module), name))

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options to a parser."""
        self.load().fill(parser)


def added_commands() -> list[str]:
    """Names of the commands of plug-ins and other packages, sorted; without actions."""
    return [name for name in extension_names(KIND) if "." not in name]


def added_actions(command: str) -> dict[str, CommandEntry]:
    """Action -> what plug-ins and other packages add to a command, sorted."""
    start = f"{command}."
    names = [name for name in extension_names(KIND) if name.startswith(start)]
    return {name.removeprefix(start): added_command(name) for name in names}


def added_command(name: str) -> CommandEntry:
    """A plug-in's or another package's command; a broken one says why when it is used."""
    try:
        return _loaded(name)
    except DatasetError as error:
        return _BrokenEntry(f"cannot be loaded: {error}", "", error=error)


def _loaded(name: str) -> CommandEntry:
    packaged = extension(KIND, name)
    if packaged is None:
        raise DatasetError(f"no package has the command '{name}'")
    entry = packaged.load()
    if not isinstance(entry, CommandEntry):
        raise DatasetError(f"{packaged.where} is no CommandEntry: {packaged.path}")
    return entry


@dataclass(frozen=True)
class _BrokenEntry(CommandEntry):
    """A command that cannot be loaded: the others still work, and help says why it does not."""

    error: DatasetError

    def fill(self, parser: argparse.ArgumentParser) -> None:
        def refuse(*_: object) -> NoReturn:
            raise self.error

        # Argparse calls it when this command is asked for, whatever its options.
        parser.parse_known_args = refuse  # type: ignore[method-assign]
