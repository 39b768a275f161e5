"""`gaitforge publish`, `get`, `manifest` and `record`."""

import argparse
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from gaitforge import datasets
from gaitforge.common.errors import amount
from gaitforge.common.files import files_under
from gaitforge.flows.progress import begun_later
from gaitforge.pipeline.cli.parsing.options import (
    CELL_FIELDS,
    CELLS,
    JSON,
    SELECTION,
    STORE,
    TAG,
    WHERE,
    flag,
    option,
)
from gaitforge.pipeline.cli.parsing.parser import command
from gaitforge.pipeline.cli.parsing.values import positive, store_address, uses, whole
from gaitforge.pipeline.cli.store import applied, chosen_episodes, drawing
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
    from gaitforge.plugins.exchange.web.manifest import MANIFEST, manifest_text

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
            listing = Path(temporary, MANIFEST)
            listing.write_text(manifest_text(files))
            files[MANIFEST] = listing
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


@command(
    "gaitforge get hf://datasets/owner/legged --where \"terrain = 'stairs'\" stairs.zarr",
    option("store", "address of a store: hf://, https://, s3:// or a folder", store_address),
    option("out", "the new store's folder", Path),
    CELLS,
    WHERE,
    SELECTION,
    TAG,
    JSON,
)
def get(arguments: argparse.Namespace) -> Callable[[], None]:
    """Copy the selected episodes of a store, which may lie on a server, into a local store."""
    uses(arguments, "store", "out", "where", "selection", "tag", "json", *CELL_FIELDS.values())
    return partial(_get, arguments)


def _get(arguments: argparse.Namespace) -> None:
    from gaitforge.plugins.exchange.web.get import get_selection

    store = datasets.open_store(arguments.store, tag=arguments.tag)
    selection = chosen_episodes(store, arguments)
    with begun_later(TerminalReporter(), "get") as begin:
        copied = get_selection(selection, arguments.out, begin)
    show_one(asdict(copied), arguments.json)


@command("gaitforge manifest data/legged.zarr", STORE, JSON)
def manifest(arguments: argparse.Namespace) -> Callable[[], None]:
    """Write the list of a store's files into it, by which it is read from a web server."""
    uses(arguments, "store", "json")
    return partial(_manifest, arguments)


def _manifest(arguments: argparse.Namespace) -> None:
    from gaitforge.plugins.exchange.web.manifest import write_manifest

    path = write_manifest(datasets.open_store(arguments.store))
    show_one({"manifest": str(path), "bytes": path.stat().st_size}, arguments.json)


@command(
    "gaitforge record go1.zarr --env mjlab:Mjlab-Velocity-Flat-Unitree-Go1 --policy policy.onnx",
    STORE,
    option("--env", "mjlab:TASK, gymnasium:ID, or module:function of the robots", required=True),
    option("--policy", "random, a file NAME.onnx, or module:function", default="random"),
    option("--robots", "stepped together", positive, 64),
    option("--steps", "of each robot", positive, 1000),
    option("--seed", "of the environment, and of random actions", whole, 0),
    option("--device", "of mjlab's simulation", default="cpu"),
    option("--part-steps", "steps of a part, at least", positive, 200_000),
    option("--control-dt", "seconds of a step, where the environment does not tell it", float),
    JSON,
)
def record(arguments: argparse.Namespace) -> Callable[[], None]:
    """Step an environment of mjlab, Gymnasium or your own with a policy, and record it."""
    uses(arguments, "store", "env", "policy", "robots", "steps", "seed", "device", "part_steps")
    uses(arguments, "control_dt", "json")
    return partial(_record, arguments)


def _record(arguments: argparse.Namespace) -> None:
    from gaitforge.plugins.exchange.recording.loops import made_environment, made_policy, run_loop
    from gaitforge.plugins.exchange.recording.recording import record as recording

    env = made_environment(arguments.env, arguments.robots, arguments.device)
    act = made_policy(arguments.policy, env, arguments.seed)
    of_all = {"task": arguments.env, "quality": arguments.policy, "policy": arguments.policy}
    total = arguments.robots * arguments.steps
    with (
        TerminalReporter().step("record", total, "step") as advance,
        recording(
            arguments.store,
            env,
            part_steps=arguments.part_steps,
            control_dt_s=arguments.control_dt,
            **of_all,
        ),
    ):
        run_loop(env, act, arguments.steps, arguments.seed, lambda steps: advance(steps, ""))
    info = datasets.open_store(arguments.store).info()
    made = {"store": str(arguments.store), "episodes": info.episodes, "steps": info.steps}
    show_one({**made, "parts": info.parts, "hash": info.hash}, arguments.json)
