"""Retrying transient errors: a full or slow disk, a lost connection."""

import random
from dataclasses import dataclass
from typing import Annotated

from gaitforge.common.limits import Positive, Range, check_ranges

_LASTING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""System errors that are not transient."""


@dataclass(frozen=True)
class Retry:
    """At most `attempts`, with waits of `first_wait_s` x 1, 4, 16, … in between.

    Each wait is drawn from 0.5 to 1.5 of its length, so that processes that met the same error do
    not retry at the same moment.
    """

    attempts: Positive = 3
    first_wait_s: Annotated[float, Range(0)] = 2.0

    def __post_init__(self) -> None:
        check_ranges(self)

    def wait_s(self, attempt: int, error: Exception) -> float | None:
        """Seconds until the next attempt, after number `attempt` (from 0) ended in an error.

        None where there is none: it was the last one, or the error is not `is_passing`.
        """
        if attempt + 1 >= self.attempts or not is_passing(error):
            return None
        # Jitter needs no seed: nothing that is stored depends on it.
        return self.first_wait_s * 4**attempt * random.uniform(0.5, 1.5)


def is_passing(error: BaseException) -> bool:
    """Whether an error, or its cause, is a transient system error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return not isinstance(cause, _LASTING)
        cause = cause.__cause__
    return False
