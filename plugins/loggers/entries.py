"""The loggers by the names of `--log`; loads none of their packages."""

from gaitforge.common.run_log import LoggerEntry

WANDB = LoggerEntry("gaitforge.plugins.loggers.wandb_logger:WandbLogger", "wandb", "wandb")
MLFLOW = LoggerEntry("gaitforge.plugins.loggers.mlflow_logger:MlflowLogger", "mlflow", "mlflow")
SWANLAB = LoggerEntry(
    "gaitforge.plugins.loggers.swanlab_logger:SwanlabLogger", "swanlab", "swanlab"
)
TRACKIO = LoggerEntry(
    "gaitforge.plugins.loggers.trackio_logger:TrackioLogger", "trackio", "trackio"
)
