"""Experts' trainings that signals stop at random moments: they resume, and lose no checkpoint."""

import json
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from gaitforge.common.history import HISTORY, read_history
from tests.flows.processes import gaitforge, soon
from tests.pipeline.command_line import Run, assert_refused

SMALL_PPO = ["horizon=8", "hidden=8", "epochs=1", "mini_batches=1", "checkpoint_every_s=0.3"]
STOPS = [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)]


def checkpoint(folder: Path) -> dict[str, Any]:
    """The checkpoint of a folder, which can be loaded; {"steps": 0} before the first one."""
    if not (folder / "training.json").exists():
        return {"steps": 0}
    record = json.loads((folder / "training.json").read_text())
    assert load_file(folder / record["tensors"])
    return record


def inode(folder: Path) -> int:
    """Of the history: another one once a training has cut it; 0 without one."""
    path = folder / HISTORY
    return path.stat().st_ino if path.exists() else 0


def has_begun(folder: Path, before: int, resumed_from: int) -> bool:
    """Whether a training has added a row since the history had the inode `before`."""
    rows = read_history(folder)
    return inode(folder) != before and bool(rows) and rows[-1]["steps"] > resumed_from


@pytest.mark.long
def test_a_training_that_is_stopped_anyhow_goes_on_without_gap_or_repeat(
    tmp_path: Path, run: Run
) -> None:
    words = ["expert", "train", "--robots", "8"]
    assert_survives_stops([*words, *endless(tmp_path / "out", SMALL_PPO)], tmp_path / "out", run)


def endless(out: Path, settings: list[str]) -> list[str]:
    """Options of a training without an end."""
    words = ["--out", str(out), *(word for setting in settings for word in ("--set", setting))]
    return [*words, "--steps", "1000000", "--threads", "1"]


def assert_survives_stops(words: list[str], folder: Path, run: Run) -> None:
    """A training that signals stop at random moments resumes without gap or repeat."""
    moments = random.Random(folder.name)
    for number, exit_code in STOPS:
        resumed_from = checkpoint(folder)["steps"]
        begun = partial(has_begun, folder, inode(folder), resumed_from)
        process = gaitforge(*words)
        soon(begun, 120.0)
        if number == STOPS[0][0]:
            assert_refused(run(*words), "another process trains in")
        time.sleep(moments.uniform(0.0, 0.4))
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == exit_code, errors
        steps = [row["steps"] for row in read_history(folder)]
        assert steps == [steps[0] * i for i in range(1, len(steps) + 1)], "every row, once"
        last = checkpoint(folder)["steps"]
        assert last >= resumed_from
        if number != signal.SIGKILL:
            assert last >= steps[-1] > resumed_from
            said = errors.splitlines()[-1]
            assert said.startswith("gaitforge: ")
            assert said.endswith("; run the same command again to resume")
