"""What `gaitforge gym evaluate` and `gaitforge gym compare` do."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from collectors.gym.experts import QUALITIES, policies_folder
from flows.stages.gym.comparison import GymComparisonPlan, run_gym_comparison
from flows.stages.gym.evaluation import (
    RANDOM,
    GymEvaluationPlan,
    GymSource,
    evaluate_gym,
    evaluate_gym_once,
    measured_references,
)
from pipeline.cli.plan_choices import with_chosen
from pipeline.cli.settings import override
from pipeline.progress import TerminalReporter
from pipeline.report.gym_comparison_page import result_rows, write_gym_comparison
from pipeline.tables import show, show_one


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate one policy; prints its means."""
    source = _source(arguments)
    policies = arguments.policies or source.policies or policies_folder(arguments.env)
    references = measured_references(policies, arguments.env)
    plan = GymEvaluationPlan(env=arguments.env, references=references)
    plan = with_chosen(plan, _given(arguments, "episodes", "seed", "return_target"))
    plan = override(plan, arguments.settings)
    if plan.env != arguments.env:
        raise ValueError(f"--env chooses the task, {arguments.env}: leave out --set env")
    record = (
        evaluate_gym(source, plan, TerminalReporter())
        if arguments.out is None
        else evaluate_gym_once(source, plan, arguments.out, TerminalReporter())
    )
    show_one(record if arguments.json else _shown(record), arguments.json)
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Make the runs that are asked for, and write the page of all that the folder has."""
    record = run_gym_comparison(
        _plan(arguments), arguments.store, arguments.out, TerminalReporter()
    )
    page = write_gym_comparison(arguments.out)
    if arguments.json:
        show_one(record, as_json=True)
        return 0
    show(result_rows(record), as_json=False)
    if record["left_out"]:
        print(f"\nleft out, for they have other settings: {', '.join(record['left_out'])}")
    print(f"\npage: {page}")
    return 0


def _source(arguments: argparse.Namespace) -> GymSource:
    policy, folder = arguments.policy, Path(arguments.policy)
    if policy == RANDOM:
        return GymSource(RANDOM)
    if (folder / "config.json").is_file():
        return GymSource(folder.resolve().name, run=folder, which=arguments.checkpoint)
    if policy in QUALITIES and not folder.is_dir():
        return GymSource(policy, policies=str(policies_folder(arguments.env)), quality=policy)
    return GymSource(arguments.quality, policies=policy, quality=arguments.quality)


def _shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record's numbers as lines; a mean and its standard deviation are two."""
    rows: dict[str, Any] = {name: record[name] for name in ("policy", "env", "episodes")}
    for name in ("return", "length", "normalised", "d4rl_normalised"):
        rows |= {name: record[name]["mean"], f"{name} std": record[name]["std"]}
    return rows | {name: record[name] for name in ("success", "terminated", "steps_per_s")}


def _plan(arguments: argparse.Namespace) -> GymComparisonPlan:
    plan = with_chosen(GymComparisonPlan(), _given(arguments, "env", "policies", "models", "seeds"))
    shared = _given(arguments, "steps", "batch_size", "device")
    plan = replace(
        plan,
        config=with_chosen(plan.config, shared),
        evaluate=with_chosen(plan.evaluate, _given(arguments, "episodes")),
    )
    # What names sets is checked against them, so that they come first.
    settings = sorted(arguments.settings, key=lambda setting: not setting.startswith("sets="))
    return with_chosen(override(plan, settings), _given(arguments, "only"))


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in names}
