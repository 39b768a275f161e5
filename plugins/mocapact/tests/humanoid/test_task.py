"""Collecting with experts of the humanoid, learning from it, and evaluating what was learned."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaitforge.datasets import open_store
from gaitforge.flows.experiments.plan import Experiment, Published
from gaitforge.flows.progress import Advance, Silent
from gaitforge.flows.records.part_records import records_folder, records_of_commits
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.tasks.policy_sources import run_source
from gaitforge.flows.tasks.registry import run_evaluation
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.presets.choices import chosen_claim
from gaitforge.pipeline.presets.experiments import experiment_preset, preset
from gaitforge.pipeline.report.experiment import stages_of
from gaitforge.pipeline.report.results import result_rows
from gaitforge.plugins.mocapact.evaluation import HumanoidEvaluation
from gaitforge.plugins.mocapact.expert_training import train_humanoid_expert
from gaitforge.plugins.mocapact.humanoid.clips.motions import synthetic_clip
from gaitforge.plugins.mocapact.humanoid.clips.reference import write_reference
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet
from gaitforge.plugins.mocapact.humanoid.observation import OBSERVATION_SLICES
from gaitforge.plugins.mocapact.humanoid.snippet_grid import SnippetGrid, humanoid_schema
from gaitforge.plugins.mocapact.task import HumanoidPlan
from tests.flows.making import run_experiment

pytest.importorskip("dm_control")

SNIPPETS = ("squat_00-0-20", "step_00-5-25")
GRID = SnippetGrid(SNIPPETS, start_rollouts=1, random_rollouts=2, action_noise=0.05)
TINY_BOT = {"n_layers": 1, "embed_dim": 10, "feedforward_dim": 8}


def make_plan(reference: Path, **changes: object) -> HumanoidPlan:
    return HumanoidPlan(replace(GRID, **changes), str(reference))


@pytest.fixture(scope="module")
def store(humanoid_reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collected") / "mocap.zarr"
    made = collect(make_plan(humanoid_reference), path, Silent())
    assert [record.episodes for record in made] == [3, 3]
    return path


@pytest.fixture(scope="module")
def trained(store: Path) -> Path:
    """A Body Transformer after three updates."""
    config = TrainConfig(
        model="bot-mocapact", model_overrides=TINY_BOT, steps=3, batch_size=2, window_len=8,
        held_out_fraction=0.0, history_every=1,
    )  # fmt: skip
    out = store.parent / "bot"
    result = run_training(TrainPlan(SelectPlan(), config), store, out, Silent())
    assert result.steps == 3
    return out


@pytest.mark.slow
def test_what_is_stored_of_an_episode(store: Path) -> None:
    opened = open_store(store)
    assert opened.schema == humanoid_schema(has_value=False)
    episodes = opened.select().episodes().to_pylist()
    assert [row["snippet"] for row in episodes] == [SNIPPETS[0]] * 3 + [SNIPPETS[1]] * 3
    for row in episodes:
        assert row["possible_length"] == row["snippet_end"] - 5 - row["start_step"]
        assert row["random_start"] or row["start_step"] == row["snippet_start"]
        assert row["terminated"] != row["truncated"]
        assert row["terminated"] == (row["length"] < row["possible_length"])
        assert row["normalised_length"] == row["length"] / row["possible_length"]
        assert row["normalised_return"] == pytest.approx(row["return"] / row["possible_length"])
        assert (row["expert"], row["robot"], row["action_noise"]) == ("pd", "cmu-humanoid", 0.05)
        assert row["simulator"] == "dm_control"
    assert len({row["seed"] for row in episodes}) == len({row["episode"] for row in episodes}) == 6


def test_arrays_agree_with_the_catalog_and_each_other(store: Path) -> None:
    selection = open_store(store).select(clip="squat_00")
    rows = selection.episodes().to_pylist()
    reward, obs = selection.read("reward"), selection.read("obs")
    noise = selection.read("action") - selection.read("mean_action")
    starts = np.cumsum([0] + [row["length"] for row in rows])
    sums = np.add.reduceat(reward, starts[:-1])
    np.testing.assert_allclose(sums, [row["return"] for row in rows], rtol=1e-5)
    assert 0.04 < noise[np.abs(selection.read("action")) < 1].std() < 0.06
    time_in_clip = obs[starts[:-1], OBSERVATION_SLICES["time_in_clip"][0]]
    np.testing.assert_allclose(time_in_clip, [row["start_step"] / 20 for row in rows], atol=1e-6)


@pytest.mark.slow
def test_a_plan_gives_the_same_bytes_and_is_made_once(
    store: Path, humanoid_reference: Path, tmp_path: Path
) -> None:
    plan, again = make_plan(humanoid_reference), tmp_path / "again.zarr"
    parts = list(plan.parts())
    assert len(collect(plan, again, Silent(), parts[1:])) == 1
    assert open_store(again).parts() == parts[1:]
    collect(plan, again, Silent())
    assert open_store(again).info().hash == open_store(store).info().hash
    files = {path: path.stat().st_mtime_ns for path in again.rglob("*.parquet")}
    (records_folder(again) / f"{parts[0]}.json").unlink()  # as if its writer died after the commit
    assert collect(plan, again, Silent()) == []
    assert [r.part for r in records_of_commits(open_store(again), again, parts)] == parts
    assert {path: path.stat().st_mtime_ns for path in again.rglob("*.parquet")} == files
    assert open_store(again).verify() == []


def test_parts_are_named_by_what_is_in_them(humanoid_reference: Path, tmp_path: Path) -> None:
    plan = make_plan(humanoid_reference)
    names = list(plan.parts())
    assert list(make_plan(humanoid_reference, snippets=SNIPPETS[1:]).parts()) == names[1:]
    for change in ({"seed": 1}, {"action_noise": 0.1}, {"random_rollouts": 3}):
        assert not set(make_plan(humanoid_reference, **change).parts()) & set(names)
    other = tmp_path / "other.h5"
    renamed = replace(synthetic_clip("squat", 40, 1), name="squat_00")
    write_reference(other, [renamed, synthetic_clip("step", 40)])
    squat, step = make_plan(other).parts()
    assert (squat != names[0], step) == (True, names[1])


@pytest.mark.slow
def test_an_interrupted_collection_leaves_no_half_part(
    humanoid_reference: Path, tmp_path: Path
) -> None:
    plan, path = make_plan(humanoid_reference), tmp_path / "mocap.zarr"
    parts = list(plan.parts())
    stop_in = plan.parts()[parts[1]].snippet.name

    def advance(steps: int, note: str) -> None:
        if note == stop_in:
            raise KeyboardInterrupt

    class Interrupting(Silent):
        """A reporter whose user gives up in the second part."""

        @contextmanager
        def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
            yield advance

    with pytest.raises(KeyboardInterrupt):
        collect(plan, path, Interrupting())
    assert open_store(path).parts() == parts[:1]


@pytest.mark.slow
def test_a_learned_policy_is_trained_and_evaluated(trained: Path, humanoid_reference: Path) -> None:
    plan = HumanoidEvaluation(
        str(humanoid_reference), ("squat_00-0-20",), ("squat_01",), max_steps=8
    )
    assert run_evaluation(trained) == HumanoidEvaluation(), "the run knows its task"
    found = evaluate_policy(run_source(trained), plan, Silent())
    assert [(row["group"], row["snippet"]) for row in found.cells] == [
        ("train", "squat_00-0-20"),
        ("validation", "squat_01-0-39"),
    ]
    for row in found.cells:
        assert 0.0 < row["normalised_length"] <= 1.0
        assert 0.0 < row["normalised_return"] < 1.45


@pytest.mark.slow
def test_an_evaluation_is_kept_for_the_same_weights_and_plan(
    humanoid_reference: Path, tmp_path: Path
) -> None:
    path = tmp_path / "pd.json"
    plan = HumanoidEvaluation(str(humanoid_reference), ("squat_00",), max_steps=3)
    record = evaluate_policy(plan.source("pd"), plan, Silent(), path)
    assert [row["group"] for row in record.cells] == ["train"]
    stamp = path.stat().st_mtime_ns
    assert evaluate_policy(plan.source("pd"), plan, Silent(), path) == record
    assert path.stat().st_mtime_ns == stamp
    longer = replace(plan, max_steps=4)
    assert evaluate_policy(plan.source("pd"), longer, Silent(), path).steps == 4


@pytest.mark.slow
def test_data_of_a_trained_expert_hold_its_values(
    humanoid_reference: Path, store: Path, tmp_path: Path
) -> None:
    from gaitforge.plugins.mocapact.humanoid.experts.train_residual import ResidualTrainingConfig

    config = ResidualTrainingConfig(
        steps=32, humanoids=4, horizon=8, hidden=(8,), mini_batches=1, epochs=1, threads=1
    )
    snippet, experts = Snippet.parse(SNIPPETS[0]), tmp_path / "experts"
    card = train_humanoid_expert(config, humanoid_reference, snippet, experts, Silent())
    assert card["pd"]["normalised_length"] == card["expert"]["normalised_length"] == 1.0
    grid = replace(GRID, snippets=SNIPPETS[:1], random_rollouts=0)
    plan = HumanoidPlan(grid, str(humanoid_reference), str(experts))
    path = tmp_path / "valued.zarr"
    collect(plan, path, Silent())
    selection = open_store(path).select(expert="pd-residual")
    assert np.isfinite(selection.read("value")).all()
    with pytest.raises(ValueError, match="another schema"):
        collect(plan, store, Silent())
    other = tmp_path / "other.h5"
    write_reference(other, [replace(synthetic_clip("squat", 40, 1), name="squat_00")])
    with pytest.raises(ValueError, match="was trained on another clip squat_00 than"):
        replace(plan, reference=str(other)).parts()
    with pytest.raises(ValueError, match=f"no expert of snippet {SNIPPETS[1]}"):
        HumanoidPlan(GRID, str(humanoid_reference), str(experts)).parts()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"snippets": ()}, "at least one snippet, each of them once"),
        ({"snippets": SNIPPETS[:1] * 2}, "at least one snippet, each of them once"),
        ({"start_rollouts": 0, "random_rollouts": 0}, "together at least 1, got 0"),
        ({"random_rollouts": -1}, "random_rollouts must be at least 0, got -1"),
        ({"action_noise": -0.1}, "action_noise must be at least 0, got"),
        ({"snippets": ("squat_00",)}, "is no snippet"),
    ],
)
def test_impossible_plans_are_refused(changes: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(GRID, **changes)


def test_impossible_evaluations_are_refused(humanoid_reference: Path, trained: Path) -> None:
    with pytest.raises(ValueError, match="each clip once"):
        HumanoidEvaluation(str(humanoid_reference), ("a",), ("a",))
    with pytest.raises(ValueError, match="episodes must be at least 1"):
        HumanoidEvaluation(episodes=0)
    plan = HumanoidEvaluation(str(humanoid_reference), ("run_00",))
    with pytest.raises(ValueError, match="'run_00' is no snippet"):
        plan.snippets()
    with pytest.raises(ValueError, match="needs the file with the clips"):
        HumanoidEvaluation().work()


TINY_LEARNERS = {
    f"mlp-{width}": {"model": "mlp", "model_overrides": {"hidden_dim": width, "n_layers": 1}}
    for width in (4, 8)
}


@pytest.mark.slow
def test_an_experiment_is_scored_on_the_snippets_that_no_set_has(
    store: Path, humanoid_reference: Path, tmp_path: Path
) -> None:
    said = Published("mlp-4", "mlp-8", "Paper", "", "mean validation normalised_length")
    plan = replace(
        experiment_preset("mocapact"),
        learners=TINY_LEARNERS,
        seeds=(0,),
        sets={"": "clip not in ('step_00')"},
        settings={"steps": 4, "batch_size": 2, "window_len": 4, "held_out_fraction": 0.0},
        curve=2,
        published=(said,),
    )
    made = chosen_claim("mocapact", plan, [str(store)], {}, ["evaluate.max_steps=4"], tmp_path)
    evaluate = made.experiment.evaluate
    assert evaluate["reference"] == str(humanoid_reference), "that of the collection"
    assert (evaluate["train"], evaluate["validation"]) == (SNIPPETS[:1], SNIPPETS[1:])
    taught = replace(made.experiment, sets={"": ""})
    with pytest.raises(ValueError, match="a set has step_00-5-25, which is for validation"):
        chosen_claim("mocapact", taught, [str(store)], {}, (), tmp_path)
    record = run_experiment(made, tmp_path / "out", Silent())
    for run in record["runs"]:
        evaluation = read_record(tmp_path / "out" / "evaluate" / f"{run['run']}.json")
        cells = (evaluation or {})["cells"]
        [trained], [held_out] = (
            [c for c in cells if c["group"] == g] for g in ("train", "validation")
        )
        assert (trained["snippet"], held_out["snippet"]) == SNIPPETS
        assert run["return"] == held_out["return"] != trained["return"], "training clips are beside"
        measures = run["measures"]
        assert measures["validation normalised_length"] == held_out["normalised_length"]
        assert len(run["curve"]) == 2
        for name in ("train normalised_return", "validation normalised_return"):
            kept = [measures[name], 2 * measures[f"mean {name}"] - measures[name]]
            assert measures[f"highest {name}"] == pytest.approx(max(kept))
    seen = read_record(tmp_path / "out" / "train" / "mlp-4-seed-0" / "plan.json") or {}
    learned = open_store(store).select(snippet=SNIPPETS[0])
    assert seen["selection"] == learned.hash, "and learned from no other"
    [verdict] = record["verdicts"]
    assert verdict["measure"] == said.measure
    shown = result_rows(record)
    assert shown[-1]["learner"] == "Expert"
    assert " / " in shown[0]["validation normalised length"]


@pytest.mark.parametrize(
    ("name", "runs"), [("mocapact", 7), ("mocapact-sizes", 8), ("mocapact-layers", 5)]
)
def test_full_sizes_of_the_humanoids_presets_list_every_run(
    store: Path, tmp_path: Path, name: str, runs: int
) -> None:
    held_out = ['sets={"": "clip = \'squat_00\'"}']
    plan = preset(name, "full")
    assert isinstance(plan, Experiment)
    assert plan.seeds == (0, 1, 2, 3, 4)
    plan = replace(plan, seeds=(0,))  # a seed's runs are as another's
    made = chosen_claim(name, plan, [str(store)], {}, held_out, tmp_path)
    names = [stage.name for stage in stages_of(made, tmp_path)]
    assert len(names) == 2 * runs + 3, "the expert, each run twice, the summary and the page"
    assert made.experiment.evaluate["validation"] == SNIPPETS[1:]
