"""An experiment on stores, with the values that a user chooses in place of its own."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT
from gaitforge.collectors.legged.rollout import GRID_EPISODES
from gaitforge.common.errors import listed
from gaitforge.common.trust import naming
from gaitforge.datasets import Selection, open_store
from gaitforge.flows.experiments.claim import EVALUATE, SCORING_EXPERT, Claim, claimed
from gaitforge.flows.experiments.evaluations import MEASURES, OF_KEPT
from gaitforge.flows.experiments.plan import Experiment, Published
from gaitforge.flows.experiments.runs import (
    FirstParts,
    parts_of_demonstrations,
    with_first,
    without_rounds,
)
from gaitforge.flows.settings import override, with_chosen, with_named
from gaitforge.flows.stages.status import is_experiment
from gaitforge.flows.tasks.evaluation import EvaluationPlan
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.flows.tasks.legged_evaluation import cells_of, middle
from gaitforge.flows.tasks.registry import LEGGED, evaluation_of

CONFIG = ("objective", "steps", "batch_size", "device")
"""Options that are settings of every training."""


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
    fitted: Collection[str] = (),
) -> Claim:
    """An experiment on stores, with some values replaced; None leaves a value as it is.

    Args:
        choices: those of `_with_choices`, and `terrains`, `skills`, `levels`, `where`, `saved`,
            which select the stores' episodes. Each is looked up only where it has an effect, so
            that a command line can refuse the others.
        settings: NAME=VALUE, see `override`.
        out: the experiment's folder; a resumed one keeps its first call's parts for corrections.
        say: is told which parts corrections do not begin with.
        fitted: settings of the experiment that its stores decided, see `Claim.fitted`.

    Raises:
        ValueError: a preset, store, or value that does not fit.
    """
    experiment = _with_options(experiment, choices, bool(stores))
    if not stores:
        return Claim(name, _with_settings(experiment, choices, settings))
    chosen = _stated(override(experiment, settings)).items()
    chosen -= {item for item in _stated(experiment).items() if item[0] in fitted}
    experiment = _on_stores(experiment, stores, choices, settings, out, say)
    decided = _stated(experiment).keys() - dict(chosen)
    # Rounds of corrections have cells and parts of their store, too: they are of that one alone.
    known = () if experiment.corrections is not None else tuple(sorted(decided))
    return Claim(name, experiment, tuple(stores), known)


def _stated(experiment: Experiment) -> dict[str, str]:
    """The settings that stores may decide, as far as an experiment has them, and their values."""
    values = {f"{EVALUATE}.{name}": str(value) for name, value in experiment.evaluate.items()}
    return values | ({SCORING_EXPERT: experiment.expert} if experiment.expert else {})


def _with_options(
    experiment: Experiment, choices: Mapping[str, Any], of_stores: bool
) -> Experiment:
    """An experiment with the options' values: of stores they select episodes, else what to make."""
    fields = {"terrain": "terrains", "skill": "skills", "level": "levels"}
    cells = {name: choices[name] for name in fields.values() if name in choices}
    if not of_stores:
        return _with_choices(experiment, cells, choices)
    select = {field: cells[name] for field, name in fields.items() if name in cells}
    if choices.get("saved"):
        select["saved"] = str(Path(choices["saved"]).absolute())
    wheres = [term for term in (experiment.select.where, choices.get("where", "")) if term]
    where = " and ".join(f"({term})" for term in wheres) if len(wheres) > 1 else "".join(wheres)
    selected = replace(experiment, select=replace(experiment.select, where=where, **select))
    return _with_choices(selected, {}, choices)


def _with_settings(
    experiment: Experiment, choices: Mapping[str, Any], settings: Sequence[str]
) -> Experiment:
    """An experiment with the settings, and the choices' `config` for every learner."""
    experiment = override(experiment, settings)
    if any(setting.startswith("published") for setting in settings):
        _check_statements(experiment)
    else:
        experiment = _without_absent_measures(experiment)
    every = choices.get("config", {})  # for learners that `settings` brought, too
    learners = {name: {**every, **config} for name, config in experiment.learners.items()}
    return replace(experiment, learners=learners)


def _check_statements(experiment: Experiment) -> None:
    """Raise ValueError for a statement about a learner that the experiment has not."""
    for statement in experiment.published:
        for name in (statement.ahead, statement.behind):
            if name not in experiment.learners:
                allowed = listed(experiment.learners)
                raise ValueError(f"published: no learner '{name}'; allowed: {allowed}")


def _without_absent_measures(experiment: Experiment) -> Experiment:
    """An experiment without statements about further evaluations that it has not."""

    def is_measured(statement: Published) -> bool:
        name, _, measure = statement.measure.rpartition(" ")
        known = ("", *OF_KEPT, *experiment.evaluations)
        return measure not in MEASURES or name in known

    published = tuple(filter(is_measured, experiment.published))
    return replace(experiment, published=published)


def _on_stores(
    experiment: Experiment,
    stores: Sequence[str],
    choices: Mapping[str, Any],
    settings: Sequence[str],
    out: Path,
    say: Callable[[str], object],
) -> Experiment:
    """An experiment with what its stores decide: its first episodes, expert and evaluation."""
    store = stores[0]
    evaluation, *_ = [_evaluation_here(address) for address in stores]
    legged = evaluation is not None and evaluation.kind == LEGGED
    demonstrations = None
    if experiment.corrections is not None:
        if evaluation is None or not legged:
            raise ValueError(f"{store} is not of legged robots, which corrections need")
        experiment, demonstrations = _begun(experiment, stores, settings, out)
        experiment = _labelled(experiment, evaluation, store, "expert" in choices)
    if legged and "terrains" not in experiment.evaluate:
        experiment = _fitted(experiment, override(experiment, settings).select.select(store))
    experiment = _with_settings(experiment, choices, settings)
    if evaluation is not None and experiment.corrections is None:
        experiment = _evaluated_on(experiment, evaluation, store)
    if demonstrations is not None:
        first = without_rounds(experiment, store)
        experiment = with_first(experiment, first)
        _say_left_out(demonstrations, first, say)
    return experiment


def _labelled(
    experiment: Experiment, evaluation: EvaluationPlan, store: str, is_chosen: bool
) -> Experiment:
    """An experiment whose corrections are of a store's robot and, unless one is chosen, expert."""
    corrections = experiment.corrections
    assert corrections is not None
    expert = evaluation.scoring_expert(experiment.select.select(store))
    # A plan that was read from a folder keeps the expert that its first command chose.
    is_chosen = is_chosen or corrections.collect.expert != DEFAULT_EXPERT
    works = {"expert": expert} if expert and not is_chosen else {}
    works |= {"robot": robot} if (robot := getattr(evaluation, "robot", "")) else {}
    collect = replace(corrections.collect, **works)
    return replace(experiment, corrections=replace(corrections, collect=collect))


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
    alike = _shared(existing.values())
    learners = {name: existing.get(name, alike) for name in choices.get("learners", existing)}
    changes = {name: choices[name] for name in ("seeds", "train_s") if name in choices}
    if "steps" in config and "train_s" not in choices:
        changes["train_s"] = None  # they take the place of a preset's time
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


def _shared(learners: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """What all learners have of the options' settings: a folder's earlier command gave them."""
    first, *others = learners
    return {
        name: first[name]
        for name in CONFIG
        if name in first and all(name in o and o[name] == first[name] for o in others)
    }


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
    cells = cells_of(selection)
    evaluate = {**cells, "levels": (middle(cells["levels"]),), "episodes": GRID_EPISODES}
    experiment = replace(experiment, evaluate={**evaluate, **experiment.evaluate})
    if (corrections := experiment.corrections) is None:
        return experiment
    grid = with_chosen(corrections.collect.grid, cells)
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
