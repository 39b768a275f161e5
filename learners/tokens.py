"""What one step looks like to a network: a token of the observation and the return-to-go."""

from collections.abc import Mapping
from dataclasses import dataclass

TOKEN_KINDS = ("obs", "return")

Slices = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class TokenLayout:
    """Names and places of the numbers in a token.

    kind "obs": the observation as stored. kind "return": the last action, the return-to-go, then
    the rest of the observation in stored order, the (a, R, s) of Chen et al. 2021 and of the
    FCNet paper. obs_slices maps each observation field to its (start, stop); together they must
    tile the observation. Raises ValueError for any other kind or layout.
    """

    kind: str
    obs_slices: Slices

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
        if self.kind == "return" and "last_action" not in self.obs_slices:
            raise ValueError("return tokens need an observation field named last_action")
        object.__setattr__(self, "obs_slices", {name: (a, b) for name, a, b in ordered})

    @property
    def obs_dim(self) -> int:
        """Numbers in the stored observation."""
        return max(stop for _, stop in self.obs_slices.values())

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
        first = {"last_action": widths.pop("last_action"), "return_to_go": 1}
        placed, end = {}, 0
        for name, width in (first | widths).items():
            placed[name] = (end, end + width)
            end += width
        return placed
