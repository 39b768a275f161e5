"""Presets of FCNet's figures: sizes that are alike, windows of the context, memories cleared."""

from dataclasses import replace
from pathlib import Path

import pytest

from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.evaluations import settings_of
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.collect import collect
from gaitforge.learners.models.bodies import SPACES
from gaitforge.learners.models.fcnet import paper_modes
from gaitforge.learners.models.registry import preset as network
from gaitforge.pipeline.presets.experiments import preset
from gaitforge.pipeline.report.results import result_rows
from gaitforge.plugins.papers.measurements import MeasurementPlan
from gaitforge.plugins.papers.measures.control_steps import ControlStep, sized
from tests.flows.making import COLLECT, run_experiment
from tests.learners.models.parameter_counts import parameter_count

FIGURES = ("fcnet-data-size", "fcnet-recipes", "fcnet-sizes", "fcnet-context")
CLEARED = "cleared score"


def figure(name: str, size: str = "small") -> Experiment:
    plan = preset(name, size)
    assert isinstance(plan, Experiment)
    return plan


@pytest.mark.parametrize("size", ["small", "full"])
@pytest.mark.parametrize("name", FIGURES)
def test_fcnet_stands_beside_the_papers_transformer_and_ours_by_both_evaluations(
    name: str, size: str
) -> None:
    plan = figure(name, size)
    value = next(iter(plan.values()))
    networks = {
        learner: network(config.model, config.model_overrides).config
        for learner in plan.learners
        for config in [plan.config(learner, 0, value)]
    }
    for measure in (CLEARED, ""):
        said = {s.behind: s for s in plan.published if s.measure == measure}
        kinds = [(networks[name].positions, networks[name].dropout) for name in said]
        assert kinds.count(("none", 0.1)) == 1
        assert ("rotary", 0.0) in kinds
        for behind, statement in said.items():
            stronger = networks[behind].positions == "rotary"
            assert ("stronger Transformer" in statement.source) == stronger
    for learner, config in networks.items():
        settings = settings_of(plan.evaluations["cleared"], "", plan.config(learner, 0, value))
        assert settings == {"reset_every": config.context_len}


@pytest.mark.parametrize("size", ["small", "full"])
def test_networks_of_one_size_have_as_many_parameters(size: str) -> None:
    plan = figure("fcnet-sizes", size)
    space = SPACES["legged"]
    for thousands in plan.values():
        assert thousands is not None
        for learner in plan.learners:
            config = plan.config(learner, 0, thousands)
            spec = network(config.model, config.model_overrides)
            count = parameter_count(spec, space.layout, space.act_dim)
            assert count == pytest.approx(1000 * thousands, rel=0.02)


def test_windows_and_modes_go_with_the_context_and_updates_read_as_many_steps() -> None:
    plan = figure("fcnet-context")
    for length in plan.values():
        assert length is not None
        for learner in plan.learners:
            config = plan.config(learner, 0, length)
            spec = network(config.model, config.model_overrides)
            assert config.window_len == spec.config.context_len == length
            assert config.window_len * config.batch_size == 24 * 64
        modes = plan.config("fcnet", 0, length).model_overrides["n_modes"]
        assert modes == paper_modes(int(length))


def test_along_an_axis_of_figure_6_all_networks_have_the_papers_other_sizes() -> None:
    plan = preset("fcnet-latency")
    assert isinstance(plan, MeasurementPlan)
    measure = plan.measure("control-step")
    assert isinstance(measure, ControlStep)
    sizes = {"n_layers": 4, "hidden_dim": 256, "context_len": 64}
    points = [point for point in measure.points(()) if point[1] is not None]
    assert ("n_layers", 32) in points
    for axis, value in points:
        for name in measure.scaled:
            config = sized(name, axis, value, measure.sizes).config
            own = {size: getattr(config, size) for size in sizes}
            assert own == {**sizes, axis: value}, name
    unsized = sized("transformer-legged", "n_layers", 32, ControlStep().sizes).config
    assert unsized.hidden_dim == 128, "as in folders of before"
    with pytest.raises(ValueError, match="sizes has no 'depth'; allowed: n_layers"):
        list(ControlStep(sizes={"depth": 3}).points(()))


@pytest.mark.slow
def test_a_small_figure_9_clears_memories_as_often_as_each_context_is_long(
    tmp_path: Path,
) -> None:
    collect(COLLECT, tmp_path / "legged.zarr", Silent())
    plan = figure("fcnet-context")
    points = plan.vary["context"]
    assert not isinstance(points, list | tuple)
    cells = {"terrains": ("flat",), "skills": ("stand",), "levels": (2,), "episodes": 1}
    tiny = replace(
        plan,
        seeds=(0,),
        settings={**plan.settings, "steps": 2, "held_out_fraction": 0.3, "threads": 1},
        vary={"context": {value: points[value] for value in ("8", "16")}},  # type: ignore[index]
        evaluate={**cells, "robots": 1},
    )
    out = tmp_path / "out"
    record = run_experiment(Claim("x", tiny, (str(tmp_path / "legged.zarr"),)), out, Silent())
    for row in record["runs"]:
        cleared = read_record(out / "evaluate" / f"{row['run']}-cleared.json")
        assert cleared is not None
        assert cleared["plan"]["reset_every"] == row["value"]
        assert row["measures"][CLEARED] == pytest.approx(
            100.0 * cleared["return"] / record["sets"][0]["expert"]
        )
    assert {(v["measure"], v["value"]) for v in record["verdicts"]} == {
        (measure, value) for measure in (CLEARED, "") for value in (8, 16)
    }
    assert {tuple(v["seeds"]) for v in record["verdicts"]} == {(1, 1)}
    shown = result_rows(record)
    assert all("±" not in row["of the expert's return, cleared"] for row in shown[:-1])
