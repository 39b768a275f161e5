"""The trainer: one for every model and objective.

A run folder holds `config.json` (all settings, resolved), `history.jsonl` and the checkpoint. A
run that was stopped goes on from its last checkpoint and ends with the numbers of an uninterrupted
one: weights, optimiser, position in the data and loss sums are all part of the checkpoint.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datasets.files import write_bytes_durably
from datasets.selection import Selection
from learners.checkpoint import (
    CHECKPOINT,
    git_revision,
    load_optimiser,
    load_weights,
    policy_card,
    read_checkpoint,
    save_checkpoint,
)
from learners.history import History
from learners.interrupts import deferred_interrupt
from learners.normalisation import Normaliser
from learners.objectives import OBJECTIVE_TOKENS, masked_mse
from learners.optimisation import learning_rate, make_optimiser, set_learning_rate
from learners.policy_network import PolicyNetwork
from learners.registry import build_network, count_parameters, preset
from learners.tokens import TokenLayout
from learners.training_config import TrainConfig

CONFIG = "config.json"
PROGRESS_PERIOD_S = 0.5

Progress = Callable[[int, int, dict[str, Any]], None]
Batch = dict[str, Tensor]


class NonFiniteError(ValueError):
    """Training met a number that is not finite, in the data or in the loss."""


@dataclass(frozen=True)
class TrainResult:
    """What a finished run came to.

    loss and validation_loss are mean squared errors in normalised action units, the first over
    the last stretch of the history; train_s counts seconds over all resumes; control_steps are
    the valid steps trained on, repeats counted; resumed_from is the optimiser step this call
    started at.
    """

    run_dir: Path
    steps: int
    control_steps: int
    loss: float
    validation_loss: float | None
    train_s: float
    parameters: int
    resumed_from: int


@dataclass
class RunProgress:
    """What a run has done so far; saved with every checkpoint."""

    step: int = 0
    control_steps: int = 0
    train_s: float = 0.0
    loss: float | None = None
    validation_loss: float | None = None
    pending_loss: float = 0.0
    pending_steps: int = 0
    pending_s: float = 0.0


def train(
    config: TrainConfig,
    selection: Selection,
    out_dir: str | Path,
    progress: Progress | None = None,
) -> TrainResult:
    """Train a policy on the selection's episodes, or go on with the run in `out_dir`.

    A run that is already finished returns at once. Ctrl-C takes effect between two steps and
    leaves a checkpoint to resume from.

    Args:
        progress: called about twice a second and after the last step with steps done, steps in
            all, and {"loss", "validation_loss", "lr", "steps_per_s", "elapsed_s", "remaining_s"}.

    Raises:
        ValueError: `out_dir` cannot be written, holds another run or a damaged checkpoint, nothing
            is left to train or validate on, or (NonFiniteError) the data or the loss are not
            finite.
        KeyboardInterrupt: after saving a checkpoint.
    """
    run_dir = Path(out_dir)
    stored = _stored_run(run_dir, config, selection)
    if stored is not None and stored[1]["finished"]:
        return _result(run_dir, stored[1], resumed_from=stored[1]["progress"]["step"])
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads or threads)
    trainer = None
    try:
        trainer = _Trainer(config, selection, run_dir, progress)
        if stored is not None:
            trainer.restore(*stored)
        return trainer.run()
    finally:
        torch.set_num_threads(threads)
        if trainer is not None:
            trainer.close()


def _mean_return(config: TrainConfig, selection: Selection) -> float:
    """Mean return of an episode, or what the config says; 1 where returns are not used."""
    if config.objective != "return":
        return 1.0
    returns = selection.episodes().column("return").to_numpy()
    scale = float(returns.mean()) if config.return_scale is None else config.return_scale
    if not scale > 0:
        raise ValueError(
            f"the episodes' mean return is {scale}, but the return objective needs a positive "
            "scale; set return_scale"
        )
    return scale


def build_policy(config: TrainConfig, selection: Selection) -> tuple[PolicyNetwork, dict[str, Any]]:
    """A fresh policy with the selection's statistics, and the card that describes it."""
    layout = TokenLayout(
        OBJECTIVE_TOKENS[config.objective], selection.store.schema.field("obs").slices
    )
    statistics = {name: selection.statistics(name) for name in ("obs", "action")}
    normalisers = {}
    for name, each in statistics.items():
        try:
            normalisers[name] = Normaliser(each.mean, each.std)
        except ValueError as error:
            raise NonFiniteError(f"field {name}: {error}") from error
    spec = preset(config.model, config.model_overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = build_network(spec, layout, normalisers["action"].mean.numel())
    policy = PolicyNetwork(
        network,
        layout,
        normalisers["obs"],
        normalisers["action"],
        _mean_return(config, selection),
    )
    return policy, policy_card(policy, spec)


class _Trainer:
    """The state of one call of `train`."""

    def __init__(
        self,
        config: TrainConfig,
        selection: Selection,
        run_dir: Path,
        progress: Progress | None,
    ) -> None:
        self.config = config
        self.run_dir = run_dir
        self.report = progress
        self.train_set, self.held_out = _split(config, selection)
        self.done = RunProgress()
        self.resumed_from = 0
        self.history: History | None = None

        self.policy, self.card = build_policy(config, self.train_set)
        self.card |= {
            "train_config": config.to_json(),
            "dataset_hash": selection.hash,
            "parameters": count_parameters(self.policy),
            "git_revision": git_revision(),
            "torch": torch.__version__,
        }
        self.optimiser = make_optimiser(self.policy.parameters(), config)
        self.stream = self._windows(self.train_set, config.seed)

    def restore(self, tensors: dict[str, Tensor], card: dict[str, Any]) -> None:
        """Go on from a checkpoint of this run."""
        load_weights(self.policy, tensors)
        load_optimiser(self.optimiser, tensors)
        self.stream.load_state_dict(card["stream"])
        self.done = RunProgress(**card["progress"])
        self.resumed_from = self.done.step

    def close(self) -> None:
        """End the stream's threads and the history file."""
        self.stream.close()
        if self.history is not None:
            self.history.close()

    def run(self) -> TrainResult:
        """Train to the end and say what came of it."""
        self._prepare_folder()
        with deferred_interrupt() as check_interrupt:
            self._loop(check_interrupt)
        return _result(self.run_dir, self._full_card(finished=True), self.resumed_from)

    def _loop(self, check_interrupt: Callable[[], None]) -> None:
        batches = self._batches()
        last_report = time.perf_counter()
        self.policy.train()
        try:
            while self.done.step < self.config.steps:
                start = time.perf_counter()
                self._step(next(batches))
                self._after_step(start)
                now = time.perf_counter()
                if self.report and now - last_report >= PROGRESS_PERIOD_S:
                    last_report = now
                    self.report(self.done.step, self.config.steps, self._information())
                check_interrupt()
        except KeyboardInterrupt:
            self._save(finished=False)
            raise
        self._save(finished=True)
        if self.report:
            self.report(self.done.step, self.config.steps, self._information())

    def _step(self, batch: Batch) -> None:
        rate = learning_rate(self.done.step, self.config)
        set_learning_rate(self.optimiser, rate)
        self.optimiser.zero_grad()
        loss = self._loss(batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.grad_clip)
        value = loss.item()
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            raise NonFiniteError(_blame(batch, self.done.step, rate))
        self.optimiser.step()
        valid = int(batch["mask"].sum())
        self.done.step += 1
        self.done.control_steps += valid
        self.done.pending_loss += value * valid
        self.done.pending_steps += valid

    def _loss(self, batch: Batch) -> Tensor:
        predicted = self.policy.predict_normalised(batch["obs"], batch.get("return_to_go"))
        target = self.policy.action_normaliser.normalise(batch["action"])
        return masked_mse(predicted, target, batch["mask"])

    def _after_step(self, start: float) -> None:
        """Validate, write history and save where it is time to; add up the seconds."""
        done, config = self.done, self.config
        done.pending_s += time.perf_counter() - start
        last = done.step == config.steps
        validated = last or done.step % config.validation_every == 0
        if validated:
            done.validation_loss = self._validate()
        done.train_s += time.perf_counter() - start
        if validated or done.step % config.history_every == 0:
            self._write_history(validated)
        if done.step % config.checkpoint_every == 0 and not last:
            self._save(finished=False)

    def _write_history(self, validated: bool) -> None:
        done = self.done
        done.loss = done.pending_loss / done.pending_steps
        if self.history is not None:
            self.history.append(
                {
                    "step": done.step,
                    "loss": done.loss,
                    "validation_loss": done.validation_loss if validated else None,
                    "lr": learning_rate(done.step - 1, self.config),
                    "steps_per_s": done.pending_steps / max(done.pending_s, 1e-9),
                    "elapsed_s": done.train_s,
                }
            )
        done.pending_loss, done.pending_steps, done.pending_s = 0.0, 0, 0.0

    def _validate(self) -> float | None:
        """Loss over the first batches of the held-out episodes, the same ones every time."""
        if self.held_out is None:
            return None
        stream = self._windows(self.held_out, seed=0)
        total = torch.zeros((), dtype=torch.float64)
        valid = 0
        self.policy.eval()
        with torch.no_grad():
            for number, batch in enumerate(stream, start=1):
                count = int(batch["mask"].sum())
                total += self._loss(batch).double() * count
                valid += count
                if number == self.config.validation_batches:
                    break
        stream.close()
        self.policy.train()
        return float(total) / valid

    def _windows(self, selection: Selection, seed: int) -> Any:
        return selection.windows(
            context_len=self.config.window_len,
            batch_size=self.config.batch_size,
            fields=("obs", "action"),
            seed=seed,
            return_to_go=self.config.objective == "return",
        )

    def _batches(self) -> Iterator[Batch]:
        """Epoch after epoch without end; every iteration of the stream is one epoch."""
        while True:
            yield from self.stream

    def _information(self) -> dict[str, Any]:
        done = self.done
        rate = done.control_steps / max(done.train_s, 1e-9)
        pending = done.pending_loss / done.pending_steps if done.pending_steps else done.loss
        return {
            "loss": pending,
            "validation_loss": done.validation_loss,
            "lr": learning_rate(done.step - 1, self.config),
            "steps_per_s": rate,
            "elapsed_s": done.train_s,
            "remaining_s": done.train_s / done.step * (self.config.steps - done.step),
        }

    def _prepare_folder(self) -> None:
        config = json.dumps(self.card, indent=2) + "\n"
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            write_bytes_durably(self.run_dir / CONFIG, config.encode())
            self.history = History(self.run_dir, self.done.step)
        except OSError as error:
            raise ValueError(
                f"cannot write a run to {self.run_dir}: {error.strerror}; give a folder that can "
                "be written"
            ) from error

    def _save(self, finished: bool) -> None:
        if self.history is not None:
            self.history.sync()
        save_checkpoint(self.run_dir, self.policy, self.optimiser, self._full_card(finished))

    def _full_card(self, finished: bool) -> dict[str, Any]:
        return self.card | {
            "finished": finished,
            "progress": vars(self.done),
            "stream": self.stream.state_dict(),
        }


def _result(run_dir: Path, card: dict[str, Any], resumed_from: int) -> TrainResult:
    done = RunProgress(**card["progress"])
    assert done.loss is not None, "the last step of a run writes history"
    return TrainResult(
        run_dir=run_dir,
        steps=done.step,
        control_steps=done.control_steps,
        loss=done.loss,
        validation_loss=done.validation_loss,
        train_s=done.train_s,
        parameters=card["parameters"],
        resumed_from=resumed_from,
    )


def _split(config: TrainConfig, selection: Selection) -> tuple[Selection, Selection | None]:
    if config.held_out_fraction == 0.0:
        rest, held_out = selection, None
    else:
        rest, held_out = selection.split(config.held_out_fraction, config.seed)
        if len(held_out) == 0:
            raise ValueError(
                f"held_out_fraction {config.held_out_fraction} leaves none of {len(selection)} "
                "episodes to validate on; use a larger one, or 0 for no validation"
            )
    if len(rest) == 0:
        raise ValueError(f"no episode to train on, of {len(selection)} selected")
    return rest, held_out


def _stored_run(
    run_dir: Path, config: TrainConfig, selection: Selection
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The checkpoint to go on from; ValueError where the folder holds another run's."""
    if not (run_dir / CHECKPOINT).exists():
        return None
    tensors, card = read_checkpoint(run_dir)
    changed = config.differences(card.get("train_config", {}))
    if card.get("dataset_hash") != selection.hash:
        changed.append("dataset")
    if changed:
        raise ValueError(
            f"{run_dir} holds a run with another {', '.join(changed)}; choose an empty folder"
        )
    return tensors, card


def _blame(batch: Batch, step: int, rate: float) -> str:
    for name in ("obs", "action", "return_to_go"):
        if name in batch and not torch.isfinite(batch[name]).all():
            return f"step {step}: field {name} of the data holds numbers that are not finite"
    return f"step {step}: the loss is not finite at learning rate {rate:.2g}; lower peak_lr"
