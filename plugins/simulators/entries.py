"""What this plug-in brings, by the names of its entry points; loads none of its work."""

from gaitforge.pipeline.cli.parsing.entries import CommandEntry

SIM_CHECK = CommandEntry(
    "run the physics contract's checks on an installed simulator",
    "gaitforge.plugins.simulators.commands:sim_check",
)
