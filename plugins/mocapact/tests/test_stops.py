"""A training of the humanoid resumes wherever a signal stops it."""

from pathlib import Path

import pytest

from tests.pipeline.cli.robots.test_expert_stops import SMALL_PPO, assert_survives_stops, endless
from tests.pipeline.command_line import Run


@pytest.mark.long
def test_a_training_that_is_stopped_anyhow_goes_on(
    humanoid_reference: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    clips = ["--reference", str(humanoid_reference), "--clips", "squat_00-0-18"]
    words = ["humanoid", "train-expert", *clips, "--set", "humanoids=4", *endless(out, SMALL_PPO)]
    assert_survives_stops(words, out / "squat_00-0-18", run)
