"""The condition of a policy: labels beside its observation, in which 1.0 is the expert's.

In training a label says how good the episode of a step is, see `training.labels`. In control the
user's target takes its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from gaitforge.common.errors import listed

RETURN_TO_GO = "return_to_go"
TARGET = "target"
OF_RETURNS = (RETURN_TO_GO, "return", "rate")
"""Labels in units of the return that the network sees as 1. The others say nothing of it."""
LABELS = (*OF_RETURNS, "share", "driver", "advantage")


@dataclass(frozen=True)
class Condition:
    """The numbers of a token that the user sets in control.

    Attributes:
        labels: of `LABELS`, a number each. Return-to-go falls by the rewards in control, the others
            keep the target.
        hidden: share of the training's windows in which all labels are hidden, so that the policy
            also acts without any. Above 0 a further number says whether they are shown.
        scale: factor of all these numbers. Larger ones make the first layer learn them faster.

    Raises:
        ValueError: no label, an unknown or repeated one, or a value outside its range.
    """

    labels: tuple[str, ...] = (RETURN_TO_GO,)
    hidden: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))
        unknown = [name for name in self.labels if name not in LABELS]
        if not self.labels or unknown or len(set(self.labels)) < len(self.labels):
            raise ValueError(
                f"condition needs labels, each once, from {listed(LABELS)}; got "
                f"{', '.join(self.labels) or 'none'}"
            )
        if not 0.0 <= self.hidden < 1.0:
            raise ValueError(f"condition_hidden must lie in [0, 1), got {self.hidden}")
        if not (isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"condition_scale must be above 0, got {self.scale}")

    @property
    def hides(self) -> bool:
        """Whether the policy also acts without labels."""
        return self.hidden > 0.0

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return len(self.labels) + self.hides

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the targets of a control step, see `in_control`."""
        names = (RETURN_TO_GO if name == RETURN_TO_GO else TARGET for name in self.labels)
        return tuple(dict.fromkeys(names))

    def in_control(self, targets: Mapping[str, Any]) -> list[Any]:
        """The columns (N,) of a control step's condition, arrays or tensors.

        Args:
            targets: (N,) each, as shares of the expert's return: return_to_go, which falls by the
                rewards, and target, which the episode shall reach.
        """
        columns = [targets.get(name, targets.get(TARGET)) for name in self.labels]
        if self.hides:
            columns.append(0 * columns[0] + 1)
        return [self.scale * column for column in columns]
