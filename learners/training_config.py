"""Settings of a training run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from learners.objectives import OBJECTIVE_TOKENS

# Settings that change how a run is carried out but not what it computes.
_FREE_TO_CHANGE = ("threads", "checkpoint_every")


@dataclass(frozen=True)
class TrainConfig:
    """One training run, the same for every model.

    Attributes:
        model: preset name, see `registry.PRESETS`; model_overrides replaces some of its sizes.
        objective: "bc" (behaviour cloning) or "return" (return-conditioned behaviour cloning).
        steps: optimiser steps in all.
        batch_size, window_len: windows a step and control steps a window.
        peak_lr, warmup_fraction: linear warm-up over this fraction of the steps, then cosine to 0.
        weight_decay, betas, eps: of AdamW; betas and eps are the FCNet paper's (Table 5).
        grad_clip: largest norm of the gradient.
        seed: of the initial weights and of the data's order.
        held_out_fraction: episodes kept for validation, at most `validation_batches` of them.
        history_every, validation_every, checkpoint_every: in optimiser steps; validation and a
            checkpoint also come with the last step.
        return_scale: what counts as the expert's return; by default the mean of the episodes.
        threads: of torch, by default as they are.

    Raises:
        ValueError: a value outside its range.
    """

    model: str = "fcnet"
    model_overrides: Mapping[str, Any] = field(default_factory=dict)
    objective: str = "bc"
    steps: int = 2000
    batch_size: int = 64
    window_len: int = 64
    peak_lr: float = 2e-3
    warmup_fraction: float = 0.2
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    grad_clip: float = 1.0
    seed: int = 0
    held_out_fraction: float = 0.05
    history_every: int = 25
    validation_every: int = 250
    validation_batches: int = 16
    checkpoint_every: int = 250
    return_scale: float | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        if self.objective not in OBJECTIVE_TOKENS:
            raise ValueError(
                f"no objective {self.objective!r}; known are {', '.join(OBJECTIVE_TOKENS)}"
            )
        counts = ("steps", "batch_size", "window_len", "history_every", "validation_every")
        for name in (*counts, "validation_batches", "checkpoint_every", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("peak_lr", "eps", "grad_clip", "return_scale"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value > 0):
                raise ValueError(f"{name} must be above 0, got {value}")
        for name in ("warmup_fraction", "held_out_fraction"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        if len(self.betas) != 2 or not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        if not (isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")

    def to_json(self) -> dict[str, Any]:
        """A tree of JSON values."""
        tree = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return tree | {"betas": list(self.betas), "model_overrides": dict(self.model_overrides)}

    def differences(self, recorded: Mapping[str, Any]) -> list[str]:
        """Settings in which a recorded run would compute something else than this one."""
        mine = self.to_json()
        names = (mine.keys() | recorded.keys()) - set(_FREE_TO_CHANGE)
        return sorted(name for name in names if mine.get(name) != recorded.get(name))
