"""Which formats a source seems to be of, and why no format reads it."""

from collections.abc import Mapping
from pathlib import Path

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.formats import find_format, format_names, importer_class


def recognised_as(source: str | Path) -> list[str]:
    """The formats that a source seems to be of, of those whose packages are installed."""
    return [name for name in format_names() if _recognises(name, Path(source))]


def _recognises(name: str, source: Path) -> bool:
    try:
        return not find_format(name).missing and importer_class(name).recognises(source)
    except (DatasetError, OSError):  # a broken format of another package, or no right to read
        return False


def why_unread(source: str, refusals: Mapping[str, str]) -> str:
    """What is wrong with a source that no format reads, of the refusals by format; "" if unknown.

    That is what the format says that recognises it, or else what several say alike, as of a file
    that is damaged.
    """
    known = [name for name in recognised_as(source) if name in refusals]
    if known:
        return "; ".join(f"read as {name}: {refusals[name]}" for name in known)
    texts = list(refusals.values())
    alike = [text for text in dict.fromkeys(texts) if texts.count(text) > 1]
    return listed(alike) if Path(source).is_file() else ""
