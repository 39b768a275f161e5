"""`gaitforge expert`: list, train, average, film, import, trust and check experts."""

import argparse
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from gaitforge.flows.records.records import read_record
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
    flag,
    option,
    option_values,
    planned,
    setting,
)
from gaitforge.pipeline.cli.parsing.parser import actions, command
from gaitforge.pipeline.cli.parsing.values import names, positive, shares, whole
from gaitforge.pipeline.cli.work import CommandWork, Result, single, work
from gaitforge.pipeline.progress import TerminalReporter
from gaitforge.pipeline.tables import show, show_one


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


@work(
    "gaitforge expert train --out runs/expert --steps 20000000 --robot my_robot\n"
    "          gaitforge expert train --model bot --robot a1 --terrain rough --skill walk "
    "--out runs/a1-walk\n"
    "          gaitforge expert train --env Hopper-v5 --out runs/hopper\n"
    "          gaitforge expert train --env Humanoid-Mod-v0 --model bot --out runs/humanoid "
    "--set model_overrides.masking=mix",
    option("--env", "a Gymnasium task instead of a robot, see gym collect", metavar="TASK"),
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
    if arguments.env is not None:
        return _gym_training(arguments)
    from gaitforge.collectors.experts.ppo import WEIGHTS, ExpertTrainingConfig
    from gaitforge.collectors.physics.checks.robot_check import check_robot
    from gaitforge.collectors.robots.robot import absolute_robot, load_robots
    from gaitforge.collectors.training_folder import POLICY
    from gaitforge.flows.stages.legged.expert_training import run_expert_training

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
    from gaitforge.flows.stages.legged.expert_training import average_into

    weights = arguments.shares or [1.0] * len(arguments.experts)
    threads = arguments.threads or default_threads()
    print(average_into(arguments.experts, weights, arguments.out, threads, TerminalReporter()))


def _gym_training(arguments: argparse.Namespace) -> CommandWork:
    from gaitforge.collectors.gym.experts import RECIPE
    from gaitforge.collectors.gym.training.recommended import recommended_training
    from gaitforge.flows.stages.gym_experts import run_gym_training

    if arguments.model is not None:
        return _gym_ppo(arguments)
    config = planned(recommended_training(arguments.env), arguments, "steps", "seed", "threads")
    out = arguments.out

    def result(trained: dict[str, Any] | None) -> Result:
        recipe = trained or read_record(out / RECIPE) or {}
        rows = [
            {
                "policy": name,
                "step": recipe.get(f"{name}_step"),
                "return": mean,
                "std": recipe["return_std"][name],
                "length": recipe["lengths"][name],
            }
            for name, mean in recipe["returns"].items()
        ]
        return Result(recipe, rows, (str(out / RECIPE),), title="policies", about=out)

    return single(arguments, "train expert", partial(run_gym_training, config, out), result, out)


def _gym_ppo(arguments: argparse.Namespace) -> CommandWork:
    from gaitforge.collectors.gym.training.ppo import GymPPOConfig
    from gaitforge.collectors.training_folder import POLICY
    from gaitforge.flows.stages.evaluate import EVALUATION
    from gaitforge.flows.stages.gym_experts import run_gym_ppo

    names = ("env", "model", "steps", "seed", "threads")
    config = planned(GymPPOConfig(), arguments, *names)
    out = arguments.out
    policy = out / POLICY

    def result(_: object) -> Result:
        return Result(read_record(policy / EVALUATION), lines=(str(policy),))

    work = partial(run_gym_ppo, config, out)
    return single(arguments, "train expert", work, result, out, device=config.processor)


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


@command(
    "gaitforge expert import policy.onnx --name my-expert --robot go1",
    option("policy", "a policy's ONNX or TorchScript file; no checkpoint", Path, metavar="FILE"),
    flag(
        "--trust",
        "let a TorchScript file run, now and later: it is a program that can read and overwrite "
        "any of your files, so only where you know who made it",
    ),
    option("--name", "new folder; its last part is the expert's name", Path, required=True),
    option("--robot", "the robot's name or path (default: the layout's)", default=""),
    option("--layout", "what it observes, as gaitforge expert template prints", Path),
    option("--answers", "known answers, for expert check: JSON or NPZ", Path, metavar="FILE"),
    option(
        "--gains",
        "where the policy's gains are not the robot's: policy, to write a robot with its gains and "
        "default pose, or robot, to keep the robot",
        choices=("policy", "robot"),
        default="",
    ),
    JSON,
)
def _import(arguments: argparse.Namespace) -> None:
    """Import a policy of mjlab, Isaac Lab or legged_gym as an expert."""
    from gaitforge.collectors.experts.expert import imported_policy, load_expert
    from gaitforge.collectors.experts.imported.importing import import_expert

    names = ("name", "robot", "layout", "answers", "gains")
    values = [getattr(arguments, name) for name in names]
    import_expert(arguments.policy, *values, trust=arguments.trust)
    name = str(arguments.name)
    policy = imported_policy(name)
    layout = imported_policy(name).layout
    row = {"expert": name, "hash": load_expert(name).hash, "robot": policy.robot.name}
    row |= {"terms": ",".join(term.name for term in layout.terms), "control_hz": layout.control_hz}
    show_one(row, arguments.json)


@command(
    "gaitforge expert trust my-expert",
    option("expert", "folder that gaitforge expert import wrote", Path, metavar="NAME"),
)
def _trust(arguments: argparse.Namespace) -> None:
    """Let the TorchScript program of an expert run, for which you know its maker."""
    from gaitforge.collectors.experts.imported.importing import trust_expert
    from gaitforge.collectors.experts.imported.trust import trusted_list

    print(f"{trust_expert(arguments.expert)} may run: its SHA-256 is in {trusted_list()}")


@command(
    "gaitforge expert template mjlab > layout.yaml",
    option("project", "isaaclab, legged_gym or mjlab", metavar="NAME"),
)
def _template(arguments: argparse.Namespace) -> None:
    """Print the layout of a project's usual policy, to fill in."""
    from gaitforge.collectors.experts.imported.importing import template

    print(template(arguments.project), end="")


@command(
    "gaitforge expert check my-expert",
    option("expert", "folder that gaitforge expert import wrote", metavar="NAME"),
    option("--answers", "known answers (default: the imported ones)", Path, metavar="FILE"),
    JSON,
)
def _check(arguments: argparse.Namespace) -> int:
    """Check an imported expert: known answers, a stand, a walk, its terms; exit 1 on a fault."""
    from gaitforge.collectors.experts.expert import imported_policy
    from gaitforge.collectors.experts.imported.checking import check_imported

    policy = imported_policy(arguments.expert)
    findings = check_imported(policy, arguments.answers or Path(arguments.expert))
    if arguments.json:
        show_one(asdict(findings), as_json=True)
    else:
        show(list(findings.terms), as_json=False)
        print()
        show_one(findings.figures, as_json=False)
        print("\n".join(f"warning: {warning}" for warning in findings.warnings))
    return 1 if findings.warnings else 0


expert_command = actions(
    "expert",
    "gaitforge expert list --json",
    _list,
    _train,
    _average,
    _film,
    _import,
    _trust,
    _template,
    _check,
)
