"""`gaitforge export`, `import` and `formats`: policies, and other projects' data.

The number of names says what is exported: RUN DST is a policy, STORE FORMAT DST is data.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitforge import datasets
from gaitforge.collectors.robots.robot import absolute_robot
from gaitforge.common.errors import install_extra, names_allowed
from gaitforge.common.extensions import usable_entries
from gaitforge.datasets.formats import exporter_class, find_format, format_names, importer_class
from gaitforge.datasets.schema import WORDS
from gaitforge.flows.progress import Reporter, begun_later
from gaitforge.flows.settings import override, setting_names
from gaitforge.pipeline.cli.parsing.options import (
    CELLS,
    JSON,
    STORE,
    TAG,
    WHERE,
    flag,
    group,
    option,
    option_values,
    planned,
    setting,
)
from gaitforge.pipeline.cli.parsing.parser import command
from gaitforge.pipeline.cli.parsing.values import names, positive, store_address
from gaitforge.pipeline.cli.store import chosen_episodes
from gaitforge.pipeline.cli.work import CommandWork, Result, single, work
from gaitforge.pipeline.terminal import cell, show_one, show_result

if TYPE_CHECKING:
    from gaitforge.datasets.formats.protocol import Exporter, Importer, Report

ROBOT = "robot"
"""Setting of an import: the legged robot of its episodes, where the format does not say it."""

ACTIONS = option(
    "--actions",
    "executed, which rewards and next observations follow from, or clean, the labels to imitate "
    "(default: executed where the store tells them; fcnet: clean)",
    choices=tuple(filter(None, WORDS)),
)
"""The option with the actions to export."""

_USAGE = """gaitforge export RUN DST [--formats F,G] [--for RUNTIME] [--checkpoint last|best]
                        [--batch-size N] [--robot ROBOT] [--set NAME=VALUE]
       gaitforge export STORE FORMAT DST [--where CONDITION] [--terrain T] [--skill S] [--level L]
                        [--tag NAME] [--actions clean|executed] [--set NAME=VALUE]"""


@work(
    "gaitforge export runs/fcnet exports/fcnet\n"
    "          gaitforge export legged.zarr d4rl rough.hdf5 --where \"terrain = 'rough'\"",
    lambda parser: setattr(parser, "usage", _USAGE),
    option(
        "places",
        "folder of a training run, or a policy that ships, and the new folder; or a store, a "
        "format (see gaitforge formats) and the new file or folder",
        nargs="+",
        metavar="RUN DST | STORE FORMAT DST",
    ),
    option("--out", "the new file or folder, in place of DST", metavar="DST"),
    group(
        "to export a policy",
        option(
            "--formats",
            "onnx, pt2, or a plug-in's, such as c (default: onnx,pt2; with --for none)",
            names,
        ),
        option(
            "--for",
            "also the files of another project's runtime for robots, such as rl_sar",
            names,
            dest="for_runtimes",
            metavar="RUNTIME",
        ),
        option(
            "--checkpoint", "of the run: last or best (default: last)", choices=("last", "best")
        ),
        option(
            "--batch-size",
            "robots per control step (default: 1)",
            positive,
            also=("--batch",),
            dest="batch",
        ),
        option("--robot", "a name or path, if not the run's own robot"),
    ),
    group("to export data", CELLS, WHERE, TAG, ACTIONS),
    setting("compression=none (d4rl)"),
    JSON,
    runner=False,
)
def export_command(arguments: argparse.Namespace) -> CommandWork:
    """Write a policy for a robot's program, or a store in another format."""
    places = [*arguments.places, *([arguments.out] if arguments.out else [])]
    if len(places) == 2:
        return _export_policy(arguments, *places)
    if len(places) == 3:
        return _export_data(arguments, *places)
    raise ValueError(
        f"export needs RUN DST (a policy) or STORE FORMAT DST (data), not {len(places)} names"
    )


def _export_policy(arguments: argparse.Namespace, source: str, target: str) -> CommandWork:
    from gaitforge.flows.stages.transfer import ExportPlan, run_export
    from gaitforge.learners.export.export import ExportResult, PolicyExportOptions

    formats = _policy_formats(arguments.formats, arguments.for_runtimes or ())
    options = PolicyExportOptions(
        formats,
        settings=_format_settings(formats, arguments),
        **option_values(arguments, batch_size="batch"),
    )
    plan = ExportPlan(options=options, **option_values(arguments, "checkpoint", "robot"))
    run = Path(source)
    destination = Path(target)

    def result(exported: ExportResult) -> Result:
        record = {
            "folder": str(exported.folder),
            "already_there": exported.already_there,
            "bytes": exported.sizes,
            "largest_error": exported.errors,
            **({"note": exported.note} if exported.note else {}),
            **({"notes": list(exported.format_notes)} if exported.format_notes else {}),
        }
        rows = [{"file": name, "bytes": size} for name, size in exported.sizes.items()]
        return Result(record, about=destination, tables={"exported": rows})

    work = partial(run_export, plan, run, destination)
    return single(arguments, "export", work, result, destination)


def _policy_formats(formats: Sequence[str] | None, runtimes: Sequence[str]) -> tuple[str, ...]:
    """Names of the formats to write; ValueError for a runtime that is none."""
    from gaitforge.learners.export.policy_formats import (
        DEFAULT_FORMATS,
        POLICY_FORMATS,
        policy_format,
    )

    for name in runtimes:
        if name not in POLICY_FORMATS or not policy_format(name).of_runtime:
            usable = POLICY_FORMATS.usable().items()
            known = sorted(name for name, entry in usable if entry.of_runtime)
            raise ValueError(f"--for: no runtime '{name}'; {names_allowed(name, known)}")
    chosen = formats if formats is not None else (() if runtimes else DEFAULT_FORMATS)
    return tuple(dict.fromkeys([*chosen, *runtimes]))


def _format_settings(formats: Sequence[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Format -> its options with the settings; ValueError for a setting that none of them has."""
    from gaitforge.learners.export.policy_formats import policy_format

    options = {name: policy_format(name).new_options() for name in formats}
    options = {name: values for name, values in options.items() if values is not None}
    if not options:
        return {}  # where no format has options, --set is refused as one without effect
    changed = {}
    left = dict.fromkeys(arguments.settings)
    for name, values in options.items():
        known = setting_names(values)
        own = [text for text in arguments.settings if text.partition("=")[0] in known]
        left = {text: None for text in left if text not in own}
        if own:
            changed[name] = override(values, own)
    for text in left:
        unknown = text.partition("=")[0]
        allowed = sorted({name for values in options.values() for name in setting_names(values)})
        raise ValueError(f"unknown setting '{unknown}'; {names_allowed(unknown, allowed)}")
    return changed


def _export_data(
    arguments: argparse.Namespace, source: str, name: str, destination: str
) -> CommandWork:
    options = _with_actions(name, planned(exporter_class(name).Options(), arguments), arguments)
    selection = chosen_episodes(
        datasets.open_store(store_address(source), tag=arguments.tag), arguments
    )
    run = partial(export_with_progress, name, selection, Path(destination), asdict(options))
    return single(arguments, "export", run, _report_result, Path(destination))


def _with_actions(name: str, options: Any, arguments: argparse.Namespace) -> Any:
    """A writer's options with the `--actions`, which another package's writer may not have."""
    if arguments.actions is None:
        return options
    if not hasattr(options, "actions"):
        raise ValueError(f"--actions: the format {name} has no such option")
    return replace(options, actions=arguments.actions)


def export_with_progress(
    name: str,
    selection: "datasets.Selection",
    destination: Path,
    options: Mapping[str, object],
    reporter: Reporter,
) -> "Report":
    """Export a selection to a format, and tell the reporter how far it is."""
    from gaitforge.datasets.formats.transfer.exporting import export_selection

    with begun_later(reporter, "export") as begin:
        return export_selection(name, selection, destination, options, begin)


@work(
    "gaitforge import d4rl hopper_medium.hdf5 hopper.zarr",
    option("format", "one of gaitforge formats"),
    option("source", "file or folder of that format", metavar="SRC"),
    STORE,
    option("--workers", "threads that read and write parts", positive),
    flag("--drop-nan", "leave out episodes with NaN or infinity"),
    setting("horizon=1000 (d4rl), robot=robots/mine"),
    JSON,
    runner=False,
)
def import_command(arguments: argparse.Namespace) -> CommandWork:
    """Import another project's data into a store."""
    from gaitforge.flows.stages.transfer import ImportPlan, run_import

    options = importer_class(arguments.format).Options()
    robot, settings = _robot_setting(setting_names(options), arguments.settings)
    values = option_values(arguments, "workers", "drop_nan")
    plan = ImportPlan(arguments.format, asdict(override(options, settings)), robot=robot, **values)
    run = partial(run_import, plan, arguments.source, arguments.store)

    def result(report: "Report") -> Result:
        following = ("train", arguments.store, "--out", f"runs/{Path(arguments.store).stem}")
        return replace(_report_result(report), next=following)

    return single(arguments, "import", run, result)


def _robot_setting(of_format: Sequence[str], settings: Sequence[str]) -> tuple[str, list[str]]:
    """The robot that `--set robot=…` names, unless the format has that option; and the others."""
    if ROBOT in of_format:
        return "", list(settings)
    named = [text.partition("=")[2] for text in settings if text.startswith(f"{ROBOT}=")]
    others = [text for text in settings if not text.startswith(f"{ROBOT}=")]
    written = [text.partition("=")[0] for text in others if "=" in text]
    if unknown := [name for name in written if name.partition(".")[0] not in of_format]:
        allowed = names_allowed(unknown[0], sorted([*of_format, ROBOT]))
        raise ValueError(f"unknown setting '{unknown[0]}'; {allowed}")
    if named and not named[-1]:
        raise ValueError("--set robot= needs a robot: a name, a card or its folder")
    return (absolute_robot(named[-1]) if named else ""), others


def _report_result(report: "Report") -> Result:
    """The counts of an import or export, and what it carried over and what not."""
    tree = asdict(report)
    counts = {name: value for name, value in tree.items() if name != "carried"}
    titles = {"kept": "carried over", "left": "not carried over", "notes": "note"}
    carried = [{"what": t, "line": x} for k, t in titles.items() for x in tree["carried"][k]]
    width = max(map(len, counts))
    lines = [f"{name:<{width}}  {cell(value)}" for name, value in counts.items()]
    lines += [f"{row['what']}: {row['line']}" for row in carried]
    lines.append(f"{report.bytes / 1e6:,.1f} MB in {report.seconds:.1f} s")
    return Result(tree, lines=tuple(lines), about=report.source, tables={"carried over": carried})


@command(
    "gaitforge formats d4rl",
    option("format", "one of them, with its options", default="", nargs="?"),
    JSON,
)
def formats_command(arguments: argparse.Namespace) -> None:
    """List the other projects' formats, or what one is and its options."""
    names = format_names()
    if arguments.format:
        find_format(arguments.format)  # refuses an unknown one
        names = [arguments.format]
    records = []
    for name, entry in usable_entries(names, find_format).items():
        missing = entry.missing
        record: dict[str, object] = {
            "format": name,
            "what": entry.summary,
            "on_disk": entry.layout,
            "available": not missing,
            "install": install_extra(entry.extra) if missing else "",
        }
        if arguments.json or arguments.format:
            known = _options(importer_class, name, missing)
            record["import_options"] = known if missing else list(dict.fromkeys([*known, ROBOT]))
            record["export_options"] = _options(exporter_class, name, missing)
        records.append(record)
    if arguments.format and not arguments.json:
        show_one(records[0], as_json=False)
        return
    rows = [{key: row[key] for key in ("format", "what", "available")} for row in records]
    lacking = [f"{row['format']}: {row['install']}" for row in records if row["install"]]
    show_result(records, rows, arguments.json, *lacking)


def _options(
    cls: "Callable[[str], type[Importer] | type[Exporter]]", name: str, missing: Sequence[str]
) -> list[str]:
    try:
        return [] if missing else setting_names(cls(name).Options())
    except datasets.DatasetError:
        return []
