"""`gaitforge expert`: list, train, average and film experts; plug-ins bring further actions."""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from gaitforge.common.errors import DatasetError
from gaitforge.flows.records.records import read_record
from gaitforge.flows.tasks.expert_trainers import TRAINERS, ExpertTrainer
from gaitforge.pipeline.cli.parsing.options import (
    EXPERT,
    JSON,
    OUT,
    RANDOMISATION,
    ROBOT,
    SEED,
    SIMULATION,
    SKILL,
    TERRAIN,
    THREADS,
    Container,
    add_options,
    option,
    option_values,
    planned,
    setting,
)
from gaitforge.pipeline.cli.parsing.parser import actions, command
from gaitforge.pipeline.cli.parsing.values import names, positive, shares, whole
from gaitforge.pipeline.cli.work import CommandWork, Result, single, work
from gaitforge.pipeline.terminal import TerminalReporter, show


@command("gaitforge expert list", JSON)
def _list(arguments: argparse.Namespace) -> None:
    """List the shipped experts."""
    from gaitforge.collectors.experts.expert import EXPERTS, list_experts, load_expert

    rows = []
    for name in list_experts():
        expert = load_expert(name)
        file = str(EXPERTS / f"{name}.safetensors")
        card = expert.card
        lists = {key: ",".join(card[key]) for key in ("skills", "terrains")}
        row = {"name": name, "file": file, "hash": expert.hash}
        rows.append(row | lists | {"steps": card["steps"]})
    show(rows, arguments.json)


def _trainers(say: Callable[[str], object]) -> Iterator[ExpertTrainer]:
    """The trainers of plug-ins and other packages; says why a broken one is left out."""
    for name in TRAINERS:
        try:
            yield TRAINERS[name]
        except DatasetError as error:
            say(f"warning: {error}")


def _trainer_options(parser: Container) -> None:
    """Add the option and the examples of each trainer."""
    assert isinstance(parser, argparse.ArgumentParser)
    for trainer in _trainers(lambda warning: None):  # the command itself says it, help does not
        add_options(parser, option(trainer.option, trainer.help, metavar=trainer.metavar))
        lines = [parser.epilog or "", *trainer.examples]
        parser.epilog = f"\n{' ' * len('example:  ')}".join(lines)


@work(
    "gaitforge expert train --out runs/expert --steps 20000000 --robot my_robot\n"
    "          gaitforge expert train --model bot --robot a1 --terrain rough --skill walk "
    "--out runs/a1-walk",
    _trainer_options,
    option("--steps", "environment steps in all", positive),
    OUT,
    ROBOT,
    TERRAIN,
    SKILL,
    SIMULATION,
    RANDOMISATION,
    option(
        "--model",
        "a network of gaitforge models, for a blind policy or, with --env, trained by PPO in place "
        "of soft actor-critic",
        metavar="NAME",
    ),
    setting("model_overrides.masking=mix"),
    JSON,
)
def _train(arguments: argparse.Namespace) -> CommandWork:
    """Train a robot's expert or a Gymnasium task's policies, or resume."""
    for trainer in _trainers(partial(print, file=sys.stderr)):
        if getattr(arguments, trainer.setting) is not None:
            return trainer.begin(arguments)
    from gaitforge.collectors.experts.ppo import WEIGHTS, ExpertTrainingConfig
    from gaitforge.collectors.physics.robot_check import check_robot
    from gaitforge.collectors.robots.robot import absolute_robot, load_robots
    from gaitforge.collectors.training_folder import POLICY
    from gaitforge.flows.stages.expert_training import run_expert_training

    config = planned(
        ExpertTrainingConfig(),
        arguments,
        "steps",
        "robots",
        "seed",
        "threads",
        "model",
        terrains="terrain",
        skills="skill",
    )
    # The expert's card names the robot, and is read from other working directories.
    config = replace(config, robot=absolute_robot(config.robot))
    for robot in load_robots(config.robot):
        for warning in check_robot(robot).warnings:
            print(f"warning: {robot.name}: {warning}", file=sys.stderr)
    out = arguments.out
    work = partial(run_expert_training, config, out)

    def result(_: Path | None) -> Result:
        weights = out / (POLICY if config.model else WEIGHTS)
        return Result(read_record(weights.with_suffix(".json")), lines=(str(weights),))

    return single(arguments, "train expert", work, result, out, device=config.processor)


@command(
    "gaitforge expert average aliengo-locomotion runs/expert/expert.safetensors --out runs/mean",
    option("experts", "of one training, or trained from each other", nargs="+", metavar="EXPERT"),
    option("--shares", "of each, e.g. 0.7,0.3 (default: equal)", shares, metavar="N,N"),
    OUT,
    THREADS,
)
def _average(arguments: argparse.Namespace) -> None:
    """Average the weights of experts, and measure the mean."""
    from gaitforge.common.machine import default_threads
    from gaitforge.flows.stages.expert_training import average_into

    weights = arguments.shares or [1.0] * len(arguments.experts)
    threads = arguments.threads or default_threads()
    print(average_into(arguments.experts, weights, arguments.out, threads, TerminalReporter()))


@command(
    "gaitforge expert film --skill crawl,tilt --out runs/film --format png,webp",
    EXPERT,
    SKILL,
    SEED,
    option("--terrain", "terrains; a skill is shown on its hardest of them", names),
    option("--level", "terrain level, 0-9 (default: 4)", whole),
    option("--out", "output folder", Path, Path("runs/film")),
    option("--format", "file formats: gif, png, webp, mp4 (default: gif,png)", names),
)
def _film(arguments: argparse.Namespace) -> None:
    """Draw an expert's skills as contact sheets and animations."""
    from gaitforge.collectors.experts.expert import DEFAULT_EXPERT
    from gaitforge.pipeline.report.pictures import FilmPlan, make_films

    names = {"skills": "skill", "terrains": "terrain"}
    plan = FilmPlan(**option_values(arguments, "level", "seed", **names))
    expert = arguments.expert or DEFAULT_EXPERT
    formats = arguments.format or ("gif", "png")
    for path in make_films(expert, arguments.out, plan, formats):
        print(f"{path}  {path.stat().st_size / 1000:,.0f} kB")


expert_command = actions("expert", "gaitforge expert list --json", _list, _train, _average, _film)
