"""Pieces that the parsers of all commands share: types of arguments, and common options."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from collectors.simulators import BACKENDS, check_backend

WRONG_INPUT = 2


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(WRONG_INPUT)


def names(text: str) -> tuple[str, ...]:
    """Comma-separated names."""
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def numbers(text: str) -> tuple[int, ...]:
    """Comma-separated numbers and ranges: 0,2,5-9."""
    found: list[int] = []
    for part in names(text):
        low, separator, high = part.partition("-")
        try:
            found += range(int(low), int(high) + 1) if separator else [int(low)]
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not a list like 0,2,5-9") from None
    return tuple(found)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"needs a whole number of at least 1, not '{text}'")
    return value


def whole(text: str) -> int:
    """A whole number of at least 0."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"needs a whole number of at least 0, not '{text}'")
    return value


def command(commands: argparse._SubParsersAction, name: str, what: str, example: str) -> Parser:
    """Add a command with its help and an example."""
    return commands.add_parser(
        name,
        help=what,
        description=what[0].upper() + what[1:] + ".",
        epilog=f"example:  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_settings(parser: argparse._ActionsContainer, example: str) -> None:
    """`--set NAME=VALUE`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help=f"change any setting of the plan, e.g. {example}; may be repeated",
    )


def add_robot_choice(parser: argparse.ArgumentParser) -> None:
    """`--robot X` is `--set robot=X`."""
    parser.add_argument(
        "--robot",
        action="append",
        default=[],
        metavar="ROBOT",
        type=lambda robot: f"robot={robot}",
        dest="settings",
        help="a shipped robot's name, or the path of one's own (see gaitforge robot check)",
    )


def add_cells(parser: argparse._ActionsContainer) -> None:
    """`--terrain`, `--skill` and `--level`."""
    parser.add_argument("--terrain", type=names, help="terrains, comma-separated")
    parser.add_argument("--skill", type=names, help="skills, comma-separated")
    parser.add_argument("--level", type=numbers, help="terrain levels, e.g. 0,2,5-9")


def add_store(parser: argparse.ArgumentParser) -> None:
    """The store that a command is on: a folder or an address."""
    parser.add_argument("store", type=store_address, help="folder, or s3://bucket/prefix")


def add_where(parser: argparse._ActionsContainer) -> None:
    """`--where`."""
    parser.add_argument("--where", help="a boolean SQL expression over the catalog's columns")


def add_simulation(parser: argparse.ArgumentParser) -> None:
    """`--robots`, `--seed` and `--threads`: what a simulation on many robots runs with."""
    parser.add_argument("--robots", type=positive, help="simulated at once")
    parser.add_argument("--seed", type=whole, help="of everything random")
    parser.add_argument("--threads", type=positive, help="that step the simulator")


def simulator(text: str) -> str:
    """A physics back end."""
    try:
        return check_backend(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_sim_choice(parser: argparse.ArgumentParser) -> None:
    """`--sim` and what a simulator needs to know."""
    parser.add_argument(
        "--sim",
        type=simulator,
        choices=tuple(BACKENDS),
        metavar="NAME",
        help=f"simulator: {', '.join(BACKENDS)} (see gaitforge sim list)",
    )
    add_isaacgym_python(parser)


def add_isaacgym_python(parser: argparse.ArgumentParser) -> None:
    """`--isaacgym-python`."""
    parser.add_argument(
        "--isaacgym-python",
        action=_IsaacGymPython,
        metavar="PATH",
        help="the Python 3.6 to 3.8 that has Isaac Gym (default: $GAITFORGE_ISAACGYM_PYTHON)",
    )


class _IsaacGymPython(argparse.Action):
    """Leaves the interpreter in the environment, where worker processes look for it too."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        from collectors.physics.isaacgym.process import PYTHON_VARIABLE  # inside: NumPy is slow

        python = str(values)
        if os.sep not in python:  # a command, as a shell would find it
            python = shutil.which(python) or python
        os.environ[PYTHON_VARIABLE] = str(Path(python).expanduser().absolute())


def add_expert_choice(parser: argparse.ArgumentParser) -> None:
    """`--expert`."""
    parser.add_argument("--expert", help="a shipped expert's name, or its .safetensors file")


def add_grid(parser: argparse.ArgumentParser) -> None:
    """What an evaluation runs on."""
    add_cells(parser)
    parser.add_argument("--episodes", type=positive, help="episodes a cell")
    parser.add_argument("--seed", type=whole, help="of the held-out episodes")
    parser.add_argument("--threads", type=positive, help="that step the simulator")
    add_settings(parser, "robots=64")
    add_json(parser)


def store_address(text: str) -> Path | str:
    """A store's folder, or `s3://bucket/prefix`."""
    return text if text.startswith("s3:/") else Path(text)
