"""The training loop (step, validate, record, save, stop on a signal) and the files of a run.

The files are settings and checkpoints in the run's folder, and the history, which is kept as JSON
lines, as a CSV table, and by loggers: by default for TensorBoard.
"""

import csv
import io
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import InitVar, asdict, dataclass, fields
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from gaitforge.common.errors import disk_failures
from gaitforge.common.files import write_bytes_durably
from gaitforge.common.history import HISTORY, HistoryFile
from gaitforge.common.interrupts import Notices, Stopped, stop_signals
from gaitforge.common.run_log import TENSORBOARD, RunLog, State
from gaitforge.datasets import Selection
from gaitforge.learners.checkpoint import BEST, Checkpoint, save_checkpoint
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.training.batches import (
    Labels,
    TrainingBatches,
    kind_columns,
    on_device,
    open_stream,
    with_bodies,
    with_labels,
    without_padding,
)
from gaitforge.learners.training.building import NonFiniteError, blame, build_values, data_fault
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.update import Updater, learning_rate

# The history: JSON lines, a CSV table, and what loggers keep.
TABLE = "metrics.csv"
CONFIG = "config.json"
_LOGGED = (CONFIG, "plan.json", HISTORY, TABLE)
"""Files of a run's folder that its loggers get."""
_VALIDATION_STEPS = 1 << 18
"""Steps of held-out episodes that a validation chooses its batches from, at least."""
_TAGS = {
    "loss": "loss/train",
    "validation_loss": "loss/validation",
    "lr": "optimiser/learning_rate",
    "steps_per_s": "speed/control_steps_per_s",
}


@dataclass(frozen=True)
class HistoryRow:
    """State of the run after `step` optimiser steps.

    loss is the mean since the previous row, validation_loss is None where it was not computed,
    steps_per_s counts control steps, and elapsed_s the training seconds over all resumes.
    """

    step: int
    loss: float
    validation_loss: float | None
    lr: float
    steps_per_s: float
    elapsed_s: float


COLUMNS = tuple(field.name for field in fields(HistoryRow))


class History:
    """Appends rows to `history.jsonl` and `metrics.csv`, and logs them: see `RunLog`.

    Rows after `last_step` are dropped, so that a resumed run leaves the same files as an
    uninterrupted one.

    Args:
        config: the run's settings, for its loggers.
    """

    def __init__(
        self, run_dir: Path, last_step: int, config: Mapping[str, object] | None = None
    ) -> None:
        self._run_dir = run_dir
        self._lines = HistoryFile(run_dir, "step", last_step)
        table = ",".join(COLUMNS) + "\n" + "".join(map(_as_csv, self._lines.kept))
        write_bytes_durably(run_dir / TABLE, table.encode())
        self._table = (run_dir / TABLE).open("a", encoding="utf-8")
        self._log = RunLog(run_dir, config or {}, last_step, default=(TENSORBOARD,))

    def append(self, row: HistoryRow) -> None:
        """Add one row and flush."""
        values = asdict(row)
        self._lines.append(values)
        self._table.write(_as_csv(values))
        self._table.flush()
        self._log.log(row.step, {tag: values[name] for name, tag in _TAGS.items()})

    def sync(self) -> None:
        """Write the rows so far to the disk."""
        self._lines.sync()
        os.fsync(self._table.fileno())

    def close(self, state: State = "finished") -> None:
        """Close the files, and end the log of a training that ended so."""
        self._lines.close()
        self._table.close()
        self._log.finish(state, [self._run_dir / name for name in _LOGGED])


def _as_csv(row: Mapping[str, object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(row.get(name) for name in COLUMNS)
    return line.getvalue()


# The files of a run's folder: settings, history and checkpoints.
class TrainingFiles:
    """Writes a run's folder, on rank 0; ValueError if it cannot be written."""

    def __init__(self, run_dir: Path, card: Mapping[str, object], last_step: int) -> None:
        self._run_dir = run_dir
        config = json.dumps(card, indent=2) + "\n"
        problem = f"cannot write a run to {run_dir}"
        advice = "; give a folder that can be written"
        with disk_failures(problem, advice):
            run_dir.mkdir(parents=True, exist_ok=True)
            write_bytes_durably(run_dir / CONFIG, config.encode())
            self.history = History(run_dir, last_step, card)

    def save(self, updater: Updater, card: Mapping[str, object]) -> None:
        """Replace the checkpoint to resume from."""
        self.history.sync()
        state = updater.policy, updater.optimiser, card, updater.averages(), updater.values
        save_checkpoint(self._run_dir, *state)

    def save_policy(
        self, policy: PolicyNetwork, card: Mapping[str, object], name: str = BEST
    ) -> None:
        """Write or replace the checkpoint `name` with a policy alone, by default the best one."""
        save_checkpoint(self._run_dir, policy, None, card, name=name)


# The training loop.
PROGRESS_PERIOD_S = 0.5

Progress = Callable[[int, int, HistoryRow], None]
"""progress(steps done, all steps, state of the run)."""


@dataclass
class RunProgress:
    """The state of a run besides tensors and data; saved in every checkpoint."""

    step: int = 0
    control_steps: int = 0
    train_s: float = 0.0
    loss: float | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None
    best_step: int | None = None
    pending_loss: float = 0.0
    pending_steps: int = 0
    pending_s: float = 0.0


@dataclass(frozen=True)
class Episodes:
    """The episodes to train on, and those held out for validation, if any."""

    train: Selection
    held_out: Selection | None


@dataclass(eq=False)
class Trainer:
    """One training run on one rank; `card` goes into every checkpoint."""

    config: TrainConfig
    episodes: Episodes
    policy: InitVar[PolicyNetwork]
    card: Mapping[str, object]
    run_dir: Path
    ranks: Ranks
    report: Progress | None

    def __post_init__(self, policy: PolicyNetwork) -> None:
        config = self.config
        rows = self.episodes.train
        ranks = self.ranks
        self.report = self.report if ranks.rank == 0 else None
        self.done = RunProgress()
        self.state: State = "failed"
        self.files: TrainingFiles | None = None
        self.batches = TrainingBatches(config, rows, ranks, policy)
        self.updater = Updater(policy, config, ranks, build_values(config, policy, rows))

    def restore(self, stored: Checkpoint) -> None:
        """Resume from a checkpoint of this run."""
        self.done = RunProgress(**stored.card["progress"])
        self.updater.load(stored.tensors, self.done.step)
        self.batches.stream.load_state_dict(stored.card["stream"])

    def close(self) -> None:
        """Close the stream and the files."""
        self.batches.stream.close()
        if self.files is not None:
            self.files.history.close(self.state)

    def run(self) -> None:
        """Train to the end; raises as `train`."""
        if self.ranks.rank == 0:
            self.files = TrainingFiles(self.run_dir, self.card, self.done.step)
        if self.config.start_from and self.done.step == 0:
            self._save(finished=False)  # to resume without the run that it begins with
        with stop_signals() as notices:
            self._loop(notices)

    def _loop(self, notices: Notices) -> None:
        last_report = time.perf_counter()
        batches = iter(self.batches)
        self.updater.policy.train()
        while self.done.step < self.config.steps:
            start = time.perf_counter()
            self._step(*next(batches))
            self._after_step(start)
            now = time.perf_counter()
            if self.report and now - last_report >= PROGRESS_PERIOD_S:
                last_report = now
                self.report(self.done.step, self.config.steps, self._so_far())
            if received := self.ranks.largest(notices.received):
                self._save(finished=self.done.step == self.config.steps, stopped=True)
                self.state = "stopped"
                raise Stopped(received, f"step {self.done.step}")
        self._save(finished=True)
        self.state = "finished"
        if self.report:
            self.report(self.done.step, self.config.steps, self._so_far())

    def _step(self, position: str, batch: dict[str, Tensor]) -> None:
        done = self.done
        rate = learning_rate(done.step, self.config)
        update = self.updater.step(batch, done.step, rate)
        if not update.finite:
            alone = self.ranks.world_size == 1
            reason = blame(batch, self.episodes.train, rate, alone)
            raise NonFiniteError(f"step {done.step} ({position}): {reason}")
        done.step += 1
        done.control_steps += update.valid_steps
        done.pending_loss += update.loss * update.valid_steps
        done.pending_steps += update.valid_steps

    def _after_step(self, start: float) -> None:
        """Validate, write history and save if they are due; count the time."""
        done = self.done
        config = self.config
        done.pending_s += time.perf_counter() - start
        last = done.step == config.steps
        validated = last or done.step % config.validation_every == 0
        if validated:
            self._validate()
        done.train_s += time.perf_counter() - start
        if validated or done.step % config.history_every == 0:
            self._write_history(validated)
        if config.keep_every and done.step % config.keep_every == 0 and self.files is not None:
            card = self._full_card(finished=last)
            name = f"step-{done.step}.safetensors"
            self.files.save_policy(self.updater.acting_policy(), card, name)
        if done.step % config.checkpoint_every == 0 and not last:
            self._save(finished=False)

    def _write_history(self, validated: bool) -> None:
        done = self.done
        done.loss = done.pending_loss / max(done.pending_steps, 1)
        if self.files is not None:
            validation_loss = done.validation_loss if validated else None
            speed = done.pending_steps / max(done.pending_s, 1e-9)
            self.files.history.append(self._row(done.loss, validation_loss, speed))
        done.pending_loss = 0.0
        done.pending_steps = 0
        done.pending_s = 0.0

    @cached_property
    def _validated(self) -> Selection | None:
        """The held-out episodes that validations read.

        Of many they come from some units of all kinds: reading all units for a few batches would
        take longer than the updates between two validations.
        """
        held_out = self.episodes.held_out
        if held_out is None:
            return None
        config = self.config
        steps = config.validation_batches * config.batch_size * config.window_len
        return held_out.spread(max(steps, _VALIDATION_STEPS), kind_columns(config, held_out.schema))

    def _validate(self) -> None:
        """Compute the validation loss, and save the policy if it is the best so far."""
        if self._validated is None:
            return
        done = self.done
        policy = self.updater.acting_policy().eval()
        done.validation_loss = self._validation_loss(policy, self._validated)
        best = done.best_validation_loss
        if best is None or done.validation_loss < best:
            done.best_validation_loss = done.validation_loss
            done.best_step = done.step
            if self.files is not None:
                self.files.save_policy(policy, self._full_card(finished=False))
        self.updater.policy.train()

    def _validation_loss(self, policy: PolicyNetwork, held_out: Selection) -> float:
        """The loss over the first batches of held-out episodes, always the same ones."""
        config = self.config
        # With fewer episodes than ranks, every rank computes all of them; the mean is the same.
        shared = len(held_out) >= self.ranks.world_size
        ranks = self.ranks if shared else Ranks(device=self.ranks.device)
        stream = open_stream(config, held_out, ranks, seed=0)
        labels = None
        if policy.conditioned:
            labels = Labels(policy, held_out, stream.config.prefix_len)
        sums = torch.zeros(2, dtype=torch.float64, device=self.ranks.device)
        fault = None
        with torch.no_grad():
            read = without_padding(config, stream, held_out)
            batches = with_labels(with_bodies(read, held_out), labels)
            for number, batch in enumerate(batches, start=1):
                loss = self.updater.summed_loss(policy, on_device(batch, self.ranks)).double()
                sums += torch.stack([loss, batch["mask"].sum().to(loss)])
                if fault is None and not loss.isfinite():
                    fault = data_fault(batch, held_out) or "the validation loss is not finite"
                if number == config.validation_batches:
                    break
        stream.close()
        total, valid = self.ranks.sum(sums).tolist()
        loss = total / max(valid, 1.0)
        if not math.isfinite(loss):
            fault = fault or "the validation loss of another process is not finite"
            raise NonFiniteError(f"step {self.done.step}, validation: {fault}")
        return loss

    def _so_far(self) -> HistoryRow:
        done = self.done
        loss = done.pending_loss / done.pending_steps if done.pending_steps else done.loss
        assert loss is not None, "some step was done, or its history written"
        speed = done.control_steps / max(done.train_s, 1e-9)
        return self._row(loss, done.validation_loss, speed)

    def _row(self, loss: float, validation_loss: float | None, steps_per_s: float) -> HistoryRow:
        step = self.done.step
        elapsed_s = self.done.train_s
        rate = learning_rate(step - 1, self.config)
        return HistoryRow(step, loss, validation_loss, rate, steps_per_s, elapsed_s)

    def _save(self, finished: bool, stopped: bool = False) -> None:
        if self.files is not None:
            self.files.save(self.updater, self._full_card(finished) | {"stopped": stopped})

    def _full_card(self, finished: bool) -> dict[str, object]:
        return {
            **self.card,
            "finished": finished,
            "progress": vars(self.done),
            "stream": self.batches.stream.state_dict(),
        }
