"""Names that a plan gives: they become folders, files, stages and jobs."""

import re
from collections.abc import Iterable, Sequence

from gaitforge.flows.records.records import digest
from gaitforge.flows.stages.stage import Stage

ALLOWED = "letters, digits, '_', '-' and '.', a letter, digit or '_' first"
_NAME = re.compile(r"\w[\w.-]*")
_STAGE = re.compile(r"\w[\w.-]*( \w[\w.-]*)*")
_MOST_BYTES = 180
"""Most bytes of a stage's name: a file's has at most 255, and files add to it."""


def check_name(kind: str, name: object, spaces: bool = False) -> None:
    """Raise ValueError unless a name can be that of a folder, a stage and a job.

    Args:
        kind: what it names, for the error's text; spaces: whether it may be several words.
    """
    allowed = _STAGE if spaces else _NAME
    if not isinstance(name, str) or not allowed.fullmatch(name):
        raise ValueError(f"{kind}: {shown(name)} cannot be a name; {ALLOWED}")
    if len(name.encode()) > _MOST_BYTES:
        raise ValueError(f"{kind}: {shown(name[:20])}… is longer than {_MOST_BYTES} bytes")


def shown(name: object) -> str:
    """A name in a line of text: in quotes, and what is no visible character escaped."""
    return f"'{name}'" if isinstance(name, str) and name.isprintable() else repr(name)


def file_name(text: str) -> str:
    """A text that a store holds as a name for folders: itself, or with a hash of what is lost."""
    if _NAME.fullmatch(text) and len(text.encode()) <= _MOST_BYTES // 2:
        return text
    kept = re.sub(r"[^A-Za-z0-9]+", "-", text)[:40].strip("-")
    return f"{kept or 'task'}-{digest(text)[:6]}"


def number_text(value: float) -> str:
    """A number for names: six digits where these are all of it, so that no two have one text."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def check_once(kind: str, values: Sequence[object]) -> None:
    """Raise ValueError for a value that comes twice; 1 and 1.0 are the same."""
    for k, value in enumerate(values):
        if value in values[:k]:
            raise ValueError(f"{kind}: {shown(value)} comes twice")


def check_apart(names: Iterable[tuple[str, str]]) -> None:
    """Raise ValueError if two things would have one name.

    Args:
        names: each name, and what has it in words.
    """
    known: dict[str, str] = {}
    for name, holder in names:
        if name in known:
            raise ValueError(
                f"{known[name]} and {holder} would both be named {shown(name)}; rename one of them"
            )
        known[name] = holder


def check_stages(stages: Sequence[Stage]) -> None:
    """Raise ValueError for stages whose names or files are no names, or those of another one."""
    for stage in stages:
        if not _STAGE.fullmatch(stage.name):
            raise ValueError(f"stage {shown(stage.name)} cannot be a name; {ALLOWED}")
        if len(stage.file_name.encode()) > _MOST_BYTES:
            raise ValueError(
                f"stage {shown(stage.name[:40])}… is longer than {_MOST_BYTES} bytes; give its "
                "plan shorter names"
            )
    check_apart((stage.file_name, f"stage {shown(stage.name)}") for stage in stages)
    outputs = ((str(path), f"a file of stage '{s.name}'") for s in stages for path in s.outputs)
    check_apart(outputs)
