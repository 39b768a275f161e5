"""`gaitforge serve` and `notify`: work that Prefect starts, and messages about it."""

import argparse

from gaitforge.pipeline.cli.parsing.parser import command, flag, group, option, setting
from gaitforge.pipeline.cli.parsing.runners import SITE_SLURM, site_settings
from gaitforge.pipeline.cli.parsing.values import names, port, positive, store_address


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
