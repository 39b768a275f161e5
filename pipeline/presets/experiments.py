"""The experiments that ship: demo and pipelines, comparisons, suites, and rounds of corrections.

Plug-ins and other packages bring further ones, see `Preset`. `chosen_claim` sets an experiment on
stores, with the values that a user chooses in place of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gaitforge.collectors.legged.data import COLLECTION_PRESETS, CollectionGrid
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.common.errors import listed
from gaitforge.common.extensions import Registered
from gaitforge.common.trust import naming
from gaitforge.datasets import Selection, open_store
from gaitforge.flows.experiments.claim import Claim, claimed
from gaitforge.flows.experiments.plan import Corrections, Experiment, Learners, Settings, statements
from gaitforge.flows.experiments.runs import (
    FirstParts,
    parts_of_demonstrations,
    with_first,
    without_rounds,
)
from gaitforge.flows.experiments.staged_plan import StagedPlan
from gaitforge.flows.settings import override, with_chosen, with_named
from gaitforge.flows.stages.status import is_experiment
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.flows.tasks.evaluation import EvaluationPlan
from gaitforge.flows.tasks.legged import LeggedPlan, legged_plan
from gaitforge.flows.tasks.registry import LEGGED, evaluation_of
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.presets.preset import Preset

COMPARE = "compare"
DAGGER = "dagger"
DEMO = "demo"
SIZES = SMALL, FULL = "small", "full"
GRID_EPISODES = 20
"""Evaluated episodes per cell."""
ALL_CELLS: Settings = {
    "terrains": tuple(TERRAINS),
    "skills": tuple(SKILLS),
    "levels": (4,),
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


def _demo() -> Experiment:
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
    return Experiment(collect=legged_plan(name), seeds=(0, 1, 2), evaluate=ALL_CELLS)


def _compare() -> Experiment:
    """Models with equal settings on the same episodes."""
    models = ("fcnet", "transformer", "history-mlp", "mlp")
    return Experiment(
        {model: {} for model in models},
        seeds=(0, 1, 2),
        settings={"split_seed": 0, "steps": TrainConfig.steps},
        recommended=False,
        tested=True,
    )


def _dagger() -> Experiment:
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
_SUITE: dict[str, Any] = {
    "seeds": (0, 1, 2),
    "select": SelectPlan(where=_COMPLETE),
    "settings": {"split_seed": 0},
    "curve": 4,
}


def _d4rl(full: bool = False) -> Experiment:
    """The methods of the FCNet paper's Table 2 and later ones, on D4RL's sets.

    Each trains for about a minute of one core: at most 1 % of the papers' million updates.

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
    qualities = {
        "medium": ("medium",),
        "medium-replay": ("medium-replay",),
        "medium-expert": ("medium", "expert"),
    }
    sets = {
        name: f"quality in ({', '.join(map(repr, values))})" for name, values in qualities.items()
    }
    means = {"dt": 74.7, "dt-retnet": 63.6, "bc": 46.4, "cql": 63.9}
    numbers = {name: f"75.1 and {mean}" for name, mean in means.items()}
    published = statements("fcnet", numbers, "FCNet, Table 2")
    extra = {"seeds": tuple(range(5)), "vary": {"budget": (1, 5, 20)}} if full else {}
    suite = {**_SUITE, **extra}
    return Experiment(learners, sets=sets, targets=(1.0, 1.15), published=published, **suite)


_OF_BEST = (0.92, 0.78, 0.64, 0.5, 0.37, 0.23)


def _legged_mixed() -> Experiment:
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


_OURS: Mapping[str, Preset] = {
    DEMO: Preset(_demo, "collects a small dataset, corrects a policy, trains four learners", 0.23),
    COMPARE: Preset(_compare, "models with equal settings on a store, on held-out episodes, too"),
    "d4rl": Preset(_d4rl, "FCNet's Table 2: offline learners on D4RL's sets", 5.0, full=True),
    "legged-mixed": Preset(
        _legged_mixed, "imitation, conditions and values on data of mixed quality", 5.0
    ),
    DAGGER: Preset(_dagger, "rounds of corrections beside plain imitation"),
}
PRESETS: Mapping[str, Preset] = Registered("preset", Preset, _OURS)


def preset(name: str, size: str = SMALL, places: Sequence[str] = ()) -> Experiment | StagedPlan:
    """A shipped experiment, small or at the papers' size.

    Args:
        places: stores or runs that it reads; an `Experiment` gets them later.

    Raises:
        ValueError: there is none of this name or size, it lists them; or it takes no such places.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset '{name}'; allowed: {listed(PRESETS)}")
    entry = PRESETS[name]
    if size != SMALL and not entry.full:
        sized = listed([key for key, preset in PRESETS.items() if preset.full])
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
        ValueError: no such preset.
    """
    if name not in COLLECTION_PRESETS:
        raise ValueError(f"unknown preset '{name}'; allowed: {listed(COLLECTION_PRESETS)}")
    return _demo() if name == DEMO else _collecting(name)


# Values that a user chooses.
def _unsaid(text: str) -> None:
    """Tell nobody."""


def chosen_claim(
    name: str,
    experiment: Experiment,
    stores: Sequence[str],
    choices: Mapping[str, Any],
    settings: Sequence[str],
    out: Path,
    say: Callable[[str], object] = _unsaid,
) -> Claim:
    """An experiment on stores, with some values replaced; None leaves a value as it is.

    Args:
        choices: those of `_with_choices`, and `terrains`, `skills`, `levels`, `where`, `saved`,
            which select the stores' episodes. Each is looked up only where it has an effect, so
            that a command line can refuse the others.
        settings: NAME=VALUE, see `override`.
        out: the experiment's folder; a resumed one keeps its first call's parts for corrections.
        say: is told which parts corrections do not begin with.

    Raises:
        ValueError: a preset, store, or value that does not fit.
    """
    fields = {"terrain": "terrains", "skill": "skills", "level": "levels"}
    cells = {name: choices[name] for name in fields.values() if name in choices}
    if stores:
        select = {field: cells[name] for field, name in fields.items() if name in cells}
        select |= {"saved": choices["saved"]} if "saved" in choices else {}
        wheres = [term for term in (experiment.select.where, choices.get("where", "")) if term]
        where = " and ".join(f"({term})" for term in wheres) if len(wheres) > 1 else "".join(wheres)
        experiment = replace(experiment, select=replace(experiment.select, where=where, **select))
        cells = {}
    experiment = _with_choices(experiment, cells, choices)
    evaluations = [_evaluation_here(store) for store in stores]
    evaluation = evaluations[0] if stores else None
    demonstrations = None
    if stores and (corrections := experiment.corrections) is not None:
        if evaluation is None or evaluation.kind != LEGGED:
            raise ValueError(f"{stores[0]} is not of legged robots, which corrections need")
        experiment, demonstrations = _begun(experiment, stores, settings, out)
        expert = evaluation.scoring_expert(experiment.select.select(stores[0]))
        works = {"expert": expert} if expert and "expert" not in choices else {}
        works |= {"robot": robot} if (robot := getattr(evaluation, "robot", "")) else {}
        collect = replace(corrections.collect, **works)
        experiment = replace(experiment, corrections=replace(corrections, collect=collect))
    if getattr(evaluation, "kind", "") == LEGGED and "terrains" not in experiment.evaluate:
        experiment = _fitted(experiment, experiment.select.select(stores[0]))
    experiment = override(experiment, settings)
    every = choices.get("config", {})  # for learners that `settings` brought, too
    learners = {name: {**every, **config} for name, config in experiment.learners.items()}
    experiment = replace(experiment, learners=learners)
    if evaluation is not None and experiment.corrections is None:
        experiment = _evaluated_on(experiment, evaluation, stores[0])
    if demonstrations is not None:
        first = without_rounds(experiment, stores[0])
        experiment = with_first(experiment, first)
        _say_left_out(demonstrations, first, say)
    return Claim(name, experiment, tuple(stores))


def _evaluation_here(store: str) -> EvaluationPlan | None:
    """The evaluation of a store's task; refused at once if the user did not name its code."""
    evaluation = evaluation_of(open_store(store))
    if evaluation is not None:
        with naming(store):
            evaluation.check_code()
    return evaluation


def _begun(
    experiment: Experiment, stores: Sequence[str], settings: Sequence[str], out: Path
) -> tuple[Experiment, FirstParts | None]:
    """An experiment on the parts that corrections begin with; these, unless they were known."""
    if parts := override(experiment, settings).select.parts:
        return with_first(experiment, FirstParts(parts)), None
    old = claimed(out) if is_experiment(out) else None
    known_parts = old.experiment.select.parts if old and old.stores == tuple(stores) else ()
    first = parts_of_demonstrations(stores[0], known_parts)
    return with_first(experiment, first), None if known_parts else first


def _say_left_out(
    demonstrations: FirstParts, first: FirstParts, say: Callable[[str], object]
) -> None:
    """Say which episodes of a store are not among those that corrections begin with."""
    if left_out := [*demonstrations.left_out, *first.left_out]:
        say(f"round 0 leaves out what earlier rounds collected: {listed(left_out)}")
    if demonstrations.where:
        say(f"round 0 leaves out earlier corrections: {demonstrations.where}")


def _with_choices(
    experiment: Experiment, cells: Mapping[str, Any], choices: Mapping[str, Any]
) -> Experiment:
    """An experiment with some values replaced.

    Args:
        cells: terrains, skills and levels to collect, and to evaluate at the middle level.
        choices: `parts` of a collection or round; `episodes` of an evaluation's cell; `learners`,
            where a name that the experiment has keeps its settings and any other is a model;
            `seeds`, `train_s`, `expert`, `threads`; `rounds`, `share`, `stretch`, `plain`;
            `randomisation`, the preset of what is collected; and `config`, settings of every
            training.
    """
    evaluate = dict(cells)
    if "levels" in evaluate:
        evaluate["levels"] = (middle(evaluate["levels"]),)
    evaluate |= {name: choices[name] for name in ("episodes", "threads") if name in choices}
    existing = experiment.learners
    config = choices.get("config", {})
    learners = {name: existing.get(name, {}) for name in choices.get("learners", existing)}
    changes = {name: choices[name] for name in ("seeds", "train_s") if name in choices}
    if "randomisation" in choices and experiment.collect is None:
        raise ValueError("a store has its own randomisation; --randomisation is for what collects")
    if experiment.collect is not None:
        changes["collect"] = _collection(experiment.collect, cells, choices, "parts")
    elif "expert" in choices and experiment.corrections is None:
        changes["expert"] = choices["expert"]
    if (corrections := experiment.corrections) is not None:
        parts = "" if experiment.collect is not None else "parts"
        rounds = {name: choices.get(name) for name in ("rounds", "share", "stretch", "plain")}
        collect = _collection(corrections.collect, cells, choices, parts)
        changes["corrections"] = with_chosen(replace(corrections, collect=collect), rounds)
    return replace(
        experiment,
        learners={name: {**settings, **config} for name, settings in learners.items()},
        evaluate={**experiment.evaluate, **evaluate},
        **changes,
    )


def _collection(
    plan: LeggedPlan, cells: Mapping[str, Any], choices: Mapping[str, Any], parts: str
) -> LeggedPlan:
    grid = with_chosen(plan.grid, {**cells, "parts": choices.get(parts)})
    works = {name: choices.get(name) for name in ("expert", "threads")}
    if "randomisation" in choices:
        works["randomisation"] = {"preset": choices["randomisation"]}
    return with_chosen(plan, {"grid": grid, **works})


def _fitted(experiment: Experiment, selection: Selection) -> Experiment:
    """An experiment whose evaluation, and rounds, have the terrains and skills of some episodes.

    Raises:
        ValueError: terrains or skills that this program cannot simulate.
    """
    table = selection.episodes()

    def present(column: str, order: Sequence[str]) -> tuple[str, ...]:
        names = set(table.column(column).to_pylist())
        return tuple(sorted(names, key=[*order, *sorted(names)].index))

    levels = tuple(sorted(table.column("level").unique().to_pylist()))
    cells = {"terrains": present("terrain", [*TERRAINS]), "skills": present("skill", [*SKILLS])}
    evaluate = {**cells, "levels": (middle(levels),), "episodes": GRID_EPISODES}
    experiment = replace(experiment, evaluate={**evaluate, **experiment.evaluate})
    if (corrections := experiment.corrections) is None:
        return experiment
    grid = with_chosen(corrections.collect.grid, {**cells, "levels": levels})
    collect = replace(corrections.collect, grid=grid)
    return replace(experiment, corrections=replace(corrections, collect=collect))


def _evaluated_on(experiment: Experiment, evaluation: EvaluationPlan, store: str) -> Experiment:
    """An experiment whose evaluation suits its sets, as the store's task has it."""
    among = experiment.select.select(store)
    learned = [
        among.where(condition) if condition else among for condition in experiment.sets.values()
    ]
    plan = with_named(evaluation, experiment.evaluate)
    fitted = plan.fitted(among, learned)
    expert = experiment.expert or plan.scoring_expert(among)
    return replace(experiment, evaluate={**fitted, **experiment.evaluate}, expert=expert)


def middle(levels: Sequence[int]) -> int:
    """The middle one of terrain levels; of an even number the lower one."""
    return sorted(levels)[(len(levels) - 1) // 2]
