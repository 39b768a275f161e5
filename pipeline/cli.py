"""The command line: `gaitforge COMMAND …`.

Wrong input ends in one line on standard error and exit code 2; an interrupt in one line and 130.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

INTERRUPTED = 130
WRONG_INPUT = 2
_ENVIRONMENT = {
    # Pools of threads that wait by spinning take the cores from those that work.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "OPENBLAS_NUM_THREADS": "1",
    # Prefect's server would report its use to its makers.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # Seconds; its own 20 are too few on a busy machine.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}
"""Defaults that must be set before the libraries load; the user's own settings stay."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(WRONG_INPUT)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def _numbers(text: str) -> tuple[int, ...]:
    """Comma-separated numbers and ranges: 0,2,5-9."""
    found: list[int] = []
    for part in _names(text):
        low, separator, high = part.partition("-")
        try:
            found += range(int(low), int(high) + 1) if separator else [int(low)]
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not a list like 0,2,5-9") from None
    return tuple(found)


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"needs a whole number of at least 1, not '{text}'")
    return value


def _whole(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"needs a whole number of at least 0, not '{text}'")
    return value


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `run` to "module:function" of `pipeline`."""
    parser = _Parser(
        prog="gaitforge",
        description="Legged-motion datasets and policies: collect, query, train, evaluate, report.",
        epilog="Start with: gaitforge demo --out runs/demo",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_store_commands(commands)
    _add_learning_commands(commands)
    _add_expert(commands)
    _add_robot(commands)
    _add_bench(commands)
    completion = _command(
        commands, "completion", "print a completion script", "source <(gaitforge completion bash)"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    completion.set_defaults(run="cli:print_completion")
    return parser


def _command(commands: argparse._SubParsersAction, name: str, what: str, example: str) -> _Parser:
    return commands.add_parser(
        name,
        help=what,
        description=what[0].upper() + what[1:] + ".",
        epilog=f"example:  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_settings(parser: argparse.ArgumentParser, example: str) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help=f"change any setting of the plan, e.g. {example}; may be repeated",
    )


def _add_robot_choice(parser: argparse.ArgumentParser) -> None:
    """`--robot X` is `--set robot=X`."""
    parser.add_argument(
        "--robot",
        action="append",
        default=[],
        metavar="ROBOT",
        type=lambda robot: f"robot={robot}",
        dest="settings",
        help="a shipped robot's name, or the path of one's own (see gaitforge robot check)",
    )


def _add_cells(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--terrain", type=_names, help="terrains, comma-separated")
    parser.add_argument("--skill", type=_names, help="skills, comma-separated")
    parser.add_argument("--level", type=_numbers, help="terrain levels, e.g. 0,2,5-9")


def _add_demo(commands: argparse._SubParsersAction) -> None:
    demo = _command(
        commands,
        "demo",
        "run the whole road at small scale: collect, train, evaluate, report",
        "gaitforge demo --out runs/demo",
    )
    demo.add_argument(
        "--out", type=Path, default=Path("runs/demo"), help="folder (default: %(default)s)"
    )
    demo.add_argument("--prefect", action="store_true", help="run it as a Prefect flow")
    _add_settings(demo, "fcnet.config.steps=500")
    _add_json(demo)
    demo.set_defaults(run="commands:demo")


def _add_store_commands(commands: argparse._SubParsersAction) -> None:
    collect = _command(
        commands,
        "collect",
        "collect the parts of a plan that a store lacks",
        "gaitforge collect data/legged.zarr --preset legged-1m9",
    )
    collect.add_argument("store", type=Path)
    collect.add_argument("--preset", default="demo", help="size of the plan (default: %(default)s)")
    collect.add_argument("--parts", type=_numbers, help="only these parts of the plan, e.g. 0-9")
    collect.add_argument("--seed", type=_whole, help="of everything random")
    collect.add_argument("--threads", type=_positive, help="that step the simulator")
    collect.add_argument("--robots", type=_positive, help="simulated at once")
    collect.add_argument("--expert", help="name or file of the policy that acts")
    collect.add_argument("--sim", help="physics back end")
    _add_cells(collect)
    _add_settings(collect, "grid.episodes_per_part=100")
    _add_json(collect)
    collect.set_defaults(run="commands:collect")

    query = _command(
        commands,
        "query",
        "describe the episodes that match",
        'gaitforge query legged.zarr --terrain rough --where "return > 6 and friction < 0.6"',
    )
    query.add_argument("store", type=Path)
    _add_cells(query)
    query.add_argument("--where", help="a boolean SQL expression over the catalog's columns")
    query.add_argument("--group-by", type=_names, default=("terrain", "skill"), help="columns")
    _add_json(query)
    query.set_defaults(run="commands:query")

    for name, what in (
        ("info", "show a store's version, size and schema version"),
        ("verify", "check every object of a store; exit 1 with a line a fault"),
        ("gc", "remove what interrupted writers left in a store"),
    ):
        each = _command(commands, name, what, f"gaitforge {name} runs/demo/legged.zarr")
        each.add_argument("store", type=Path)
        _add_json(each)
        each.set_defaults(run=f"commands:{name}")


def _add_learning_commands(commands: argparse._SubParsersAction) -> None:
    train = _command(
        commands,
        "train",
        "train a model on a selection of a store, or go on with a run",
        "gaitforge train legged.zarr --model fcnet --terrain flat,rough --out runs/fcnet",
    )
    train.add_argument("store", type=Path)
    train.add_argument(
        "--model", default="fcnet", help="see gaitforge models (default: %(default)s)"
    )
    train.add_argument("--objective", default="bc", help="bc or return (default: %(default)s)")
    train.add_argument("--out", type=Path, required=True, help="folder of the run")
    train.add_argument("--steps", type=_positive, help="optimiser steps")
    _add_cells(train)
    train.add_argument(
        "--where", default="", help="a boolean SQL expression over the catalog's columns"
    )
    _add_settings(train, "config.peak_lr=0.001")
    _add_json(train)
    train.set_defaults(run="commands:train")

    evaluate = _command(
        commands,
        "evaluate",
        "run a trained policy in closed loop on held-out episodes",
        "gaitforge evaluate runs/fcnet --terrain flat,rough --skill run --episodes 64",
    )
    evaluate.add_argument("policy_run", metavar="RUN", type=Path, help="folder of a training run")
    _add_robot_choice(evaluate)
    _add_grid(evaluate)
    evaluate.set_defaults(run="commands:evaluate")

    report = _command(
        commands, "report", "write report.html from a run's files", "gaitforge report runs/demo"
    )
    report.add_argument("folder", type=Path)
    report.set_defaults(run="commands:report")

    models = _command(
        commands, "models", "list the models and their sizes", "gaitforge models --json"
    )
    _add_json(models)
    models.set_defaults(run="commands:models")


def _add_grid(parser: argparse.ArgumentParser) -> None:
    _add_cells(parser)
    parser.add_argument("--episodes", type=_positive, help="episodes a cell")
    parser.add_argument("--seed", type=_whole, help="of the held-out episodes")
    parser.add_argument("--threads", type=_positive, help="that step the simulator")
    _add_settings(parser, "robots=64")
    _add_json(parser)


def _add_expert(commands: argparse._SubParsersAction) -> None:
    expert = _command(
        commands, "expert", "list, train, evaluate and film experts", "gaitforge expert list --json"
    )
    actions = expert.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = _command(actions, "list", "list the shipped experts", "gaitforge expert list")
    _add_json(listing)
    listing.set_defaults(run="expert_commands:list_them")

    train = _command(
        actions,
        "train",
        "train an expert with PPO, or go on with a training",
        "gaitforge expert train --out runs/expert --steps 20000000 --robot my_robot",
    )
    train.add_argument("--out", type=Path, required=True, help="folder of the training")
    _add_robot_choice(train)
    train.add_argument("--steps", type=_positive, help="environment steps in all")
    train.add_argument("--robots", type=_positive, help="simulated at once")
    train.add_argument("--seed", type=_whole, help="of everything random")
    train.add_argument("--threads", type=_positive, help="that step the simulator")
    _add_settings(train, "entropy=0.005")
    train.set_defaults(run="expert_commands:train")

    evaluate = _command(
        actions,
        "evaluate",
        "run an expert in closed loop on held-out episodes",
        "gaitforge expert evaluate --terrain flat --skill run,stand --level 0-9",
    )
    evaluate.add_argument("--expert", help="a shipped expert's name, or its .safetensors file")
    _add_grid(evaluate)
    evaluate.set_defaults(run="expert_commands:evaluate")

    film = _command(
        actions,
        "film",
        "draw an expert's skills as contact sheets and animations",
        "gaitforge expert film --skill crawl,tilt --out runs/film --format png,webp",
    )
    film.add_argument("--expert", help="a shipped expert's name, or its .safetensors file")
    film.add_argument("--skill", type=_names, help="skills, comma-separated")
    film.add_argument("--terrain", type=_names, help="terrains to choose the hardest from")
    film.add_argument("--level", type=_whole, help="terrain level, 0-9 (default: 4)")
    film.add_argument("--seed", type=_whole, help="of the held-out episodes")
    film.add_argument("--out", type=Path, default=Path("runs/film"), help="folder")
    film.add_argument("--format", type=_names, default=("gif", "png"), help="gif, png, webp")
    film.add_argument("--renderer", choices=("auto", "mujoco", "side"), default="auto")
    film.set_defaults(run="picture_commands:film")


def _add_robot(commands: argparse._SubParsersAction) -> None:
    robot = _command(commands, "robot", "list and check robots", "gaitforge robot check my_robot")
    actions = robot.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = _command(actions, "list", "list the shipped robots", "gaitforge robot list --json")
    _add_json(listing)
    listing.set_defaults(run="robot_commands:list_them")

    check = _command(
        actions,
        "check",
        "check a robot's card and MJCF, and let it stand for two seconds",
        "gaitforge robot check my_robot",
    )
    check.add_argument(
        "robot",
        metavar="PATH",
        help="a folder with robot.json and the MJCF that it names, a card, or a shipped robot",
    )
    _add_json(check)
    check.set_defaults(run="robot_commands:check")


def _add_bench(commands: argparse._SubParsersAction) -> None:
    bench = _command(
        commands, "bench", "measure speeds on this machine", "gaitforge bench --out runs/bench"
    )
    bench.add_argument(
        "--out", type=Path, default=Path("runs/bench"), help="folder (default: %(default)s)"
    )
    _add_json(bench)
    bench.set_defaults(run="bench:run")


def print_completion(arguments: argparse.Namespace) -> int:
    """Print the shell's completion script."""
    import shtab

    print(shtab.complete(build_parser(), arguments.shell))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    # Pools of threads that wait by spinning take the cores from those that work. Set before NumPy
    # and torch load.
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    arguments = build_parser().parse_args(argv)
    module, function = arguments.run.split(":")
    try:
        _check_packages()
        from importlib import import_module

        return getattr(import_module(f"pipeline.{module}"), function)(arguments)
    except ValueError as error:
        print(f"gaitforge: error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG_INPUT
    except BrokenPipeError:
        return 0
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"gaitforge: error: {error.strerror or error}{where}", file=sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt:
        print("gaitforge: interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED


def _check_packages() -> None:
    """Say clearly when another package called `datasets` hides ours."""
    import datasets

    if not getattr(datasets, "__gaitforge__", False):
        raise ValueError(
            f"another package called 'datasets' ({datasets.__file__}) hides gaitforge's; "
            "install gaitforge in an environment of its own"
        )


if __name__ == "__main__":
    sys.exit(main())
