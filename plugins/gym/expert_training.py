"""Training a Gymnasium task's policies and measuring them, see `gaitforge.plugins.gym`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gaitforge.collectors.experts.ppo_algorithm import trained_steps
from gaitforge.flows.progress import Reporter, from_totals
from gaitforge.flows.records.records import provenance, read_record, training_lock
from gaitforge.flows.stages.evaluate import EVALUATION, evaluate_policy
from gaitforge.flows.stages.expert_training import TaskNetworks
from gaitforge.flows.tasks.evaluation import PolicyEvaluation
from gaitforge.flows.tasks.policy_sources import run_source
from gaitforge.plugins.gym.evaluation import GymEvaluation
from gaitforge.plugins.gym.experts import RECIPE, read_recipe
from gaitforge.plugins.gym.training.ppo import GymPPOConfig, train_gym_ppo
from gaitforge.plugins.gym.training.recipe import choose_policies, total_episodes
from gaitforge.plugins.gym.training.records import Row
from gaitforge.plugins.gym.training.settings import TrainingSettings, check_same
from gaitforge.plugins.gym.training.train import Learner, OffPolicy, train_gym, trained_gym_steps


def run_gym_training(
    config: TrainingSettings, out: Path, reporter: Reporter, learner: type[Learner] = OffPolicy
) -> dict[str, Any]:
    """Train in `out`, or resume the training there, and choose and measure its policies.

    A finished training with enough steps returns at once; with more steps it is resumed, and its
    policies are chosen again. `history.jsonl` has a line for each evaluation. Returns what
    `recipe.json` holds.

    Raises:
        ValueError: the task's package is not installed, another process trains in `out`, another
            training is there, or this one diverged or never got better than random.
        Stopped: (a KeyboardInterrupt) by a signal, after saving a checkpoint.
    """
    with training_lock(out):
        return _finished(config, out) or _train(config, out, reporter, learner)


def _finished(config: TrainingSettings, out: Path) -> dict[str, Any] | None:
    """The recipe of a finished training with these settings and steps; None if there is none."""
    recipe = read_record(out / RECIPE)
    if recipe is None:
        return None
    read_recipe(out)
    kinds = {"training": Mapping, "trained_steps": int, "return_std": dict, "lengths": dict}
    for name, kind in kinds.items():
        if not isinstance(recipe.get(name), kind):
            raise ValueError(f"{out / RECIPE} is not the recipe of a training: see {name}")
    check_same(config, recipe["training"], out)
    return recipe if recipe["trained_steps"] >= config.steps else None


def _train(
    config: TrainingSettings, out: Path, reporter: Reporter, learner: type[Learner]
) -> dict[str, Any]:
    done = trained_gym_steps(out)
    note = ""
    with reporter.step(f"train {config.env}", config.steps, "step", done) as advance:

        def report(summary: Row) -> None:
            nonlocal note
            note = f"return {summary['return']:.0f}, length {summary['length']:.0f}"

        train_gym(config, out, report, lambda steps: advance(steps, note), learner)
    with reporter.step("measure policies", total_episodes(), "episode") as advance:
        return choose_policies(
            out, learner.kind, provenance(), lambda episodes: advance(episodes, "")
        )


def run_gym_ppo(config: GymPPOConfig, out: Path, reporter: Reporter) -> PolicyEvaluation:
    """Train a network in `out` by PPO, or resume the training there, and evaluate its mean action.

    The folder `policy` is a run of task gym, with the evaluation beside the weights.

    Raises:
        ValueError: the task's package is missing, another process trains in `out`, or as
            `train_gym_ppo`.
        Stopped: (a KeyboardInterrupt) by a signal, after saving a checkpoint.
    """
    plan = GymEvaluation(env=config.env)
    done = trained_steps(out)
    with training_lock(out):
        with reporter.step(f"train {config.env}", config.steps, "step", done) as advance:
            show = from_totals(advance, done)

            def report(row: dict[str, Any]) -> None:
                has_return = row["return"] is not None
                note = (
                    f"return {row['return']:.0f}, length {row['length']:.0f}" if has_return else ""
                )
                show(row["steps"], note)

            networks = partial(
                TaskNetworks, plan, plan.name, reporter.say, config.model, config.model_overrides
            )
            policy = train_gym_ppo(config, out, report, networks)
        return evaluate_policy(run_source(policy), plan, reporter, policy / EVALUATION)
