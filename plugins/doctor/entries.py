"""The commands of this plug-in, by the names of their entry points; loads none of their work."""

from gaitforge.pipeline.cli.parsing.entries import CommandEntry

_COMMANDS = "gaitforge.plugins.doctor.commands"

DOCTOR = CommandEntry(
    "look for faults in a store or other data; exit 1 for errors",
    f"{_COMMANDS}:doctor_command",
    group="look at data",
    after="card",
)
CUT = CommandEntry(
    "write a new store whose episodes are cut where the doctor sees several saved as one",
    f"{_COMMANDS}:cut",
)
