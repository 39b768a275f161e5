"""Token layouts, the fields of a network's input at one step, and the condition of a policy.

A condition is one or more labels beside the observation, in which 1.0 is the expert's. In training
a label says how good the episode of a step is, see `training.batches`. In control the user's target
takes its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from gaitforge.common.errors import listed

TOKEN_KINDS = ("obs", "return")
LAST_ACTION = "last_action"
CONDITION = "condition"
BODY = "body"
"""Field of an episode that describes its robot, and its name in a batch."""
BODY_SIGN = "body_sign"
"""The body's field with a number for each joint: 1 where a positive angle turns about +x (hip) or
+y (thigh, calf), -1 where about -x or -y."""
SIGNED_FIELDS = ("joint_pos", "joint_vel", "sin_joint_pos", LAST_ACTION, BODY_SIGN)
"""Fields with a number for each joint that change sign where the joint turns the other way."""

Slices = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class TokenLayout:
    """The fields of a token.

    Attributes:
        kind: "obs", the observation as stored; "return", last action, condition, then the other
            fields in stored order, which is (a, R, s) of Chen et al. 2021 and the FCNet paper.
        obs_slices: observation field -> (start, stop), without gaps or overlaps.
        keeps_last_action: the stored observation has no last action; the policy remembers it and
            appends it as the last field of obs_slices.
        body_fields: fields of obs_slices that describe the robot. They are the same in all steps,
            stored per episode, and follow the stored fields.
        condition_dim: numbers of the condition, see `Condition.width`; by default the return-to-go.
        signed_fields: fields that the network reads multiplied by the joints' signs, BODY_SIGN, as
            it gives the actions; empty where it reads each robot's own signs.

    Raises:
        ValueError: an unknown kind, or fields that break these rules.
    """

    kind: str
    obs_slices: Slices
    keeps_last_action: bool = False
    body_fields: tuple[str, ...] = ()
    condition_dim: int = 1
    signed_fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in TOKEN_KINDS:
            raise ValueError(f"no token layout {self.kind!r}; allowed: {', '.join(TOKEN_KINDS)}")
        ordered = sorted(
            ((name, int(start), int(stop)) for name, (start, stop) in self.obs_slices.items()),
            key=lambda item: item[1],
        )
        end = 0
        for name, start, stop in ordered:
            if start != end or stop <= start:
                raise ValueError(
                    f"observation field {name} has the slice ({start}, {stop}), but slices have no "
                    f"gaps or overlaps and the next one starts at {end}"
                )
            end = stop
        if not ordered:
            raise ValueError("the observation has no named slices; name them in the schema")
        if self.kind == "return" and LAST_ACTION not in self.obs_slices:
            raise ValueError(f"return tokens need an observation field named {LAST_ACTION}")
        if self.keeps_last_action and (self.kind != "return" or ordered[-1][0] != LAST_ACTION):
            raise ValueError(
                f"a layout that keeps the last action needs return tokens, and {LAST_ACTION} as "
                "the last field of the observation"
            )
        object.__setattr__(self, "obs_slices", {name: (a, b) for name, a, b in ordered})
        object.__setattr__(self, "body_fields", tuple(self.body_fields))
        object.__setattr__(self, "signed_fields", tuple(self.signed_fields))
        names = [name for name, _, _ in ordered][: -1 if self.keeps_last_action else None]
        if self.body_fields and tuple(names[-len(self.body_fields) :]) != self.body_fields:
            raise ValueError("the fields of the body have to follow the stored ones")

    @classmethod
    def of_data(
        cls,
        kind: str,
        stored_slices: Slices,
        act_dim: int,
        body_slices: Slices | None = None,
        condition_dim: int = 1,
        own_signs: bool = False,
    ) -> "TokenLayout":
        """The layout for stored fields, and for the body's fields if there are any.

        It keeps the last action if the tokens need it and it is not stored. Unless `own_signs`, it
        takes the joints' signs out where the body has them.
        """
        slices = dict(stored_slices)
        end = cls("obs", stored_slices).obs_dim
        bodies = {name: (end + a, end + b) for name, (a, b) in (body_slices or {}).items()}
        if bodies:
            slices |= bodies
            end = max(stop for _, stop in bodies.values())
        keeps = needs_last_action(kind, stored_slices)
        if keeps:
            slices[LAST_ACTION] = (end, end + act_dim)
        signed = SIGNED_FIELDS if BODY_SIGN in bodies and not own_signs else ()
        signed = tuple(name for name in signed if name in slices)
        return cls(kind, slices, keeps, tuple(bodies), condition_dim, signed)

    @property
    def obs_dim(self) -> int:
        """Size of the policy's observation, with the last action if the layout keeps it."""
        return max(stop for _, stop in self.obs_slices.values())

    @property
    def stored_slices(self) -> Slices:
        """Field -> (start, stop) in the stored observation."""
        added = {*self.body_fields, *([LAST_ACTION] if self.keeps_last_action else [])}
        return {name: bounds for name, bounds in self.obs_slices.items() if name not in added}

    @property
    def body_dim(self) -> int:
        """Size of the body's fields together."""
        return sum(b - a for a, b in (self.obs_slices[name] for name in self.body_fields))

    @property
    def sign_places(self) -> list[int]:
        """(obs_dim,): for each channel the one with its joint's sign; obs_dim where it has none."""
        places = [self.obs_dim] * self.obs_dim
        for name in self.signed_fields:
            places[slice(*self.obs_slices[name])] = range(*self.obs_slices[BODY_SIGN])
        return places

    @property
    def body_signs(self) -> slice:
        """Place of the joints' signs among the body's numbers."""
        start, stop = self.obs_slices[BODY_SIGN]
        return slice(start - self.stored_dim, stop - self.stored_dim)

    @property
    def stored_dim(self) -> int:
        """Size of the stored observation."""
        return max(stop for _, stop in self.stored_slices.values())

    @property
    def dim(self) -> int:
        """Size of a token."""
        return self.obs_dim + self.condition_dim * (self.kind == "return")

    @property
    def slices(self) -> Slices:
        """Field -> (start, stop) in the token, with the condition for kind "return"."""
        if self.kind == "obs":
            return dict(self.obs_slices)
        widths = {name: stop - start for name, (start, stop) in self.obs_slices.items()}
        first = {LAST_ACTION: widths.pop(LAST_ACTION), CONDITION: self.condition_dim}
        placed = {}
        end = 0
        for name, width in (first | widths).items():
            placed[name] = (end, end + width)
            end += width
        return placed


def needs_last_action(kind: str, stored_slices: Slices) -> bool:
    """Whether tokens of this kind need a last action that is not stored."""
    return kind == "return" and LAST_ACTION not in stored_slices


# The condition of a policy: labels beside its observation.
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
