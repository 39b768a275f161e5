"""Snippets: the stretches of a clip that one expert tracks, as MoCapAct cuts them."""

from dataclasses import dataclass
from typing import Self

from gaitforge.plugins.mocapact.humanoid.observation import LOOK_AHEAD

MIN_STEPS = 10
"""Least control steps of an episode from a random start, as in MoCapAct's rollouts."""


@dataclass(frozen=True)
class Snippet:
    """Frames `start` to `end` of a clip, both included; at least one step.

    The observation looks five frames ahead: an episode has at most `end - start - 5` steps.
    """

    clip: str
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.steps < 1:
            least = LOOK_AHEAD + 1
            raise ValueError(f"snippet {self.name} needs start >= 0 and end >= start + {least}")

    @property
    def name(self) -> str:
        """`<clip>-<start>-<end>`, the group's name in MoCapAct's files."""
        return f"{self.clip}-{self.start}-{self.end}"

    @property
    def steps(self) -> int:
        """Control steps from its start to its end."""
        return self.steps_from(self.start)

    @property
    def last_frame(self) -> int:
        """Frame at which an episode ends."""
        return self.end - LOOK_AHEAD

    def steps_from(self, frame: int) -> int:
        """Control steps from one of the clip's frames to the snippet's end."""
        return self.last_frame - frame

    def random_starts(self) -> range:
        """Frames at which an episode of at least `MIN_STEPS` steps (or all of it) can start."""
        last = self.last_frame - min(MIN_STEPS, self.steps)
        return range(self.start, last + 1)

    @classmethod
    def parse(cls, name: str) -> Self:
        """The snippet with this name; ValueError for a name of another form."""
        clip, *frames = name.rsplit("-", 2)
        if len(frames) != 2 or not clip or not all(frame.isdecimal() for frame in frames):
            raise ValueError(f"'{name}' is no snippet; write CLIP-START-END, as CMU_002_01-0-95")
        return cls(clip, int(frames[0]), int(frames[1]))


def whole_clip(clip: str, frames: int) -> Snippet:
    """A whole clip, of `frames` frames, as one snippet."""
    return Snippet(clip, 0, frames - 1)


def cut_clip(clip: str, frames: int, length: int, overlap: int) -> list[Snippet]:
    """Snippets of `length` frames that cover a clip, neighbours sharing `overlap` frames.

    The last one ends with the clip; a clip no longer than one snippet is one.
    """
    if length <= LOOK_AHEAD or not 0 <= overlap < length:
        raise ValueError(
            f"need length > {LOOK_AHEAD} and 0 <= overlap < length, got {length}, {overlap}"
        )
    last = frames - 1
    if last <= length:
        return [whole_clip(clip, frames)]
    starts = list(range(0, last - length, length - overlap))
    starts.append(last - length)
    return [Snippet(clip, start, start + length) for start in starts]
