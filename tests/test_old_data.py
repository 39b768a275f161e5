"""Stores, runs and exports of an older version open, migrate, stream, resume and evaluate."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import mujoco
import pytest
import torch

from gaitforge.datasets import DatasetError, Selection, create_store, migrate_store, open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.stages.train import TrainPlan, run_training
from gaitforge.learners.checkpoint import load_policy, read_checkpoint
from gaitforge.pipeline.cli.main import main

OLD = Path(__file__).parent / "data" / "old"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the old data that a test may change."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


@pytest.mark.parametrize(
    ("name", "group_by"), [("legged", ("terrain", "skill")), ("hopper", ("task", "quality"))]
)
def test_an_old_store_is_read_and_migrated_without_a_change_of_its_data(
    old: Path, name: str, group_by: tuple[str, str]
) -> None:
    path = old / f"{name}.zarr"
    before = open_store(path)
    info, episodes = before.info(), before.select().episodes()
    assert info.schema_version == 2
    assert before.verify() == []
    assert before.schema.group_by == group_by
    assert set(group_by) <= set(episodes.column_names)
    with pytest.raises(DatasetError, match="gaitforge migrate"):
        create_store(path, before.schema)

    assert migrate_store(path) == 2
    after = create_store(path, before.schema)
    assert after.info() == replace(info, schema_version=3)
    assert after.select().episodes().equals(episodes)
    assert after.verify() == []


def test_an_old_selection_tag_and_stream_position_are_those_of_today(old: Path) -> None:
    store = open_store(old / "legged.zarr", tag="v1")
    assert store.info().episodes == 4
    assert Selection.load(store, old / "selection.json").hash == store.select().hash

    state = read_checkpoint(old / "stopped")[1]["stream"]
    assert "context_len" in state  # the old name of window_len

    def stream():
        return store.select().windows(16, 4, seed=0)

    offered = [batch["obs"] for batch in stream()]
    state = stream().state_dict() | {"context_len": 16}
    del state["window_len"]
    resumed = stream()
    resumed.load_state_dict(state)
    for mine, expected in zip(resumed, offered, strict=True):
        assert torch.equal(mine["obs"], expected)


@pytest.mark.skipif(mujoco.__version__ != "3.17.0", reason="the data is of MuJoCo 3.17.0")
def test_old_episodes_replay_bit_for_bit(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(old / "legged.zarr"), "--replay", "1"]) == 0
    assert "1 episode replayed bit for bit" in capsys.readouterr().out
    # An old Gymnasium store keeps no record of its plan beside it.
    assert main(["verify", str(old / "hopper.zarr"), "--replay", "1"]) == 2
    assert "gym collect" in capsys.readouterr().err


def test_an_old_run_resumes_to_where_the_old_version_came(old: Path) -> None:
    plan = plan_from_tree(
        TrainPlan, json.loads((old / "stopped" / "plan.json").read_text())["plan"]
    )
    result = run_training(plan, old / "legged.zarr", old / "stopped", Silent())
    assert (result.resumed_from, result.steps) == (2, 4)
    expected = json.loads((old / "finished" / "history.jsonl").read_text())
    assert result.loss == pytest.approx(expected["loss"], rel=1e-5)
    assert result.validation_loss == pytest.approx(expected["validation_loss"], rel=1e-5)

    ours, theirs = load_policy(old / "stopped"), load_policy(old / "finished")
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_an_old_checkpoint_is_evaluated_and_exported(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = ("--terrain", "flat", "--skill", "stand", "--level", "0", "--episodes", "1")
    words = ("evaluate", str(old / "finished"), *of, "--set", "robots=1", "--json")
    assert main(words) == 0
    (cell,) = json.loads(capsys.readouterr().out)
    assert cell["episodes"] == 1
    assert main(["export", str(old / "finished"), str(old / "onnx"), "--formats", "onnx"]) == 0
    assert (old / "onnx" / "policy.onnx").is_file()


def test_an_old_export_is_imported_with_the_columns_of_today(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "d4rl", str(old / "hopper.hdf5"), str(old / "imported.zarr")]) == 0
    imported = open_store(old / "imported.zarr")
    assert imported.schema.group_by == ("task", "quality")
    (group,) = imported.select(task="hopper", quality="medium").describe()
    assert group["episodes"] == open_store(old / "hopper.zarr").info().episodes
