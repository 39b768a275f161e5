"""Stages on the workers of a Dask cluster: those that wait for no other one run in parallel."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gaitforge.flows.progress import Advance, Reporter
from gaitforge.flows.runners.dask import UntilCancelled, run_dask, run_parts
from gaitforge.flows.runners.dask_clusters import DaskSettings, dask_client
from gaitforge.flows.stages.staging import Stage, is_done, run_stage

if TYPE_CHECKING:
    from distributed import Client

Result = TypeVar("Result")


def run_stages_on_dask(
    out: Path, stages: Sequence[Stage], reporter: Reporter, settings: DaskSettings | None = None
) -> None:
    """Do what is left of all stages; parts, trainings and evaluations run on the workers.

    One cluster serves all: a worker takes seconds to load what the stages need.

    Raises:
        ValueError: as `run_dask`, and what a stage raises.
    """
    out = out.absolute()
    left = [stage for stage in stages if not is_done(out, stage)]
    if not left:
        return
    most = None if any(stage.collection for stage in left) else len(left)
    with dask_client(settings or DaskSettings(), most) as client:
        while left:
            names = {stage.name for stage in left}
            ready = {stage.name: stage for stage in left if names.isdisjoint(stage.after)}
            _run_ready(client, out, ready, reporter)
            left = [stage for stage in left if stage.name not in ready]


def _run_ready(client: "Client", out: Path, ready: Mapping[str, Stage], reporter: Reporter) -> None:
    """Run stages that wait for no other: collections part by part, the others whole."""
    for stage in ready.values():
        if stage.collection is not None:
            run_stage(out, stage, reporter, partial(run_dask, client=client))
    others = [name for name, stage in ready.items() if stage.collection is None]
    if others:
        title = others[0] if len(others) == 1 else f"{len(others)} stages"
        with reporter.step(title, len(others), "stage") as advance:
            work = partial(_make, out, ready)
            run_parts(client, work, others, lambda made: advance(len(made), " ".join(made)))


def run_on_dask(
    name: str,
    work: Callable[[Reporter], Result],
    reporter: Reporter,
    settings: DaskSettings,
) -> Result:
    """What `work` returns on a worker; it ends early once the caller is gone.

    Raises:
        ValueError: as `dask_client`, and what `work` raises.
    """
    with dask_client(settings, 1) as client, reporter.step(name, 1, "task") as advance:
        made = partial(_work, work)
        return run_parts(client, made, [name], lambda ended: advance(len(ended), ""))[0]


def _work(work: Callable[[Reporter], Result], name: str) -> Result:
    return work(_Worker())


def _make(out: Path, stages: Mapping[str, Stage], name: str) -> str:
    run_stage(out, stages[name], _Worker())
    return name


class _Worker:
    """A reporter in a worker: shows nothing, and ends the work once its task is cancelled."""

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `gaitforge.flows.progress.Reporter.step`."""
        yield UntilCancelled()

    def say(self, text: str) -> None:
        """See `gaitforge.flows.progress.Reporter.say`."""
