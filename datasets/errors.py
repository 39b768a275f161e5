"""The errors of this package that a user can cause."""

from collections.abc import Iterable


class DatasetError(ValueError):
    """A request or a store that cannot be served; its one-line message says what is allowed."""


class StorageError(DatasetError):
    """A disk or object storage that refuses for now; the same call may succeed later."""


def listed(values: Iterable[object], limit: int = 24) -> str:
    """Join ``values`` for a message, cut after ``limit`` of them."""
    names = [str(value) for value in values]
    if not names:
        return "(none)"
    extra = f", … ({len(names)} in all)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + extra
