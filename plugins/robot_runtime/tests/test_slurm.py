"""A runtime's files in an evaluation that is a Slurm job."""

import json
from pathlib import Path

import pytest

from tests.flows.slurm.test_slurm import cluster, gaitforge
from tests.flows.slurm_cluster import SlurmCluster, slurm

__all__ = ["cluster", "slurm"]  # the fixtures
_CELL = ["--terrain", "flat", "--skill", "run", "--episodes", "1", "--set", "episode_s=1"]


@pytest.mark.slow
def test_the_c_code_is_evaluated_in_a_job(
    cluster: SlurmCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    export = tmp_path / "robot"
    assert gaitforge("export", "bot-aliengo", export, "--formats", "c") == 0
    words = ["evaluate", export, "--runtime", "c", *_CELL]
    job = ["--runner", "slurm", "--cpus", "1", "--follow"]
    assert gaitforge(*words, "--out", tmp_path / "job.json", *job) == 0, capfd.readouterr()
    assert gaitforge(*words, "--out", tmp_path / "here.json") == 0
    job_result, result = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("job", "here")
    )
    assert job_result["return"] == result["return"]
