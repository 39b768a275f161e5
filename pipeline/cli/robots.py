"""`gaitforge robot`, `expert` and `sim`: robots, experts and simulators.

Plug-ins bring further actions.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from gaitforge.collectors.robots.robot import (
    ASSETS,
    CARD_FILE,
    RobotCard,
    list_robots,
    load_robot,
)
from gaitforge.collectors.simulators import backend_names
from gaitforge.common.errors import DatasetError
from gaitforge.common.files import write_bytes_durably
from gaitforge.flows.records.records import read_record
from gaitforge.flows.tasks.expert_trainers import TRAINERS, ExpertTrainer
from gaitforge.pipeline.cli.parsing.options import (
    EXPERT,
    ISAACGYM_PYTHON,
    JSON,
    LOG,
    OUT,
    RANDOMISATION,
    ROBOT,
    SEED,
    SKILL,
    TERRAIN,
    THREADS,
    Container,
    add_options,
    needs,
    option,
    option_values,
    planned,
    setting,
    simulation,
    with_default,
)
from gaitforge.pipeline.cli.parsing.parser import actions, command
from gaitforge.pipeline.cli.parsing.values import names, positive, shares, uses, whole
from gaitforge.pipeline.cli.work import CommandWork, Result, single, work
from gaitforge.pipeline.terminal import TerminalReporter, fields_of, show_one, show_result, table

if TYPE_CHECKING:
    from gaitforge.collectors.physics.robot_check import RobotFindings

# Robots.
_PICTURE_PX = (640, 400)
SIZES = ("mass_kg", "leg_length_m", "nominal_height_m")
"""Figures of a robot that its rows show."""


@command("gaitforge robot list --json", JSON)
def _robot_list(arguments: argparse.Namespace) -> None:
    """List the shipped robots."""
    rows = []
    records = []
    for robot in map(load_robot, list_robots()):
        rows.append(fields_of(robot, "name", *SIZES))
        records.append({**rows[-1], "file": str(robot.path)})
    show_result(records, rows, arguments.json, f"cards: {ASSETS}/NAME/{CARD_FILE}")


PICTURE = option("--picture", "also draw the robot into this PNG", Path, metavar="FILE")
"""The option with the file for `draw_picture`."""


@command(
    "gaitforge robot check my_robot --picture my_robot.png",
    option("robot", "a folder with robot.json and its MJCF, a card, or a shipped robot"),
    PICTURE,
    JSON,
    needs("sim"),
    needs("report", when="picture"),
)
def _robot_check(arguments: argparse.Namespace) -> None:
    """Check a robot's card and MJCF, and let it stand for two seconds."""
    from gaitforge.collectors.physics.robot_check import check_robot

    robot = load_robot(arguments.robot)
    findings = check_robot(robot)
    if arguments.json:
        show_one(check_record(findings), as_json=True)
    else:
        show_checked(findings)
    draw_picture(robot, arguments.picture)


def check_record(findings: "RobotFindings") -> dict[str, Any]:
    """The findings of a check, as a record."""
    robot = findings.robot
    columns = {
        "default_rad": robot.default_joint_pos_rad,
        "lower_rad": robot.joint_lower_rad,
        "upper_rad": robot.joint_upper_rad,
        "kp": robot.kp_nm_per_rad,
        "kd": robot.kd_nms_per_rad,
        "standing_nm": abs(findings.stance.torque_nm),
        "limit_nm": robot.torque_limit_nm,
        "sag_rad": findings.stance.sag_rad,
    }
    joints = [
        {"joint": joint, **{name: float(values[i]) for name, values in columns.items()}}
        for i, joint in enumerate(robot.joint_names)
    ]
    return {
        "name": robot.name,
        "card": str(robot.path),
        "mjcf": str(robot.mjcf_path),
        **fields_of(robot, *SIZES),
        "default_pose_height_m": findings.default_height_m,
        "stood_height_m": findings.trial.height_m,
        "stood_tilt_rad": findings.trial.tilt_rad,
        "action_scale_rad": robot.action_scale_rad,
        "joints": joints,
        "warnings": list(findings.warnings),
    }


def show_checked(findings: "RobotFindings") -> None:
    """Print the findings of a check."""
    record = check_record(findings)
    joints = record.pop("joints")
    warnings = record.pop("warnings")
    show_one(record, as_json=False)
    print(f"\n{table(joints)}\n")
    for warning in warnings:
        print(f"warning: {warning}")
    print(f"{findings.robot.name} can be used" + (" all the same" if warnings else ""))


def draw_picture(robot: RobotCard, picture: Path | None) -> None:
    """Draw a robot into a PNG file, if one is asked for."""
    if picture is None:
        return
    from gaitforge.collectors.rendering.rendering import draw_portrait
    from gaitforge.pipeline.report.picture_files import side_by_side

    write_bytes_durably(picture, side_by_side(draw_portrait(robot, *_PICTURE_PX)))


robot_command = actions("robot", "gaitforge robot check my_robot", _robot_list, _robot_check)


# Experts.
@command("gaitforge expert list", JSON, needs("sim"))
def _expert_list(arguments: argparse.Namespace) -> None:
    """List the shipped experts."""
    from gaitforge.collectors.experts.expert import EXPERTS, list_experts, load_expert

    rows = []
    records = []
    for name in list_experts():
        expert = load_expert(name)
        file = str(EXPERTS / f"{name}.safetensors")
        card = expert.card
        lists = {key: ",".join(card[key]) for key in ("skills", "terrains")}
        learned = {"steps": card["steps"]}
        rows.append({"name": name, **{k: _or_all(k, v) for k, v in lists.items()}, **learned})
        records.append({"name": name, "file": file, "hash": expert.hash, **lists, **learned})
    show_result(records, rows, arguments.json, f"files: {EXPERTS}/NAME.safetensors")


def _or_all(kind: str, names: str) -> str:
    """Names of skills or terrains for a table, "all" for all that are trained."""
    from gaitforge.collectors.scenarios.skills import SKILLS
    from gaitforge.collectors.scenarios.terrains import TERRAINS

    every = {"skills": SKILLS, "terrains": TERRAINS}[kind]
    return "all" if set(names.split(",")) == set(every) else names


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
    option(
        "--steps",
        "environment steps in all (default: 40,000,000 of a robot, two hours on two free cores)",
        positive,
    ),
    OUT,
    with_default(ROBOT, "aliengo"),
    with_default(TERRAIN, "all"),
    with_default(SKILL, "all"),
    simulation(1024),
    RANDOMISATION,
    option(
        "--model",
        "a network of gaitforge models, for a blind policy or, with --env, trained by PPO in place "
        "of soft actor-critic",
        metavar="NAME",
    ),
    LOG,
    setting("model_overrides.masking=mix"),
    JSON,
    needs("experts", "learn", "sim"),
)
def _expert_train(arguments: argparse.Namespace) -> CommandWork:
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
        card = read_record(weights.with_suffix(".json"))
        following = ("evaluate", out if config.model else weights)
        return Result(card, lines=(str(weights),), next=following)

    return single(arguments, "train expert", work, result, out, device=config.processor)


@command(
    "gaitforge expert average aliengo-locomotion runs/expert/expert.safetensors --out runs/mean",
    option("experts", "of one training, or trained from each other", nargs="+", metavar="EXPERT"),
    option("--shares", "of each, e.g. 0.7,0.3 (default: equal)", shares, metavar="N,N"),
    OUT,
    THREADS,
    needs("sim", "experts", "learn"),
)
def _expert_average(arguments: argparse.Namespace) -> None:
    """Average the weights of experts, and measure the mean."""
    from gaitforge.common.machine import default_threads
    from gaitforge.flows.stages.expert_training import average_into

    weights = arguments.shares or [1.0] * len(arguments.experts)
    threads = arguments.threads or default_threads()
    print(average_into(arguments.experts, weights, arguments.out, threads, TerminalReporter()))


@command(
    "gaitforge expert film --skill crawl,tilt --out runs/film --format png,webp",
    with_default(EXPERT, "aliengo-locomotion"),
    with_default(SKILL, "all"),
    with_default(SEED, "1000003"),
    option("--terrain", "terrains; a skill is shown on its hardest (default: all)", names),
    option("--level", "terrain level, 0-9 (default: 4)", whole),
    option("--out", "output folder", Path, Path("runs/film")),
    option("--format", "file formats: gif, png, webp, mp4 (default: gif,png)", names),
    needs("sim", "learn", "report"),
)
def _expert_film(arguments: argparse.Namespace) -> None:
    """Draw an expert's skills as contact sheets and animations."""
    from gaitforge.collectors.experts.expert import DEFAULT_EXPERT
    from gaitforge.pipeline.report.pictures import FilmPlan, make_films

    names = {"skills": "skill", "terrains": "terrain"}
    plan = FilmPlan(**option_values(arguments, "level", "seed", **names))
    expert = arguments.expert or DEFAULT_EXPERT
    formats = arguments.format or ("gif", "png")
    for path in make_films(expert, arguments.out, plan, formats):
        print(f"{path}  {path.stat().st_size / 1000:,.0f} kB")


expert_command = actions(
    "expert",
    "gaitforge expert list --json",
    _expert_list,
    _expert_train,
    _expert_average,
    _expert_film,
)


# Simulators.
@command("gaitforge sim list --json", ISAACGYM_PYTHON, JSON)
def _sim_list(arguments: argparse.Namespace) -> None:
    """List the simulators, and what the unavailable ones lack."""
    uses(arguments, "isaacgym_python")
    from gaitforge.collectors.physics import availability

    records = [asdict(availability(name)) for name in backend_names()]
    rows = [{key: row[key] for key in ("name", "available", "version")} for row in records]
    lacking = [f"{row['name']}: {row['why_not']}" for row in records if not row["available"]]
    lines = [part for text in lacking for part in wrap(text, 100, subsequent_indent="  ")]
    show_result(records, rows, arguments.json, *lines)


sim_command = actions("sim", "gaitforge sim list --json", _sim_list)
