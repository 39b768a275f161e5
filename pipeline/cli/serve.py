"""`gaitforge serve`: the flows on Prefect, with forms and a schedule."""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import Parser, flag, option, positive, store_address, whole


def add_serve(parser: Parser) -> None:
    """`gaitforge serve`."""
    option(parser, "--store", "the store to collect into", store_address)
    option(parser, "--schedule", "when to collect, e.g. '0 2 * * *'", default="", metavar="CRON")
    option(parser, "--timezone", "of the schedule", default="UTC")
    flag(
        parser,
        "--new-every-day",
        "the day is the seed, so every day adds new parts",
    )
    option(parser, "--preset", "size of the plan", default="demo", metavar="NAME")
    option(parser, "--threads", "simulator threads", positive, 2)
    parser.take("--set", settings="grid.parts=4")
    server = parser.add_argument_group("server, unless PREFECT_API_URL names one")
    option(server, "--host", "", default="127.0.0.1")
    option(server, "--port", "0 for a free one", whole, 4200)
    flag(server, "--expose", "allow a host that other machines can reach")
    parser.runs(
        _serve, 'gaitforge serve --store data/legged.zarr --schedule "0 2 * * *" --new-every-day'
    )


def _serve(arguments: argparse.Namespace) -> int:
    from pipeline.serve.serving import ServePlan, serve_flows

    serve_flows(ServePlan(**{name: getattr(arguments, name) for name in ServePlan.__annotations__}))
    return 0
