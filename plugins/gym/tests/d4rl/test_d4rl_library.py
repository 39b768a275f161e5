"""D4RL's own package and TorchRL load what is exported, and what D4RL writes is imported.

Run by another interpreter; see `peer_environment`.
"""

from pathlib import Path

import numpy as np
import pytest

from gaitforge.datasets import open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.plugins.gym.d4rl.d4rl_tasks import TASKS, named_dataset
from tests.datasets.formats.format_stores import plain_store, random_episodes
from tests.datasets.formats.peer_environment import peer_python, run_peer

pytest.importorskip("h5py", reason="h5py is the extra hdf5")

PROGRAM = Path(__file__).with_name("d4rl_program.py")
EPISODES = [*random_episodes(60), (3, "truncated")]

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def python() -> Path:
    """An interpreter that has d4rl 1.1 and torchrl."""
    return peer_python("d4rl")


def test_d4rl_and_torchrl_load_an_export(python: Path, tmp_path: Path) -> None:
    whole = plain_store(tmp_path / "store", EPISODES).select()
    export_selection("d4rl", whole, tmp_path / "out.hdf5")
    run_peer(python, PROGRAM, tmp_path / "out.hdf5", tmp_path / "seen.npz", folder=tmp_path)
    seen = np.load(tmp_path / "seen.npz")
    obs, action, reward = (whole.read(name) for name in ("obs", "action", "reward"))
    for key, rows in (("observations", obs), ("actions", action), ("rewards", reward)):
        np.testing.assert_array_equal(seen[f"get/{key}"], rows)
    np.testing.assert_array_equal(seen["get/infos/qpos"], whole.read("info_qpos"))
    assert seen["sequence/lengths"].tolist() == [length for length, _ in EPISODES]
    np.testing.assert_array_equal(seen["sequence/observations"], obs)
    # Its pairs leave out a time-out's last step, whose next row is of another episode.
    last = np.cumsum(whole.lengths) - 1
    table = whole.episodes()
    terminated = table.column("terminated").to_numpy()
    truncated = table.column("truncated").to_numpy()
    timed_out = last[truncated | ~terminated]
    rows = np.setdiff1d(np.arange(whole.steps - 1), timed_out)
    np.testing.assert_array_equal(seen["qlearning/observations"], obs[rows])
    np.testing.assert_array_equal(seen["qlearning/next_observations"], obs[rows + 1])
    np.testing.assert_array_equal(seen["qlearning/terminals"], np.isin(rows, last[terminated]))
    np.testing.assert_array_equal(seen["torchrl/observation"], obs[:-1])
    np.testing.assert_array_equal(seen["torchrl/action"], action[:-1])
    np.testing.assert_array_equal(seen["torchrl/next/reward"][:, 0], reward[:-1])
    np.testing.assert_array_equal(np.flatnonzero(seen["torchrl/next/done"]), last[:-1])
    known = set()
    for name, scores in zip(seen["names"].tolist(), seen["scores"].tolist(), strict=True):
        task, _ = named_dataset(name)
        if task:
            known.add(task)
            assert [TASKS[task].random_score, TASKS[task].expert_score] == scores, name
    assert len(known) == 20  # all but its maze2d of version 0 and for evaluation, and antmaze-ultra


def test_a_file_that_d4rl_wrote_is_imported(python: Path, tmp_path: Path) -> None:
    run_peer(python, PROGRAM, "--write", tmp_path / "hopper_medium.hdf5", folder=tmp_path)
    import_source("d4rl", tmp_path / "hopper_medium.hdf5", tmp_path / "store")
    selection = open_store(tmp_path / "store").select()
    assert selection.lengths.tolist() == [4, 5, 6]
    np.testing.assert_array_equal(selection.read("obs")[:, 0], np.arange(15))
    table = selection.episodes()
    assert table.column("terminated").to_pylist() == [True] * 3
    assert table.column("return").to_pylist() == [4.0, 5.0, 6.0]
