"""robomimic's own package loads what is exported; run by another interpreter."""

from pathlib import Path

import numpy as np
import pytest

from gaitforge.datasets.formats.transfer.exporting import export_selection
from tests.datasets.formats.format_stores import plain_store, random_episodes
from tests.datasets.formats.peer_environment import peer_python, run_peer

pytest.importorskip("h5py", reason="h5py is the extra hdf5")

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]


def test_robomimic_loads_an_export(tmp_path: Path) -> None:
    python = peer_python("robomimic")
    whole = plain_store(tmp_path / "store", random_episodes(30)).select()
    export_selection("robomimic", whole, tmp_path / "out.hdf5", {"held_out": 0.3})
    places = (tmp_path / "out.hdf5", tmp_path / "seen.npz", "gravity,command")
    run_peer(python, Path(__file__).with_name("robomimic_reader.py"), *places, folder=tmp_path)
    seen, slices = np.load(tmp_path / "seen.npz"), whole.schema.field("obs").slices
    sides = dict(zip(("train", "valid"), whole.split(0.3, 0), strict=True))
    for mask, chosen in {"": whole, **sides}.items():
        obs, last = chosen.read("obs"), np.cumsum(chosen.lengths) - 1
        following = np.roll(obs, -1, axis=0)
        following[last] = chosen.read("final_obs")
        for name, (start, stop) in slices.items():
            np.testing.assert_array_equal(seen[f"{mask}/obs/{name}"], obs[:, start:stop])
            rows = seen[f"{mask}/next_obs/{name}"]
            np.testing.assert_array_equal(rows, following[:, start:stop])
        np.testing.assert_array_equal(seen[f"{mask}/actions"], chosen.read("action"))
        np.testing.assert_array_equal(seen[f"{mask}/rewards"], chosen.read("reward"))
        ended = chosen.episodes("terminated").column("terminated").to_numpy()
        assert np.flatnonzero(seen[f"{mask}/dones"]).tolist() == last[ended].tolist()
