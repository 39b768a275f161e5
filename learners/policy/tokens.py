"""What one step looks like to a network: a token of the observation and the return-to-go."""

from collections.abc import Mapping
from dataclasses import dataclass

TOKEN_KINDS = ("obs", "return")
LAST_ACTION = "last_action"

Slices = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class TokenLayout:
    """Names and places of the numbers in a token.

    kind "obs": the observation as stored. kind "return": the last action, the return-to-go, then
    the rest of the observation in stored order, the (a, R, s) of Chen et al. 2021 and of the
    FCNet paper. obs_slices maps each observation field to its (start, stop); together they must
    tile the observation.

    With keeps_last_action the last action is not observed: the policy keeps it, and obs_slices end
    with the place at which it is appended to the stored observation.

    Raises ValueError for any other kind or layout.
    """

    kind: str
    obs_slices: Slices
    keeps_last_action: bool = False

    def __post_init__(self) -> None:
        if self.kind not in TOKEN_KINDS:
            raise ValueError(f"no token layout {self.kind!r}; known are {', '.join(TOKEN_KINDS)}")
        ordered = sorted(
            ((name, int(start), int(stop)) for name, (start, stop) in self.obs_slices.items()),
            key=lambda item: item[1],
        )
        end = 0
        for name, start, stop in ordered:
            if start != end or stop <= start:
                raise ValueError(
                    f"observation field {name} spans ({start}, {stop}), but the fields must tile "
                    f"the observation and the next one starts at {end}"
                )
            end = stop
        if not ordered:
            raise ValueError("the observation has no named fields; name its slices in the schema")
        if self.kind == "return" and LAST_ACTION not in self.obs_slices:
            raise ValueError(f"return tokens need an observation field named {LAST_ACTION}")
        if self.keeps_last_action and (self.kind != "return" or ordered[-1][0] != LAST_ACTION):
            raise ValueError(
                f"a policy that keeps the last action has return tokens, and {LAST_ACTION} is the "
                "last field of its observation"
            )
        object.__setattr__(self, "obs_slices", {name: (a, b) for name, a, b in ordered})

    @classmethod
    def of_data(cls, kind: str, stored_slices: Slices, act_dim: int) -> "TokenLayout":
        """The layout for stored observations with these fields; ValueError as the class.

        The policy keeps the last action where the tokens need it and it is not stored.
        """
        if not needs_last_action(kind, stored_slices):
            return cls(kind, stored_slices)
        end = cls("obs", stored_slices).obs_dim
        return cls(kind, {**stored_slices, LAST_ACTION: (end, end + act_dim)}, True)

    @property
    def obs_dim(self) -> int:
        """Numbers in the policy's observation, the last action among them if it is kept."""
        return max(stop for _, stop in self.obs_slices.values())

    @property
    def stored_slices(self) -> Slices:
        """Field -> (start, stop) in the observation as it is stored and measured."""
        kept = LAST_ACTION if self.keeps_last_action else None
        return {name: bounds for name, bounds in self.obs_slices.items() if name != kept}

    @property
    def stored_dim(self) -> int:
        """Numbers in the observation as it is stored and measured."""
        return max(stop for _, stop in self.stored_slices.values())

    @property
    def dim(self) -> int:
        """Numbers in the token."""
        return self.obs_dim + (self.kind == "return")

    @property
    def slices(self) -> Slices:
        """Field -> (start, stop) in the token, return_to_go among them for kind "return"."""
        if self.kind == "obs":
            return dict(self.obs_slices)
        widths = {name: stop - start for name, (start, stop) in self.obs_slices.items()}
        first = {LAST_ACTION: widths.pop(LAST_ACTION), "return_to_go": 1}
        placed, end = {}, 0
        for name, width in (first | widths).items():
            placed[name] = (end, end + width)
            end += width
        return placed


def needs_last_action(kind: str, stored_slices: Slices) -> bool:
    """Whether tokens of this kind have a last action that the stored observation lacks."""
    return kind == "return" and LAST_ACTION not in stored_slices
