"""`gaitforge status`, `serve` and `notify`: work that runs, and what Prefect starts."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gaitforge.datasets.errors import amount
from gaitforge.flows.runners.slurm import jobs as slurm
from gaitforge.flows.stages.status import (
    ActivePart,
    CollectionStatus,
    TrainingStatus,
    as_tree,
    is_experiment,
    status,
)
from gaitforge.pipeline.cli.parsing.parser import command, flag, group, option, setting
from gaitforge.pipeline.cli.parsing.runners import SITE_SLURM, site_settings
from gaitforge.pipeline.cli.parsing.values import names, port, positive, store_address
from gaitforge.pipeline.tables import duration, table

_WATCH_S = 2.0
_MOST_FAILED = 5
"""Failed parts that are shown; JSON has them all."""

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
    "--json",
)
def status_command(arguments: argparse.Namespace) -> None:
    """Show the progress of collections, training runs and experiments, from their files."""
    while True:
        seen = [_looked_at(place) for place in arguments.places]
        tree, lines, ended = seen[0] if len(seen) == 1 else _overview(arguments.places, seen)
        if arguments.json:
            print(json.dumps(tree, indent=None if arguments.watch else 1), flush=True)
        else:
            start = _CLEAR if arguments.watch and sys.stdout.isatty() else ""
            print(start + "\n".join(lines), flush=True)
        if not arguments.watch or ended:
            return
        time.sleep(_WATCH_S)


Seen = tuple[dict[str, Any], list[str], bool]


def _looked_at(place: Path | str) -> Seen:
    """A place's status as JSON values and as lines, and whether nothing works on it."""
    return _look_at_experiment(place) if is_experiment(place) else _look(place)


def _overview(places: Sequence[Path | str], seen: Sequence[Seen]) -> Any:
    """Several statuses as one: a list, and a table of a row each."""
    rows = []
    for place, (tree, _, _) in zip(places, seen, strict=True):
        if tree["kind"] == "experiment":
            done = sum(row["state"] == "done" for row in tree["stages"])
            progress, left = f"{done} of {len(tree['stages'])} stages", None
        elif tree["kind"] == "store":
            progress, left = f"{tree['done']:,} of {tree['planned']:,} parts", tree["remaining_s"]
        else:
            progress, left = f"{tree['step']:,} of {tree['steps']:,} steps", tree["remaining_s"]
        row = {"place": str(place), "state": tree["state"], "progress": progress}
        rows.append(row | {"steps/s": tree.get("steps_per_s"), "left": duration(left)})
    return [tree for tree, _, _ in seen], [table(rows)], all(ended for _, _, ended in seen)


def _look(place: Path | str) -> Seen:
    """A store's or run's status as JSON values and as lines, and whether nothing works on it."""
    found = status(place)
    collection = isinstance(found, CollectionStatus)
    lines = _collection_lines(found) if collection else _training_lines(found)
    ended = found.state == "complete" or (found.state == "stopped" and not _jobs_of(found))
    return as_tree(found), lines, ended


def _look_at_experiment(place: Path | str) -> Seen:
    from gaitforge.flows.experiments.stages import claimed
    from gaitforge.flows.runners.slurm.stages import stage_rows
    from gaitforge.pipeline.report.experiment import stages_of

    out = Path(place)
    rows = stage_rows(out, stages_of(claimed(out), out))
    states = {row["state"] for row in rows}
    works = states & {"working", *_LIVE}
    state = "complete" if states == {"done"} else "working" if works else "stopped"
    tree = {"kind": "experiment", "experiment": str(out), "state": state, "stages": rows}
    return tree, [f"{out}: {state}", "", table(rows)], not works


def _collection_lines(found: CollectionStatus) -> list[str]:
    share = f" ({found.done / found.planned:.0%})" if found.planned else ""
    lines = [
        f"{found.store}: {found.state}",
        f"parts    {found.done:,} of {found.planned:,} planned{share}, {found.missing:,} missing"
        + (f", {found.other:,} of no plan kept beside the store" if found.other else ""),
        f"size     {amount(found.steps, 'step')}, {amount(found.episodes, 'episode')}, "
        f"{found.bytes / 1e6:,.1f} MB",
        f"rate     {found.steps_per_s:,.0f} steps/s over the last parts"
        + (f", {found.working_steps_per_s:,.0f} now" if found.state == "working" else ""),
    ]
    if found.missing:
        left = duration(found.remaining_s)
        if found.state != "working":
            left = _jobs_of(found) or "no process or job works on them"
        lines.append(f"left     {amount(found.remaining_steps, 'step')}, {left}")
    if found.active:
        lines += ["", table([_active_row(part) for part in found.active])]
    lines += _failed_lines(found)
    return lines


_LIVE = {"waiting": "waits", "running": "starts", "unknown": "was submitted; no Slurm here to ask"}


def _jobs_of(found: CollectionStatus | TrainingStatus) -> str:
    """The Slurm jobs of a store or run that have not ended, as words."""
    collection = isinstance(found, CollectionStatus)
    place = slurm.jobs_folder(found.store) if collection else Path(found.run) / "jobs"
    jobs = slurm.find_jobs(place) if place.is_dir() else []
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


def _failed_lines(found: CollectionStatus) -> list[str]:
    still = [part for part in found.failed if not part.made_since]
    mended = len(found.failed) - len(still)
    lines = [""] if found.failed else []
    for part in still[-_MOST_FAILED:]:
        lines.append(f"failed   {part.part}, {amount(part.failures, 'time')}; last: {part.error}")
    if len(still) > _MOST_FAILED:
        lines.append(f"failed   {len(still) - _MOST_FAILED} more; --json lists them")
    if mended:
        lines.append(f"mended   {amount(mended, 'part')} failed at first and succeeded later")
    return lines


def _training_lines(found: TrainingStatus) -> list[str]:
    share = f" ({found.step / found.steps:.0%})" if found.steps else ""
    lines = [f"{found.run}: {found.state}"]
    if found.state == "stopped":
        lines[0] += f", wrote nothing for {duration(found.quiet_s)}"
    if found.state in ("empty", "stopped") and (jobs := _jobs_of(found)):
        lines[0] += f"; {jobs}"
    lines.append(f"step     {found.step:,} of {found.steps:,}{share}, {found.model}")
    if found.loss is not None:
        held_out = found.validation_loss
        beside = f", {held_out:.5f} on held-out episodes" if held_out is not None else ""
        lines.append(f"loss     {found.loss:.5f}{beside}")
    if found.steps_per_s is not None:
        lines.append(f"rate     {found.steps_per_s:,.0f} control steps/s")
    lines.append(f"time     {duration(found.elapsed_s)} so far, {duration(found.remaining_s)} left")
    return lines


@command(
    'gaitforge serve --store data/legged.zarr --schedule "0 2 * * *" --new-every-day',
    option("--store", "the store to collect into", store_address),
    option("--schedule", "when to collect, e.g. '0 2 * * *'", default="", metavar="CRON"),
    option("--timezone", "time zone of the schedule", default="UTC", metavar="AREA/CITY"),
    flag("--new-every-day", "the day is the seed, so every day adds new parts"),
    "--preset",
    option("--threads", "simulator threads", positive, 2),
    setting("grid.parts=4"),
    group(
        "server, unless PREFECT_API_URL names one",
        option("--host", "address to listen at", default="127.0.0.1", metavar="ADDRESS"),
        option("--port", "port; 0 for any free one", port, 4200),
        flag("--expose", "allow a host that other machines can reach"),
    ),
    SITE_SLURM,
)
def serve_command(arguments: argparse.Namespace) -> None:
    """Serve the flows to Prefect, with forms and a schedule, until Ctrl-C."""
    from gaitforge.pipeline.cli.deployments import FLOWS
    from gaitforge.pipeline.serve.serving import ServePlan, serve_flows

    names = [name for name in ServePlan.__annotations__ if name != "slurm"]
    plan = {name: getattr(arguments, name) for name in names}
    serve_flows(ServePlan(**plan, slurm=site_settings(arguments)), FLOWS)


@command(
    "gaitforge notify --url https://hooks.example.org/robots --on failed,nothing-collected",
    option("--url", 'address of a web hook that takes {"text": MESSAGE}', metavar="URL"),
    option("--on", "reasons: failed, late, nothing-collected (default: all)", names),
    option("--hours", "without a collected part, for nothing-collected", positive, 26),
    flag("--remove", "remove what this command has set up"),
)
def notify_command(arguments: argparse.Namespace) -> None:
    """Tell a web hook when Prefect's runs fail, are late, or collect nothing."""
    from gaitforge.pipeline.serve.notify import (
        REASONS,
        NotifyPlan,
        remove_notifications,
        set_up_notifications,
    )

    if arguments.remove:
        remove_notifications()
        return
    plan = NotifyPlan(arguments.url or "", arguments.on or REASONS, arguments.hours)
    print("set up " + ", ".join(set_up_notifications(plan)))
