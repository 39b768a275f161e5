"""The command line: `gaitforge COMMAND …`.

Wrong input ends in one line on standard error and exit code 2; an interrupt in one line and 130.
Only the module of the command that is asked for is loaded, so that help and listings answer at
once. Handlers import what is slow to load: torch, Prefect, matplotlib.
"""

import argparse
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

from gaitforge.common.errors import printable
from gaitforge.common.extras import missing_module
from gaitforge.common.interrupts import INTERRUPTED, Stopped, stop_signals
from gaitforge.common.kernels import compile_listeners
from gaitforge.common.trust import trusting
from gaitforge.flows.progress import leads
from gaitforge.pipeline.cli.parsing.entries import (
    OTHERS,
    CommandEntry,
    added_actions,
    added_command,
    added_commands,
)
from gaitforge.pipeline.cli.parsing.options import option
from gaitforge.pipeline.cli.parsing.parser import WRONG_INPUT, Parser, add_command, command
from gaitforge.pipeline.cli.parsing.runners import named_code
from gaitforge.pipeline.process_setup import finish_output, prepare_process

COMMANDS = {
    "whole experiments": {
        "run": ("run", "run or resume an experiment: learners × sets × seeds, scored"),
        "demo": ("run", "run a small pipeline end to end: collect, train, evaluate, report"),
        "pipeline": ("run", "collect, train, evaluate, compare and report by one plan"),
        "compare": ("run", "train models with equal settings on the same episodes; evaluate"),
        "dagger": ("run", "train in rounds, with an expert's corrections on a policy's states"),
        "report": ("run", "write report.html from a run's files"),
    },
    "make data": {
        "collect": ("collect", "collect the missing parts of a plan into a store"),
        "plan": ("store", "print the plan from which a dataset can be made anew, with its hashes"),
    },
    "look at data": {
        "query": ("store", "describe the episodes that match a condition, or list them"),
        "info": (
            "store",
            "show a store's version, size and columns, or the card of a policy that ships",
        ),
        "card": ("store", "write a dataset card: HTML, Markdown and JSON"),
        "verify": ("store", "check every file of a store; exit 1 and print a line per fault"),
    },
    "edit data": {
        "dataset": ("dataset", "drop, annotate, trim, relabel, merge, split and compare datasets"),
        "tag": ("store", "name a store's present version, or list the names"),
        "compact": ("store", "merge small parts; the dataset and its hash stay the same"),
        "gc": ("store", "remove what interrupted writers and compactions left in a store"),
    },
    "learn and judge": {
        "train": ("train", "train a model on a selection of a store, or resume a run"),
        "evaluate": ("train", "run a policy in closed loop on held-out episodes of its task"),
        "models": ("train", "list the models and their sizes"),
    },
    "run elsewhere and follow": {
        "status": ("status", "show the progress of collections, trainings and experiments"),
        "jobs": ("jobs", "list, follow and cancel the Slurm jobs of stores and runs"),
        "serve": ("status", "serve the flows to Prefect, with forms and a schedule, until Ctrl-C"),
        "notify": (
            "status",
            "tell a web hook when Prefect's runs fail, are late, or collect nothing",
        ),
        "push": ("store", "copy a local store's parts to object storage; existing parts are kept"),
    },
    "robots, experts and simulators": {
        "robot": ("robots", "list and check robots"),
        "expert": ("robots", "list, train, average and film experts"),
        "sim": ("robots", "list and check simulators"),
    },
    "exchange with other projects": {
        "export": (
            "transfer",
            "write a policy for a robot's program, or a store in another format",
        ),
        "import": ("transfer", "import another project's data into a store"),
        "formats": ("transfer", "list the other projects' formats, or one with its options"),
    },
    OTHERS: {
        "completion": ("main", "print a shell completion script"),
    },
}
"""Heading of the help -> name -> (module of this package with the `Command` NAME_command, help),
in the help's order: the most used first. A plug-in's command follows the one that its entry names
(`CommandEntry.after`), else it stands at the end of its heading; a heading of its own comes after
these."""
_MOMENT_S = 2.0
"""Seconds of work without a word, as of progress."""
SHORT_NAMES = ("demo", "pipeline", "compare", "dagger")
"""Commands that do the work of `gaitforge run PRESET`; the help has one line for them."""


def build_parser(argv: Sequence[str] | None = None) -> Parser:
    """The parser of the command that `argv` begins with; without `argv`, of all commands."""
    entries = _entries()
    program = _Program(
        {name: entry.group for name, entry in entries.items()},
        prog="gaitforge",
        description="Legged-motion datasets and policies: collect, query, train, evaluate, report.",
        epilog="Start with: gaitforge demo --out runs/demo",
    )
    program.add_argument("--version", action="version", version=f"%(prog)s {version('gaitforge')}")
    commands = program.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=Parser
    )
    for name, entry in entries.items():
        parser = add_command(commands, name, entry.summary)
        if argv is None or name in argv[:1]:
            _fill(parser, name, entry, () if argv is None else argv[1:2])
    return program


def _fill(parser: Parser, name: str, entry: CommandEntry, words: Sequence[str]) -> None:
    """Add a command's options to its parser.

    Where a plug-in adds an action to a command with work of its own and the next of the `words`
    names it, these are that action's options; else the help tells of it.
    """
    actions = added_actions(name)
    if not actions or entry.load().has_actions:
        entry.fill(parser)
        return
    for action in actions.keys() & set(words):
        commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        actions[action].fill(add_command(commands, action, actions[action].summary))
        return
    entry.fill(parser)
    lines = [f"  gaitforge {name} {action}  {found.summary}" for action, found in actions.items()]
    parser.epilog = "\n".join([parser.epilog or "", "", "also:", *lines])


class _Program(Parser):
    """The parser of all commands; its help has them under their headings."""

    def __init__(self, headings: Mapping[str, str], **more: Any):
        super().__init__(**more)
        self._headings = headings

    def add_sections(self, formatter: argparse.HelpFormatter) -> None:
        """Add the commands under their headings, then the options."""
        (commands,) = (a for a in self._actions if isinstance(a, argparse._SubParsersAction))
        lines = {action.dest: action for action in commands._choices_actions}
        further = sorted(set(self._headings.values()) - {*COMMANDS})
        headings = [heading for heading in COMMANDS if heading != OTHERS]
        formatter.start_section("commands")
        for heading in (*headings, *further, OTHERS):
            formatter.start_section(heading)
            for name, line in lines.items():
                if self._headings[name] != heading or name in SHORT_NAMES:
                    continue
                formatter.add_argument(line)
                if name == "run":
                    formatter._add_item(_short_names, [formatter._current_indent])
            formatter.end_section()
        formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments(self._optionals._group_actions)
        formatter.end_section()


def _short_names(indent: int) -> str:
    return f"{' ' * indent}{', '.join(SHORT_NAMES)}: short names of run PRESET\n"


def _entries() -> dict[str, CommandEntry]:
    """The commands here, and those of plug-ins and other packages, by name."""
    entries = {
        name: CommandEntry(text, f"gaitforge.pipeline.cli.{module}:{name}_command", group=heading)
        for heading, commands in COMMANDS.items()
        for name, (module, text) in commands.items()
    }
    order = list(entries)
    for name in added_commands():
        if name in entries:
            continue  # no package replaces a command of ours
        entry = added_command(name)
        entries[name] = entry
        place = order.index(entry.after) + 1 if entry.after in order else len(order)
        order.insert(place, name)
    return {name: entries[name] for name in order}


def parsed(words: list[str]) -> argparse.Namespace:
    """The arguments of a command line; `words` are the line itself, `run` does the work."""
    return build_parser(words).parse_args(words, argparse.Namespace(words=words))


@command(
    "source <(gaitforge completion bash)",
    option("shell", "your shell", choices=("bash", "zsh", "tcsh")),
)
def completion_command(arguments: argparse.Namespace) -> None:
    """Print a shell completion script."""
    print(import_module("shtab").complete(build_parser(), arguments.shell))


class _CompilingNote:
    """Tells, once, that machine code is compiled, where that takes longer than a moment."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._told = False

    def __call__(self) -> None:
        """Hear that another function is about to be compiled."""
        now = time.monotonic()
        if self._started is None:
            self._started = now
        if self._told or now - self._started < _MOMENT_S or not leads():
            return
        self._told = True
        print(
            "gaitforge: compiling the inner loops, once on this machine: some 10 to 30 s",
            file=sys.stderr,
            flush=True,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    prepare_process()
    note = _CompilingNote()
    compile_listeners.append(note)
    try:
        arguments = parsed(sys.argv[1:] if argv is None else list(argv))
        interrupts = stop_signals(signal.SIGINT, error=lambda _: KeyboardInterrupt())
        with trusting(named_code(arguments)), interrupts:
            code = arguments.run(arguments) or 0
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as error:
        message = missing_module("this", error.name or "")
        if message is None:
            raise
        print(f"gaitforge: error: {message}", file=sys.stderr)
        return WRONG_INPUT
    except ValueError as error:
        print(f"gaitforge: error: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return WRONG_INPUT
    except (MemoryError, OverflowError, RecursionError) as error:
        print(f"gaitforge: error: {_too_much(error)}", file=sys.stderr)
        return WRONG_INPUT
    except BrokenPipeError:
        return 0
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"gaitforge: error: {error.strerror or error}{where}", file=sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt as stop:
        if not isinstance(stop, Stopped) or stop.exit_code == INTERRUPTED:
            print("gaitforge: interrupted; run the same command again to resume", file=sys.stderr)
            return INTERRUPTED
        if leads():
            print(f"gaitforge: {stop}; run the same command again to resume", file=sys.stderr)
        return stop.exit_code
    finally:
        compile_listeners.remove(note)
        finish_output()


def _too_much(error: Exception) -> str:
    reason = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return f"not enough memory for this{f' ({reason})' if reason else ''}; choose smaller sizes"
    kind = "a number is too large" if isinstance(error, OverflowError) else "nested too deep"
    return f"{kind}: {reason}"
