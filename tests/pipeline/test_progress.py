"""Progress in log files: rates that can be read, and no time left where nobody can know it."""

import pytest

from gaitforge.flows.progress import COMPILING
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
        now = 150.0
        advance(0, "")
    with TerminalReporter().step("train", 1000, "step", 100) as advance:
        now = 153.0
        advance(450, "")
    assert capsys.readouterr().err.splitlines() == [
        "plan               0%  return 3",
        "plan              25%  1.5 episodes/min, return 3",
        "plan              25%  1.2 episodes/min, 2 min 30 s left, return 3",
        "plan             100%  1.2 episodes/min, in 50 s, return 3",
        "train             55%  150 steps/s",
        "train            100%  150 steps/s, in 3.0 s",
    ]


HISTORY = [(30.0, 0, COMPILING), (35.0, 0, COMPILING)]
HISTORY += [(seconds, 100, "") for seconds in (40.0, 44.0, 46.0)]


def test_the_time_before_the_first_step_counts_in_no_estimate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(terminal, "LINE_PERIOD_S", 0.0)
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    with TerminalReporter().step("collect", 1100, "step") as advance:
        for seconds, steps, note in HISTORY:
            now = seconds
            advance(steps, note)
    assert capsys.readouterr().err.splitlines() == [
        "collect            0%  compiling, once",
        "collect            9%  2 steps/s",
        "collect           18%  25 steps/s",
        "collect           27%  33 steps/s, 24 s left",
        "collect          100%  7 steps/s, in 46 s",
    ]
