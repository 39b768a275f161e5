"""The form of a command in Prefect's page: a typed parameter for each of its options.

Conditions on several values are checked when the run begins.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, WithJsonSchema

from gaitforge.collectors.scenarios.skills import ALL_SKILLS
from gaitforge.collectors.scenarios.terrains import ALL_TERRAINS, N_LEVELS
from gaitforge.collectors.simulators import backend_names
from gaitforge.datasets.formats import format_names
from gaitforge.flows.runners.dask_clusters import DaskSettings
from gaitforge.flows.runners.slurm.script import SlurmForm
from gaitforge.learners.export.policy_formats import POLICY_FORMATS
from gaitforge.learners.models.registry import model_names
from gaitforge.learners.training.objectives import OBJECTIVES
from gaitforge.pipeline.cli.parsing.runners import runner_names
from gaitforge.pipeline.cli.parsing.values import Number, names, numbers


# Types of a form's parameters.
def one_of(names: Iterable[str]) -> WithJsonSchema:
    """The JSON schema of a text that is one of some names."""
    return WithJsonSchema({"type": "string", "enum": list(names)})


def _or_module(names: Iterable[str]) -> WithJsonSchema:
    """The JSON schema of one of some names, or of a user's "module:Config"."""
    named = {"type": "string", "enum": list(names), "title": "a name"}
    own = {"type": "string", "pattern": r"^[\w.]+:\w+$", "title": "module:Config of yours"}
    return WithJsonSchema({"anyOf": [named, own]})


Place = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
"""A folder as the worker sees it, for stores also s3://bucket/prefix; or any other text."""
Setting = Annotated[str, StringConstraints(pattern=r"^[\w.]+=.*$")]
"""NAME=VALUE, as `--set` takes them."""
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Level = Annotated[int, Field(ge=0, lt=N_LEVELS)]
Terrain = Annotated[str, one_of(ALL_TERRAINS)]
Skill = Annotated[str, one_of(ALL_SKILLS)]
Model = Annotated[str, _or_module(model_names())]
Simulator = Annotated[str, one_of(backend_names())]
Objective = Annotated[str, one_of(OBJECTIVES)]
Program = Annotated[str, one_of(POLICY_FORMATS)]
Format = Annotated[str, one_of(format_names())]
Size = Annotated[str, one_of(("small", "full"))]

_TYPES: dict[Any, Any] = {int: int, float: float, names: list[str], numbers: list[Whole]}
"""Type of an option -> type of the form's parameter."""

_CHOICES: dict[str, Any] = {
    "terrain": Terrain,
    "skill": Skill,
    "model": Model,
    "sim": Simulator,
    "objective": Objective,
    "formats": Program,
    "format": Format,
}
"""Option -> type of its names; a form lists them, and the command line checks them."""

_OTHER_TYPES: dict[str, Any] = {"level": list[Level], "settings": list[Setting]}
_NOT_SHOWN = {"help", "json", "stage", "prefect", "list_presets", "trust"}
"""Options of a command that a form lacks; what forms may name as code, `serve --trust` says."""


@dataclass(frozen=True)
class FormField:
    """An option of a command as a parameter of its flow.

    Attributes:
        name: of the parameter; option: as it is typed, empty for a positional.
    """

    name: str
    option: str
    action: argparse.Action

    @property
    def type(self) -> Any:
        """The type of the option's values."""
        action = self.action
        choice = _CHOICES.get(self.name)
        if choice is None and action.choices:
            choice = Annotated[str, one_of(action.choices)]
        if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
            return bool
        if choice is not None:
            return list[choice] if action.type is names else choice
        kind = _OTHER_TYPES.get(self.name) or _TYPES.get(action.type, Place)
        if isinstance(action.type, Number):
            kind = Annotated[int, Field(ge=action.type.allowed.low)]
        several = action.nargs in ("+", "*") or isinstance(action, argparse._AppendAction)
        return list[kind] if several and self.name not in _OTHER_TYPES else kind

    @property
    def parameter(self) -> Parameter:
        """The parameter in a function's signature; its default is the command's."""
        kind = self.type
        default = self.action.default
        if self.action.required and self.action.nargs != "*":
            default = Parameter.empty
        elif kind is bool and not isinstance(self.action, argparse.BooleanOptionalAction):
            default = False
        elif default in (None, [], ""):
            kind = kind | None
            default = None
        elif isinstance(default, Path):
            default = str(default)
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)

    @property
    def help(self) -> str:
        """The option's help in one line."""
        shown = (self.action.help or self.name).replace("%(default)s", str(self.action.default))
        return " ".join(shown.split())

    def words(self, value: Any) -> Iterator[str]:
        """A value as words of the command line; ValueError for a name that begins with a dash."""
        if isinstance(self.action, argparse.BooleanOptionalAction):
            yield self.option if value else self.action.option_strings[-1]
        elif self.action.nargs == 0:
            yield from [self.option] * bool(value)
        else:
            several = self.action.type in (names, numbers) or not isinstance(value, list)
            for item in [value] if several else value:
                text = ",".join(map(_quoted, item)) if isinstance(item, list) else str(item)
                if not self.option and text.startswith("-"):
                    raise ValueError(f"{self.name} cannot begin with a dash: {text}")
                yield f"{self.option}={text}" if self.option else text


def _quoted(value: object) -> str:
    return f'"{value}"' if "," in str(value) else str(value)


def form_fields(parser: argparse.ArgumentParser) -> list[FormField]:
    """The parameters of a command's flow, positionals first and in their order."""
    hidden = _NOT_SHOWN | (runner_names() if has_runners(parser) else set())
    fields = []
    for action in parser._actions:
        option = next((o for o in action.option_strings if o.startswith("--")), "")
        name = option[2:].replace("-", "_") or action.dest
        if iskeyword(name):  # no parameter of a function can be called `for`
            name = action.dest
        if hidden.isdisjoint((name, action.dest)):
            fields.append(FormField("settings" if name == "set" else name, option, action))
    return sorted(fields, key=lambda field: bool(field.option))


def has_runners(parser: argparse.ArgumentParser) -> bool:
    """Whether other machines can do a command's work."""
    return any(action.dest == "runner" for action in parser._actions)


def form_signature(fields: Sequence[FormField], runners: bool) -> Signature:
    """The signature of a command's flow."""
    parameters = [field.parameter for field in fields]
    places = {"dask": DaskSettings, "slurm": SlurmForm} if runners else {}
    for name, kind in places.items():
        annotation: Any = kind | None
        parameters.append(
            Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return Signature(parameters)


def form_text(summary: str, fields: Sequence[FormField], runners: bool) -> str:
    """The docstring of a command's flow, whose `Args` are the form's help."""
    helps = [f"    {field.name}: {field.help}" for field in fields]
    if runners:
        helps.append("    dask: a cluster that does the work; none for this machine")
        helps.append("    slurm: jobs that do the work; none for this machine")
    return "\n".join([summary, "", "Args:", *helps, ""])


def command_line(fields: Sequence[FormField], values: Mapping[str, object]) -> list[str]:
    """A form's values as words of a command line, without the defaults.

    A form sends every default, and a command refuses what it is given and does not use.

    Values become words although the command is called in this process. A Slurm job does the same
    work by the same line, so the line is needed anyway. And its parser is the one place that checks
    an option's type, range and names, joins those that are settings (`--robot`), and notes which
    were given: a second way in would have to do all of it alike.
    """
    pairs = [(field, values.get(field.name)) for field in fields]
    chosen = [(f, value) for f, value in pairs if value not in (None, [], "", f.parameter.default)]
    return [word for field, value in chosen for word in field.words(value)]
