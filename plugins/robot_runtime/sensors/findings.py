"""What a check of sensors or of a configuration finds."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        kind: order, sign, unit, scale, zero, pose, convention, axes, still, unexplained, missing,
            limit, gain, time or term.
        part: q, dq, quaternion or gyro, several with "and"; or the field of a configuration.
        text: what is wrong, in words.
        joints: names of the joints, or of the gyro's axes.
        alike: other explanations that a log does not tell from this one.
        evidence: numbers by name: measured ones, or the file's and the policy's.
    """

    kind: str
    part: str
    text: str
    joints: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What a log or a configuration tells.

    Attributes:
        findings: what is wrong.
        lacking: what motion is missing to judge the rest, in words.
        unjudged: what was not judged and need not be, in words.
        measured: numbers by name.
    """

    findings: tuple[Finding, ...]
    lacking: tuple[str, ...]
    unjudged: tuple[str, ...]
    measured: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Whether everything was judged and nothing is wrong."""
        return not self.findings and not self.lacking

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {"ok": self.ok, **asdict(self)}
