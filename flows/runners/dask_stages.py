"""Stages on the workers of a Dask cluster: those that wait for no other one run in parallel."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitforge.flows.progress import Reporter, Silent, StageReporter
from gaitforge.flows.runners.dask import run_dask, run_parts, until_cancelled
from gaitforge.flows.runners.dask_clusters import DaskSettings, dask_client
from gaitforge.flows.stages.stage import Stage, at_work, is_done, ready_stages, run_stage

if TYPE_CHECKING:
    from distributed import Client


def run_stages_on_dask(
    out: Path, stages: Sequence[Stage], reporter: Reporter, settings: DaskSettings | None = None
) -> Any:
    """Do what is left of all stages; parts, trainings and evaluations run on the workers.

    One cluster serves all: a worker takes seconds to load what the stages need.

    Returns:
        What the last stage returns, see `run_stage`.

    Raises:
        ValueError: as `run_dask`, and what a stage raises.
    """
    out = out.absolute()
    result = None
    left = [stage for stage in stages if not is_done(out, stage)]
    if not left:
        return None
    most = None if any(stage.collection for stage in left) else len(left)
    settings = settings or DaskSettings()
    with at_work(out, left), dask_client(settings, most) as client:
        while left:
            ready = {stage.name: stage for stage in ready_stages(left)}
            result = run_ready(client, out, ready, reporter, settings)
            left = [stage for stage in left if stage.name not in ready]
    return result


def run_ready(
    client: "Client",
    out: Path,
    ready: Mapping[str, Stage],
    reporter: Reporter,
    settings: DaskSettings | None = None,
) -> Any:
    """Run stages that wait for no other: collections part by part, the others whole.

    Returns:
        What the last stage returns, see `run_stage`.
    """
    result = None
    for stage in ready.values():
        if stage.collection is not None:
            result = run_stage(
                out, stage, reporter, partial(run_dask, settings=settings, client=client)
            )
    names = [name for name, stage in ready.items() if stage.collection is None]
    if names:
        title = names[0] if len(names) == 1 else f"{len(names)} stages"
        with reporter.step(title, len(names), "stage") as advance:
            work = partial(_make, out, ready)
            deaths = (settings or DaskSettings()).worker_deaths
            results = run_parts(client, work, names, lambda ended: advance(len(ended), ""), deaths)
            result = results[-1]
    return result


def _make(out: Path, stages: Mapping[str, Stage], name: str) -> Any:
    return run_stage(out, stages[name], StageReporter(Silent(), until_cancelled()))
