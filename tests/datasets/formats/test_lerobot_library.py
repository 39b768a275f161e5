"""LeRobot's own package and TorchRL load what is exported, and what LeRobot writes is imported.

Run by another interpreter; see ``peer_environment``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from datasets import Selection, open_store
from datasets.formats.transfer.exporting import export_selection
from datasets.formats.transfer.importing import import_source
from tests.datasets.formats.peer_environment import peer_python, run_peer
from tests.datasets.making import small_store

PROGRAM = "lerobot_reader.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # installs packages first


@pytest.fixture(scope="session")
def python() -> Path:
    """An interpreter that has lerobot 0.4.4 and torchrl."""
    return peer_python("lerobot")


def test_lerobot_and_torchrl_load_an_export(python: Path, tmp_path: Path) -> None:
    selection: Selection = small_store(tmp_path / "store").select()
    export_selection("lerobot", selection, tmp_path / "out")
    seen = json.loads(run_peer(python, PROGRAM, tmp_path / "out", folder=tmp_path))
    theirs, rl = seen["lerobot"], seen["torchrl"]
    assert (theirs["frames"], theirs["episodes"], theirs["fps"]) == (209, 5, 50)
    last = theirs["last"]
    np.testing.assert_array_equal(np.float32(last["observation.state"]), selection.read("obs")[-1])
    np.testing.assert_array_equal(np.float32(last["next.reward"]), selection.read("reward")[-1])
    assert last["next.done"] is True
    rows = selection.episodes()
    assert theirs["task"] == f"{rows['skill'][4]} on {rows['terrain'][4]}"
    assert theirs["windows"] == 10
    assert theirs["padded"] == [True, False]
    np.testing.assert_allclose(theirs["window"][1], selection.read("obs")[5], rtol=1e-6)
    mean = selection.statistics("action").mean
    np.testing.assert_allclose(theirs["stats"]["mean"], mean)
    np.testing.assert_allclose(theirs["merged_mean"], mean)
    assert rl["frames"] == 209
    assert (rl["observation.state"], rl["action"]) == ([5], [2])
    assert (rl["next.reward"], rl["next.done"], rl["next.terminated"]) == ([1], [1], [1])


def test_a_dataset_that_lerobot_wrote_is_imported(python: Path, tmp_path: Path) -> None:
    run_peer(python, PROGRAM, "--write", tmp_path / "theirs", folder=tmp_path)
    import_source("lerobot", tmp_path / "theirs", tmp_path / "store")
    selection = open_store(tmp_path / "store").select()
    assert selection.lengths.tolist() == [4, 5, 6]
    np.testing.assert_array_equal(selection.read("obs")[:, 0], np.arange(15))
    table = selection.episodes()
    assert table.column("truncated").to_pylist() == [True] * 3
    assert table.column("task").to_pylist() == ["task 0", "task 1", "task 0"]
    assert table.column("return").to_pylist() == [4.0, 5.0, 6.0]
