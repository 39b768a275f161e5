"""A Dask cluster for the tests of a file, and the results that every runner must give."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from gaitforge.flows.progress import Silent
from gaitforge.flows.runners.dask_clusters import DaskSettings
from tests.flows.making import LEAN, Results, results, run_experiment


@pytest.fixture(scope="module")
def scheduler() -> Iterator[DaskSettings]:
    """An existing scheduler with two worker processes."""
    from distributed import LocalCluster

    options: Any = {
        "dashboard_address": "127.0.0.1:0",
        "memory_limit": 0,
        "silence_logs": logging.ERROR,
    }
    local: Any = LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", **options)
    with local as cluster:
        yield DaskSettings(scheduler=cluster.scheduler_address)


@pytest.fixture(scope="session")
def lean_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of `LEAN` from one undisturbed process, which draws no pages."""
    out = tmp_path_factory.mktemp("lean") / "run"
    run_experiment(LEAN, out, Silent())
    return results(out)
