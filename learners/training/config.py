"""Settings of a training run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from gaitforge.common.errors import names_allowed
from gaitforge.common.limits import LATER, Fraction, Range, Whole, check_ranges, said_fields
from gaitforge.learners.models.registry import model_preset, preset
from gaitforge.learners.tokens import RETURN_TO_GO, Condition
from gaitforge.learners.training.objectives import OBJECTIVES, value_settings

# Settings that may change when a run is resumed; they change results by rounding at most, but for
# those of NOISE where a network or an objective draws random numbers in training.
NOISE = ("device", "accumulate")
FREE_TO_CHANGE = ("threads", "checkpoint_every", "keep_every", "compile", *NOISE)
OF_POLICY = (
    "model",
    "model_overrides",
    "objective",
    "condition",
    "condition_hidden",
    "condition_scale",
    "normalise_actions",
    "executed_actions",
    "own_joint_signs",
)
"""Settings that a run has, by default, from the one whose weights it begins with."""
_LARGEST = 2**31 - 1
_SHOWN = 60
_Count = Annotated[int, Range(1, _LARGEST)]
_AboveZero = Annotated[float, Range(0, above=True)]
_CHOICES = {
    "objective": tuple(OBJECTIVES),
    "optimiser": ("adamw", "adam", "lion"),
    "schedule": ("cosine", "constant"),
    "precision": ("float32", "bf16"),
    "device": ("cpu", "cuda"),
}


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run, the same for every model.

    Attributes:
        model: preset name, see `registry.PRESETS`; model_overrides replaces some of its settings.
        objective: "bc" (behaviour cloning), "gaussian-bc" (of a Gaussian policy) or "return"
            (return-conditioned behaviour cloning), or offline reinforcement learning; see
            `objectives`.
        values: settings of a value-based objective that differ from its defaults, such as
            {"alpha": 1.0}; see the plug-in `offline_rl`.
        start_from: folder of a training run, or name of a policy that ships, with whose weights and
            normalisers the run begins; empty for random weights. See `building.build_policy`.
        start_checkpoint: that run's "last" weights, "best" or "step-N".
        steps: optimiser steps.
        batch_size: windows per optimiser step, over all processes.
        window_len: control steps per window that are learned; a model may see fewer (its
            `context_len`).
        prefix_len: steps before a window that are only read; by default the model's own.
        whole_history: where no `prefix_len` is given, read all steps before a window that can
            change its actions, so that every learned step has the history that it has in control:
            the model's receptive field, and at most the steps of the longest episode before its
            last one.
        accumulate: number of parts in which a process's batch is computed, to save memory.
        optimiser: "adamw", "adam" or "lion".
        peak_lr, warmup_fraction, schedule: linear warm-up over this fraction of the steps, then
            "cosine" to 0 or "constant".
        weight_decay, betas, eps: the optimiser's; betas and eps are the FCNet paper's (Table 5).
        grad_clip: largest norm of the gradient; None for no limit.
        precision: "float32" or "bf16" (autocast) in the forward pass. With bf16 matrix units it
            halves the time of an FCNet step, but not of a BoT step.
        compile: use torch.compile, which needs a compiler and, on a CPU, about a minute.
        ema_decay: decay of a moving average of the weights, which is then validated, evaluated and
            exported; None for no average.
        device: "cpu" or "cuda".
        seed: random seed of the initial weights, the data's order and the network's random numbers.
        held_out_fraction: share of the episodes kept out of the training; a validation uses the
            first `validation_batches` batches of them, or of many, of some units of all kinds.
        split_seed: seed of the choice of held-out episodes; by default `seed`. Compared runs share
            it.
        history_every, validation_every, checkpoint_every: periods in optimiser steps; the last step
            also validates and saves a checkpoint.
        keep_every: steps between policies that are kept as checkpoints "step-N"; None keeps none.
        return_scale: the expert's return, which the network sees as 1; by default the store's
            reference return or, without one, the mean return of the episodes.
        return_zero: the return that the network sees as 0; None for the store's reference return of
            a random policy (0 without one), which is D4RL's score, (R - min) / (max - min).
        normalise_actions: learn actions that have mean 0 and std 1 over the data; if false,
            actions, `fixed_std` and the loss are in the units of the data.
        executed_actions: learn the actions that were executed, with the collection's noise, as the
            next observation's `last_action` shows them, instead of those that the policy chose.
            No effect on a store that does not tell them, such as an import.
        own_joint_signs: a network for many robots reads and writes joint angles with each robot's
            own signs; by default it does as if all joints turned about +x and +y.
        equal_shares: column of the episodes, such as "robot", of which every value has the same
            share of an epoch's steps; None for all episodes once, see `datasets.equal_shares`.
        condition, condition_hidden, condition_scale: of the objective "return", see `Condition`;
            formulas of the labels are in `training.batches`.
        last_action_hidden, history_hidden: shares of the windows in which the network sees no last
            action, or nothing of the steps before the window: both tell who drove.
        threads: torch's number of threads; by default unchanged.

    Raises:
        ValueError: a value outside its range.
    """

    model: str = "fcnet"
    model_overrides: Mapping[str, Any] = field(default_factory=dict)
    objective: str = "bc"
    values: Mapping[str, Any] = field(default_factory=dict)
    start_from: str = field(default="", metadata=LATER)
    start_checkpoint: str = field(default="last", metadata=LATER)
    steps: _Count = 2000
    batch_size: _Count = 64
    window_len: _Count = 64
    prefix_len: Annotated[int | None, Range(0)] = None
    whole_history: bool = field(default=False, metadata=LATER)
    accumulate: _Count = 1
    optimiser: str = "adamw"
    peak_lr: _AboveZero = 2e-3
    warmup_fraction: Fraction = 0.2
    schedule: str = "cosine"
    weight_decay: Annotated[float, Range(0)] = 1e-4
    betas: tuple[float, float] = (0.9, 0.98)
    eps: _AboveZero = 1e-9
    grad_clip: Annotated[float | None, Range(0, above=True)] = 1.0
    precision: str = "float32"
    compile: bool = False
    ema_decay: Annotated[float | None, Range(0, 1, below=True)] = None
    device: str = "cpu"
    seed: Whole = 0
    held_out_fraction: Fraction = 0.05
    split_seed: Annotated[int | None, Range(0)] = None
    history_every: _Count = 25
    validation_every: _Count = 250
    validation_batches: _Count = 16
    checkpoint_every: _Count = 250
    keep_every: Annotated[int | None, Range(1, _LARGEST)] = None
    return_scale: Annotated[float | None, Range()] = None
    return_zero: Annotated[float | None, Range()] = 0.0
    normalise_actions: bool = True
    executed_actions: bool = False
    own_joint_signs: bool = False
    equal_shares: str | None = None
    condition: tuple[str, ...] = (RETURN_TO_GO,)
    condition_hidden: float = 0.0
    condition_scale: float = 1.0
    last_action_hidden: Fraction = 0.0
    history_hidden: Fraction = 0.0
    threads: Annotated[int | None, Range(1, 512)] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        names = [self.condition] if isinstance(self.condition, str) else self.condition
        object.__setattr__(self, "condition", tuple(names))
        self.token_condition()
        for name, words in _CHOICES.items():
            if getattr(self, name) not in words:
                choices = names_allowed(str(getattr(self, name)), words)
                raise ValueError(f"no {name} {getattr(self, name)!r}; {choices}")
        check_ranges(self)
        if len(self.betas) != 2 or not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        self.value_settings()

    @classmethod
    def recommended(cls, model: str = model, **overrides: Any) -> "TrainConfig":
        """The settings that suit a preset and an objective, with the overrides."""
        suited = dict(model_preset(model).training)
        if (objective := str(overrides.get("objective"))) in OBJECTIVES:
            suited |= OBJECTIVES[objective].training
        return cls(**{"model": model, **suited, **overrides})

    def to_json(self) -> dict[str, object]:
        """JSON values, without the settings that `LATER` leaves out."""
        said = said_fields(self)
        return {name: value for name, value in self._values().items() if name in said}

    def _values(self) -> dict[str, object]:
        """All settings as JSON values."""
        tree: dict[str, object] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        tree |= {"betas": list(self.betas), "values": dict(self.values)}
        tree |= {"condition": list(self.condition)}
        return tree | {"model_overrides": dict(self.model_overrides)}

    def token_condition(self) -> Condition:
        """The condition of a return-conditioned policy."""
        return Condition(self.condition, self.condition_hidden, self.condition_scale)

    def value_settings(self) -> Any:
        """The settings of a value-based objective, as `objectives.value_settings`, for `steps`."""
        settings = value_settings(self.objective, self.values)
        return settings and settings.over(self.steps)

    def settled(
        self, recorded: Mapping[str, Any] | None, longest: int | None = None
    ) -> "TrainConfig":
        """The config with a prefix_len: the recorded run's, or the model's for a new run.

        longest: steps of the longest selected episode, which `whole_history` needs.
        """
        if self.prefix_len is not None:
            return self
        if recorded is None:
            prefix_len = self._prefix_of_model(longest)
        else:
            prefix_len = recorded.get("prefix_len")
        return replace(self, prefix_len=prefix_len)

    def _prefix_of_model(self, longest: int | None) -> int:
        model = preset(self.model, self.model_overrides).config
        if not self.whole_history:
            return model.prefix_len
        assert longest is not None, "whoever trains knows the episodes"
        before_last = max(0, longest - 1)
        # A model of another package may not tell its field: it may see the whole episode.
        field = getattr(model, "receptive_field", None)
        reach = before_last if field is None else min(field, before_last)
        return max(model.prefix_len, reach)

    def other_noise(self, recorded: Mapping[str, Any]) -> list[str]:
        """Names of settings that differ from a recorded run's and change the random numbers."""
        defaults = TrainConfig().to_json()
        return [name for name in NOISE if getattr(self, name) != recorded.get(name, defaults[name])]

    def differences(self, recorded: Mapping[str, Any]) -> list[str]:
        """Names of settings that differ from a recorded run's and change results.

        A setting that the record lacks had its default.
        """
        mine = self.to_json()
        recorded = {**TrainConfig().to_json(), **recorded}
        names = (mine.keys() | recorded.keys()) - set(FREE_TO_CHANGE)
        return sorted(name for name in names if mine.get(name) != recorded.get(name))

    def beside(self, recorded: Mapping[str, Any], name: str) -> str:
        """A setting's value in a recorded run and here, in words: "batch_size (64, here 32)"."""
        theirs = recorded.get(name, TrainConfig()._values().get(name))
        mine = self._values().get(name)
        return f"{name} ({shown_value(theirs)}, here {shown_value(mine)})"


def shown_value(value: object) -> str:
    """A JSON value in a message, at most about 60 characters of it."""
    if value is None or value == "":
        return "none"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
