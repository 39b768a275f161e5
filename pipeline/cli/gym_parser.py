"""The parser of the commands on Gymnasium's tasks."""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import add_json, add_store, command, names, positive, whole
from pipeline.cli.gym_evaluation_parser import add_gym_evaluation
from pipeline.cli.runner_arguments import add_runner


def add_gym(commands: argparse._SubParsersAction) -> None:
    """`gaitforge gym …`."""
    gym = command(
        commands,
        "gym",
        "collect data of Gymnasium's MuJoCo and Adroit tasks by D4RL's recipe, and evaluate there",
        "gaitforge gym list",
    )
    actions = gym.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_list(actions)
    _add_collect(actions)
    add_gym_evaluation(actions)


def _add_list(actions: argparse._SubParsersAction) -> None:
    tasks = command(actions, "list", "list the tasks", "gaitforge gym list")
    add_json(tasks)
    tasks.set_defaults(run="cli.gym_commands:list_tasks")


def _add_collect(actions: argparse._SubParsersAction) -> None:
    collect = command(
        actions,
        "collect",
        "collect episodes of trained policies and their replay buffer, or go on with a collection",
        "gaitforge gym collect hopper.zarr --env Hopper-v5 --policies runs/hopper",
    )
    add_store(collect)
    collect.add_argument("--env", required=True, help="see gaitforge gym list")
    collect.add_argument(
        "--policies",
        default="",
        metavar="FOLDER",
        help="what gaitforge expert train --env made (default: the policies that ship)",
    )
    collect.add_argument(
        "--quality",
        type=names,
        help="of random, medium, medium-replay, expert (default: all but random; of policies that "
        "ship, which have no replay buffer, medium,expert)",
    )
    collect.add_argument(
        "--steps", type=positive, help="a quality, at least (1,000,000); of a replay all there are"
    )
    collect.add_argument(
        "--part-steps", type=positive, help="a part, at least (50,000); of a replay always 50,000"
    )
    collect.add_argument("--seed", type=whole, help="of everything random")
    collect.add_argument(
        "--physics", action="store_true", help="keep the simulator's positions and velocities"
    )
    collect.add_argument(
        "--processes", type=positive, default=1, help="parallel simulators (default: %(default)s)"
    )
    add_runner(collect, "--processes")
    add_json(collect)
    collect.set_defaults(run="cli.gym_commands:collect")
