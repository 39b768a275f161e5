"""Findings of the doctor, and the commands that remove or note a fault."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Example:
    """An episode that shows a finding: its name, a step of it, and the command that shows it."""

    episode: str
    step: int
    view: str


@dataclass(frozen=True, eq=False)
class Finding:
    """One kind of fault in a dataset.

    Attributes:
        name: of the fault, such as "frozen-sensor".
        severity: "error": wrong for any use; "warning": wrong for many; "note": good to know.
        text: what was found where, in one line.
        count: episodes (`rows`), or else channels or values as the text says.
        rows: (N,) numbers of the episodes that it is about; empty if it is about all.
        place: field and channel that show it, to find the step of an example.
        steps: (N,) the step of each of `rows` that shows it, where the check knows it.
        remedy: which command helps: "drop", "annotate", "leave out" (of an import), "limitations"
            (of the card), "export", "verify", "trim head", "trim tail" (of a step), or "cut" (of
            episodes where the doctor sees seams).
        more: further JSON values about it.
        examples: up to three; commands: to paste into a shell, in order.
    """

    name: str
    severity: Severity
    text: str
    count: int
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    place: tuple[str, int] | None = None
    steps: np.ndarray | None = None
    remedy: str = "annotate"
    more: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    commands: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON values."""
        names = ("name", "severity", "text", "count")
        examples = [vars(example) for example in self.examples]
        record = {name: getattr(self, name) for name in names}
        return {**record, **self.more, "examples": examples, "commands": list(self.commands)}


def of_episodes(
    name: str, severity: Severity, text: str, rows: np.ndarray, **more: Any
) -> list[Finding]:
    """A finding about some episodes; none without any."""
    return [Finding(name, severity, text, len(rows), rows, **more)] if len(rows) else []


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Errors first, then warnings, then notes."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
