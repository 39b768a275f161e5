"""Progress in log files: rates that can be read, and no time left where nobody can know it."""

import pytest

from gaitforge.pipeline import terminal
from gaitforge.pipeline.terminal import TerminalReporter


def test_slow_and_fast_steps_are_told_in_their_own_units(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(terminal, "LINE_PERIOD_S", 0.0)
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    with TerminalReporter().step("plan", 4, "episode") as advance:
        now = 120.0
        advance(0, "return 3")
        now = 140.0
        advance(1, "")
    with TerminalReporter().step("train", 1000, "step", 100) as advance:
        now = 143.0
        advance(450, "")
    assert capsys.readouterr().err.splitlines() == [
        "plan               0%  0.0 episodes/min, time left unknown, return 3",
        "plan              25%  1.5 episodes/min, 2 min 00 s left, return 3",
        "plan             100%  1.5 episodes/min, in 40 s, return 3",
        "train             55%  150 steps/s, 3.0 s left",
        "train            100%  150 steps/s, in 3.0 s",
    ]
