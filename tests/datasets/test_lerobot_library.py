"""LeRobot's own package and TorchRL load what is exported, and what LeRobot writes is imported.

Run by another interpreter, for the package asks for other versions than this project's, and for
Hugging Face's `datasets`, which has the name of a package here.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from datasets import Selection, open_store
from datasets.formats.exporting import export_selection
from datasets.formats.importing import import_source
from tests.datasets.making import small_store

READER = Path(__file__).with_name("lerobot_reader.py")
PYTHON = os.environ.get("GAITFORGE_LEROBOT_PYTHON", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON, reason="GAITFORGE_LEROBOT_PYTHON names no interpreter with lerobot 0.4.4"
    ),
]


def reader(*arguments: str, folder: Path) -> str:
    """What the reader program prints under the interpreter that has lerobot."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    environment.pop("PYTHONPATH", None)  # our package `datasets` would hide Hugging Face's
    done = subprocess.run(
        [PYTHON, str(READER), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1] if done.stdout else ""


def test_lerobot_and_torchrl_load_an_export(tmp_path: Path) -> None:
    selection: Selection = small_store(tmp_path / "store").select()
    export_selection("lerobot", selection, tmp_path / "out")
    seen = json.loads(reader(str(tmp_path / "out"), folder=tmp_path))
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


def test_a_dataset_that_lerobot_wrote_is_imported(tmp_path: Path) -> None:
    reader("--write", str(tmp_path / "theirs"), folder=tmp_path)
    import_source("lerobot", tmp_path / "theirs", tmp_path / "store")
    selection = open_store(tmp_path / "store").select()
    assert selection.lengths.tolist() == [4, 5, 6]
    np.testing.assert_array_equal(selection.read("obs")[:, 0], np.arange(15))
    table = selection.episodes()
    assert table.column("truncated").to_pylist() == [True] * 3
    assert table.column("task").to_pylist() == ["task 0", "task 1", "task 0"]
    assert table.column("return").to_pylist() == [4.0, 5.0, 6.0]
