"""LeRobot's own package and TorchRL load what is exported, and what LeRobot writes is imported.

Run by another interpreter, with lerobot 0.6 on Python 3.12; see `peer_environment`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import Selection, open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats.peer_environment import peer_python, run_peer
from tests.datasets.making import small_store

PROGRAM = Path(__file__).with_name("lerobot_reader.py")

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Seen:
    """What was exported, what lerobot and torchrl saw of it, and what lerobot wrote."""

    selection: Selection
    by_peers: dict[str, Any]
    written: Path


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """One process of the peers' interpreter for all: its imports take longer than its work."""
    folder = tmp_path_factory.mktemp("lerobot")
    selection = small_store(folder / "store").select()
    export_selection("lerobot", selection, folder / "out")
    arguments = folder / "out", folder / "theirs"
    printed = run_peer(peer_python("lerobot"), PROGRAM, *arguments, folder=folder)
    return Seen(selection, json.loads(printed), folder / "theirs")


def test_lerobot_and_torchrl_load_an_export(seen: Seen) -> None:
    selection = seen.selection
    theirs, rl = seen.by_peers["lerobot"], seen.by_peers["torchrl"]
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


def test_statistics_of_episodes_are_lerobots(seen: Seen) -> None:
    stats = seen.by_peers["stats"]
    assert stats["ours"] == stats["theirs"]
    assert len(stats["ours"]) == 10
    assert stats["largest"] < 1e-6


def test_a_dataset_that_lerobot_wrote_is_imported(seen: Seen, tmp_path: Path) -> None:
    import_source("lerobot", seen.written, tmp_path / "store")
    selection = open_store(tmp_path / "store").select()
    assert selection.lengths.tolist() == [4, 5, 6]
    np.testing.assert_array_equal(selection.read("obs")[:, 0], np.arange(15))
    table = selection.episodes()
    assert table.column("truncated").to_pylist() == [True] * 3
    assert table.column("task").to_pylist() == ["task 0", "task 1", "task 0"]
    assert table.column("return").to_pylist() == [4.0, 5.0, 6.0]
