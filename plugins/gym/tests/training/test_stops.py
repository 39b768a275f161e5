"""A training of a Gymnasium task resumes wherever a signal stops it."""

from pathlib import Path

import pytest

from tests.pipeline.cli.robots.test_expert_stops import assert_survives_stops, endless
from tests.pipeline.command_line import Run

pytest.importorskip("gymnasium")

SMALL = ["evaluate_every=40", "evaluation_episodes=1", "random_steps=40", "sac.hidden=8",
         "sac.batch_size=8", "checkpoint_every_s=0.3"]  # fmt: skip


@pytest.mark.long
def test_a_training_that_is_stopped_anyhow_goes_on(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    words = ["expert", "train", "--env", "Hopper-v5", *endless(out, SMALL)]
    assert_survives_stops(words, out, run)
