"""Parsers of commands, and decorators that make commands."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NoReturn

from gaitforge.common.errors import names_allowed, nearest
from gaitforge.common.extras import require
from gaitforge.pipeline.cli.parsing.entries import Command, added_actions
from gaitforge.pipeline.cli.parsing.options import (
    HIDDEN_NAMES,
    LAST,
    SHOWN_WITH,
    Options,
    add_options,
)
from gaitforge.pipeline.cli.parsing.values import (
    GIVEN,
    Number,
    names,
    noting,
    numbers,
    refuse_unread,
)

WRONG_INPUT = 2

Handler = Callable[[argparse.Namespace], "int | Callable[[], object] | None"]
"""Does a command's work, or returns it as a function: where options matter in some modes only, so
that the others are refused before the work. An int is the exit code."""

_METAVARS = {int: "N", float: "X", names: "NAME,NAME", numbers: "N,N-N", Path: "FOLDER"}
"""How help shows a value of a type."""
_GENERAL = ("help", "json", "trust")
"""Arguments of options that help shows below a command's own."""
RUNNERS_TITLE = "who does the work"
"""Title of the first group of the runners' options, which come last."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows what kind of value an option takes, and of its names only the one that is taught."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        hidden = getattr(action, HIDDEN_NAMES, ())
        if hidden:
            action = copy(action)
            action.option_strings = [o for o in action.option_strings if o not in hidden]
        return super()._format_action_invocation(action)

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        if isinstance(action.type, Number):
            return "N"
        return _METAVARS.get(action.type, action.dest.upper())  # type: ignore[arg-type]

    def _get_default_metavar_for_positional(self, action: argparse.Action) -> str:
        return action.dest.upper()


class Parser(argparse.ArgumentParser):
    """A command's parser; its errors are one line."""

    def __init__(self, **more: Any):
        # A beginning of an option's name would stand for another one: --set for --setup.
        super().__init__(formatter_class=_Help, allow_abbrev=False, **more)
        self._given: dict[str, list[str]] = {}
        self._runner = ""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """See `argparse.ArgumentParser`; the argument `given` names the options that are there."""
        self._given = {}
        words = sys.argv[1:] if args is None else list(args)
        self._runner = _value_of("--runner", words)
        if not words and self._has_commands:
            self.print_help(sys.stderr)
            sys.exit(WRONG_INPUT)
        for name in self._unknown_options(words):
            close = nearest(name, self._option_string_actions)
            question = f"; did you mean {close}?" if close else ""
            self.error(f"unrecognized arguments: {name}{question}")
        parsed, remaining = self._parsed(words, namespace)
        setattr(parsed, GIVEN, {**getattr(parsed, GIVEN, {}), **self._given})
        if remaining:
            self.error(f"unrecognized arguments: {' '.join(remaining)}")
        return parsed, remaining

    def _parsed(self, words: list[str], namespace: Any) -> Any:
        """The arguments and the remaining words, of which the last may be the `LAST` option's."""
        last: argparse.Action | None = getattr(self, LAST, None)
        if last is None:
            return super().parse_known_args(words, namespace)
        required = last.required
        last.required = False
        try:
            parsed, remaining = super().parse_known_args(words, namespace)
        finally:
            last.required = required
        if getattr(parsed, last.dest) is None and remaining:
            setattr(parsed, last.dest, self._get_values(last, [remaining.pop()]))
        if required and getattr(parsed, last.dest) is None:
            self.error(f"the following arguments are required: {last.option_strings[0]}")
        return parsed, remaining

    @property
    def _has_commands(self) -> bool:
        return any(isinstance(a, argparse._SubParsersAction) for a in self._actions)

    def _unknown_options(self, words: Sequence[str]) -> Iterator[str]:
        """Words that have the form of an option, and are none that is known."""
        for word in words:
            if word == "--" or (self._has_commands and not word.startswith("-")):
                return  # what follows are no options, or a command's own
            name = word.partition("=")[0]
            is_option = name.startswith("--") and " " not in word
            if is_option and name not in self._option_string_actions:
                yield name

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = names_allowed(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"invalid choice: '{value}'; {choices}")

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
        groups = [group for group in self._action_groups if self._shows(group)]
        sections = [(group.title, group._group_actions) for group in groups]
        titles = [title for title, _ in sections]
        end = titles.index(RUNNERS_TITLE) if RUNNERS_TITLE in titles else len(titles)
        sections.insert(end, ("general options", general))
        for title, actions in sections:
            formatter.start_section(title)
            formatter.add_arguments(a for a in actions if actions is general or a not in general)
            formatter.end_section()

    def _shows(self, group: argparse._ArgumentGroup) -> bool:
        runners = getattr(group, SHOWN_WITH, ())
        return not runners or self._runner in runners

    def error(self, message: str) -> NoReturn:
        """Exit with one line on standard error."""
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(WRONG_INPUT)


def _value_of(option: str, words: Sequence[str]) -> str:
    """The value of an option among the words of a command line; "" without it."""
    for k, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else "".join(words[k + 1 : k + 2])
    return ""


def command(example: str, *options: Options) -> Callable[[Handler], Command]:
    """Decorate a handler as a command with options; its docstring is the help."""

    def decorate(handler: Handler) -> Command:
        def run(arguments: argparse.Namespace) -> int | None:
            noted = noting(arguments)
            _require_extras(arguments)
            outcome = handler(noted)
            refuse_unread(noted)
            code = outcome() if callable(outcome) else outcome
            return code if isinstance(code, int) else None

        def fill(parser: argparse.ArgumentParser) -> None:
            parser.epilog = f"example:  {example}"
            add_options(parser, *options)
            parser.set_defaults(run=run)

        name = handler.__name__.strip("_").replace("_", "-")
        text = (handler.__doc__ or name).rstrip(".")  # `python -OO` drops docstrings
        return Command(name, f"{text[0].lower()}{text[1:]}", fill)

    return decorate


def _require_extras(arguments: argparse.Namespace) -> None:
    """Raise ValueError, before any work, if packages of `options.needs` are missing."""
    action = getattr(arguments, "action", None)
    typed = " ".join(filter(None, ("gaitforge", arguments.command, action)))
    needs = [need for need in getattr(arguments, "needs", ()) if need.applies(arguments)]
    require(typed, *dict.fromkeys(extra for need in needs for extra in need.extras))


def actions(name: str, example: str, *commands: Command) -> Command:
    """A command that has only commands of its own, and those that plug-ins add to it.

    Args:
        name: as it is typed; the entry point "NAME.ACTION" adds a command.
        commands: `_robot_list` is the command `list` of the command `robot`, as `_list` is.
    """

    def fill(parser: argparse.ArgumentParser) -> None:
        parser.epilog = f"example:  {example}"
        inner = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for subcommand in commands:
            action = subcommand.name.removeprefix(f"{name}-")
            subcommand.fill(add_command(inner, action, subcommand.what))
        for action, entry in added_actions(name).items():
            if action not in inner.choices:  # no package replaces a command of ours
                entry.fill(add_command(inner, action, entry.summary))

    return Command(name, "", fill, has_actions=True)


def add_command(commands: "argparse._SubParsersAction[Any]", name: str, what: str) -> Parser:
    """Add a command with its help."""
    return commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
