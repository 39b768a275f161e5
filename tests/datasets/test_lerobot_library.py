"""LeRobot's own package and TorchRL load what is exported, and what LeRobot writes is imported.

Run by another interpreter; see ``lerobot_environment``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from datasets import Selection, open_store
from datasets.formats.exporting import export_selection
from datasets.formats.importing import import_source
from tests.datasets.lerobot_environment import Unavailable, lerobot_python
from tests.datasets.making import small_store

PROGRAM = Path(__file__).with_name("lerobot_reader.py")

pytestmark = pytest.mark.slow

Reader = Callable[..., str]


@pytest.fixture(scope="session")
def python() -> Path:
    """An interpreter that has lerobot and torchrl."""
    try:
        return lerobot_python()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def reader(python: Path, tmp_path: Path) -> Reader:
    """Calls the reader program; gives the last line that it prints."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    environment.pop("PYTHONPATH", None)  # our package `datasets` would hide Hugging Face's

    def call(*arguments: str | Path) -> str:
        done = subprocess.run(
            [python, PROGRAM, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.splitlines()[-1] if done.stdout else ""

    return call


def test_lerobot_and_torchrl_load_an_export(reader: Reader, tmp_path: Path) -> None:
    selection: Selection = small_store(tmp_path / "store").select()
    export_selection("lerobot", selection, tmp_path / "out")
    seen = json.loads(reader(tmp_path / "out"))
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


def test_a_dataset_that_lerobot_wrote_is_imported(reader: Reader, tmp_path: Path) -> None:
    reader("--write", tmp_path / "theirs")
    import_source("lerobot", tmp_path / "theirs", tmp_path / "store")
    selection = open_store(tmp_path / "store").select()
    assert selection.lengths.tolist() == [4, 5, 6]
    np.testing.assert_array_equal(selection.read("obs")[:, 0], np.arange(15))
    table = selection.episodes()
    assert table.column("truncated").to_pylist() == [True] * 3
    assert table.column("task").to_pylist() == ["task 0", "task 1", "task 0"]
    assert table.column("return").to_pylist() == [4.0, 5.0, 6.0]
