"""`gaitforge publish`."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from gaitforge import datasets
from gaitforge.common.errors import amount
from gaitforge.common.files import files_under
from gaitforge.pipeline.cli.parsing.options import JSON, STORE, flag, option
from gaitforge.pipeline.cli.parsing.parser import command
from gaitforge.pipeline.cli.parsing.values import uses
from gaitforge.pipeline.cli.store import applied, drawing
from gaitforge.pipeline.cli.transfer import ACTIONS, export_with_progress
from gaitforge.pipeline.terminal import TerminalReporter, show_one


@command(
    "gaitforge publish data/legged.zarr hf://owner/legged --format lerobot --private",
    STORE,
    option("url", "hf://owner/name, a dataset on the Hugging Face Hub"),
    option("--format", "zarr or lerobot", default="zarr", choices=("zarr", "lerobot")),
    ACTIONS,
    flag("--history", "send an edited store with its edits, tags and what they took away"),
    flag("--private", "make a new repository private"),
    option("--revision", "branch to push to (default: main)", default="", metavar="BRANCH"),
    flag("--no-pictures", "skip the card's pictures of typical episodes"),
    JSON,
)
def publish(arguments: argparse.Namespace) -> Callable[[], None]:
    """Push a store with its card to the Hugging Face Hub, in one commit if it takes that."""
    uses(arguments, "store", "url", "private", "revision", "no_pictures", "json")
    uses(arguments, "history" if arguments.format == "zarr" else "actions")
    return partial(_publish, arguments)


def _publish(arguments: argparse.Namespace) -> None:
    from gaitforge.datasets.formats.protocol import README
    from gaitforge.datasets.storage.integrity import store_files
    from gaitforge.pipeline.report.card import write_readme
    from gaitforge.plugins.exchange.entries import CROISSANT
    from gaitforge.plugins.exchange.publishing import hub_repository, push_files

    draw = drawing(arguments)
    repository = hub_repository(arguments.url)
    store = datasets.open_store(arguments.store)
    selection = store.select()
    reporter = TerminalReporter()
    with TemporaryDirectory(prefix="gaitforge-publish-") as temporary:
        folder = Path(temporary, "made")
        if arguments.format == "zarr":
            if store.edits() and not arguments.history:
                store = applied(store, Path(temporary, store.path.name), reporter)
                selection = store.select()
            files = store_files(store)
        else:
            actions = {"actions": arguments.actions or ""}
            export_with_progress("lerobot", selection, folder, actions, reporter)
            files = {name: folder / name for name in files_under(folder)}
        card = Path(temporary, "card")
        reporter.say("card: statistics and pictures")
        files |= write_readme(selection, card, repository, files.get(README), draw)
        if arguments.format != "zarr":
            files.pop(CROISSANT.file)  # it describes a store's files
        size = sum(path.stat().st_size for path in files.values())
        reporter.say(f"push: {amount(len(files), 'file')}, {size / 1e6:,.1f} MB, to {repository}")
        message = f"{amount(len(selection), 'episode')} by gaitforge"
        url = push_files(
            repository,
            files,
            message,
            private=arguments.private,
            revision=arguments.revision,
            say=reporter.say,
        )
        counts = {"files": len(files), "bytes": size, "hash": store.info().hash}
    show_one({"repository": repository, "commit": url, **counts}, arguments.json)
