"""`gaitforge gym`: Gymnasium's MuJoCo and Adroit tasks; and `gaitforge expert train --env`."""

import argparse
import sys
from functools import partial
from importlib.util import find_spec
from typing import Any

from gaitforge.flows.records.records import read_record
from gaitforge.pipeline.cli.collect import collection_work
from gaitforge.pipeline.cli.parsing.options import (
    JSON,
    MIX_VERSIONS,
    PROCESSES,
    SEED,
    STORE,
    Option,
    flag,
    needs,
    option,
    option_values,
    planned,
)
from gaitforge.pipeline.cli.parsing.parser import actions, command
from gaitforge.pipeline.cli.parsing.values import names, positive
from gaitforge.pipeline.cli.work import CommandWork, Result, single, work
from gaitforge.pipeline.terminal import show

_SHIPPED = ("medium", "expert")
_POLICIES = (
    "output of gaitforge expert train --env; or a run's folder, an ONNX file, or module:Class, "
    "whose policy is the expert (default: the shipped policies)"
)


@command("gaitforge gym list", JSON, needs("sim"))
def _list(arguments: argparse.Namespace) -> None:
    """List the tasks."""
    from gaitforge.plugins.gym.environments.tasks import TASKS
    from gaitforge.plugins.gym.experts import known_recipe

    recipes = {env: known_recipe(env) for env in TASKS}
    rows = [
        {
            "env": task.env_id,
            "d4rl": task.name if task.own is None else None,
            "horizon": task.facts.horizon,
            "control_dt_s": task.facts.control_dt_s,
            "package": task.package,
            "installed": find_spec(task.package) is not None,
            "expert_return": None if recipe is None else round(recipe.expert_return),
        }
        for task, recipe in zip(TASKS.values(), recipes.values(), strict=True)
    ]
    show(rows, arguments.json)


def _of_env(name: str, text: str, metavar: str) -> Option:
    """An option that becomes a setting of the environment's text."""
    join = "." if metavar == "NAME=VALUE" else "="
    setting = f"{name[2:].replace('-', '_')}{join}{{}}".format
    return option(name, text, setting, [], action="append", metavar=metavar, dest="env_settings")


@work(
    "gaitforge gym collect hopper.zarr --env Hopper-v5 --policies runs/hopper",
    STORE,
    option(
        "--env",
        "a task of gaitforge gym list, any of Gymnasium's registry, as module:ID if a module "
        "registers it, or module:function; with settings as ID,max_steps=200",
        metavar="TASK",
        required=True,
    ),
    _of_env("--max-steps", "cut episodes off there; needed where there is no time limit", "N"),
    _of_env(
        "--success",
        "the name in info that tells success, or terminated, truncated or rewarded (default: "
        "success or is_success)",
        "NAME",
    ),
    _of_env("--wrapper", "a wrapper of the environment; may be repeated", "MODULE:CLASS"),
    _of_env("--make", "a setting of making the environment; may be repeated", "NAME=VALUE"),
    _of_env("--reset", "an option of every reset; may be repeated", "NAME=VALUE"),
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
    PROCESSES,
    SEED,
    MIX_VERSIONS,
    JSON,
    needs("sim"),
    alone=True,
)
def _collect(arguments: argparse.Namespace) -> CommandWork:
    """Collect episodes of trained policies, or their replay buffer."""
    from gaitforge.plugins.gym.data import MEDIUM_REPLAY
    from gaitforge.plugins.gym.environments.batch import notes
    from gaitforge.plugins.gym.environments.environment_id import with_settings
    from gaitforge.plugins.gym.task import GymPlan, one_policy, quality_summary

    arguments.env = with_settings(arguments.env, arguments.env_settings)
    for note in notes(arguments.env):
        print(f"note: {note}", file=sys.stderr)
    names = ("env", "policies", "steps", "part_steps", "physics", "processes", "seed")
    values = option_values(arguments, *names, qualities="quality")
    if "qualities" not in values:
        if not (arguments.policies or arguments.replay):
            values["qualities"] = _SHIPPED
        elif one_policy(arguments.policies or "") is not None:
            values["qualities"] = _SHIPPED[1:]
    if MEDIUM_REPLAY in values.get("qualities", GymPlan.qualities):
        values |= option_values(arguments, "replay", "replay_steps")
    plan = GymPlan(**values)
    return collection_work(
        arguments, plan, lambda _: quality_summary(arguments.store, plan.part_ids())
    )


gym_command = actions("gym", "gaitforge gym list", _list, _collect)


def train_expert(arguments: argparse.Namespace) -> CommandWork:
    """The work of `gaitforge expert train --env`: by SAC, or a network of `--model` by PPO."""
    from gaitforge.plugins.gym.expert_training import run_gym_training
    from gaitforge.plugins.gym.experts import RECIPE
    from gaitforge.plugins.gym.training.settings import recommended_training

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
    from gaitforge.collectors.training_folder import POLICY
    from gaitforge.flows.stages.evaluate import EVALUATION
    from gaitforge.plugins.gym.expert_training import run_gym_ppo
    from gaitforge.plugins.gym.training.ppo import GymPPOConfig

    names = ("env", "model", "steps", "seed", "threads")
    config = planned(GymPPOConfig(), arguments, *names)
    out = arguments.out
    policy = out / POLICY

    def result(_: object) -> Result:
        return Result(read_record(policy / EVALUATION), lines=(str(policy),))

    work = partial(run_gym_ppo, config, out)
    return single(arguments, "train expert", work, result, out, device=config.processor)
