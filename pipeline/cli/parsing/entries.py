"""Commands that plug-ins and other packages add to the command line, by entry points.

    [project.entry-points."gaitforge.commands"]
    humanoid = "gaitforge.plugins.mocapact.entries:COMMAND"

A `CommandEntry` lies in a module that is quick to import: `gaitforge --help` reads all of them.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from gaitforge.common.errors import DatasetError
from gaitforge.common.extensions import extension, extension_names

if TYPE_CHECKING:
    from gaitforge.pipeline.cli.parsing.parser import Command

KIND = "command"
"""Of extensions: the group of entry points is gaitforge.commands."""


@dataclass(frozen=True)
class CommandEntry:
    """One command.

    Attributes:
        summary: its line in `gaitforge --help`.
        path: "module:name" of its `Command`; the module loads when the command is used.
    """

    summary: str
    path: str

    def load(self) -> "Command":
        """The command with its options."""
        module, _, name = self.path.partition(":")
        return cast("Command", getattr(import_module(module), name))


def added_commands() -> list[str]:
    """Names of the commands of plug-ins and other packages, sorted."""
    return extension_names(KIND)


def added_command(name: str) -> CommandEntry:
    """A plug-in's or another package's command; a broken one says why when it is used."""
    try:
        return _loaded(name)
    except DatasetError as error:
        return _BrokenEntry(f"cannot be loaded: {error}", "", error)


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

    def load(self) -> "Command":
        raise self.error
