"""Train any model with any objective, on one process or, with `torchrun`, several.

A run folder holds `config.json`, `history.jsonl`, `metrics.csv`, `tensorboard/`, and the last and
the best checkpoint. A stopped run resumes from its last checkpoint with the same results as an
uninterrupted one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from gaitforge.datasets import Selection
from gaitforge.learners.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint
from gaitforge.learners.models.registry import count_parameters
from gaitforge.learners.policy.tokens import TokenLayout
from gaitforge.learners.revision import git_revision
from gaitforge.learners.training.batches import training_hash
from gaitforge.learners.training.building import build_policy
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks, process_group
from gaitforge.learners.training.held_out import split_episodes
from gaitforge.learners.training.nonfinite import NonFiniteError
from gaitforge.learners.training.objectives import draws_noise
from gaitforge.learners.training.process import keep_freed_memory, torch_threads
from gaitforge.learners.training.trainer import Progress, RunProgress, Trainer

Say = Callable[[str], object]

__all__ = ["NonFiniteError", "TrainResult", "finished_result", "train"]


@dataclass(frozen=True)
class TrainResult:
    """Result of a finished run.

    Losses are the mean squared error in normalised action units ("bc", "return") or nats per step
    ("gaussian-bc"); loss is that of the history's last row. With values, loss is the sum of all
    losses, and the validation loss is the policy's imitation loss alone. best_validation_loss was
    reached after best_step. control_steps are the valid steps trained on, repeats included; train_s
    are the seconds of training over all resumes; resumed_from is the optimiser step this call
    started at.
    """

    run_dir: Path
    steps: int
    control_steps: int
    loss: float
    validation_loss: float | None
    best_validation_loss: float | None
    best_step: int | None
    train_s: float
    parameters: int
    resumed_from: int


def train(
    config: TrainConfig,
    selection: Selection,
    out_dir: str | Path,
    progress: Progress | None = None,
    say: Say = lambda line: None,
) -> TrainResult:
    """Train a policy on the selection's episodes, or resume the run in `out_dir`.

    A finished run returns at once. Ctrl-C, SIGTERM and SIGUSR2 stop the run after the current step
    with a checkpoint. With `torchrun` every process calls this with the same arguments, and rank 0
    reports and writes.

    Args:
        progress: called about twice a second and after the last step.
        say: called with lines about the data, such as channels that hardly ever change.

    Raises:
        ValueError: `out_dir` cannot be written or holds another run or a damaged checkpoint, there
            are no episodes to train or validate on, device or processes are missing, or
            (NonFiniteError) data or loss are not finite.
        Stopped: (a KeyboardInterrupt) by a signal, after saving a checkpoint.
    """
    run_dir = Path(out_dir)
    config, stored = _settled(run_dir, config, selection)
    if stored is not None and stored.card["finished"]:
        return finished_result(run_dir)
    keep_freed_memory()
    with torch_threads(config.threads), process_group(config.device) as ranks:
        gpus = [ranks.device] if ranks.device.type == "cuda" else []
        with torch.random.fork_rng(gpus):  # leaves the caller's random numbers unchanged
            return _train(config, selection, run_dir, ranks, progress, stored, say)


def finished_result(run_dir: Path) -> TrainResult:
    """The result of the finished run in a folder; ValueError if it has not finished."""
    card = read_checkpoint(run_dir).card
    if not card["finished"]:
        step = card["progress"]["step"]
        steps = card["train_config"]["steps"]
        raise ValueError(f"the training in {run_dir} stands at step {step} of {steps}")
    done = RunProgress(**card["progress"])
    return _result(run_dir, done, card["parameters"], resumed_from=done.step)


def _train(
    config: TrainConfig,
    selection: Selection,
    run_dir: Path,
    ranks: Ranks,
    progress: Progress | None,
    stored: Checkpoint | None,
    say: Say,
) -> TrainResult:
    ranks.share(config.batch_size)
    episodes = split_episodes(config, selection)
    policy, card = build_policy(config, episodes.train)
    card |= {
        "train_config": config.to_json(),
        "dataset_hash": training_hash(config, selection),
        "parameters": count_parameters(policy),
        "git_revision": git_revision(),
        "torch": torch.__version__,
    }
    if stored is not None and TokenLayout(**stored.card["tokens"]) != policy.layout:
        raise ValueError(
            f"{run_dir} holds a run of an older version, which reads other tokens; its policy can "
            "be used, but not trained further: choose an empty folder"
        )
    if stored is not None:  # a run of a version without bounds goes on without
        card["input_bounds"] = stored.card.get("input_bounds")
        policy.obs_normaliser.bounded(card["input_bounds"])
    if ranks.rank == 0 and policy.obs_normaliser.bound is not None:
        for line in card["input_notes"]:
            say(line)
    if stored is not None and ranks.rank == 0 and draws_noise(config.objective, policy.network):
        for name in config.other_noise(stored.card["train_config"]):
            say(
                f"{name} is another than before: this training draws random numbers, which are "
                "others from here on"
            )
    trainer = Trainer(config, episodes, policy, card, run_dir, ranks, progress)
    try:
        if stored is not None:
            trainer.restore(stored)
        resumed_from = trainer.done.step
        trainer.run()
        return _result(run_dir, trainer.done, card["parameters"], resumed_from)
    finally:
        trainer.close()


def _result(run_dir: Path, done: RunProgress, parameters: int, resumed_from: int) -> TrainResult:
    assert done.loss is not None, "the last step of a run writes history"
    return TrainResult(
        run_dir=run_dir,
        steps=done.step,
        control_steps=done.control_steps,
        loss=done.loss,
        validation_loss=done.validation_loss,
        best_validation_loss=done.best_validation_loss,
        best_step=done.best_step,
        train_s=done.train_s,
        parameters=parameters,
        resumed_from=resumed_from,
    )


def _settled(
    run_dir: Path, config: TrainConfig, selection: Selection
) -> tuple[TrainConfig, Checkpoint | None]:
    """The settled config, and the checkpoint to resume from; ValueError if it is another run's."""
    if not (run_dir / CHECKPOINT).exists():
        return config.settled(None), None
    stored = read_checkpoint(run_dir)
    recorded = stored.card["train_config"]
    config = config.settled(recorded)
    changed = config.differences(recorded)
    if stored.card.get("dataset_hash") != training_hash(config, selection):
        changed.append("dataset")
    if changed:
        raise ValueError(
            f"{run_dir} holds a run with another {', '.join(changed)}; choose an empty folder"
        )
    return config, stored
