"""Trainings from a web server in other processes: a Dask worker and a Slurm job."""

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from gaitforge.datasets import open_store
from gaitforge.plugins.exchange.tests.web.web_server import serving
from gaitforge.plugins.exchange.web.cache import CACHE
from gaitforge.plugins.exchange.web.manifest import write_manifest
from tests.flows.slurm.test_slurm import cluster, gaitforge
from tests.flows.slurm_cluster import slurm

pytest.importorskip("obstore")
pytestmark = pytest.mark.slow
__all__ = ["cluster", "slurm"]  # the fixtures
_TRAINING = ["--model", "mlp", "--steps", "3", "--batch-size", "4", "--set", "config.threads=1"]
_JOB = {"dask": ["--workers", "1"], "slurm": ["--cpus", "1", "--follow"]}


def _weights(run: Path) -> dict[str, bytes]:
    tensors = load_file(run / "checkpoint.safetensors")
    return {name: tensor.tobytes() for name, tensor in tensors.items()}


@pytest.mark.parametrize("runner", _JOB)
def test_a_worker_trains_from_an_address_as_from_the_folder(
    runner: str,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if runner == "slurm":
        request.getfixturevalue("cluster")
    served = tmp_path / "served" / "walks.zarr"
    shutil.copytree(store, served)
    write_manifest(open_store(served))
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    here, there = tmp_path / "here", tmp_path / "there"
    assert gaitforge("train", served, "--out", here, *_TRAINING) == 0, capfd.readouterr()
    with serving(tmp_path / "served") as web:
        address = f"{web.address}/walks.zarr"
        words = ["train", address, "--out", there, *_TRAINING, "--runner", runner]
        assert gaitforge(*words, *_JOB[runner]) == 0, capfd.readouterr()
        assert sum("/parts/" in path for path in web.sent) > 1
    assert _weights(there) == _weights(here)
