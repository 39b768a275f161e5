"""The parsers of the commands on experts and robots."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import (
    add_expert_choice,
    add_grid,
    add_json,
    add_robot_choice,
    add_settings,
    add_sim_choice,
    add_simulation,
    command,
    names,
    positive,
    whole,
)


def add_expert(commands: argparse._SubParsersAction) -> None:
    """`gaitforge expert …`."""
    expert = command(
        commands, "expert", "list, train, evaluate and film experts", "gaitforge expert list --json"
    )
    actions = expert.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = command(actions, "list", "list the shipped experts", "gaitforge expert list")
    add_json(listing)
    listing.set_defaults(run="cli.expert_commands:list_them")

    train = command(
        actions,
        "train",
        "train a robot's expert, or a Gymnasium task's policies, or go on with that",
        "gaitforge expert train --out runs/expert --steps 20000000 --robot my_robot\n"
        "  gaitforge expert train --env Hopper-v5 --out runs/hopper",
    )
    train.add_argument("--out", type=Path, required=True, help="folder of the training")
    train.add_argument("--env", help="a Gymnasium task in place of a robot: gaitforge gym list")
    add_robot_choice(train)
    train.add_argument("--steps", type=positive, help="environment steps in all")
    add_simulation(train)
    add_settings(train, "entropy=0.005")
    train.set_defaults(run="cli.expert_commands:train")

    evaluate = command(
        actions,
        "evaluate",
        "run an expert in closed loop on held-out episodes",
        "gaitforge expert evaluate --terrain flat --skill run,stand --level 0-9",
    )
    add_expert_choice(evaluate)
    add_sim_choice(evaluate)
    add_grid(evaluate)
    evaluate.set_defaults(run="cli.expert_commands:evaluate")

    film = command(
        actions,
        "film",
        "draw an expert's skills as contact sheets and animations",
        "gaitforge expert film --skill crawl,tilt --out runs/film --format png,webp",
    )
    add_expert_choice(film)
    film.add_argument("--skill", type=names, help="skills, comma-separated")
    film.add_argument("--terrain", type=names, help="terrains to choose the hardest from")
    film.add_argument("--level", type=whole, help="terrain level, 0-9 (default: 4)")
    film.add_argument("--seed", type=whole, help="of the held-out episodes")
    film.add_argument("--out", type=Path, default=Path("runs/film"), help="folder")
    film.add_argument("--format", type=names, default=("gif", "png"), help="gif, png, webp")
    film.set_defaults(run="cli.picture_commands:film")


def add_robot(commands: argparse._SubParsersAction) -> None:
    """`gaitforge robot …`."""
    robot = command(commands, "robot", "list and check robots", "gaitforge robot check my_robot")
    actions = robot.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = command(actions, "list", "list the shipped robots", "gaitforge robot list --json")
    add_json(listing)
    listing.set_defaults(run="cli.robot_commands:list_them")

    check = command(
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
    add_json(check)
    check.set_defaults(run="cli.robot_commands:check")
