"""Plans of experiments: what is refused, what choices reach, and what presets hold."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT
from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.common.extensions import extension_names
from gaitforge.datasets import open_store
from gaitforge.flows.experiments import summary
from gaitforge.flows.experiments.claim import Claim, claim, claimed
from gaitforge.flows.experiments.plan import (
    Corrections,
    DataSet,
    Experiment,
    Published,
    asked_score,
)
from gaitforge.flows.experiments.runs import LearnerRun
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import to_tree
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.registry import evaluation_of
from gaitforge.learners.models.bodies import SPACES
from gaitforge.learners.models.registry import PRESETS as MODELS
from gaitforge.learners.models.registry import preset as model_preset
from gaitforge.learners.training.objectives import OBJECTIVES
from gaitforge.pipeline.presets.choices import chosen_claim
from gaitforge.pipeline.presets.experiment_plan import ExperimentPlan
from gaitforge.pipeline.presets.experiments import collecting_preset, experiment_preset, preset
from gaitforge.pipeline.presets.preset import PRESETS
from gaitforge.pipeline.report.experiment import stages_of
from gaitforge.pipeline.report.results import PUBLISHED, published
from tests.datasets.making import small_store
from tests.flows.gym_stores import TINY, make_gym_store
from tests.learners.making import make_selection
from tests.learners.models.parameter_counts import parameter_count

BUDGETS = (1, 5, 20)
PLAN = Experiment({"mlp": {"steps": 3}, "fcnet": {"objective": "return"}})
TESTED = replace(PLAN, tested=True, settings={"split_seed": 0})
RETURN = {"mlp": {}, "fcnet": {"objective": "return"}}


def learner(**settings: Any) -> Experiment:
    return replace(PLAN, learners={"x": settings})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda: replace(PLAN, learners={}), "needs learners"),
        (lambda: replace(PLAN, learners={"a b": {}}), "learners: 'a b' cannot be a name"),
        (lambda: replace(PLAN, learners={"first": {}}), "be a name; expert and first"),
        (lambda: replace(PLAN, learners={"rnn": {}}), "learners: rnn: no model 'rnn'"),
        (lambda: replace(PLAN, sets={"a b": ""}), "sets: 'a b' cannot be a name"),
        (lambda: replace(PLAN, seeds=(1, 1)), "needs seeds, each once"),
        (lambda: replace(PLAN, seeds=(-1,)), "seed must be at least 0"),
        (lambda: learner(model="mlp", seed=3), "seeds are the experiment's"),
        (lambda: learner(model="mlp", rate=3), "learners: x: TrainConfig has no 'rate'"),
        (lambda: learner(model="mlp", steps="many"), "TrainConfig.steps needs int"),
        (lambda: learner(model="mlp", best=2.0), "best needs a number in"),
        (lambda: learner(model="mlp", model_overrides={"depth": 3}), "no setting 'depth'"),
        (lambda: replace(PLAN, learners={"mlp": 3}), "settings are like"),
        (lambda: replace(PLAN, targets=(float("inf"),)), "finite numbers"),
        (lambda: replace(PLAN, train_s=0.0), "train_s must be above 0, got 0.0"),
        (lambda: replace(PLAN, vary={"steps": (1,), "data": (0.5,)}), "one number may vary"),
        (lambda: replace(PLAN, vary={"steps": (0,)}), "steps must be"),
        (lambda: replace(PLAN, vary={"budget": (1, 0)}), "steps must be"),
        (lambda: replace(PLAN, vary={"budget": (float("inf"),)}), "budget needs finite numbers"),
        (lambda: replace(PLAN, vary={"steps": (20, 20.0)}), "vary: steps: 20.0 comes twice"),
        (lambda: replace(PLAN, vary={"steps": 20}), "steps needs a list of numbers"),
        (lambda: replace(PLAN, vary={"steps": ("20",)}), "steps needs finite numbers"),
        (lambda: replace(PLAN, vary={"episodes": (2.5,)}), "episodes must be whole numbers from 1"),
        (lambda: replace(PLAN, vary={"seed": (5, 6)}), "seeds are the experiment's"),
        (
            lambda: replace(PLAN, vary={"x": {"1": {"mlp": {"seed": 7}, "fcnet": {}}}}),
            "seeds are the experiment's",
        ),
        (lambda: replace(PLAN, train_s=9.0, vary={"steps": (5, 6)}), "steps cannot vary"),
        (
            lambda: replace(
                PLAN, vary={"x": {"1": {"mlp": {}, "fcnet": {"objective": "bc"}}, "2": RETURN}}
            ),
            "learners: fcnet: the objective cannot vary",
        ),
        (
            lambda: replace(PLAN, learners={"mlp": {}}, corrections=Corrections(), sets={"a": "b"}),
            "sets are the rounds",
        ),
        (lambda: replace(PLAN, tested=True), "one split_seed"),
        (lambda: replace(TESTED, learners={"mlp": {"split_seed": 1}, "bot": {}}), "one split_seed"),
        (lambda: replace(TESTED, vary={"held_out_fraction": (0.2, 0.5)}), "one held_out_fraction"),
        (lambda: replace(PLAN, corrections=Corrections()), "one learner with one seed"),
        (lambda: Corrections(rounds=0), "0 rounds: needs at least 1"),
        (lambda: Corrections(share=1.5), "share must be above 0, at most 1, got 1.5"),
        (lambda: Corrections(stretch=0), "stretch must be at least 1, got 0"),
        (lambda: Claim("x", PLAN), "needs a store"),
        (lambda: preset("huge"), "unknown preset 'huge'; allowed: demo"),
    ],
)
def test_an_experiment_that_cannot_be_is_refused_in_one_line(
    change: Callable[[], Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint) as refusal:
        change()
    assert "\n" not in str(refusal.value)


def test_a_learner_has_its_own_settings_before_the_shared_and_the_recommended_ones() -> None:
    plan = replace(PLAN, settings={"steps": 7, "batch_size": 2})
    assert plan.config("mlp", 1).steps == 3
    assert plan.config("fcnet", 1).steps == 7
    assert {plan.config(name, 1).batch_size for name in plan.learners} == {2}
    plain = replace(plan, recommended=False)
    assert plan.config("fcnet", 0).peak_lr != plain.config("fcnet", 0).peak_lr


def test_a_number_that_varies_reaches_nested_settings() -> None:
    plan = replace(PLAN, learners={"fcnet": {}}, vary={"model_overrides.n_modes": (4, 8)})
    configs = [plan.config("fcnet", 0, value) for value in plan.values()]
    assert [dict(config.model_overrides) for config in configs] == [{"n_modes": 4}, {"n_modes": 8}]


@given(st.lists(st.floats(1, 50), min_size=1, max_size=4, unique=True), st.integers(1, 10_000))
def test_a_budget_that_varies_multiplies_each_learners_own_steps(
    factors: list[float], steps: int
) -> None:
    plan = Experiment({"mlp": {"steps": steps}, "fcnet": {"steps": 10}}, vary={"budget": factors})
    for value in factors:
        assert plan.budget(value) == value
        assert plan.config("mlp", 0, value).steps == round(steps * value)
        assert plan.config("fcnet", 0, value).steps == round(10 * value)
    without = replace(plan, vary={})
    assert (without.budget(None), without.config("mlp", 0).steps) == (1.0, steps)


@given(st.integers(1, 40), st.integers(1, 300), st.integers(1, 300))
def test_a_curve_has_as_many_kept_policies_as_asked_for_over_the_steps_that_were_trained(
    curve: int, planned: int, trained: int
) -> None:
    plan = Experiment({"mlp": {"steps": planned}}, curve=curve)
    every = plan.kept(replace(plan.config("mlp", 0), steps=trained)).keep_every
    scored = plan.scored_steps(trained)
    assert len(scored) == min(curve, trained)
    assert scored[-1] == trained
    assert scored == sorted(set(scored))
    if curve > 1:
        assert every is not None
        assert all(step % every == 0 for step in scored[:-1])
        for k, step in enumerate(scored[:-1], curve - len(scored) + 1):
            assert k * trained / curve - every < step <= k * trained / curve or trained < curve


@given(st.floats(-1e3, 1e3), st.floats(-3, 3), st.floats(0, 3))
def test_a_higher_target_asks_for_no_less_and_1_for_the_best(
    best: float, target: float, more: float
) -> None:
    assert asked_score(target + more, best) >= asked_score(target, best) - 1e-9
    assert asked_score(1.0, best) == best
    assert best <= 0 or asked_score(target, best) == target * best


def test_d4rl_at_the_papers_size_has_networks_of_equal_size_and_three_budgets() -> None:
    small, full = experiment_preset("d4rl"), preset("d4rl", "full")
    assert isinstance(full, Experiment)
    assert len(full.seeds) == 5
    for name in full.learners:
        steps = small.config(name, 0).steps
        assert [full.config(name, 0, v).steps for v in full.values()] == [
            k * steps for k in BUDGETS
        ]
    bears = [full.config("bear", 0, value).value_settings() for value in full.values()]
    assert [each.warm_up for each in bears] == [80 * k for k in BUDGETS]
    for task in ("hopper", "halfcheetah", "walker2d"):
        space, sizes = SPACES[f"d4rl-{task}"], []
        for name in ("fcnet", "dt", "dt-retnet"):
            config = full.config(name, 0)
            spec = model_preset(config.model, config.model_overrides)
            sizes.append(parameter_count(spec, space.layout, space.act_dim))
        assert sizes[0] == MODELS[f"fcnet-d4rl-{task}"].parameters
        assert max(sizes) <= 1.02 * min(sizes)
    assert full.config("dt-retnet", 0).model == "dt-retnet"


def test_the_number_of_episodes_takes_the_first_ones_and_refuses_more_than_there_are(
    tmp_path: Path,
) -> None:
    store = make_gym_store(tmp_path / "hopper.zarr", episodes=6)
    plan = replace(PLAN, sets={"best": "quality = 'expert'"}, vary={"episodes": (2.0, 5, 7)})
    task = evaluation_of(open_store(store))
    assert task is not None
    [data] = plan.data_sets()
    few, more, most = (
        LearnerRun(plan, tmp_path, store, "hopper", task, data, "mlp", 0, value).select()
        for value in plan.values()
    )
    every = SelectPlan(where="quality = 'expert'").select(store)
    assert few.select(store).rows.tolist() == every.rows[:2].tolist()
    assert more.select(store).rows.tolist() == every.rows[:5].tolist()
    with pytest.raises(ValueError, match="the first 7 episodes are asked for, and 6 of"):
        most.select(store)
    assert plan.config("mlp", 0, 5) == plan.config("mlp", 0)


OURS = [name for name in PRESETS if name not in extension_names("preset")]


@pytest.mark.parametrize("name", [*OURS, "legged-1m9"])
def test_presets_survive_their_files(name: str) -> None:
    plan = experiment_preset(name) if name in PRESETS else collecting_preset(name)
    assert_survives(plan)
    if name == "legged-mixed":  # imitators of executed actions imitate the noise, and fall
        for learner in plan.learners:
            config = plan.config(learner, 1)
            assert config.executed_actions == bool(OBJECTIVES[config.objective].values)


def assert_survives(plan: Experiment) -> None:
    """A plan and all its trainings are the same after its file."""
    read = plan_from_tree(Experiment, json.loads(json.dumps(to_tree(plan))))
    assert to_tree(read) == to_tree(plan)
    for learner in plan.learners:
        assert plan.config(learner, 1).seed == 1
        for value in plan.values():
            assert read.config(learner, 1, value) == plan.config(learner, 1, value)


def test_the_demo_holds_at_least_400_000_steps_in_several_parts() -> None:
    collect = experiment_preset("demo").collect
    assert collect is not None
    assert collect.grid.parts > 1
    assert collect.grid.parts * collect.grid.episodes_per_part * 192 >= 400_000


def test_choices_by_terrain_and_skill_reach_every_stage(tmp_path: Path) -> None:
    chosen = {"terrains": ("flat",), "skills": ("run",), "levels": (1, 2, 5), "parts": 3}
    chosen |= {
        "randomisation": "none",
        "seeds": (3, 4),
        "config": {"steps": 9},
        "learners": ("bot", "mlp"),
    }
    plan = chosen_claim("demo", experiment_preset("demo"), (), chosen, (), tmp_path).experiment
    assert plan.collect is not None
    assert plan.corrections is not None
    for grid in (plan.collect.grid, plan.corrections.collect.grid):
        assert (grid.terrains, grid.skills, grid.levels) == (("flat",), ("run",), (1, 2, 5))
    assert (plan.collect.grid.parts, plan.corrections.collect.grid.parts) == (3, 4)
    assert plan.collect.randomisation["push_chance"] == "0"
    assert plan.evaluate["levels"] == (2,)
    configs = [plan.config(name, seed) for seed in plan.seeds for name in plan.learners]
    assert {(config.seed, config.steps) for config in configs} == {(3, 9), (4, 9)}


def test_steps_of_every_run_reach_learners_that_a_setting_brings(tmp_path: Path) -> None:
    settings = ['learners.fcnet={"ema_decay":0.5}', 'learners.mlp={"steps":5}']
    chosen = {"config": {"steps": 9, "batch_size": 3}}
    plan = chosen_claim(
        "demo", experiment_preset("demo"), (), chosen, settings, tmp_path
    ).experiment
    assert plan.learners["fcnet"] == {"ema_decay": 0.5, "steps": 9, "batch_size": 3}
    assert {name: plan.config(name, 0).steps for name in plan.learners} == {
        **dict.fromkeys(("fcnet", "bot", "fcnet_rc", "bot_rc"), 9), "mlp": 5,
    }  # fmt: skip


def test_a_learner_that_a_folder_gets_has_the_options_of_its_first_command(tmp_path: Path) -> None:
    store = [str(make_gym_store(tmp_path / "hopper.zarr"))]
    plan = experiment_preset("compare")
    chosen = {"learners": ("mlp",), "config": {"steps": 100, "batch_size": 3}}
    first = chosen_claim("compare", plan, store, chosen, (), tmp_path).experiment
    more = {"learners": ("mlp", "gru")}
    grown = chosen_claim("compare", first, store, more, (), tmp_path).experiment
    for name in grown.learners:
        assert (grown.config(name, 0).steps, grown.config(name, 0).batch_size) == (100, 3)


def test_steps_take_the_place_of_a_presets_time(tmp_path: Path) -> None:
    plan = replace(experiment_preset("compare"), train_s=800.0)
    chosen = {"config": {"steps": 100}}
    store = [str(make_gym_store(tmp_path / "hopper.zarr"))]
    made = chosen_claim("compare", plan, store, chosen, (), tmp_path).experiment
    assert made.train_s is None
    assert {made.config(name, 0).steps for name in made.learners} == {100}


def test_statements_are_of_learners_and_evaluations_that_there_are(tmp_path: Path) -> None:
    plan = replace(
        experiment_preset("compare"),
        evaluations={"cleared": {"reset_every": 4}},
        published=(
            Published("mlp", "bot", "a", measure="cleared score"),
            Published("mlp", "bot", "b", measure="mean success"),
        ),
    )
    settings = ["evaluations={}"]
    store = [str(make_gym_store(tmp_path / "hopper.zarr"))]
    made = chosen_claim("compare", plan, store, {}, settings, tmp_path).experiment
    assert [statement.source for statement in made.published] == ["b"]
    typed = ['published=[{"ahead":"fcnt","behind":"mlp","source":"ours"}]']
    with pytest.raises(ValueError, match="published: no learner 'fcnt'; allowed: "):
        chosen_claim("compare", plan, store, {}, typed, tmp_path)


def test_a_setting_that_selects_narrows_the_evaluation_as_the_option_does(tmp_path: Path) -> None:
    store = [str(make_selection(tmp_path / "s").store.path)]
    plan = experiment_preset("compare")
    settings = ["select.skill=stand"]
    by_setting = chosen_claim("compare", plan, store, {}, settings, tmp_path).experiment
    option = {"skills": ("stand",)}
    by_option = chosen_claim("compare", plan, store, option, (), tmp_path).experiment
    assert by_setting.evaluate["skills"] == by_option.evaluate["skills"] == ("stand",)


def test_policies_of_commands_that_change_are_scored_under_such_commands(tmp_path: Path) -> None:
    stores = [str(make_selection(tmp_path / name).store.path) for name in ("constant", "changing")]
    open_store(stores[1]).select().annotate({"manoeuvre": "turn"})
    cells = {"terrains": ("flat",), "skills": ("run",), "levels": (0,)}
    plan = replace(experiment_preset("compare"), evaluate=cells)
    constant, changing = (
        chosen_claim("compare", plan, [store], {}, (), tmp_path).experiment.evaluate
        for store in stores
    )
    assert "manoeuvres" not in constant
    assert changing["manoeuvres"] == ("turn",)
    tilting = replace(plan, evaluate=cells | {"skills": ("run", "tilt")})  # tilt does not turn
    mixed = chosen_claim("compare", tilting, stores[1:], {}, (), tmp_path).experiment
    assert mixed.evaluate["manoeuvres"] == ("constant", "turn")
    asked = ["evaluate.manoeuvres=constant"]
    told = chosen_claim("compare", plan, stores[1:], {}, asked, tmp_path).experiment
    assert told.evaluate["manoeuvres"] == "constant"


def test_a_plans_file_on_another_store_is_evaluated_on_that_stores_cells(tmp_path: Path) -> None:
    stores = [str(make_selection(tmp_path / name).store.path) for name in ("s", "other")]
    open_store(stores[1]).select(skill="stand").drop()
    plan = ExperimentPlan("compare", experiment_preset("compare"))
    first = plan.chosen({"episodes": 1}, ["evaluate.levels=1"], stores[:1], tmp_path / "a", print)
    first.claim(tmp_path / "a")
    file = ExperimentPlan.claimed(tmp_path / "a" / "plan.json")
    other = file.chosen({}, [], stores[1:], tmp_path / "b", print)
    assert "stand" in first.experiment.evaluate["skills"]
    assert other.experiment.evaluate["skills"] == without("stand", first)
    assert {other.experiment.evaluate[name] for name in ("levels", "episodes")} == {1}
    same = file.chosen({}, [], stores[:1], tmp_path / "c", print)
    assert to_tree(same) == to_tree(first)
    # What a user chose, at first or later, is kept with any store.
    folder = ExperimentPlan.claimed(tmp_path / "a")
    assert to_tree(folder.chosen({}, [], [], tmp_path / "a", print)) == to_tree(first)
    later = folder.chosen({}, ["evaluate.terrains=flat"], [], tmp_path / "a", print)
    assert later.fitted == ("evaluate.skills",)


def without(skill: str, plan: ExperimentPlan) -> tuple[str, ...]:
    """The skills that a plan evaluates, without one."""
    return tuple(name for name in plan.experiment.evaluate["skills"] if name != skill)


def test_the_command_that_repeats_an_experiment_can_be_typed(tmp_path: Path) -> None:
    store = make_gym_store(tmp_path / "my hopper.zarr")
    task = evaluation_of(open_store(store))
    assert task is not None
    out = Path("runs/a b")
    run = LearnerRun(Experiment(), out, store, "hopper", task, DataSet(), "mlp", 0)
    words = shlex.split(summary._command("compare", [run], out))
    assert words[2:] == ["runs/a b/plan.json", str(store), "--out", "runs/a b-again"]


def test_a_saved_selection_is_read_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = small_store(tmp_path / "s", [(5, 6, 7, 8, 9, 4)])
    store.select(skill="stand").save(tmp_path / "stand.json")
    monkeypatch.chdir(tmp_path)
    plan = experiment_preset("compare")
    chosen = {"saved": "stand.json"}
    made = chosen_claim("compare", plan, [str(store.path)], chosen, (), tmp_path / "out")
    monkeypatch.chdir("/")
    assert len(made.experiment.select.select(store.path)) == len(store.select(skill="stand"))


def test_equal_shares_of_no_column_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    store, out = make_gym_store(tmp_path / "hopper.zarr"), tmp_path / "out"
    plan, settings = experiment_preset("compare"), ["settings.equal_shares=horse"]
    made = chosen_claim("compare", plan, [str(store)], {}, settings, out)
    unknown = "unknown column 'horse'; nearest: .*explains all columns"
    with pytest.raises(ValueError, match=unknown):
        stages_of(made, out)
    with pytest.raises(ValueError, match=unknown):
        run_training(TrainPlan(config=replace(TINY, equal_shares="horse")), store, out, Silent())
    assert not out.exists()


def test_a_folder_takes_more_seeds_and_learners_but_no_other_collection(tmp_path: Path) -> None:
    stores = (str(tmp_path / "x.zarr"),)
    claim(Claim("compare", PLAN, stores), tmp_path / "a")
    more = replace(PLAN, seeds=(0, 1))
    claim(Claim("compare", more, stores), tmp_path / "a")
    assert claimed(tmp_path / "a").experiment.seeds == (0, 1)
    rounds = Corrections(rounds=2)
    own = Experiment({"mlp": {}}, corrections=rounds)
    claim(Claim("dagger", own, stores), tmp_path / "b")
    further = replace(own, corrections=replace(rounds, rounds=3))
    claim(Claim("dagger", further, stores), tmp_path / "b")
    other = replace(own, corrections=replace(rounds, share=0.5))
    with pytest.raises(ValueError, match="holds an experiment with other settings"):
        claim(Claim("dagger", other, stores), tmp_path / "b")
    with pytest.raises(ValueError, match="no plan at"):
        claimed(tmp_path)
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(ValueError, match=r"is not the plan of an experiment|is no record"):
        claimed(tmp_path)


def test_published_scores_are_those_of_the_table() -> None:
    # The table's last line; its average of BC, 46.4, is not that of its numbers.
    averages = [63.9, 48.2, 36.9, 34.3, 74.7, 63.6, 75.1]
    means = [sum(column) / 9 for column in zip(*PUBLISHED.values(), strict=True)]
    assert [round(each, 1) for each in means[1:]] == averages
    assert len(PUBLISHED) == 9
    assert published("hopper", "medium", "fcnet") == "57.8"
    assert published("hopper", "medium", "iql") == "–"


@pytest.mark.parametrize(
    ("plan", "expert"),
    [
        (Experiment(collect=LeggedPlan(expert="go1-locomotion")), "go1-locomotion"),
        (replace(PLAN, expert="b1-locomotion"), "b1-locomotion"),
        (PLAN, DEFAULT_EXPERT),
        (
            Experiment(
                {"mlp": {}}, corrections=Corrections(LeggedPlan(expert="go1-locomotion"), rounds=2)
            ),
            "go1-locomotion",
        ),
    ],
)
def test_the_expert_that_collects_or_labels_scores_100(
    plan: Experiment, expert: str, tmp_path: Path
) -> None:
    grid = EvaluationGrid(("flat",), ("stand",), (0,), episodes=1)
    where = LeggedEvaluation(grid=grid, robots=1, threads=1)
    run = LearnerRun(plan, tmp_path, "none.zarr", "legged", where, DataSet(), "mlp", 0)
    assert run.referred(Silent())[1].source == expert
