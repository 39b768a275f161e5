"""What a collection tells when it has ended."""

from __future__ import annotations

import json

import pytest

from gaitforge.flows.records.part_records import PartCollected
from gaitforge.pipeline.cli.collect import show_collected

ROWS = [{"part": "a", "steps": 300}]


def test_the_rate_is_told_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_collected(ROWS, [PartCollected("a", 3, 300, 9, 10.0, 0.1, 12.0)], as_json=False)
    assert "150 steps/s" in capsys.readouterr().out


def test_no_rate_is_told_where_no_times_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    show_collected(ROWS, [PartCollected("a", 3, 300, 9, 10.0, 0.0, 10.0)], as_json=False)
    told = capsys.readouterr().out
    assert "300" in told
    assert "steps/s" not in told


def test_json_is_the_rows_alone(capsys: pytest.CaptureFixture[str]) -> None:
    show_collected(ROWS, [PartCollected("a", 3, 300, 9, 10.0, 0.1, 12.0)], as_json=True)
    assert json.loads(capsys.readouterr().out) == ROWS
