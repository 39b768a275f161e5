"""Retrying transient errors: a full or slow disk, a lost connection."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from gaitforge.datasets.ranges import Positive, Range, check_ranges

Result = TypeVar("Result")

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

    def call(
        self, work: Callable[[], Result], before_wait: Callable[[Exception, float], None]
    ) -> Result:
        """The work's result, retried after errors that are `is_passing`.

        Args:
            before_wait: called with the error and the seconds until the next attempt.
        """
        for attempt in range(self.attempts):
            try:
                return work()
            except Exception as error:
                if attempt + 1 == self.attempts or not is_passing(error):
                    raise
                # Jitter needs no seed: nothing that is stored depends on it.
                wait_s = self.first_wait_s * 4**attempt * random.uniform(0.5, 1.5)
                before_wait(error, wait_s)
                time.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")


def is_passing(error: BaseException) -> bool:
    """Whether an error, or its cause, is a transient system error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return not isinstance(cause, _LASTING)
        cause = cause.__cause__
    return False
