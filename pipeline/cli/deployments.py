"""The Prefect flows of the commands that have work to do, each with a form.

Collections, trainings, evaluations and experiments are written out below. The other commands'
flows, and those that plug-ins bring, are made from the options of their command line: `FLOWS` has
all of them.
"""

import io
from argparse import Namespace, _SubParsersAction
from collections.abc import Callable, Iterator, Mapping
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
from gaitforge.flows.settings import sets
from gaitforge.pipeline.cli.main import build_parser, parsed
from gaitforge.pipeline.cli.parsing.entries import added_commands
from gaitforge.pipeline.cli.parsing.forms import (
    Level,
    Model,
    Objective,
    Place,
    Positive,
    Setting,
    Simulator,
    Size,
    Skill,
    Terrain,
    Whole,
    command_line,
    form_fields,
    form_signature,
    form_text,
    has_runners,
)
from gaitforge.pipeline.cli.parsing.parser import Parser
from gaitforge.pipeline.cli.work import Result

Deployed = Flow[..., State[None]]
"""The flow of a command: its name is the command's, with dashes between words."""

_PLAYER = "view"
"""The command that plays episodes, of a plug-in."""
_PLACES = ("out", "store", "stores", "policy", "places", "what")
"""Parameters that name the output; a run is named by the first that its command has."""

_TAGS = ("store", "model", "terrain", "preset")
_IN_NAME = ("model", "terrain", "skill", "where")


def _commands(
    parser: Parser, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[tuple[str, ...], Parser]]]:
    """Name -> the words and the parser of each command that has work to do."""
    if parser.get_default("begin") is not None:
        yield "-".join(words), (words, parser)
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, inner in action.choices.items():
                yield from _commands(inner, (*words, name))


_COMMANDS = dict(_commands(build_parser()))


def _run_name() -> str:
    """A run's name: the command, its output, and a few of its values in brackets."""
    values = flow_run.parameters
    output = next((values[name] for name in _PLACES if values.get(name)), "")
    output = last_name(output[-1] if isinstance(output, list) else output) if output else ""
    shown = [values[name] for name in _IN_NAME if values.get(name)]
    words = ", ".join(value if isinstance(value, str) else ", ".join(value) for value in shown)
    return f"{flow_run.flow_name} {output}".rstrip() + (f" ({words})" if words else "")


_OPTIONS: dict[str, Any] = {**FLOW_OPTIONS, "flow_run_name": _run_name}
Body = Callable[..., State[None]]


def _described(body: Body) -> Body:
    """A flow's function with its command's help of each parameter, which the form shows."""
    _, parser = _COMMANDS[body.__name__]
    summary = body.__doc__ or str(parser.description)  # `python -OO` drops docstrings
    body.__doc__ = form_text(summary, form_fields(parser), has_runners(parser))
    return body


@flow(name="collect", **_OPTIONS)
@_described
def collect(  # noqa: PLR0913 - a form has as many
    *,
    store: Place,
    preset: Place = "demo",
    task: Place | None = None,
    plan: Place | None = None,
    from_plan: Place | None = None,
    where: Place | None = None,
    parts: list[Whole] | None = None,
    expert: Place | None = None,
    robot: list[str] | None = None,
    policy: Place | None = None,
    labeller: Place | None = None,
    share: float | None = None,
    stretch: Positive | None = None,
    sim: Simulator | None = None,
    isaacgym_python: Place | None = None,
    robots: Positive | None = None,
    seed: Whole | None = None,
    threads: Positive | None = None,
    terrain: list[Terrain] | None = None,
    skill: list[Skill] | None = None,
    level: list[Level] | None = None,
    randomisation: list[Place] | None = None,
    state: bool | None = None,
    privileged: bool = False,
    half: bool = False,
    new_every_day: bool = False,
    settings: list[Setting] | None = None,
    mix_versions: bool = False,
    dask: DaskSettings | None = None,
    slurm: SlurmForm | None = None,
) -> State[None]:
    """Collect the missing parts of a plan into a store."""
    values = dict(locals())
    if new_every_day:
        if seed is not None or sets(settings or (), "seed"):
            raise ValueError("with new_every_day the day is the seed: give no seed")
        day = int(flow_run.scheduled_start_time.strftime("%Y%m%d"))
        values |= {"seed": day, "new_every_day": False}
    return _do("collect", values)


@flow(name="train", **_OPTIONS)
@_described
def train(  # noqa: PLR0913 - a form has as many
    *,
    store: Place,
    model: Model | None = None,
    objective: Objective | None = None,
    out: Place,
    start_from: Place | None = None,
    steps: Positive | None = None,
    batch_size: Positive | None = None,
    optimiser: Place | None = None,
    seed: int | None = None,
    device: Place | None = None,
    terrain: list[Terrain] | None = None,
    skill: list[Skill] | None = None,
    level: list[Level] | None = None,
    where: Place | None = None,
    selection: Place | None = None,
    plan: Place | None = None,
    log: list[str] | None = None,
    settings: list[Setting] | None = None,
    dask: DaskSettings | None = None,
    slurm: SlurmForm | None = None,
) -> State[None]:
    """Train a model on a selection of a store, or resume a run."""
    return _do("train", locals())


@flow(name="evaluate", **_OPTIONS)
@_described
def evaluate(  # noqa: PLR0913 - a form has as many
    *,
    policy: Place,
    task: Place | None = None,
    checkpoint: Place = "last",
    runtime: Place | None = None,
    robot: list[Place] | None = None,
    sim: Simulator | None = None,
    isaacgym_python: Place | None = None,
    randomisation: list[Place] | None = None,
    terrain: list[Terrain] | None = None,
    skill: list[Skill] | None = None,
    level: list[Level] | None = None,
    episodes: Positive | None = None,
    seed: Whole | None = None,
    threads: Positive | None = None,
    against: Place | None = None,
    beside: Place | None = None,
    out: Place | None = None,
    plan: Place | None = None,
    settings: list[Setting] | None = None,
    dask: DaskSettings | None = None,
    slurm: SlurmForm | None = None,
) -> State[None]:
    """Run a policy in closed loop on held-out episodes of its task."""
    return _do("evaluate", locals())


@flow(name="run", **_OPTIONS)
@_described
def run(  # noqa: PLR0913 - a form has as many
    *,
    what: Place | None = None,
    stores: list[Place] | None = None,
    out: Place | None = None,
    learners: list[str] | None = None,
    seeds: list[Whole] | None = None,
    objective: Objective | None = None,
    steps: Positive | None = None,
    batch_size: Positive | None = None,
    device: Place | None = None,
    terrain: list[Terrain] | None = None,
    skill: list[Skill] | None = None,
    level: list[Level] | None = None,
    episodes: Positive | None = None,
    threads: Positive | None = None,
    parts: Positive | None = None,
    randomisation: Place | None = None,
    expert: Place | None = None,
    where: Place | None = None,
    selection: Place | None = None,
    train_time: float | None = None,
    size: Size = "small",
    log: list[str] | None = None,
    settings: list[Setting] | None = None,
    dask: DaskSettings | None = None,
    slurm: SlurmForm | None = None,
) -> State[None]:
    """Run or resume an experiment: learners × sets × seeds, scored."""
    return _do("run", locals())


def flow_of(name: str) -> Deployed:
    """The flow of a command, made from its options."""
    _, parser = _COMMANDS[name]
    fields = form_fields(parser)
    runners = has_runners(parser)

    def body(**values: Any) -> State[None]:
        return _do(name, values)

    body.__name__ = body.__qualname__ = name.replace("-", "_")
    body.__doc__ = form_text(str(parser.description), fields, runners)
    vars(body)["__signature__"] = form_signature(fields, runners)
    return flow(name=name, **_OPTIONS)(body)


def _do(name: str, values: Mapping[str, Any]) -> State[None]:
    """Do a command's work with a form's values in the calling flow, and show the result."""
    words, parser = _COMMANDS[name]
    dask: DaskSettings | None = values.get("dask")
    slurm: SlurmForm | None = values.get("slurm")
    if dask is not None and slurm is not None:
        raise ValueError("give dask or slurm, not both")
    tags = {name: values[name] for name in _TAGS if values.get(name)}
    tag_run(**tags | ({"store": last_name(tags["store"])} if "store" in tags else {}))
    arguments = _parsed([*words, *command_line(form_fields(parser), values)])
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


_WRITTEN = {deployed.name: deployed for deployed in (collect, train, evaluate, run)}
FLOWS: dict[str, Deployed] = {name: _WRITTEN.get(name) or flow_of(name) for name in _COMMANDS}
"""Name -> the flow of each command that has work to do."""

ALONE = frozenset(name for name, (_, parser) in _COMMANDS.items() if parser.get_default("alone"))
"""Names of the flows that run one at a time."""


def __getattr__(name: str) -> Deployed:
    """The flow of another command, which Prefect's entry points name as `deployments:gym_collect`.

    Raises:
        AttributeError: no command has such a flow.
    """
    for deployed in FLOWS.values():
        if deployed.fn.__name__ == name:
            return deployed
    raise AttributeError(f"no flow {name}; there are {', '.join(FLOWS)}")
