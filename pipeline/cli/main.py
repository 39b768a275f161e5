"""The command line: `gaitforge COMMAND …`.

Wrong input ends in one line on standard error and exit code 2; an interrupt in one line and 130.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from learners.training.interrupts import INTERRUPTED, Stopped
from pipeline.cli.arguments import (
    WRONG_INPUT,
    Parser,
    add_cells,
    add_grid,
    add_isaacgym_python,
    add_json,
    add_robot_choice,
    add_settings,
    add_sim_choice,
    add_store,
    add_where,
    command,
    positive,
)
from pipeline.cli.comparison_parser import add_compare
from pipeline.cli.expert_parser import add_expert, add_robot
from pipeline.cli.export_parser import add_export
from pipeline.cli.flow_parser import add_flow_commands
from pipeline.cli.format_parser import add_format_commands
from pipeline.cli.gym_parser import add_gym
from pipeline.cli.humanoid_parser import add_humanoid
from pipeline.cli.runner_arguments import add_training_runner
from pipeline.cli.sim_parser import add_sim
from pipeline.cli.store_parser import add_store_commands

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


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `run` to "module:function" of `pipeline`."""
    parser = Parser(
        prog="gaitforge",
        description="Legged-motion datasets and policies: collect, query, train, evaluate, report.",
        epilog="Start with: gaitforge demo --out runs/demo",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands)
    add_store_commands(commands)
    add_flow_commands(commands)
    _add_learning_commands(commands)
    add_compare(commands)
    add_export(commands)
    add_format_commands(commands)
    add_expert(commands)
    add_humanoid(commands)
    add_gym(commands)
    add_robot(commands)
    add_sim(commands)
    _add_bench(commands)
    completion = command(
        commands, "completion", "print a completion script", "source <(gaitforge completion bash)"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    completion.set_defaults(run="cli.main:print_completion")
    return parser


def _add_demo(commands: argparse._SubParsersAction) -> None:
    demo = command(
        commands,
        "demo",
        "run the whole road at small scale: collect, train, evaluate, report",
        "gaitforge demo --out runs/demo",
    )
    demo.add_argument(
        "--out", type=Path, default=Path("runs/demo"), help="folder (default: %(default)s)"
    )
    demo.add_argument("--prefect", action="store_true", help="run it as a Prefect flow")
    add_settings(demo, "fcnet.config.steps=500")
    add_json(demo)
    demo.set_defaults(run="cli.commands:demo")


def _add_learning_commands(commands: argparse._SubParsersAction) -> None:
    train = command(
        commands,
        "train",
        "train a model on a selection of a store, or go on with a run",
        "gaitforge train legged.zarr --model fcnet --terrain flat,rough --out runs/fcnet",
    )
    add_store(train)
    train.add_argument(
        "--model", default="fcnet", help="see gaitforge models (default: %(default)s)"
    )
    train.add_argument(
        "--objective", default="bc", help="bc, gaussian-bc or return (default: %(default)s)"
    )
    train.add_argument("--out", type=Path, required=True, help="folder of the run")
    train.add_argument("--steps", type=positive, help="optimiser steps")
    train.add_argument("--batch-size", type=positive, help="windows a step, over all processes")
    train.add_argument("--optimiser", help="adamw, adam or lion")
    train.add_argument("--seed", type=int, help="of the weights and the data's order")
    train.add_argument("--device", help="cpu or cuda")
    add_cells(train)
    add_where(train)
    train.add_argument(
        "--selection", type=Path, metavar="FILE", help="what gaitforge query --save kept"
    )
    add_training_runner(train)
    add_settings(train, "config.peak_lr=0.001")
    add_json(train)
    train.set_defaults(run="cli.commands:train")

    evaluate = command(
        commands,
        "evaluate",
        "run a trained policy in closed loop on held-out episodes",
        "gaitforge evaluate runs/fcnet --terrain flat,rough --skill run --episodes 64",
    )
    evaluate.add_argument(
        "policy_run", metavar="RUN", type=Path, help="folder of a training run or exported policy"
    )
    evaluate.add_argument(
        "--checkpoint",
        choices=("last", "best"),
        default="last",
        help="of a training run (default: %(default)s)",
    )
    add_robot_choice(evaluate)
    add_sim_choice(evaluate)
    add_grid(evaluate)
    evaluate.set_defaults(run="cli.commands:evaluate")

    report = command(
        commands, "report", "write report.html from a run's files", "gaitforge report runs/demo"
    )
    report.add_argument("folder", type=Path)
    report.set_defaults(run="cli.commands:report")

    models = command(
        commands, "models", "list the models and their sizes", "gaitforge models --json"
    )
    add_json(models)
    models.set_defaults(run="cli.commands:models")


def _add_bench(commands: argparse._SubParsersAction) -> None:
    bench = command(
        commands, "bench", "measure speeds on this machine", "gaitforge bench --out runs/bench"
    )
    bench.add_argument(
        "what",
        nargs="?",
        choices=("all", "store", "learners", "flows", "sim", "formats"),
        default="all",
        help="everything, the store beside other libraries, the models beside each other, what "
        "orchestration costs, the simulators and collection beside bare physics, or imports "
        "(default: %(default)s)",
    )
    bench.add_argument(
        "--out", type=Path, default=Path("runs/bench"), help="folder (default: %(default)s)"
    )
    bench.add_argument(
        "--quick", action="store_true", help="learners, sim, formats: a little, to see that it runs"
    )
    bench.add_argument(
        "--recorded",
        type=Path,
        metavar="STORE",
        help="with flows: simulate many workers with the durations of this store's parts",
    )
    add_isaacgym_python(bench)
    add_json(bench)
    bench.set_defaults(run="bench.bench:run")


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
    except KeyboardInterrupt as stop:
        if not isinstance(stop, Stopped) or stop.exit_code == INTERRUPTED:
            print("gaitforge: interrupted; the same command goes on from here", file=sys.stderr)
            return INTERRUPTED
        _say_stopped(stop)
        return stop.exit_code


def _say_stopped(stop: Stopped) -> None:
    from learners.training.distributed import process_rank  # inside: torch is slow to import

    if process_rank() == 0:
        print(f"gaitforge: {stop}; the same command goes on from here", file=sys.stderr)


def _check_packages() -> None:
    """Say clearly when another package called `datasets` hides ours."""
    import datasets

    if not getattr(datasets, "__gaitforge__", False):
        raise ValueError(
            f"another package called 'datasets' ({datasets.__file__}) hides gaitforge's; "
            "install gaitforge in an environment of its own"
        )
