"""The commands of this plug-in, by the names of their entry points; loads none of their work."""

from gaitforge.pipeline.cli.parsing.entries import CommandEntry

_COMMANDS = "gaitforge.plugins.what_if.commands"

DERIVE = CommandEntry(
    "add a field to stored episodes by exact replay",
    f"{_COMMANDS}:derive_command",
    group="edit data",
)
COUNTERFACTUAL = CommandEntry(
    "simulate stored episodes again with one thing changed",
    f"{_COMMANDS}:counterfactual_command",
    group="make data",
)
RELABEL = CommandEntry(
    "give the present version a new reward, computed from stored fields; `return` follows",
    f"{_COMMANDS}:relabel",
)
