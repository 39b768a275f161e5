"""Options of commands as objects, those of several commands by name, and their values in plans."""

import argparse
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from gaitforge.collectors.simulators import ISAACGYM_PYTHON_VARIABLE, backend_names
from gaitforge.common.errors import listed
from gaitforge.common.run_log import LOGGERS
from gaitforge.flows.settings import override, setting_names, setting_paths, with_named
from gaitforge.learners.training.objectives import OBJECTIVES
from gaitforge.pipeline.cli.parsing.values import (
    experts,
    names,
    numbers,
    positive,
    simulator,
    store_address,
    whole,
)

Container = argparse._ActionsContainer
AddTo = Callable[[Container], object]
Plan = TypeVar("Plan")


HIDDEN_NAMES = "hidden_names"
"""Attribute of an argparse action: its option's names that help does not show."""
LAST = "last"
"""Attribute of a parser: the action of the option whose value may be the last word."""
SHOWN_WITH = "shown_with"
"""Attribute of a group of argparse actions: the runners beside which help shows it."""


@dataclass(frozen=True)
class Option:
    """An option, or a positional argument.

    Attributes:
        flag: as it is typed, or a positional's name.
        keywords: further arguments of `add_argument`.
        also: other names that mean the same, which help does not show.
        last: whether the value may also stand alone, as the last word of the command line.
    """

    flag: str
    keywords: Mapping[str, Any]
    also: tuple[str, ...] = ()
    last: bool = False

    @property
    def argument(self) -> str:
        """Name of the parsed argument."""
        return self.keywords.get("dest") or self.flag.removeprefix("--").replace("-", "_")


@dataclass(frozen=True)
class Group:
    """Options under a title of their own in the help.

    Attributes:
        runners: if not empty, help shows them only beside `--runner` and one of these.
    """

    title: str
    options: "tuple[Options, ...]"
    runners: tuple[str, ...] = ()


Options: TypeAlias = "Option | Group | AddTo | tuple[Options, ...]"
"""What commands take: an option, several, or a function that adds some to a parser."""


def add_options(parser: Container, *options: Options) -> None:
    """Add options to a parser, in their order."""
    for entry in options:
        if isinstance(entry, Option):
            action = parser.add_argument(entry.flag, *entry.also, **entry.keywords)
            setattr(action, HIDDEN_NAMES, entry.also)
            if entry.last:
                setattr(parser, LAST, action)
        elif isinstance(entry, Group):
            title = parser.add_argument_group(entry.title)
            setattr(title, SHOWN_WITH, entry.runners)
            add_options(title, *entry.options)
        elif isinstance(entry, tuple):
            add_options(parser, *entry)
        else:
            entry(parser)


def option(name: str, text: str, type: Any = None, default: Any = None, **more: Any) -> Option:
    """An option with its help, which says the default.

    Args:
        text: its help; one that tells the default itself keeps its words.
        more: further arguments of `add_argument`, and `also` and `last` of an `Option`.
    """
    names = {key: more.pop(key) for key in ("also", "last") if key in more}
    tells = "(default" in text or default in (None, "", [], ())
    shown = text if tells else f"{text} (default: %(default)s)"
    values = {"type": type, "default": default}
    chosen = {key: value for key, value in values.items() if value is not None}
    return Option(name, {"help": shown} | chosen | more, **names)


def with_default(entry: Option, text: str) -> Option:
    """An option whose help says what holds without it, for a default that lies in a plan."""
    keywords = {**entry.keywords, "help": f"{entry.keywords['help']} (default: {text})"}
    return replace(entry, keywords=keywords)


def flag(name: str, text: str) -> Option:
    """An option that is on or off."""
    return option(name, text, action="store_true")


@dataclass(frozen=True)
class Need:
    """Extras of the installation that a command's work needs, see `common.extras`.

    Attributes:
        unless: argument with which the command does without them; empty for none.
        when: argument without which the command does without them; empty for none.
    """

    extras: tuple[str, ...]
    unless: str
    when: str

    def applies(self, arguments: argparse.Namespace) -> bool:
        """Whether a command with these arguments needs them."""
        given = {name for name, value in vars(arguments).items() if value}
        return self.unless not in given and (not self.when or self.when in given)


def needs(*extras: str, unless: str = "", when: str = "") -> AddTo:
    """Add a `Need` to a command, which is checked before any work."""
    need = Need(extras, unless, when)

    def add(parser: Container) -> None:
        parser.set_defaults(needs=(*(parser.get_default("needs") or ()), need))

    return add


def setting(example: str) -> Option:
    """The option `--set`, which changes any setting of a plan."""
    return option(
        "--set",
        f"any setting, e.g. {example}; may be repeated, the last one holds, also over options",
        default=[],
        action="append",
        metavar="NAME=VALUE",
        dest="settings",
    )


def group(title: str, *options: Options, runners: tuple[str, ...] = ()) -> Group:
    """Options under a title of their own in the help, which may be for some runners alone."""
    return Group(title, options, runners)


def option_values(arguments: argparse.Namespace, *names: str, **renamed: str) -> dict[str, Any]:
    """The named arguments that are not None, by their names, or by `field` of field=argument."""
    values = {name: getattr(arguments, name) for name in names}
    values |= {field: getattr(arguments, name) for field, name in renamed.items()}
    return {name: value for name, value in values.items() if value is not None}


def of_task(plan: Any) -> str:
    """Why a task's plan does not read options of legged robots, and the settings that it has."""
    return f"options of legged robots; {plan.kind} has --set {listed(setting_names(plan))}"


def with_options(plan: Plan, arguments: argparse.Namespace, *names: str, **renamed: str) -> Plan:
    """A task's plan with the `option_values` of the named arguments, wherever their fields are.

    Raises:
        ValueError: an option whose field the plan lacks, or a value that does not fit.
    """
    values = option_values(arguments, *names, **renamed)
    known = setting_paths(plan)
    wrong = [f"--{renamed.get(name, name)}" for name in values if name not in known]
    if wrong:
        raise ValueError(f"{listed(wrong)} cannot be used here: {of_task(plan)}")
    return with_named(plan, values)


def planned(plan: Plan, arguments: argparse.Namespace, *names: str, **renamed: str) -> Plan:
    """A plan with the `option_values` of the named arguments, then with every `--set`."""
    chosen: Any = plan
    return override(
        replace(chosen, **option_values(arguments, *names, **renamed)), arguments.settings
    )


def _isaacgym_python(text: str) -> str:
    """An interpreter; also set as an environment variable, for worker processes."""
    program = text if os.sep in text else shutil.which(text) or text  # a command, as in a shell
    os.environ[ISAACGYM_PYTHON_VARIABLE] = str(Path(program).expanduser().absolute())
    return program


STORE = option("store", "folder or URL, as s3://bucket/prefix", store_address)
JSON = option("--json", "print JSON instead of a table", action="store_true")
MIX_VERSIONS = option(
    "--mix-versions",
    "let the store mix versions of the simulator",
    action="store_true",
)
WITH_RECORDED_VERSIONS = option(
    "--with-recorded-versions",
    "use the MuJoCo that made the episodes: pip puts it into a folder of the cache",
    action="store_true",
)
SIMULATOR_VERSION = option(
    "--simulator-version",
    "only what this version of the simulator made",
    default="",
    metavar="VERSION",
)
TERRAIN = option("--terrain", "terrains, comma-separated", names)
SKILL = option("--skill", "skills, comma-separated", names)
LEVEL = option("--level", "terrain levels, e.g. 0,2,5-9", numbers)
WHERE = option(
    "--where",
    "a boolean SQL expression over the catalog's columns, e.g. 'return > 6'",
    metavar="CONDITION",
)
TAG = option("--tag", "a tagged version of the store (see gaitforge tag)", metavar="NAME")
SELECTION = option("--selection", "a selection that gaitforge query --save wrote", metavar="FILE")
MODEL = option(
    "--model", "one of gaitforge models, or module:Config", default="fcnet", metavar="NAME"
)
PRESET = option("--preset", "size of the plan", default="demo", metavar="NAME")
PROCESSES = option("--processes", "parallel simulators", positive, 1)
SHARE = option("--share", "of the stretches that the policy drives (default: 0.3)", float)
STRETCH = option("--stretch", "control steps of a stretch (default: 12)", positive)
EXPERT = option(
    "--expert",
    "a shipped expert, a .safetensors file, or a folder of expert import",
    experts,
    metavar="NAME",
)
ROBOT = option(
    "--robot",
    "a shipped robot's name, or the path of your own (see gaitforge robot check); to evaluate "
    "on several, a list or a folder of robots' folders",
    lambda robot: f"robot={robot}",
    [],
    action="append",
    metavar="ROBOT",
    dest="settings",
)
RANDOMISATION = option(
    "--randomisation",
    "none, default, heavy or a JSON file; single ones by --set "
    "randomisation.friction=0.1:0.3, =0.2 or =none",
    lambda name: f"randomisation.preset={name}",
    [],
    action="append",
    metavar="NAME",
    dest="settings",
)
SIM = option(
    "--sim",
    f"{', '.join(backend_names())}; see gaitforge sim list (default: {backend_names()[0]})",
    simulator,
    metavar="NAME",
)
ISAACGYM_PYTHON = option(
    "--isaacgym-python",
    "the Python 3.6 to 3.8 that has Isaac Gym (default: $GAITFORGE_ISAACGYM_PYTHON)",
    _isaacgym_python,
    metavar="FILE",
)
ROBOTS = option("--robots", "parallel robots of a simulator", positive)
SEED = option("--seed", "random seed", whole)
THREADS = option("--threads", "simulator threads (default: all cores, or the task's)", positive)
EPISODES = option(
    "--episodes",
    "episodes per terrain, skill and level (default: 20; of another task as it says)",
    positive,
)
STEPS = option("--steps", "optimiser steps", positive)
BATCH_SIZE = option("--batch-size", "windows per optimiser step, over all processes", positive)
DEVICE = option("--device", "cpu or cuda", metavar="DEVICE")
OBJECTIVE = option("--objective", f"{', '.join(OBJECTIVES)} (default: bc)", metavar="NAME")
CHECKPOINT = option(
    "--checkpoint",
    "of a training run: last, best (the lowest validation loss), or step-N of those that "
    "--set config.keep_every=N kept",
    default="last",
    metavar="last|best|step-N",
)
SCHEDULER = option(
    "--scheduler", "an existing Dask scheduler, e.g. tcp://127.0.0.1:8786", metavar="ADDRESS"
)
OUT = option("--out", "output folder", Path, required=True)
NEW_STORE = option("--out", "folder of the new store", Path, required=True, last=True)
LOG = option(
    "--log",
    f"where curves go: {', '.join(LOGGERS)}, your own module:Class, or none (default: tensorboard, "
    "of experts none)",
    names,
    metavar="NAME,NAME",
)
TRUST = option(
    "--trust",
    "code that data may name, besides what other options name; may be repeated (see docs/trust.md)",
    default=[],
    action="append",
    metavar="MODULE:NAME",
)


def cells(default: str) -> tuple[Option, ...]:
    """The options of terrains, skills and levels; `default` is what holds without them."""
    return tuple(with_default(entry, default) for entry in (TERRAIN, SKILL, LEVEL))


def simulation(robots: int) -> tuple[Option, ...]:
    """The options of a simulation that has so many parallel robots by default."""
    return with_default(ROBOTS, f"{robots}"), with_default(SEED, "0"), THREADS


CELLS = cells("all")
SIMULATOR = (SIM, ISAACGYM_PYTHON)
CELL_FIELDS = {"terrains": "terrain", "skills": "skill", "levels": "level"}
"""Fields of the plans' grids -> arguments of `CELLS`, for `option_values`."""
