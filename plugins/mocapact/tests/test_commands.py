"""`gaitforge humanoid …`: from clips to an evaluated policy, and wrong input."""

import json
from pathlib import Path

import pytest

from tests.pipeline.command_line import Run

pytest.importorskip("dm_control")

TINY_BOT = '{"n_layers":1,"embed_dim":10,"feedforward_dim":8}'


@pytest.fixture
def clips(humanoid_reference: Path) -> list[str | Path]:
    """The options that name the clips to collect on."""
    return ["--reference", humanoid_reference, "--clips", "squat_00-0-18"]


def test_clips_are_written_and_listed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "clips.h5"
    made = run("humanoid", "reference", "--out", path, "--motion", "stand", "--frames", "9",
               "--variants", "2", "--json")  # fmt: skip
    assert made.code == 0
    rows = json.loads(made.out)
    assert [(row["clip"], row["frames"]) for row in rows] == [("stand_00", 9), ("stand_01", 9)]
    assert json.loads(run("humanoid", "reference", "--list", path, "--json").out) == rows


@pytest.mark.slow
def test_the_road_from_expert_to_evaluation(
    run: Run, clips: list[str | Path], humanoid_reference: Path, tmp_path: Path
) -> None:
    store, bot = tmp_path / "mocap.zarr", tmp_path / "bot"
    rollouts = ["--start-rollouts", "1", "--random-rollouts", "1", "--seed", "3", "--json"]
    collected = run("humanoid", "collect", store, *clips, *rollouts)
    assert collected.code == 0, collected.err
    (part,) = json.loads(collected.out)
    assert part["part"].endswith("squat_00-0-18")
    assert json.loads(run("humanoid", "collect", store, *clips, *rollouts).out) == [part]

    settings = [f"model_overrides={TINY_BOT}", "window_len=8", "held_out_fraction=0"]
    chosen = [word for setting in settings for word in ("--set", f"config.{setting}")]
    trained = run("train", store, "--model", "bot-mocapact", "--steps", "1", "--batch-size", "2",
                  "--out", bot, *chosen)  # fmt: skip
    assert trained.code == 0, trained.err

    clips = [f"reference={humanoid_reference}", "train=squat_00", "validation=step_00"]
    asked = [word for setting in (*clips, "max_steps=4") for word in ("--set", setting)]
    record = tmp_path / "bot.json"
    evaluated = run("evaluate", bot, *asked, "--out", record)
    assert evaluated.code == 0, evaluated.err
    rows = json.loads(record.read_text())["cells"]
    assert [(row["group"], row["snippet"]) for row in rows] == [
        ("train", "squat_00-0-39"),
        ("validation", "step_00-0-39"),
    ]
    for row in rows:
        mean = f"normalised return {row['normalised_return']:.3f}"
        assert f"{row['group']}: means over 1 cell: return " in evaluated.out
        assert mean in evaluated.out


@pytest.mark.slow
def test_an_expert_is_trained_and_used(
    run: Run, clips: list[str | Path], humanoid_reference: Path, tmp_path: Path
) -> None:
    small = ["steps=32", "humanoids=4", "horizon=8", "hidden=8", "mini_batches=1", "epochs=1"]
    settings = [word for setting in small for word in ("--set", setting)]
    experts = tmp_path / "experts"
    trained = run("humanoid", "train-expert", *clips, "--out", experts, "--threads", "1",
                  *settings, "--json")  # fmt: skip
    assert trained.code == 0, trained.err
    (row,) = json.loads(trained.out)
    assert 0.0 < row["pd return"] < 1.45
    assert 0.0 < row["expert return"] < 1.45
    evaluated = run("evaluate", experts, "--task", "humanoid",
                    "--set", f"reference={humanoid_reference}",
                    "--set", "train=squat_00-0-18", "--json")  # fmt: skip
    (cell,) = json.loads(evaluated.out)["cells"]
    assert cell["normalised_return"] == row["expert return"]
