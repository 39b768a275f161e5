"""The papers' presets: their files, their statements, and what a full size has."""

import re
from pathlib import Path

import pytest

from gaitforge.common.extensions import extension_names
from gaitforge.datasets import Field, Schema
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.learners.models.bodies import SPACES
from gaitforge.learners.models.registry import preset as model
from gaitforge.pipeline.presets.choices import chosen_claim
from gaitforge.pipeline.presets.experiments import preset
from gaitforge.pipeline.presets.preset import PRESETS
from gaitforge.pipeline.report.experiment import stages_of
from gaitforge.plugins.papers.measurements import MeasurementPlan
from gaitforge.plugins.papers.reinforcement import ReinforcementPlan
from tests.datasets.formats.format_stores import make_store
from tests.flows.experiments.test_plan import assert_survives
from tests.flows.experiments.test_published import assert_told
from tests.flows.gym_stores import make_gym_store
from tests.learners.models.parameter_counts import parameter_count

HERE = "gaitforge.plugins.papers."
NAMES = [
    name for name in extension_names("preset")
    if name != "robustness" and str(PRESETS[name].plan).startswith(HERE)
]  # fmt: skip
"""Those that need no policies of the user."""


@pytest.mark.parametrize("name", NAMES)
def test_plans_survive_their_files_and_statements_are_about_them(name: str) -> None:
    plan = preset(name)
    if isinstance(plan, MeasurementPlan):
        assert plan.repeats >= 3
        assert all(statement.source for statement in plan.published)
    else:
        assert_told(plan)
    if isinstance(plan, Experiment):
        assert_survives(plan)
    if PRESETS[name].full:
        full = preset(name, "full")
        assert isinstance(full, Experiment | ReinforcementPlan | MeasurementPlan)
        assert full.published == plan.published  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(("name", "runs"), [("adroit", 60), ("adroit-demonstrations", 45)])
def test_full_sizes_of_the_hands_presets_list_every_run(
    name: str, runs: int, tmp_path: Path
) -> None:
    qualities = ("human", "cloned", "expert")
    store = make_gym_store(tmp_path / "door.zarr", "AdroitHandDoor-v1", qualities, episodes=25)
    plan = preset(name, "full")
    assert isinstance(plan, Experiment)
    made = chosen_claim(name, plan, [str(store)], {}, (), tmp_path / "out")
    names = [stage.name for stage in stages_of(made, tmp_path / "out")]
    assert len(names) == 2 * runs + 2
    assert len([each for each in names if each.startswith("train ")]) == runs


HUMANOIDS = [name for name in NAMES if name.startswith("mocapact")]


@pytest.mark.parametrize("name", HUMANOIDS)
def test_the_humanoids_learners_see_no_fall_and_no_held_out_clip(name: str, tmp_path: Path) -> None:
    endings = [("terminated", "walk_00"), ("truncated", "walk_00"), ("truncated", "walk_08")]

    def clips(number: int, count: int) -> dict[str, list[str]]:
        return {"clip": [clip for _, clip in endings]}

    schema = Schema((Field("obs", (2,)), Field("action", (2,)), Field("reward")), 0.03, "humanoid")
    episodes = [(3, ending) for ending, _ in endings]
    path = tmp_path / "mocap.zarr"
    make_store(path, schema, episodes, parts=1, further=clips)
    for size in ("small", "full") if PRESETS[name].full else ("small",):
        plan = preset(name, size)
        assert isinstance(plan, Experiment)
        (condition,) = plan.sets.values()
        seen = SelectPlan(where=condition).select(path).episodes("clip", "terminated").to_pylist()
        assert seen == [{"clip": "walk_00", "terminated": False}]
        assert plan.seeds == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("name", ["mocapact", "mocapact-time"])
def test_the_humanoids_learners_are_of_equal_size(name: str) -> None:
    plan = preset(name)
    assert isinstance(plan, Experiment)
    space = SPACES["mocapact"]
    sizes = {}
    for learner in ("bot-hard", "transformer", "mlp"):
        config = plan.config(learner, 0)
        spec = model(config.model, config.model_overrides)
        sizes[learner] = parameter_count(spec, space.layout, space.act_dim)
    assert max(sizes.values()) < 1.02 * min(sizes.values())


def test_the_page_of_results_has_the_hours_that_the_list_shows() -> None:
    page = (Path(__file__).parents[3] / "docs" / "results.md").read_text()
    rows = re.findall(r"^\| \[`([\w-]+)`\].* \| ([\d.]+) h \|$", page, re.M)
    assert [name for name in (*NAMES, "robustness") if f"`{name}`" not in page] == []
    assert rows
    assert [row for row in rows if float(row[1]) != PRESETS[row[0]].hours] == []
