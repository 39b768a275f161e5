"""`gaitforge gym`: Gymnasium's MuJoCo and Adroit tasks."""

import argparse
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gaitforge.flows.records.records import read_record, to_tree
from gaitforge.pipeline.cli.collect import run_collection, show_collected
from gaitforge.pipeline.cli.parsing.parser import (
    actions,
    command,
    flag,
    given,
    option,
    planned,
    setting,
)
from gaitforge.pipeline.cli.parsing.runners import RUNNER
from gaitforge.pipeline.cli.parsing.values import names, positive
from gaitforge.pipeline.progress import TerminalReporter
from gaitforge.pipeline.tables import show, show_one

_SHIPPED = ("medium", "expert")
_POLICIES = "output of gaitforge expert train --env (default: the shipped policies)"
_REFERENCES = "a task's policies, whose returns score 0 and 100 (default: POLICY's or the store's)"


@command("gaitforge gym list", "--json")
def _list(arguments: argparse.Namespace) -> None:
    """List the tasks."""
    from gaitforge.collectors.gym.experts import policies_folder, read_recipe
    from gaitforge.collectors.gym.tasks import TASKS

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


@command(
    "gaitforge gym collect hopper.zarr --env Hopper-v5 --policies runs/hopper",
    "store",
    option("--env", "a task, see gaitforge gym list", metavar="TASK", required=True),
    option("--policies", _POLICIES, default="", metavar="FOLDER"),
    option(
        "--quality",
        "of random, medium, medium-replay, expert (default: all but random; of the shipped "
        "policies, which have no replay buffer, medium,expert)",
        names,
    ),
    option("--steps", "minimum steps per quality (default: 1,000,000)", positive),
    option("--part-steps", "minimum steps per part (default: 50,000)", positive),
    option(
        "--replay",
        "training of gaitforge expert train --env whose replay buffer is medium-replay (default: "
        "that of --policies)",
        metavar="FOLDER",
    ),
    option("--replay-steps", "its first steps (default: until the medium policy)", positive),
    flag("--physics", "store the simulator's positions and velocities"),
    *RUNNER,
    "--processes --seed --json",
)
def _collect(arguments: argparse.Namespace) -> None:
    """Collect episodes of trained policies, or their replay buffer."""
    from gaitforge.flows.tasks.gym import GymPlan, quality_summary

    names = ("env", "policies", "steps", "part_steps", "physics", "processes", "seed")
    chosen = given(arguments, *names, "replay", "replay_steps", qualities="quality")
    if not (arguments.policies or arguments.replay):
        chosen.setdefault("qualities", _SHIPPED)
    plan = GymPlan(**chosen)
    records = run_collection(arguments, plan)
    if records is not None:
        rows = quality_summary(arguments.store, plan.part_ids())
        show_collected(rows, records, arguments.json)


@command(
    "gaitforge gym evaluate runs/fcnet --env Hopper-v5 --return-target 1.15",
    option("policy", "folder of a run or of a task's policies; medium or expert (shipped); random"),
    option("--env", "a task, e.g. Hopper-v5", metavar="TASK", required=True),
    option("--policies", _REFERENCES, default="", metavar="FOLDER"),
    option("--quality", "which policy of a folder of policies", str, "expert", choices=_SHIPPED),
    option("--episodes", "episodes to run (default: 100)", positive),
    option(
        "--return-target",
        "return to condition on, in units of the expert's return (default: 1)",
        float,
    ),
    option("--out", "also write the result as JSON", Path, metavar="FILE"),
    "--seed --checkpoint",
    setting("environments=50"),
    "--json",
)
def _evaluate(arguments: argparse.Namespace) -> None:
    """Run a trained policy, an expert or a random policy."""
    from gaitforge.collectors.gym.experts import policies_folder
    from gaitforge.flows.stages.gym.evaluation import (
        RANDOM,
        GymEvaluationPlan,
        GymSource,
        evaluate_gym,
        measured_references,
    )

    policy, folder = arguments.policy, Path(arguments.policy)
    if policy == RANDOM:
        source = GymSource(RANDOM)
    elif (folder / "config.json").is_file():
        source = GymSource(folder.resolve().name, run=folder, which=arguments.checkpoint)
    elif policy in _SHIPPED and not folder.is_dir():
        shipped = str(policies_folder(arguments.env))
        source = GymSource(policy, policies=shipped, quality=policy)
    else:
        source = GymSource(arguments.quality, policies=policy, quality=arguments.quality)
    policies = arguments.policies or source.policies or policies_folder(arguments.env)
    references = measured_references(policies, arguments.env)
    plan = GymEvaluationPlan(arguments.env, references=references)
    plan = planned(plan, arguments, "episodes", "seed", "return_target")
    if plan.env != arguments.env:
        raise ValueError(f"--env chooses the task, {arguments.env}: leave out --set env")
    evaluation = evaluate_gym(source, plan, TerminalReporter(), arguments.out)
    record = (read_record(arguments.out) if arguments.out else None) or to_tree(evaluation)
    show_one(record if arguments.json else _shown(record), arguments.json)


def _shown(record: Mapping[str, Any]) -> dict[str, object]:
    """The record's numbers; a mean and its standard deviation are two."""
    rows = {name: record[name] for name in ("policy", "env", "episodes")}
    for name in ("return", "length", "normalised", "d4rl_normalised"):
        rows |= {name: record[name]["mean"], f"{name} std": record[name]["std"]}
    return rows | {name: record[name] for name in ("success", "terminated", "steps_per_s")}


gym_command = actions("gaitforge gym list", _list, _collect, _evaluate)
