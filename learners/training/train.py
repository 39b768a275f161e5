"""Training of any model with any objective, on one process or, with `torchrun`, several.

A run folder holds `config.json`, `history.jsonl`, `metrics.csv`, `tensorboard/`, and the last and
the best checkpoint. A stopped run resumes from its last checkpoint with the same results as an
uninterrupted one.

Besides `train`, this file has the held-out episodes of a run and a policy's error on them, the
settings of the process (torch's threads, and memory that it keeps), and the speed of a training.
"""

import ctypes
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from gaitforge.common.errors import amount, listed
from gaitforge.common.extensions import git_revision
from gaitforge.datasets import Selection
from gaitforge.learners.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint
from gaitforge.learners.models.registry import count_parameters, depth_note, spec_from_json
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.tokens import TokenLayout
from gaitforge.learners.training.batches import (
    Labels,
    TrainingBatches,
    learned_actions,
    longest_episode,
    training_fields,
    training_hash,
    with_bodies,
    with_labels,
)
from gaitforge.learners.training.building import (
    NonFiniteError,
    build_policy,
    build_values,
    read_start,
    start_record,
)
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks, process_group
from gaitforge.learners.training.objectives import draws_noise, masked_sum, squared_error
from gaitforge.learners.training.trainer import Episodes, Progress, RunProgress, Trainer
from gaitforge.learners.training.update import Updater

# The held-out episodes of a run, and a policy's error on them.
BATCH_STEPS = 8192
_NAMED = 6
"""Settings that a refusal names."""
_GROWTH = 1.1
"""Factor by which the held-out share grows until it has an episode."""


def split_episodes(config: TrainConfig, selection: Selection) -> Episodes:
    """Split by `held_out_fraction` and `split_seed`.

    Of few episodes the share may be none. Then it grows until one is held out; where that leaves
    nothing to train on, none is, and the run has no validation.

    Raises:
        ValueError: no episode to train on.
    """
    fraction = config.held_out_fraction
    if len(selection) == 0:
        raise ValueError("no episode to train on, of 0 selected")
    if fraction == 0.0:
        return Episodes(selection, None)
    seed = config.seed if config.split_seed is None else config.split_seed
    training, held_out = selection.split(fraction, seed)
    if len(training) == 0:
        raise ValueError(
            f"no episode to train on, of {len(selection)} selected: held_out_fraction {fraction:g} "
            "holds all out; --set config.held_out_fraction=0 holds none out"
        )
    while len(held_out) == 0:
        fraction = min(1.0, _GROWTH * fraction)
        training, held_out = selection.split(fraction, seed)
    return Episodes(training, held_out) if len(training) else Episodes(selection, None)


def split_note(config: TrainConfig, selection: Selection) -> str:
    """A line on a split whose share of few episodes was none; empty for any other."""
    seed = config.seed if config.split_seed is None else config.split_seed
    if config.held_out_fraction == 0.0 or len(selection.split(config.held_out_fraction, seed)[1]):
        return ""
    held_out = split_episodes(config, selection).held_out
    count = amount(len(selection), "episode")
    done = "no validation" if held_out is None else f"{len(held_out)} for the validation"
    return f"held_out_fraction {config.held_out_fraction:g} of {count} is none: {done}"


@dataclass(frozen=True)
class HeldOutError:
    """Mean squared error over all steps of the episodes, in the units of the action normaliser."""

    mse: float
    steps: int
    episodes: int


def held_out_error(
    policy: PolicyNetwork,
    held_out: Selection,
    progress: Callable[[int], None] | None = None,
    config: TrainConfig | None = None,
    learned: Selection | None = None,
) -> HeldOutError:
    """The error of a policy's actions (a Gaussian policy's means) on whole episodes.

    Units are those of the policy's normaliser, which policies trained on the same episodes share.
    Labels are measured as in the training.

    Args:
        progress: gets the control steps since its previous call.
        config: of the training, which says what was learned: executed actions, or the expert's
            means; by default the stored actions.
        learned: the training's episodes, for a checkpoint of a version that did not keep the
            scale of its labels; by default the held-out ones.

    Raises:
        NonFiniteError: a non-finite error.
        ValueError: the policy needs returns, and an episode was cut off.
    """
    longest = int(held_out.lengths.max())
    target_name, actions = _learned_target(config, held_out)
    stream = held_out.windows(
        window_len=longest,
        batch_size=max(1, BATCH_STEPS // longest),
        fields=("obs", target_name),
        actions=actions,
        return_to_go=policy.conditioned,
        last_action=policy.layout.keeps_last_action,
    )
    labels = None
    if policy.conditioned:
        older = learned is not None and policy.label_scale is None
        labels = Labels(policy, held_out, 0, learned) if older else Labels(policy, held_out, 0)
    total = 0.0
    steps = 0
    try:
        with torch.inference_mode():
            for batch in with_labels(with_bodies(stream, held_out), labels):
                predicted = policy.predict_batch(batch)
                target = policy.batch_actions(batch, target_name)
                total += float(masked_sum(squared_error(predicted, target), batch["mask"]))
                done = int(batch["mask"].sum())
                steps += done
                if progress is not None:
                    progress(done)
    finally:
        stream.close()
    if not math.isfinite(total):
        raise NonFiniteError("the error on the held-out episodes is not finite")
    return HeldOutError(total / steps, steps, len(held_out))


def _learned_target(config: TrainConfig | None, selection: Selection) -> tuple[str, str]:
    """The field whose values a training learned, and which actions the field `action` holds."""
    if config is None:
        return "action", ""
    is_mean = "action_mean" in training_fields(config, selection.schema)
    return "action_mean" if is_mean else "action", learned_actions(config, selection.schema)


# Settings of the process: torch's threads, and memory that it keeps.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3  # M_... of glibc's malloc.h
_MOST_KEPT = 1 << 30
_LARGEST = 32 << 20  # the most that glibc takes for M_MMAP_THRESHOLD on 64 bits


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """PyTorch on so many threads within the block; None leaves their number as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Let this process keep up to 1 GiB of freed memory, where its C library is glibc.

    By default freed large arrays go back to the system, and each page of the next one is faulted in
    and cleared: a quarter of the time of CQL, whose batches are 30 times as large.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, _MOST_KEPT)


# The training.
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
            are no episodes to train or validate on, the run to start from is missing or another
            policy's, device or processes are missing, or (NonFiniteError) data or loss are not
            finite.
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
    start = stored  # has the weights of the run that it began with, if it did with any
    if config.start_from and stored is None:
        start = read_start(config)
    start = start if config.start_from else None
    # Sizes of presets may change: a run goes on with the network that it has.
    spec = spec_from_json(stored.card["model"]) if stored is not None else None
    policy, card = build_policy(config, episodes.train, start, spec)
    if config.start_from:
        card["start"] = stored.card["start"] if stored else start_record(config)
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
    if ranks.rank == 0 and (note := depth_note(policy.network)):
        say(note)
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
        return config.settled(None, longest_episode(selection)), None
    stored = read_checkpoint(run_dir)
    recorded = stored.card["train_config"]
    config = config.settled(recorded)
    changed = config.differences(recorded)
    if stored.card.get("dataset_hash") != training_hash(config, selection):
        changed.append("dataset")
    if changed == ["steps"]:
        raise ValueError(
            f"{run_dir} was planned with {amount(recorded['steps'], 'step')}; to go on from its "
            f"weights: --start-from {run_dir} --out NEW"
        )
    if changed:
        named = [name if name == "dataset" else config.beside(recorded, name) for name in changed]
        raise ValueError(
            f"{run_dir} holds a run with another {listed(named, _NAMED)}; choose an empty folder"
        )
    return config, stored


# The speed of a training.
WARM_UP_S = 2.0
MEASURED_S = 4.0
"""A few hundred steps of a small network; the first ones also allocate and fill caches."""


def updates_per_s(config: TrainConfig, selection: Selection) -> float:
    """Measure a training's optimiser steps per second, without validation and checkpoints.

    On one thread these are seconds of CPU time, which do not depend on other programs or on the
    time to first read a large store. Raises ValueError as `train`.
    """
    with torch_threads(config.threads), torch.random.fork_rng():
        return _measure(config.settled(None, longest_episode(selection)), selection)


def _measure(config: TrainConfig, selection: Selection) -> float:
    ranks = Ranks(device=torch.device(config.device))
    episodes = split_episodes(config, selection)
    policy, _ = build_policy(config, episodes.train)
    updater = Updater(policy, config, ranks, build_values(config, policy, episodes.train))
    batches = TrainingBatches(config, episodes.train, ranks, policy)
    clock = time.thread_time if config.threads == 1 else time.perf_counter
    try:
        started = clock()
        timed = None
        warm = 0
        for number, (_, batch) in enumerate(batches):
            now = clock()
            if timed is None and now - started >= WARM_UP_S:
                timed = now
                warm = number
            if timed is not None and now - timed >= MEASURED_S:
                return (number - warm) / (now - timed)
            updater.step(batch, number, config.peak_lr * config.warmup_fraction)
    finally:
        batches.stream.close()
    raise AssertionError("batches are endless")
