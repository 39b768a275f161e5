"""`gaitforge status`, `serve` and `notify`: work that runs, and what Prefect starts."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gaitforge.common.errors import amount
from gaitforge.common.limits import Range
from gaitforge.flows.runners.slurm import jobs as slurm
from gaitforge.flows.stages.status import (
    ActivePart,
    CollectionStatus,
    TrainingStatus,
    as_tree,
    staged_kind,
    status,
)
from gaitforge.pipeline.cli.parsing.options import (
    JSON,
    PRESET,
    THREADS,
    TRUST,
    flag,
    group,
    needs,
    option,
    setting,
)
from gaitforge.pipeline.cli.parsing.parser import command
from gaitforge.pipeline.cli.parsing.runners import (
    COLLECTING_SLURM,
    SITE_SLURM,
    collecting_settings,
    site_settings,
)
from gaitforge.pipeline.cli.parsing.values import Number, names, positive, store_address, uses
from gaitforge.pipeline.terminal import duration, json_text, table

_WATCH_S = 2.0
_MOST_FAILED = 5
"""Most failed parts that are shown; JSON has them all."""

_CLEAR = "\x1b[H\x1b[J"


@command(
    "gaitforge status data/legged.zarr --watch\n"
    "          gaitforge status data/*.zarr runs/* --watch",
    option(
        "places",
        "stores, and folders of trainings and experiments; a row of each where there are several",
        store_address,
        metavar="STORE|RUN|EXPERIMENT",
        nargs="+",
    ),
    flag("--watch", "repeat every two seconds until the work has ended"),
    JSON,
    TRUST,
)
def status_command(arguments: argparse.Namespace) -> None:
    """Show the progress of collections, training runs and experiments, from their files."""
    while True:
        seen = [_looked_at(path) for path in arguments.places]
        tree, lines, ended = seen[0] if len(seen) == 1 else _overview(arguments.places, seen)
        if arguments.json:
            print(json_text(tree, None if arguments.watch else 1), flush=True)
        else:
            start = _CLEAR if arguments.watch and sys.stdout.isatty() else ""
            print(start + "\n".join(lines), flush=True)
        if not arguments.watch or ended:
            return
        time.sleep(_WATCH_S)


Seen = tuple[dict[str, Any], list[str], bool]
"""A status as JSON values and as lines, and whether nothing works on it."""


def _looked_at(path: Path | str) -> Seen:
    """The status of a store, run or experiment."""
    return _look_at_experiment(path) if staged_kind(path) else _look(path)


def _overview(
    places: Sequence[Path | str], seen: Sequence[Seen]
) -> tuple[list[dict[str, Any]], list[str], bool]:
    """Several statuses as one: their list, and a table with a row each."""
    rows = []
    for path, (tree, _, _) in zip(places, seen, strict=True):
        if tree["kind"] == "experiment":
            done = sum(row["state"] == "done" for row in tree["stages"])
            progress = f"{done} of {len(tree['stages'])} stages"
            left = None
        elif tree["kind"] == "store":
            progress = f"{tree['done']:,} of {tree['planned']:,} parts"
            left = tree["remaining_s"]
        else:
            progress = f"{tree['step']:,} of {tree['steps']:,} steps"
            left = tree["remaining_s"]
        row = {"place": str(path), "state": tree["state"], "progress": progress}
        rows.append(row | {"steps/s": tree.get("steps_per_s"), "left": duration(left)})
    return [tree for tree, _, _ in seen], [table(rows)], all(ended for _, _, ended in seen)


def _look(path: Path | str) -> Seen:
    """The status of a store or run."""
    work = status(path)
    collection = isinstance(work, CollectionStatus)
    lines = _collection_lines(work) if collection else _training_lines(work)
    rests = work.state in ("empty", "stopped")
    ended = work.state == "complete" or (rests and not _jobs_of(work))
    return as_tree(work), lines, ended


def _look_at_experiment(path: Path | str) -> Seen:
    from gaitforge.flows.runners.slurm.chain import stage_rows
    from gaitforge.pipeline.report.experiment import stages_in

    out = Path(path)
    rows = stage_rows(out, stages_in(out))
    states = {row["state"] for row in rows}
    works = states & {"working", *_LIVE}
    state = "complete" if states == {"done"} else "working" if works else "stopped"
    tree = {"kind": "experiment", "experiment": str(out), "state": state, "stages": rows}
    return tree, [f"{out}: {state}", "", table(rows)], not works


def _collection_lines(work: CollectionStatus) -> list[str]:
    share = f" ({work.done / work.planned:.0%})" if work.planned else ""
    lines = [
        f"{work.store}: {work.state}",
        f"parts    {work.done:,} of {work.planned:,} planned{share}, {work.missing:,} missing"
        + (f", {work.other:,} of no plan kept beside the store" if work.other else ""),
        f"size     {amount(work.steps, 'step')}, {amount(work.episodes, 'episode')}, "
        f"{work.bytes / 1e6:,.1f} MB",
    ]
    rates = {"over the last parts": work.steps_per_s}
    if work.state == "working":
        rates["now"] = work.working_steps_per_s
    if told := [f"{rate:,.0f} steps/s {when}" for when, rate in rates.items() if rate]:
        lines.append(f"rate     {', '.join(told)}")
    if work.missing:
        left = duration(work.remaining_s, unknown="")
        if work.state != "working":
            left = _jobs_of(work) or "no process or job works on them"
        steps = amount(work.remaining_steps, "step")
        lines.append(f"left     {', '.join(filter(None, (steps, left)))}")
    if work.active:
        lines += ["", table([_active_row(part) for part in work.active])]
    lines += _failed_lines(work)
    return lines


_LIVE = {"waiting": "waits", "running": "starts", "unknown": "was submitted; no Slurm here to ask"}


def _jobs_of(work: CollectionStatus | TrainingStatus) -> str:
    """The Slurm jobs of a store or run that have not ended, as words."""
    collection = isinstance(work, CollectionStatus)
    folder = slurm.jobs_folder(work.store) if collection else Path(work.run) / "jobs"
    jobs = slurm.find_jobs(folder) if folder.is_dir() else []
    try:
        states = [(job, slurm.job_state(tasks)) for job, tasks in slurm.states_of(jobs)]
    except ValueError as error:  # Slurm does not answer
        return f"its jobs are unknown: {error}"
    live = {job: _LIVE[state] for job, state in states if state in _LIVE}
    words = ((job.id, live[job]) if job.id else (job.folder.name, "may be queued") for job in live)
    return ", ".join(f"job {name} {state}" for name, state in words)


def _active_row(part: ActivePart) -> dict[str, object]:
    return {
        "part in work": part.part,
        "host": part.host,
        "pid": str(part.pid),
        "steps": part.steps,
        "of": part.total,
        "steps/s": round(part.steps_per_s),
        "phase": "stale" if part.stale else part.phase,
        "heartbeat": f"{duration(part.heartbeat_age_s)} ago",
    }


def _failed_lines(work: CollectionStatus) -> list[str]:
    still = [part for part in work.failed if not part.made_since]
    mended = len(work.failed) - len(still)
    lines = [""] if work.failed else []
    for part in still[-_MOST_FAILED:]:
        lines.append(f"failed   {part.part}, {amount(part.failures, 'time')}; last: {part.error}")
    if len(still) > _MOST_FAILED:
        lines.append(f"failed   {len(still) - _MOST_FAILED} more; --json lists them")
    if mended:
        lines.append(f"mended   {amount(mended, 'part')} failed at first and succeeded later")
    return lines


def _training_lines(work: TrainingStatus) -> list[str]:
    share = f" ({work.step / work.steps:.0%})" if work.steps else ""
    lines = [f"{work.run}: {work.state}"]
    if work.state == "stopped":
        lines[0] += f", wrote nothing for {duration(work.quiet_s)}"
    if work.state in ("empty", "stopped") and (jobs := _jobs_of(work)):
        lines[0] += f"; {jobs}"
    if work.steps:
        model = f", {work.model}" if work.model else ""
        lines.append(f"step     {work.step:,} of {work.steps:,}{share}{model}")
    if work.loss is not None:
        held_out = work.validation_loss
        beside = f", {held_out:.5f} on held-out episodes" if held_out is not None else ""
        lines.append(f"loss     {work.loss:.5f}{beside}")
    if work.steps_per_s is not None:
        lines.append(f"rate     {work.steps_per_s:,.0f} control steps/s")
    if work.elapsed_s:
        left = duration(work.remaining_s, unknown="")
        lines.append(f"time     {duration(work.elapsed_s)} so far{left and f', {left} left'}")
    return lines


@command(
    'gaitforge serve --store data/legged.zarr --schedule "0 2 * * *" --new-every-day',
    option("--store", "the store to collect into", store_address),
    option("--schedule", "when to collect, e.g. '0 2 * * *'", default="", metavar="CRON"),
    option("--timezone", "time zone of the schedule", default="UTC", metavar="AREA/CITY"),
    flag("--new-every-day", "the day is the seed, so every day adds new parts"),
    PRESET,
    THREADS,
    TRUST,
    setting("grid.parts=4"),
    group(
        "server, unless PREFECT_API_URL names one",
        option("--host", "address to listen at", default="127.0.0.1", metavar="ADDRESS"),
        option("--port", "port; 0 for any free one", Number(Range(0, 65535)), 4200, metavar="PORT"),
        flag("--expose", "allow a host that other machines can reach"),
    ),
    COLLECTING_SLURM,
    SITE_SLURM,
    needs("flows"),
)
def serve_command(arguments: argparse.Namespace) -> Callable[[], None]:
    """Serve the flows to Prefect, with forms and a schedule, until Ctrl-C."""
    from gaitforge.pipeline.cli.deployments import ALONE, FLOWS
    from gaitforge.pipeline.serve.prefect_server import configured_server
    from gaitforge.pipeline.serve.serving import ServePlan, serve_flows

    names = ("store", "schedule", "new_every_day", "preset", "threads", "settings")
    plan = {name: getattr(arguments, name) for name in (*names, "port")}
    if arguments.schedule:
        uses(arguments, "timezone")
    if not configured_server():  # else no server is started
        uses(arguments, "host", "expose")
    values = vars(arguments)
    plan |= {name: values[name] for name in ("timezone", "host", "expose")}
    jobs = {"slurm": site_settings(arguments), "collecting": collecting_settings(arguments)}
    served = ServePlan(**plan, **jobs)
    return partial(serve_flows, served, FLOWS, ALONE)


@command(
    "gaitforge notify --url https://hooks.example.org/robots --on failed,nothing-collected",
    option("--url", 'address of a web hook that takes {"text": MESSAGE}', metavar="URL"),
    option("--on", "reasons: failed, late, nothing-collected (default: all)", names),
    option("--hours", "without a collected part, for nothing-collected", positive, 26),
    flag("--remove", "remove what this command has set up"),
    needs("flows"),
)
def notify_command(arguments: argparse.Namespace) -> Callable[[], object]:
    """Tell a web hook when Prefect's runs fail, are late, or collect nothing."""
    from gaitforge.pipeline.serve.prefect_server import (
        NOTHING_COLLECTED,
        REASONS,
        NotifyPlan,
        set_up_notifications,
    )

    if arguments.remove:
        return partial(set_up_notifications, None)
    reasons = arguments.on or REASONS
    if NOTHING_COLLECTED in reasons:
        uses(arguments, "hours")
    plan = NotifyPlan(arguments.url or "", reasons, vars(arguments)["hours"])
    return lambda: print("set up " + ", ".join(set_up_notifications(plan)))
