"""The held-out episodes of a run, and a policy's error on them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gaitforge.common.errors import amount
from gaitforge.datasets import Selection
from gaitforge.learners.policy.policy_network import PolicyNetwork
from gaitforge.learners.training.batches import (
    learned_actions,
    training_fields,
    with_bodies,
    with_labels,
)
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.labels import Labels
from gaitforge.learners.training.nonfinite import NonFiniteError
from gaitforge.learners.training.objectives import masked_sum, squared_error
from gaitforge.learners.training.trainer import Episodes

BATCH_STEPS = 8192
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
        raise ValueError(f"no episode to train on, of {len(selection)} selected")
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
