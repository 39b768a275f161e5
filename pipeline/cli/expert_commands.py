"""What the `gaitforge expert` commands do."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from collectors.experts.expert import DEFAULT_EXPERT, EXPERTS, list_experts, load_expert
from collectors.gym.experts import RECIPE
from collectors.physics.contract.robot_check import check_robot
from collectors.robots.robot import absolute_robot, load_robot
from flows.stages.evaluate import PolicySource
from pipeline.cli.commands import show_evaluation
from pipeline.cli.plan_choices import with_chosen
from pipeline.cli.settings import override
from pipeline.progress import TerminalReporter
from pipeline.tables import show


def list_them(arguments: argparse.Namespace) -> int:
    """List the shipped experts."""
    rows = []
    for name in list_experts():
        expert = load_expert(name)
        rows.append(
            {
                "name": name,
                "file": str(EXPERTS / f"{name}.safetensors"),
                "hash": expert.hash,
                "skills": ",".join(expert.card["skills"]),
                "terrains": ",".join(expert.card["terrains"]),
                "steps": expert.card["steps"],
            }
        )
    show(rows, arguments.json)
    return 0


def train(arguments: argparse.Namespace) -> int:
    """Train an expert; `expert.safetensors` and its card land in the folder."""
    if arguments.env is not None:
        return _train_gym(arguments)
    from collectors.experts.ppo import ExpertTrainingConfig
    from flows.stages.expert import run_expert_training

    chosen = {name: getattr(arguments, name) for name in ("steps", "robots", "seed", "threads")}
    config = replace(ExpertTrainingConfig(), **{k: v for k, v in chosen.items() if v is not None})
    config = override(config, arguments.settings)
    # The expert's card will name the robot, and is read from other working directories.
    config = replace(config, robot=absolute_robot(config.robot))
    for warning in check_robot(load_robot(config.robot)).warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(run_expert_training(config, arguments.out, TerminalReporter()))
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate an expert."""
    name = arguments.expert or DEFAULT_EXPERT
    return show_evaluation(PolicySource(Path(name).stem, expert=name), arguments)


def _train_gym(arguments: argparse.Namespace) -> int:
    """Train a task's policies; prints how they were chosen and what they return."""
    from collectors.gym.training.recommended import recommended_training  # brings torch
    from flows.stages.gym.training import run_gym_training

    if arguments.robots is not None:
        raise ValueError("--robots is not for --env: a task's settings say how many run")
    config = recommended_training(arguments.env)
    chosen = {name: getattr(arguments, name) for name in ("steps", "seed", "threads")}
    config = override(with_chosen(config, chosen), arguments.settings)
    recipe = run_gym_training(config, arguments.out, TerminalReporter())
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
    show(rows, as_json=False)
    print(arguments.out / RECIPE)
    return 0
