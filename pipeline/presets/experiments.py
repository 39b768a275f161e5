"""The experiments that ship: demo and pipelines, comparisons, suites, and rounds of corrections.

Plug-ins and other packages bring further ones, see `Preset`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gaitforge.collectors.legged.data import COLLECTION_PRESETS, CollectionGrid
from gaitforge.collectors.legged.rollout import GRID_EPISODES, GRID_LEVEL
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.common.errors import listed, names_allowed
from gaitforge.flows.experiments.evaluations import CONTEXT, Evaluations
from gaitforge.flows.experiments.plan import (
    Corrections,
    Experiment,
    Learners,
    Published,
    Settings,
    statements,
)
from gaitforge.flows.experiments.staged_plan import StagedPlan
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.flows.tasks.legged import LeggedPlan, legged_plan
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.presets.preset import DEMO, PRESETS

SIZES = SMALL, FULL = "small", "full"
ALL_CELLS: Settings = {
    "terrains": tuple(TERRAINS),
    "skills": tuple(SKILLS),
    "levels": (GRID_LEVEL,),
    "episodes": GRID_EPISODES,
    "robots": 240,
}
_COMPLETE = "terminated or truncated"
"""Episodes that were cut off are left out: their return is unknown."""


# A window is a whole episode, so every step has its full history. A training takes a minute.
_WHOLE_EPISODES: Settings = {
    "steps": 3000,
    "batch_size": 8,
    "window_len": EPISODE_STEPS,
    "peak_lr": 8e-3,
    "warmup_fraction": 0.2,
    "ema_decay": 0.995,
}


def demo() -> Experiment:
    """Sizes fit two cores, ten minutes and 4 GiB."""
    grid = COLLECTION_PRESETS[DEMO]
    corrections = LeggedPlan(grid=replace(grid, parts=grid.parts // 2, seed=1000))
    return Experiment(
        {
            "fcnet": _WHOLE_EPISODES,
            "bot": {"model": "bot-mix", "steps": 3000, "ema_decay": 0.995},
            "fcnet_rc": {"model": "fcnet", "objective": "return", **_WHOLE_EPISODES},
            "bot_rc": {"model": "bot", "objective": "return", "steps": 3000},
        },
        collect=LeggedPlan(grid=grid),
        corrections=Corrections(
            corrections, driver={"model": "fcnet", **_WHOLE_EPISODES, "steps": 1200}
        ),
        evaluate=ALL_CELLS,
    )


def _collecting(name: str) -> Experiment:
    """FCNet and BoT with three seeds on a collection of another size."""
    plan = legged_plan(name)
    evaluate = {**ALL_CELLS, "manoeuvres": plan.grid.manoeuvres}
    return Experiment(collect=plan, seeds=(0, 1, 2), evaluate=evaluate)


def compare() -> Experiment:
    """Models with equal settings on the same episodes."""
    models = ("fcnet", "transformer", "history-mlp", "mlp")
    return Experiment(
        {model: {} for model in models},
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "steps": TrainConfig.steps},
        recommended=False,
        tested=True,
    )


def dagger() -> Experiment:
    """Rounds of corrections beside plain imitation of as many episodes."""
    corrections = Corrections(LeggedPlan(CollectionGrid(parts=4, seed=1001)), rounds=3, plain=True)
    return Experiment({"fcnet": {}}, corrections=corrections)


# The policies of D4RL's papers: two hidden layers of 256 (ReBRAC: three), trained alike.
_MLP: Settings = {"model": "mlp", "model_overrides": {"hidden_dim": 256, "n_layers": 2}}
_ADAM: Settings = {
    "window_len": 1,
    "batch_size": 256,
    "optimiser": "adam",
    "peak_lr": 3e-4,
    "warmup_fraction": 0.0,
    "schedule": "constant",
    "weight_decay": 0.0,
}
# Tan et al. 2024, Table 4: returns are in units of D4RL's expert, and medium-expert is asked for
# 1.15. The published code clears memories every n steps, n the context.
_D4RL = "published"
D4RL_EVALUATIONS: Evaluations = {
    _D4RL: {
        "reset_every": CONTEXT,
        "return_target": 1.0,
        "sets": {"medium-expert": {"return_target": 1.15}},
    }
}
D4RL_MEASURE = f"{_D4RL} score"
_D4RL_SETS = {
    "medium": "quality in ('medium')",
    "medium-replay": "quality in ('medium-replay')",
    "medium-expert": "quality in ('medium', 'expert')",
}
_SUITE: dict[str, Any] = {
    "seeds": (0, 1, 2),
    "select": SelectPlan(where=_COMPLETE),
    "settings": {"split_seed": 0},
    "curve": 4,
}


def _d4rl_published() -> tuple[Published, ...]:
    """FCNet ahead of methods whose few updates tell something, by both evaluations."""
    means = {"dt": 74.7, "dt-retnet": 63.6, "bc": 46.4}
    numbers = {name: f"75.1 and {mean}" for name, mean in means.items()}
    return tuple(
        statement
        for measure in (D4RL_MEASURE, "")
        for statement in statements("fcnet", numbers, "FCNet, Table 2", measure)
    )


def d4rl(full: bool = False) -> Experiment:
    """The methods of the FCNet paper's Table 2 and later ones, on D4RL's sets.

    Each trains for about a minute of one core: at most 1 % of the papers' million updates. So few
    tell nothing about methods that learn values: no statement is held against theirs.

    Policies are scored twice: asked for the best return of their set with a memory that slides; and
    as published, asked for the expert's return (medium-expert: 1.15 of it), memories cleared.

    Args:
        full: 1, 5 and 20 times as many updates, five seeds, and FCNet of the published 2.6 million
            parameters. The paper tells no sizes of DT and DT-RetNet here: they get as many.
    """
    updates = {
        "td3-bc": 5000,
        "iql": 5000,
        "awr": 3000,
        "cql": 500,
        "bear": 2000,
        "brac-v": 3000,
        "rebrac": 5000,
    }
    valued = {
        name: {**_MLP, "objective": name, "batch_size": 256, "steps": steps}
        for name, steps in updates.items()
    }
    valued["awr"] |= {"batch_size": 8}  # windows of 32 steps
    asked: Settings = {"objective": "return", "steps": 1000}
    width: Settings = {"hidden_dim": 232} if full else {}
    learners: Learners = {
        "bc": {**_MLP, **_ADAM, "objective": "bc", "steps": 10_000},
        **valued,
        # Chen et al. 2021, appendix A: on Gym's tasks the context is 20 steps.
        "dt": {
            "model": "dt",
            **asked,
            "window_len": 20,
            "model_overrides": {"context_len": 20, **width},
        },
        "dt-retnet": {"model": "dt-retnet", **asked, "model_overrides": width},
        # The published size is the same for all three tasks.
        "fcnet": {"model": "fcnet-d4rl-hopper" if full else "fcnet", **asked},
    }
    extra = {"seeds": tuple(range(5)), "vary": {"budget": (1, 5, 20)}} if full else {}
    suite = {**_SUITE, **extra}
    return Experiment(
        learners,
        sets=_D4RL_SETS,
        targets=(1.0, 1.15),
        evaluations=D4RL_EVALUATIONS,
        published=_d4rl_published(),
        **suite,
    )


_OF_BEST = (0.92, 0.78, 0.64, 0.5, 0.37, 0.23)


def legged_mixed() -> Experiment:
    """Imitation, filtered and return-conditioned, and two value-based methods, on mixed quality."""
    # Imitation learns the clean actions; values the executed ones, as their objectives recommend.
    shared = {"ema_decay": 0.995}
    steered = {"objective": "return", "condition": ("driver",)}
    fcnet = {"model": "fcnet", **_WHOLE_EPISODES}
    # Values need many updates, which a network of single steps makes in the same time.
    valued = {**shared, **_MLP, "batch_size": 256, "steps": 10_000}
    learners: Learners = {
        "bc": fcnet,
        **{f"bc-top{share}": {**fcnet, "best": share / 100} for share in (50, 25, 10)},
        "fcnet": {**fcnet, **steered, "steps": 6000},
        "body-mlp": {**shared, "model": "body-mlp-spectral", **steered, "steps": 12_000},
        "fcnet-rtg": {**fcnet, "objective": "return"},
        "dt": {**shared, "model": "dt", "objective": "return", "steps": 2000, "batch_size": 16},
        "bot": {**shared, "model": "bot-mix-spectral", **steered, "steps": 8000},
        "bot-rtg": {**shared, "model": "bot", "objective": "return", "steps": 4000},
        "bc-mlp": {**shared, **_MLP, **_ADAM, "steps": 10_000},
        "iql": {**valued, "objective": "iql", "values": {"reward_scale": 1.0}},
        # Noise makes the range of actions wide, so that distances within it are small.
        "td3-bc": {
            **valued,
            "objective": "td3-bc",
            "values": {"reward_scale": 16.0, "alpha": 0.02},
        },
    }
    evaluate = {**ALL_CELLS, "episodes": 4, "robots": 108, "threads": 1}
    return Experiment(
        # The best episode returns 1.09 of the expert's mean: these ask for 100 % of it to 25 %.
        learners,
        sets={"mixed": ""},
        targets=_OF_BEST,
        evaluate=evaluate,
        **_SUITE,
    )


def preset(name: str, size: str = SMALL, places: Sequence[str] = ()) -> Experiment | StagedPlan:
    """A shipped experiment, small or at the papers' size.

    Args:
        places: stores or runs that it reads; an `Experiment` gets them later.

    Raises:
        ValueError: there is none of this name or size, it lists them; or it takes no such places.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset '{name}'; {names_allowed(name, PRESETS)}")
    entry = PRESETS[name]
    if size != SMALL and not entry.full:
        sized = listed([key for key, preset in PRESETS.usable().items() if preset.full])
        raise ValueError(f"{name} has one size; those with two: {sized}")
    settings: dict[str, Any] = {} if size == SMALL else {"full": True}
    if entry.places:
        whole = (address if ":" in address else str(Path(address).absolute()) for address in places)
        settings[entry.places] = tuple(whole)
    plan = entry.make(**settings)
    if places and not entry.places and not isinstance(plan, Experiment):
        raise ValueError(f"{name} takes no stores or policies, got {places[0]}")
    return plan


def experiment_preset(name: str) -> Experiment:
    """A shipped experiment on stores; ValueError as `preset`, or for one of another kind."""
    plan = preset(name)
    if not isinstance(plan, Experiment):
        raise ValueError(f"{name} needs no stores; gaitforge run {name} --out FOLDER")
    return plan


def collecting_preset(name: str) -> Experiment:
    """The demo, or FCNet and BoT with three seeds on another collection's size.

    Raises:
        ValueError: no such preset, as `legged_plan`.
    """
    return demo() if name == DEMO else _collecting(name)
