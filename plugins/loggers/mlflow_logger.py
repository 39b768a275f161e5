"""MLflow, https://mlflow.org: at MLFLOW_TRACKING_URI, or in the folder `mlflow` of the training.

MLFLOW_EXPERIMENT_NAME, MLFLOW_TRACKING_USERNAME and the other variables are its own.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gaitforge.common.extensions import load_extra
from gaitforge.common.run_log import LoggedRun, State

_EXPERIMENT = "gaitforge"
_TAG = "gaitforge.id"
_GROUP = "gaitforge.group"
_DEFAULTS = {
    # Seconds and tries of a request; the defaults are minutes, which the training's end would wait.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    # MLflow's own usage statistics.
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_LONGEST = 500
"""Characters of a parameter's value that every store takes."""
_STATES: dict[State, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowLogger:
    """A `Logger` whose run resumes by a tag with its id."""

    def __init__(self, run: LoggedRun) -> None:
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        if "MLFLOW_TRACKING_URI" not in os.environ:
            # The store of files says that it is old; it needs no database.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._mlflow: Any = load_extra("mlflow", "--log mlflow", "mlflow")
        place = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = self._mlflow.MlflowClient(
            place or (run.folder / "mlflow").resolve().as_uri()
        )
        self._seen = -1
        experiment = _experiment(self._client)
        earlier = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{run.id}'")
        if earlier:
            self._id = earlier[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            self._seen = self._last_step(earlier[0])
        else:
            tags = {_TAG: run.id, _GROUP: run.group}
            made = self._client.create_run(experiment, tags=tags, run_name=run.name)
            self._id = made.info.run_id
            for name, value in _parameters(run.config):
                self._client.log_param(self._id, name, value, synchronous=True)

    def _last_step(self, run: Any) -> int:
        histories = (self._client.get_metric_history(self._id, name) for name in run.data.metrics)
        return max((point.step for history in histories for point in history), default=-1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Logger.log`; a step that the service has is not sent again."""
        if step > self._seen:
            now = round(1000 * time.time())
            metric = self._mlflow.entities.Metric
            metrics = [metric(name, value, now, step) for name, value in values.items()]
            self._client.log_batch(self._id, metrics, synchronous=True)

    def add_file(self, path: Path) -> None:
        """See `Logger.add_file`."""
        self._client.log_artifact(self._id, str(path))

    def finish(self, state: State) -> None:
        """See `Logger.finish`."""
        self._client.set_terminated(self._id, _STATES[state])


def _experiment(client: Any) -> str:
    """The id of the experiment; two processes may make it at a time."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return experiment.experiment_id
    try:
        return client.create_experiment(name)
    except Exception:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            raise
        return experiment.experiment_id


def _parameters(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings by name, those of a mapping inside as NAME/INNER."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _parameters(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", str(value)[:_LONGEST]
