"""The form of a command in Prefect's page: a typed parameter for each of its options.

Conditions on several values are checked when the run begins.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, WithJsonSchema

from gaitforge.collectors.scenarios.skills import ALL_SKILLS
from gaitforge.collectors.scenarios.terrains import ALL_TERRAINS, N_LEVELS
from gaitforge.collectors.simulators import backend_names
from gaitforge.datasets.formats import format_names
from gaitforge.flows.runners.dask_clusters import DaskSettings
from gaitforge.flows.runners.slurm.script import SlurmForm
from gaitforge.learners.export.onnx_policy import PROGRAMS
from gaitforge.learners.models.registry import model_names
from gaitforge.learners.training.objectives import OBJECTIVES
from gaitforge.pipeline.cli.parsing.runners import runner_names
from gaitforge.pipeline.cli.parsing.values import Number, names, numbers

Place = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
"""A folder as the worker sees it; for stores also s3://bucket/prefix."""

Setting = Annotated[str, StringConstraints(pattern=r"^[\w.]+=.*$")]
"""NAME=VALUE, as `--set` takes them."""

_TYPES: dict[Any, Any] = {
    int: int,
    float: float,
    names: list[str],
    numbers: list[Annotated[int, Field(ge=0)]],
}
"""Type of an option -> type of the form's parameter."""

_CHOICES: dict[str, Sequence[str]] = {
    "terrain": tuple(ALL_TERRAINS),
    "skill": tuple(ALL_SKILLS),
    "model": tuple(model_names()),
    "sim": tuple(backend_names()),
    "objective": tuple(OBJECTIVES),
    "formats": tuple(PROGRAMS),
    "format": tuple(format_names()),
}
"""Option -> the names that its values may have."""

_OWN = {"model": {"type": "string", "pattern": r"^[\w.]+:\w+$", "title": "module:Config of yours"}}
"""Option -> the JSON schema of its further values."""

_OTHER_TYPES: dict[str, Any] = {
    "level": list[Annotated[int, Field(ge=0, lt=N_LEVELS)]],
    "settings": list[Setting],
}
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
        allowed = _CHOICES.get(self.name) or self.action.choices
        if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
            return bool
        kind = _OTHER_TYPES.get(self.name) or _TYPES.get(action.type, Place)
        if isinstance(action.type, Number):
            kind = Annotated[int, Field(ge=action.type.allowed.low)]
        if allowed:
            schema: dict[str, Any] = {"type": "string", "enum": list(allowed)}
            if self.name in _OWN:
                schema = {"anyOf": [schema | {"title": "a name"}, _OWN[self.name]]}
            choice = Annotated[str, WithJsonSchema(schema)]
            return list[choice] if action.type is names else choice
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


def command_line(fields: Sequence[FormField], values: Mapping[str, object]) -> list[str]:
    """A form's values as words of a command line, without the defaults.

    A form sends every default, and a command refuses what it is given and does not use.
    """
    pairs = [(field, values.get(field.name)) for field in fields]
    chosen = [(f, value) for f, value in pairs if value not in (None, [], "", f.parameter.default)]
    return [word for field, value in chosen for word in field.words(value)]
