"""`gaitforge view`: a page that plays episodes."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gaitforge import datasets
from gaitforge.common.errors import amount
from gaitforge.datasets.layout import ROOT_FILE, check_outside_stores
from gaitforge.pipeline.cli.parsing.options import (
    CELL_FIELDS,
    CELLS,
    JSON,
    TRUST,
    WHERE,
    WITH_RECORDED_VERSIONS,
    group,
    needs,
    option,
    option_values,
)
from gaitforge.pipeline.cli.parsing.parser import command
from gaitforge.pipeline.cli.parsing.values import names, positive, store_address, uses
from gaitforge.pipeline.cli.store import chosen_episodes
from gaitforge.pipeline.terminal import TerminalReporter, show_one

if TYPE_CHECKING:
    from gaitforge.plugins.player.episodes import Show

_LEVEL = 4
_HELD_OUT_EPISODES = 3


@command(
    "gaitforge view fcnet-aliengo --terrain stairs\n"
    '          gaitforge view data/legged.zarr --terrain stairs --where "not success"\n'
    "          gaitforge view data/legged.zarr --episode a293cb-00017 --video fall.mp4",
    option(
        "source",
        "a store; the folder of a training run or exported policy, or a policy that ships "
        "(fcnet-aliengo), which then runs on held-out episodes; or an evaluation's file, whose "
        "worst, median and best episodes run again",
        store_address,
        metavar="STORE|RUN|EVALUATION",
    ),
    CELLS,
    WHERE,
    option(
        "--episode",
        "these episodes only, e.g. a293cb-00017, as gaitforge query --list prints them",
        names,
        metavar="ID,ID",
    ),
    option(
        "--limit",
        "most stored episodes; of more, the worst, the best and a spread between",
        positive,
        200,
    ),
    option(
        "--episodes",
        f"of a run: episodes per terrain, skill and level (default: {_HELD_OUT_EPISODES}; "
        f"of level {_LEVEL}, unless levels are given)",
        positive,
    ),
    option(
        "--against",
        "another policy on the same starts and seeds, as a ghost: expert, a run's folder, or one "
        "that ships",
        metavar="RUN",
    ),
    option("--robot", "a name or path, if not the store's or run's own robot", default=""),
    option("--out", "the page (default: SOURCE.view.html)", Path, metavar="FILE"),
    group(
        "other files; without --out they replace the page",
        option(
            "--video",
            "a film: .mp4 (extra video), .webp or .gif; of the episodes of --episode, as tiles of "
            "one picture, or else of the worst",
            Path,
            metavar="FILE",
        ),
        option(
            "--rerun",
            "a recording of the same episodes for Rerun's viewer: .rrd (extra rerun)",
            Path,
            metavar="FILE",
        ),
    ),
    WITH_RECORDED_VERSIONS,
    JSON,
    TRUST,
    needs("sim", "learn"),
)
def view_command(arguments: argparse.Namespace) -> Callable[[], int | None]:
    """Write a page that plays episodes in 3-D, with their curves; it opens without a network."""
    if arguments.with_recorded_versions and (folder := _recorded_folder(arguments)) is not None:
        uses(arguments)  # the other process refuses what has no effect
        return partial(_view_elsewhere, folder, arguments.words)
    page = _checked(arguments)
    make = _episodes if arguments.against is None else _with_ghosts
    uses(arguments, "json")
    return partial(_view, arguments, page, make(arguments, page is None))


def _view(arguments: argparse.Namespace, page: Path | None, make: Callable[[], "Show"]) -> None:
    show = make()
    if show.note:
        TerminalReporter().say(show.note)
    record: dict[str, object] = {"episodes": len(show.episodes)}
    lines = []
    if page:
        from gaitforge.plugins.player.page import write_page

        size = write_page(show, page)
        record |= {"page": str(page), "bytes": size}
        opened = f"#e={show.episodes[0].row['episode']}" if arguments.episode else ""
        count = amount(len(show.episodes), "episode")
        lines.append(f"{page}{opened} ({count}, {size / 1e6:.1f} MB)")
    for name, files in _write_others(arguments, show).items():
        record[name] = [str(file) for file in files]
        lines += [f"{file} ({file.stat().st_size / 1e6:.1f} MB)" for file in files]
    if arguments.json:
        show_one(record, as_json=True)
    else:
        print(*lines, sep="\n")


def _recorded_folder(arguments: argparse.Namespace) -> Path | None:
    """The folder with the MuJoCo of the episodes; None where that is here."""
    from gaitforge.collectors.legged.replaying import simulator_of_selection
    from gaitforge.flows.stages.recorded_versions import OPTION, recorded_mujoco

    if not _is_store(arguments.source):
        raise ValueError(f"{OPTION} is for episodes of a store, and {arguments.source} is none")
    name, version = simulator_of_selection(
        chosen_episodes(datasets.open_store(arguments.source), arguments)
    )
    if name != "mujoco":
        raise ValueError(f"{OPTION} is for episodes of mujoco, not {name}")
    return recorded_mujoco(version)


def _view_elsewhere(folder: Path, words: Sequence[str]) -> int:
    """Do the command with the packages of a folder; its exit code."""
    from gaitforge.flows.stages.recorded_versions import OPTION, run_with

    return run_with(folder, [word for word in words if word != OPTION])[0]


def _checked(arguments: argparse.Namespace) -> Path | None:
    """The page's path, or None if other files replace it; refuses wrong input before the work."""
    video = arguments.video
    rerun = arguments.rerun
    source = arguments.source
    if video:
        from gaitforge.pipeline.report.picture_files import check_animation

        check_animation(check_outside_stores(video).suffix[1:].lower())
    if rerun:
        from gaitforge.plugins.player.films import load_rerun

        load_rerun()
        if check_outside_stores(rerun).suffix != ".rrd":
            raise ValueError(f"{rerun} has to end in .rrd")
    if arguments.out is None and (video or rerun):
        return None
    from gaitforge.plugins.player.page import bundle

    bundle()
    beside = source.absolute().parent if isinstance(source, Path) else Path()
    return check_outside_stores(arguments.out or beside / f"{Path(source).name}.view.html")


def _write_others(arguments: argparse.Namespace, show: "Show") -> dict[str, list[Path]]:
    """Write the film, and the recordings with a file an episode; returns paths by option."""
    if not (arguments.video or arguments.rerun):
        return {}
    from gaitforge.plugins.player.films import write_film, write_recording

    chosen = show.chosen(arguments.episode or ())
    written: dict[str, list[Path]] = {}
    if arguments.video:
        write_film(chosen, arguments.video, TerminalReporter())
        written["video"] = [arguments.video]
    path = arguments.rerun
    several = len(chosen.episodes) > 1
    for episode in chosen.episodes if path else ():
        file = path.with_stem(f"{path.stem}-{episode.name}") if several else path
        write_recording(show, episode, file, TerminalReporter())
        written.setdefault("rerun", []).append(file)
    return written


def _episodes(arguments: argparse.Namespace, only_chosen: bool) -> Callable[[], "Show"]:
    """What makes the page's episodes; without a page, only the episodes of the other files."""
    source = arguments.source
    episodes = arguments.episode or ()
    make = _stored(arguments, only_chosen) if _is_store(source) else _run(arguments)
    return (lambda: make().chosen(episodes)) if episodes or only_chosen else make


def _is_store(source: Path | str) -> bool:
    return isinstance(source, str) or (source / ROOT_FILE).is_file()


def _stored(arguments: argparse.Namespace, only_chosen: bool) -> Callable[[], "Show"]:
    from gaitforge.plugins.player.episodes import spread_over_returns, stored_show

    reporter = TerminalReporter()
    robot = arguments.robot
    selection = chosen_episodes(datasets.open_store(arguments.source), arguments)
    if len(selection) == 0:
        raise ValueError("the selection is empty; select at least one episode")
    if arguments.episode:
        named = selection.named(*arguments.episode)
        return lambda: stored_show(named, reporter, robot)
    chosen = spread_over_returns(selection, 1 if only_chosen else arguments.limit)
    if 1 < len(chosen) < len(selection):
        reporter.say(
            f"{len(chosen)} of {len(selection):,} episodes, from the worst return to the best; "
            "--limit shows more"
        )
    return lambda: stored_show(chosen, reporter, robot)


def _with_ghosts(arguments: argparse.Namespace, only_chosen: bool) -> Callable[[], "Show"]:
    from gaitforge.plugins.player.episodes import ghost_source, with_ghosts

    source = ghost_source(arguments.against)  # before the work
    make = _episodes(arguments, only_chosen)
    return lambda: with_ghosts(make(), source, TerminalReporter())


def _run(arguments: argparse.Namespace) -> Callable[[], "Show"]:
    from gaitforge.collectors.legged.rollout import EvaluationGrid
    from gaitforge.collectors.scenarios.skills import SKILLS
    from gaitforge.collectors.scenarios.terrains import TERRAINS
    from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
    from gaitforge.flows.tasks.policy_sources import run_source, shipped_in_words
    from gaitforge.learners.run_files import run_folder
    from gaitforge.plugins.player.episodes import (
        evaluation_files,
        evaluation_show,
        opening_with_a_walk,
        policy_show,
    )

    source = arguments.source
    files = evaluation_files(source)
    if files == [source]:
        return lambda: evaluation_show(source, TerminalReporter())
    if files:
        one_of = ", ".join(file.relative_to(source).as_posix() for file in files)
        raise ValueError(f"{source} holds several evaluations; give one of its files: {one_of}")
    if not run_folder(source).is_dir():
        raise ValueError(f"no store, training run or evaluation at {source}; {shipped_in_words()}")
    every = {"terrains": tuple(TERRAINS), "skills": tuple(SKILLS), "levels": (_LEVEL,)}
    cells = every | option_values(arguments, **CELL_FIELDS)
    grid = EvaluationGrid(**cells, episodes=arguments.episodes or _HELD_OUT_EPISODES)
    plan = LeggedEvaluation(grid=grid, robot=arguments.robot)
    policy = run_source(source)
    specs = grid.specs()
    return lambda: opening_with_a_walk(policy_show(policy, plan, specs, TerminalReporter()))
