"""Serve the deployed flows: a Prefect server, their forms and a schedule, until Ctrl-C."""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import Flow
from prefect import serve as serve_deployments
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.schedules import Cron, Schedule
from prefect.server.schemas.schedules import CronSchedule
from prefect.types.entrypoint import EntrypointType
from pydantic import ValidationError

from gaitforge.common.errors import amount
from gaitforge.datasets.storage.s3.bucket import is_bucket_url
from gaitforge.flows.runners.prefect_jobs import SITE
from gaitforge.flows.runners.shown_pages import PAGES_URL
from gaitforge.flows.tasks.legged import legged_plan
from gaitforge.pipeline.serve.page_server import serving_pages
from gaitforge.pipeline.serve.prefect_server import check_host, prefect_api
from gaitforge.pipeline.tables import fields_of

NAME = "gaitforge"
"""Name of every deployment: Prefect lists them as FLOW/NAME, e.g. collect/gaitforge."""

_ALONE = (
    "collect",
    "gym-collect",
    "humanoid-collect",
    "derive",
    "counterfactual",
    "run",
    "pipeline",
    "demo",
)
"""Flows that run one at a time: two collections would compete for the cores."""


@dataclass(frozen=True)
class ServePlan:
    """Plan of serving: collection, schedule and server.

    Attributes:
        store: the default store of collect/gaitforge.
        schedule: when to collect, as cron's five fields; empty for never.
        new_every_day: use the day as the seed.
        preset, threads, settings: defaults of the collection.
        slurm: settings of all Slurm jobs that runs ask for, see `flows/runners/prefect_jobs.py`.
        host, port, expose: the server to start if PREFECT_API_URL names none.
    """

    store: Path | str | None
    schedule: str
    timezone: str
    new_every_day: bool
    preset: str
    threads: int | None
    settings: list[str]
    slurm: Mapping[str, object]
    host: str
    port: int
    expose: bool


def serve_flows(plan: ServePlan, flows: Mapping[str, Flow[..., Any]]) -> None:
    """Serve flows, by their names, until interrupted.

    Raises:
        ValueError: an address that is not to be exposed, a wrong schedule or collection, or a
            server that does not answer.
    """
    check_host(plan.host, plan.expose)
    collecting = _collecting(plan)
    schedule = _schedule(plan)
    pages_port = plan.port + 1 if plan.port else 0
    with serving_pages(pages_port) as pages, prefect_api(plan.host, plan.port) as url:
        os.environ[PAGES_URL] = pages
        os.environ[SITE] = json.dumps(dict(plan.slurm))
        os.environ["PYTHONSAFEPATH"] = "1"  # a run's `python -m` imports nothing of this folder
        deployments = [
            _deployment(flows[name], collecting if name == "collect" else {}, schedule)
            for name in flows
        ]
        print(f"Prefect: {url.removesuffix('/api')}")
        print(f"pages of reports and episodes: {pages}, as the runs' artifacts link them")
        print(f"serving {', '.join(f'{name}/{NAME}' for name in flows)}")
        if schedule is not None:
            into = collecting["store"]
            print(f"collect/{NAME} runs at '{schedule.cron}' ({schedule.timezone}) into {into}")
        print("Ctrl-C stops all of it", flush=True)
        serve_deployments(*deployments, print_starting_message=False)


def _collecting(plan: ServePlan) -> dict[str, object]:
    """The default parameters of collect/gaitforge; wrong values are refused here."""
    values: dict[str, object] = fields_of(plan, "preset", "threads", "settings", "new_every_day")
    if plan.threads is None:
        del values["threads"]
    collection = legged_plan(plan.preset, {"threads": plan.threads or 0}, plan.settings)  # raises
    if plan.new_every_day and collection.grid.seed != legged_plan(plan.preset).grid.seed:
        raise ValueError("with --new-every-day the day is the seed: drop --set grid.seed")
    if plan.store is None:
        return values
    store = str(plan.store)
    return values | {"store": store if is_bucket_url(store) else os.path.abspath(store)}


def _schedule(plan: ServePlan) -> Schedule | None:
    if not plan.schedule:
        return None
    if plan.store is None:
        raise ValueError("a schedule needs --store, where it collects into")
    try:
        # Prefect also takes six, of which the last are seconds.
        if (fields := len(plan.schedule.split())) != 5:
            raise ValueError(f"it has {amount(fields, 'field')}")
        # Raises where no date ever comes.
        asyncio.run(CronSchedule(cron=plan.schedule, timezone=plan.timezone).get_dates(1))
    except ValueError as error:
        invalid = isinstance(error, ValidationError)
        reason = error.errors()[0]["msg"].removeprefix("Value error, ") if invalid else error
        raise ValueError(
            f"cannot schedule '{plan.schedule}' in {plan.timezone}: {reason}; five "
            "fields are wanted, as '0 2 * * *' for every night at two"
        ) from None
    return Cron(plan.schedule, timezone=plan.timezone)


def _deployment(
    deployed: Flow[..., Any], parameters: dict[str, object], schedule: Schedule | None
) -> Any:
    limit = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)
    return deployed.to_deployment(
        NAME,
        parameters=parameters,
        schedule=schedule if deployed.name == "collect" else None,
        concurrency_limit=limit if deployed.name in _ALONE else None,
        tags=[NAME],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
