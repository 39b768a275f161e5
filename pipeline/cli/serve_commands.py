"""What `gaitforge serve` does: a server, the deployed flows, and their schedule, until Ctrl-C."""

from __future__ import annotations

import argparse
import os
from typing import Any

from prefect import serve as serve_deployments
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.schedules import CronSchedule
from prefect.schedules import Cron, Schedule
from prefect.types.entrypoint import EntrypointType
from pydantic import ValidationError

from datasets.storage.s3.bucket import is_bucket_url
from pipeline.cli.plan_choices import collection_plan
from pipeline.serve.deployments import COLLECTIONS_AT_ONCE, FLOWS
from pipeline.serve.prefect_server import check_host, prefect_api

NAME = "gaitforge"
"""Of every deployment: Prefect calls them by flow and name, as collect/gaitforge."""


def serve(arguments: argparse.Namespace) -> int:
    """Serve the deployments until interrupted."""
    check_host(arguments.host, arguments.expose)
    collecting = _collecting(arguments)
    schedule = _schedule(arguments)
    with prefect_api(arguments.host, arguments.port) as url:
        deployments = [
            _deployment(name, collecting if name == "collect" else {}, schedule) for name in FLOWS
        ]
        print(f"Prefect: {url.removesuffix('/api')}")
        print(f"serving {', '.join(f'{name}/{NAME}' for name in FLOWS)}")
        if schedule is not None:
            into = collecting["store"]
            print(f"collect/{NAME} runs at '{schedule.cron}' ({schedule.timezone}) into {into}")
        print("Ctrl-C stops all of it", flush=True)
        serve_deployments(*deployments, print_starting_message=False)
    return 0


def _collecting(arguments: argparse.Namespace) -> dict[str, Any]:
    """What collect/gaitforge has where a run says nothing else; wrong values are refused here."""
    values = {
        "preset": arguments.preset,
        "threads": arguments.threads,
        "settings": arguments.settings,
        "new_every_day": arguments.new_every_day,
    }
    collection_plan(arguments.preset, {}, {"threads": arguments.threads}, arguments.settings)
    if arguments.store is None:
        return values
    store = str(arguments.store)
    return values | {"store": store if is_bucket_url(store) else os.path.abspath(store)}


def _schedule(arguments: argparse.Namespace) -> Schedule | None:
    if not arguments.schedule:
        return None
    if arguments.store is None:
        raise ValueError("a schedule needs --store, where it collects into")
    try:
        CronSchedule(cron=arguments.schedule, timezone=arguments.timezone)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(
            f"cannot schedule '{arguments.schedule}' in {arguments.timezone}: {reason}; five "
            "fields are wanted, as '0 2 * * *' for every night at two"
        ) from None
    return Cron(arguments.schedule, timezone=arguments.timezone)


def _deployment(name: str, parameters: dict[str, Any], schedule: Schedule | None) -> Any:
    limit = ConcurrencyLimitConfig(
        limit=COLLECTIONS_AT_ONCE, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE
    )
    return FLOWS[name].to_deployment(
        NAME,
        parameters=parameters,
        schedule=schedule if name == "collect" else None,
        concurrency_limit=limit if name in ("collect", "demo") else None,
        tags=[NAME],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
