"""What the `gaitforge gym` commands do."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from collectors.gym.data import EXPERT, MEDIUM
from collectors.gym.experts import policies_folder, read_recipe
from collectors.gym.tasks import TASKS
from datasets import open_store
from flows.records.part_records import records_of_commits
from flows.runners.registry import find_runner
from flows.tasks.gym import GymPlan, quality_summary
from pipeline.cli.collected import show_collected
from pipeline.cli.jobs_commands import show_submitted
from pipeline.cli.runner_arguments import runner_settings
from pipeline.progress import TerminalReporter
from pipeline.tables import show


def list_tasks(arguments: argparse.Namespace) -> int:
    """List the tasks, and whether what they need is installed."""
    rows = [
        {
            "env": task.env_id,
            "d4rl": task.name,
            "horizon": task.facts.horizon,
            "control_dt_s": task.facts.control_dt_s,
            "package": task.package,
            "installed": find_spec(task.package) is not None,
            "expert_return": round(read_recipe(policies_folder(task.env_id)).expert_return),
        }
        for task in TASKS.values()
    ]
    show(rows, arguments.json)
    return 0


def collect(arguments: argparse.Namespace) -> int:
    """Collect the missing parts of a plan; prints a row a quality."""
    chosen = {
        "qualities": arguments.quality,
        "steps": arguments.steps,
        "part_steps": arguments.part_steps,
        "seed": arguments.seed,
    }
    if not arguments.policies and arguments.quality is None:
        chosen["qualities"] = (MEDIUM, EXPERT)
    given = {name: value for name, value in chosen.items() if value is not None}
    given |= {"physics": arguments.physics, "processes": arguments.processes}
    plan = GymPlan(arguments.env, arguments.policies, **given)
    made = find_runner(arguments.runner)(
        plan, arguments.store, TerminalReporter(), None, runner_settings(arguments)
    )
    if not isinstance(made, list):  # handed to a queue
        show_submitted(made, arguments.json)
        return 0
    records = records_of_commits(open_store(arguments.store), arguments.store, plan.part_ids())
    show_collected(quality_summary(arguments.store, plan.part_ids()), records, arguments.json)
    return 0
