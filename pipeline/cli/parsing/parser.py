"""Parsers of commands, decorators that make commands, and the options of several commands."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from gaitforge.collectors.simulators import BACKENDS
from gaitforge.flows.settings import override
from gaitforge.learners.training.objectives import OBJECTIVES
from gaitforge.pipeline.cli.parsing.entries import Command, added_actions
from gaitforge.pipeline.cli.parsing.reading import GIVEN, noting, refuse_unread
from gaitforge.pipeline.cli.parsing.values import (
    Number,
    experts,
    names,
    numbers,
    positive,
    simulator,
    store_address,
    whole,
)

WRONG_INPUT = 2

Handler = Callable[[argparse.Namespace], "int | Callable[[], object] | None"]
"""Does a command's work, or returns it as a function: where options matter in some modes only, so
that the others are refused before the work. An int is the exit code."""

Container = argparse._ActionsContainer
AddTo = Callable[[Container], object]
Option = str | Mapping[str, dict[str, Any]] | AddTo
Plan = TypeVar("Plan")


_METAVARS = {int: "N", float: "X", names: "NAME,NAME", numbers: "N,N-N", Path: "FOLDER"}
"""How help shows a value of a type."""


_GENERAL = ("help", "json", "trust")
"""Arguments of options that help shows below a command's own."""
RUNNERS_TITLE = "who does the work"
"""Title of the first group of the runners' options, which come last."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows what kind of value an option takes."""

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        if isinstance(action.type, Number):
            return "N"
        return _METAVARS.get(action.type, action.dest.upper())  # type: ignore[arg-type]

    def _get_default_metavar_for_positional(self, action: argparse.Action) -> str:
        return action.dest.upper()


class Parser(argparse.ArgumentParser):
    """A command's parser; its errors are one line."""

    def __init__(self, **more: Any):
        super().__init__(formatter_class=_Help, **more)
        self._given: dict[str, list[str]] = {}

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """See `argparse.ArgumentParser`; the argument `given` names the options that are there."""
        self._given = {}
        parsed, remaining = super().parse_known_args(args, namespace)
        setattr(parsed, GIVEN, {**getattr(parsed, GIVEN, {}), **self._given})
        return parsed, remaining

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse calls it for every option that it meets, and for positionals without a value too.
        names = action.option_strings[:1] or ([action.dest] if arg_strings else [])
        options = self._given.setdefault(action.dest, []) if names else []
        options += [name for name in names if name not in options]
        return super()._get_values(action, arg_strings)  # type: ignore[misc]

    def format_help(self) -> str:
        """The help: a short usage, arguments, own options, general ones, then the runners'."""
        needed = [action for action in self._actions if action.required]
        either = [group for group in self._mutually_exclusive_groups if group.required]
        for group in either:
            needed += group._group_actions
        further = argparse.Action([], "options", nargs="?", metavar="options")
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, [further, *needed], either)
        formatter.add_text(self.description)
        self.add_sections(formatter)
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def add_sections(self, formatter: argparse.HelpFormatter) -> None:
        """Add the arguments under their titles."""
        options = self._optionals._group_actions
        general = [action for action in options if action.dest in _GENERAL]
        sections = [(group.title, group._group_actions) for group in self._action_groups]
        titles = [title for title, _ in sections]
        end = titles.index(RUNNERS_TITLE) if RUNNERS_TITLE in titles else len(titles)
        sections.insert(end, ("general options", general))
        for title, actions in sections:
            formatter.start_section(title)
            formatter.add_arguments(a for a in actions if actions is general or a not in general)
            formatter.end_section()

    def error(self, message: str) -> NoReturn:
        """Exit with one line on standard error."""
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(WRONG_INPUT)


def command(example: str, *options: Option) -> Callable[[Handler], Command]:
    """Decorate a handler as a command with options; its docstring is the help."""

    def decorate(handler: Handler) -> Command:
        def run(arguments: argparse.Namespace) -> int | None:
            noted = noting(arguments)
            outcome = handler(noted)
            refuse_unread(noted)
            code = outcome() if callable(outcome) else outcome
            return code if isinstance(code, int) else None

        def fill(parser: argparse.ArgumentParser) -> None:
            add_options(parser, *options)
            parser.set_defaults(run=run)
            parser.epilog = f"example:  {example}"

        name = handler.__name__.strip("_").replace("_", "-")
        text = (handler.__doc__ or name).rstrip(".")  # `python -OO` drops docstrings
        return Command(name, f"{text[0].lower()}{text[1:]}", fill)

    return decorate


def actions(name: str, example: str, *commands: Command) -> Command:
    """A command that has only commands of its own, and those that plug-ins add to it.

    Args:
        name: as it is typed; the entry point "NAME.ACTION" adds a command.
    """

    def fill(parser: argparse.ArgumentParser) -> None:
        parser.epilog = f"example:  {example}"
        inner = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for subcommand in commands:
            subcommand.fill(add_command(inner, subcommand.name, subcommand.what))
        for action, entry in added_actions(name).items():
            if action not in inner.choices:  # no package replaces a command of ours
                entry.fill(add_command(inner, action, entry.summary))

    return Command(name, "", fill)


def add_command(commands: "argparse._SubParsersAction[Any]", name: str, what: str) -> Parser:
    """Add a command with its help."""
    return commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")


def add_options(parser: Container, *options: Option) -> None:
    """Add options: names of `SHARED` and `GROUPS` in a string, name -> `details`, or functions."""
    for entry in options:
        if isinstance(entry, str):
            listed = " ".join(GROUPS.get(name, name) for name in entry.split())
            add_options(parser, {name: SHARED[name] for name in listed.split()})
        elif isinstance(entry, Mapping):
            for name, keywords in entry.items():
                parser.add_argument(name, **keywords)
        else:
            entry(parser)


def option(name: str, *what: Any, **more: Any) -> AddTo:
    """An option with its help, type, default, and further arguments of `add_argument`."""
    return lambda parser: parser.add_argument(name, **details(*what, **more))


def flag(name: str, text: str) -> AddTo:
    """An option that is on or off."""
    return option(name, text, action="store_true")


def setting(example: str) -> AddTo:
    """The option `--set`, which changes any setting of a plan."""
    return option(
        "--set",
        f"change any setting of the plan, e.g. {example}; may be repeated, the last one of a "
        "name holds, also against other options",
        default=[],
        action="append",
        metavar="NAME=VALUE",
        dest="settings",
    )


def group(title: str, *options: Option) -> AddTo:
    """Options under a title of their own in the help."""
    return lambda parser: add_options(parser.add_argument_group(title), *options)


def option_values(arguments: argparse.Namespace, *names: str, **renamed: str) -> dict[str, Any]:
    """The named arguments that are not None, by their names, or by `field` of field=argument."""
    values = {name: getattr(arguments, name) for name in names}
    values |= {field: getattr(arguments, name) for field, name in renamed.items()}
    return {name: value for name, value in values.items() if value is not None}


def planned(plan: Plan, arguments: argparse.Namespace, *names: str, **renamed: str) -> Plan:
    """A plan with the `option_values` of the named arguments, then with every `--set`."""
    chosen: Any = plan
    return override(
        replace(chosen, **option_values(arguments, *names, **renamed)), arguments.settings
    )


def details(text: str, type: Any = None, default: Any = None, **more: Any) -> dict[str, Any]:
    """An option as `add_argument` takes it; its help says the default."""
    shown = f"{text} (default: %(default)s)" if default not in (None, "", [], ()) else text
    values = {"type": type, "default": default}
    return {"help": shown} | {k: v for k, v in values.items() if v is not None} | more


def _isaacgym_python(text: str) -> str:
    """An interpreter; also set as an environment variable, for worker processes."""
    from gaitforge.collectors.physics.isaacgym.process import PYTHON_VARIABLE  # brings Numba

    program = text if os.sep in text else shutil.which(text) or text  # a command, as in a shell
    os.environ[PYTHON_VARIABLE] = str(Path(program).expanduser().absolute())
    return program


CELL_FIELDS = {"terrains": "terrain", "skills": "skill", "levels": "level"}
"""Fields of the plans' grids -> arguments of the group CELLS, for `option_values`."""
GROUPS = {
    "CELLS": "--terrain --skill --level",
    "SIMULATOR": "--sim --isaacgym-python",
    "SIMULATION": "--robots --seed --threads",
}
"""Names for several options of `SHARED`."""

SHARED: dict[str, dict[str, Any]] = {
    "store": details("folder, or s3://bucket/prefix", store_address),
    "--json": details("print JSON instead of a table", action="store_true"),
    "--mix-versions": details(
        "let the store have parts of several versions of the simulator", action="store_true"
    ),
    "--with-recorded-versions": details(
        "use the MuJoCo that made the episodes: pip puts it into a folder of the cache",
        action="store_true",
    ),
    "--simulator-version": details(
        "only what this version of the simulator made", default="", metavar="VERSION"
    ),
    "--terrain": details("terrains, comma-separated", names),
    "--skill": details("skills, comma-separated", names),
    "--level": details("terrain levels, e.g. 0,2,5-9", numbers),
    "--where": details(
        "a boolean SQL expression over the catalog's columns, e.g. 'return > 6'",
        metavar="CONDITION",
    ),
    "--tag": details("a tagged version of the store (see gaitforge tag)", metavar="NAME"),
    "--selection": details("a selection that gaitforge query --save wrote", metavar="FILE"),
    "--model": details(
        "one of gaitforge models, or module:Config", default="fcnet", metavar="NAME"
    ),
    "--preset": details("size of the plan", default="demo", metavar="NAME"),
    "--processes": details("parallel simulators", positive, 1),
    "--share": details("of the stretches that the policy drives (default: 0.3)", float),
    "--stretch": details("control steps of a stretch (default: 12)", positive),
    "--expert": details(
        "a shipped expert, a .safetensors file, or a folder of expert import",
        experts,
        metavar="NAME",
    ),
    "--robot": details(
        "a shipped robot's name, or the path of your own (see gaitforge robot check); to evaluate "
        "on several, a list or a folder of robots' folders",
        lambda robot: f"robot={robot}",
        [],
        action="append",
        metavar="ROBOT",
        dest="settings",
    ),
    "--randomisation": details(
        "of the episodes: none, default, heavy, or a JSON file; single quantities by --set "
        "randomisation.friction=0.1:0.3, =0.2 or =none",
        lambda name: f"randomisation.preset={name}",
        [],
        action="append",
        metavar="NAME|FILE",
        dest="settings",
    ),
    "--sim": details(
        f"simulator: {', '.join(BACKENDS)} (see gaitforge sim list)",
        simulator,
        metavar="NAME",
    ),
    "--isaacgym-python": details(
        "the Python 3.6 to 3.8 that has Isaac Gym (default: $GAITFORGE_ISAACGYM_PYTHON)",
        _isaacgym_python,
        metavar="FILE",
    ),
    "--robots": details("parallel robots of a simulator", positive),
    "--seed": details("random seed", whole),
    "--threads": details("simulator threads (default: all cores; Gym trainings: 1)", positive),
    "--episodes": details("episodes per terrain, skill and level", positive),
    "--steps": details("optimiser steps", positive),
    "--batch-size": details("windows per optimiser step, over all processes", positive),
    "--device": details("cpu or cuda", metavar="DEVICE"),
    "--objective": details(f"{', '.join(OBJECTIVES)} (default: bc)", metavar="NAME"),
    "--checkpoint": details(
        "of a training run: last, best (the lowest validation loss), or step-N of those that "
        "--set config.keep_every=N kept",
        default="last",
        metavar="last|best|step-N",
    ),
    "--scheduler": details(
        "an existing Dask scheduler, e.g. tcp://127.0.0.1:8786", metavar="ADDRESS"
    ),
    "--out": details("output folder", Path, required=True),
    "--trust": details(
        "code that a store, run or plan may name, module:name; may be repeated; what another "
        "option names is trusted anyway (see docs/trust.md)",
        default=[],
        action="append",
        metavar="MODULE:NAME",
    ),
}
"""Options of several commands, as `add_argument` takes them."""
