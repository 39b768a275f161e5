"""The parsers of the commands on work that runs: its status, and the jobs that do it."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import add_json, add_settings, command, positive, store_address, whole


def add_flow_commands(commands: argparse._SubParsersAction) -> None:
    """All commands on work that runs."""
    _add_status(commands)
    _add_jobs(commands)
    _add_serve(commands)


def _add_status(commands: argparse._SubParsersAction) -> None:
    status = command(
        commands,
        "status",
        "show how far a collection or a training run is, from its files",
        "gaitforge status data/legged.zarr --watch",
    )
    status.add_argument(
        "place",
        metavar="STORE|RUN",
        type=store_address,
        help="a store, or the folder of a training run",
    )
    status.add_argument(
        "--watch", action="store_true", help="again every two seconds, until nobody works on it"
    )
    add_json(status)
    status.set_defaults(run="cli.status_commands:show_status")


def _add_jobs(commands: argparse._SubParsersAction) -> None:
    jobs = command(
        commands,
        "jobs",
        "list, follow and cancel the Slurm jobs of stores and runs",
        "gaitforge jobs list data/legged.zarr",
    )
    actions = jobs.add_subparsers(dest="action", required=True, metavar="ACTION")
    known = "a job's folder or id, a store, a run, or a folder that holds them"

    listing = command(
        actions, "list", "list jobs, or the tasks of one", "gaitforge jobs list runs/fcnet"
    )
    listing.add_argument(
        "job", nargs="?", default=".", metavar="FOLDER|JOB", help=f"{known} (default: %(default)s)"
    )
    add_json(listing)
    listing.set_defaults(run="cli.jobs_commands:list_jobs")

    follow = command(
        actions,
        "follow",
        "print a job's log as it grows until the job ends; exit 1 if it failed",
        "gaitforge jobs follow 1234",
    )
    follow.add_argument("job", metavar="FOLDER|JOB", help=known)
    follow.set_defaults(run="cli.jobs_commands:follow_job")

    cancel = command(
        actions,
        "cancel",
        "cancel a job; what it committed or saved stays",
        "gaitforge jobs cancel 1234",
    )
    cancel.add_argument("job", metavar="FOLDER|JOB", help=known)
    add_json(cancel)
    cancel.set_defaults(run="cli.jobs_commands:cancel")

    run = command(
        actions,
        "run",
        "do a job folder's work in this process, as its script does",
        "gaitforge jobs run data/legged.zarr.jobs/collect-20260131-120000 --task 3",
    )
    run.add_argument("folder", type=Path, metavar="FOLDER", help="of the job")
    run.add_argument("--task", type=whole, default=0, help="of an array (default: %(default)s)")
    run.set_defaults(run="cli.jobs_commands:run")


def _add_serve(commands: argparse._SubParsersAction) -> None:
    serve = command(
        commands,
        "serve",
        "serve the flows to Prefect: its page, forms, and a schedule, until Ctrl-C",
        'gaitforge serve --store data/legged.zarr --schedule "0 2 * * *" --new-every-day',
    )
    serve.add_argument("--store", type=store_address, help="what is collected into")
    serve.add_argument(
        "--schedule", default="", metavar="CRON", help="when to collect, as '0 2 * * *'"
    )
    serve.add_argument("--timezone", default="UTC", help="of the schedule (default: %(default)s)")
    serve.add_argument(
        "--new-every-day",
        action="store_true",
        help="the day is the seed, so that every day's runs add parts of their own",
    )
    serve.add_argument("--preset", default="demo", help="what to collect (default: %(default)s)")
    serve.add_argument(
        "--threads", type=positive, default=2, help="that collect (default: %(default)s)"
    )
    add_settings(serve, "grid.parts=4")
    server = serve.add_argument_group("the server that is started unless PREFECT_API_URL names one")
    server.add_argument("--host", default="127.0.0.1", help="(default: %(default)s)")
    server.add_argument(
        "--port", type=whole, default=4200, help="0 for a free one (default: %(default)s)"
    )
    server.add_argument(
        "--expose", action="store_true", help="allow a host that other machines reach"
    )
    serve.set_defaults(run="cli.serve_commands:serve")
