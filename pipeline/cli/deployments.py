"""Every command that has work to do, as a Prefect flow with a form."""

import io
from argparse import Namespace, _SubParsersAction
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from typing import Any

from prefect import Flow, State, flow
from prefect.runtime import flow_run
from prefect.states import Completed

from gaitforge.flows.runners.artifacts import (
    last_name,
    show_file,
    show_markdown,
    show_table,
    show_view,
    tag_run,
)
from gaitforge.flows.runners.dask_clusters import DaskSettings
from gaitforge.flows.runners.prefect import FLOW_OPTIONS
from gaitforge.flows.runners.prefect_stages import run_by_jobs, run_in_flow
from gaitforge.flows.runners.slurm.script import SlurmForm
from gaitforge.pipeline.cli.main import build_parser, parsed
from gaitforge.pipeline.cli.parsing.entries import added_commands
from gaitforge.pipeline.cli.parsing.forms import (
    command_line,
    form_fields,
    form_signature,
    has_runners,
)
from gaitforge.pipeline.cli.parsing.parser import Parser
from gaitforge.pipeline.cli.work import Result

_PLAYER = "view"
"""The command that plays episodes, of a plug-in."""
_PLACES = ("out", "store", "stores", "policy", "places", "what")
"""Parameters that name the output; a run is named by the first that its command has."""

_TAGS = ("store", "model", "terrain", "preset")
_IN_NAME = ("model", "terrain", "skill", "where")


def _commands(
    parser: Parser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Parser]]:
    """The words and the parser of each command that has work to do."""
    if parser.get_default("begin") is not None:
        yield words, parser
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, inner in action.choices.items():
                yield from _commands(inner, (*words, name))


def _deployed(words: Sequence[str], parser: Parser) -> Flow[..., State[None]]:
    """The flow of a command: its name, its form, and its work as tasks."""
    fields = form_fields(parser)
    runners = has_runners(parser)
    name = "-".join(words)

    def body(**values: Any) -> State[None]:
        dask = values.pop("dask", None)
        slurm = values.pop("slurm", None)
        if dask is not None and slurm is not None:
            raise ValueError("give dask or slurm, not both")
        if values.get("new_every_day"):
            if values.get("seed") is not None:
                raise ValueError("with new_every_day the day is the seed: give no seed")
            day = int(flow_run.scheduled_start_time.strftime("%Y%m%d"))
            values |= {"seed": day, "new_every_day": False}
        return _run([*words, *command_line(fields, values)], values, dask, slurm)

    helps = "\n".join(f"    {field.name}: {field.help}" for field in fields)
    if runners:
        helps += "\n    dask: a cluster that does the work; none for this machine"
        helps += "\n    slurm: jobs that do the work; none for this machine"
    body.__name__ = body.__qualname__ = name.replace("-", "_")
    body.__doc__ = f"{parser.description}\n\nArgs:\n{helps}\n"
    vars(body)["__signature__"] = form_signature(fields, runners)
    return flow(name=name, flow_run_name=lambda: _run_name(name), **FLOW_OPTIONS)(body)


def _run_name(command: str) -> str:
    """A run's name: the command, its output, and a few of its values in brackets."""
    values = flow_run.parameters
    output = next((values[name] for name in _PLACES if values.get(name)), "")
    output = last_name(output[-1] if isinstance(output, list) else output) if output else ""
    shown = [values[name] for name in _IN_NAME if values.get(name)]
    words = ", ".join(value if isinstance(value, str) else ", ".join(value) for value in shown)
    return f"{command} {output}".rstrip() + (f" ({words})" if words else "")


def _run(
    line: Sequence[str],
    values: Mapping[str, Any],
    dask: DaskSettings | None,
    slurm: SlurmForm | None,
) -> State[None]:
    """Do a command line's work in the calling flow, and show the result."""
    tags = {name: values[name] for name in _TAGS if values.get(name)}
    tag_run(**tags | ({"store": last_name(tags["store"])} if "store" in tags else {}))
    arguments = _parsed(list(line))
    arguments.runner = "prefect"
    work = arguments.begin(arguments)
    if slurm is not None:
        if left := run_by_jobs(work.out, work.stages, work.words, slurm):
            return Completed(message=left)
        return _show(work.result(None))
    return _show(work.result(run_in_flow(work.out, work.stages, dask)))


def _parsed(line: list[str]) -> Namespace:
    """The arguments of a command line; ValueError in place of an exit with a message."""
    messages = io.StringIO()
    try:
        with redirect_stderr(messages):
            return parsed(line)
    except SystemExit:
        raise ValueError(messages.getvalue().strip()) from None


def _show(result: Result) -> State[None]:
    """Show a result as artifacts of the calling flow's run."""
    tables = dict(result.tables)
    if result.rows and result.title:
        tables[result.title] = result.rows
    for title, rows in tables.items():
        show_table(title, rows, title, result.about)
    for title, text in result.texts.items():
        show_markdown(title, text, title, result.about)
    for page in result.pages:
        show_file(page.stem, page, f"{page.stem}, as a page")
    if result.view is not None and _PLAYER in added_commands():
        show_view(result.view)
    return Completed(message=result.message or None)


FLOWS: dict[str, Flow[..., State[None]]] = {
    deployed.name: deployed for deployed in (_deployed(*pair) for pair in _commands(build_parser()))
}
"""Name -> the flow of each command that has work to do."""

# Prefect finds a flow by its module and its function's name.
globals().update({deployed.fn.__name__: deployed for deployed in FLOWS.values()})
