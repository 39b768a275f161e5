"""`gaitforge sim`: list simulators; plug-ins bring further actions."""

import argparse
from dataclasses import asdict

from gaitforge.collectors.simulators import backend_names
from gaitforge.pipeline.cli.parsing.options import ISAACGYM_PYTHON, JSON
from gaitforge.pipeline.cli.parsing.parser import actions, command
from gaitforge.pipeline.cli.parsing.values import uses
from gaitforge.pipeline.terminal import show


@command("gaitforge sim list --json", ISAACGYM_PYTHON, JSON)
def _list(arguments: argparse.Namespace) -> None:
    """List the simulators, and what the unavailable ones lack."""
    uses(arguments, "isaacgym_python")
    from gaitforge.collectors.physics import availability

    show([asdict(availability(name)) for name in backend_names()], arguments.json)


sim_command = actions("sim", "gaitforge sim list --json", _list)
